"""Settings of topics and nodes (DescribeConfigs, AlterConfigs, IncrementalAlterConfigs), and what log directories hold.

DescribeConfigs version 0 says `is_default` where later versions name the `config_source`.
"""

from tidelog.wire.codec import array, boolean, int8, int16, int32, int64, string, table

# --- DescribeConfigs (32) --------------------------------------------------------------------------------------------


@table
class DescribeConfigsRequestResource:
    """Null keys ask for all settings."""

    resource_type: int = int8()
    resource_name: str = string()
    configuration_keys: list[str] | None = array(string(), nullable_since=0)


@table
class DescribeConfigsRequest:
    resources: list[DescribeConfigsRequestResource] = array(DescribeConfigsRequestResource)
    include_synonyms: bool = boolean(since=1)
    include_documentation: bool = boolean(since=3)


@table
class DescribeConfigsSynonym:
    name: str = string()
    value: str | None = string(nullable_since=0)
    source: int = int8()


@table
class DescribeConfigsEntry:
    name: str = string()
    value: str | None = string(nullable_since=0)
    read_only: bool = boolean()
    is_default: bool = boolean(until=0)
    config_source: int = int8(since=1, default=-1)
    is_sensitive: bool = boolean()
    synonyms: list[DescribeConfigsSynonym] = array(DescribeConfigsSynonym, since=1)
    config_type: int = int8(since=3)
    documentation: str | None = string(since=3, nullable_since=3, default=None)


@table
class DescribeConfigsResult:
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[DescribeConfigsEntry] = array(DescribeConfigsEntry)


@table
class DescribeConfigsResponse:
    throttle_time_ms: int = int32()
    results: list[DescribeConfigsResult] = array(DescribeConfigsResult)


# --- AlterConfigs (33) -----------------------------------------------------------------------------------------------


@table
class AlterConfigsEntry:
    name: str = string()
    value: str | None = string(nullable_since=0)


@table
class AlterConfigsRequestResource:
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterConfigsEntry] = array(AlterConfigsEntry)


@table
class AlterConfigsRequest:
    resources: list[AlterConfigsRequestResource] = array(AlterConfigsRequestResource)
    validate_only: bool = boolean()


@table
class AlterConfigsResponseResource:
    """The answer for one resource; IncrementalAlterConfigs answers with the same."""

    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    resource_type: int = int8()
    resource_name: str = string()


@table
class AlterConfigsResponse:
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResponseResource] = array(AlterConfigsResponseResource)


# --- IncrementalAlterConfigs (44) ------------------------------------------------------------------------------------


@table
class IncrementalAlterConfigsEntry:
    """`config_operation`: 0 sets, 1 deletes, 2 appends to a list, 3 takes from a list."""

    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable_since=0)


@table
class IncrementalAlterConfigsRequestResource:
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[IncrementalAlterConfigsEntry] = array(IncrementalAlterConfigsEntry)


@table
class IncrementalAlterConfigsRequest:
    resources: list[IncrementalAlterConfigsRequestResource] = array(IncrementalAlterConfigsRequestResource)
    validate_only: bool = boolean()


@table
class IncrementalAlterConfigsResponse:
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResponseResource] = array(AlterConfigsResponseResource)


# --- DescribeLogDirs (35) --------------------------------------------------------------------------------------------


@table
class DescribeLogDirsRequestTopic:
    topic: str = string()
    partitions: list[int] = array(int32())


@table
class DescribeLogDirsRequest:
    """Null topics ask for all."""

    topics: list[DescribeLogDirsRequestTopic] | None = array(DescribeLogDirsRequestTopic, nullable_since=0)


@table
class DescribeLogDirsPartition:
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


@table
class DescribeLogDirsTopic:
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


@table
class DescribeLogDirsResult:
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5)


@table
class DescribeLogDirsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16(since=3)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
