"""What the nodes of a group say to each other. Values only; `server` gives them bytes.

Every message names its group, the two nodes and the sender's term. Messages may be lost, repeated, delayed and
reordered; none is acted upon without its term being looked at first (`Group.receive`).

`round` numbers the times a leader asks "am I still?": each message of a leader carries the newest, each answer echoes
the newest seen. See `reads`.

None is ever changed once made. The frequent ones are not frozen all the same: a frozen one takes three times as long to
make.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.raft.configuration import Configuration
from tidelog.raft.log import Entry


@dataclass(slots=True)
class AppendRequest:
    """Leader: entries that follow (previous_index, previous_term). Without entries it asks whether that one matches."""

    group: int
    source: int
    destination: int
    term: int
    previous_index: int
    previous_term: int
    entries: Sequence[Entry]
    commit: int
    round: int


@dataclass(slots=True)
class AppendResponse:
    """Follower: everything up to `match` equals the leader's log and is on stable storage here."""

    group: int
    source: int
    destination: int
    term: int
    match: int
    accepting: bool
    """False: the disk is full, send no entries until a HeartbeatResponse says otherwise."""
    round: int


@dataclass(frozen=True, slots=True)
class AppendRejected:
    """Follower: my log has no (previous_index, previous_term).

    The hint is my last entry at or before it whose term is not above previous_term: no later entry of mine can match.
    """

    group: int
    source: int
    destination: int
    term: int
    previous_index: int
    hint_index: int
    hint_term: int
    round: int


@dataclass(slots=True)
class Heartbeat:
    """Leader: I live. `sleep` asks the follower to sleep if it, too, has and knows committed all up to `commit`."""

    group: int
    source: int
    destination: int
    term: int
    commit: int
    round: int
    sleep: bool


@dataclass(slots=True)
class HeartbeatResponse:
    """Follower: answered at once, whatever the disk does.

    `match` is as in AppendResponse. `verified` equals the leader's log as well but may not be durable yet; it shows the
    leader what was lost on the way. A node that is in a later term answers an old leader with this too, for its term.
    """

    group: int
    source: int
    destination: int
    term: int
    match: int
    verified: int
    accepting: bool
    sleeping: bool
    round: int


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """Candidate: vote for me in `term`. `pre` only asks whether you would, and binds nobody (Raft thesis 9.6).

    `forced`: the leader itself told me to campaign (TimeoutNow), so your patience with it does not matter.
    """

    group: int
    source: int
    destination: int
    term: int
    last_index: int
    last_term: int
    pre: bool
    forced: bool


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """Voter. `term` is the one asked for if granted, else the voter's own."""

    group: int
    source: int
    destination: int
    term: int
    granted: bool
    pre: bool


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Leader: the entry you need is gone; begin anew after (index, log_term). Answered like an append.

    `configuration` is the last one known to be committed. It may be newer than `index`, never older than what is in
    force there.
    """

    group: int
    source: int
    destination: int
    term: int
    index: int
    log_term: int
    configuration_index: int
    configuration: Configuration
    context: bytes
    round: int


@dataclass(frozen=True, slots=True)
class TimeoutNow:
    """Leader: campaign at once, I want you to lead."""

    group: int
    source: int
    destination: int
    term: int


LeaderMessage = AppendRequest | Heartbeat | TakeOver
"""Only the leader of `term` sends these."""

Message = (
    AppendRequest
    | AppendResponse
    | AppendRejected
    | Heartbeat
    | HeartbeatResponse
    | VoteRequest
    | VoteResponse
    | TakeOver
    | TimeoutNow
)


@dataclass(slots=True)
class Envelope:
    """Everything one node has to say to another at one moment. Without messages it still says: this node lives.

    `incarnation` grows with each start of the source node; an envelope of an earlier one is a ghost.
    """

    source: int
    destination: int
    incarnation: int
    messages: Sequence[Message]
