"""A WAL that is a stream, as the source reads it."""

from pathlib import Path

import pytest

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalGone, WalPoint
from tidelog.pikiwi.wal.record import encode_records
from tidelog.pikiwi.wal.stream import StreamWal
from tidelog.spark import wal_stream_tail
from tidelog.spark.kernel.wal_options import StreamPlace
from tidelog.spark.wal_stream_tail import StreamTail

from .pikiwi_world import START, Items, items, shop
from .world import Log


class World:
    def __init__(self, log: Log, folder: Path) -> None:
        self.topic = log.topic(1)
        self.wal = StreamWal(log.bootstrap, self.topic, "db0", "test", folder)
        self.tail = StreamTail(StreamPlace(log.bootstrap, self.topic))
        self.written: Items = []

    def write(self, count: int, seed: int = 1) -> WalPoint:
        assert self.wal.last_position is not None
        made = items(shop(count, seed), self.wal.last_position, self.wal.last_seq)
        self.wal.append(7, made)
        self.wal.sync()
        self.written += made
        assert self.wal.durable is not None
        return self.wal.durable

    def read(self, start: WalPoint, end: WalPoint) -> Items:
        found: Items = []
        for chunk in self.tail.chunks(start, end):
            for filenum, offset, payload in zip(
                chunk.filenums.tolist(), chunk.offsets.tolist(), chunk.payloads.to_pylist(), strict=True
            ):
                found.append((Position(filenum, offset), payload))
        return found


@pytest.fixture
def world(tidelog_log: Log, tmp_path: Path):
    made = World(tidelog_log, tmp_path)
    yield made
    made.tail.close()
    made.wal.close()


def test_what_was_written_is_read_between_any_two_places(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wal_stream_tail, "CHUNK_RECORDS", 100)
    assert world.tail.durable() is None
    world.wal.reset(START)
    end = world.write(500)
    first = world.tail.first()
    assert first is not None
    assert first == WalPoint(0, START, 0, 1)
    assert world.tail.durable() == end
    assert world.read(first, end) == world.written
    middle = world.tail.advance(first, end, 123, 1 << 30)
    assert (middle.seq, middle.position) == (123, world.written[122][0])
    assert world.read(middle, end) == world.written[123:]
    assert world.tail.find(world.written[200][0]).seq == 201
    assert world.tail.find(START) == first
    later = world.write(50, seed=2)
    assert world.tail.durable() == later
    assert world.read(end, later) == world.written[500:]
    assert world.tail.settled(middle) == middle


def test_repetitions_of_a_writer_that_lost_its_connection_are_left_out(world: World):
    world.wal.reset(START)
    first, end = world.tail.first(), world.write(20)
    assert first is not None
    parts, _ = encode_records(7, 17, world.written[16][0], world.written[17:20])
    for header, payload in zip(parts[::2], parts[1::2], strict=True):
        world.wal._produce(header + payload)
    world.wal._producer.flush(30)
    durable = world.tail.durable()
    assert durable is not None
    assert (durable.seq, durable.position, durable.offset) == (20, world.written[-1][0], end.offset + 3)
    assert world.read(first, durable) == world.written
    assert world.read(end, durable) == []


def test_a_wal_that_began_anew_does_not_have_the_old_places(world: World):
    world.wal.reset(START)
    world.write(10)
    first = world.tail.first()
    end = world.tail.durable()
    assert first is not None
    assert end is not None
    world.wal.reset(Position(9, 0))
    for place in (first, end):
        with pytest.raises(WalGone):
            world.tail.settled(place)
    world.write(5, seed=2)
    with pytest.raises(WalGone):
        world.tail.find(START)
    begin = world.tail.find(Position(9, 0))
    assert begin.seq == 10
    durable = world.tail.durable()
    assert durable is not None
    assert world.read(begin, durable) == world.written[10:]
