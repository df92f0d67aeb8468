"""Who leads a stream and who holds it, as far as this node knows: from its own replica, or from the cluster's state.

A replica hears of a new leader first; the state, which the leaders' reports reach through the controller, knows of all
streams. The one with the higher term is right. A leader that is not among the registered nodes cannot be named to
clients, since they could not find it.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from tidelog.cluster import CLUSTER_STREAM, Partition
from tidelog.raft import MemberView
from tidelog.server.replica import Replica
from tidelog.wire.errors import ErrorCode
from tidelog.wire.leader_hints import Endpoint

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

NOBODY = -1
WRONG_NODE = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""Errors after which a client wants to know who leads."""


class Standing(NamedTuple):
    """What clients are told of a partition."""

    leader: int
    """NOBODY when there is none, or none that clients can find."""
    epoch: int
    replicas: list[int]
    """Those that shall hold it, the preferred leader first, and those that still do."""
    in_sync: list[int]
    offline: list[int]

    @property
    def error(self) -> ErrorCode:
        return ErrorCode.LEADER_NOT_AVAILABLE if self.leader == NOBODY else ErrorCode.NONE


def leader_of(broker: "Broker", partition: Partition) -> tuple[int, int]:
    """(leader, term) of the newest term that is known; the leader is NOBODY while it is not known."""
    leader, term = partition.leader, partition.term
    replica = broker.node.replicas.get(partition.stream)
    if replica is not None and replica.group.term >= term:
        known = replica.group.leader
        if known is not None:
            leader, term = known, replica.group.term
        elif replica.group.term > term:
            return NOBODY, NOBODY  # an election is under way
    return (leader, term) if leader in broker.state.nodes else (NOBODY, NOBODY)


def epoch_error(replica: Replica, epoch: int) -> ErrorCode:
    """A client that knows an older leader must learn the new one; one that knows a newer has come to the wrong node."""
    term = replica.group.term
    if epoch < 0 or epoch == term:
        return ErrorCode.NONE
    return ErrorCode.FENCED_LEADER_EPOCH if epoch < term else ErrorCode.UNKNOWN_LEADER_EPOCH


def led_here(broker: "Broker", name: str | UUID, partition: int, epoch: int) -> Replica | ErrorCode:
    """The stream's replica if this node leads it, in the epoch that the client knows. It need not be ready yet."""
    replica = broker.replica_of(name, partition)
    if isinstance(replica, ErrorCode):
        return replica
    if replica.group.leader is None:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER  # a term that has no leader yet fences nobody
    error = epoch_error(replica, epoch)
    if error:
        return error
    return replica if replica.leads else ErrorCode.NOT_LEADER_OR_FOLLOWER


def hint_of(broker: "Broker", name: str | UUID, partition: int) -> tuple[int, int] | None:
    """(leader, epoch) for a client that asked the wrong node, if that is known."""
    topic = broker.topic_of(name)
    if topic is None or not 0 <= partition < len(topic.partitions):
        return None
    leader, term = leader_of(broker, topic.partitions[partition])
    return None if leader == NOBODY else (leader, term)


def standing_of(broker: "Broker", partition: Partition, offline: frozenset[int]) -> Standing:
    leader, term = leader_of(broker, partition)
    replica = broker.node.replicas.get(partition.stream)
    voters = partition.voters or partition.initial
    if replica is not None and replica.group.term >= partition.term and replica.group.leader is not None:
        voters = replica.group.configuration.voters
    replicas = list(dict.fromkeys((*partition.replicas, *voters)))
    return Standing(
        leader,
        term,
        replicas,
        [node for node in replicas if node in voters and node not in offline],
        [node for node in replicas if node in offline],
    )


def alive_nodes(broker: "Broker") -> frozenset[int]:
    """Those that live as this node sees it, itself among them. Only the controller sees all."""
    return broker.node.nodes_alive | {broker.settings.node_id}


def offline_nodes(broker: "Broker") -> frozenset[int]:
    """Registered nodes that are known to be away; other nodes than the controller cannot know."""
    own = broker.node.replicas.get(CLUSTER_STREAM)
    if own is None or not own.ready:
        return frozenset()
    return frozenset(broker.state.nodes) - alive_nodes(broker)


def members_of(broker: "Broker", replica: Replica) -> list[MemberView]:
    """What the leader knows of its group's members, itself first; nothing on other nodes.

    While a group sleeps nobody speaks; then the nodes themselves are listened to.
    """
    members = replica.group.members(broker.now())
    if not replica.group.asleep:
        return members
    return [replace(member, heard_ms_ago=0) if broker.is_alive(member.node) else member for member in members]


def successor_of(broker: "Broker", replica: Replica) -> int | None:
    """Who should lead a stream that this node leads and cannot go on with: one that lives and has room, and most of
    the log."""
    able = [
        member
        for member in members_of(broker, replica)
        if member.voter and member.accepting and member.node != broker.settings.node_id
        and broker.is_alive(member.node)
    ]  # fmt: skip
    best = max(able, key=lambda member: member.match, default=None)
    return None if best is None else best.node


def endpoints_of(broker: "Broker", nodes: Iterable[int]) -> list[Endpoint]:
    """Where clients reach these nodes, each once, for an answer that names them as leaders (KIP-951)."""
    known = broker.state.nodes
    found = [known[node] for node in dict.fromkeys(nodes) if node in known]
    return [(node.node, node.host, node.port, node.rack) for node in found]
