"""Consumer groups: between the wire's messages and the coordinators (`groups`), which decide everything."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from tidelog.groups import (
    CommitRequest,
    CommitResult,
    Coordinator,
    DeleteOffsetsResult,
    HeartbeatRequest,
    JoinRequest,
    JoinResult,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    SyncRequest,
    SyncResult,
    TopicPartition,
)
from tidelog.server.coordinators import Seat
from tidelog.server.handlers.call import Call, current
from tidelog.wire import messages
from tidelog.wire.errors import ErrorCode

BATCHED_KEYS_SINCE = 4  # FindCoordinator
BATCHED_MEMBERS_SINCE = 3  # LeaveGroup
NULL_PROTOCOL_SINCE = 7  # JoinGroup
BATCHED_GROUPS_SINCE = 8  # OffsetFetch
NOT_FOUND_SINCE = 6  # DescribeGroups
KEY_GROUP = 0
READ_TIMEOUT_MS = 5_000
GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8))

T = TypeVar("T")


async def _answer_of(seat: Seat, ask: Callable[[Callable[[T], None]], None]) -> T:
    """Wait for what a coordinator answers through a callback."""
    answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def reply(result: T) -> None:
        if not answer.done():
            answer.set_result(result)

    ask(reply)
    seat.touched()
    return await answer


# Finding the coordinator


async def find_coordinator(call: Call) -> messages.FindCoordinatorResponse:
    request = call.request
    if call.version >= BATCHED_KEYS_SINCE:
        found = [await _find(call, key) for key in request.coordinator_keys]
        return messages.FindCoordinatorResponse(coordinators=found)
    one = await _find(call, request.key)
    return messages.FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def _find(call: Call, key: str) -> messages.Coordinator:
    def failed(error: ErrorCode, message: str) -> messages.Coordinator:
        return messages.Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)

    if call.request.key_type != KEY_GROUP:
        return failed(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported")
    node = call.broker.state.nodes.get(await call.broker.coordinators.node_of(key))
    if node is None:
        return failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the group's stream has no leader yet")
    return messages.Coordinator(key=key, node_id=node.node, host=node.host, port=node.port, error_message=None)


# Membership


async def join_group(call: Call) -> messages.JoinGroupResponse:
    request: messages.JoinGroupRequest = call.request
    found = await call.broker.coordinators.seat_of(request.group_id)
    result: JoinResult
    if isinstance(found, ErrorCode):
        result = JoinResult(found, request.member_id)
    else:
        seat, coordinator = found
        asked = JoinRequest(
            group_id=request.group_id,
            protocol_type=request.protocol_type,
            protocols=tuple(Protocol(protocol.name, protocol.metadata) for protocol in request.protocols),
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=call.header.client_id or "",
            client_host=call.exchange.connection.host,
            version=call.version,
        )
        result = await _answer_of(seat, lambda reply: coordinator.join(asked, reply, seat.now()))
    protocol_name = result.protocol_name
    return messages.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=protocol_name if call.version >= NULL_PROTOCOL_SINCE else protocol_name or "",
        leader=result.leader_id,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            messages.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in result.members
        ],
    )


async def sync_group(call: Call) -> messages.SyncGroupResponse:
    request: messages.SyncGroupRequest = call.request
    found = await call.broker.coordinators.seat_of(request.group_id)
    result: SyncResult
    if isinstance(found, ErrorCode):
        result = SyncResult(found)
    else:
        seat, coordinator = found
        asked = SyncRequest(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignments={one.member_id: one.assignment for one in request.assignments},
        )
        result = await _answer_of(seat, lambda reply: coordinator.sync(asked, reply, seat.now()))
    return messages.SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


async def heartbeat(call: Call) -> messages.HeartbeatResponse:
    request: messages.HeartbeatRequest = call.request
    found = await call.broker.coordinators.seat_of(request.group_id)
    if isinstance(found, ErrorCode):
        return messages.HeartbeatResponse(error_code=found)
    seat, coordinator = found
    asked = HeartbeatRequest(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    error = coordinator.heartbeat(asked, seat.now())
    seat.touched()
    return messages.HeartbeatResponse(error_code=error)


async def leave_group(call: Call) -> messages.LeaveGroupResponse:
    request: messages.LeaveGroupRequest = call.request
    found = await call.broker.coordinators.seat_of(request.group_id)
    if isinstance(found, ErrorCode):
        return messages.LeaveGroupResponse(error_code=found)
    seat, coordinator = found
    if call.version >= BATCHED_MEMBERS_SINCE:
        leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in request.members]
    else:
        leaving = [LeavingMember(request.member_id)]
    result = coordinator.leave(request.group_id, leaving, seat.now())
    seat.touched()
    if call.version < BATCHED_MEMBERS_SINCE:
        first = result.members[0].error if result.members else ErrorCode.NONE
        return messages.LeaveGroupResponse(error_code=result.error or first)
    return messages.LeaveGroupResponse(
        error_code=result.error,
        members=[
            messages.LeaveGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, error_code=member.error
            )
            for member in result.members
        ],
    )


# Offsets


async def offset_commit(call: Call) -> messages.OffsetCommitResponse:
    request: messages.OffsetCommitRequest = call.request
    offsets = tuple(
        OffsetToCommit(
            topic.name,
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata,
        )
        for topic in request.topics
        for partition in topic.partitions
    )
    known = tuple(offset for offset in offsets if _exists(call, offset.topic, offset.partition))
    found = await call.broker.coordinators.seat_of(request.group_id)
    result: CommitResult
    if isinstance(found, ErrorCode):
        result = CommitResult((found,) * len(known))
    else:
        seat, coordinator = found
        asked = CommitRequest(
            group_id=request.group_id,
            offsets=known,
            generation=request.generation_id_or_member_epoch,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            retention_ms=request.retention_time_ms,
            version=call.version,
        )
        result = await _answer_of(seat, lambda reply: coordinator.commit(asked, reply, seat.now()))
    errors = {(offset.topic, offset.partition): error for offset, error in zip(known, result.errors, strict=True)}
    return messages.OffsetCommitResponse(
        topics=[
            messages.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    messages.OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors.get(
                            (topic.name, partition.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _exists(call: Call, name: str, partition: int) -> bool:
    topic = call.broker.topic_of(name)
    return topic is not None and 0 <= partition < len(topic.partitions)


async def offset_fetch(call: Call) -> messages.OffsetFetchResponse:
    request: messages.OffsetFetchRequest = call.request
    if call.version >= BATCHED_GROUPS_SINCE:
        groups: list[messages.OffsetFetchResponseGroup] = []
        for group in request.groups:
            error, topics = await _fetch(call, group.group_id, group.topics)
            groups.append(messages.OffsetFetchResponseGroup(group_id=group.group_id, topics=topics, error_code=error))
        return messages.OffsetFetchResponse(groups=groups)
    error, topics = await _fetch(call, request.group_id, request.topics)
    return messages.OffsetFetchResponse(topics=topics, error_code=error)


async def _fetch(
    call: Call, group_id: str, asked: list[messages.OffsetFetchRequestTopic] | None
) -> tuple[ErrorCode, list[messages.OffsetFetchResponseTopic]]:
    partitions: list[TopicPartition] | None = None
    if asked is not None:
        partitions = [(topic.name, number) for topic in asked for number in topic.partition_indexes]
    found = await call.broker.coordinators.seat_of(group_id)
    if isinstance(found, ErrorCode):
        return found, _without_offsets(asked or [], found)
    seat, coordinator = found
    if await current(seat.replica, call.broker.now() + READ_TIMEOUT_MS):  # another one may have taken commits meanwhile
        return ErrorCode.NOT_COORDINATOR, _without_offsets(asked or [], ErrorCode.NOT_COORDINATOR)
    result = coordinator.fetch(group_id, partitions)
    if result.error:
        return result.error, _without_offsets(asked or [], result.error)
    topics: dict[str, messages.OffsetFetchResponseTopic] = {}
    for offset in result.offsets:
        topic = topics.setdefault(offset.topic, messages.OffsetFetchResponseTopic(name=offset.topic))
        topic.partitions.append(
            messages.OffsetFetchResponsePartition(
                partition_index=offset.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                metadata=offset.metadata,
            )
        )
    return ErrorCode.NONE, list(topics.values())


def _without_offsets(
    asked: list[messages.OffsetFetchRequestTopic], error: ErrorCode
) -> list[messages.OffsetFetchResponseTopic]:
    """Old clients look for the error at each partition."""
    return [
        messages.OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                messages.OffsetFetchResponsePartition(
                    partition_index=number, committed_offset=-1, metadata="", error_code=error
                )
                for number in topic.partition_indexes
            ],
        )
        for topic in asked
    ]


async def offset_delete(call: Call) -> messages.OffsetDeleteResponse:
    request: messages.OffsetDeleteRequest = call.request
    partitions: list[TopicPartition] = [
        (topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions
    ]
    found = await call.broker.coordinators.seat_of(request.group_id)
    if isinstance(found, ErrorCode):
        return messages.OffsetDeleteResponse(error_code=found)
    seat, coordinator = found
    result: DeleteOffsetsResult = await _answer_of(
        seat, lambda reply: coordinator.delete_offsets(request.group_id, partitions, reply)
    )
    if result.error:
        return messages.OffsetDeleteResponse(error_code=result.error)
    errors = dict(zip(partitions, result.errors, strict=True))
    return messages.OffsetDeleteResponse(
        topics=[
            messages.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    messages.OffsetDeleteResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors[topic.name, partition.partition_index],
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


# Administration


def list_groups(call: Call) -> messages.ListGroupsResponse:
    request: messages.ListGroupsRequest = call.request
    response = messages.ListGroupsResponse()
    for coordinator in call.broker.coordinators.all():
        error, listed = coordinator.list_groups(request.states_filter, request.types_filter)
        response.error_code = response.error_code or error
        response.groups += (
            messages.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state,
                group_type=group.group_type,
            )
            for group in listed
        )
    return response


async def describe_groups(call: Call) -> messages.DescribeGroupsResponse:
    return messages.DescribeGroupsResponse(groups=[await _describe(call, name) for name in call.request.groups])


async def _describe(call: Call, group_id: str) -> messages.DescribedGroup:
    found = await call.broker.coordinators.seat_of(group_id)
    if isinstance(found, ErrorCode):
        return messages.DescribedGroup(error_code=found, group_id=group_id)
    group = found[1].describe(group_id)
    error = group.error
    message = None
    if error is ErrorCode.GROUP_ID_NOT_FOUND:
        message = f"there is no group {group_id}"
        if call.version < NOT_FOUND_SINCE:
            error = ErrorCode.NONE
    return messages.DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol_name,
        members=[
            messages.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=GROUP_OPERATIONS if call.request.include_authorized_operations else -(2**31),
    )


async def delete_groups(call: Call) -> messages.DeleteGroupsResponse:
    response = messages.DeleteGroupsResponse()
    for group_id in call.request.groups_names:
        found = await call.broker.coordinators.seat_of(group_id)
        if isinstance(found, ErrorCode):
            error = found
        else:
            seat, coordinator = found
            error = (await _delete(seat, coordinator, group_id))[group_id]
        response.results.append(messages.DeleteGroupsResult(group_id=group_id, error_code=error))
    return response


async def _delete(seat: Seat, coordinator: Coordinator, group_id: str) -> dict[str, ErrorCode]:
    return await _answer_of(seat, lambda reply: coordinator.delete_groups([group_id], reply))
