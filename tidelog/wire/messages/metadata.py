"""What a client asks first: what the node speaks (ApiVersions), which nodes, topics and leaders there are (Metadata).

DescribeCluster and DescribeTopicPartitions are the admin clients' newer forms of the same questions.
"""

from uuid import UUID

from tidelog.wire.codec import array, boolean, int8, int16, int32, int64, string, struct, table, uuid

OPERATIONS_NOT_ASKED = -0x80000000  # authorised operations when the request did not ask for them


# --- ApiVersions (18) ------------------------------------------------------------------------------------------------


@table
class ApiVersionsRequest:
    client_software_name: str = string(since=3)
    client_software_version: str = string(since=3)


@table
class ApiVersion:
    api_key: int = int16()
    min_version: int = int16()
    max_version: int = int16()


@table
class SupportedFeatureKey:
    name: str = string()
    min_version: int = int16()
    max_version: int = int16()


@table
class FinalizedFeatureKey:
    name: str = string()
    max_version_level: int = int16()
    min_version_level: int = int16()


@table
class ApiVersionsResponse:
    error_code: int = int16()
    api_keys: list[ApiVersion] = array(ApiVersion)
    throttle_time_ms: int = int32(since=1)
    supported_features: list[SupportedFeatureKey] = array(SupportedFeatureKey, since=3, tag=0)
    finalized_features_epoch: int = int64(since=3, default=-1, tag=1)
    finalized_features: list[FinalizedFeatureKey] = array(FinalizedFeatureKey, since=3, tag=2)
    zk_migration_ready: bool = boolean(since=3, tag=3)


# --- Metadata (3) ----------------------------------------------------------------------------------------------------


@table
class MetadataRequestTopic:
    topic_id: UUID = uuid(since=10)
    name: str | None = string(nullable_since=10)


@table
class MetadataRequest:
    """All topics are asked for by null from version 1 on, and by an empty list in version 0."""

    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10)
    include_topic_authorized_operations: bool = boolean(since=8)


@table
class MetadataResponseBroker:
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_since=1, default=None)


@table
class MetadataResponsePartition:
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(int32())
    isr_nodes: list[int] = array(int32())
    offline_replicas: list[int] = array(int32(), since=5)


@table
class MetadataResponseTopic:
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: UUID = uuid(since=10)
    is_internal: bool = boolean(since=1)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=OPERATIONS_NOT_ASKED)


@table
class MetadataResponse:
    throttle_time_ms: int = int32(since=3)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable_since=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=OPERATIONS_NOT_ASKED)
    error_code: int = int16(since=13)


# --- DescribeCluster (60) --------------------------------------------------------------------------------------------


@table
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2)


@table
class DescribeClusterBroker:
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)
    is_fenced: bool = boolean(since=2)


@table
class DescribeClusterResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED)


# --- DescribeTopicPartitions (75) ------------------------------------------------------------------------------------


@table
class TopicPartitionsCursor:
    """Where a listing that was too long for one answer goes on."""

    topic_name: str = string()
    partition_index: int = int32()


@table
class DescribeTopicPartitionsRequestTopic:
    name: str = string()


@table
class DescribeTopicPartitionsRequest:
    topics: list[DescribeTopicPartitionsRequestTopic] = array(DescribeTopicPartitionsRequestTopic)
    response_partition_limit: int = int32(default=2000)
    cursor: TopicPartitionsCursor | None = struct(TopicPartitionsCursor, nullable_since=0)


@table
class DescribeTopicPartitionsResponsePartition:
    """The two lists of eligible leaders may be null by the protocol, but Java's admin client fails on null: send []."""

    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(default=-1)
    replica_nodes: list[int] = array(int32())
    isr_nodes: list[int] = array(int32())
    eligible_leader_replicas: list[int] | None = array(int32(), nullable_since=0)
    last_known_elr: list[int] | None = array(int32(), nullable_since=0)
    offline_replicas: list[int] = array(int32())


@table
class DescribeTopicPartitionsResponseTopic:
    error_code: int = int16()
    name: str | None = string(nullable_since=0)
    topic_id: UUID = uuid()
    is_internal: bool = boolean()
    partitions: list[DescribeTopicPartitionsResponsePartition] = array(DescribeTopicPartitionsResponsePartition)
    topic_authorized_operations: int = int32(default=OPERATIONS_NOT_ASKED)


@table
class DescribeTopicPartitionsResponse:
    throttle_time_ms: int = int32()
    topics: list[DescribeTopicPartitionsResponseTopic] = array(DescribeTopicPartitionsResponseTopic)
    next_cursor: TopicPartitionsCursor | None = struct(TopicPartitionsCursor, nullable_since=0)
