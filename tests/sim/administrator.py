"""What is done to the cluster: commands drawn at random, most of which can be carried out."""

from collections.abc import Callable
from random import Random
from uuid import UUID

from tidelog.cluster import (
    AddPartitions,
    AllotProducerIds,
    AlterNodeConfigs,
    AlterTopicConfigs,
    AssignReplicas,
    ClusterState,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    NoteLeaders,
    Partition,
    ReadmitReplicas,
    RegisterNode,
    RemoveNode,
    SetConfigNodes,
    SetDraining,
    Topic,
    encode_command,
)

TOPICS = 6  # names to choose from
PARTITIONS_MAX = 3


class Administrator:
    def __init__(self, nodes: list[int], rng: Random) -> None:
        self._nodes = nodes
        self._rng = rng
        self._commands: list[Callable[[ClusterState], Command]] = [
            self._register,
            self._create,
            self._create,
            self._delete,
            self._add_partitions,
            self._alter_topic,
            self._alter_node,
            self._note_leaders,
            self._assign,
            self._readmit,
            lambda state: AllotProducerIds(self._rng.randint(1, 1000)),
            lambda state: SetDraining(self._node(), self._rng.random() < 0.5),
            lambda state: RemoveNode(self._node()),
            lambda state: SetConfigNodes(self._some_nodes()),
        ]

    def command(self, state: ClusterState) -> bytes:
        """The next one, as the record that goes into the log; `state` may be out of date."""
        return encode_command(self._next(state))

    def _next(self, state: ClusterState) -> Command:
        if not state.cluster_id:
            return FoundCluster("a cluster", tuple(self._nodes))
        if not state.founded:
            missing = [node for node in self._nodes if node not in state.nodes]
            return self._register_as(self._rng.choice(missing or self._nodes), "first")
        return self._rng.choice(self._commands)(state)

    def _register(self, state: ClusterState) -> Command:
        return self._register_as(self._node(), self._rng.choice(("first", "first", "second")))

    def _register_as(self, node: int, directory: str) -> Command:
        return RegisterNode(node, "host", 9000 + node, directory=f"{directory} disk of {node}")

    def _create(self, state: ClusterState) -> Command:
        replicas = [self._some_nodes() for _ in range(self._rng.randint(1, PARTITIONS_MAX))]
        name = f"topic {self._rng.randrange(TOPICS)}"
        return CreateTopic(name, UUID(int=self._rng.getrandbits(128)), replicas, {"retention.ms": "1000"})

    def _delete(self, state: ClusterState) -> Command:
        return DeleteTopic(self._topic_id(state))

    def _add_partitions(self, state: ClusterState) -> Command:
        topic = self._topic(state)
        count = len(topic.partitions) if topic is not None else 1
        return AddPartitions(self._topic_id(state) if topic is None else topic.id, count, [self._some_nodes()])

    def _alter_topic(self, state: ClusterState) -> Command:
        value = self._rng.choice((None, str(self._rng.randrange(10**6))))
        return AlterTopicConfigs(self._topic_id(state), {"retention.bytes": value})

    def _alter_node(self, state: ClusterState) -> Command:
        return AlterNodeConfigs(str(self._node()), {"a.setting": self._rng.choice((None, "1", "2"))})

    def _note_leaders(self, state: ClusterState) -> Command:
        rows = [
            (p.stream, p.replicas[0], self._rng.randrange(9), self._rng.randrange(9), self._some_nodes(), ())
            for p in self._partitions(state)
        ]
        return NoteLeaders(rows)

    def _assign(self, state: ClusterState) -> Command:
        return AssignReplicas([(p.stream, p.replicas, self._some_nodes()) for p in self._partitions(state)])

    def _readmit(self, state: ClusterState) -> Command:
        return ReadmitReplicas([(p.stream, self._node()) for p in self._partitions(state)])

    def _node(self) -> int:
        return self._rng.choice(self._nodes)

    def _some_nodes(self) -> tuple[int, ...]:
        return tuple(self._rng.sample(self._nodes, self._rng.randint(1, len(self._nodes))))

    def _topic(self, state: ClusterState) -> Topic | None:
        return self._rng.choice(list(state.topics.values())) if state.topics else None

    def _topic_id(self, state: ClusterState) -> UUID:
        topic = self._topic(state)
        return UUID(int=0) if topic is None else topic.id

    def _partitions(self, state: ClusterState) -> list[Partition]:
        every = [partition for topic in state.topics.values() for partition in topic.partitions]
        return self._rng.sample(every, min(len(every), 3))
