"""Reads of what is in the object store and no longer on this disk, in the background of the requests that want it.

A read that its request has given up goes on: what it fetches is in the cache when the client asks again. Store errors
become one of two answers: OFFSET_OUT_OF_RANGE when the log start has passed the offset meanwhile, else a storage error,
which clients retry. The loop never waits. Producers and readers of the tail are not to notice: while records are being
written, an answer from the store gives way to them, and answers follow each other as PACE_BYTES_PER_SECOND allows; but
none waits for either longer than GIVE_WAY_S.

Bounds: bytes on their way from the store (`remote.log.reader.bytes.max`), bytes a second (the fetch quota: while it is
used up, no read is begun), and the caches' budgets.
"""

import asyncio
import logging
import os
import struct
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.server.replica import Replica
from tidelog.tier.cache import DiskCache, InFlight
from tidelog.tier.errors import TierError
from tidelog.tier.layout import StreamPlace
from tidelog.tier.metadata import RemoteSegment
from tidelog.tier.metrics import TierMetrics
from tidelog.tier.quota import ByteRate, Pace
from tidelog.tier.reading import RemoteReader
from tidelog.tier.sealing import KeyRing
from tidelog.tier.store import ObjectStore
from tidelog.wire.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

CHUNK_FOLDER = "remote-log-chunk-cache"
INDEX_FOLDER = "remote-log-index-cache"
INDEX_MEMORY_BYTES = 16 << 20
GIVE_WAY_S = 0.01  # so long an answer from the store waits at most, for each of the two
PACE_BYTES_PER_SECOND = 100_000_000  # of answers up to a megabyte; larger ones come faster, for they wait no longer
_HEAD = struct.Struct(">qii")  # base offset, length behind it, leader epoch
_LENGTH_END, _EPOCH_AT = 12, 12
_NO_EPOCH = struct.pack(">i", -1)


class RemoteRead:
    """One read under way."""

    __slots__ = ("bytes_max", "done", "error", "pieces")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.done = False
        self.error = ErrorCode.NONE
        self.pieces: Sequence[memoryview] = ()


class RemoteReads:
    def __init__(
        self, broker: "Broker", store: ObjectStore, ring: KeyRing | None, executor: Executor, metrics: TierMetrics
    ) -> None:
        settings = broker.settings
        self._broker = broker
        self._metrics = metrics
        self._executor = executor
        self.rate = ByteRate(settings.remote_log_manager_fetch_max_bytes_per_second, broker.now())
        self._room = room = InFlight(settings.remote_log_reader_bytes_max)
        self.chunks = DiskCache(
            os.path.join(settings.data_dir, CHUNK_FOLDER), settings.remote_log_chunk_cache_total_size_bytes,
            settings.remote_log_chunk_memory_bytes, room, executor, keeps_first=False,
        )  # fmt: skip
        self.indexes = DiskCache(
            os.path.join(settings.data_dir, INDEX_FOLDER), settings.remote_log_index_file_cache_total_size_bytes,
            INDEX_MEMORY_BYTES, room, executor, keeps_first=True,
        )  # fmt: skip
        ahead = settings.remote_log_reader_prefetch
        self.reader = RemoteReader(store, self.chunks, self.indexes, ring, ahead, executor, self._fetched)
        self._pace = Pace(PACE_BYTES_PER_SECOND, GIVE_WAY_S)
        self._tasks: set[asyncio.Task[None]] = set()
        self._names: dict[UUID, str] = {}  # under which topics of others are counted: those that show them

    def under_way(self) -> dict[str, int]:
        """Bytes on their way from the store, and pieces that wait for room among them, as metrics call them."""
        return {"RemoteFetchBytesInFlight": self._room.bytes, "RemoteLogReaderTaskQueueSize": self._room.waiting}

    def begin(
        self,
        replica: Replica,
        place: StreamPlace,
        offset: int,
        bytes_max: int,
        wake: Callable[[], None],
        *,
        first: bool,
    ) -> RemoteRead | None:
        """Read from `offset` on; `wake` is called when it is done. None while the quota is used up."""
        if replica.config.attached:
            found = self._broker.state.partition_of(replica.stream)
            self._names[place.topic_id] = place.topic if found is None else found[0].name
        if self.rate.wait_ms(self._broker.now()):
            self._count(place, fetch_throttled=1)
            return None
        self._count(place, fetch_requests=1)
        read = RemoteRead(bytes_max)
        task = asyncio.get_running_loop().create_task(self._read(replica, place, offset, read, wake, first=first))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return read

    async def first_at_time(
        self, replica: Replica, place: StreamPlace, timestamp: int
    ) -> tuple[int, int] | None:  # fmt: skip
        """(offset, time) of the first record at or after a time that is not on this disk. Raises TierError."""
        for segment in replica.remote.reaching(timestamp):
            if segment.base_offset >= replica.local_start:
                return None  # from here on the disk has everything
            try:
                found = await self.reader.first_at_time(place, segment, timestamp, replica.start_offset)
            except TierError:
                if segment.last_offset >= replica.start_offset:
                    raise
                continue  # deleted meanwhile
            if found is not None:
                return found if found[0] < replica.local_start else None
        return None

    def forget(self, segment: RemoteSegment) -> None:
        self.reader.forget(segment)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.chunks.stop()
        self.indexes.stop()

    def _fetched(self, place: StreamPlace, size: int) -> None:
        self._count(place, fetch_bytes=size)
        self.rate.charge(size, self._broker.now())

    async def _read(
        self,
        replica: Replica,
        place: StreamPlace,
        offset: int,
        read: RemoteRead,
        wake: Callable[[], None],
        *,
        first: bool,
    ) -> None:
        try:
            segment = replica.remote.find(offset)
            if segment is None:
                raise TierError(f"no readable remote segment holds offset {offset}")
            pieces = await self.reader.read(place, replica.remote, segment, offset, read.bytes_max, first=first)
            term = replica.group.term
            if segment.newest_epoch > term:  # so many batches may be too many for the loop
                loop = asyncio.get_running_loop()
                pieces = await loop.run_in_executor(self._executor, without_epochs_behind, pieces, term)
            await self._give_way(sum(map(len, pieces)))
            read.pieces = pieces
        except TierError as error:
            if offset < replica.start_offset:
                read.error = ErrorCode.OFFSET_OUT_OF_RANGE  # deleted meanwhile
            else:
                self._failed(replica, place)
                log.error("stream %d cannot be read from the store at offset %d: %s", replica.stream, offset, error)
                read.error = ErrorCode.KAFKA_STORAGE_ERROR
        except Exception:  # a fault of ours: whoever waits must not wait for ever
            self._failed(replica, place)
            log.exception("stream %d cannot be read from the store at offset %d", replica.stream, offset)
            read.error = ErrorCode.KAFKA_STORAGE_ERROR
        read.done = True
        wake()

    async def _give_way(self, size: int) -> None:
        """Before so many bytes are sent: a megabyte takes the loop as long as twenty batches that come in."""
        node = self._broker.node
        if node.writes:
            await asyncio.sleep(self._pace.wait_s(size, time.monotonic()))
        await node.give_way(GIVE_WAY_S)

    def _count(self, place: StreamPlace, **more: int) -> None:
        self._metrics.count(self._names.get(place.topic_id, place.topic), **more)

    def _failed(self, replica: Replica, place: StreamPlace) -> None:
        self._count(place, fetch_errors=1)
        if replica.config.attached and self._broker.tiering is not None:
            self._broker.tiering.hurry(replica)  # its owner may have deleted it


def without_epochs_behind(pieces: Sequence[memoryview], term: int) -> list[memoryview]:
    """Whole batches, without the leader epochs that this stream's group has not reached.

    They are of a cluster before this one, or of the owner of what is shown here. A client that sees one takes it for
    news of a leader, and waits for him. (The epoch lies outside the batch's checksum.)
    """
    copied = bytearray().join(pieces)
    at = 0
    while at < len(copied):
        _, length, epoch = _HEAD.unpack_from(copied, at)
        if epoch > term:
            copied[at + _EPOCH_AT : at + _HEAD.size] = _NO_EPOCH
        at += _LENGTH_END + length
    return [memoryview(copied)]
