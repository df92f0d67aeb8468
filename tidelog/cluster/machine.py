"""The cluster's state machine: applies commands, one after the other, the same on every node.

A command that cannot be carried out (a topic that is there already, a topic that is gone) changes nothing and says why.
That is decided here, where commands have an order, and nowhere else: who proposes one may look first, to be kind, but
is not bound to be right.

Applying costs as much as the command is long (and a copy of the touched topics' rows of partitions), except for a node
that comes back with another disk, and for snapshots, which go through everything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from tidelog.cluster.commands import (
    AddPartitions,
    AllotProducerIds,
    AlterNodeConfigs,
    AlterTopicConfigs,
    AssignReplicas,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    NoteLeaders,
    ReadmitReplicas,
    RegisterNode,
    RemoveNode,
    SetConfigNodes,
    SetDraining,
    Snapshot,
)
from tidelog.cluster.state import CLUSTER_STREAM, ClusterState, Node, Partition, Topic


class Rejection(Enum):
    TOPIC_EXISTS = "topic exists"
    TOPIC_UNKNOWN = "topic is unknown"
    PARTITIONS_CHANGED = "its partitions have changed meanwhile"
    NOT_FOUNDED = "the cluster is not founded yet: not all of its config servers have registered"
    NODE_UNKNOWN = "node is unknown"
    NODE_IN_USE = "node is still counted on: move everything off it first"
    CHANGED = "it has changed meanwhile"


@dataclass(frozen=True, slots=True)
class Applied:
    """What a command did."""

    rejection: Rejection | None = None
    created: Sequence[Partition] = ()
    deleted: Sequence[Partition] = ()
    changed: Sequence[Partition] = ()
    """Partitions whose replicas or whose reported leader and members are others now, as they are now."""
    topic: Topic | None = None
    """The topic as it is now, or as it was when it was deleted."""
    first_producer_id: int = -1


class Machine:
    def __init__(self) -> None:
        self.state = ClusterState()
        self._apply: dict[type[Command], Callable[[Any], Applied]] = {
            FoundCluster: self._found,
            RegisterNode: self._register,
            SetDraining: self._set_draining,
            RemoveNode: self._remove_node,
            SetConfigNodes: self._set_config_nodes,
            AlterNodeConfigs: self._alter_node_configs,
            AllotProducerIds: self._allot_producer_ids,
            CreateTopic: self._create,
            DeleteTopic: self._delete,
            AddPartitions: self._add_partitions,
            AlterTopicConfigs: self._alter_topic_configs,
            NoteLeaders: self._note_leaders,
            AssignReplicas: self._assign,
            ReadmitReplicas: self._readmit,
            Snapshot: self._restore,
        }

    def apply(self, command: Command) -> Applied:
        return self._apply[type(command)](command)

    def snapshot(self) -> Snapshot:
        return Snapshot(self.state.to_json())

    # The cluster and its nodes

    def _found(self, command: FoundCluster) -> Applied:
        state = self.state
        if not state.cluster_id:
            state.cluster_id, state.config_nodes = command.cluster_id, _unique(command.config_nodes)
        return Applied()

    def _set_config_nodes(self, command: SetConfigNodes) -> Applied:
        if not self.state.founded:
            return Applied(Rejection.NOT_FOUNDED)
        if not command.config_nodes or not self._known(command.config_nodes):
            return Applied(Rejection.NODE_UNKNOWN)
        self.state.config_nodes = _unique(command.config_nodes)
        return Applied()

    def _set_draining(self, command: SetDraining) -> Applied:
        node = self.state.nodes.get(command.node)
        if node is None:
            return Applied(Rejection.NODE_UNKNOWN)
        self.state.nodes[command.node] = replace(node, draining=command.draining)
        return Applied()

    def _alter_node_configs(self, command: AlterNodeConfigs) -> Applied:
        configs = self.state.node_configs
        configs[command.node] = _changed(configs.get(command.node, {}), command.changes)
        return Applied()

    def _allot_producer_ids(self, command: AllotProducerIds) -> Applied:
        first = self.state.next_producer_id
        self.state.next_producer_id += command.count
        return Applied(first_producer_id=first)

    def _restore(self, command: Snapshot) -> Applied:
        self.state = ClusterState.from_json(command.state)
        return Applied()

    def _register(self, command: RegisterNode) -> Applied:
        state, node = self.state, command.node
        known = state.nodes.get(node)
        before = "" if known is None else known.directory
        state.nodes[node] = Node(
            node,
            command.host,
            command.port,
            command.rack,
            command.peer_host,
            command.peer_port,
            command.roles,
            command.directory or before,
            known is not None and known.draining,
        )
        if not before or command.directory in ("", before):
            return Applied()
        state.absent = _with(state.absent, node)
        lost = [
            replace(p, absent=_with(p.absent, node), newcomers=_without(p.newcomers, node))
            for topic in state.topics.values()
            for p in topic.partitions
            if node in p.replicas or node in p.members
        ]
        state.put_partitions(lost)
        return Applied(changed=lost)

    def _remove_node(self, command: RemoveNode) -> Applied:
        state, node = self.state, command.node
        if node not in state.nodes:
            return Applied(Rejection.NODE_UNKNOWN)
        if node in state.config_nodes or state.uses(node):
            return Applied(Rejection.NODE_IN_USE)
        del state.nodes[node]
        state.node_configs.pop(str(node), None)
        # Should the number come back, it is with a new disk, and the cluster's own group must have let go of the old.
        state.absent = _with(state.absent, node)
        return Applied()

    # Topics

    def _create(self, command: CreateTopic) -> Applied:
        state = self.state
        if not state.founded:
            return Applied(Rejection.NOT_FOUNDED)
        if command.name in state.topics or command.id in state.topics_by_id:
            return Applied(Rejection.TOPIC_EXISTS)
        if not all(self._known(nodes) for nodes in command.replicas):
            return Applied(Rejection.NODE_UNKNOWN)
        partitions = self._number(command.replicas, command.start_offsets)
        configs = MappingProxyType(dict(command.configs))
        topic = Topic(command.name, command.id, partitions, configs, command.internal)
        state.put_topic(topic)
        return Applied(created=partitions, topic=topic)

    def _delete(self, command: DeleteTopic) -> Applied:
        topic = self.state.topics_by_id.get(command.id)
        if topic is None:
            return Applied(Rejection.TOPIC_UNKNOWN)
        self.state.drop_topic(topic)
        return Applied(deleted=topic.partitions, topic=topic)

    def _alter_topic_configs(self, command: AlterTopicConfigs) -> Applied:
        topic = self.state.topics_by_id.get(command.id)
        if topic is None:
            return Applied(Rejection.TOPIC_UNKNOWN)
        altered = replace(topic, configs=MappingProxyType(_changed(topic.configs, command.changes)))
        self.state.put_topic(altered)
        return Applied(topic=altered)

    def _add_partitions(self, command: AddPartitions) -> Applied:
        topic = self.state.topics_by_id.get(command.id)
        if topic is None:
            return Applied(Rejection.TOPIC_UNKNOWN)
        if len(topic.partitions) != command.count_before:
            return Applied(Rejection.PARTITIONS_CHANGED)
        if not all(self._known(nodes) for nodes in command.replicas):
            return Applied(Rejection.NODE_UNKNOWN)
        added = self._number(command.replicas)
        grown = replace(topic, partitions=topic.partitions + added)
        self.state.put_topic(grown)
        return Applied(created=added, topic=grown)

    def _number(self, replicas: Sequence[Sequence[int]], start_offsets: Sequence[int] = ()) -> tuple[Partition, ...]:
        first = self.state.next_stream
        self.state.next_stream += len(replicas)
        starts = [*start_offsets[: len(replicas)], *[0] * (len(replicas) - len(start_offsets))]
        return tuple(
            Partition(first + number, tuple(nodes), start_offset=start)
            for number, (nodes, start) in enumerate(zip(replicas, starts, strict=True))
        )

    # Replicas

    def _note_leaders(self, command: NoteLeaders) -> Applied:
        changed: dict[int, Partition] = {}
        for stream, leader, term, configuration_index, voters, learners in command.rows:
            before = self._partition(stream, changed)
            if before is None or (term, configuration_index) < (before.term, before.configuration_index):
                continue
            told = (leader, term, configuration_index, tuple(voters), tuple(learners))
            known = (before.leader, before.term, before.configuration_index, before.voters, before.learners)
            if told != known:
                changed[stream] = _forgotten(
                    replace(
                        before,
                        leader=leader,
                        term=term,
                        configuration_index=configuration_index,
                        voters=told[3],
                        learners=told[4],
                    )
                )
        return self._put(changed)

    def _assign(self, command: AssignReplicas) -> Applied:
        changed: dict[int, Partition] = {}
        rejection = Rejection.CHANGED
        for stream, replicas_before, replicas in command.rows:
            before = self._partition(stream, changed)
            if before is None or tuple(replicas_before) != before.replicas:
                continue
            if not replicas or not self._known(replicas):
                rejection = Rejection.NODE_UNKNOWN
                continue
            after = _unique(replicas)
            # One whose disk was lost stays absent until the group has let go of it, whatever becomes of it meanwhile.
            new = [node for node in after if node not in before.replicas and node not in before.absent]
            newcomers = [node for node in before.newcomers if node in after and node not in new]
            changed[stream] = _forgotten(replace(before, replicas=after, newcomers=(*newcomers, *new)))
        return self._put(changed) if changed else Applied(rejection)

    def _readmit(self, command: ReadmitReplicas) -> Applied:
        state = self.state
        changed: dict[int, Partition] = {}
        readmitted = False
        for stream, node in command.rows:
            if stream == CLUSTER_STREAM:
                readmitted = readmitted or node in state.absent
                state.absent = _without(state.absent, node)
                continue
            before = self._partition(stream, changed)
            if before is None or node not in before.absent or node in before.members:
                continue
            newcomers = _with(before.newcomers, node) if node in before.replicas else before.newcomers
            changed[stream] = replace(before, absent=_without(before.absent, node), newcomers=newcomers)
        return self._put(changed) if changed or readmitted else Applied(Rejection.CHANGED)

    def _partition(self, stream: int, changed: Mapping[int, Partition]) -> Partition | None:
        """As it is after the rows before; None: it was deleted meanwhile."""
        if stream in changed:
            return changed[stream]
        found = self.state.partition_of(stream)
        return None if found is None else found[0].partitions[found[1]]

    def _put(self, changed: Mapping[int, Partition]) -> Applied:
        partitions = tuple(changed.values())
        self.state.put_partitions(partitions)
        return Applied(changed=partitions)

    def _known(self, nodes: Sequence[int]) -> bool:
        return all(node in self.state.nodes for node in nodes)


def _forgotten(partition: Partition) -> Partition:
    """Without the absent that are neither to come back nor members any more."""
    kept = tuple(n for n in partition.absent if n in partition.replicas or n in partition.members)
    return partition if kept == partition.absent else replace(partition, absent=kept)


def _unique(nodes: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(nodes))


def _with(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return nodes if node in nodes else (*nodes, node)


def _without(nodes: tuple[int, ...], node: int) -> tuple[int, ...]:
    return tuple(other for other in nodes if other != node)


def _changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged = {**before, **changes}
    return {name: value for name, value in merged.items() if value is not None}
