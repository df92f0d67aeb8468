"""The cluster's state machine: applies commands, one after the other, the same on every node.

A command that cannot be carried out (a topic that is there already, a topic that is gone) changes nothing and says why.
That is decided here, where commands have an order, and nowhere else: who proposes one may look first, to be kind, but
is not bound to be right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from uuid import UUID

from tidelog.cluster.commands import (
    AddPartitions,
    AllotProducerIds,
    AlterNodeConfigs,
    AlterTopicConfigs,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    RegisterNode,
    Snapshot,
)
from tidelog.cluster.state import ClusterState, Node, Partition, Topic


class Rejection(Enum):
    TOPIC_EXISTS = "topic exists"
    TOPIC_UNKNOWN = "topic is unknown"
    PARTITIONS_CHANGED = "its partitions have changed meanwhile"


@dataclass(frozen=True, slots=True)
class Applied:
    """What a command did."""

    rejection: Rejection | None = None
    created: Sequence[Partition] = ()
    deleted: Sequence[Partition] = ()
    topic: Topic | None = None
    """The topic as it is now, or as it was when it was deleted."""
    first_producer_id: int = -1


class Machine:
    def __init__(self) -> None:
        self.state = ClusterState()

    def apply(self, command: Command) -> Applied:
        state = self.state
        match command:
            case FoundCluster(cluster_id):
                state.cluster_id = state.cluster_id or cluster_id
            case RegisterNode(node, host, port, rack):
                state.nodes[node] = Node(node, host, port, rack)
            case CreateTopic():
                return self._create(command)
            case DeleteTopic(topic_id):
                return self._delete(topic_id)
            case AddPartitions():
                return self._add_partitions(command)
            case AlterTopicConfigs(topic_id, changes):
                topic = state.topics_by_id.get(topic_id)
                if topic is None:
                    return Applied(Rejection.TOPIC_UNKNOWN)
                altered = replace(topic, configs=MappingProxyType(_changed(topic.configs, changes)))
                state.put_topic(altered)
                return Applied(topic=altered)
            case AlterNodeConfigs(node, changes):
                state.node_configs[node] = _changed(state.node_configs.get(node, {}), changes)
            case AllotProducerIds(count):
                first = state.next_producer_id
                state.next_producer_id += count
                return Applied(first_producer_id=first)
            case Snapshot(content):
                self.state = ClusterState.from_json(content)
        return Applied()

    def snapshot(self) -> Snapshot:
        return Snapshot(self.state.to_json())

    def _create(self, command: CreateTopic) -> Applied:
        state = self.state
        if command.name in state.topics or command.id in state.topics_by_id:
            return Applied(Rejection.TOPIC_EXISTS)
        partitions = self._number(command.replicas)
        configs = MappingProxyType(dict(command.configs))
        topic = Topic(command.name, command.id, partitions, configs, command.internal)
        state.put_topic(topic)
        return Applied(created=partitions, topic=topic)

    def _delete(self, topic_id: UUID) -> Applied:
        topic = self.state.topics_by_id.get(topic_id)
        if topic is None:
            return Applied(Rejection.TOPIC_UNKNOWN)
        self.state.drop_topic(topic)
        return Applied(deleted=topic.partitions, topic=topic)

    def _add_partitions(self, command: AddPartitions) -> Applied:
        topic = self.state.topics_by_id.get(command.id)
        if topic is None:
            return Applied(Rejection.TOPIC_UNKNOWN)
        if len(topic.partitions) != command.count_before:
            return Applied(Rejection.PARTITIONS_CHANGED)
        added = self._number(command.replicas)
        grown = replace(topic, partitions=topic.partitions + added)
        self.state.put_topic(grown)
        return Applied(created=added, topic=grown)

    def _number(self, replicas: Sequence[Sequence[int]]) -> tuple[Partition, ...]:
        first = self.state.next_stream
        self.state.next_stream += len(replicas)
        return tuple(Partition(first + number, tuple(nodes)) for number, nodes in enumerate(replicas))


def _changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}
