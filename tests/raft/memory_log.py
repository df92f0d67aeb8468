"""A log in memory whose disk does nothing until it is told to, and forgets what it was not told when it crashes."""

from bisect import bisect_right
from collections.abc import Sequence

from tidelog.raft import Buffer, Configuration, Entry, EntryKind


class MemoryLog:
    """Follows `raft.Log` to the letter, and checks its callers."""

    def __init__(self, *, first_index: int = 1, floor_term: int = 0, floor_context: bytes = b"") -> None:
        self.first_index = first_index
        self.floor_term = floor_term
        self.floor_context = floor_context
        self.stored: list[Entry] = []
        self.last_index = first_index - 1
        self.durable_index = first_index - 1
        self.accepting = True
        self.reads = 0
        self._terms: list[int] = []
        """Term of each entry, for the searches."""
        self._disk = (first_index, floor_term, floor_context, list[Entry]())

    def term_at(self, index: int) -> int:
        assert self.first_index - 1 <= index <= self.last_index, f"term_at({index})"
        return self.floor_term if index == self.first_index - 1 else self._terms[index - self.first_index]

    def last_index_of_term_at_most(self, index: int, term: int) -> int:
        assert index <= self.last_index
        return self.first_index - 1 + bisect_right(self._terms, term, 0, max(0, index - self.first_index + 1))

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        assert self.first_index <= first <= last <= self.last_index, f"entries({first}, {last})"
        self.reads += 1
        found = self.stored[first - self.first_index : last - self.first_index + 1]
        size = 0
        for count, entry in enumerate(found):
            size += len(entry.data)
            if size > bytes_max and count:
                return found[:count]
        return found

    def append_new(self, term: int, kind: EntryKind, data: Sequence[Buffer]) -> int:
        last = self.last_index
        self.append_received([Entry(last + 1 + place, term, kind, item) for place, item in enumerate(data)])
        return self.last_index

    def append_received(self, entries: Sequence[Entry]) -> None:
        assert self.accepting, "append to a full disk"
        assert entries, "append of nothing"
        assert entries[0].index == self.last_index + 1, f"append at {entries[0].index} after {self.last_index}"
        self.stored.extend(entries)
        self.last_index = entries[-1].index
        self._terms.extend([entry.term for entry in entries])

    def truncate_from(self, index: int) -> None:
        assert self.first_index <= index <= self.last_index
        del self.stored[index - self.first_index :]
        del self._terms[index - self.first_index :]
        self.last_index = index - 1
        self.durable_index = min(self.durable_index, self.last_index)

    def takeover_context(self) -> bytes:
        return self.floor_context

    def take_over(self, index: int, term: int, context: bytes) -> None:
        self.first_index = index + 1
        self.floor_term = term
        self.floor_context = context
        self.stored = []
        self._terms = []
        self.last_index = index
        self.durable_index = index - 1  # until the disk has it

    # What its owner does

    def sync(self, up_to: int | None = None) -> bool:
        """The disk has everything up to `up_to`. Says whether that is news."""
        before = self.durable_index
        self.durable_index = self.last_index if up_to is None else min(up_to, self.last_index)
        kept = self.stored[: self.durable_index - self.first_index + 1]
        self._disk = (self.first_index, self.floor_term, self.floor_context, kept)
        return self.durable_index != before

    def crash(self) -> "MemoryLog":
        """What a new process finds."""
        first_index, floor_term, floor_context, stored = self._disk
        log = MemoryLog(first_index=first_index, floor_term=floor_term, floor_context=floor_context)
        if stored:
            log.append_received(stored)
        log.sync()
        return log

    def delete_before(self, index: int, context: bytes) -> None:
        """Delete a prefix, as retention does; `context` is what a log that begins there must know."""
        floor_term = self.term_at(index - 1)
        drop = index - self.first_index
        del self.stored[:drop]
        del self._terms[:drop]
        self.first_index = index
        self.floor_term = floor_term
        self.floor_context = context
        self.sync(self.durable_index)

    def configurations(self) -> list[tuple[int, Configuration]]:
        """The one in force where the log begins, and every one in it."""
        return [_decode_context(self.floor_context)] + [
            (entry.index, Configuration.decode(entry.data))
            for entry in self.stored
            if entry.kind is EntryKind.CONFIGURATION
        ]

    def configuration_before(self, index: int) -> bytes:
        """The context of a log that begins at `index`."""
        return floor_context(*[known for known in self.configurations() if known[0] < index][-1])


def floor_context(index: int, configuration: Configuration) -> bytes:
    return index.to_bytes(8, "big") + configuration.encode()


def _decode_context(context: bytes) -> tuple[int, Configuration]:
    return int.from_bytes(context[:8], "big"), Configuration.decode(context[8:])


def log_of_terms(*terms: int) -> MemoryLog:
    """A durable log of data entries, one for each term, from index 1 on; each entry's data says its term and index."""
    log = MemoryLog()
    if terms:
        log.append_received(
            [Entry(index, term, EntryKind.DATA, b"%d.%d" % (term, index)) for index, term in enumerate(terms, 1)]
        )
    log.sync()
    return log
