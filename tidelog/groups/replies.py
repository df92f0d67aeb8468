"""Answers to clients, given only when the state that they speak of is settled.

While a request is handled, answers are queued; they go out at its end, in order. So a callback may make the next
request at once, and never finds a group half-way between two states. Who queues an answer must forget the callback in
the same breath: that is what makes it called exactly once.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Replies:
    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[Callable[[Any], None], Any]] = deque()

    def add(self, reply: Callable[[Result], None], result: Result) -> None:
        self._queue.append((reply, result))

    def flush(self) -> None:
        while self._queue:
            reply, result = self._queue.popleft()
            reply(result)
