"""Topics made, unmade and widened: CreateTopics, DeleteTopics, CreatePartitions."""

from uuid import UUID

from tidelog.wire.codec import array, boolean, int8, int16, int32, string, table, uuid

# --- CreateTopics (19) -----------------------------------------------------------------------------------------------


@table
class CreateTopicsAssignment:
    partition_index: int = int32()
    broker_ids: list[int] = array(int32())


@table
class CreateTopicsRequestConfig:
    name: str = string()
    value: str | None = string(nullable_since=0)


@table
class CreateTopicsRequestTopic:
    """From version 4 on, -1 stands for the cluster's default in both numbers."""

    name: str = string()
    num_partitions: int = int32()
    replication_factor: int = int16()
    assignments: list[CreateTopicsAssignment] = array(CreateTopicsAssignment)
    configs: list[CreateTopicsRequestConfig] = array(CreateTopicsRequestConfig)


@table
class CreateTopicsRequest:
    topics: list[CreateTopicsRequestTopic] = array(CreateTopicsRequestTopic)
    timeout_ms: int = int32(default=60_000)
    validate_only: bool = boolean(since=1)


@table
class CreateTopicsResponseConfig:
    name: str = string()
    value: str | None = string(nullable_since=5)
    read_only: bool = boolean()
    config_source: int = int8(default=-1)
    is_sensitive: bool = boolean()


@table
class CreateTopicsResponseTopic:
    name: str = string()
    topic_id: UUID = uuid(since=7)
    error_code: int = int16()
    error_message: str | None = string(since=1, nullable_since=1, default=None)
    topic_config_error_code: int = int16(since=5, tag=0)
    num_partitions: int = int32(since=5, default=-1)
    replication_factor: int = int16(since=5, default=-1)
    configs: list[CreateTopicsResponseConfig] | None = array(CreateTopicsResponseConfig, since=5, nullable_since=5)


@table
class CreateTopicsResponse:
    throttle_time_ms: int = int32(since=2)
    topics: list[CreateTopicsResponseTopic] = array(CreateTopicsResponseTopic)


# --- DeleteTopics (20) -----------------------------------------------------------------------------------------------


@table
class DeleteTopicsRequestTopic:
    """By name, or by id when the name is null."""

    name: str | None = string(nullable_since=6, default=None)
    topic_id: UUID = uuid()


@table
class DeleteTopicsRequest:
    topics: list[DeleteTopicsRequestTopic] = array(DeleteTopicsRequestTopic, since=6)
    topic_names: list[str] = array(string(), until=5)
    timeout_ms: int = int32()


@table
class DeleteTopicsResponseTopic:
    name: str | None = string(nullable_since=6)
    topic_id: UUID = uuid(since=6)
    error_code: int = int16()
    error_message: str | None = string(since=5, nullable_since=5, default=None)


@table
class DeleteTopicsResponse:
    throttle_time_ms: int = int32(since=1)
    responses: list[DeleteTopicsResponseTopic] = array(DeleteTopicsResponseTopic)


# --- CreatePartitions (37) -------------------------------------------------------------------------------------------


@table
class CreatePartitionsAssignment:
    broker_ids: list[int] = array(int32())


@table
class CreatePartitionsRequestTopic:
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(
        CreatePartitionsAssignment, nullable_since=0, default=None
    )


@table
class CreatePartitionsRequest:
    topics: list[CreatePartitionsRequestTopic] = array(CreatePartitionsRequestTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()


@table
class CreatePartitionsResponseTopic:
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@table
class CreatePartitionsResponse:
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsResponseTopic] = array(CreatePartitionsResponseTopic)
