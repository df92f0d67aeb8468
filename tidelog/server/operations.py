"""What is done to a running cluster: leaders moved, replicas added and removed, nodes drained.

Two sides. A stream's leader changes its own group's members (`change_members`) and hands its leadership over
(`transfer_leader`); it knows who is caught up and who answers. The controller decides for the cluster (`Operations`),
and asks streams' leaders.

A change must not cost a stream its quorum: the leader refuses one after which (or on the way to which) a majority of
voters would not be healthy, unless it is forced; and it makes nobody a voter who has not caught up. Raft's own rules
hold for forced changes too: what is acknowledged is not lost, but nothing is acknowledged until the majority is back.
"""

import asyncio
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any

from tidelog import faults
from tidelog.cluster import (
    CLUSTER_STREAM,
    CONFIG_ROLE,
    AssignReplicas,
    Command,
    Partition,
    RemoveNode,
    SetConfigNodes,
    SetDraining,
    placement,
)
from tidelog.cluster.planner import ROWS_MAX
from tidelog.raft import Action, Change, MemberView, Refusal, quorum_after
from tidelog.server.cluster_log import CommandRefusedError
from tidelog.server.leaders import members_of
from tidelog.server.peers import PeerCallError
from tidelog.server.refusals import error_of
from tidelog.server.replica import Replica
from tidelog.server.topics import until
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

CHANGE_MS = 10_000
SUBMIT_MS = 10_000
TRANSFER_MS = 3_000
BEHIND_ENTRIES_MAX = 256  # a member that lacks no more has caught up
LOOK_S = 0.05
CONFIG_SERVERS_MIN = 3  # with fewer, none may fail
CONFIG_SERVERS_MAX = 5  # more of them only make every change slower


class OperationError(PeerCallError):
    """What was asked for cannot be done; the message says why."""


# At a stream's leader


async def change_members(
    broker: "Broker",
    stream: int,
    add_learners: Sequence[int],
    promote: Sequence[int],
    remove: Sequence[int],
    *,
    force: bool = False,
) -> None:
    """Returns when the change is committed."""
    replica = _led_here(broker, stream)
    changes = [Change(Action.ADD_LEARNER, node) for node in add_learners]
    changes += [Change(Action.ADD_VOTER, node) for node in promote]
    changes += [Change(Action.REMOVE, node) for node in remove]
    _check_caught_up(broker, replica, promote)
    if not force:
        _check_quorum(broker, replica, changes)
    done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def finish(refusal: Refusal | None) -> None:
        if not done.done():
            done.set_result(refusal)

    if faults.ARMED:
        faults.hit("members.before-change")
    replica.change_members(changes, replica.now() + CHANGE_MS, finish)
    refusal = await done
    if faults.ARMED:
        faults.hit("members.after-change")
    if refusal is not None:
        raise OperationError(error_of(refusal), refusal.detail or refusal.reason.value)


def _check_caught_up(broker: "Broker", replica: Replica, promote: Sequence[int]) -> None:
    members = {member.node: member for member in members_of(broker, replica)}
    for node in promote:
        member = members.get(node)
        if member is None or not _caught_up(replica, member):
            raise OperationError(ErrorCode.NOT_ENOUGH_REPLICAS, f"node {node} has not caught up yet")


def _check_quorum(broker: "Broker", replica: Replica, changes: Sequence[Change]) -> None:
    healthy = {member.node for member in members_of(broker, replica) if broker.is_alive(member.node)}
    if not quorum_after(replica.group.configuration, changes, healthy):
        raise OperationError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"with only {sorted(healthy)} healthy, the change could leave stream {replica.stream} without a quorum",
        )


def _caught_up(replica: Replica, member: MemberView) -> bool:
    return replica.log.last_index - member.match <= BEHIND_ENTRIES_MAX


async def transfer_leader(broker: "Broker", stream: int, target: int) -> None:
    """Returns when somebody else leads, as far as this node can tell, or raises."""
    replica = _led_here(broker, stream)
    if target == broker.settings.node_id:
        return
    member = next((m for m in members_of(broker, replica) if m.node == target), None)
    if member is not None and not (member.accepting and broker.is_alive(target) and _caught_up(replica, member)):
        raise OperationError(
            ErrorCode.NOT_ENOUGH_REPLICAS, f"node {target} is away, its disk is full, or it has not caught up"
        )
    refusal = broker.node.transfer_leadership(stream, target)
    if refusal is not None:
        raise OperationError(error_of(refusal), refusal.detail or refusal.reason.value)
    if not await until_not_leading(replica, TRANSFER_MS):
        raise OperationError(ErrorCode.REQUEST_TIMED_OUT, f"node {target} did not take over stream {stream}")


async def until_not_leading(replica: Replica, timeout_ms: int) -> bool:
    return await until(replica, lambda: not replica.leads, timeout_ms)


def _led_here(broker: "Broker", stream: int) -> Replica:
    replica = broker.node.replicas.get(stream)
    if replica is None or not replica.ready:
        raise OperationError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this node does not lead stream {stream}")
    return replica


# At the controller


class Operations:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    async def transfer_leader(self, stream: int, target: int) -> dict[str, Any]:
        partition = self._partition(stream)
        voters = partition.voters or partition.initial
        if target not in voters:
            raise OperationError(
                ErrorCode.INVALID_REQUEST,
                f"node {target} is no voter of the stream; voters are {list(voters)}",
            )
        await self.ask_leader(stream, "hand-over", {"stream": stream, "target": target})
        return {}

    async def reassign(self, stream: int, replicas: Sequence[int], force: bool) -> dict[str, Any]:
        """Say which nodes shall hold the stream; the controller then moves it, step by step."""
        broker, partition = self._broker, self._partition(stream)
        self._check_nodes(replicas)
        if not replicas or len(set(replicas)) != len(replicas):
            raise OperationError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(replicas)} are not different nodes")
        unfit = sorted(set(replicas) - set(partition.replicas) - set(partition.members) - self._usable())
        if unfit:
            raise OperationError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"nodes {unfit} are being drained, or have no role `data`"
            )
        away = [node for node in replicas if not broker.is_alive(node)]
        if away and not force:
            raise OperationError(ErrorCode.NOT_ENOUGH_REPLICAS, f"nodes {away} are not there; --force does it anyway")
        if force:
            broker.controller_loop.force(stream, replicas)
        await self.submit(AssignReplicas([(stream, partition.replicas, tuple(replicas))]))
        return {}

    async def set_draining(self, node: int, draining: bool, force: bool) -> dict[str, Any]:
        """Move everything off a node, or take that back. By force also what no other node can take."""
        broker = self._broker
        self._check_nodes([node])
        held = [p for topic in broker.state.topics.values() for p in topic.partitions if node in p.replicas]
        others = self._usable() - {node}
        needed = max((len(partition.replicas) for partition in held), default=0)
        if draining and not force and len(others) < needed:
            raise OperationError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"without node {node} there are {len(others)} nodes for streams of {needed} replicas; "
                "--force leaves them with fewer",
            )
        await self.submit(SetDraining(node, draining))
        if draining and force:
            await self._shrink(held, node, others)
        return {"left": broker.state.uses(node)}

    async def _shrink(self, held: Sequence[Partition], node: int, others: Set[int]) -> None:
        """Have the streams do without the node in which no other one can take its place; but not without any.

        Each still lets go of it only when a majority of the others is healthy.
        """
        alive = {other for other in others if self._broker.is_alive(other)}
        stuck = [partition for partition in held if alive <= set(partition.replicas) and len(partition.replicas) > 1]
        for begin in range(0, len(stuck), ROWS_MAX):
            rows = [
                (partition.stream, partition.replicas, tuple(other for other in partition.replicas if other != node))
                for partition in stuck[begin : begin + ROWS_MAX]
            ]
            await self.submit(AssignReplicas(rows))

    async def remove_node(self, node: int, force: bool) -> dict[str, Any]:
        """Forget a node that nothing is left on. A config server stops being one first."""
        broker = self._broker
        self._check_nodes([node])
        if broker.state.uses(node):
            raise OperationError(
                ErrorCode.INVALID_REQUEST, f"node {node} still holds {broker.state.uses(node)} replicas: drain it first"
            )
        if node in broker.state.config_nodes:
            left = [other for other in broker.state.config_nodes if other != node]
            if not left:
                raise OperationError(ErrorCode.INVALID_REQUEST, f"node {node} is the last config server")
            await self.set_config_nodes(left, force)
        await self._until_without_vote(node)
        await self.submit(RemoveNode(node))
        return {}

    async def _until_without_vote(self, node: int) -> None:
        """A node ends when it hears that it was removed. The cluster's own group must not count on it then."""
        broker, replica = self._broker, self._broker.node.replicas[CLUSTER_STREAM]
        deadline_ms = broker.now() + CHANGE_MS
        while replica.leads and replica.group.committed_configuration[1].votes(node):
            if broker.now() > deadline_ms:
                raise OperationError(
                    ErrorCode.REQUEST_TIMED_OUT, f"node {node} still votes on the cluster's own log; try again later"
                )
            await asyncio.sleep(LOOK_S)
        if not replica.leads:  # it was this one's vote, most likely; the next controller goes on
            raise OperationError(ErrorCode.NOT_CONTROLLER, "another node is the controller now")

    async def set_config_nodes(self, nodes: Sequence[int], force: bool) -> dict[str, Any]:
        broker = self._broker
        self._check_nodes(nodes)
        before = broker.state.config_nodes
        unfit = [n for n in nodes if n not in before and CONFIG_ROLE not in broker.state.nodes[n].roles]
        if unfit:
            raise OperationError(ErrorCode.INVALID_REQUEST, f"nodes {unfit} have no role `config`")
        if len(nodes) > max(CONFIG_SERVERS_MAX, len(before)):
            raise OperationError(
                ErrorCode.INVALID_REQUEST, f"{len(nodes)} config servers; {CONFIG_SERVERS_MAX} are the most that help"
            )
        if not force and len(nodes) < min(CONFIG_SERVERS_MIN, len(before)):
            raise OperationError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"of {len(nodes)} config servers none may fail; --force does it anyway"
            )
        alive = [node for node in nodes if broker.is_alive(node)]
        if not force and len(alive) <= len(nodes) // 2:
            raise OperationError(ErrorCode.NOT_ENOUGH_REPLICAS, f"of {list(nodes)} only {alive} are there")
        if force:
            broker.controller_loop.force(CLUSTER_STREAM, nodes)
        await self.submit(SetConfigNodes(tuple(nodes)))
        return {}

    async def balance(self) -> dict[str, Any]:
        return await self._broker.controller_loop.balance()

    async def ask_leader(self, stream: int, method: str, content: dict[str, Any]) -> dict[str, Any]:
        """Have the leader of a stream do something."""
        leader = self._broker.leader_node(stream)
        if leader < 0:
            raise OperationError(ErrorCode.LEADER_NOT_AVAILABLE, f"stream {stream} has no leader now")
        return await self._broker.at_node(leader, method, content, CHANGE_MS + 1_000)

    async def submit(self, command: Command) -> None:
        try:
            _, applied = await self._broker.cluster.submit_here(command, SUBMIT_MS)
        except CommandRefusedError as error:
            raise OperationError(error_of(error.refusal), str(error)) from None
        if applied.rejection is not None:
            raise OperationError(ErrorCode.INVALID_REQUEST, applied.rejection.value)

    def _check_nodes(self, nodes: Sequence[int]) -> None:
        unknown = [node for node in nodes if node not in self._broker.state.nodes]
        if unknown:
            known = sorted(self._broker.state.nodes)
            raise OperationError(ErrorCode.INVALID_REQUEST, f"there is no node {unknown[0]}; there are {known}")

    def _usable(self) -> set[int]:
        """The nodes that replicas may be placed on."""
        return {node.node for node in placement.usable(self._broker.state.nodes.values())}

    def _partition(self, stream: int) -> Partition:
        found = self._broker.state.partition_of(stream)
        if found is None or stream == CLUSTER_STREAM:
            raise OperationError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {stream}")
        return found[0].partitions[found[1]]
