"""Putting one segment into the store, and taking it out again.

Order matters: `.log` before `.indexes`, and out in the opposite order, so that where an index is, the segment is whole.
A copy reads the local file a chunk at a time, in a thread, and holds a few chunks in memory, never the segment.

Every batch is checked on its way: what a disk has damaged must not become the only copy there is.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol

from crc32c import crc32c

from tidelog import faults
from tidelog.tier.errors import ObjectDamagedError
from tidelog.tier.image import SegmentImage
from tidelog.tier.layout import CHUNK_BYTES, INDEXES, LOG, ChunkRow, PackedIndex, StreamPlace, about_segment
from tidelog.tier.metadata import RemoteSegment
from tidelog.tier.sealing import Seal
from tidelog.tier.store import ObjectStore
from tidelog.wire.batch import LENGTH_END, BatchHeader, CorruptBatchError, check_batch

BATCH_BYTES_MAX = 128 << 20  # `max.message.bytes` allows half of it
BATCHES_A_TURN = 64
TURN_S = 0.00005
"""So long a thread that follows batches lets go of the interpreter, every so many of them: otherwise the event loop,
when it wakes up, waits for `sys.getswitchinterval()`, which is longer than a produce takes."""

Buffer = bytes | bytearray | memoryview
ReadFile = Callable[[int, int], bytes]
"""(position, length) of the local file; called in a thread."""


class Followed(Protocol):
    """Is told of every batch that passes, in order, and makes the segment's producer snapshot of it."""

    def passed(self, header: BatchHeader) -> None: ...

    def encode(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """What is to be copied, and how."""

    place: StreamPlace
    segment: RemoteSegment
    image: SegmentImage
    read: ReadFile
    follow: Callable[[], Followed]  # anew for each try
    seal: Seal
    chunk_bytes: int = CHUNK_BYTES


async def copy_segment(
    store: ObjectStore, copy: SegmentCopy, pause: Callable[[int], Awaitable[None]], executor: Executor
) -> PackedIndex:
    """Put both objects. `pause` is called before so many bytes are sent, and waits as quotas demand."""
    chunks: list[ChunkRow] = []
    producers = copy.follow()
    image, size = copy.image, copy.chunk_bytes
    count = -(-image.size // size)

    async def parts() -> AsyncIterator[Buffer]:
        nonlocal producers
        producers = copy.follow()
        loop, checked = asyncio.get_running_loop(), BatchCheck(image.base_offset, producers.passed)
        chunks.clear()
        position = 0
        for number in range(count):
            data, crc = await loop.run_in_executor(executor, _sealed_chunk, copy, number, checked)
            await pause(len(data))
            chunks.append(ChunkRow(position, len(data), crc))
            position += len(data)
            yield data

        checked.finish(image.next_offset)

    await store.put_parts(copy.place.object_name(copy.segment, LOG), parts)
    if faults.ARMED:
        faults.hit("tier.copy.log-put")
    index = PackedIndex(
        image.base_offset, image.size, image.offsets, image.times, producers.encode(), image.epochs, size,
        tuple(chunks), copy.seal.header, about_segment(copy.place, copy.segment),
    )  # fmt: skip
    await store.put(copy.place.object_name(copy.segment, INDEXES), index.encode())
    return index


async def delete_segment(store: ObjectStore, place: StreamPlace, segment: RemoteSegment) -> None:
    """Remove both objects; done already is done."""
    await store.delete([place.object_name(segment, INDEXES)])
    if faults.ARMED:
        faults.hit("tier.delete.indexes-gone")
    await store.delete([place.object_name(segment, LOG)])


class BatchCheck:
    """Follows batches through pieces that end anywhere: each must be intact, and begin where the one before ends."""

    def __init__(self, base_offset: int, passed: Callable[[BatchHeader], None]) -> None:
        self._next_offset = base_offset
        self._passed = passed
        self._rest = b""  # of a batch whose end has not come
        self._turn = 0

    def feed(self, data: bytes) -> None:
        view = memoryview(self._rest + data if self._rest else data)
        at = 0
        while len(view) - at >= LENGTH_END:
            size = LENGTH_END + int.from_bytes(view[at + 8 : at + LENGTH_END], "big", signed=True)
            if size > BATCH_BYTES_MAX:
                raise ObjectDamagedError(f"the segment on disk has a batch of {size} bytes at {self._next_offset}")
            if size > len(view) - at:
                break
            try:
                header = check_batch(view[at : at + size])
            except CorruptBatchError as error:
                raise ObjectDamagedError(
                    f"the segment on disk is damaged at offset {self._next_offset}: {error}"
                ) from None
            if header.base_offset != self._next_offset:
                raise ObjectDamagedError(
                    f"the segment on disk has {header.base_offset} where {self._next_offset} belongs"
                )
            self._passed(header)
            self._next_offset += header.last_offset_delta + 1
            at += size
            self._turn += 1
            if self._turn % BATCHES_A_TURN == 0:
                time.sleep(TURN_S)
        self._rest = bytes(view[at:])

    def finish(self, next_offset: int) -> None:
        if self._rest or self._next_offset != next_offset:
            raise ObjectDamagedError(f"the segment on disk ends at offset {self._next_offset}, not at {next_offset}")


def _sealed_chunk(copy: SegmentCopy, number: int, checked: BatchCheck) -> tuple[Buffer, int]:
    """In a thread."""
    data = b"".join(_plain(copy.image, copy.read, number * copy.chunk_bytes, copy.chunk_bytes))
    checked.feed(data)
    sealed = data if copy.seal.plain else copy.seal.close_chunk(number, data)
    return sealed, crc32c(sealed)


def _plain(image: SegmentImage, read: ReadFile, start: int, length: int) -> list[bytes]:
    """Bytes of the image, which is its runs one behind the other."""
    pieces: list[bytes] = []
    at = 0
    for position, size in image.runs:
        low, high = max(start, at), min(start + length, at + size)
        if low < high:
            data = read(position + low - at, high - low)
            if len(data) != high - low:
                raise OSError(f"a segment ends at {position + low - at + len(data)}, its index says later")
            pieces.append(data)
        at += size
    return pieces
