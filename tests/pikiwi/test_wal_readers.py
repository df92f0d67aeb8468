"""Readers beside the pipeline hold the WAL back, within bounds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pikiwi.master_world import World, in_world
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.wal.readers import RENEW_S, Reader, ReaderLimits, Readers, readers_folder

LINEAGE = "a" * 50
FILE_BYTES = 1_000
ACK = Position(9, 500)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.json"


def cleaned_to(
    checkpoint: Path,
    *,
    bytes_max: int = 5_000,
    later_s: float = 0.0,
    wal_first: Position = ZERO,
    full: bool = False,
    lineage: str = LINEAGE,
    db: str = "db0",
    readers: Readers | None = None,
) -> Position:
    newest = max((path.stat().st_mtime for path in readers_folder(checkpoint).glob("*.json")), default=0.0)
    asked = readers or Readers(checkpoint, ReaderLimits(bytes_max, hours_max=2), lambda: newest + later_s)
    return asked.clean_to(
        asked.marks(), db, lineage, ACK, wal_first=wal_first, file_bytes=FILE_BYTES, full=full
    )  # fmt: skip


def test_without_readers_ackcp_alone_decides(checkpoint: Path):
    assert cleaned_to(checkpoint) == ACK


def test_the_reader_that_is_furthest_behind_decides_for_its_database(checkpoint: Path):
    for name, position in (("one", Position(9, 100)), ("two", Position(8, 900)), ("ahead", Position(9, 900))):
        Reader(checkpoint, name).has(LINEAGE, "db0", position)
    assert cleaned_to(checkpoint) == Position(8, 900)
    assert cleaned_to(checkpoint, db="db1") == ACK
    Reader(checkpoint, "two").has(LINEAGE, "db0", ACK)
    assert cleaned_to(checkpoint) == Position(9, 100)


def test_positions_of_another_lineage_hold_back_nothing(checkpoint: Path):
    Reader(checkpoint, "one").has("b" * 50, "db0", Position(9, 100))
    assert cleaned_to(checkpoint) == ACK


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"bytes_max": 399}, "more than 399 bytes behind AckCP"),
        ({"later_s": 2 * 3600 + 1}, "not come for 2 hours"),
        ({"full": True}, "reached wal_bytes_max"),
        ({"wal_first": Position(9, 101)}, "the WAL begins behind it"),
    ],
)
def test_a_reader_beyond_a_bound_no_longer_counts_and_is_named(checkpoint: Path, caplog, given, why: str):
    Reader(checkpoint, "/lake/state").has(LINEAGE, "db0", Position(9, 100))
    assert cleaned_to(checkpoint, bytes_max=400, later_s=2 * 3600) == Position(9, 100)
    assert not caplog.records
    assert cleaned_to(checkpoint, **given) == ACK
    assert why in caplog.text
    assert "/lake/state" in caplog.text


def test_a_warning_comes_once_until_the_reader_counts_again(checkpoint: Path, caplog):
    reader = Reader(checkpoint, "slow")
    readers = Readers(checkpoint, ReaderLimits(bytes_max=300, hours_max=2))
    for position in (Position(9, 100), Position(9, 150), Position(9, 200), Position(9, 100)):
        reader.has(LINEAGE, "db0", position)
        cleaned_to(checkpoint, readers=readers)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_reader_renews_its_file_when_it_moves_and_now_and_then(checkpoint: Path):
    clock = Clock()
    reader = Reader(checkpoint, "one", clock)
    reader.has(LINEAGE, "db0", Position(9, 100))
    (path,) = readers_folder(checkpoint).glob("*.json")

    def renewed(do: Callable[[], None]) -> bool:
        os.utime(path, (0, 0))
        do()
        return path.stat().st_mtime > 0

    assert not renewed(lambda: reader.has(LINEAGE, "db0", Position(9, 100)))
    assert renewed(lambda: reader.has(LINEAGE, "db0", Position(9, 200)))
    clock.now_s += RENEW_S
    assert renewed(lambda: reader.has(LINEAGE, "db0", Position(9, 200)))
    assert renewed(lambda: reader.has("b" * 50, "db0", Position(9, 200)))


def test_a_reader_that_starts_again_keeps_what_it_said_of_other_databases(checkpoint: Path):
    Reader(checkpoint, "one").has(LINEAGE, "db0", Position(9, 100))
    Reader(checkpoint, "one").has(LINEAGE, "db1", Position(9, 300))
    assert cleaned_to(checkpoint) == Position(9, 100)
    assert cleaned_to(checkpoint, db="db1") == Position(9, 300)


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"format": 2}', '{"format": 1, "reader": 1, "positions": {"a": 1}}']
)
def test_a_file_that_makes_no_sense_holds_back_nothing(checkpoint: Path, content: str):
    readers_folder(checkpoint).mkdir()
    (readers_folder(checkpoint) / "x.json").write_text(content)
    assert cleaned_to(checkpoint) == ACK


@in_world()
async def test_a_receiver_keeps_in_its_wal_what_a_reader_has_not_read(world: World) -> None:
    world.write(500)
    await world.begin(filenum=0, offset=0, wal_segment_bytes=4096, wal_retain_segments=1)
    await world.catch_up()
    records = world.records()
    halfway, last = records[250], records[-1]
    reader = Reader(world.config.checkpoint_path, "table")
    reader.has(world.master.settings.replication_id, "db0", halfway.position)
    CheckpointFile(world.config.checkpoint_path, world.config.source).advance_ack(
        "db0", 0, Point(last.seq, last.position)
    )
    await world.until(lambda: (world.progress().wal_first or ZERO) > ZERO)
    assert world.records()[0].seq <= halfway.seq + 1
    reader.has(world.master.settings.replication_id, "db0", last.position)
    await world.until(lambda: len(world.records()) < 100)
