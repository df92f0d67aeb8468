"""Kafka's own requests about leaders and replicas: the same operations as TidelogAdmin's, in Kafka's words.

ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments, UnregisterBroker, DescribeQuorum.
"""

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any
from uuid import UUID

from tidelog.cluster import Partition, Topic
from tidelog.server.clock import wall_ms
from tidelog.server.handlers.admin import at_controller
from tidelog.server.handlers.call import Call
from tidelog.server.leaders import NOBODY, leader_of
from tidelog.server.peers import PeerCallError
from tidelog.wire.codec import ZERO_UUID
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    AlterPartitionReassignmentsResponse,
    AlterPartitionReassignmentsResponsePartition,
    AlterPartitionReassignmentsResponseTopic,
    DescribeQuorumListener,
    DescribeQuorumNode,
    DescribeQuorumReplica,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartition,
    DescribeQuorumResponseTopic,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseTopic,
    ListPartitionReassignmentsResponse,
    ListPartitionReassignmentsResponsePartition,
    ListPartitionReassignmentsResponseTopic,
    UnregisterBrokerResponse,
)

PREFERRED = 0
QUORUM_TOPIC = "__cluster_metadata"  # what Kafka calls the log of its controllers
LISTENER = "PLAINTEXT"
UNREGISTER_TIMEOUT_MS = 30_000
AT_ONCE_MAX = 32  # partitions that one request has under way at the controller

Refusal = tuple[ErrorCode, str | None]
_DONE: Refusal = (ErrorCode.NONE, None)


async def _each(operations: Iterable[Awaitable[Refusal]]) -> list[Refusal]:
    """Carry out many, a bounded number at a time; in their order."""
    room = asyncio.Semaphore(AT_ONCE_MAX)

    async def one(operation: Awaitable[Refusal]) -> Refusal:
        async with room:
            return await operation

    return await asyncio.gather(*map(one, operations))


async def _ask(call: Call, method: str, content: dict[str, Any]) -> Refusal:
    try:
        await at_controller(call, method, content)
    except PeerCallError as error:
        return error.code, error.message
    return _DONE


# ElectLeaders


async def elect_leaders(call: Call) -> ElectLeadersResponse:
    request, topics = call.request, call.broker.state.topics
    if request.topic_partitions is None:  # all; only those of which there is something to tell are answered
        asked = [(topic.name, number) for topic in topics.values() for number in range(len(topic.partitions))]
    else:
        asked = [(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
    results = await _each(_elect(call, name, number) for name, number in asked)
    by_topic: dict[str, list[ElectLeadersResponsePartition]] = {}
    for (name, number), (code, message) in zip(asked, results, strict=True):
        if request.topic_partitions is not None or code is not ErrorCode.ELECTION_NOT_NEEDED:
            row = ElectLeadersResponsePartition(partition_id=number, error_code=code, error_message=message)
            by_topic.setdefault(name, []).append(row)
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponseTopic(topic=name, partition_result=rows) for name, rows in by_topic.items()
        ]
    )


async def _elect(call: Call, name: str, number: int) -> Refusal:
    if call.request.election_type == PREFERRED:
        content = {"topic": name, "partition": number, "target": None, "timeout_ms": call.request.timeout_ms}
        return await _ask(call, "move-leader", content)
    topic = call.broker.topic_of(name)
    if topic is None or not 0 <= number < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name}:{number}"
    leader, _ = leader_of(call.broker, topic.partitions[number])
    if leader != NOBODY:
        return ErrorCode.ELECTION_NOT_NEEDED, f"node {leader} leads"
    return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "without a majority no leader is made, lest records be lost"


# AlterPartitionReassignments, ListPartitionReassignments


async def alter_partition_reassignments(call: Call) -> AlterPartitionReassignmentsResponse:
    request = call.request
    asked = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
    results = await _each(
        _ask(
            call,
            "reassign",
            {
                "topic": name,
                "partition": partition.partition_index,
                "replicas": partition.replicas,
                "keep_count": not request.allow_replication_factor_change and partition.replicas is not None,
                "timeout_ms": request.timeout_ms,
            },
        )
        for name, partition in asked
    )
    rows = [
        AlterPartitionReassignmentsResponsePartition(
            partition_index=partition.partition_index, error_code=code, error_message=message
        )
        for (_, partition), (code, message) in zip(asked, results, strict=True)
    ]
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    for topic in request.topics:
        answered, rows = rows[: len(topic.partitions)], rows[len(topic.partitions) :]
        response.responses.append(AlterPartitionReassignmentsResponseTopic(name=topic.name, partitions=answered))
    return response


def list_partition_reassignments(call: Call) -> ListPartitionReassignmentsResponse:
    """Where what holds a stream differs from what shall hold it."""
    state, asked = call.broker.state, call.request.topics
    wanted: list[tuple[Topic, Iterable[int]]]
    if asked is None:
        wanted = [(topic, range(len(topic.partitions))) for topic in state.topics.values()]
    else:
        named = [(state.topics.get(one.name), one.partition_indexes) for one in asked]
        wanted = [(topic, numbers) for topic, numbers in named if topic is not None]
    response = ListPartitionReassignmentsResponse()
    for topic, numbers in wanted:
        partitions = {number: topic.partitions[number] for number in numbers if 0 <= number < len(topic.partitions)}
        moving = [_moving(number, partition) for number, partition in partitions.items()]
        rows = [row for row in moving if row.adding_replicas or row.removing_replicas]
        if rows:
            response.topics.append(ListPartitionReassignmentsResponseTopic(name=topic.name, partitions=rows))
    return response


def _moving(number: int, partition: Partition) -> ListPartitionReassignmentsResponsePartition:
    voters = partition.voters or partition.initial
    adding = [node for node in partition.replicas if node not in voters]
    removing = [node for node in partition.members if node not in partition.replicas]
    return ListPartitionReassignmentsResponsePartition(
        partition_index=number,
        replicas=[*partition.replicas, *removing],
        adding_replicas=adding,
        removing_replicas=removing,
    )


# UnregisterBroker


async def unregister_broker(call: Call) -> UnregisterBrokerResponse:
    content = {"node": call.request.broker_id, "force": False, "timeout_ms": UNREGISTER_TIMEOUT_MS}
    code, message = await _ask(call, "remove-node", content)
    return UnregisterBrokerResponse(error_code=code, error_message=message)


# DescribeQuorum


async def describe_quorum(call: Call) -> DescribeQuorumResponse:
    """Of group 0, under the name that Kafka's tools ask for."""
    response = DescribeQuorumResponse()
    try:
        known = await at_controller(call, "quorum", {})
    except PeerCallError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error.message)
    for topic in call.request.topics:
        rows = [_quorum(call, topic.topic_name, partition.partition_index, known) for partition in topic.partitions]
        response.topics.append(DescribeQuorumResponseTopic(topic_name=topic.topic_name, partitions=rows))
    nodes = [call.broker.state.nodes.get(number) for number in known["voters"]]
    response.nodes = [
        DescribeQuorumNode(
            node_id=node.node,
            listeners=[DescribeQuorumListener(name=LISTENER, host=node.host, port=node.port)],
        )
        for node in nodes
        if node is not None
    ]
    return response


def _quorum(call: Call, name: str, number: int, known: dict[str, Any]) -> DescribeQuorumResponsePartition:
    if (name, number) != (QUORUM_TOPIC, 0):
        return DescribeQuorumResponsePartition(
            partition_index=number,
            error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            error_message=f"only {QUORUM_TOPIC}:0 has a quorum to describe",
            leader_id=NOBODY,
            leader_epoch=NOBODY,
            high_watermark=-1,
        )
    return DescribeQuorumResponsePartition(
        partition_index=number,
        leader_id=known["leader"],
        leader_epoch=known["epoch"],
        high_watermark=known["high_watermark"],
        current_voters=[_member(call, node, known) for node in known["voters"]],
        observers=[_member(call, node, known) for node in known["observers"]],
    )


def _member(call: Call, number: int, known: dict[str, Any]) -> DescribeQuorumReplica:
    now_ms, node = wall_ms(), call.broker.state.nodes.get(number)
    ago_ms = dict(known["heard_ms_ago"]).get(number)
    leads, end = number == known["leader"], dict(known["ends"]).get(number, -1)
    heard_ms = -1 if leads or ago_ms is None else now_ms - ago_ms
    caught_up_ms = now_ms if leads else heard_ms if end >= known["high_watermark"] else -1
    return DescribeQuorumReplica(
        replica_id=number,
        replica_directory_id=_directory(node.directory if node is not None else ""),
        log_end_offset=end,
        last_fetch_timestamp=heard_ms,
        last_caught_up_timestamp=caught_up_ms,
    )


def _directory(name: str) -> UUID:
    try:
        return UUID(name)
    except ValueError:
        return ZERO_UUID
