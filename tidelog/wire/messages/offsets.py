"""A partition's offsets: which one a time has (ListOffsets), where a leader epoch ends (OffsetForLeaderEpoch), and
DeleteRecords, which moves the earliest one forward.

ListOffsets version 0 has a shape of its own: it asks for up to `max_num_offsets` offsets and gets `old_style_offsets`.
"""

from tidelog.wire.codec import array, int8, int16, int32, int64, string, table

# --- ListOffsets (2) -------------------------------------------------------------------------------------------------


@table
class ListOffsetsRequestPartition:
    partition_index: int = int32()
    current_leader_epoch: int = int32(since=4, default=-1)
    timestamp: int = int64()
    max_num_offsets: int = int32(until=0, default=1)


@table
class ListOffsetsRequestTopic:
    name: str = string()
    partitions: list[ListOffsetsRequestPartition] = array(ListOffsetsRequestPartition)


@table
class ListOffsetsRequest:
    replica_id: int = int32(default=-1)
    isolation_level: int = int8(since=2)
    topics: list[ListOffsetsRequestTopic] = array(ListOffsetsRequestTopic)
    timeout_ms: int = int32(since=10)


@table
class ListOffsetsResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()
    old_style_offsets: list[int] = array(int64(), until=0)
    timestamp: int = int64(since=1, default=-1)
    offset: int = int64(since=1, default=-1)
    leader_epoch: int = int32(since=4, default=-1)


@table
class ListOffsetsResponseTopic:
    name: str = string()
    partitions: list[ListOffsetsResponsePartition] = array(ListOffsetsResponsePartition)


@table
class ListOffsetsResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[ListOffsetsResponseTopic] = array(ListOffsetsResponseTopic)


# --- OffsetForLeaderEpoch (23) ---------------------------------------------------------------------------------------


@table
class OffsetForLeaderEpochRequestPartition:
    partition: int = int32()
    current_leader_epoch: int = int32(since=2, default=-1)
    leader_epoch: int = int32()


@table
class OffsetForLeaderEpochRequestTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderEpochRequestPartition] = array(OffsetForLeaderEpochRequestPartition)


@table
class OffsetForLeaderEpochRequest:
    replica_id: int = int32(since=3, default=-2)
    topics: list[OffsetForLeaderEpochRequestTopic] = array(OffsetForLeaderEpochRequestTopic)


@table
class OffsetForLeaderEpochResponsePartition:
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(since=1, default=-1)
    end_offset: int = int64(default=-1)


@table
class OffsetForLeaderEpochResponseTopic:
    topic: str = string()
    partitions: list[OffsetForLeaderEpochResponsePartition] = array(OffsetForLeaderEpochResponsePartition)


@table
class OffsetForLeaderEpochResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[OffsetForLeaderEpochResponseTopic] = array(OffsetForLeaderEpochResponseTopic)


# --- DeleteRecords (21) ----------------------------------------------------------------------------------------------


@table
class DeleteRecordsRequestPartition:
    partition_index: int = int32()
    offset: int = int64()


@table
class DeleteRecordsRequestTopic:
    name: str = string()
    partitions: list[DeleteRecordsRequestPartition] = array(DeleteRecordsRequestPartition)


@table
class DeleteRecordsRequest:
    topics: list[DeleteRecordsRequestTopic] = array(DeleteRecordsRequestTopic)
    timeout_ms: int = int32()


@table
class DeleteRecordsResponsePartition:
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


@table
class DeleteRecordsResponseTopic:
    name: str = string()
    partitions: list[DeleteRecordsResponsePartition] = array(DeleteRecordsResponsePartition)


@table
class DeleteRecordsResponse:
    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsResponseTopic] = array(DeleteRecordsResponseTopic)
