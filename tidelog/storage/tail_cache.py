"""The newest entries of every stream, in memory, within one budget of bytes for the node.

Followers and consumers at the tail are served from here, with the memory the batch arrived in. What is not yet durable
is always here, whatever the budget says: its size is bounded by the writer's queue. When the budget is exceeded the
entries that became durable first, over all streams, go first.
"""

from collections import deque
from collections.abc import Sequence

from tidelog.raft.log import Entry, EntryKind

ENTRY_BYTES = 256  # what an entry takes beside its data: itself, its numbers, its place in the list
_DROPPED = Entry(0, 0, EntryKind.NOOP, b"")


def _size(entries: Sequence[Entry]) -> int:
    return sum([len(entry.data) for entry in entries]) + ENTRY_BYTES * len(entries)


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

    def extend(self, entries: Sequence[Entry]) -> None:
        self._entries += entries

    def drop_oldest(self, bytes_min: int, last: int) -> int:
        """Let the oldest entries go, none behind index `last`, until so many bytes are gone; returns their bytes."""
        entries, place, dropped = self._entries, self._skipped, 0
        end = min(place + last - self.first_index + 1, len(entries))
        while dropped < bytes_min and place < end:
            dropped += len(entries[place].data) + ENTRY_BYTES
            entries[place] = _DROPPED  # its memory goes now, its place in the list later
            place += 1
        self.first_index += place - self._skipped
        self._skipped = place
        if place > 64 and place * 2 > len(entries):
            del entries[:place]
            self._skipped = 0
        return dropped

    def cut_from(self, index: int) -> int:
        """Forget entries at `index` and behind; returns their bytes. An empty tail goes on at `index`."""
        if index < self.first_index:
            dropped = _size(self._entries[self._skipped :])
            self._entries, self._skipped, self.first_index = [], 0, index
            return dropped
        keep = self._skipped + index - self.first_index
        dropped = _size(self._entries[keep:])
        del self._entries[keep:]
        return dropped


class TailCache:
    """The budget, and the order in which entries became durable."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._durable: deque[tuple[Tail, int]] = deque()  # (tail, up to which index it may be let go)
        self.bytes = 0

    def extend(self, tail: Tail, entries: Sequence[Entry]) -> None:
        tail.extend(entries)
        self.bytes += _size(entries)

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
            last = min(index, tail.durable_index)
            if self.bytes > self._bytes_max:
                self.bytes -= tail.drop_oldest(self.bytes - self._bytes_max, last)
            if tail.first_index <= last and tail.holds(tail.first_index):
                return  # the budget holds
            self._durable.popleft()  # gone already, or truncated
