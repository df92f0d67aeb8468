"""The batches of an offset range, from the object store as far as it has them, and from the brokers where it has not.

Pieces of a few megabytes are asked for ahead of the one that is decoded. What is sealed comes in its chunks, each
checked and opened once. Every batch must begin where the one before it ends: offsets lie outside its own checksum.

A segment that vanishes while it is read (retention, DeleteRecords, a topic that is deleted) is given up at the offset
that was reached, and the brokers are asked for the rest of it: they have it, or say that it is gone. So there is never
a gap, and nothing comes twice.

Cost: no request to a broker for what is in the store; AHEAD + 1 pieces in memory, and two chunks when they are sealed.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from crc32c import crc32c

from tidelog.spark.fetch import Origin, Run
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.tier_plan import StoredRun
from tidelog.spark.tier_store import HistoryFailed, StoreThread, store_thread
from tidelog.tier.errors import ObjectDamagedError, ObjectMissingError, TierError
from tidelog.tier.sealing import Buffer, KeyRing, Seal
from tidelog.tier.store import ObjectStore

AHEAD = 2  # pieces that are asked for before they are needed

_FACTS = struct.Struct(">qi11xi")  # base offset, length, last offset delta
_LENGTH_END = 12

_log = logging.getLogger(__name__)


class TierOrigin:
    """An `Origin` of one task: `stored` is what the plan has found in the store of the range that the task reads."""

    def __init__(self, store: ObjectStore, ring: KeyRing | None, stored: Sequence[StoredRun], brokers: Origin) -> None:
        self._store = store
        self._ring = ring
        self._stored = stored
        self._brokers = brokers

    def runs(self, wanted: OffsetRange) -> Iterator[Run]:
        offset = wanted.start
        with store_thread() as thread:
            for stored in self._stored:
                assert offset <= stored.start < stored.end <= wanted.end, "the plan is in order and within the range"
                yield from self._from_brokers(wanted, offset, stored.start)
                offset = stored.start
                try:
                    for run in self._from_store(stored, thread):
                        yield replace(run, start=offset)
                        offset = run.end
                except ObjectMissingError:
                    _log.warning("%s is deleted: the brokers are asked for offsets from %d on", stored.name, offset)
                    yield from self._from_brokers(wanted, offset, stored.end)
                except TierError as error:
                    where = f"{wanted.topic}-{wanted.partition}, offset {offset}"
                    raise HistoryFailed(
                        f"{where}: {error}. To read from the brokers alone, leave tier.path out"
                    ) from None
                offset = stored.end
        yield from self._from_brokers(wanted, offset, wanted.end)

    def _from_brokers(self, wanted: OffsetRange, start: int, end: int) -> Iterator[Run]:
        if start < end:
            yield from self._brokers.runs(replace(wanted, start=start, end=end))

    def _from_store(self, stored: StoredRun, thread: StoreThread) -> Iterator[Run]:
        """Runs that end where the next one begins."""
        pieces = _Pieces(self._store, stored, Seal.open(stored.segment, stored.seal, self._ring))
        asked: deque[Future[memoryview]] = deque()
        offset = stored.first_offset
        for number in range(len(stored.bounds) - 1):
            while len(asked) <= AHEAD and number + len(asked) < len(stored.bounds) - 1:
                asked.append(thread.begin(pieces.read(number + len(asked))))
            data = asked.popleft().result()
            offset = _next_offset(data, offset, stored.name)
            yield Run(data, stored.start, min(offset, stored.end))
        if offset < stored.end:
            raise ObjectDamagedError(f"{stored.name} ends at offset {offset}, its index says later")


class _Pieces:
    """The pieces of a stretch. They are asked for in order, and several may be under way."""

    def __init__(self, store: ObjectStore, stored: StoredRun, seal: Seal) -> None:
        self._store = store
        self._stored = stored
        self._seal = seal
        self._chunks: dict[int, asyncio.Task[Buffer]] = {}  # sealed ones: some are needed by two pieces

    async def read(self, number: int) -> memoryview:
        begin, end = self._stored.bounds[number : number + 2]
        if self._seal.plain:  # the batches' own checksums do for it
            return await self._store.read(self._stored.name, begin, end - begin)
        size = self._stored.chunk_bytes
        numbers = range(begin // size, -(-end // size))
        for each in numbers:
            if each not in self._chunks:
                self._chunks[each] = asyncio.create_task(self._chunk(each))
        chunks = await asyncio.gather(*(self._chunks[each] for each in numbers))
        for each in [each for each in self._chunks if each < end // size]:
            del self._chunks[each]
        parts = [
            memoryview(chunk)[max(0, begin - each * size) : end - each * size]
            for each, chunk in zip(numbers, chunks, strict=True)
        ]
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    async def _chunk(self, number: int) -> Buffer:
        stored = self._stored
        row = stored.chunks[number - stored.chunk_first]
        data = await self._store.read(stored.name, row.position, row.length)
        if crc32c(data) != row.crc:
            raise ObjectDamagedError(f"{stored.name}, chunk {number}: its checksum does not fit")
        return self._seal.open_chunk(number, data, min(stored.chunk_bytes, stored.size - number * stored.chunk_bytes))


def _next_offset(data: memoryview, offset: int, name: str) -> int:
    """The offset behind whole batches, of which the first must begin at `offset`."""
    at = 0
    while at < len(data):
        if at + _FACTS.size > len(data):
            raise ObjectDamagedError(f"{name}: a batch at offset {offset} is cut short")
        base, length, delta = _FACTS.unpack_from(data, at)
        at += _LENGTH_END + length
        if base != offset or length < _FACTS.size or delta < 0 or at > len(data):
            raise ObjectDamagedError(f"{name}: there is no batch where offset {offset} should begin")
        offset = base + delta + 1
    return offset
