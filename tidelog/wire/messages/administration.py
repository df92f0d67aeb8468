"""What administrators ask about leaders and replicas: elections, reassignments, nodes that leave, the quorum.

A request names its partitions by topic; null in place of the topics means all of them.
"""

from uuid import UUID

from tidelog.wire.codec import array, boolean, int8, int16, int32, int64, string, table, uint16, uuid

# --- ElectLeaders (43) -----------------------------------------------------------------------------------------------


@table
class ElectLeadersRequestTopic:
    topic: str = string()
    partitions: list[int] = array(int32())


@table
class ElectLeadersRequest:
    election_type: int = int8(since=1)
    """0: the preferred replica; 1: any that lives, even if records are lost (KIP-460)."""
    topic_partitions: list[ElectLeadersRequestTopic] | None = array(ElectLeadersRequestTopic, nullable_since=0)
    timeout_ms: int = int32(default=60_000)


@table
class ElectLeadersResponsePartition:
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@table
class ElectLeadersResponseTopic:
    topic: str = string()
    partition_result: list[ElectLeadersResponsePartition] = array(ElectLeadersResponsePartition)


@table
class ElectLeadersResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16(since=1)
    replica_election_results: list[ElectLeadersResponseTopic] = array(ElectLeadersResponseTopic)


# --- AlterPartitionReassignments (45) --------------------------------------------------------------------------------


@table
class AlterPartitionReassignmentsRequestPartition:
    partition_index: int = int32()
    replicas: list[int] | None = array(int32(), nullable_since=0, default=None)
    """None: cancel the reassignment that is under way."""


@table
class AlterPartitionReassignmentsRequestTopic:
    name: str = string()
    partitions: list[AlterPartitionReassignmentsRequestPartition] = array(AlterPartitionReassignmentsRequestPartition)


@table
class AlterPartitionReassignmentsRequest:
    timeout_ms: int = int32(default=60_000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[AlterPartitionReassignmentsRequestTopic] = array(AlterPartitionReassignmentsRequestTopic)


@table
class AlterPartitionReassignmentsResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)


@table
class AlterPartitionReassignmentsResponseTopic:
    name: str = string()
    partitions: list[AlterPartitionReassignmentsResponsePartition] = array(AlterPartitionReassignmentsResponsePartition)


@table
class AlterPartitionReassignmentsResponse:
    throttle_time_ms: int = int32()
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    responses: list[AlterPartitionReassignmentsResponseTopic] = array(AlterPartitionReassignmentsResponseTopic)


# --- ListPartitionReassignments (46) ---------------------------------------------------------------------------------


@table
class ListPartitionReassignmentsRequestTopic:
    name: str = string()
    partition_indexes: list[int] = array(int32())


@table
class ListPartitionReassignmentsRequest:
    timeout_ms: int = int32(default=60_000)
    topics: list[ListPartitionReassignmentsRequestTopic] | None = array(
        ListPartitionReassignmentsRequestTopic, nullable_since=0, default=None
    )


@table
class ListPartitionReassignmentsResponsePartition:
    partition_index: int = int32()
    replicas: list[int] = array(int32())
    """All that hold it or shall hold it, those to be removed among them."""
    adding_replicas: list[int] = array(int32())
    removing_replicas: list[int] = array(int32())


@table
class ListPartitionReassignmentsResponseTopic:
    name: str = string()
    partitions: list[ListPartitionReassignmentsResponsePartition] = array(ListPartitionReassignmentsResponsePartition)


@table
class ListPartitionReassignmentsResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    topics: list[ListPartitionReassignmentsResponseTopic] = array(ListPartitionReassignmentsResponseTopic)


# --- DescribeQuorum (55) ---------------------------------------------------------------------------------------------


@table
class DescribeQuorumRequestPartition:
    partition_index: int = int32()


@table
class DescribeQuorumRequestTopic:
    topic_name: str = string()
    partitions: list[DescribeQuorumRequestPartition] = array(DescribeQuorumRequestPartition)


@table
class DescribeQuorumRequest:
    topics: list[DescribeQuorumRequestTopic] = array(DescribeQuorumRequestTopic)


@table
class DescribeQuorumReplica:
    replica_id: int = int32()
    replica_directory_id: UUID = uuid(since=2)
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64(since=1, default=-1)
    last_caught_up_timestamp: int = int64(since=1, default=-1)


@table
class DescribeQuorumResponsePartition:
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable_since=2, default=None)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[DescribeQuorumReplica] = array(DescribeQuorumReplica)
    observers: list[DescribeQuorumReplica] = array(DescribeQuorumReplica)


@table
class DescribeQuorumResponseTopic:
    topic_name: str = string()
    partitions: list[DescribeQuorumResponsePartition] = array(DescribeQuorumResponsePartition)


@table
class DescribeQuorumListener:
    name: str = string(since=2)
    host: str = string(since=2)
    port: int = uint16(since=2)


@table
class DescribeQuorumNode:
    node_id: int = int32(since=2)
    listeners: list[DescribeQuorumListener] = array(DescribeQuorumListener, since=2)


@table
class DescribeQuorumResponse:
    error_code: int = int16()
    error_message: str | None = string(since=2, nullable_since=2, default=None)
    topics: list[DescribeQuorumResponseTopic] = array(DescribeQuorumResponseTopic)
    nodes: list[DescribeQuorumNode] = array(DescribeQuorumNode, since=2)


# --- UnregisterBroker (64) -------------------------------------------------------------------------------------------


@table
class UnregisterBrokerRequest:
    broker_id: int = int32()


@table
class UnregisterBrokerResponse:
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
