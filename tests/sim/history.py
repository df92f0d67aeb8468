"""What one group has done since the world began, over all nodes and lives: the truth that its replicas are held to.

made        the entries that leaders made, by (index, term): a term's leader never makes two for one index
committed   the term of each committed entry, by index: it only ever grows
leaders     who led each term
votes       whom each node voted for in each term
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Set
from dataclasses import dataclass

from tidelog.raft import Configuration, Entry, EntryKind
from tidelog.wire.batch import read_header

LOG_START = struct.Struct(">q")  # content of such an entry: the offset. Consensus and storage leave it to their owner


class Violation(Exception):
    """A property that must always hold does not."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


def check(holds: bool, invariant: str, detail: str) -> None:
    """`detail` should be cheap to make: it is made every time."""
    if not holds:
        raise Violation(invariant, detail)


@dataclass(frozen=True, slots=True)
class Made:
    """An entry that a leader made, and what came before it."""

    previous_term: int
    kind: EntryKind
    data: bytes
    next_offset: int  # of the log up to and including this entry


class History:
    def __init__(self, group: int) -> None:
        self.group = group
        self.made: dict[tuple[int, int], Made] = {(0, 0): Made(0, EntryKind.NOOP, b"", 0)}
        self.committed: list[int] = [0]  # terms; index 0 is the beginning of every log
        self.commit_terms: list[int] = [0]  # in whose term each one was committed
        self.data_indexes: list[int] = []  # of the committed entries with records
        self.data_offsets: list[int] = []  # and where they begin
        self.log_start = 0  # the highest committed one
        self.leaders: dict[int, int] = {}
        self.votes: dict[tuple[int, int], int] = {}
        self.forgotten_votes: set[tuple[int, int, int]] = set()  # (node, term, candidate), given all the same

    @property
    def commit_index(self) -> int:
        return len(self.committed) - 1

    @property
    def high_watermark(self) -> int:
        return self.next_offset(self.commit_index)

    def next_offset(self, index: int) -> int:
        """The offset after the committed entry at `index`."""
        return self.made[index, self.committed[index]].next_offset

    def elected(self, node: int, term: int) -> None:
        leader = self.leaders.setdefault(term, node)
        check(leader == node, "one leader a term", f"n{node} leads term {term} of group {self.group}, as n{leader} did")

    def voted(self, node: int, term: int, candidate: int) -> None:
        chosen = self.votes.setdefault((node, term), candidate)
        if chosen != candidate:
            raise Violation("one vote a term", f"n{node} voted for n{chosen} and n{candidate} in term {term}")

    def forgot_votes(self, node: int) -> None:
        for (voter, term), candidate in list(self.votes.items()):
            if voter == node:
                del self.votes[voter, term]
                self.forgotten_votes.add((voter, term, candidate))

    def has_vote_of(self, node: int, term: int, candidate: int) -> bool:
        return self.votes.get((node, term)) == candidate or (node, term, candidate) in self.forgotten_votes

    def entry_appended(self, node: int, previous_term: int, entry: Entry) -> None:
        """An entry came into a log, made there or received. By induction over `previous_term` this is Log Matching."""
        known = self.made.get((entry.index, entry.term))
        if known is None:
            self.made[entry.index, entry.term] = self._new(node, previous_term, entry)
            return
        if known.previous_term != previous_term or known.kind != entry.kind or known.data != entry.data:
            raise Violation(
                "log matching",
                f"n{node} has another entry ({entry.index}, term {entry.term}) after term {previous_term} "
                f"than was made after term {known.previous_term}",
            )

    def _new(self, node: int, previous_term: int, entry: Entry) -> Made:
        before = self.made.get((entry.index - 1, previous_term))
        if before is None:
            raise Violation("log matching", f"n{node} appends {entry.index} behind an entry that nobody made")
        check(entry.term >= previous_term, "terms never fall", f"n{node}: {entry.term} after {previous_term}")
        next_offset = before.next_offset
        if entry.kind is EntryKind.DATA:
            header = read_header(entry.data)
            check(
                header.base_offset == next_offset and header.leader_epoch == entry.term,
                "offsets are dense and epochs are terms",
                f"entry {entry.index} of term {entry.term} is stamped {header.base_offset}, {header.leader_epoch}; "
                f"its offset should be {next_offset}",
            )
            next_offset = header.next_offset
        return Made(previous_term, entry.kind, bytes(entry.data), next_offset)

    def entry_committed(self, node: int, index: int, term: int, current_term: int) -> bool:
        """A node takes (index, term) for committed; true when it is the first to do so."""
        if index < len(self.committed):
            if self.committed[index] != term:
                raise Violation(
                    "committed entries never change",
                    f"n{node} commits ({index}, term {term}); it was committed with term {self.committed[index]}",
                )
            return False
        assert index == len(self.committed), "commits are reported one by one"
        self.committed.append(term)
        self.commit_terms.append(current_term)
        made = self.made[index, term]
        if made.kind is EntryKind.DATA:
            self.data_indexes.append(index)
            self.data_offsets.append(read_header(made.data).base_offset)
        elif made.kind is EntryKind.LOG_START:
            self.log_start = max(self.log_start, *LOG_START.unpack(made.data))
        return True

    def configuration(self) -> tuple[int, Configuration] | None:
        """The last committed configuration and its index; None: the first is in force."""
        for index in range(self.commit_index, 0, -1):
            made = self.made[index, self.committed[index]]
            if made.kind is EntryKind.CONFIGURATION:
                return index, Configuration.decode(made.data)
        return None

    def later_configurations(self) -> list[Configuration]:
        """All that were made for places in the log behind the last committed one."""
        committed = self.configuration()
        last = 0 if committed is None else committed[0]
        return [
            Configuration.decode(entry.data)
            for (index, _), entry in self.made.items()
            if entry.kind is EntryKind.CONFIGURATION and index > last
        ]

    def committed_data(self) -> Iterator[bytes]:
        """Every batch that was ever committed, in order."""
        for index in self.data_indexes:
            yield self.made[index, self.committed[index]].data

    def index_of_batch(self, offset: int) -> int | None:
        """Index of the committed batch that begins at `offset`."""
        place = bisect_left(self.data_offsets, offset)
        found = place < len(self.data_offsets) and self.data_offsets[place] == offset
        return self.data_indexes[place] if found else None

    def index_before(self, offset: int) -> int:
        """Index of the last committed batch that begins before `offset`; 0: none does."""
        place = bisect_left(self.data_offsets, offset)
        return self.data_indexes[place - 1] if place else 0

    def check_served(self, offset: int, data: bytes) -> int:
        """`data` was served for `offset`: whole committed batches in order, or else; returns the offset behind them."""
        number = bisect_right(self.data_offsets, offset) - 1
        position = 0
        next_offset = offset
        while position < len(data):
            if number >= len(self.data_indexes):
                raise Violation("served is committed", f"group {self.group}: more than is committed, from {offset}")
            index = self.data_indexes[number]
            made = self.made[index, self.committed[index]]
            if data[position : position + len(made.data)] != made.data:
                raise Violation("an offset's content never changes", f"group {self.group}: entry {index}")
            position += len(made.data)
            next_offset = made.next_offset
            number += 1
        return next_offset

    def last_committed_before(self, term: int) -> int:
        """Index of the last entry that was committed in an earlier term than `term`."""
        index = self.commit_index
        while self.commit_terms[index] >= term and index:
            index -= 1
        return index


def is_quorum(nodes: Set[int], configuration: Configuration) -> bool:
    """Written apart from the product's arithmetic on purpose: more than half of each set of voters that has any."""
    halves = (set(configuration.voters), set(configuration.outgoing))
    return all(2 * len(voters & nodes) > len(voters) for voters in halves if voters)
