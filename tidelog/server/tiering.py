"""The remote log manager: everything about tiers on one node.

Streams that this node leads are visited (`tier_streams`) every `remote.log.manager.task.interval.ms`, and soon after
they have closed a segment, as many at a time as may be copied at once. A visit that fails is tried again at the next
one, and said once. Attached streams are visited too, to follow their owner (`tier_mirror`). Reads go through
`remote_reads`. The controller's node also removes what deleted topics have left (`tier_care`).

What is not finished in the store does not leave the disk. When local retention would want it to, because copying is
behind, that is an alarm: `overdue_bytes`, in the log and in `tidelog tier status`.
"""

import asyncio
import functools
import logging
import os
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidelog.cluster import AddPartitions, Partition, Topic, TopicConfig
from tidelog.server.background import run_in_background
from tidelog.server.clock import wall_ms
from tidelog.server.memory import keep_freed
from tidelog.server.remote_reads import RemoteRead, RemoteReads
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.server.tier_care import DeletedTopics
from tidelog.server.tier_metadata import RECORD_MS, NotLeaderError
from tidelog.server.tier_mirror import MirroredStream
from tidelog.server.tier_streams import TierStream, bounds_of
from tidelog.server.topics import TopicError, check_room, place, submit
from tidelog.storage import StorageError
from tidelog.tier.errors import TierError
from tidelog.tier.layout import CHUNK_BYTES, StreamPlace
from tidelog.tier.metrics import Sample, TierMetrics, lags_of
from tidelog.tier.quota import ByteRate
from tidelog.tier.retention import overdue_bytes
from tidelog.tier.sealing import KeyRing
from tidelog.tier.store import Patience, open_store, parse_options
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

NICENESS = 10  # of the threads: the loop gets about ten times their share of a core
FREED_BYTES_MAX = 64 << 20
THREADS = 4
READ_THREADS = 3  # of their own: who reads does not wait for what is copied
LOOK_MS = 1_000
STREAMS_A_STEP = 50  # looked at before others get the loop
PAUSE_MS_MAX = 500  # then the quota is asked again
PAUSES_MAX = 120  # a minute for one piece: a quota that is far too small slows everything, and stops nothing
OVERDUE_SEGMENTS = 2  # so much behind local retention is no alarm

T = TypeVar("T")


@dataclass(slots=True)
class _Seen:
    """What the last look at a stream found."""

    segments: int = 0
    visited_ms: int = -(1 << 60)
    copied_until: int = 0


def _step_back() -> None:
    """In a thread of the tiers: the loop, where records are produced and the tail is read, comes first."""
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


class Tiering:
    def __init__(self, broker: "Broker") -> None:
        settings = broker.settings
        self._broker = broker
        self.node = settings.node_id
        self.compress = settings.remote_log_compress
        keep_freed(FREED_BYTES_MAX, CHUNK_BYTES)
        self.executor = ThreadPoolExecutor(THREADS, "tidelog-tier", _step_back)
        self._read_executor = ThreadPoolExecutor(READ_THREADS, "tidelog-tier-read", _step_back)
        try:
            self.ring = KeyRing.load(settings.remote_log_key_ring) if settings.remote_log_key_ring else None
            options = parse_options(settings.remote_log_store_options)
            self.store = open_store(settings.remote_log_store_url, options, Patience(), random.Random())
        except TierError as error:
            raise StorageError(f"the object store: {error}") from None
        self.metrics = TierMetrics()
        self.reads = RemoteReads(broker, self.store, self.ring, self._read_executor, self.metrics)
        self._copy_rate = ByteRate(settings.remote_log_manager_copy_max_bytes_per_second, broker.now())
        self._wait_ms = settings.remote_fetch_max_wait_ms
        self._streams: dict[int, TierStream | MirroredStream] = {}
        self._visits: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(settings.remote_log_manager_copier_thread_pool_size)
        self._seen: dict[int, _Seen] = {}
        self._said: dict[int, str] = {}
        self._overdue: set[int] = set()  # streams that were warned about
        self._task: asyncio.Task[None] | None = None
        self._garbage = asyncio.Event()
        self._garbage_task: asyncio.Task[None] | None = None
        self._deleted_topics = DeletedTopics(broker, self.store)

    def start(self) -> None:
        self._task = run_in_background(self._run(), self._broker.node.fail)
        self._garbage_task = run_in_background(self._collect(), self._broker.node.fail)

    def close(self) -> None:
        for task in (self._task, self._garbage_task, *self._visits.values()):
            if task is not None:
                task.cancel()
        self.reads.close()
        for executor in (self.executor, self._read_executor):
            executor.shutdown(wait=False, cancel_futures=True)

    def set_bounds(self, settings: Settings) -> None:
        """Those that may change while the node runs."""
        now_ms = self._broker.now()
        self._copy_rate.set_rate(settings.remote_log_manager_copy_max_bytes_per_second, now_ms)
        self.reads.rate.set_rate(settings.remote_log_manager_fetch_max_bytes_per_second, now_ms)
        self.reads.chunks.set_budget(settings.remote_log_chunk_cache_total_size_bytes)
        self.reads.indexes.set_budget(settings.remote_log_index_file_cache_total_size_bytes)
        self._wait_ms = settings.remote_fetch_max_wait_ms

    @property
    def entry_bytes_max(self) -> int:
        """What fits into the log as one entry, with room to spare."""
        return self._broker.settings.storage_segment_bytes // 2

    @property
    def producer_expiration_ms(self) -> int:
        return self._broker.settings.producer_id_expiration_ms

    @property
    def cluster_id(self) -> str:
        return self._broker.state.cluster_id

    @property
    def wait_ms(self) -> int:
        """How long a fetch waits for the store."""
        return self._wait_ms

    # Reading

    def begin_read(
        self, replica: Replica, offset: int, bytes_max: int, wake: Callable[[], None], *, first: bool
    ) -> RemoteRead | None:
        """None while the fetch quota is used up, or the topic is being deleted."""
        place = self.place_of(replica)
        return None if place is None else self.reads.begin(replica, place, offset, bytes_max, wake, first=first)

    async def first_at_time(self, replica: Replica, timestamp: int) -> tuple[int, int] | None:
        """(offset, time) of the first record at or after a time, if it is not on this disk. Raises TierError."""
        place = self.place_of(replica)
        return None if place is None else await self.reads.first_at_time(replica, place, timestamp)

    def expired(self, replica: Replica, **counted: int) -> None:
        """The store took too long for a request, which did not wait for it any longer."""
        topic = self.topic_of(replica)
        if topic is not None:
            self.metrics.count(topic.name, **counted)

    # Streams

    def topic_of(self, replica: Replica) -> Topic | None:
        found = self._broker.state.partition_of(replica.stream)
        return None if found is None else found[0]

    def partition_of(self, replica: Replica) -> Partition | None:
        found = self._broker.state.partition_of(replica.stream)
        return None if found is None else found[0].partitions[found[1]]

    def place_of(self, replica: Replica) -> StreamPlace | None:
        found = self._broker.state.partition_of(replica.stream)
        return None if found is None else place_in_store(*found)

    async def add_partitions(self, topic: Topic, count: int) -> None:
        """Have an attached topic have as many as its owner's. Raises TierError when it cannot.

        When another node has been faster, nothing happens: what is asked for counts from the partitions known here.
        """
        broker, before = self._broker, len(topic.partitions)
        allowed = broker.settings.topic_partitions_max
        if count > allowed:
            raise TierError(f"the owner of {topic.name} has {count} partitions, topic.partitions.max allows {allowed}")
        try:
            replicas = place(broker, count - before, len(topic.partitions[0].replicas))
            check_room(broker, len(replicas))
            command = AddPartitions(topic.id, before, [list(nodes) for nodes in replicas])
            await submit(broker, command, broker.now() + RECORD_MS)
        except TopicError as error:
            if error.code is not ErrorCode.INVALID_PARTITIONS:
                raise TierError(f"partitions cannot be added to {topic.name}: {error}") from None

    def hurry(self, replica: Replica) -> None:
        """Have a stream visited at the next look."""
        self._seen.pop(replica.stream, None)

    def begin_anew(self, replica: Replica) -> None:
        """Have a stream visited as if it had just come to be led here: its manifest is then written."""
        self._streams.pop(replica.stream, None)
        self.hurry(replica)

    async def pause_copy(self, size: int) -> int:
        """Wait as the quota demands, and as it is changed meanwhile; gives the milliseconds that it took.

        Those who put allow a part to take its time.
        """
        began_ms = self._broker.now()
        wait_ms = self._copy_rate.charge(size, began_ms)
        for _ in range(PAUSES_MAX):
            if not wait_ms:
                break
            await asyncio.sleep(min(wait_ms, PAUSE_MS_MAX) / 1000)
            wait_ms = self._copy_rate.wait_ms(self._broker.now())
        return self._broker.now() - began_ms

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, functools.partial(function, *arguments))

    async def _run(self) -> None:
        interval_ms = self._broker.settings.remote_log_manager_task_interval_ms
        while True:
            await asyncio.sleep(min(interval_ms, LOOK_MS) / 1000)
            for number, replica in enumerate(list(self._broker.node.replicas.values())):
                if number % STREAMS_A_STEP == 0:
                    await asyncio.sleep(0)
                self._look(replica, interval_ms)
            for stream in self._seen.keys() - self._broker.node.replicas.keys():  # no longer here
                del self._seen[stream]
                self._streams.pop(stream, None)
            self.metrics.keep(self._broker.state.topics)

    def _look(self, replica: Replica, interval_ms: int) -> None:
        """Visit a stream when it is due, or has closed a segment; let go of what was copied since the last look."""
        seen = self._seen.setdefault(replica.stream, _Seen())
        if replica.remote.copied_until != seen.copied_until:
            seen.copied_until = replica.remote.copied_until
            self._broker.retention.look(replica)
        if not self._concerns(replica) or replica.stream in self._visits:
            return
        now_ms, count = self._broker.now(), replica.log.segment_count
        if count != seen.segments or now_ms - seen.visited_ms >= interval_ms:
            seen.segments, seen.visited_ms = count, now_ms
            self._visit(replica)

    def _concerns(self, replica: Replica) -> bool:
        wanted = replica.config.remote or bool(replica.config.attached) or len(replica.remote) > 0
        return wanted and replica.ready and not replica.internal

    def _visit(self, replica: Replica) -> None:
        task = run_in_background(self._visited(replica), self._broker.node.fail)
        self._visits[replica.stream] = task
        task.add_done_callback(lambda _: self._visits.pop(replica.stream, None))

    async def _visited(self, replica: Replica) -> None:
        async with self._room:
            stream, place = self._streams.get(replica.stream), self.place_of(replica)
            if place is None:
                self._streams.pop(replica.stream, None)
                return
            if stream is None or stream.replica is not replica:
                kind = MirroredStream if replica.config.attached else TierStream
                stream = self._streams[replica.stream] = kind(self, replica, place)
            try:
                await stream.visit()
                self._said.pop(replica.stream, None)
            except NotLeaderError:
                self._streams.pop(replica.stream, None)
            except (TierError, StorageError, OSError) as error:
                if self._said.get(replica.stream) != str(error):
                    self._said[replica.stream] = str(error)
                    log.warning("stream %d is not tiered as it should be: %s", replica.stream, error)
            self._warn_overdue(replica)

    def trouble_of(self, replica: Replica) -> str:
        """Why the last visit of a stream came to nothing; empty when it did not."""
        return self._said.get(replica.stream, "")

    def overdue_bytes(self, replica: Replica) -> int:
        """What local retention would delete if it were in the store."""
        if not (replica.config.remote and replica.config.remote_copy):
            return 0
        return overdue_bytes(
            replica.log.segments_view(),
            replica.remote.copied_until,
            replica.group.commit,
            bounds_of(replica),
            wall_ms(),
        )

    def _warn_overdue(self, replica: Replica) -> None:
        overdue = self.overdue_bytes(replica)
        if overdue <= OVERDUE_SEGMENTS * self._broker.settings.storage_segment_bytes:
            self._overdue.discard(replica.stream)
        elif replica.stream not in self._overdue:
            self._overdue.add(replica.stream)
            log.warning("stream %d: %d bytes stay on disk because they are not in the store", replica.stream, overdue)

    # Metrics

    def samples(self) -> list[Sample]:
        """Every number there is about tiers on this node: what it counted, and of the streams that it leads."""
        found = self.metrics.samples((("Chunk", self.reads.chunks.counts), ("Index", self.reads.indexes.counts)))
        found += [Sample(name, value) for name, value in self.reads.under_way().items()]
        for replica in list(self._broker.node.replicas.values()):
            place = self._broker.state.partition_of(replica.stream) if self._concerns(replica) else None
            if place is not None:
                lags = lags_of(replica.log.segments_view(), replica.remote, replica.start_offset).named()
                lags["RemoteLogSizeBytes"] = replica.remote.readable_bytes
                lags["RemoteLogMetadataCount"] = len(replica.remote)
                lags["RemoteCopyOverdueBytes"] = self.overdue_bytes(replica)
                found += [Sample(name, value, place[0].name, place[1]) for name, value in lags.items()]
        return found

    # What deleted topics have left

    def topic_deleted(self) -> None:
        self._garbage.set()

    async def _collect(self) -> None:
        interval_s = self._broker.settings.remote_log_manager_task_interval_ms / 1000
        while True:
            self._garbage.clear()
            try:
                await self._deleted_topics.remove()
            except (TierError, OSError) as error:
                log.warning("what deleted topics left in the store is not removed yet: %s", error)
            try:
                async with asyncio.timeout(interval_s * 10):
                    await self._garbage.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(interval_s)  # leaders may be in the middle of a copy


def place_in_store(topic: Topic, partition: int) -> StreamPlace:
    """Where a stream's objects are: in its own folder, or in that of the topic it shows."""
    attached = TopicConfig.of(topic.configs).attached
    if attached:
        return StreamPlace.of_folder(f"{attached}/{partition}")
    return StreamPlace(topic.name, topic.id, partition)
