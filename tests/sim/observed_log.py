"""A log that shows its shadow every change before consensus sees the result."""

from collections.abc import Sequence

from tidelog.raft.log import Buffer, Entry, EntryKind, Log

from .shadow import Shadow

ALL_BYTES = 1 << 30


class ObservedLog:
    """Implements `tidelog.raft.log.Log` by the real one."""

    def __init__(self, log: Log, shadow: Shadow) -> None:
        self._log = log
        self._shadow = shadow
        self.term_at = log.term_at
        self.entries = log.entries
        self.last_index_of_term_at_most = log.last_index_of_term_at_most
        self.takeover_context = log.takeover_context

    @property
    def first_index(self) -> int:
        return self._log.first_index

    @property
    def last_index(self) -> int:
        return self._log.last_index

    @property
    def durable_index(self) -> int:
        return self._log.durable_index

    @property
    def accepting(self) -> bool:
        return self._log.accepting

    def append_new(self, term: int, kind: EntryKind, data: Sequence[Buffer]) -> int:
        first = self._log.last_index + 1
        last = self._log.append_new(term, kind, data)
        self._shadow.appended(self._log.entries(first, last, ALL_BYTES))
        return last

    def append_received(self, entries: Sequence[Entry]) -> None:
        self._shadow.appended(entries)
        self._log.append_received(entries)

    def truncate_from(self, index: int) -> None:
        self._shadow.truncated(index)
        self._log.truncate_from(index)

    def take_over(self, index: int, term: int, context: bytes) -> None:
        self._shadow.took_over(index, term)
        self._log.take_over(index, term, context)
