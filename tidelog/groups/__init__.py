"""Consumer groups and their offsets, as pure state machines: no sockets, clocks, files or threads.

A `Coordinator` keeps the groups whose journal is one partition of the internal stream (`partition_of` says which); see
`coordinator` for how it is driven. Requests and results are plain dataclasses (`messages`), which the server's handlers
translate from and to the wire. The journal's records are Kafka's own (`journal`), with snapshots beside (`image`).
"""

from tidelog.groups.coordinator import Coordinator
from tidelog.groups.errors import GroupsError, GroupSettingsError, JournalError
from tidelog.groups.image import Image
from tidelog.groups.journal import Record, is_snapshot_begin, is_snapshot_end
from tidelog.groups.messages import (
    CommitRequest,
    CommitResult,
    DeleteOffsetsResult,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    FetchResult,
    HeartbeatRequest,
    JoinedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    ListedGroup,
    OffsetToCommit,
    Protocol,
    SyncRequest,
    SyncResult,
    TopicPartition,
)
from tidelog.groups.placement import partition_of
from tidelog.groups.settings import GroupSettings

__all__ = [
    "CommitRequest",
    "CommitResult",
    "Coordinator",
    "DeleteOffsetsResult",
    "DescribedGroup",
    "DescribedMember",
    "FetchResult",
    "FetchedOffset",
    "GroupSettings",
    "GroupSettingsError",
    "GroupsError",
    "HeartbeatRequest",
    "Image",
    "JoinRequest",
    "JoinResult",
    "JoinedMember",
    "JournalError",
    "LeaveResult",
    "LeavingMember",
    "LeftMember",
    "ListedGroup",
    "OffsetToCommit",
    "Protocol",
    "Record",
    "SyncRequest",
    "SyncResult",
    "TopicPartition",
    "is_snapshot_begin",
    "is_snapshot_end",
    "partition_of",
]
