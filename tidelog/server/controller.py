"""The controller: the node that leads the cluster's own log watches over the cluster.

Every node runs this loop; only the controller's does anything. In each round it tells the planner (`cluster.planner`,
which decides) who is alive, and carries out what the planner says: commands for the cluster's log, changes of members
and of leaders for the streams' leaders. What fails is planned again later, by a planner that remembers to wait.
"""

import asyncio
import base64
import logging
import uuid
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from tidelog.cluster import CLUSTER_STREAM, FoundCluster
from tidelog.cluster.planner import (
    Action,
    ChangeMembers,
    Health,
    Planner,
    PlannerSettings,
    Submit,
    TransferLeader,
    balance,
)
from tidelog.server.operations import change_members
from tidelog.server.peers import PeerCallError

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

ROUND_S = 0.1
STABLE_MS = 2_000
ACTIONS_MAX = 64
MOVES_MAX = 16


class Controller:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        settings = broker.settings
        self._settings = PlannerSettings(
            replace_after_ms=settings.replica_replace_after_ms,
            stable_ms=STABLE_MS,
            leader_balance_ms=settings.leader_balance_ms,
            actions_max=ACTIONS_MAX,
            moves_max=MOVES_MAX,
        )
        self._planner = Planner(self._settings)
        self._alive: dict[int, int] = {}  # node -> since when
        self._dead: dict[int, int] = {}
        self._busy: set[int] = set()  # streams for which something is under way
        self._tasks: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._led = False

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        for task in (self._task, *self._tasks):
            if task is not None:
                task.cancel()

    def health(self) -> Health:
        return Health(dict(self._alive), dict(self._dead))

    def force(self, stream: int, replicas: Sequence[int]) -> None:
        """Skip the check that a majority stays healthy, while the stream is changed to be held by these nodes."""
        self._planner.force(stream, replicas)

    async def balance(self) -> dict[str, Any]:
        """Even out replicas and leaders now."""
        actions = balance(self._broker.state, self.health())
        self._carry_out(actions)
        transfers = sum(isinstance(action, TransferLeader) for action in actions)
        return {"transfers": transfers, "moves": len(actions) - transfers}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self._round()
            except Exception:
                log.exception("a round of the controller failed")

    async def _round(self) -> None:
        broker = self._broker
        replica = broker.node.replicas.get(CLUSTER_STREAM)
        if replica is None or not replica.ready:
            self._led = False
            return
        if not self._led:  # what an earlier term saw is too old
            self._led = True
            self._alive.clear()
            self._dead.clear()
            self._planner = Planner(self._settings)
        _, configuration = replica.group.committed_configuration
        self._watch(configuration.members, broker.now())
        if not broker.state.cluster_id:
            await self._found(sorted(replica.group.configuration.voters))
        elif broker.state.founded and not configuration.joint:
            group0 = (configuration.voters, configuration.learners)
            self._carry_out(
                self._planner.plan(broker.state, self.health(), group0, broker.now(), broker.settings.node_id)
            )

    async def _found(self, config_nodes: list[int]) -> None:
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")  # as Kafka writes it
        await self._submit(Submit(FoundCluster(cluster_id, tuple(config_nodes))))

    def _watch(self, members: frozenset[int], now_ms: int) -> None:
        """Members of the cluster's group are heard from all the time; of others there is only their connection."""
        broker = self._broker
        alive = {broker.settings.node_id} | broker.node.nodes_alive | (broker.peers.connected - members)
        for node in self._broker.state.nodes:
            if node in alive:
                self._dead.pop(node, None)
                self._alive.setdefault(node, now_ms)
            else:
                self._alive.pop(node, None)
                self._dead.setdefault(node, now_ms)

    # Carrying out

    def _carry_out(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Submit):
                self._spawn(self._submit(action), None)
            elif action.stream not in self._busy:
                self._spawn(self._ask(action), action.stream)

    def _spawn(self, doing: Coroutine[Any, Any, None], stream: int | None) -> None:
        if stream is not None:
            self._busy.add(stream)
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)

        def done(finished: asyncio.Task[None]) -> None:
            self._tasks.discard(finished)
            if stream is not None:
                self._busy.discard(stream)

        task.add_done_callback(done)

    async def _submit(self, action: Submit) -> None:
        try:
            await self._broker.operations.submit(action.command)
        except PeerCallError as error:
            log.info("%s came to nothing: %s", type(action.command).__name__, error.message)

    async def _ask(self, action: ChangeMembers | TransferLeader) -> None:
        operations = self._broker.operations
        try:
            if isinstance(action, TransferLeader):
                content = {"stream": action.stream, "target": action.target}
                await operations.ask_leader(action.stream, "hand-over", content)
            elif action.stream == CLUSTER_STREAM:
                await change_members(
                    self._broker,
                    CLUSTER_STREAM,
                    action.add_learners,
                    action.promote,
                    action.remove,
                    force=action.force,
                )
            else:
                content = {
                    "stream": action.stream,
                    "add_learners": action.add_learners,
                    "promote": action.promote,
                    "remove": action.remove,
                    "force": action.force,
                }
                await operations.ask_leader(action.stream, "change-members", content)
        except PeerCallError as error:
            log.info("%s came to nothing: %s", action, error.message)
