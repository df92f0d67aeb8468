"""The shadow of one replica's log: what it must contain, from everything it was told to do.

Every change of the real log passes here first-hand (see `observed_log`), so the checks touch only what changed. The
shadow outlives the process: after a crash the recovered log is held against it.
"""

from collections.abc import Sequence
from typing import Protocol

from tidelog.raft import Configuration, Entry, EntryKind

from .disk import SimDisk
from .history import History, Violation, check, is_quorum

NOTHING_SEEN = (-1, 0, 0)


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
    def configurations(self) -> list[tuple[int, bytes]]: ...


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
        self.offsets_seen: tuple[int, int, int] = (-1, 0, 0)  # commit, log start and log end, when last looked at
        self.configurations: list[tuple[int, bytes]] = []  # in the log and before it; empty: not known
        self.in_force: Configuration | None = None  # as it was found in force last
        self._newest: tuple[int, bytes] | None = None  # of the configurations then
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

    # ---- changes

    def appended(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            check(entry.index == self.last + 1, "indexes are dense", f"{self} appends {entry.index} after {self.last}")
            self.history.entry_appended(self.node, self._terms[-1], entry)
            self._terms.append(entry.term)
            if entry.kind is EntryKind.CONFIGURATION and self.configurations:
                self.configurations.append((entry.index, bytes(entry.data)))

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
        while self.configurations and self.configurations[-1][0] >= index:
            self.configurations.pop()

    def took_over(self, index: int, term: int) -> None:
        """It drops its log and goes on behind (index, term). Its next append shows whether the offset went along."""
        history = self.history
        if index > history.commit_index or history.committed[index] != term:
            raise Violation("only committed entries are taken over", f"{self} takes over from ({index}, term {term})")
        check(index > self.commit, "commit never falls", f"{self} takes over from {index}, commit is {self.commit}")
        self.base, self._terms = index, [term]
        self.durable = index - 1  # until it is told otherwise, a crash may bring the old log back
        self.configurations.clear()  # it is told of one that may be newer than its log

    def told(self) -> None:
        """It begins under a configuration that is newer than its log."""
        self.configurations.clear()

    def wrote(self, durable: int) -> None:
        """It is told that its log is durable up to here. Only its disk knows whether that is true."""
        check(durable <= self.last, "durable is within the log", f"{self}: {durable} of {self.last}")
        for index in range(max(self.durable, self.base) + 1, durable + 1):
            made = self.history.made[index, self._terms[index - self.base]]
            if made.kind is EntryKind.DATA and not self._disk.durable_contains(made.data, self._folder):
                raise Violation("durable means synced", f"{self} takes {index} for durable, which its disk may lose")
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

    def elected(self, term: int, configuration: Configuration) -> None:
        history = self.history
        history.elected(self.node, term)
        voted = {node for node in configuration.members if history.has_vote_of(node, term, self.node)} | {self.node}
        if not is_quorum(voted, configuration):
            raise Violation("leaders are elected", f"{self} leads term {term} with votes of {voted} in {configuration}")
        index = history.last_committed_before(term)
        if index >= self.base and self.term_at(index) != history.committed[index]:
            raise Violation(
                "leaders have all that is committed",
                f"{self} leads term {term} without ({index}, term {history.committed[index]})",
            )

    def has_in_force(self, configuration: Configuration) -> None:
        """The newest configuration in the log is in force, committed or not."""
        newest = self.configurations[-1] if self.configurations else None
        changed = configuration is not self.in_force or newest is not self._newest
        if newest is not None and changed and configuration.encode() != newest[1]:
            raise Violation("the newest configuration is in force", f"{self}: {configuration}, not entry {newest[0]}")
        self.in_force, self._newest = configuration, newest

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
        self.base, self._terms = base, terms
        self.wrote(log.durable_index)  # it may have seen bytes that only a page cache holds
        self.commit = base
        self.high_watermark = self.start_offset = 0
        self.offsets_seen = NOTHING_SEEN
        self.configurations = log.configurations()
        self.in_force = None


def _all_entries(log: RecoveredLog) -> list[Entry]:
    entries: list[Entry] = []
    index = log.first_index
    while index <= log.last_index:
        entries.extend(log.entries(index, log.last_index, 1 << 20))
        index = entries[-1].index + 1
    return entries
