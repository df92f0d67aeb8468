"""Which term an index belongs to: one mark where each term begins, so memory and time go with terms, not entries.

It is Kafka's leader-epoch cache and Raft's `term(index)` at once.
"""

from bisect import bisect_right
from operator import itemgetter
from typing import NamedTuple

from tidelog.storage.errors import LogMismatchError


class TermStart(NamedTuple):
    term: int
    first_index: int
    first_offset: int


_INDEX = itemgetter(1)
_TERM = itemgetter(0)


class TermHistory:
    """Terms of a log from `floor` (the entry before the first) on. Terms and indexes rise from mark to mark."""

    def __init__(self, floor: TermStart) -> None:
        self._starts = [floor]
        self.last_term = floor.term

    def add(self, term: int, index: int, offset: int) -> None:
        """The entry at `index` has `term`; nothing happens unless that is a new one."""
        last = self._starts[-1]
        if term == last.term:
            return
        if term < last.term:
            raise LogMismatchError(f"term {term} at index {index} behind {last}")
        self._starts.append(TermStart(term, index, offset))
        self.last_term = term

    def term_at(self, index: int) -> int:
        return self._starts[bisect_right(self._starts, index, key=_INDEX) - 1].term

    def last_index_of_term_at_most(self, index: int, term: int) -> int:
        """The largest i <= index whose term is at most `term`, not below the floor."""
        after = bisect_right(self._starts, term, key=_TERM)
        if after == len(self._starts):
            return index
        return max(min(index, self._starts[after].first_index - 1), self._starts[0].first_index)

    def end_of(self, term: int, end_offset: int) -> tuple[int, int]:
        """(the largest term <= `term` in the log, the offset where it ends): Kafka's OffsetForLeaderEpoch (KIP-279)."""
        after = bisect_right(self._starts, term, key=_TERM)
        if after == 0:
            return -1, -1
        end = self._starts[after].first_offset if after < len(self._starts) else end_offset
        return self._starts[after - 1].term, end

    def cut_from(self, index: int) -> None:
        """Forget terms that begin at `index` or behind it."""
        while len(self._starts) > 1 and self._starts[-1].first_index >= index:
            self._starts.pop()
        self.last_term = self._starts[-1].term

    def drop_before(self, floor: TermStart) -> None:
        """The log begins behind `floor` now."""
        behind = bisect_right(self._starts, floor.first_index, key=_INDEX)
        self._starts[:behind] = [floor]
        self.last_term = self._starts[-1].term
