"""One node as its clients see it: the engine, the cluster's state, and everything requests need to be answered.

Requests come from connections (`begin`). Produce and Fetch have classes of their own, because they wait and carry
memory; all others are functions from a request to an answer (`handlers`), which may be coroutines.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from tidelog.cluster import (
    CLUSTER_STREAM,
    AlterNodeConfigs,
    Applied,
    ClusterState,
    Command,
    RegisterNode,
    RemoveNode,
    Snapshot,
    Topic,
    TopicConfig,
    encode_command,
)
from tidelog.raft import Reason, Refusal
from tidelog.server.admission import enter, watch
from tidelog.server.assigned import AssignedStreams
from tidelog.server.background import run_in_background
from tidelog.server.clock import now_ms
from tidelog.server.cluster_log import ClusterLog, CommandRefusedError
from tidelog.server.connection import Connection, Exchange
from tidelog.server.controller import Controller
from tidelog.server.coordinators import TOPIC as OFFSETS_TOPIC
from tidelog.server.coordinators import Coordinators
from tidelog.server.fetch import Fetch
from tidelog.server.framing import PRODUCE
from tidelog.server.handlers import HANDLERS, Call
from tidelog.server.handlers.producers import ProducerIds
from tidelog.server.leaders import NOBODY, successor_of
from tidelog.server.leaders import leader_of as newest_leader
from tidelog.server.memory import COPIED_BYTES_MAX, BufferPool, Inlet
from tidelog.server.node import Node
from tidelog.server.operations import Operations
from tidelog.server.peer_calls import answer as answer_call
from tidelog.server.peers import Hello, PeerCallError, Peers
from tidelog.server.produce import Produce
from tidelog.server.quotas import Quotas, TokenBucket
from tidelog.server.relief import Relief
from tidelog.server.replica import Replica
from tidelog.server.reporter import Reporter
from tidelog.server.retention import Retention
from tidelog.server.settings import Settings
from tidelog.server.tiering import Tiering
from tidelog.server.topics import Load, until
from tidelog.server.under_way import UnderWay
from tidelog.storage import Disk, StorageError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import UnsupportedVersionError, decode_request, encode_response
from tidelog.wire.messages import FetchRequest

log = logging.getLogger(__name__)

API_VERSIONS = 18
SAY_UNFOUNDED_MS = 10_000
READER_THREADS = 4
EARLY_STREAMS = 100  # elect their leaders while the cluster's log elects its own; more of them would hold that up
CARRIED_A_STEP = 50  # streams taken up before others get the loop
HAND_OVER_MS_MAX = 1_500
LOAD_COUNTED_MS = 1_000
CONTROLLER_RETRY_S = 0.05
DRAIN_S_MAX = 5.0  # how long a stopping node waits for what is being written


class Broker:
    def __init__(self, settings: Settings, disk: Disk, failed: Callable[[BaseException], None]) -> None:
        self.settings = settings
        self.topic_defaults = settings.topic_defaults
        self.node = Node(settings, disk, failed)
        self.after_turn = self.node.after_turn
        self.under_way = UnderWay(settings)
        # Batches in the tail cache lie where they arrived, and a chunk is free again when its last one has left.
        self.pool = BufferPool(settings.memory_receive_bytes + 2 * settings.storage_tail_cache_bytes)
        self.inlet = Inlet(self.pool)
        self.readers = ThreadPoolExecutor(READER_THREADS, "tidelog-reader")
        self.connections: set[Connection] = set()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        now = now_ms()
        self.quotas = Quotas(TokenBucket(0, now), TokenBucket(0, now), TokenBucket(0, now))
        self._found: dict[tuple[str | UUID, int], Replica] = {}
        """What `leader_of` found, until the cluster's state changes."""
        self._serving = False
        self._watch: asyncio.Task[None] | None = None
        self.cluster = ClusterLog(self._applied, self._submit_elsewhere)
        receive, lost = self.node.receive, self.node.unreachable
        self.peers = Peers(settings.node_id, self._hello, self._trusts, receive, lost, self._called, self.pool)
        self.node.send = self.peers.send
        self.operations = Operations(self)
        self.controller_loop = Controller(self)
        self._reporter = Reporter(self)
        self.node.on_led = self._reporter.touched
        self.tiering = Tiering(self) if settings.remote_log_storage_system_enable else None
        self.retention = Retention(self)
        self._relief = Relief(self)
        self.assigned = AssignedStreams(self)
        self._load = Load((), 0)
        self.producer_ids = ProducerIds()
        self.coordinators = Coordinators(self)

    @property
    def state(self) -> ClusterState:
        return self.cluster.machine.state

    @property
    def controller(self) -> int:
        """The node that carries out changes to the cluster; -1 when none is known."""
        replica = self.node.replicas.get(CLUSTER_STREAM)
        return -1 if replica is None or replica.group.leader is None else replica.group.leader

    def is_alive(self, node: int) -> bool:
        """Whether this node hears from another one."""
        return node == self.settings.node_id or node in self.node.nodes_alive

    def leader_node(self, stream: int) -> int:
        """Who leads a stream, as far as this node knows; -1 when it does not."""
        if stream == CLUSTER_STREAM:
            return self.controller
        found = self.state.partition_of(stream)
        return NOBODY if found is None else newest_leader(self, found[0].partitions[found[1]])[0]

    def now(self) -> int:
        return now_ms()

    # Beginning and end

    async def start(self, host: str, port: int, listening: socket.socket | None = None) -> None:
        """Come to the other nodes, take part in the streams that are here, and be registered.

        `host` and `port` are where clients reach this node; `listening` is a socket for other nodes, if there is one.
        """
        settings = self.settings
        peer_host = settings.peer_host or settings.host
        own = settings.config_servers.get(settings.node_id)
        peer_port = await self.peers.open(peer_host, settings.peer_port or (own[1] if own else 0), listening)
        self._find_peers()
        here = self.node.streams_on_disk
        if CLUSTER_STREAM in here:
            here.remove(CLUSTER_STREAM)
            self.cluster.attach(self.node.carry(CLUSTER_STREAM, TopicConfig.of({})))
        for stream in here[:EARLY_STREAMS]:
            self.node.carry(stream, TopicConfig.of({}))
        self.controller_loop.start()
        registration = RegisterNode(
            settings.node_id, host, port, settings.rack or None, _reachable(peer_host, host), peer_port,
            settings.role_names, self.node.directory_id,
        )  # fmt: skip
        await enter(self, registration)
        self._check_disk()
        self._check_tiers()
        for number, stream in enumerate(here[EARLY_STREAMS:]):
            self.node.carry(stream, TopicConfig.of({}))
            if number % CARRIED_A_STEP == 0:
                await asyncio.sleep(0)
        self._serving = True
        self._settle_all()
        self._reporter.start()
        self._watch = run_in_background(watch(self, registration), self.node.fail)
        self.retention.start()
        if self.tiering is not None:
            self.tiering.start()
        self._relief.start()
        await self._until_founded()

    def follow_cluster(self, voters: Sequence[int], configuration_index: int = 0) -> None:
        """Begin the cluster's own log, as one of its first voters or as one who is about to learn it from them."""
        replica = self.node.begin(CLUSTER_STREAM, voters, TopicConfig.of({}), configuration_index=configuration_index)
        self.cluster.attach(replica)

    def _check_disk(self) -> None:
        known = self.state.nodes[self.settings.node_id].directory
        if known != self.node.directory_id:
            raise StorageError(
                f"node {self.settings.node_id} has another disk now ({known}); this one ({self.node.directory_id}) "
                "was replaced: give it an empty folder"
            )

    def _check_tiers(self) -> None:
        """Without a store, what only the store holds could not be read."""
        if self.tiering is not None:
            return
        for topic in self.state.topics.values():
            config = TopicConfig.of(topic.configs)
            if config.remote or config.attached:
                raise StorageError(
                    f"topic {topic.name} is {'attached' if config.attached else 'tiered'}: set "
                    "remote.log.storage.system.enable and remote.log.store.url, or take remote.storage.enable back "
                    "from all topics, and delete those that are attached, first"
                )

    async def _until_founded(self) -> None:
        replica = self.node.replicas[CLUSTER_STREAM]
        while not await until(replica, lambda: self.state.founded, SAY_UNFOUNDED_MS):
            missing = sorted(set(self.state.config_nodes) - set(self.state.nodes))
            log.warning("the cluster is not founded yet: config servers %s have not registered", missing)

    async def stop(self) -> None:
        """Hand over what is led here, answer what is being written, let go of all clients, and close the log."""
        if not self.node.failed:
            await self._hand_over()
        if not self.node.failed:
            await self.under_way.until_produced(DRAIN_S_MAX)
        self.leave()

    def leave(self) -> None:
        """Let go of all clients and nodes, and close the log."""
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        self.controller_loop.close()
        self._reporter.close()
        if self._watch is not None:
            self._watch.cancel()
        self.retention.close()
        if self.tiering is not None:
            self.tiering.close()
        self._relief.close()
        self.assigned.close()
        self.coordinators.close()
        self.peers.close()
        self.node.stop()
        self.readers.shutdown()

    async def _hand_over(self) -> None:
        """Have others lead what this node leads, so that clients need not wait for an election."""
        led = [replica for replica in self.node.replicas.values() if replica.ready]
        asked: list[Replica] = []
        for replica in led:
            successor = successor_of(self, replica)
            if successor is not None and self.node.transfer_leadership(replica.stream, successor) is None:
                asked.append(replica)
        deadline_ms = now_ms() + HAND_OVER_MS_MAX
        for replica in asked:
            await until(replica, lambda replica=replica: not replica.leads, deadline_ms - now_ms())

    # Other nodes

    def _hello(self) -> Hello:
        return Hello(self.settings.node_id, self.node.incarnation, self.node.cluster_id, self.node.directory_id)

    def _trusts(self, hello: Hello) -> bool:
        """Whether a node takes part with the disk it is known by. Before it is registered, it has nothing to say."""
        known = self.state.nodes.get(hello.node)
        return known is None or not known.directory or known.directory == hello.directory

    async def _called(self, _node: int, method: str, content: dict[str, Any]) -> dict[str, Any]:
        return await answer_call(self, method, content)

    async def at_node(self, node: int, method: str, content: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Have a node, which may be this one, answer a call. Raises PeerCallError."""
        if node == self.settings.node_id:
            return await answer_call(self, method, content)
        return await self.peers.call(node, method, content, timeout_ms)

    async def at_controller(self, method: str, content: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        """Have the controller answer a call. Waits for there to be one; raises PeerCallError."""
        deadline_ms = now_ms() + timeout_ms
        replica = self.node.replicas.get(CLUSTER_STREAM)
        while replica is not None:
            left_ms = deadline_ms - now_ms()
            if not await until(replica, lambda: self._knows_controller(replica), left_ms):
                break
            try:
                return await self.at_node(self.controller, method, content, max(1, left_ms))
            except PeerCallError as error:  # with these nothing was done: it is just not the controller any more
                if error.code not in (ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE):
                    raise
            await asyncio.sleep(CONTROLLER_RETRY_S)
        raise PeerCallError(ErrorCode.NOT_CONTROLLER, "the cluster has no controller now")

    @staticmethod
    def _knows_controller(replica: Replica) -> bool:
        return replica.ready if replica.leads else replica.group.leader is not None

    async def _submit_elsewhere(self, command: Command, timeout_ms: int) -> int:
        content = {"command": encode_command(command).decode(), "timeout_ms": timeout_ms}
        try:
            return (await self.at_controller("submit", content, timeout_ms))["offset"]
        except PeerCallError as error:
            timed_out = error.code is ErrorCode.REQUEST_TIMED_OUT
            reason = Reason.TIMED_OUT if timed_out else Reason.NOT_LEADER
            raise CommandRefusedError(Refusal(reason, detail=error.message)) from None

    def _find_peers(self) -> None:
        """Where the other nodes are: as the settings say, else as they registered."""
        known = {n.node: (n.peer_host, n.peer_port) for n in self.state.nodes.values() if n.peer_port}
        self.peers.set_addresses(known | self.settings.config_servers)

    # The cluster's state, as it changes

    def _applied(self, command: Command, applied: Applied) -> None:
        self._found.clear()
        if self.state.cluster_id != self.node.cluster_id:
            self.node.remember_cluster(self.state.cluster_id)
        if isinstance(command, RegisterNode | RemoveNode | Snapshot):
            self._find_peers()
            if self._serving and self.settings.node_id not in self.state.nodes:
                self.node.fail(StorageError("it was removed from the cluster; nothing is left on it"))
        if not self._serving:
            return  # replaying; `start` settles what is there in the end
        if isinstance(command, Snapshot):
            self._settle_all()
            return
        for partition in applied.deleted:
            self.node.drop(partition.stream)
        if applied.topic is not None:
            if applied.topic.id in self.state.topics_by_id:
                self.assigned.settle(applied.topic, applied.topic.partitions)
                self.coordinators.carried()
            else:
                self.coordinators.topic_deleted(applied.topic.name)
                if self.tiering is not None:
                    self.tiering.topic_deleted()
        for partition in applied.changed:
            found = self.state.partition_of(partition.stream)
            if found is not None:
                self.assigned.settle(found[0], (partition,))
                if found[0].name == OFFSETS_TOPIC:
                    self.coordinators.carried()
        if isinstance(command, AlterNodeConfigs):
            self._set_quotas()

    def _settle_all(self) -> None:
        self.assigned.settle_all()
        self.coordinators.carried()
        self._set_quotas()

    def load(self) -> Load:
        """Counted anew once in a while: each time would cost too much when many topics are made."""
        if now_ms() - self._load.counted_ms > LOAD_COUNTED_MS:
            self._load = Load(self.state.topics.values(), now_ms())
        return self._load

    def live(self) -> Settings:
        """The settings with what was changed at run time."""
        changed = self.state.node_configs
        texts = {**changed.get("", {}), **changed.get(str(self.settings.node_id), {})}
        return self.settings.changed(texts) if texts else self.settings

    def _set_quotas(self) -> None:
        settings, now = self.live(), now_ms()
        self.quotas.write.set_rate(settings.quota_write_bytes_per_second, now)
        self.quotas.tail_read.set_rate(settings.quota_tail_read_bytes_per_second, now)
        self.quotas.catch_up_read.set_rate(settings.quota_catch_up_read_bytes_per_second, now)
        if self.tiering is not None:
            self.tiering.set_bounds(settings)

    # Finding streams

    def topic_of(self, name: str | UUID) -> Topic | None:
        return self.state.topics.get(name) if isinstance(name, str) else self.state.topics_by_id.get(name)

    def config_of(self, topic: Topic) -> TopicConfig:
        """A topic's settings, with this node's for what it leaves open; our own topics leave nothing open."""
        return TopicConfig.of(topic.configs if topic.internal else {**self.topic_defaults, **topic.configs})

    def replica_of(self, name: str | UUID, partition: int) -> Replica | ErrorCode:
        topic = self.topic_of(name)
        if topic is None:
            by_name = isinstance(name, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        if not 0 <= partition < len(topic.partitions):
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return self.node.replicas.get(topic.partitions[partition].stream, ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def leader_of(self, name: str | UUID, partition: int) -> Replica | ErrorCode:
        """The stream's replica here, if it leads and knows all that was committed before its term."""
        replica = self._found.get((name, partition))
        if replica is None:
            found = self.replica_of(name, partition)
            if isinstance(found, ErrorCode):
                return found
            replica = self._found[name, partition] = found
        return replica if replica.ready else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # Requests

    def opened(self, connection: Connection) -> bool:
        if len(self.connections) >= self.settings.connections_max:
            return False
        self.connections.add(connection)
        return True

    def closed(self, connection: Connection) -> None:
        self.connections.discard(connection)

    def begin(self, exchange: Exchange, frame: memoryview) -> bool:
        if exchange.api_key == PRODUCE:
            copied = len(frame) <= COPIED_BYTES_MAX
            Produce(self, exchange, memoryview(bytearray(frame)) if copied else frame)
            return not copied
        try:
            header, request = decode_request(frame)
        except UnsupportedVersionError as error:
            if error.header.api_key != API_VERSIONS:
                raise
            header, request = error.header, None
        exchange.connection.client_id = header.client_id
        if isinstance(request, FetchRequest):
            Fetch(self, exchange, request)
            return False
        call = Call(self, header, request, exchange)
        try:
            answer = HANDLERS[exchange.api_key](call)
            if not asyncio.iscoroutine(answer):
                exchange.answer(encode_response(call.header, answer))
                return False
        except Exception:
            log.exception("request failed %s", header)
            self._give_up(call)
            return False
        task = self._loop.create_task(self._finish(call, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: answer.close())  # it may never have begun
        return False

    async def _finish(self, call: Call, answering: Coroutine[Any, Any, object]) -> None:
        try:
            buffers = encode_response(call.header, await answering)
        except asyncio.CancelledError:
            call.exchange.answer(())
            raise
        except Exception:
            log.exception("request failed %s", call.header)
            self._give_up(call)
        else:
            call.exchange.answer(buffers)

    @staticmethod
    def _give_up(call: Call) -> None:
        """A handler failed: a fault of ours. The client must not wait for an answer that never comes."""
        call.exchange.connection.abort("the request failed inside the server")
        call.exchange.answer(())


def _reachable(peer_host: str, host: str) -> str:
    """Where other nodes reach this one: an address that means "all interfaces" is no use to them."""
    return host if peer_host in ("0.0.0.0", "::") else peer_host
