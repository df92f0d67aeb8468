"""How a group looks from outside: to ListGroups, to DescribeGroups, and to whoever may delete its offsets."""

from collections.abc import Collection

from tidelog.groups.group import Group
from tidelog.groups.messages import DescribedGroup, DescribedMember, ListedGroup
from tidelog.groups.rebalance import GroupState
from tidelog.groups.subscription import CONSUMER_PROTOCOL_TYPE
from tidelog.wire.errors import ErrorCode

GROUP_TYPE = "classic"


def listed(group: Group) -> ListedGroup:
    return ListedGroup(group.group_id, group.rebalance.protocol_type or "", group.state.value, GROUP_TYPE)


def is_listed(group: Group, states: Collection[str], types: Collection[str]) -> bool:
    """By the filters of ListGroups, in which case does not matter; an empty one lets everything pass."""
    in_state = not states or group.state.value.lower() in {state.strip().lower() for state in states}
    return in_state and (not types or GROUP_TYPE in {group_type.strip().lower() for group_type in types})


def described(group: Group) -> DescribedGroup:
    """What members said and what they got is told only while it holds: in a Stable group."""
    stable = group.state is GroupState.STABLE
    name = group.rebalance.protocol_name if stable else None
    members = tuple(
        DescribedMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.metadata(name) if stable else b"",
            member.assignment if stable else b"",
        )
        for member in group.roster
    )
    protocol_type = group.rebalance.protocol_type or ""
    return DescribedGroup(ErrorCode.NONE, group.group_id, group.state.value, protocol_type, name or "", members)


def is_subscribed(group: Group, topic: str) -> bool:
    """Whether a member subscribes to the topic. When in doubt, one does."""
    if group.rebalance.subscribed is not None:
        return topic in group.rebalance.subscribed
    return group.rebalance.protocol_type == CONSUMER_PROTOCOL_TYPE


def offsets_in_use_until_ms(group: Group) -> int | None:
    """Until when all the group's offsets were in use; None while they are, so that none may expire."""
    if group.state is GroupState.EMPTY:
        return 0 if group.rebalance.protocol_type is None else group.rebalance.state_since_ms
    if group.state is GroupState.STABLE and group.rebalance.subscribed is not None:
        return 0  # those of subscribed topics are kept, see `is_subscribed`
    return None
