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


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """The first command: gives the cluster its name for ever. Later ones change nothing."""

    cluster_id: str


@dataclass(frozen=True, slots=True)
class RegisterNode:
    node: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    id: UUID
    replicas: Sequence[Sequence[int]]
    """The nodes of each partition."""
    configs: Mapping[str, str]
    internal: bool = False


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
    "snapshot": Snapshot,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


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
        return kind(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnknownCommandError(f"the cluster's log holds {record[:80]!r}…: written by a newer version?") from error


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    raise TypeError(f"{value!r} has no place in a command")
