"""The requests that Tidelog answers: key, versions, encoding and tables of each.

The ranges begin low enough for clients of Kafka 0.10 and end at Kafka 4.3. Produce must begin at 0: older librdkafka
takes a higher minimum for a broker without compression and sends everything uncompressed, silently (KAFKA-18659).

`APIS` is what ApiVersions lists; `PRIVATE_APIS` are Tidelog's own, which only its own tools and nodes know of.
"""

from typing import Any, NamedTuple

from tidelog.wire.messages import (
    administration,
    configs,
    fetch,
    group_offsets,
    groups,
    metadata,
    offsets,
    private,
    produce,
    producers,
    topics,
)

NEVER = 0x7FFF  # `flexible_since` of a request that has no flexible version


class Api(NamedTuple):
    key: int
    name: str
    min_version: int
    max_version: int
    flexible_since: int
    request: type[Any]
    response: type[Any]

    def supports(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def flexible(self, version: int) -> bool:
        return version >= self.flexible_since


_ALL = (
    Api(0, "Produce", 0, 13, 9, produce.ProduceRequest, produce.ProduceResponse),
    Api(1, "Fetch", 0, 18, 12, fetch.FetchRequest, fetch.FetchResponse),
    Api(2, "ListOffsets", 0, 11, 6, offsets.ListOffsetsRequest, offsets.ListOffsetsResponse),
    Api(3, "Metadata", 0, 13, 9, metadata.MetadataRequest, metadata.MetadataResponse),
    Api(8, "OffsetCommit", 2, 9, 8, group_offsets.OffsetCommitRequest, group_offsets.OffsetCommitResponse),
    Api(9, "OffsetFetch", 1, 9, 6, group_offsets.OffsetFetchRequest, group_offsets.OffsetFetchResponse),
    Api(10, "FindCoordinator", 0, 6, 3, groups.FindCoordinatorRequest, groups.FindCoordinatorResponse),
    Api(11, "JoinGroup", 0, 9, 6, groups.JoinGroupRequest, groups.JoinGroupResponse),
    Api(12, "Heartbeat", 0, 4, 4, groups.HeartbeatRequest, groups.HeartbeatResponse),
    Api(13, "LeaveGroup", 0, 5, 4, groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    Api(14, "SyncGroup", 0, 5, 4, groups.SyncGroupRequest, groups.SyncGroupResponse),
    Api(15, "DescribeGroups", 0, 6, 5, groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    Api(16, "ListGroups", 0, 5, 3, groups.ListGroupsRequest, groups.ListGroupsResponse),
    Api(18, "ApiVersions", 0, 4, 3, metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    Api(19, "CreateTopics", 0, 7, 5, topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    Api(20, "DeleteTopics", 0, 6, 4, topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    Api(21, "DeleteRecords", 0, 2, 2, offsets.DeleteRecordsRequest, offsets.DeleteRecordsResponse),
    Api(22, "InitProducerId", 0, 5, 2, producers.InitProducerIdRequest, producers.InitProducerIdResponse),
    Api(23, "OffsetForLeaderEpoch", 0, 4, 4, offsets.OffsetForLeaderEpochRequest, offsets.OffsetForLeaderEpochResponse),
    Api(32, "DescribeConfigs", 0, 4, 4, configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    Api(33, "AlterConfigs", 0, 2, 2, configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    Api(35, "DescribeLogDirs", 1, 5, 2, configs.DescribeLogDirsRequest, configs.DescribeLogDirsResponse),
    Api(37, "CreatePartitions", 0, 3, 2, topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    Api(42, "DeleteGroups", 0, 2, 2, groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    Api(43, "ElectLeaders", 0, 2, 2, administration.ElectLeadersRequest, administration.ElectLeadersResponse),
    Api(
        44,
        "IncrementalAlterConfigs",
        0,
        1,
        1,
        configs.IncrementalAlterConfigsRequest,
        configs.IncrementalAlterConfigsResponse,
    ),
    Api(
        45,
        "AlterPartitionReassignments",
        0,
        1,
        0,
        administration.AlterPartitionReassignmentsRequest,
        administration.AlterPartitionReassignmentsResponse,
    ),
    Api(
        46,
        "ListPartitionReassignments",
        0,
        0,
        0,
        administration.ListPartitionReassignmentsRequest,
        administration.ListPartitionReassignmentsResponse,
    ),
    Api(47, "OffsetDelete", 0, 0, NEVER, group_offsets.OffsetDeleteRequest, group_offsets.OffsetDeleteResponse),
    Api(55, "DescribeQuorum", 0, 2, 0, administration.DescribeQuorumRequest, administration.DescribeQuorumResponse),
    Api(60, "DescribeCluster", 0, 2, 0, metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    Api(
        64, "UnregisterBroker", 0, 0, 0, administration.UnregisterBrokerRequest, administration.UnregisterBrokerResponse
    ),
    Api(
        75,
        "DescribeTopicPartitions",
        0,
        0,
        0,
        metadata.DescribeTopicPartitionsRequest,
        metadata.DescribeTopicPartitionsResponse,
    ),
)

_PRIVATE = (
    Api(10_000, "TidelogAdmin", 0, 0, 0, private.TidelogAdminRequest, private.TidelogAdminResponse),
    Api(10_001, "ReadSegment", 0, 0, 0, private.ReadSegmentRequest, private.ReadSegmentResponse),
)

APIS: dict[int, Api] = {api.key: api for api in _ALL}
PRIVATE_APIS: dict[int, Api] = {api.key: api for api in _PRIVATE}
