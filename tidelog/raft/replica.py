"""What one node holds of one group, whatever its role: log, commit index, term and vote, configurations, answers.

Roles come and go (`election`, `follower`, `leader`); they act on this. Here live the rules that hold in every role:

* the commit index never falls, and never passes the log's end;
* nothing at or below the commit index is ever truncated: to try is fatal;
* the configuration in force is the newest one in the log.
"""

from collections.abc import Iterable, Sequence, Set
from itertools import count

from tidelog.raft.configuration import Configuration
from tidelog.raft.effects import Answer, HardState, Reason, Refusal, Refused
from tidelog.raft.errors import RaftInvariantError
from tidelog.raft.log import Entry, EntryKind, Log
from tidelog.raft.membership import Membership
from tidelog.raft.outbox import Outbox
from tidelog.raft.settings import RaftSettings

_CONFIGURATION = EntryKind.CONFIGURATION


class Replica:
    __slots__ = (
        "_tickets",
        "alive",
        "answers",
        "commit",
        "group",
        "log",
        "membership",
        "node",
        "outbox",
        "settings",
        "term",
        "vote",
    )

    def __init__(
        self,
        group: int,
        node: int,
        log: Log,
        hard_state: HardState,
        membership: Membership,
        settings: RaftSettings,
        alive: Set[int] | None,
    ) -> None:
        self.group = group
        self.node = node
        self.log = log
        self.settings = settings
        self.membership = membership
        self.outbox = Outbox(hard_state)
        self.term = hard_state.term
        self.vote = hard_state.vote
        self.commit = log.first_index - 1  # what was deleted was committed
        self.alive = alive
        """Nodes that a host knows to live, as a live view; None: nobody watches, so the group never sleeps."""

        self.answers: list[Answer] = []
        self._tickets = count(1)

    # Term and vote

    def persist(self, term: int, vote: int | None) -> None:
        if term < self.term or (term == self.term and self.vote is not None and vote != self.vote):
            raise RaftInvariantError(
                f"group {self.group}: vote {vote} in term {term} after vote {self.vote} in term {self.term}"
            )
        self.term = term
        self.vote = vote
        self.outbox.persist(HardState(term, vote))

    # The log

    def advance_commit(self, index: int) -> None:
        if index <= self.commit:
            return
        if index > self.log.last_index:
            raise RaftInvariantError(
                f"group {self.group}: commit {index} beyond the log's last index {self.log.last_index}"
            )
        self.commit = index
        self.membership.committed(index)

    def truncate_from(self, index: int) -> None:
        if index <= self.commit:
            raise RaftInvariantError(
                f"group {self.group}: truncation from {index} would undo entries committed up to {self.commit}"
            )
        self.log.truncate_from(index)
        self.membership.truncated_from(index)

    def append_received(self, entries: Sequence[Entry]) -> None:
        self.log.append_received(entries)
        for entry in entries:
            if entry.kind == _CONFIGURATION:
                self.membership.appended(entry.index, Configuration.decode(entry.data))

    def append_configuration(self, configuration: Configuration) -> int:
        index = self.log.append_new(self.term, _CONFIGURATION, [configuration.encode()])
        self.membership.appended(index, configuration)
        return index

    def take_over(
        self, index: int, term: int, context: bytes, configuration_index: int, configuration: Configuration
    ) -> None:
        """Begin the log anew after (index, term), with a configuration not older than the one in force there."""
        if index <= self.commit:
            raise RaftInvariantError(
                f"group {self.group}: take-over at {index} would undo entries committed up to {self.commit}"
            )
        self.log.take_over(index, term, context)
        self.membership.taken_over(configuration_index, configuration)
        self.advance_commit(index)

    # Answers

    def new_ticket(self) -> int:
        return next(self._tickets)

    def take_answers(self) -> Sequence[Answer]:
        answers = self.answers
        self.answers = []
        return answers

    def refuse(self, tickets: Iterable[int], reason: Reason, leader: int | None = None) -> None:
        refusal = Refusal(reason, leader)
        self.answers.extend(Refused(ticket, refusal) for ticket in tickets)
