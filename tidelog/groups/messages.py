"""What is asked of a coordinator and what it answers, free of any wire format.

Field names are Kafka's. `version` is the version of the request on the wire, where behaviour depends on it. Answers to
requests that may have to wait go to a callback, which is called exactly once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tidelog.wire.errors import ErrorCode

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Protocol:
    """One way of assigning work that a member supports, with what the member says to it (its subscription)."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    group_id: str
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """In the member's order of preference."""
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """Not in version 0, where the session timeout serves."""
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    version: int = 9


@dataclass(frozen=True, slots=True)
class JoinedMember:
    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader_id: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader only."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Member id -> its share; from the leader only."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeavingMember:
    member_id: str
    """May be empty for a static member, who is then known by its instance id alone."""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class LeftMember:
    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """Below version 3 the answer has one error: the first member's, if `error` is NONE."""

    error: ErrorCode
    members: tuple[LeftMember, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None
    retention_ms: int = -1
    """In versions 2 to 4 a client may say how long its offsets are kept; -1 leaves it to the settings."""
    version: int = 9


@dataclass(frozen=True, slots=True)
class CommitResult:
    errors: tuple[ErrorCode, ...]
    """One for each offset of the request, in its order."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    topic: str
    partition: int
    offset: int = -1
    """-1: none is committed."""
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class FetchResult:
    error: ErrorCode
    offsets: tuple[FetchedOffset, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteOffsetsResult:
    error: ErrorCode
    errors: tuple[ErrorCode, ...] = ()
    """One for each partition of the request, in its order, when `error` is NONE."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


@dataclass(frozen=True, slots=True)
class DescribedMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class DescribedGroup:
    error: ErrorCode
    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[DescribedMember, ...] = ()


JoinReply = Callable[[JoinResult], None]
SyncReply = Callable[[SyncResult], None]
CommitReply = Callable[[CommitResult], None]
DeleteOffsetsReply = Callable[[DeleteOffsetsResult], None]
DeleteGroupsReply = Callable[[dict[str, ErrorCode]], None]
