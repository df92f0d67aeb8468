"""The shadow of one replica's log: what it must contain, from everything it was told to do.

Every change of the real log passes here first-hand (see `observed_log`), so the checks touch only what changed. The
shadow outlives the process: after a crash the recovered log is held against it.
"""

from collections.abc import Sequence
from typing import Protocol

from tidelog.raft.log import Entry, EntryKind

from .disk import SimDisk
from .history import History, Violation, check


class RecoveredLog(Protocol):
    """What is looked at after a recovery; a part of `tidelog.raft.log.Log`."""

    @property
    def first_index(self) -> int: ...
    @property
    def last_index(self) -> int: ...
    @property
    def durable_index(self) -> int: ...
    def term_at(self, index: int) -> int: ...
    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]: ...


class Shadow:
    """One node's log of one group, over all its lives.

    `_terms[i]` is the term of entry base + i, and `_terms[0]` that of the entry before the first.
    """

    def __init__(self, node: int, history: History, disk: SimDisk, folder: str) -> None:
        """`folder` is where the log's files are on `disk`."""
        self.node = node
        self.history = history
        self.base = 0
        self.durable = 0  # reported as such, and still there
        self.commit = 0  # in this life
        self.high_watermark = 0  # in this life, as the next one
        self.start_offset = 0
        self._disk = disk
        self._folder = folder
        self._terms = [0]

    def __str__(self) -> str:
        return f"n{self.node} of group {self.history.group}"

    @property
    def last(self) -> int:
        return self.base + len(self._terms) - 1

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`; None when the log has no such entry (any more)."""
        position = index - self.base
        return self._terms[position] if 0 <= position < len(self._terms) else None

    def holds(self, index: int, term: int) -> bool:
        """Whether it has the committed entry (index, term) on disk, or had it and trimmed it."""
        return index <= self.base or (index <= self.durable and self.term_at(index) == term)

    def is_on_disk(self, batch: bytes) -> bool:
        """Whether the disk itself, and not only its cache, has these bytes for certain."""
        return self._disk.durable_contains(batch, self._folder)

    # ---- changes

    def appended(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            check(entry.index == self.last + 1, "indexes are dense", f"{self} appends {entry.index} after {self.last}")
            self.history.entry_appended(self.node, self._terms[-1], entry)
            self._terms.append(entry.term)

    def truncated(self, index: int) -> None:
        history = self.history
        if index <= self.commit:
            raise Violation(
                "nothing below commit is truncated", f"{self} truncates from {index}, commit is {self.commit}"
            )
        if index <= history.commit_index and self.term_at(index) == history.committed[index]:
            raise Violation(
                "nothing committed is truncated", f"{self} truncates from {index}, which some node committed"
            )
        del self._terms[index - self.base :]
        self.durable = min(self.durable, self.last)

    def took_over(self, index: int, term: int) -> None:
        """It drops its log and goes on behind (index, term). Its next append shows whether the offset went along."""
        history = self.history
        if index > history.commit_index or history.committed[index] != term:
            raise Violation("only committed entries are taken over", f"{self} takes over from ({index}, term {term})")
        check(index > self.commit, "commit never falls", f"{self} takes over from {index}, commit is {self.commit}")
        self.base, self._terms = index, [term]
        self.durable = index - 1  # until it is told otherwise, a crash may bring the old log back

    def wrote(self, durable: int) -> None:
        check(durable <= self.last, "durable is within the log", f"{self}: {durable} of {self.last}")
        self.durable = durable

    def commit_moved(self, commit: int, current_term: int) -> list[int]:
        """Returns the indexes that no node had committed before."""
        check(commit >= self.commit, "commit never falls", f"{self} from {self.commit} to {commit}")
        check(commit <= self.last, "commit is within the log", f"{self} at {commit}, the log ends at {self.last}")
        first = [
            index
            for index in range(max(self.commit, self.base) + 1, commit + 1)
            if self.history.entry_committed(self.node, index, self._terms[index - self.base], current_term)
        ]
        self.commit = commit
        return first

    def elected(self, term: int) -> None:
        history = self.history
        history.elected(self.node, term)
        index = history.last_committed_before(term)
        if index >= self.base and self.term_at(index) != history.committed[index]:
            raise Violation(
                "leaders have all that is committed",
                f"{self} leads term {term} without ({index}, term {history.committed[index]})",
            )

    # ---- a new life

    def recovered(self, log: RecoveredLog) -> None:
        """Hold a recovered log against what it was: nothing durable is missing, nothing is there that nobody made."""
        history = self.history
        base = log.first_index - 1
        terms = [log.term_at(base)]
        if base > history.commit_index or (base and terms[0] != history.committed[base]):
            raise Violation("only committed entries are trimmed", f"{self} recovers a log that begins after {base}")
        for entry in _all_entries(log):
            made = history.made.get((entry.index, entry.term))
            if made is None or (made.previous_term, made.kind, made.data) != (terms[-1], entry.kind, entry.data):
                raise Violation(
                    "recovery brings back only what was written",
                    f"{self} recovers ({entry.index}, term {entry.term}) after term {terms[-1]}",
                )
            terms.append(entry.term)
        for index in range(max(base, self.base), self.durable + 1):
            if index >= base + len(terms) or terms[index - base] != self.term_at(index):
                raise Violation("what is durable survives", f"{self} lost ({index}, term {self.term_at(index)})")
        self._check_durable(log)
        self.base, self._terms = base, terms
        self.durable = log.durable_index
        self.commit = base
        self.high_watermark = self.start_offset = 0

    def _check_durable(self, log: RecoveredLog) -> None:
        """A recovered log may have seen bytes that only a page cache holds; it must not count on them."""
        for index in range(max(self.durable + 1, log.first_index), log.durable_index + 1):
            made = self.history.made[index, log.term_at(index)]
            if made.kind is EntryKind.DATA and not self.is_on_disk(made.data):
                raise Violation(
                    "durable means synced", f"{self} counts on {index} after recovery, which is not on its disk"
                )


def _all_entries(log: RecoveredLog) -> list[Entry]:
    entries: list[Entry] = []
    index = log.first_index
    while index <= log.last_index:
        entries.extend(log.entries(index, log.last_index, 1 << 20))
        index = entries[-1].index + 1
    return entries
