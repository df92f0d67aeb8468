"""Segments for tests: remote ones out of thin air, local ones from a real log."""

import random
import tempfile
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from tests.storage.machine import TINY
from tests.storage.world import new_disk, open_store, rest
from tidelog.raft.log import EntryKind
from tidelog.storage import SegmentView, StorageSettings, StreamLog
from tidelog.storage.segment import Segment
from tidelog.tier.metadata import RemoteSegment
from tidelog.wire.records import Record, build_batch


def remote(base_offset: int, last_offset: int, **fields: Any) -> RemoteSegment:
    values = {"size": 1_000, "newest_timestamp": 1, "epochs": ((1, base_offset),), "node": 1, "event_ms": 0} | fields
    return RemoteSegment(uuid4(), base_offset, last_offset, **values)


def view(base_offset: int, next_offset: int, length: int = 1_000, newest: int = 1, index: int = 0) -> SegmentView:
    """A closed segment, one entry an offset; `index` is added to make a Raft index of an offset."""
    first = base_offset + 1 + index
    return SegmentView(first, next_offset + index, base_offset, next_offset, length, newest, -1, True)


class LocalLog:
    """A stream's log with some closed segments."""

    def __init__(self, settings: StorageSettings = TINY) -> None:
        self.store = open_store(new_disk(), settings)
        self.log: StreamLog = self.store.create_stream(7, b"c")
        self.term = 1

    def append(self, values: Sequence[bytes], timestamp: int = 1, **options: Any) -> None:
        batch = build_batch([Record(value, timestamp=timestamp) for value in values], **options)
        self.log.append_new(self.term, EntryKind.DATA, [batch])
        rest(self.store)

    def own(self, kind: EntryKind = EntryKind.NOOP) -> None:
        self.log.append_new(self.term, kind, [b""])
        rest(self.store)

    def begin_term(self, term: int) -> None:
        self.term = term
        self.own()

    def roll(self) -> None:
        self.log.roll()
        rest(self.store)

    def closed(self) -> list[Segment]:
        return list(self.log.closed_segments())

    def rows(self, segment: Segment) -> bytes:
        return bytes(self.log.reader_of(segment).rows())

    def read(self, segment: Segment, position: int, length: int) -> bytes:
        return self.log.reader_of(segment).file.read_at(position, length)


def random_values(count: int, size: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(size) for _ in range(count)]


def fresh_folder() -> str:
    return tempfile.mkdtemp(prefix="tidelog-tier-")
