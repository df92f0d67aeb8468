"""What a group wants done, and how it answers.

The owner of a group calls its events, then takes its Effects and does them in any order, with one rule: answers are
final. Each ticket that `propose`, `read` or `change_membership` gave out is answered exactly once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tidelog.raft.configuration import Configuration
from tidelog.raft.messages import Message


class Role(Enum):
    FOLLOWER = "follower"
    """Also a learner, and a node that is no member (yet, or any more)."""

    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Reason(Enum):
    """Why a proposal, a read or a change was refused."""

    NOT_LEADER = "not leader"
    BUSY = "too much outstanding"
    TRANSFERRING = "leadership is being handed over"
    STORAGE_FULL = "storage is full"
    NOT_READY = "no entry of this term is committed yet"
    CHANGE_PENDING = "a membership change is under way"
    NOT_LEARNED = "a node to become a voter must be a learner that holds the configuration naming it"
    INVALID = "invalid request"
    LEADERSHIP_LOST = "leadership was lost; the entries may or may not be committed"
    TIMED_OUT = "deadline passed; the entries may or may not be committed"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: Reason
    leader: int | None = None
    """Who leads, as far as this node knows."""
    detail: str = ""


@dataclass(slots=True)
class Committed:
    """The proposal's entries are committed; `index` is the last one's. Not frozen because one is made a proposal."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True)
class Readable:
    """A state that has applied everything up to `index` is fresh enough for the read."""

    ticket: int
    index: int


@dataclass(frozen=True, slots=True)
class Refused:
    ticket: int
    refusal: Refusal


Answer = Committed | Readable | Refused


@dataclass(frozen=True, slots=True)
class HardState:
    """What a node must never forget about a group: its term, and its vote in it."""

    term: int = 0
    vote: int | None = None


FOUNDED = HardState(1, 0)
"""What the members of a founded group begin with, until they remember more: term 1 has an owner, the one founder, and
nobody, which is what 0 stands for, gets a vote in it. So the founder has all of them (`Group.found`)."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """This node's role, and whom it knows to lead in `term`."""

    role: Role
    term: int
    leader: int | None


@dataclass(frozen=True, slots=True)
class MemberView:
    """What a leader knows of one member; of itself too."""

    node: int
    match: int
    """Up to here the member holds the log on stable storage."""
    heard_ms_ago: int
    voter: bool
    """It has a vote; while a change is under way, an outgoing voter has one too."""
    learner: bool
    accepting: bool
    """False while its disk is full."""


@dataclass(slots=True)
class Effects:
    """What there is to do since the last time. `None` and empty mean: no change."""

    hard_state: HardState | None = None
    """To be made durable, then reported with `hard_state_written`. Until then the group keeps its messages back."""

    messages: Sequence[Message] = ()
    answers: Sequence[Answer] = ()

    commit: int | None = None
    """Everything up to here is committed."""

    leadership: Leadership | None = None

    configuration: tuple[int, Configuration] | None = None
    """The configuration now in force, and its index. It may yet be reverted unless `commit` has reached it."""

    def __bool__(self) -> bool:
        return bool(
            self.messages
            or self.answers
            or self.hard_state is not None
            or self.commit is not None
            or self.leadership is not None
            or self.configuration is not None
        )
