"""The newest entries of every stream, in memory, within one budget of bytes for the node.

Followers and consumers at the tail are served from here, with the memory the batch arrived in. What is not yet durable
is always here, whatever the budget says: its size is bounded by the writer's queue. When the budget is exceeded the
entries that became durable first, over all streams, go first.
"""

from collections import deque
from collections.abc import Sequence

from tidelog.raft.log import Entry, EntryKind

_DROPPED = Entry(0, 0, EntryKind.NOOP, b"")


class Tail:
    """The cached suffix of one stream: consecutive entries from `first_index` on."""

    __slots__ = ("_entries", "_skipped", "durable_index", "first_index")

    def __init__(self, next_index: int) -> None:
        self._entries: list[Entry] = []
        self._skipped = 0  # leading list items that were dropped already; removed in bulk
        self.first_index = next_index
        self.durable_index = next_index - 1

    @property
    def next_index(self) -> int:
        return self.first_index + len(self._entries) - self._skipped

    def holds(self, index: int) -> bool:
        return self.first_index <= index < self.next_index

    def entries_from(self, index: int, last: int) -> Sequence[Entry]:
        start = self._skipped + index - self.first_index
        return self._entries[start : start + max(0, last - index + 1)]  # a negative end would count from the back

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)

    def drop_first(self) -> int:
        """Let the oldest entry go; returns its bytes."""
        entry = self._entries[self._skipped]
        self._entries[self._skipped] = _DROPPED  # its memory goes now, its place in the list later
        self._skipped += 1
        self.first_index += 1
        if self._skipped > 64 and self._skipped * 2 > len(self._entries):
            del self._entries[: self._skipped]
            self._skipped = 0
        return len(entry.data)

    def cut_from(self, index: int) -> int:
        """Forget entries at `index` and behind; returns their bytes. An empty tail goes on at `index`."""
        if index < self.first_index:
            dropped = sum(len(entry.data) for entry in self._entries[self._skipped :])
            self._entries, self._skipped, self.first_index = [], 0, index
            return dropped
        keep = self._skipped + index - self.first_index
        dropped = sum(len(entry.data) for entry in self._entries[keep:])
        del self._entries[keep:]
        return dropped


class TailCache:
    """The budget, and the order in which entries became durable."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._durable: deque[tuple[Tail, int]] = deque()  # (tail, up to which index it may be let go)
        self.bytes = 0

    def append(self, tail: Tail, entry: Entry) -> None:
        tail.append(entry)
        self.bytes += len(entry.data)

    def cut_from(self, tail: Tail, index: int) -> None:
        self.bytes -= tail.cut_from(index)
        tail.durable_index = min(tail.durable_index, index - 1)

    def durable(self, tail: Tail, index: int) -> None:
        """The tail's entries up to `index` are on disk, so they may be let go: the oldest until the budget holds."""
        tail.durable_index = index
        if self._durable and self._durable[-1][0] is tail:
            self._durable.pop()
        self._durable.append((tail, index))
        while self._durable:
            tail, index = self._durable[0]
            if tail.first_index > min(index, tail.durable_index) or not tail.holds(tail.first_index):
                self._durable.popleft()  # gone already, or truncated
            elif self.bytes > self._bytes_max:
                self.bytes -= tail.drop_first()
            else:
                return
