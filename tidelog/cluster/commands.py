"""What can be done to the cluster, as records of its log.

A command says everything its effect depends on: ids are drawn and replicas chosen by who proposes it, so that applying
it gives the same state on every node and at every replay. A record's value is one JSON object; `do` names the command.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from tidelog.cluster.state import CONFIG_ROLE, DATA_ROLE


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The first command: gives the cluster its name for ever, and its first config servers. Later ones change nothing.

    Without config servers, as the first versions wrote it, the cluster is founded at once."""

    cluster_id: str
    config_nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """Every start of a node: where it is, and which disk it has (see `state.Node`)."""

    node: int
    host: str
    port: int
    rack: str | None = None
    peer_host: str = ""
    peer_port: int = 0
    roles: tuple[str, ...] = (CONFIG_ROLE, DATA_ROLE)
    directory: str = ""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    id: UUID
    replicas: Sequence[Sequence[int]]
    """The nodes of each partition."""
    configs: Mapping[str, str]
    internal: bool = False
    start_offsets: tuple[int, ...] = ()
    """Where each partition's log begins; those left out begin at 0."""


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    id: UUID


@dataclass(frozen=True, slots=True)
class AddPartitions:
    id: UUID
    count_before: int
    """How many there were when the command was made: two at once must not add twice."""
    replicas: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class AlterTopicConfigs:
    id: UUID
    changes: Mapping[str, str | None]
    """None: back to the default."""


@dataclass(frozen=True, slots=True)
class AlterNodeConfigs:
    node: str
    """A node's number as text; "" for all nodes."""
    changes: Mapping[str, str | None]


@dataclass(frozen=True, slots=True)
class AllotProducerIds:
    count: int


LeaderRow = tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]
"""Stream, leader, term, index of the configuration, voters, learners."""


@dataclass(frozen=True, slots=True)
class NoteLeaders:
    """What the leaders of streams reported. A row older than what is known, or of an unknown stream, is passed over."""

    rows: Sequence[LeaderRow]


@dataclass(frozen=True, slots=True)
class AssignReplicas:
    """Who shall hold streams from now on. Each row stands for itself: one that comes too late changes nothing."""

    rows: Sequence[tuple[int, tuple[int, ...], tuple[int, ...]]]
    """Stream, the replicas when the command was made, the replicas from now on."""


@dataclass(frozen=True, slots=True)
class ReadmitReplicas:
    """Groups have let go of nodes whose disk was lost: these may begin again, with nothing."""

    rows: Sequence[tuple[int, int]]
    """Stream and node; for stream 0 the proposer, who leads it, vouches that the node is no member."""


@dataclass(frozen=True, slots=True)
class SetDraining:
    node: int
    draining: bool


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """The node is gone for good. Only for one that nothing counts on any more."""

    node: int


@dataclass(frozen=True, slots=True)
class SetConfigNodes:
    config_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state: what stands before it in the log is not needed any more."""

    state: Mapping[str, Any]


Command = (
    FoundCluster
    | RegisterNode
    | CreateTopic
    | DeleteTopic
    | AddPartitions
    | AlterTopicConfigs
    | AlterNodeConfigs
    | AllotProducerIds
    | NoteLeaders
    | AssignReplicas
    | ReadmitReplicas
    | SetDraining
    | RemoveNode
    | SetConfigNodes
    | Snapshot
)

_KINDS: dict[str, type[Command]] = {
    "found-cluster": FoundCluster,
    "register-node": RegisterNode,
    "create-topic": CreateTopic,
    "delete-topic": DeleteTopic,
    "add-partitions": AddPartitions,
    "alter-topic-configs": AlterTopicConfigs,
    "alter-node-configs": AlterNodeConfigs,
    "allot-producer-ids": AllotProducerIds,
    "note-leaders": NoteLeaders,
    "assign-replicas": AssignReplicas,
    "readmit-replicas": ReadmitReplicas,
    "set-draining": SetDraining,
    "remove-node": RemoveNode,
    "set-config-nodes": SetConfigNodes,
    "snapshot": Snapshot,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_TUPLES = ("config_nodes", "roles", "rows", "start_offsets")


class UnknownCommandError(ValueError):
    """A record of the cluster's log that this version cannot read: the node must not go on without it."""


def encode_command(command: Command) -> bytes:
    content: dict[str, Any] = {"do": _NAMES[type(command)]}
    for field in dataclasses.fields(command):
        value = getattr(command, field.name)
        content[field.name] = value.hex if isinstance(value, UUID) else value
    return json.dumps(content, separators=(",", ":"), default=_plain).encode()


def decode_command(record: bytes) -> Command:
    try:
        content: dict[str, Any] = json.loads(record)
        kind = _KINDS[content.pop("do")]
        if "id" in content:
            content["id"] = UUID(hex=content["id"])
        for name in _TUPLES:
            if name in content:
                content[name] = _tupled(list(content[name]))
        return kind(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownCommandError(f"the cluster's log holds {record[:80]!r}…: written by a newer version?") from error


def _tupled(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(map(_tupled, value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{value!r} has no place in a command")
