"""Produce (0): record batches in, their offsets out.

Versions 0 to 2 carry message sets of magic 0 and 1 in `records`, later ones exactly one batch of magic 2. From version
13 on a topic goes by its id. A request with acks 0 gets no answer at all.
"""

from uuid import UUID

from tidelog.wire.codec import Buffer, array, int16, int32, int64, records, string, struct, table, uuid
from tidelog.wire.messages.leadership import LeaderIdAndEpoch, NodeEndpoint


@table
class ProduceRequestPartition:
    index: int = int32()
    records: Buffer | None = records()


@table
class ProduceRequestTopic:
    name: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partition_data: list[ProduceRequestPartition] = array(ProduceRequestPartition)


@table
class ProduceRequest:
    transactional_id: str | None = string(since=3, nullable_since=3, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[ProduceRequestTopic] = array(ProduceRequestTopic)


@table
class ProduceRecordError:
    """Why one record of a batch was refused, by its place in the batch (KIP-467)."""

    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable_since=8, default=None)


@table
class ProduceResponsePartition:
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(since=2, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[ProduceRecordError] = array(ProduceRecordError, since=8)
    error_message: str | None = string(since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=10, tag=0)


@table
class ProduceResponseTopic:
    name: str = string(until=12)
    topic_id: UUID = uuid(since=13)
    partition_responses: list[ProduceResponsePartition] = array(ProduceResponsePartition)


@table
class ProduceResponse:
    responses: list[ProduceResponseTopic] = array(ProduceResponseTopic)
    throttle_time_ms: int = int32(since=1)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0)
