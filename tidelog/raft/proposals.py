"""Proposals that a leader has appended and not yet answered, bounded in number and bytes.

Entries are appended in order, so proposals commit in order: a queue. Deadlines need not be in order; `deadline_ms` is
never later than the earliest of them, and a scan happens only when it has come.

Cost: adding O(1), answering O(1) a proposal, expiring O(outstanding) a deadline.
"""

from collections import deque

from tidelog.raft.settings import NEVER_MS


class Proposals:
    __slots__ = ("_bytes", "_bytes_max", "_count_max", "_queue", "deadline_ms")

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._queue: deque[tuple[int, int, int, int]] = deque()
        """(last index, ticket, bytes, deadline), last indexes ascending."""
        self._bytes = 0
        self.deadline_ms = NEVER_MS

    def __len__(self) -> int:
        return len(self._queue)

    def has_room(self, size: int) -> bool:
        """One proposal is always taken, however large; it is the wire's business to limit it."""
        if not self._queue:
            return True
        return len(self._queue) < self._count_max and self._bytes + size <= self._bytes_max

    def add(self, ticket: int, last_index: int, size: int, deadline_ms: int) -> None:
        self._queue.append((last_index, ticket, size, deadline_ms))
        self._bytes += size
        if deadline_ms < self.deadline_ms:
            self.deadline_ms = deadline_ms

    def committed(self, index: int) -> list[tuple[int, int]]:
        """Take those committed up to `index`, as (ticket, last index)."""
        done: list[tuple[int, int]] = []
        queue = self._queue
        while queue and queue[0][0] <= index:
            last_index, ticket, size, _ = queue.popleft()
            self._bytes -= size
            done.append((ticket, last_index))
        if not queue:
            self.deadline_ms = NEVER_MS
        return done

    def expired(self, now_ms: int) -> list[int]:
        """Take the tickets whose deadline has come."""
        if now_ms < self.deadline_ms:
            return []
        late = [ticket for _, ticket, _, deadline_ms in self._queue if deadline_ms <= now_ms]
        self._queue = deque(proposal for proposal in self._queue if proposal[3] > now_ms)
        self._bytes = sum(proposal[2] for proposal in self._queue)
        self.deadline_ms = min((proposal[3] for proposal in self._queue), default=NEVER_MS)
        return late

    def abandoned(self) -> list[int]:
        """Take all tickets."""
        tickets = [ticket for _, ticket, _, _ in self._queue]
        self._queue.clear()
        self._bytes = 0
        self.deadline_ms = NEVER_MS
        return tickets
