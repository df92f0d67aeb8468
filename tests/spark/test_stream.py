"""A streaming query from log to log, disturbed at every step: its output equals that of an undisturbed run."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.cli.embedded import Up
from tidelog.spark import commit_record
from tidelog.spark.kernel.decode import TIMESTAMP
from tidelog.spark.produce import LaneStart, LaneWriter

from . import faulty
from .world import Log, frame, numbered

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]  # one session is enough

PARTITIONS = 3
ROWS = 900  # in all partitions of the input
ROWS_A_BATCH = 300
QUERY_S_MAX = 120


def fill(log: Log, topic: str, begin: int = 0, end: int = ROWS) -> None:
    values = numbered(begin, end)
    batch = frame(
        values,
        key=pa.array([b"key-%d" % (number % 7) for number in range(begin, end)]),
        partition=pa.array([number % PARTITIONS for number in range(begin, end)], pa.int32()),
        timestamp=pa.array([(1_700_000_000_000 + number) * 1000 for number in range(begin, end)], TIMESTAMP),
    )
    with log.cluster() as cluster:
        LaneWriter(cluster, log.write_options(topic=topic), LaneStart(f"{topic} {begin}", 0), lambda: 0).write([batch])


def source(spark: SparkSession, log: Log, topic: str, **options: str) -> DataFrame:
    reader = spark.readStream.format("tidelog").option("kafka.bootstrap.servers", log.bootstrap)
    chosen = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_A_BATCH), **options}
    return reader.options(**chosen).load().select("key", "value", "partition", "timestamp")


def copy(rows: DataFrame, log: Log, topic: str, checkpoint: Path, format: str = "tidelog", **options: str) -> list[Any]:
    """Run until all that is there is copied; the progress of each batch."""
    writer = rows.writeStream.format(format).option("kafka.bootstrap.servers", log.bootstrap).option("topic", topic)
    writer = writer.option("checkpointLocation", str(checkpoint)).options(**options)
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_S_MAX)
        return [progress["numInputRows"] for progress in query.recentProgress]
    finally:
        query.stop()


def content(log: Log, topic: str) -> dict[int, list[dict[str, object]]]:
    """All but the topic's name."""
    return {
        partition: [{name: value for name, value in row.items() if name != "topic"} for row in rows]
        for partition, rows in log.rows(topic).items()
    }


def test_an_undisturbed_query_copies_everything_in_limited_batches(spark: SparkSession, log: Log, tmp_path: Path):
    given, copied = log.topic(PARTITIONS), log.topic(PARTITIONS)
    fill(log, given)
    assert copy(source(spark, log, given), log, copied, tmp_path / "checkpoint") == [ROWS_A_BATCH] * 3
    assert content(log, copied) == content(log, given)
    fill(log, given, ROWS, ROWS + 30)
    log.grow(given, PARTITIONS + 1)
    assert copy(source(spark, log, given), log, copied, tmp_path / "checkpoint") == [30]
    assert log.values(copied) == {part: numbered(0, ROWS + 30)[part::PARTITIONS] for part in range(PARTITIONS)}
    record = commit_record.load(tmp_path / "checkpoint" / "tidelog-sink")
    assert record is not None
    assert (record.batch_id, record.epoch, record.generation) == (3, 1, 4)
    assert json.loads(record.source_offsets[0]) == {given: {"0": 310, "1": 310, "2": 310, "3": 0}}


@pytest.mark.parametrize(
    "at",
    [
        faulty.BEFORE_WRITE,
        faulty.MID_WRITE,
        faulty.AFTER_WRITE,
        faulty.MID_WRITE_ALWAYS,
        faulty.BEFORE_COMMIT,
        faulty.AFTER_COMMIT,
    ],
)
def test_a_query_that_dies_goes_on_without_loss_or_repetition(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path, at: str
):
    check_a_query_that_dies(spark, tidelog_log, tmp_path, at)


@pytest.mark.parametrize("at", [faulty.MID_WRITE, faulty.MID_WRITE_ALWAYS, faulty.AFTER_COMMIT])
def test_a_query_that_dies_goes_on_also_on_kafka(spark: SparkSession, kafka_log: Log, tmp_path: Path, at: str):
    check_a_query_that_dies(spark, kafka_log, tmp_path, at)


def check_a_query_that_dies(spark: SparkSession, log: Log, tmp_path: Path, at: str) -> None:
    spark.dataSource.register(faulty.FaultySource)
    given, copied = log.topic(PARTITIONS), log.topic(PARTITIONS)
    fill(log, given)
    options = {"faultAt": at, "faultFolder": str(tmp_path)}
    rows = source(spark, log, given)
    if at in {faulty.BEFORE_WRITE, faulty.MID_WRITE, faulty.AFTER_WRITE}:  # the task is tried again
        copy(rows, log, copied, tmp_path / "checkpoint", "tidelog-faulty", **options)
    else:
        with pytest.raises(StreamingQueryException, match=at):
            copy(rows, log, copied, tmp_path / "checkpoint", "tidelog-faulty", **options)
        committed = commit_record.load(tmp_path / "checkpoint" / "tidelog-sink")
        assert committed is not None
        assert committed.batch_id == (1 if at == faulty.AFTER_COMMIT else 0)
        copy(rows, log, copied, tmp_path / "checkpoint", "tidelog-faulty", **options)
    assert list(tmp_path.glob("died-*")), "the fault did not happen"
    assert content(log, copied) == content(log, given)


def test_a_query_survives_the_death_of_a_leader(spark: SparkSession, mortal: Up, tmp_path: Path):
    log = Log(mortal.bootstrap, replicas=3)
    given, copied = log.topic(PARTITIONS), log.topic(PARTITIONS)
    fill(log, given, 0, 6000)
    writer = source(spark, log, given, maxOffsetsPerTrigger="1500").writeStream.format("tidelog").queryName("mortal")
    writer = writer.options(**{"kafka.bootstrap.servers": log.bootstrap, "topic": copied})
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        folder = tmp_path / "checkpoint" / "tidelog-sink"
        while (record := commit_record.load(folder)) is None or record.batch_id < 0:  # until the first batch is through
            assert query.isActive
            time.sleep(0.02)
        mortal.kill_node(log.leader(copied))
        assert query.awaitTermination(QUERY_S_MAX)
    finally:
        query.stop()
    assert content(log, copied) == content(log, given)


def test_a_lost_checkpoint_is_replaced_from_the_commit_record(spark: SparkSession, tidelog_log: Log, tmp_path: Path):
    log = tidelog_log
    given, copied = log.topic(PARTITIONS), log.topic(PARTITIONS)
    fill(log, given)
    commits = str(tmp_path / "commits")
    copy(source(spark, log, given), log, copied, tmp_path / "first", commitLocation=commits)
    fill(log, given, ROWS, ROWS + 90)
    record = commit_record.load(tmp_path / "commits")
    assert record is not None
    rows = source(spark, log, given, startingOffsets=record.source_offsets[0])
    assert copy(rows, log, copied, tmp_path / "second", commitLocation=commits) == [90]
    assert content(log, copied) == content(log, given)
    record = commit_record.load(tmp_path / "commits")
    assert record is not None
    assert (record.epoch, record.batch_id) == (2, 0)


def test_offsets_that_are_gone_stop_a_stream_unless_it_may_lose_them(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path
):
    log = tidelog_log
    given, copied = log.topic(PARTITIONS), log.topic(PARTITIONS)
    fill(log, given)
    copy(source(spark, log, given), log, copied, tmp_path / "checkpoint")
    fill(log, given, ROWS, ROWS + 30)
    log.trim(given, 0, 305)
    with pytest.raises(StreamingQueryException, match=f"{given}-0: offset 300 is gone, the log holds 305 to 310"):
        copy(source(spark, log, given), log, copied, tmp_path / "checkpoint")
    copy(source(spark, log, given, failOnDataLoss="false"), log, copied, tmp_path / "checkpoint")
    lost = set(numbered(ROWS, ROWS + 15)[0::PARTITIONS])
    expected = {
        part: [v for v in numbered(0, ROWS + 30)[part::PARTITIONS] if v not in lost] for part in range(PARTITIONS)
    }
    assert log.values(copied) == expected


def test_spark_tells_a_task_its_query_and_batch(spark: SparkSession, tidelog_log: Log, tmp_path: Path):
    """The sink stands on two internal names of Spark's; without them it refuses to write rather than guess."""
    log = tidelog_log
    given, copied = log.topic(), log.topic()
    with log.cluster() as cluster:
        options = log.write_options(topic=given)
        LaneWriter(cluster, options, LaneStart(given, 0), lambda: 0).write([frame(numbered(0, 5))])
    copy(source(spark, log, given), log, copied, tmp_path / "checkpoint")
    record = commit_record.load(tmp_path / "checkpoint" / "tidelog-sink")
    assert record is not None
    metadata = json.loads((tmp_path / "checkpoint" / "metadata").read_text())
    assert (record.query_id, record.batch_id) == (metadata["id"], 0)
