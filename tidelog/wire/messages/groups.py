"""Classic consumer groups: finding the coordinator, joining, syncing, staying, leaving; and how admins see groups."""

from tidelog.wire.codec import array, boolean, bytes_, int8, int16, int32, string, table
from tidelog.wire.messages.metadata import OPERATIONS_NOT_ASKED

# --- FindCoordinator (10) --------------------------------------------------------------------------------------------


@table
class FindCoordinatorRequest:
    """One key up to version 3, a list of keys from version 4 on."""

    key: str = string(until=3)
    key_type: int = int8(since=1)
    coordinator_keys: list[str] = array(string(), since=4)


@table
class Coordinator:
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=4)


@table
class FindCoordinatorResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16(until=3)
    error_message: str | None = string(since=1, until=3, nullable_since=1)
    node_id: int = int32(until=3)
    host: str = string(until=3)
    port: int = int32(until=3)
    coordinators: list[Coordinator] = array(Coordinator, since=4)


# --- JoinGroup (11) --------------------------------------------------------------------------------------------------


@table
class JoinGroupRequestProtocol:
    name: str = string()
    metadata: bytes = bytes_()


@table
class JoinGroupRequest:
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable_since=8, default=None)


@table
class JoinGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    metadata: bytes = bytes_()


@table
class JoinGroupResponse:
    """`protocol_name` may be null from version 7 on; before, an error has the empty name."""

    throttle_time_ms: int = int32(since=2)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable_since=7, default=None)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


# --- SyncGroup (14) --------------------------------------------------------------------------------------------------


@table
class SyncGroupRequestAssignment:
    member_id: str = string()
    assignment: bytes = bytes_()


@table
class SyncGroupRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


@table
class SyncGroupResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignment: bytes = bytes_()


# --- Heartbeat (12) --------------------------------------------------------------------------------------------------


@table
class HeartbeatRequest:
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)


@table
class HeartbeatResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()


# --- LeaveGroup (13) -------------------------------------------------------------------------------------------------


@table
class LeaveGroupRequestMember:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=3, default=None)
    reason: str | None = string(since=5, nullable_since=5, default=None)


@table
class LeaveGroupRequest:
    """One member up to version 2, a list of members from version 3 on."""

    group_id: str = string()
    member_id: str = string(until=2)
    members: list[LeaveGroupRequestMember] = array(LeaveGroupRequestMember, since=3)


@table
class LeaveGroupResponseMember:
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=3, default=None)
    error_code: int = int16()


@table
class LeaveGroupResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    members: list[LeaveGroupResponseMember] = array(LeaveGroupResponseMember, since=3)


# --- DescribeGroups (15) ---------------------------------------------------------------------------------------------


@table
class DescribeGroupsRequest:
    groups: list[str] = array(string())
    include_authorized_operations: bool = boolean(since=3)


@table
class DescribedGroupMember:
    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_since=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytes_()
    member_assignment: bytes = bytes_()


@table
class DescribedGroup:
    error_code: int = int16()
    error_message: str | None = string(since=6, nullable_since=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=OPERATIONS_NOT_ASKED)


@table
class DescribeGroupsResponse:
    throttle_time_ms: int = int32(since=1)
    groups: list[DescribedGroup] = array(DescribedGroup)


# --- ListGroups (16) -------------------------------------------------------------------------------------------------


@table
class ListGroupsRequest:
    states_filter: list[str] = array(string(), since=4)
    types_filter: list[str] = array(string(), since=5)


@table
class ListedGroup:
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4)
    group_type: str = string(since=5)


@table
class ListGroupsResponse:
    throttle_time_ms: int = int32(since=1)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)


# --- DeleteGroups (42) -----------------------------------------------------------------------------------------------


@table
class DeleteGroupsRequest:
    groups_names: list[str] = array(string())


@table
class DeleteGroupsResult:
    group_id: str = string()
    error_code: int = int16()


@table
class DeleteGroupsResponse:
    throttle_time_ms: int = int32()
    results: list[DeleteGroupsResult] = array(DeleteGroupsResult)
