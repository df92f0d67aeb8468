"""One node as its clients see it: the engine, the cluster's state, and everything requests need to be answered.

Requests come from connections (`begin`). Produce and Fetch have classes of their own, because they wait and carry
memory; all others are functions from a request to an answer (`handlers`), which may be coroutines.
"""

import asyncio
import base64
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

from tidelog.cluster import (
    CLUSTER_STREAM,
    Applied,
    ClusterState,
    Command,
    FoundCluster,
    RegisterNode,
    Topic,
    TopicConfig,
)
from tidelog.server.clock import now_ms
from tidelog.server.cluster_log import ClusterLog
from tidelog.server.connection import Connection, Exchange
from tidelog.server.coordinators import Coordinators
from tidelog.server.fetch import Fetch
from tidelog.server.framing import PRODUCE
from tidelog.server.handlers import HANDLERS, Call
from tidelog.server.handlers.producers import ProducerIds
from tidelog.server.memory import BufferPool, Inlet
from tidelog.server.node import Node
from tidelog.server.produce import Produce
from tidelog.server.quotas import Quotas, TokenBucket
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.server.topics import until
from tidelog.storage import Disk
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import UnsupportedVersionError, decode_request, encode_response
from tidelog.wire.messages import FetchRequest

log = logging.getLogger(__name__)

API_VERSIONS = 18
START_TIMEOUT_MS = 60_000
READER_THREADS = 4
FETCH_BYTES_MIN = 64 << 10  # of an answer when memory is short
DRAIN_S_MAX = 5.0  # how long a stopping node waits for what is being written


class Broker:
    def __init__(self, settings: Settings, disk: Disk, failed: Callable[[BaseException], None]) -> None:
        self.settings = settings
        self.node = Node(settings, disk, failed)
        # Batches in the tail cache lie where they arrived, and a chunk is free again when its last one has left.
        self.pool = BufferPool(settings.memory_receive_bytes + 2 * settings.storage_tail_cache_bytes)
        self.inlet = Inlet(self.pool)
        self.readers = ThreadPoolExecutor(READER_THREADS, "tidelog-reader")
        self.connections: set[Connection] = set()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._produce_bytes = 0
        self._drained: asyncio.Future[None] | None = None
        self._produce_queue: dict[Connection, None] = {}
        self._fetch_pool = BufferPool(settings.memory_fetch_bytes)
        self._fetch_bytes = 0
        now = now_ms()
        self.quotas = Quotas(TokenBucket(0, now), TokenBucket(0, now), TokenBucket(0, now))
        self._found: dict[tuple[str | UUID, int], Replica] = {}
        """What `leader_of` found, until the cluster's state changes."""
        self._serving = False
        lone = (settings.node_id,)
        self.cluster = ClusterLog(self.node.carry(CLUSTER_STREAM, lone, TopicConfig.of({})), self._applied)
        self.producer_ids = ProducerIds()
        self.coordinators = Coordinators(self)

    @property
    def state(self) -> ClusterState:
        return self.cluster.machine.state

    @property
    def controller(self) -> int:
        """The node that carries out changes to the cluster; -1 when none is known."""
        leader = self.node.replicas[CLUSTER_STREAM].group.leader
        return -1 if leader is None else leader

    def now(self) -> int:
        return now_ms()

    # Beginning and end

    async def start(self, host: str, port: int) -> None:
        """Take up the cluster's state, tell it where this node is, and carry the streams it has here."""
        replica = self.node.replicas[CLUSTER_STREAM]
        if not await until(replica, lambda: replica.ready, START_TIMEOUT_MS):
            raise TimeoutError(f"the cluster's own log has no leader after {START_TIMEOUT_MS // 1000} s")
        for topic in list(self.state.topics.values()):
            self._carry(topic)
        wanted = {partition.stream for topic in self.state.topics.values() for partition in topic.partitions}
        self.coordinators.carried()
        for stream in self.node.streams_on_disk:
            if stream != CLUSTER_STREAM and stream not in wanted:
                self.node.drop(stream)  # deleted while this node was away
        self._serving = True
        self._set_quotas()
        await self.cluster.submit(FoundCluster(_short(uuid.uuid4())), START_TIMEOUT_MS)
        rack = self.settings.rack or None
        await self.cluster.submit(RegisterNode(self.settings.node_id, host, port, rack), START_TIMEOUT_MS)

    async def stop(self) -> None:
        """Answer what is being written, let go of all clients, and close the log."""
        if self._produce_bytes and not self.node.failed:
            self._drained = self._loop.create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained, DRAIN_S_MAX)
        for task in list(self._tasks):
            task.cancel()
        for connection in list(self.connections):
            connection.close()
        self.coordinators.close()
        self.node.stop()
        self.readers.shutdown()

    # The cluster's state, as it changes

    def _applied(self, _command: Command, applied: Applied) -> None:
        self._found.clear()
        if not self._serving:
            return  # replaying; `start` carries what is there in the end
        for partition in applied.deleted:
            self.node.drop(partition.stream)
        if applied.topic is not None:
            if applied.topic.id in self.state.topics_by_id:
                self._carry(applied.topic)
                self.coordinators.carried()
            else:
                self.coordinators.topic_deleted(applied.topic.name)
        self._set_quotas()

    def _carry(self, topic: Topic) -> None:
        """Have the topic's streams that belong here, with its settings."""
        config = TopicConfig.of(topic.configs)
        for partition in topic.partitions:
            replica = self.node.replicas.get(partition.stream)
            if replica is None and self.settings.node_id in partition.replicas:
                replica = self.node.carry(partition.stream, partition.replicas, config)
            if replica is not None:
                replica.config, replica.internal = config, topic.internal

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

    # Finding streams

    def topic_of(self, name: str | UUID) -> Topic | None:
        return self.state.topics.get(name) if isinstance(name, str) else self.state.topics_by_id.get(name)

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

    # Bounds

    def may_produce(self, connection: Connection) -> bool:
        if self._produce_bytes < self.settings.memory_produce_bytes:
            return True
        self._produce_queue[connection] = None
        return False

    def produce_begun(self, size: int) -> None:
        self._produce_bytes += size

    def produce_ended(self, size: int) -> None:
        self._produce_bytes -= size
        if not self._produce_bytes and self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._produce_queue and self._produce_bytes < self.settings.memory_produce_bytes:
            waiting, self._produce_queue = self._produce_queue, {}
            for connection in waiting:
                self._loop.call_soon(connection.go_on)

    def fetch_allowance(self) -> int:
        """Bytes that one more answer may have: less and less as memory gets short, but never nothing."""
        left = self.settings.memory_fetch_bytes - self._fetch_bytes
        return max(FETCH_BYTES_MIN, min(self.settings.fetch_bytes_max, left // 4))

    def fetch_begun(self, size: int) -> None:
        self._fetch_bytes += size

    def fetch_ended(self, size: int) -> None:
        self._fetch_bytes -= size

    def fetch_memory(self, size: int) -> memoryview:
        buffer = self._fetch_pool.take(size)
        return memoryview(buffer if buffer is not None else bytearray(size))[:size]

    def release_memory(self, bytes_kept: int) -> None:
        """Give memory that nobody uses back to the system."""
        self.pool.release_unused(bytes_kept)
        self._fetch_pool.release_unused(bytes_kept)

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
            Produce(self, exchange, frame)
            return True
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


def _short(identity: UUID) -> str:
    """Kafka's way to write a cluster's id: URL-safe base64 of 16 bytes, without padding."""
    return base64.urlsafe_b64encode(identity.bytes).decode().rstrip("=")
