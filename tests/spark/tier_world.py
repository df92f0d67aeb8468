"""A partition's log in memory, some of it in an object store, and brokers that have what a test leaves them."""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from crc32c import crc32c

from tidelog.spark.errors import DataLost
from tidelog.spark.fetch import Run
from tidelog.spark.kernel.options import TierOptions
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.tier.layout import (
    INDEXES,
    LOG,
    ChunkRow,
    PackedIndex,
    StreamManifest,
    StreamPlace,
    about_segment,
    encode_offset_row,
    encode_time_row,
)
from tidelog.tier.metadata import RemoteSegment, SegmentState
from tidelog.tier.sealing import KeyRing, Seal
from tidelog.tier.store import ObjectStore, Patience, open_store
from tidelog.wire.batch import read_header
from tidelog.wire.records import Record, build_batch

TOPIC_ID = UUID(int=7)
PLACE = StreamPlace("t", TOPIC_ID, 0)
CLUSTER_ID = "the cluster"


def batches(counts: Sequence[int], value_bytes: int = 40) -> list[bytes]:
    """Batches of so many records each, from offset 0 on; a record's value says its offset."""
    made, offset = [], 0
    for count in counts:
        records = [Record(b"%06d " % (offset + number) + b"." * value_bytes, b"k") for number in range(count)]
        made.append(bytes(build_batch(records, offset)))
        offset += count
    return made


def next_offset(batch: bytes) -> int:
    return read_header(batch).next_offset


def base_offset(batch: bytes) -> int:
    return read_header(batch).base_offset


class Bucket:
    """A store in a folder, with segments of one partition."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"
        self._folder.mkdir()
        self.url = f"file://{self._folder}"
        self.store: ObjectStore = open_store(self.url, {}, Patience(tries_max=2, pause_s=0.001), random.Random(1))
        self.segments: list[RemoteSegment] = []

    def tier(self, key_ring: Path | None = None, range_bytes: int = 1 << 16) -> TierOptions:
        return TierOptions(self.url, {}, None if key_ring is None else str(key_ring), range_bytes)

    def put(
        self, content: Sequence[bytes], *, every: int = 1, chunk_bytes: int = 1000, compress: bool = False,
        ring: KeyRing | None = None,
    ) -> RemoteSegment:  # fmt: skip
        """A segment of these batches, with an index row for each `every`th."""
        base, data = base_offset(content[0]), b"".join(content)
        segment = RemoteSegment(
            uuid4(), base, next_offset(content[-1]) - 1, len(data), 1, ((1, base),), 1, 0, SegmentState.COPY_FINISHED
        )
        seal = Seal.new(segment.id, compress=compress, ring=ring)
        offsets, times, position = b"", b"", 0
        for number, batch in enumerate(content):
            if number % every == 0:
                offsets += encode_offset_row(base_offset(batch) - base, position)
                times += encode_time_row(1, base_offset(batch) - base)
            position += len(batch)
        sealed = [
            bytes(seal.close_chunk(number, data[at : at + chunk_bytes]))
            for number, at in enumerate(range(0, len(data), chunk_bytes))
        ]
        starts = [sum(map(len, sealed[:number])) for number in range(len(sealed))]
        rows = tuple(ChunkRow(at, len(each), crc32c(each)) for at, each in zip(starts, sealed, strict=True))
        index = PackedIndex(
            base, len(data), offsets, times, b"", segment.epochs, chunk_bytes, rows, seal.header,
            about_segment(PLACE, segment),
        )  # fmt: skip
        self._write(PLACE.object_name(segment, LOG), b"".join(sealed))
        self._write(PLACE.object_name(segment, INDEXES), index.encode())
        self.segments.append(segment)
        return segment

    def describe(self, **changed: Any) -> None:
        manifest = StreamManifest(CLUSTER_ID, PLACE, 0, {}, 1, tuple(self.segments))
        self._write(PLACE.manifest, replace(manifest, **changed).encode())

    def remove(self, segment: RemoteSegment) -> None:
        for kind in (INDEXES, LOG):
            self.file(segment, kind).unlink()

    def file(self, segment: RemoteSegment, kind: str) -> Path:
        return self._folder / PLACE.object_name(segment, kind)

    def copy_to(self, other: ObjectStore) -> None:
        for path in self._folder.rglob("*"):
            if path.is_file():
                asyncio.run(other.put(str(path.relative_to(self._folder)), path.read_bytes()))

    def _write(self, name: str, content: bytes) -> None:
        """Without the syncs of a store that is to last."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@dataclass
class Brokers:
    """A cluster with that one partition, and an origin of its batches; says what it was asked for."""

    batches: Sequence[bytes]
    earliest_offset: int = 0
    topic_id: UUID = TOPIC_ID
    asked: list[tuple[int, int]] = field(default_factory=list)

    def identities(self, names: Any) -> tuple[str, dict[str, UUID]]:
        return CLUSTER_ID, dict.fromkeys(names, self.topic_id)

    def earliest(self, places: Any) -> dict[Any, int]:
        return dict.fromkeys(places, self.earliest_offset)

    def runs(self, wanted: OffsetRange) -> Iterator[Run]:
        self.asked.append((wanted.start, wanted.end))
        if wanted.start < self.earliest_offset:
            raise DataLost(f"offset {wanted.start} is gone")
        for batch in self.batches:
            if next_offset(batch) > wanted.start and base_offset(batch) < wanted.end:
                yield Run(memoryview(batch), wanted.start, wanted.end)


def cut_into(made: Sequence[bytes], bounds: Sequence[int]) -> list[list[bytes]]:
    """Batches as segments: those between each two bounds."""
    edges = sorted({0, *bounds, len(made)})
    return [list(made[begin:end]) for begin, end in pairwise(edges) if begin < end]
