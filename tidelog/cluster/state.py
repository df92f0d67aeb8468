"""The cluster as all its nodes agree on it: nodes, topics, the streams behind them, settings, producer ids.

Topics are what clients name; each partition of one is a log stream with a number of its own. Stream numbers are never
given out twice, so a stream that is created can never meet leftovers of one that was deleted.

Of each stream the state knows what *shall be* (`replicas`) and what its leader last reported to *be* (`leader`,
`voters`, `learners`); `planner` works the second towards the first.

Everything here is a value: the state changes only by `machine.apply`, the same on every node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any
from uuid import UUID

CLUSTER_STREAM = 0
"""The stream that holds the cluster's own log."""

CONFIG_ROLE = "config"
"""May vote on the cluster's own log."""
DATA_ROLE = "data"
"""May hold streams."""


@dataclass(frozen=True, slots=True)
class Node:
    """A server, and where clients and other nodes reach it."""

    node: int
    host: str
    port: int
    rack: str | None = None
    """Its data centre."""
    peer_host: str = ""
    peer_port: int = 0
    roles: tuple[str, ...] = (CONFIG_ROLE, DATA_ROLE)
    directory: str = ""
    """Names the disk it runs on. Another name under the same number: the old disk, with all it promised, is lost."""
    draining: bool = False
    """Everything is to move off it, and nothing new is placed on it."""


@dataclass(frozen=True, slots=True)
class Partition:
    stream: int
    replicas: tuple[int, ...]
    """The nodes that shall hold the stream; the first is the preferred leader."""
    initial: tuple[int, ...] = ()
    """The voters its Raft group began with. Never changes; when not given, the replicas."""
    newcomers: tuple[int, ...] = ()
    """Replicas that began, or are to begin, with nothing: not with the voters the group began with."""
    absent: tuple[int, ...] = ()
    """Nodes whose disk was lost while the group counted on it. They must not begin again before the group has let
    go of them: a voter that forgot its votes and its log could elect a second leader, or bury what was acknowledged."""
    start_offset: int = 0
    """Where the log begins: not 0 for a stream that was restored."""

    # As its leader last reported, and so perhaps a little old:
    leader: int = -1
    term: int = -1
    configuration_index: int = -1
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.initial:
            object.__setattr__(self, "initial", self.replicas)

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes that the group counts on, as far as known: before the first report, those it began with."""
        return self.initial if self.term < 0 else self.voters + self.learners


@dataclass(frozen=True, slots=True)
class Topic:
    name: str
    id: UUID
    partitions: tuple[Partition, ...]
    configs: Mapping[str, str]
    """Only what was set; `configs` has the defaults."""
    internal: bool = False


@dataclass(slots=True)
class ClusterState:
    cluster_id: str = ""
    """Given at the founding; empty before."""

    config_nodes: tuple[int, ...] = ()
    """The nodes that shall vote on the cluster's own log."""

    absent: tuple[int, ...] = ()
    """Nodes whose disk was lost and that the cluster's own group may still count on (see `Partition.absent`)."""

    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    topics_by_id: dict[UUID, Topic] = field(default_factory=dict[UUID, Topic])
    node_configs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Settings changed at run time, by node number; "" holds those of all nodes."""

    next_stream: int = CLUSTER_STREAM + 1
    next_producer_id: int = 0

    _places: dict[int, tuple[UUID, int]] = field(default_factory=dict[int, tuple[UUID, int]], repr=False)
    """Where a stream is: its topic, and the number of the partition in it. Partitions never change their number."""
    _uses: dict[int, int] = field(default_factory=dict[int, int], repr=False)
    """How often partitions name a node, in `replicas` or `members`."""

    @property
    def founded(self) -> bool:
        """Whether topics can be made: every config server has said which disk it votes from."""
        return bool(self.cluster_id) and all(node in self.nodes for node in self.config_nodes)

    def partition_of(self, stream: int) -> tuple[Topic, int] | None:
        """The topic a stream belongs to and the number of its partition."""
        place = self._places.get(stream)
        return None if place is None else (self.topics_by_id[place[0]], place[1])

    @property
    def partition_count(self) -> int:
        """Of all topics."""
        return len(self._places)

    def uses(self, node: int) -> int:
        """How often partitions name the node as one that shall hold them or that their groups count on."""
        return self._uses.get(node, 0)

    # Only for the machine

    def put_topic(self, topic: Topic) -> None:
        """Take in a new topic, or one with other settings or with partitions added behind."""
        known = self.topics_by_id.get(topic.id)
        for number in range(0 if known is None else len(known.partitions), len(topic.partitions)):
            self._places[topic.partitions[number].stream] = (topic.id, number)
            self._count(topic.partitions[number], 1)
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic

    def put_partitions(self, changed: Iterable[Partition]) -> None:
        """Take in partitions, which must be there, as they are now."""
        by_topic: dict[UUID, dict[int, Partition]] = {}
        for partition in changed:
            topic_id, number = self._places[partition.stream]
            by_topic.setdefault(topic_id, {})[number] = partition
        for topic_id, rows in by_topic.items():
            topic = self.topics_by_id[topic_id]
            partitions = list(topic.partitions)
            for number, partition in rows.items():
                self._count(partitions[number], -1)
                self._count(partition, 1)
                partitions[number] = partition
            self.topics[topic.name] = self.topics_by_id[topic_id] = replace(topic, partitions=tuple(partitions))

    def drop_topic(self, topic: Topic) -> None:
        for partition in topic.partitions:
            del self._places[partition.stream]
            self._count(partition, -1)
        del self.topics[topic.name], self.topics_by_id[topic.id]

    def _count(self, partition: Partition, by: int) -> None:
        for node in partition.replicas + partition.members:
            uses = self._uses.get(node, 0) + by
            if uses:
                self._uses[node] = uses
            else:
                del self._uses[node]

    # Snapshots

    def to_json(self) -> dict[str, object]:
        return {
            "cluster_id": self.cluster_id,
            "config_nodes": list(self.config_nodes),
            "absent": list(self.absent),
            "nodes": [_node_row(node) for node in self.nodes.values()],
            "topics": [
                {
                    "name": topic.name,
                    "id": topic.id.hex,
                    "partitions": [_partition_row(partition) for partition in topic.partitions],
                    "configs": dict(topic.configs),
                    "internal": topic.internal,
                }
                for topic in self.topics.values()
            ],
            "node_configs": {node: dict(configs) for node, configs in self.node_configs.items()},
            "next_stream": self.next_stream,
            "next_producer_id": self.next_producer_id,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ClusterState":
        """Also reads what versions wrote that knew only one node: their rows are shorter, and keys are missing."""
        state = cls(
            cluster_id=content["cluster_id"],
            config_nodes=tuple(content.get("config_nodes", ())),
            absent=tuple(content.get("absent", ())),
            nodes={row[0]: Node(*map(_tupled, row)) for row in content["nodes"]},
            node_configs={node: dict(configs) for node, configs in content["node_configs"].items()},
            next_stream=content["next_stream"],
            next_producer_id=content["next_producer_id"],
        )
        for row in content["topics"]:
            partitions = tuple(Partition(*map(_tupled, partition)) for partition in row["partitions"])
            configs = MappingProxyType(dict(row["configs"]))
            state.put_topic(Topic(row["name"], UUID(hex=row["id"]), partitions, configs, row["internal"]))
        return state


def _node_row(node: Node) -> list[object]:
    peer: list[object] = [node.peer_host, node.peer_port, list(node.roles), node.directory, node.draining]
    return [node.node, node.host, node.port, node.rack, *peer]


def _partition_row(partition: Partition) -> list[object]:
    shall: list[object] = [list(partition.replicas), list(partition.initial)]
    between: list[object] = [list(partition.newcomers), list(partition.absent), partition.start_offset]
    reported: list[object] = [partition.leader, partition.term, partition.configuration_index]
    return [partition.stream, *shall, *between, *reported, list(partition.voters), list(partition.learners)]


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
