"""Deadlines of many members and groups in one heap, without a timer for each.

A key is armed at most once. Re-arming is lazy: a deadline that moves later, as every heartbeat does, leaves the key
where it is; whoever gets it from `due` asks its owner for the real deadline, and arms it again. So a key may come up
early, and one whose owner is gone may still come up: owners must expect both. Never late.

Cost: a deadline that moves later O(1), else O(log n). Entries that were overtaken are swept when they outnumber the
rest.
"""

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import NamedTuple

_GARBAGE_MIN = 64


class TimerKind(Enum):
    JOIN = "join"
    """The time a rebalance gives its members to join."""
    SYNC = "sync"
    """The time a generation gives its members to sync."""
    SESSION = "session"
    """A member's silence."""
    PENDING = "pending"
    """A member id that was given out and not yet used."""


class TimerKey(NamedTuple):
    kind: TimerKind
    group_id: str
    member_id: str = ""


class Timers:
    __slots__ = ("_armed", "_heap", "_sequence")

    def __init__(self) -> None:
        self._armed: dict[TimerKey, tuple[int, int]] = {}
        """Key -> (deadline, sequence) of its one valid entry."""
        self._heap: list[tuple[int, int, TimerKey]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._armed)

    def arm(self, key: TimerKey, deadline_ms: int) -> None:
        armed = self._armed.get(key)
        if armed is not None and armed[0] <= deadline_ms:
            return
        self._sequence += 1
        self._armed[key] = (deadline_ms, self._sequence)
        heappush(self._heap, (deadline_ms, self._sequence, key))
        self._sweep()

    def disarm(self, key: TimerKey) -> None:
        if self._armed.pop(key, None) is not None:
            self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._armed) + _GARBAGE_MIN:
            self._heap = [entry for entry in self._heap if self._armed.get(entry[2]) == entry[:2]]
            heapify(self._heap)

    def due(self, now_ms: int) -> list[TimerKey]:
        """Take the keys whose time has come, earliest first."""
        keys: list[TimerKey] = []
        while self._heap and self._heap[0][0] <= now_ms:
            deadline_ms, sequence, key = heappop(self._heap)
            if self._armed.get(key) == (deadline_ms, sequence):
                del self._armed[key]
                keys.append(key)
        return keys

    def next_ms(self) -> int | None:
        """When to ask `due` again."""
        while self._heap and self._armed.get(self._heap[0][2]) != self._heap[0][:2]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        self._armed.clear()
        self._heap.clear()
