"""What a pipeline does next, out of what stands in checkpoint, WAL and its own files."""

import threading
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tidelog.pikiwi.checkpoint import Checkpoint, DatabaseCheckpoint, Point, Snapshot
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.commit_record import CommitRecord, Written
from tidelog.spark.pipeline.errors import PipelineStateError, QueryIdle
from tidelog.spark.pipeline.generation import (
    Begin,
    DeliverBinlog,
    DeliverDump,
    Dump,
    Generation,
    GenerationFolder,
    Step,
    Wait,
    is_over,
    next_step,
    with_snapshot,
)
from tidelog.spark.pipeline.telling import DatabaseTelling

PLACE = WalPoint(7, Position(3, 100), 2, 0)
DUMP = Dump("uuid-1", Position(3, 100))
OTHER = Dump("uuid-2", Position(4, 0))
PRESENT = Generation(3, "lineage", PLACE, DUMP)


def checkpoint(state: str, dump: Dump | None = DUMP, lineage: str = "lineage") -> Checkpoint:
    snapshot = Snapshot(state, *((dump.position, 5, dump.uuid) if dump is not None else ()))  # type: ignore[arg-type]
    held = DatabaseCheckpoint(Point(7, PLACE.position), PLACE, snapshot)
    return Checkpoint("source", lineage, MappingProxyType({"db0": held}))


@pytest.mark.parametrize(
    ("held", "generation", "there", "step"),
    [
        (None, None, False, Wait),
        (Checkpoint("source"), None, False, Wait),
        (checkpoint("saving", None), PRESENT, True, Wait),
        (checkpoint("fetching", OTHER), PRESENT, True, Wait),
        (checkpoint("ready"), None, False, Begin(DUMP)),
        (checkpoint("ready"), PRESENT, True, Begin(DUMP)),  # the same dump again: the receiver was asked for all of it
        (checkpoint("running"), PRESENT, True, DeliverDump(DUMP)),
        (checkpoint("running"), PRESENT, False, DeliverDump(DUMP)),
        (checkpoint("running", OTHER), PRESENT, True, Begin(OTHER)),
        (checkpoint("running"), None, False, Begin(DUMP)),  # the pipeline's files were lost
        (checkpoint("running", lineage="new"), PRESENT, True, Begin(DUMP)),
        (checkpoint("done"), PRESENT, True, DeliverBinlog()),
        (checkpoint("done"), PRESENT, False, Begin(None)),  # a start was chosen
        (checkpoint("none", None), None, False, Begin(None)),
        (checkpoint("none", None), replace(PRESENT, dump=None), True, DeliverBinlog()),
        (checkpoint("none", None, "new"), PRESENT, True, Begin(None)),
    ],
)
def test_the_next_step(held: Checkpoint | None, generation: Generation | None, there: bool, step: Step | type[Wait]):
    found = next_step(held, "db0", generation, place_is_there=there)
    assert isinstance(found, Wait) if step is Wait else found == step


@pytest.mark.parametrize(
    ("held", "over"),
    [
        (None, True),
        (checkpoint("done"), False),
        (checkpoint("running"), False),
        (checkpoint("running", OTHER), True),
        (checkpoint("saving", None), True),
        (checkpoint("fetching", OTHER), True),
        (checkpoint("ready"), True),
        (checkpoint("done", lineage="new"), True),
    ],
)
def test_a_generation_is_over_when_a_dump_or_a_lineage_takes_its_place(held: Checkpoint | None, over: bool):
    assert is_over(held, "db0", PRESENT) is over


def test_the_state_of_a_dump_is_written_only_while_it_is_the_present_one():
    done = Snapshot("done", DUMP.position, 9, DUMP.uuid)
    assert with_snapshot(checkpoint("running"), "db0", DUMP, done).database("db0").snapshot == done
    for other in (checkpoint("running", OTHER), checkpoint("fetching"), checkpoint("saving", None)):
        assert with_snapshot(other, "db0", DUMP, done) == other


def test_a_generation_is_found_again_and_older_ones_go(tmp_path: Path):
    folder = GenerationFolder(tmp_path / "db0")
    assert folder.load() is None
    (tmp_path / "db0" / "2").mkdir(parents=True)
    (tmp_path / "db0" / "3").mkdir()
    folder.save(PRESENT)
    assert folder.load() == PRESENT
    assert not (tmp_path / "db0" / "2").exists()
    assert folder.of(PRESENT).is_dir()
    without = replace(PRESENT, number=4, dump=None)
    folder.save(without)
    assert folder.load() == without


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 9}', b'{"format": 1}'])
def test_a_file_that_is_no_generation_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes):
    (tmp_path / "generation.json").write_bytes(content)
    with pytest.raises(PipelineStateError, match="restore it"):
        GenerationFolder(tmp_path).load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[STREAM_FAILED] Query x terminated with exception: Job aborted due to stage failure: Task 0 in stage 1\n"
            'Traceback (most recent call last):\n  File "x.py", line 1, in read\n    raise It\n'
            "tidelog.spark.errors.DeliveryFailed: events-0: nothing could be written\n\nDriver stacktrace:\n"
            "org.apache.spark.SparkException: other\n",
            "events-0: nothing could be written",
        ),
        ("[NOT_FOUND] no such thing\nmore", "[NOT_FOUND] no such thing"),
        ("java.lang.Error: one\ntidelog.pikiwi.wal.reader.WalGone: two", "two"),
        ("Python worker failed.\n=== Streaming Query ===\nIdentifier: db0 [id = 1]", "Python worker failed."),
    ],
)
def test_the_last_words_of_a_query_are_its_python_error(text: str, words: str):
    query = pytest.importorskip("tidelog.spark.pipeline.query")
    assert query.last_words(RuntimeError(text)) == words


def test_what_a_commit_record_counts_is_what_was_produced_held_back_or_too_large():
    query = pytest.importorskip("tidelog.spark.pipeline.query")
    lanes = {
        0: {("events", 0): Written(3, 9), ("events", 1): Written(4, 9), ("events.dead-letter", 0): Written(1, 2)},
        1: {("events", 1): Written(10, 30)},
    }
    counts = query.counts(CommitRecord("id", 1, lanes=lanes, left_out=5), "events")
    assert (counts.produced, counts.filtered, counts.dead_letters, counts.done) == (17, 5, 1, 23)


def test_a_query_that_has_something_to_deliver_and_does_nothing_is_ended(tmp_path: Path):
    database = pytest.importorskip("tidelog.spark.pipeline.database")
    config = Config(master_port=9221, wal_dir=tmp_path / "wal", checkpoint_path=tmp_path / "checkpoint.json")
    telling = DatabaseTelling("db0")
    pipeline = database.DatabasePipeline(None, config, "db0", threading.Event(), telling)
    telling.moved_s = time.monotonic() - database.IDLE_S_MAX - 1
    telling.phase = "binlog"
    pipeline._turn()
    assert time.monotonic() - telling.moved_s < database.IDLE_S_MAX, "nothing waits: that is no idleness"
    telling.moved_s, telling.phase = time.monotonic() - database.IDLE_S_MAX - 1, "snapshot"
    with pytest.raises(QueryIdle, match="the query is started anew"):
        pipeline._turn()
