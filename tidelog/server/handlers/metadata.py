"""What there is and who leads it: ApiVersions, Metadata, DescribeCluster, DescribeTopicPartitions."""

import re

from tidelog.cluster import Topic
from tidelog.server.handlers.call import Call
from tidelog.server.leaders import offline_nodes, standing_of
from tidelog.server.topics import TopicError, check_name, create_topic
from tidelog.wire.codec import ZERO_UUID
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    APIS,
    ApiVersion,
    ApiVersionsResponse,
    DescribeClusterBroker,
    DescribeClusterResponse,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    TopicPartitionsCursor,
)

AUTO_CREATE_TIMEOUT_MS = 5_000
NULL_NAME_SINCE = 12
PARTITIONS_PER_ANSWER_MAX = 2_000

# Bits of Kafka's operations: everybody may do everything, since there are no access rules.
TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
_NOT_ASKED = -(2**31)

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def api_versions(call: Call) -> ApiVersionsResponse:
    keys = [
        ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version) for api in APIS.values()
    ]
    if call.request is None:  # a version that is not ours: answered in version 0, which every client can read
        call.header = call.header._replace(api_version=0)
        return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=keys)
    request = call.request
    if call.version >= 3:
        for software in (request.client_software_name, request.client_software_version):
            if not _SOFTWARE.fullmatch(software):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
    return ApiVersionsResponse(api_keys=keys)


async def metadata(call: Call) -> MetadataResponse:
    broker, request = call.broker, call.request
    asked: list[MetadataRequestTopic] | None = request.topics
    offline = offline_nodes(broker)
    if asked is None or (call.version == 0 and not asked):
        topics = [_topic(call, topic, offline) for topic in broker.state.topics.values()]
    else:
        topics = [await _find(call, one, offline) for one in asked]
    operations = CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=node.node, host=node.host, port=node.port, rack=node.rack)
            for node in broker.state.nodes.values()
        ],
        cluster_id=broker.state.cluster_id,
        controller_id=broker.controller,
        topics=topics,
        cluster_authorized_operations=operations,
    )


async def _find(call: Call, asked: MetadataRequestTopic, offline: frozenset[int]) -> MetadataResponseTopic:
    broker = call.broker
    if asked.name is None or (asked.topic_id != ZERO_UUID and call.version >= NULL_NAME_SINCE):
        topic = broker.topic_of(asked.topic_id)
        if topic is None:
            name = None if call.version >= NULL_NAME_SINCE else ""
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=asked.topic_id)
        return _topic(call, topic, offline)
    topic = broker.topic_of(asked.name)
    if topic is None:
        try:
            check_name(asked.name)
            if not (call.request.allow_auto_topic_creation and broker.live().topic_auto_create):
                return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=asked.name)
            topic = await create_topic(broker, asked.name, deadline_ms=call.deadline_ms(AUTO_CREATE_TIMEOUT_MS))
        except TopicError as error:
            if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                return MetadataResponseTopic(error_code=error.code, name=asked.name)
            topic = broker.topic_of(asked.name)  # somebody else was quicker
    if topic is None:
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=asked.name)
    return _topic(call, topic, offline)


def _topic(call: Call, topic: Topic, offline: frozenset[int]) -> MetadataResponseTopic:
    partitions: list[MetadataResponsePartition] = []
    for number, partition in enumerate(topic.partitions):
        standing = standing_of(call.broker, partition, offline)
        partitions.append(
            MetadataResponsePartition(
                error_code=standing.error,
                partition_index=number,
                leader_id=standing.leader,
                leader_epoch=standing.epoch,
                replica_nodes=standing.replicas,
                isr_nodes=standing.in_sync,
                offline_replicas=standing.offline,
            )
        )
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=(
            TOPIC_OPERATIONS if call.request.include_topic_authorized_operations else _NOT_ASKED
        ),
    )


def describe_cluster(call: Call) -> DescribeClusterResponse:
    broker, request = call.broker, call.request
    if request.endpoint_type != 1:
        return DescribeClusterResponse(
            error_code=ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="nodes are brokers and controllers in one: ask for endpoint type 1",
        )
    offline = offline_nodes(broker)
    return DescribeClusterResponse(
        cluster_id=broker.state.cluster_id,
        controller_id=broker.controller,
        brokers=[
            DescribeClusterBroker(
                broker_id=node.node, host=node.host, port=node.port, rack=node.rack, is_fenced=node.node in offline
            )
            for node in broker.state.nodes.values()
            if node.node not in offline or request.include_fenced_brokers
        ],
        cluster_authorized_operations=(
            CLUSTER_OPERATIONS if request.include_cluster_authorized_operations else _NOT_ASKED
        ),
    )


def describe_topic_partitions(call: Call) -> DescribeTopicPartitionsResponse:
    """Topics in order of their names, a page at a time."""
    broker, request = call.broker, call.request
    names = sorted({topic.name for topic in request.topics} or broker.state.topics)
    cursor: TopicPartitionsCursor | None = request.cursor
    left = min(max(1, request.response_partition_limit), PARTITIONS_PER_ANSWER_MAX)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if cursor is not None and name < cursor.topic_name:
            continue
        topic = broker.topic_of(name)
        if topic is None:
            response.topics.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if left <= 0:
            response.next_cursor = TopicPartitionsCursor(topic_name=name, partition_index=0)
            break
        described = _described(call, topic, first, first + left)
        response.topics.append(described)
        left -= len(described.partitions)
        if first + len(described.partitions) < len(topic.partitions):
            reached = first + len(described.partitions)
            response.next_cursor = TopicPartitionsCursor(topic_name=name, partition_index=reached)
            break
    return response


def _unknown(name: str) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _described(call: Call, topic: Topic, first: int, end: int) -> DescribeTopicPartitionsResponseTopic:
    offline = offline_nodes(call.broker)
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    for number, partition in enumerate(topic.partitions[first:end], first):
        standing = standing_of(call.broker, partition, offline)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=standing.error,
                partition_index=number,
                leader_id=standing.leader,
                leader_epoch=standing.epoch,
                replica_nodes=standing.replicas,
                isr_nodes=standing.in_sync,
                eligible_leader_replicas=[],
                last_known_elr=[],
                offline_replicas=standing.offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
