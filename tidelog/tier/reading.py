"""Reading from the store: record batches from an offset on, and the first record at a time.

A segment's index says where a batch begins at or before the offset, and which chunks that is in; chunks come through
the cache. Who reads on where a read before has ended is reading through: the chunks behind are then fetched ahead,
across the end of a segment too.

Every chunk is checked against the CRC in its index before anybody sees it, and opened (`sealing`) before it is
cached: the cache on disk holds batches as they were.

Bounds: chunks under way are bounded by the cache; opened indexes by INDEXES_MAX.
"""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from crc32c import crc32c

from tidelog import faults
from tidelog.tier.cache import DiskCache
from tidelog.tier.errors import ObjectDamagedError, TierError
from tidelog.tier.layout import INDEXES, LOG, PackedIndex, StreamPlace, id_text
from tidelog.tier.metadata import RemoteLog, RemoteSegment
from tidelog.tier.sealing import KeyRing, Seal
from tidelog.tier.store import ObjectStore
from tidelog.wire.batch import CorruptBatchError
from tidelog.wire.records import read_records

INDEXES_MAX = 128  # opened ones in memory
CHECK_BYTES = 256 << 10  # checked at one go: some 30 µs
INDEX_BYTES_ABOUT = 1 << 20  # before one is fetched, nobody knows
ENDS_MAX = 4_096  # where reads ended, remembered to know who reads through
_HEAD = struct.Struct(">qi")
_FACTS = struct.Struct(">qi11xi8xq")  # base offset, length, last offset delta, max timestamp
_FACTS_BYTES = 43
_ANY_TIME = -(1 << 63)

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class _Opened:
    place: StreamPlace
    segment: RemoteSegment
    index: PackedIndex
    seal: Seal


class RemoteReader:
    def __init__(
        self,
        store: ObjectStore,
        chunks: DiskCache,
        indexes: DiskCache,
        ring: KeyRing | None,
        ahead: int,
        executor: Executor,
        fetched: Callable[[StreamPlace, int], None],
    ) -> None:
        """`ahead`: chunks fetched ahead of one who reads through. `fetched` is told of bytes that the store gave."""
        self._store = store
        self._chunks = chunks
        self._indexes = indexes
        self._ring = ring
        self._ahead = ahead
        self._executor = executor
        self._fetched = fetched
        self._opened: OrderedDict[str, _Opened] = OrderedDict()
        self._ends: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._thinking_ahead: set[asyncio.Task[None]] = set()

    async def read(
        self, place: StreamPlace, log: RemoteLog, segment: RemoteSegment, offset: int, bytes_max: int, *, first: bool
    ) -> list[memoryview]:
        """Whole batches from the one that holds `offset` on, of this segment, in pieces that may end anywhere.

        At most `bytes_max` bytes; but one batch in any case when `first`.
        """
        opened = await self._open(place, segment)
        start = await self._position_of(opened, offset)
        end = opened.index.boundary_before(start + bytes_max)
        if end <= start:
            end = await self._end_within(opened, start, bytes_max, first=first)
        pieces = await self._range(opened, start, end)
        self._look_ahead(opened, log, start, end)
        return pieces

    async def first_at_time(
        self, place: StreamPlace, segment: RemoteSegment, timestamp: int, start_offset: int
    ) -> tuple[int, int] | None:
        """(offset, time) of the segment's first record at or after a time and an offset."""
        opened = await self._open(place, segment)
        loop, position = asyncio.get_running_loop(), opened.index.position_at_time(timestamp)
        while True:
            position = await self._reaching(opened, position, start_offset, timestamp)
            if position is None:
                return None
            _, length = await anext(self._batches(opened, position))
            data = await self._bytes(opened, position, length)
            # To open and to read a large batch takes so long that producers would notice it on the loop.
            found = await loop.run_in_executor(self._executor, _first_record, data, timestamp, start_offset)
            if found is not None:
                return found
            position += length

    def forget(self, segment: RemoteSegment) -> None:
        """The segment is deleted."""
        name = id_text(segment.id)
        self._opened.pop(name, None)
        self._chunks.forget(name)
        self._indexes.forget(name)

    async def close(self) -> None:
        for task in self._thinking_ahead:
            task.cancel()
        await asyncio.gather(*self._thinking_ahead, return_exceptions=True)

    # Indexes

    async def _open(self, place: StreamPlace, segment: RemoteSegment) -> _Opened:
        name = id_text(segment.id)
        opened = self._opened.get(name)
        if opened is not None:
            self._opened.move_to_end(name)
            return opened
        content = bytes(await self._indexes.get(name, INDEX_BYTES_ABOUT, lambda: self._fetch_index(place, segment)))
        index = PackedIndex.decode(content)
        opened = _Opened(place, segment, index, Seal.open(segment.id, index.seal, self._ring))
        self._opened[name] = opened
        if len(self._opened) > INDEXES_MAX:
            self._opened.popitem(last=False)
        return opened

    async def _fetch_index(self, place: StreamPlace, segment: RemoteSegment) -> Buffer:
        content = await self._store.read_all(place.object_name(segment, INDEXES))
        index = PackedIndex.decode(content)  # what is damaged must not get into the cache
        if index.base_offset != segment.base_offset or index.about.get("segment_id") != id_text(segment.id):
            raise ObjectDamagedError(f"{place.object_name(segment, INDEXES)} is the index of another segment")
        self._fetched(place, len(content))
        return content

    # Chunks

    async def _chunk(self, opened: _Opened, number: int) -> Buffer:
        size = opened.index.chunk_size(number)
        name = f"{id_text(opened.segment.id)}-{number}"
        return await self._chunks.get(name, size, lambda: self._fetch_chunk(opened, number))

    async def _fetch_chunk(self, opened: _Opened, number: int) -> Buffer:
        if faults.ARMED:
            faults.hit("tier.fetch")
        row = opened.index.chunks[number]
        name = opened.place.object_name(opened.segment, LOG)
        data = await self._store.read(name, row.position, row.length)
        self._fetched(opened.place, len(data))
        if await _crc_of(data) != row.crc:
            raise ObjectDamagedError(f"{name}, chunk {number}: its checksum does not fit")
        if opened.seal.plain:
            return data
        # To open one takes so long that producers would notice it on the loop; the thread lets go of the interpreter.
        loop, size = asyncio.get_running_loop(), opened.index.chunk_size(number)
        return await loop.run_in_executor(self._executor, opened.seal.open_chunk, number, data, size)

    async def _range(self, opened: _Opened, start: int, end: int) -> list[memoryview]:
        size = opened.index.chunk_bytes
        numbers = range(start // size, -(-end // size))
        if len(numbers) == 1:  # most often it is in memory: no task is needed to take it from there
            chunks = [await self._chunk(opened, numbers[0])]
        else:
            chunks = await asyncio.gather(*(self._chunk(opened, number) for number in numbers))
        return [
            memoryview(chunk)[max(0, start - number * size) : end - number * size]
            for number, chunk in zip(numbers, chunks, strict=True)
        ]

    async def _bytes(self, opened: _Opened, position: int, length: int) -> Buffer:
        pieces = await self._range(opened, position, min(position + length, opened.index.size))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    # Batches

    async def _batches(self, opened: _Opened, position: int) -> AsyncIterator[tuple[int, int]]:
        """(position, length) of the batches from one on."""
        while position < opened.index.size:
            _, size = _HEAD.unpack(await self._bytes(opened, position, _HEAD.size))
            length = size + _HEAD.size
            if length < _FACTS_BYTES or position + length > opened.index.size:
                raise ObjectDamagedError(f"segment {opened.segment.id}: no batch at {position}")
            yield position, length
            position += length

    async def _position_of(self, opened: _Opened, offset: int) -> int:
        """Where the batch begins that holds the offset."""
        found = await self._reaching(opened, opened.index.position_of(offset), offset, _ANY_TIME)
        if found is None:
            raise TierError(f"segment {opened.segment.id} does not hold offset {offset}, though it should")
        return found

    async def _reaching(self, opened: _Opened, position: int, offset: int, timestamp: int) -> int | None:
        """Where the first batch from a position on begins that reaches an offset and a time; None: none does.

        A chunk is taken once and gone through at one go: of small batches there are hundreds from one that the index
        names to the next.
        """
        size = opened.index.size
        while position < size:
            end = min((position // opened.index.chunk_bytes + 1) * opened.index.chunk_bytes, size)
            length = max(end - position, _FACTS_BYTES)  # the head of a batch may lie in two chunks
            found, passed = _find(await self._bytes(opened, position, length), offset, timestamp)
            if found:
                return position + passed
            if not passed:
                raise ObjectDamagedError(f"segment {opened.segment.id}: no batch at {position}")
            position += passed
        return None

    async def _end_within(self, opened: _Opened, start: int, bytes_max: int, *, first: bool) -> int:
        """Behind the last batch that ends within the bound."""
        end = start
        async for position, length in self._batches(opened, start):
            if position + length > start + bytes_max and not (first and position == start):
                break
            end = position + length
        return end

    # Ahead

    def _look_ahead(self, opened: _Opened, log: RemoteLog, start: int, end: int) -> None:
        name = id_text(opened.segment.id)
        through = start == 0 or self._ends.pop((name, start), _ABSENT) is not _ABSENT
        self._ends[name, end] = None
        if len(self._ends) > ENDS_MAX:
            self._ends.popitem(last=False)
        if not through or end <= start:
            return
        last = (end - 1) // opened.index.chunk_bytes
        count = len(opened.index.chunks)
        for number in range(last + 1, min(last + 1 + self._ahead, count)):
            self._prefetch(opened, number)
        beyond = last + 1 + self._ahead - count
        following = log.find_after(opened.segment) if beyond > 0 else None
        if following is not None:
            task = asyncio.get_running_loop().create_task(self._prefetch_beginning(opened.place, following, beyond))
            self._thinking_ahead.add(task)
            task.add_done_callback(self._thinking_ahead.discard)

    def _prefetch(self, opened: _Opened, number: int) -> None:
        name = f"{id_text(opened.segment.id)}-{number}"
        self._chunks.prefetch(name, opened.index.chunk_size(number), lambda: self._fetch_chunk(opened, number))

    async def _prefetch_beginning(self, place: StreamPlace, segment: RemoteSegment, count: int) -> None:
        try:
            opened = await self._open(place, segment)
        except TierError:
            return  # whoever needs it will meet the same error, and say so
        for number in range(min(count, len(opened.index.chunks))):
            self._prefetch(opened, number)


def _find(data: Buffer, offset: int, timestamp: int) -> tuple[bool, int]:
    """(whether a batch that reaches both begins in `data`, where; or what was gone through: 0 is damage)."""
    at = 0
    while at + _FACTS_BYTES <= len(data):
        base, length, delta, newest = _FACTS.unpack_from(data, at)
        if base + delta >= offset and newest >= timestamp:
            return True, at
        if length < _FACTS_BYTES - _HEAD.size:
            return False, 0
        at += _HEAD.size + length
    return False, at


def _first_record(data: Buffer, timestamp: int, start_offset: int) -> tuple[int, int] | None:
    """(offset, time) of a batch's first record at or after both. In a thread."""
    try:
        records = read_records(data)
    except CorruptBatchError:
        return None  # its producer's checksum is right, its content is not: no client can read it either
    for record in records:
        if record.timestamp >= timestamp and record.offset >= start_offset:
            return record.offset, record.timestamp
    return None


async def _crc_of(data: memoryview) -> int:
    """A piece in each turn of the loop: a thread would need the interpreter in between, and the loop wait for it."""
    crc = 0
    for start in range(0, len(data), CHECK_BYTES):
        crc = crc32c(data[start : start + CHECK_BYTES], crc, gil_release_mode=0)
        await asyncio.sleep(0)
    return crc


_ABSENT = object()
