"""The cluster as all its nodes agree on it: nodes, topics, the streams behind them, settings, producer ids.

Topics are what clients name; each partition of one is a log stream with a number of its own. Stream numbers are never
given out twice, so a stream that is created can never meet leftovers of one that was deleted.

Everything here is a value: the state changes only by `machine.apply`, the same on every node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any
from uuid import UUID

CLUSTER_STREAM = 0
"""The stream that holds the cluster's own log."""


@dataclass(frozen=True, slots=True)
class Node:
    """A server, and where clients reach it."""

    node: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    stream: int
    replicas: tuple[int, ...]
    """The nodes that hold the stream when it is created; from then on its Raft group knows its members."""


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

    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    topics: dict[str, Topic] = field(default_factory=dict[str, Topic])
    topics_by_id: dict[UUID, Topic] = field(default_factory=dict[UUID, Topic])
    node_configs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    """Settings changed at run time, by node number; "" holds those of all nodes."""

    next_stream: int = CLUSTER_STREAM + 1
    next_producer_id: int = 0

    def put_topic(self, topic: Topic) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic

    def drop_topic(self, topic: Topic) -> None:
        del self.topics[topic.name], self.topics_by_id[topic.id]

    def to_json(self) -> dict[str, object]:
        return {
            "cluster_id": self.cluster_id,
            "nodes": [[n.node, n.host, n.port, n.rack] for n in self.nodes.values()],
            "topics": [
                {
                    "name": topic.name,
                    "id": topic.id.hex,
                    "partitions": [[p.stream, list(p.replicas)] for p in topic.partitions],
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
        state = cls(
            cluster_id=content["cluster_id"],
            nodes={row[0]: Node(*row) for row in content["nodes"]},
            node_configs={node: dict(configs) for node, configs in content["node_configs"].items()},
            next_stream=content["next_stream"],
            next_producer_id=content["next_producer_id"],
        )
        for row in content["topics"]:
            partitions = tuple(Partition(stream, tuple(replicas)) for stream, replicas in row["partitions"])
            configs = MappingProxyType(row["configs"])
            state.put_topic(Topic(row["name"], UUID(hex=row["id"]), partitions, configs, row["internal"]))
        return state
