"""The world's one queue of events. Simulated time passes only here.

Time is in whole microseconds. Events at the same time run in the order in which they were scheduled, so that a run is
decided by its seed alone.
"""

from collections.abc import Callable
from heapq import heappop, heappush

MILLISECOND = 1_000
SECOND = 1_000_000

Action = Callable[[], None]


class Event:
    """Something that will happen. Cancelling it is O(1): it stays in the queue and is skipped."""

    __slots__ = ("action", "time", "what")

    def __init__(self, time: int, action: Action, what: tuple[object, ...]) -> None:
        self.time = time
        self.action: Action | None = action
        self.what = what  # made into text only when somebody reads it

    def cancel(self) -> None:
        self.action = None


class Scheduler:
    def __init__(self) -> None:
        self.now = 0
        self.events_run = 0
        self._queue: list[tuple[int, int, Event]] = []
        self._scheduled = 0

    def after(self, delay: int, action: Action, *what: object) -> Event:
        """Run `action` in `delay` microseconds. `what` says in the trace what it was, subject first ("n2", "ticks")."""
        assert delay >= 0
        event = Event(self.now + delay, action, what)
        self._scheduled += 1
        heappush(self._queue, (event.time, self._scheduled, event))
        return event

    def next(self) -> Event | None:
        """Let time pass until the next event, and return it; the caller runs its action. None when nothing is left."""
        while self._queue:
            time, _, event = heappop(self._queue)
            if event.action is not None:
                self.now = time
                self.events_run += 1
                return event
        return None
