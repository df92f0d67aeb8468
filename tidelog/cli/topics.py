"""Streams and consumer groups as a backup keeps them: names, ids, settings, positions."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog.cli import CommandError
from tidelog.cli.admin import RETRY_S, Admin, Refused, reason
from tidelog.cli.client import ANSWER_S_MAX, UnknownStream
from tidelog.cli.link import Unreachable
from tidelog.cli.raw_log import is_for_now
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    FindCoordinatorRequest,
    ListGroupsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

TOPIC_RESOURCE = 2
SET_ON_TOPIC = 1  # the source of a setting that was made for the topic itself

Positions = dict[str, dict[str, dict[str, int]]]
"""Group -> stream -> partition (as text, since JSON has no other names) -> offset."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    name: str
    id: UUID
    partitions: int
    configs: dict[str, str]


def read_topics(admin: Admin, names: Sequence[str] = ()) -> list[TopicInfo]:
    """Those named, or all that are not internal, by name."""
    wanted = [MetadataRequestTopic(name=name) for name in names] if names else None
    answer = admin.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))
    found: list[TopicInfo] = []
    for topic in sorted(answer.topics, key=lambda topic: topic.name or ""):
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise UnknownStream(f"there is no stream {topic.name}: see `tidelog stream list`")
        if topic.error_code and topic.error_code != ErrorCode.LEADER_NOT_AVAILABLE:
            raise CommandError(f"stream {topic.name}: {reason(topic.error_code)}")
        if not topic.is_internal or names:
            found.append(TopicInfo(topic.name, topic.topic_id, len(topic.partitions), _configs(admin, topic.name)))
    return found


def _configs(admin: Admin, name: str) -> dict[str, str]:
    """What was set for this stream."""
    resource = DescribeConfigsRequestResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None)
    result = admin.ask(DescribeConfigsRequest(resources=[resource])).results[0]
    if result.error_code:
        raise CommandError(f"stream {name}: {reason(result.error_code, result.error_message)}")
    return {entry.name: entry.value for entry in result.configs if entry.config_source == SET_ON_TOPIC}


# --- consumer groups --------------------------------------------------------------------------------------------------


def read_groups(admin: Admin) -> Positions:
    """The positions of every group, from every node's coordinators."""
    give_up = time.monotonic() + ANSWER_S_MAX
    while True:
        try:
            return _read_groups(admin)
        except (Refused, Unreachable) as error:  # coordinators are moving
            if time.monotonic() > give_up or not is_for_now(error):
                raise
        time.sleep(RETRY_S)


def _read_groups(admin: Admin) -> Positions:
    groups: set[str] = set()
    for node in admin.cluster().nodes:
        if node.alive:
            answer = admin.ask_node(node.node, ListGroupsRequest())
            _raise(answer.error_code, f"groups of node {node.node}")
            groups |= {group.group_id for group in answer.groups}
    positions: Positions = {}
    for group in sorted(groups):
        wanted = OffsetFetchRequestGroup(group_id=group, topics=None)
        answer = admin.ask_node(coordinator(admin, group), OffsetFetchRequest(groups=[wanted])).groups[0]
        _raise(answer.error_code, f"group {group}")
        positions[group] = {
            topic.name: {str(each.partition_index): each.committed_offset for each in topic.partitions}
            for topic in answer.topics
        }
    return positions


def _raise(code: int, what: str, message: str | None = None) -> None:
    if code:
        raise Refused(code, f"{what}: {reason(code, message)}")


def commit_positions(admin: Admin, group: str, stream: str, offsets: dict[int, int]) -> None:
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(
                name=stream,
                partitions=[
                    OffsetCommitRequestPartition(partition_index=number, committed_offset=offset, committed_metadata="")
                    for number, offset in offsets.items()
                ],
            )
        ],
    )
    for topic in admin.ask_node(coordinator(admin, group), request).topics:
        for each in topic.partitions:
            if each.error_code:
                raise CommandError(f"group {group}: {reason(each.error_code)}: stop its members, then try again")


def coordinator(admin: Admin, group: str) -> int:
    found = admin.ask(
        FindCoordinatorRequest(key_type=0, coordinator_keys=[group]),
        retried=lambda answer: answer.coordinators[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ).coordinators[0]
    _raise(found.error_code, f"group {group}", found.error_message)
    return found.node_id
