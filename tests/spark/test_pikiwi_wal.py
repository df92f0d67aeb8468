"""`pikiwi-wal` read through Spark: every kind of row, in batches, over restarts."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import StreamingQueryException
from pyspark.sql import Row, SparkSession

from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.checkpoint import Point
from tidelog.pikiwi.resp import parse_command

from .pikiwi_world import Source, shop

QUERY_S_MAX = 120


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    made.begin()
    yield made
    made.close()


def rows(spark: SparkSession, source: Source, checkpoint: Path, **options: str) -> list[Row]:
    """Everything that is there now, by a query that ends with it; the rows of this run."""
    found: list[Row] = []
    reader = spark.readStream.format("pikiwi-wal").option("settings", json.dumps(source.settings)).options(**options)
    writer = reader.load().writeStream.foreachBatch(lambda batch, _number: found.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_S_MAX)
        return found
    finally:
        query.stop()


def test_events_are_those_of_the_builder_in_order_and_go_on_after_a_restart(
    spark: SparkSession, source: Source, tmp_path: Path
):
    source.write(shop(3000))
    found = rows(spark, source, tmp_path / "c", maxRecordsPerTrigger="1000")
    expected = source.events()
    assert [(row.key, row.value, row.broadcast) for row in found] == expected
    assert {row.db for row in found} == {"db0"}
    assert [row.seq for row in found] == sorted(row.seq for row in found)
    last = found[-1]
    assert (last.filenum, last.offset) == source.written["db0"][-1][0]
    source.write(shop(200, seed=2))
    after = rows(spark, source, tmp_path / "c")
    assert [row.value for row in after] == [event.value for event in source.events()[len(expected) :]]


def test_typed_rows_are_the_commands_with_absolute_times(spark: SparkSession, source: Source, tmp_path: Path):
    source.write(shop(1000))
    found = rows(spark, source, tmp_path / "c", decode="typed")
    assert len(found) == 1000
    for row, (position, payload) in zip(found, source.written["db0"], strict=True):
        item = decode_item(payload)
        args = parse_command(item.content)
        if args[0] == b"pksetexat":
            args = [b"SET", args[1], args[3], b"EXAT", args[2]]
        assert [bytes(word) for word in row.args] == args
        assert (row.op, row.exec_ms) == (args[0].decode().lower(), item.exec_time_s * 1000)
        assert row.key == (args[1] if len(args) > 1 else None)
        assert (row.filenum, row.offset) == position
    assert {row.data_type for row in found if row.op == "rpush"} == {"list"}


@pytest.mark.slow
def test_raw_rows_are_the_items_of_all_databases(spark: SparkSession, tmp_path: Path):
    source = Source(tmp_path, ("db0", "db1"))
    for db in ("db0", "db1"):
        source.begin(db=db)
        source.write(shop(100, seed=len(db)), db)
    found = rows(spark, source, tmp_path / "c", decode="raw", startingOffsets="earliest")
    for db in ("db0", "db1"):
        assert [row.payload for row in found if row.db == db] == [payload for _, payload in source.written[db]]
    source.close()


@pytest.mark.slow
def test_a_segment_that_was_cleaned_away_at_a_batch_s_end_does_not_stop_the_query(
    spark: SparkSession, source: Source, tmp_path: Path
):
    source.write(shop(2000))
    rows(spark, source, tmp_path / "c")
    wal = source.wals["db0"]
    assert wal.durable is not None
    source.file.advance_ack("db0", 0, Point(wal.durable.seq, wal.durable.position))
    source.write(shop(2000, seed=2))
    assert wal.segment_count < 8
    found = rows(spark, source, tmp_path / "c")
    assert [row.value for row in found] == [event.value for event in source.events()[-len(found) :]]
    assert found[0].seq == 2001


@pytest.mark.slow
def test_a_wal_that_began_anew_stops_the_query(spark: SparkSession, source: Source, tmp_path: Path):
    source.write(shop(10))
    rows(spark, source, tmp_path / "c")
    source.write(shop(10, seed=2))
    source.begin(source.written["db0"][-1][0])
    with pytest.raises(StreamingQueryException, match="record 11 is no longer in"):
        rows(spark, source, tmp_path / "c")
