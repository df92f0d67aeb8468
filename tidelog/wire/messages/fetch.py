"""Fetch (1): record batches out, from an offset on.

Versions 0 and 1 want message sets of magic 0, 2 and 3 of magic 1, later ones batches of magic 2. From version 13 on a
topic goes by its id.
"""

from uuid import UUID

from tidelog.wire.codec import Buffer, array, int8, int16, int32, int64, records, string, struct, table, uuid
from tidelog.wire.messages.leadership import LeaderIdAndEpoch, NodeEndpoint

INT32_MAX = 0x7FFFFFFF
INT64_MAX = 0x7FFFFFFFFFFFFFFF


# --- request ---------------------------------------------------------------------------------------------------------


@table
class FetchRequestPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: UUID = uuid(since=17, tag=0)
    high_watermark: int = int64(since=18, default=INT64_MAX, tag=1)


@table
class FetchRequestTopic:
    topic: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[FetchRequestPartition] = array(FetchRequestPartition)


@table
class FetchForgottenTopic:
    topic: str = string(since=7, until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[int] = array(int32(), since=7)


@table
class FetchReplicaState:
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


@table
class FetchRequest:
    cluster_id: str | None = string(since=12, nullable_since=12, default=None, tag=0)
    replica_id: int = int32(until=14, default=-1)
    replica_state: FetchReplicaState | None = struct(FetchReplicaState, since=15, tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(since=3, default=INT32_MAX)
    isolation_level: int = int8(since=4)
    session_id: int = int32(since=7)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchRequestTopic] = array(FetchRequestTopic)
    forgotten_topics_data: list[FetchForgottenTopic] = array(FetchForgottenTopic, since=7)
    rack_id: str = string(since=11)


# --- response --------------------------------------------------------------------------------------------------------


@table
class FetchDivergingEpoch:
    """The largest epoch at which the reader's log and ours agree, and where it ends here."""

    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


@table
class FetchSnapshotId:
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


@table
class FetchAbortedTransaction:
    producer_id: int = int64()
    first_offset: int = int64()


@table
class FetchResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(since=4, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: FetchDivergingEpoch | None = struct(FetchDivergingEpoch, since=12, tag=0)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=12, tag=1)
    snapshot_id: FetchSnapshotId | None = struct(FetchSnapshotId, since=12, tag=2)
    aborted_transactions: list[FetchAbortedTransaction] | None = array(
        FetchAbortedTransaction, since=4, nullable_since=4
    )
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Buffer | None = records(default=b"")  # as Kafka answers when there is nothing; null is legal too


@table
class FetchResponseTopic:
    topic: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partitions: list[FetchResponsePartition] = array(FetchResponsePartition)


@table
class FetchResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(since=7)
    session_id: int = int32(since=7)
    responses: list[FetchResponseTopic] = array(FetchResponseTopic)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0)
