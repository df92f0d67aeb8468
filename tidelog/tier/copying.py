"""Putting one segment into the store, and taking it out again.

Order matters: `.log` before `.indexes`, and out in the opposite order, so that where an index is, the segment is whole.
A copy reads the local file a chunk at a time, in a thread, and holds a few chunks in memory, never the segment.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from crc32c import crc32c

from tidelog import faults
from tidelog.tier.image import SegmentImage
from tidelog.tier.layout import CHUNK_BYTES, INDEXES, LOG, ChunkRow, PackedIndex, StreamPlace, about_segment
from tidelog.tier.metadata import RemoteSegment
from tidelog.tier.sealing import Seal
from tidelog.tier.store import ObjectStore

Buffer = bytes | bytearray | memoryview
ReadFile = Callable[[int, int], bytes]
"""(position, length) of the local file; called in a thread."""


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """What is to be copied, and how."""

    place: StreamPlace
    segment: RemoteSegment
    image: SegmentImage
    read: ReadFile
    producers: bytes
    seal: Seal
    chunk_bytes: int = CHUNK_BYTES


async def copy_segment(
    store: ObjectStore, copy: SegmentCopy, pause: Callable[[int], Awaitable[None]], executor: Executor
) -> PackedIndex:
    """Put both objects. `pause` is called before so many bytes are sent, and waits as quotas demand."""
    chunks: list[ChunkRow] = []
    image, size = copy.image, copy.chunk_bytes
    count = -(-image.size // size)

    async def parts() -> AsyncIterator[Buffer]:
        loop = asyncio.get_running_loop()
        chunks.clear()
        position = 0
        for number in range(count):
            data, crc = await loop.run_in_executor(executor, _sealed_chunk, copy, number)
            await pause(len(data))
            chunks.append(ChunkRow(position, len(data), crc))
            position += len(data)
            yield data

    await store.put_parts(copy.place.object_name(copy.segment, LOG), parts)
    if faults.ARMED:
        faults.hit("tier.copy.log-put")
    index = PackedIndex(
        image.base_offset, image.size, image.offsets, image.times, copy.producers, image.epochs, size, tuple(chunks),
        copy.seal.header, about_segment(copy.place, copy.segment),
    )  # fmt: skip
    await store.put(copy.place.object_name(copy.segment, INDEXES), index.encode())
    return index


async def delete_segment(store: ObjectStore, place: StreamPlace, segment: RemoteSegment) -> None:
    """Remove both objects; done already is done."""
    await store.delete([place.object_name(segment, INDEXES)])
    if faults.ARMED:
        faults.hit("tier.delete.indexes-gone")
    await store.delete([place.object_name(segment, LOG)])


def _sealed_chunk(copy: SegmentCopy, number: int) -> tuple[Buffer, int]:
    """In a thread."""
    data = b"".join(_plain(copy.image, copy.read, number * copy.chunk_bytes, copy.chunk_bytes))
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
