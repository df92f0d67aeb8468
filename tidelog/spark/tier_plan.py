"""Which parts of an offset range lie in the object store, and how they are cut for tasks. Pure functions.

A segment's offset index names a batch about every 64 KiB: its first offset and its position. A stretch of a segment is
what lies between two of these rows, so it is whole batches, and everything a task needs to read it (`StoredRun`)
travels with the task: it looks nothing up.

    offsets   wanted.start ──────────────────────────────────────── wanted.end
    store              ├── run ──┤├──── run ────┤
    brokers   ├────────┤                        ├──────────────────┤

Invariants. Runs are in order, do not overlap and lie inside the range that is wanted; what they leave out is the
brokers'. `cut` depends on the store, so it is for batch queries: a micro-batch that is run again must have the same
tasks.

Cost: a search in the index for each cut; a piece takes two numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from uuid import UUID

import numpy as np
import numpy.typing as npt

from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.tier.layout import LOG, ChunkRow, PackedIndex, StreamPlace
from tidelog.tier.metadata import RemoteSegment

PIECE_BYTES = 8 << 20  # read at once: as much as a fetch brings

_ROW = np.dtype([("offset", ">u4"), ("position", ">u4")])


@dataclass(frozen=True, slots=True)
class Stored:
    """A readable segment: start <= offset < end."""

    name: str
    segment: UUID
    start: int
    end: int
    size: int
    offsets: npt.NDArray[np.int64]  # of the batches that the index names, the first one's first
    positions: npt.NDArray[np.int64]
    chunk_bytes: int
    chunks: tuple[ChunkRow, ...]
    seal: bytes

    @classmethod
    def of(cls, place: StreamPlace, segment: RemoteSegment, index: PackedIndex) -> "Stored":
        rows = np.frombuffer(index.offsets, dtype=_ROW)
        offsets, positions = rows["offset"].astype(np.int64), rows["position"].astype(np.int64)
        assert offsets.size, "a segment has at least one batch"
        return cls(
            place.object_name(segment, LOG), segment.id, segment.base_offset, segment.next_offset, index.size,
            offsets + index.base_offset, positions, index.chunk_bytes, index.chunks, index.seal,
        )  # fmt: skip

    def row_before(self, offset: int) -> int:
        """The last row that is not behind the offset."""
        return max(int(np.searchsorted(self.offsets, offset, side="right")) - 1, 0)

    def position_behind(self, offset: int) -> int:
        """Where the first row from the offset on lies, or the segment ends."""
        row = int(np.searchsorted(self.offsets, offset, side="left"))
        return int(self.positions[row]) if row < len(self.positions) else self.size


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A stretch of one segment. Of its batches, the records with start <= offset < end count."""

    name: str
    segment: UUID
    start: int
    end: int
    first_offset: int  # of its first batch
    bounds: tuple[int, ...]  # where its pieces begin and the last one ends: each is whole batches
    size: int  # of the whole segment
    seal: bytes
    chunk_bytes: int
    chunks: tuple[ChunkRow, ...]  # those that hold it
    chunk_first: int  # the number of the first of them


@dataclass(frozen=True, slots=True)
class Holding:
    """What the store has of one partition. Offsets before `earliest` are deleted, whatever is left of them."""

    earliest: int
    segments: Sequence[Stored]


def cut(wanted: OffsetRange, holding: Holding, range_bytes: int) -> list[OffsetRange]:
    """The range in parts: each is the brokers', or about `range_bytes` of the store.

    Small segments go together, and so does what the brokers have behind the last one, if it seems to be small too: a
    task costs more than its records then.
    """
    bounds = [wanted.start]
    at, held = wanted.start, range_bytes  # of the part that is being made: the first segment begins one
    each = 0.0  # bytes an offset, in the last segment
    for start, end, stored in _overlaps(wanted, holding):
        first = stored.row_before(start)
        begin = int(stored.positions[first])
        total = stored.position_behind(end) - begin
        if start > at:  # what is between is the brokers'
            bounds.append(at)
        if start > at or held + total > range_bytes:
            parts = -(-total // range_bytes)
            targets = [begin + total * number // parts for number in range(1, parts)]
            rows = np.searchsorted(stored.positions, targets, side="right") - 1
            bounds += [start, *(int(stored.offsets[row]) for row in rows if row > first)]
            held = -(-total // parts)
        else:
            held += total
        at, each = end, total / (end - start)
    if held + (wanted.end - at) * each > range_bytes:
        bounds.append(at)
    bounds.append(wanted.end)
    return [OffsetRange(wanted.topic, wanted.partition, start, end) for start, end in pairwise(sorted(set(bounds)))]


def runs_of(wanted: OffsetRange, holding: Holding, piece_bytes: int = PIECE_BYTES) -> tuple[StoredRun, ...]:
    """What of the range is read from the store."""
    return tuple(_run(stored, start, end, piece_bytes) for start, end, stored in _overlaps(wanted, holding))


def _overlaps(wanted: OffsetRange, holding: Holding) -> list[tuple[int, int, Stored]]:
    """(start, end, segment) of each part of the range that the store has."""
    found: list[tuple[int, int, Stored]] = []
    at = max(wanted.start, holding.earliest)
    for stored in holding.segments:
        start, end = max(at, stored.start), min(wanted.end, stored.end)
        if start < end:
            found.append((start, end, stored))
            at = end
    return found


def _run(stored: Stored, start: int, end: int, piece_bytes: int) -> StoredRun:
    row, stop = stored.row_before(start), stored.position_behind(end)
    bounds = [int(stored.positions[row])]
    while bounds[-1] < stop:
        reached = int(np.searchsorted(stored.positions, bounds[-1] + piece_bytes, side="right")) - 1
        row = max(row + 1, reached)
        bounds.append(min(int(stored.positions[row]) if row < len(stored.positions) else stored.size, stop))
    first = bounds[0] // stored.chunk_bytes
    return StoredRun(
        stored.name, stored.segment, start, end, int(stored.offsets[stored.row_before(start)]), tuple(bounds),
        stored.size, stored.seal, stored.chunk_bytes, stored.chunks[first : -(-stop // stored.chunk_bytes)], first,
    )  # fmt: skip
