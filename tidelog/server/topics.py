"""Topics made and changed: what is checked before the cluster's log is asked, and what is waited for after."""

import asyncio
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.cluster import (
    CLUSTER_STREAM,
    Applied,
    Command,
    CreateTopic,
    InvalidConfigError,
    Rejection,
    Topic,
    check_tiering,
    check_topic_config,
    placement,
)
from tidelog.server.cluster_log import CommandRefusedError
from tidelog.server.refusals import error_of
from tidelog.server.replica import Replica
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

NAME_BYTES_MAX = 249
INTERNAL_PREFIX = "__"
_NAME = re.compile(r"[a-zA-Z0-9._-]+")

_REJECTIONS = {
    Rejection.TOPIC_EXISTS: ErrorCode.TOPIC_ALREADY_EXISTS,
    Rejection.TOPIC_UNKNOWN: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    Rejection.PARTITIONS_CHANGED: ErrorCode.INVALID_PARTITIONS,
    Rejection.NOT_FOUNDED: ErrorCode.COORDINATOR_NOT_AVAILABLE,  # clients try again
    Rejection.NODE_UNKNOWN: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
}


class TopicError(Exception):
    """A topic that cannot be made or changed, and why."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def check_name(name: str) -> None:
    if not name or len(name) > NAME_BYTES_MAX or name in (".", "..") or not _NAME.fullmatch(name):
        raise TopicError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{name[:NAME_BYTES_MAX]!r}: a topic's name has 1 to {NAME_BYTES_MAX} letters, digits, dots, _ or -",
        )


def check_configs(configs: Mapping[str, str | None]) -> None:
    for name, value in configs.items():
        try:
            check_topic_config(name, value)
        except InvalidConfigError as error:
            raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from None


def check_tiers(broker: "Broker", configs: Mapping[str, str], before: Mapping[str, str] | None) -> None:
    """Whether a topic's settings about tiers go together, with each other and with this node's."""
    tiered = configs.get("remote.storage.enable") == "true"  # to others the node's defaults about tiers mean nothing
    try:
        check_tiering(
            {**broker.topic_defaults, **configs} if tiered else configs, before, available=broker.tiering is not None
        )
    except InvalidConfigError as error:
        raise TopicError(ErrorCode.INVALID_CONFIG, str(error)) from None


class Load:
    """How many replicas and leaders each node has, those included that are planned and not there yet."""

    def __init__(self, topics: Iterable[Topic], now_ms: int) -> None:
        self.counted_ms = now_ms
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        for topic in topics:
            self.add([partition.replicas for partition in topic.partitions])

    def add(self, assignment: Sequence[Sequence[int]]) -> None:
        for nodes in assignment:
            self.replicas.update(nodes)
            self.leaders[nodes[0]] += 1


def place(broker: "Broker", partitions: int, replication: int, leader_rack: str | None = None) -> list[tuple[int, ...]]:
    """Nodes for each of so many new partitions; -1 stands for the default."""
    state = broker.state
    load = broker.load()
    usable = placement.usable(state.nodes.values())
    if replication == -1:
        replication = min(3, len(usable))
    if not 1 <= replication <= len(usable):
        raise TopicError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"replication {replication}; there are {len(usable)} nodes"
        )
    alive = [node for node in usable if broker.is_alive(node.node)]
    chosen_from = alive if len(alive) >= replication else usable
    placed = placement.place(chosen_from, load.replicas, load.leaders, partitions, replication, leader_rack)
    load.add(placed)
    return placed


def plan_topic(
    broker: "Broker",
    name: str,
    partitions: int = -1,
    replication: int = -1,
    assignment: Sequence[Sequence[int]] | None = None,
    configs: Mapping[str, str] | None = None,
    *,
    internal: bool = False,
) -> CreateTopic:
    """The command that makes a topic, if all that is asked for can be had."""
    check_name(name)
    if name in broker.state.topics:
        raise TopicError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {name!r} is there already")
    settings = broker.live()
    if assignment is None:
        partitions = settings.topic_partitions if partitions == -1 else partitions
        _check_count(partitions, settings.topic_partitions_max)
        assignment = place(broker, partitions, replication, (configs or {}).get("leader.rack"))
    else:
        _check_count(len(assignment), settings.topic_partitions_max)
        check_assignment(broker, assignment)
    check_room(broker, len(assignment))
    check_configs(configs or {})
    check_tiers(broker, configs or {}, None)
    return CreateTopic(name, uuid.uuid4(), [list(nodes) for nodes in assignment], dict(configs or {}), internal)


def _check_count(partitions: int, partitions_max: int) -> None:
    if not 1 <= partitions <= partitions_max:
        raise TopicError(
            ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions; between 1 and {partitions_max} are allowed"
        )


def check_room(broker: "Broker", more: int) -> None:
    """Whether the cluster may have so many more streams."""
    there = broker.state.partition_count
    if there + more > broker.settings.streams_max:
        raise TopicError(
            ErrorCode.POLICY_VIOLATION,
            f"{there} partitions and {more} more would pass streams.max, which is {broker.settings.streams_max}",
        )


def check_assignment(broker: "Broker", assignment: Sequence[Sequence[int]]) -> None:
    usable = {node.node for node in placement.usable(broker.state.nodes.values())}
    for nodes in assignment:
        if not nodes or len(set(nodes)) != len(nodes) or not set(nodes) <= set(broker.state.nodes):
            raise TopicError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(nodes)} are not different known nodes")
        unfit = sorted(set(nodes) - usable)
        if unfit:
            raise TopicError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"nodes {unfit} are being drained, or have no role `data`"
            )


async def submit(broker: "Broker", command: Command, deadline_ms: int) -> Applied:
    """Have the cluster carry out a command; raises TopicError when it cannot."""
    try:
        applied = await broker.cluster.submit(command, max(1, deadline_ms - broker.now()))
    except CommandRefusedError as error:
        code = error_of(error.refusal)
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            code = ErrorCode.NOT_CONTROLLER
        raise TopicError(code, str(error)) from None
    if applied.rejection is not None:
        code = _REJECTIONS.get(applied.rejection, ErrorCode.INVALID_REQUEST)
        raise TopicError(code, applied.rejection.value)
    return applied


async def create_topic(
    broker: "Broker", name: str, partitions: int = -1, *, internal: bool = False, deadline_ms: int
) -> Topic:
    """Make a topic with default settings, and wait until it can be written to."""
    applied = await submit(broker, plan_topic(broker, name, partitions, internal=internal), deadline_ms)
    assert applied.topic is not None
    await until_led(broker, applied.topic, deadline_ms)
    return applied.topic


async def until_led(broker: "Broker", topic: Topic, deadline_ms: int) -> None:
    """Wait until the leader of every stream of the topic is known here; or until the time is up."""
    cluster = broker.node.replicas[CLUSTER_STREAM]
    for partition in topic.partitions:
        replica = broker.node.replicas.get(partition.stream)
        if replica is not None:
            await until(replica, lambda replica=replica: _is_led(replica), deadline_ms - broker.now())
        else:
            stream = partition.stream
            await until(cluster, lambda stream=stream: broker.leader_node(stream) >= 0, deadline_ms - broker.now())


def _is_led(replica: Replica) -> bool:
    return replica.ready if replica.leads else replica.follows


async def until(replica: Replica, condition: Callable[[], bool], timeout_ms: int) -> bool:
    """Wait for something that comes about when the replica commits or its leader changes."""
    if condition():
        return True
    came = asyncio.get_running_loop().create_future()
    watcher = object()

    def look() -> None:
        if condition() and not came.done():
            came.set_result(None)

    replica.watchers[watcher] = look
    try:
        await asyncio.wait_for(came, max(0, timeout_ms) / 1000)
    except TimeoutError:
        return False
    finally:
        replica.watchers.pop(watcher, None)
    return True
