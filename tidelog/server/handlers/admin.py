"""TidelogAdmin: what Tidelog's own tools ask, a method's name and JSON in, JSON out.

Any node is asked. `METHODS` are what it does then: most have the controller answer (`Broker.at_controller`), where the
function of the same name in `CONTROLLER_METHODS` runs. That one checks what it was given against the controller's own
state, which is the newest there is, and hands on to `Broker.operations`; the state machine and the streams' leaders
decide, whatever was checked here. Methods about one node's own replicas are answered by the node that was asked.
"""

import dataclasses
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidelog import faults
from tidelog.cluster import CLUSTER_STREAM, Partition, Topic
from tidelog.server.handlers import segments, tier_folders, tiers
from tidelog.server.handlers.call import AdminError, Call
from tidelog.server.leaders import NOBODY, alive_nodes, leader_of, members_of
from tidelog.server.peers import PeerCallError
from tidelog.server.topics import TopicError, plan_topic, submit, until_led
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import TidelogAdminRequest, TidelogAdminResponse

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

Content = dict[str, Any]

TIMEOUT_MS = 30_000
"""How long a method may take unless its content says otherwise (`timeout_ms`)."""


async def admin(call: Call) -> TidelogAdminResponse:
    request: TidelogAdminRequest = call.request
    try:
        content = _parsed(request.content)
        method = METHODS.get(request.method)
        if method is None:
            known = ", ".join(METHODS)
            raise AdminError(ErrorCode.INVALID_REQUEST, f"there is no method {request.method!r}; there are {known}")
        answer = await method(call, content)
    except PeerCallError as error:
        return TidelogAdminResponse(error_code=error.code, error_message=error.message)
    return TidelogAdminResponse(content=json.dumps(answer, separators=(",", ":")))


def _parsed(text: str) -> Content:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"the content is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise AdminError(ErrorCode.INVALID_REQUEST, "the content must be a JSON object")
    return content


async def at_controller(call: Call, method: str, content: Content) -> Content:
    """Have the controller run one of CONTROLLER_METHODS. Raises PeerCallError."""
    timeout_ms = number_in(content, "timeout_ms", TIMEOUT_MS)
    left_ms = call.deadline_ms(timeout_ms) - call.broker.now()
    if left_ms <= 0:
        raise AdminError(ErrorCode.REQUEST_TIMED_OUT, f"{method}: {timeout_ms} ms were not enough")
    return await call.broker.at_controller(method, content, left_ms)


def _forwarded(method: str) -> Callable[[Call, Content], Awaitable[Content]]:
    async def forward(call: Call, content: Content) -> Content:
        return await at_controller(call, method, content)

    return forward


# What was given


def number_in(content: Content, name: str, default: int | None = None) -> int:
    value = content.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{name} must be a whole number, not {value!r}")
    return value


def text_in(content: Content, name: str) -> str:
    value = content.get(name)
    if not isinstance(value, str):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{name} must be a text, not {value!r}")
    return value


def _flag_in(content: Content, name: str, default: bool = False) -> bool:
    value = content.get(name, default)
    if not isinstance(value, bool):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{name} must be true or false, not {value!r}")
    return value


def _nodes_in(broker: "Broker", content: Content, name: str, wrong: ErrorCode) -> tuple[int, ...]:
    """Different registered nodes, at least one."""
    value = content.get(name)
    if not isinstance(value, list) or not all(isinstance(node, int) for node in value):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"{name} must be a list of nodes, not {value!r}")
    unknown = [node for node in value if node not in broker.state.nodes]
    if not value or unknown or len(set(value)) != len(value):
        raise AdminError(wrong, f"{name}: {value} are not different known nodes")
    return tuple(value)


def _node_in(broker: "Broker", content: Content) -> int:
    node = number_in(content, "node")
    if node not in broker.state.nodes:
        raise AdminError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no node {node}")
    return node


def _partition_in(broker: "Broker", content: Content) -> tuple[Topic, Partition]:
    name, number = text_in(content, "topic"), number_in(content, "partition")
    topic = broker.topic_of(name)
    if topic is None:
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    if not 0 <= number < len(topic.partitions):
        count = len(topic.partitions)
        raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} has partitions 0 to {count - 1}, not {number}")
    return topic, topic.partitions[number]


# What there is


async def _cluster(broker: "Broker", _content: Content) -> Content:
    state, alive = broker.state, alive_nodes(broker)
    members = broker.node.replicas[CLUSTER_STREAM].group.configuration
    replicas, leaders = dict.fromkeys(state.nodes, 0), dict.fromkeys(state.nodes, 0)
    partitions = leaderless = under_replicated = 0
    for topic in state.topics.values():
        for partition in topic.partitions:
            partitions += 1
            leader, _ = leader_of(broker, partition)
            for node in partition.replicas:
                replicas[node] = replicas.get(node, 0) + 1
            if leader in alive:
                leaders[leader] = leaders.get(leader, 0) + 1
            else:
                leaderless += 1
            voters = partition.voters or partition.initial
            under_replicated += any(node not in voters or node not in alive for node in partition.replicas)
    return {
        "cluster_id": state.cluster_id,
        "controller": broker.controller,
        "founded": state.founded,
        "config_nodes": list(state.config_nodes),
        "nodes": [
            {
                "node": node.node,
                "host": node.host,
                "port": node.port,
                "rack": node.rack,
                "roles": list(node.roles),
                "alive": node.node in alive,
                "draining": node.draining,
                "config": _place(node.node, members.voters, members.learners),
                "replicas": replicas[node.node],
                "leaders": leaders[node.node],
            }
            for node in sorted(state.nodes.values(), key=lambda node: node.node)
        ],
        "partitions": partitions,
        "leaderless": leaderless,
        "under_replicated": under_replicated,
    }


def _place(node: int, voters: tuple[int, ...], learners: tuple[int, ...]) -> str:
    if node in voters:
        return "voter"
    return "learner" if node in learners else "none"


async def _streams(call: Call, content: Content) -> Content:
    broker = call.broker
    topics = list(broker.state.topics.values())
    if content.get("topic") is not None:
        topic = broker.topic_of(text_in(content, "topic"))
        if topic is None:
            raise AdminError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {content['topic']}")
        topics = [topic]
    return {"streams": [_stream(broker, topic, number) for topic in topics for number in range(len(topic.partitions))]}


def _stream(broker: "Broker", topic: Topic, number: int) -> Content:
    partition = topic.partitions[number]
    leader, term = leader_of(broker, partition)
    return {
        "topic": topic.name,
        "partition": number,
        "stream": partition.stream,
        "leader": leader,
        "term": term,
        "replicas": list(partition.replicas),
        "voters": list(partition.voters or partition.initial),
        "learners": list(partition.learners),
        "absent": list(partition.absent),
    }


async def _quorum(broker: "Broker", _content: Content) -> Content:
    """Of group 0, for DescribeQuorum."""
    replica = broker.node.replicas[CLUSTER_STREAM]
    group, log = replica.group, replica.log
    ends = {broker.settings.node_id: log.next_offset}
    heard: dict[int, int] = {}
    for member in members_of(broker, replica):
        ends.setdefault(member.node, log.offset_after(member.match))
        heard[member.node] = member.heard_ms_ago
    return {
        "leader": broker.controller,
        "epoch": group.term,
        "high_watermark": replica.high_watermark,
        "voters": list(group.configuration.voters),
        "observers": list(group.configuration.learners),
        "ends": [[node, end] for node, end in ends.items()],
        "heard_ms_ago": [[node, ago] for node, ago in heard.items()],
    }


# What is to change; all of it at the controller


async def _transfer_leader(broker: "Broker", content: Content) -> Content:
    """To `target`; without one, to the preferred leader."""
    topic, partition = _partition_in(broker, content)
    target = content.get("target")
    target = partition.replicas[0] if target is None or target == NOBODY else number_in(content, "target")
    leader, _ = leader_of(broker, partition)
    if target == leader:
        raise AdminError(ErrorCode.ELECTION_NOT_NEEDED, f"node {target} leads already")
    if target not in (partition.voters or partition.initial):
        raise AdminError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"node {target} has no vote on {topic.name}:{content['partition']} (yet)",
        )
    return await broker.operations.transfer_leader(partition.stream, target)


async def _reassign(broker: "Broker", content: Content) -> Content:
    """To `replicas`; null goes back to those that hold it now."""
    topic, partition = _partition_in(broker, content)
    voters = partition.voters or partition.initial
    if content.get("replicas") is None:
        if set(partition.replicas) == set(partition.members):
            name = f"{topic.name}:{content['partition']}"
            raise AdminError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"the replicas of {name} are where they shall be")
        leader, _ = leader_of(broker, partition)
        replicas = tuple(sorted(voters, key=lambda node: node != leader))
    else:
        replicas = _nodes_in(broker, content, "replicas", ErrorCode.INVALID_REPLICA_ASSIGNMENT)
    if _flag_in(content, "keep_count") and len(replicas) != len(partition.replicas):
        count = len(partition.replicas)
        raise AdminError(ErrorCode.INVALID_REPLICATION_FACTOR, f"{list(replicas)}: there must be {count} replicas")
    return await broker.operations.reassign(partition.stream, replicas, _flag_in(content, "force"))


async def _drain_node(broker: "Broker", content: Content) -> Content:
    node, draining = _node_in(broker, content), _flag_in(content, "draining", True)
    return await broker.operations.set_draining(node, draining, _flag_in(content, "force"))


async def _remove_node(broker: "Broker", content: Content) -> Content:
    return await broker.operations.remove_node(_node_in(broker, content), _flag_in(content, "force"))


async def _config_nodes(broker: "Broker", content: Content) -> Content:
    nodes = _nodes_in(broker, content, "nodes", ErrorCode.BROKER_ID_NOT_REGISTERED)
    return await broker.operations.set_config_nodes(nodes, _flag_in(content, "force"))


async def _balance(broker: "Broker", _content: Content) -> Content:
    return await broker.operations.balance()


async def _create_restored(call: Call, content: Content) -> Content:
    """A topic whose streams begin at given offsets, so that what a backup holds can be written to its old places."""
    broker, name, starts = call.broker, text_in(content, "topic"), content.get("start_offsets")
    if not isinstance(starts, list) or not starts or not all(isinstance(n, int) and n >= 0 for n in starts):
        raise AdminError(ErrorCode.INVALID_REQUEST, f"start_offsets must be one offset a partition, not {starts!r}")
    deadline_ms = call.deadline_ms(number_in(content, "timeout_ms", TIMEOUT_MS))
    try:
        command = plan_topic(broker, name, len(starts), configs=content.get("configs") or {})
        applied = await submit(broker, dataclasses.replace(command, start_offsets=tuple(starts)), deadline_ms)
    except TopicError as error:
        raise AdminError(error.code, error.message) from None
    if applied.topic is not None:
        await until_led(broker, applied.topic, deadline_ms)
    return {"partitions": len(starts)}


# What only the asked node knows


async def _segments(call: Call, content: Content) -> Content:
    _, partition = _partition_in(call.broker, content)
    return await segments.manifest(call.broker, partition.stream)


async def _checksum(call: Call, content: Content) -> Content:
    _, partition = _partition_in(call.broker, content)
    start, end = number_in(content, "start"), number_in(content, "end")
    deadline_ms = call.deadline_ms(number_in(content, "timeout_ms", TIMEOUT_MS))
    return await segments.checksum(call.broker, partition.stream, start, end, deadline_ms)


async def _tier_status(call: Call, content: Content) -> Content:
    return tiers.status(call.broker, *_partition_in(call.broker, content))


async def _tier_scrub(call: Call, content: Content) -> Content:
    topic, partition = _partition_in(call.broker, content)
    deadline_ms = call.deadline_ms(number_in(content, "timeout_ms", TIMEOUT_MS))
    return await tiers.scrub(call, topic, partition, deadline_ms, remove=_flag_in(content, "remove"))


async def _tier_check(call: Call, content: Content) -> Content:
    topic, partition = _partition_in(call.broker, content)
    return await tiers.check(call, topic, partition, number_in(content, "base_offset"))


async def _tier_recover(call: Call, content: Content) -> Content:
    deadline_ms = call.deadline_ms(number_in(content, "timeout_ms", TIMEOUT_MS))
    return await tiers.recover(call, text_in(content, "topic"), deadline_ms)


async def _tier_attach(call: Call, content: Content) -> Content:
    deadline_ms = call.deadline_ms(number_in(content, "timeout_ms", TIMEOUT_MS))
    return await tiers.attach(call, text_in(content, "source"), text_in(content, "topic"), deadline_ms)


async def _tier_folders(broker: "Broker", content: Content) -> Content:
    return await tier_folders.folders(broker, text_in(content, "remove"))


async def _fault(_call: Call, content: Content) -> Content:
    try:
        return faults.command(content)
    except faults.FaultError as error:
        raise AdminError(ErrorCode.INVALID_REQUEST, str(error)) from None


CONTROLLER_METHODS: dict[str, Callable[["Broker", Content], Awaitable[Content]]] = {
    "cluster": _cluster,
    "quorum": _quorum,
    "move-leader": _transfer_leader,  # nodes ask a stream's leader for `transfer-leader`, which is something else
    "reassign": _reassign,
    "drain-node": _drain_node,
    "remove-node": _remove_node,
    "config-nodes": _config_nodes,
    "balance": _balance,
    "tier-folders": _tier_folders,
}
"""Run where group 0 is led, called by the server's own code (`Broker.at_controller`). Raise PeerCallError."""

METHODS: dict[str, Callable[[Call, Content], Awaitable[Content]]] = {
    "cluster": _forwarded("cluster"),
    "transfer-leader": _forwarded("move-leader"),
    "reassign": _forwarded("reassign"),
    "drain-node": _forwarded("drain-node"),
    "remove-node": _forwarded("remove-node"),
    "config-nodes": _forwarded("config-nodes"),
    "balance": _forwarded("balance"),
    "create-restored": _create_restored,
    "streams": _streams,
    "segments": _segments,
    "checksum": _checksum,
    "fault": _fault,
    "tier-status": _tier_status,
    "tier-scrub": _tier_scrub,
    "tier-check": _tier_check,
    "tier-recover": _tier_recover,
    "tier-attach": _tier_attach,
    "tier-folders": _forwarded("tier-folders"),
}
