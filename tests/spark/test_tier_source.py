"""`tier.path` of the source, against a node that tiers to a folder: the rows of a read from the node alone."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.cli.embedded import Up
from tests.ports import free_port
from tidelog.spark.errors import DataLost
from tidelog.spark.kernel.decode import RECORD_SCHEMA
from tidelog.spark.kernel.options import read_options
from tidelog.spark.produce import LaneStart, LaneWriter
from tidelog.spark.sink import now_ms
from tidelog.spark.source import LogReader, LogStreamReader

from .world import Log, frame

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]  # one session is enough

ROWS = 6_000
VALUE_BYTES = 1_000
DIGEST = "bit_xor(xxhash64(key, value, topic, partition, offset, timestamp, timestampType)) digest, count(1) count"
LOCAL_START = -4  # what ListOffsets calls the first offset on disk
TIERED_S_MAX = 60.0
TIERED = {"remote.storage.enable": "true", "local.retention.bytes": "1"}
PAUSE_S = 0.05


@dataclass(frozen=True)
class Tiered:
    log: Log
    topic: str
    options: dict[str, str]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    """Two partitions of about 3 MB each, most of it in the store only, compressed there."""
    folder = tmp_path_factory.mktemp("tiered")
    settings = {
        "storage.segment.bytes": 1 << 20,
        "retention.check.ms": 50,
        "remote.log.storage.system.enable": "true",
        "remote.log.store.url": f"file://{folder}/store",
        "remote.log.manager.task.interval.ms": 50,
        "remote.log.compress": "true",
    }
    given = [text for name, value in settings.items() for text in ("--set", f"{name}={value}")]
    up = Up(folder, "--nodes", "1", "--port", "0", "--console-port", "0", *given)
    try:
        log = Log(up.bootstrap, replicas=1)
        topic = log.topic(2, TIERED)
        fill(log, topic)
        yield Tiered(
            log, topic, {"subscribe": topic, "tier.path": f"file://{folder}/store", "tier.rangeBytes": "600000"}
        )
    finally:
        up.kill()


def fill(log: Log, topic: str) -> None:
    """And wait until each partition's first record is no longer on disk."""
    values = [b"%06d " % number + b"." * VALUE_BYTES for number in range(ROWS)]
    partitions = pa.array([number % 2 for number in range(ROWS)], pa.int32())
    options = log.write_options(topic=topic, **{"kafka.batch.size": "16384"})
    places = [(topic, 0), (topic, 1)]
    with log.cluster() as cluster:
        LaneWriter(cluster, options, LaneStart("fill", 0), now_ms).write([frame(values, partition=partitions)])
        give_up = time.monotonic() + TIERED_S_MAX
        while min(cluster.at_times(dict.fromkeys(places, LOCAL_START)).values()) == 0:
            assert time.monotonic() < give_up, "nothing was tiered"
            time.sleep(PAUSE_S)


def options_of(tiered: Tiered, *, streaming: bool = False, **more: str) -> Any:
    given = {"kafka.bootstrap.servers": tiered.log.bootstrap, **tiered.options, **more}
    return read_options(given, streaming=streaming)


def test_what_lies_in_the_store_is_read_without_a_broker(tiered: Tiered):
    options = options_of(tiered)
    parts = LogReader(options).partitions()
    stored = [part for part in parts if part.stored]
    assert all((run.start, run.end) == (part.start, part.end) for part in stored for run in part.stored)
    assert len(stored) > 4, "inside segments"
    nobody = LogReader(replace(options, bootstrap=(("127.0.0.1", free_port()),)))
    found = {0: [], 1: []}
    for part in sorted(stored, key=lambda each: each.start):
        for rows in nobody.read(part):
            found[part.partition] += rows.to_pylist()
    everything = tiered.log.rows(tiered.topic)
    for partition, rows in found.items():
        assert len(rows) > ROWS // 4
        expected = [
            {name: row[name] for name in RECORD_SCHEMA.names if name != "headers"} for row in everything[partition]
        ]
        assert rows == expected[: len(rows)]


def test_what_is_copied_and_deleted_underneath_makes_an_error_and_never_a_gap(tiered: Tiered):
    """Planned once, then read while the node goes on copying, and after it has deleted."""
    log, topic, trimmed = tiered.log, tiered.log.topic(2, TIERED), ROWS // 4
    fill(log, topic)
    everything = log.rows(topic)
    reader = LogReader(options_of(replace(tiered, options={**tiered.options, "subscribe": topic})))
    parts = reader.partitions()
    assert any(part.stored for part in parts)

    def read(part: Any) -> None:
        rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
        expected = everything[part.partition][part.start : part.end]
        assert rows == [{name: row[name] for name in RECORD_SCHEMA.names if name != "headers"} for row in expected]

    fill(log, topic)  # what the plan leaves to brokers is copied meanwhile, and leaves the disk
    for part in parts:
        read(part)
    log.trim(topic, 0, trimmed)
    (folder,) = Path(tiered.options["tier.path"].removeprefix("file://")).glob(f"{topic}-*/0")
    give_up = time.monotonic() + TIERED_S_MAX
    while any(path.name < f"{1:020d}" for path in folder.glob("*.log")):
        assert time.monotonic() < give_up, "nothing was deleted"
        time.sleep(PAUSE_S)
    lost = 0
    for part in parts:
        try:
            read(part)  # all of it, or nothing
        except DataLost:
            assert (part.partition, part.start < trimmed) == (0, True)
            lost += 1
    assert lost > 0


def test_spark_reads_the_same_rows_with_and_without_the_store(spark: SparkSession, tiered: Tiered):
    given = {"kafka.bootstrap.servers": tiered.log.bootstrap, **tiered.options}
    without = {name: value for name, value in given.items() if not name.startswith("tier.")}
    digests = [
        spark.read.format("tidelog").options(**options).load().selectExpr(*DIGEST.rsplit(", ", 1)).collect()[0]
        for options in (given, without)
    ]
    assert digests[0] == digests[1]
    assert digests[0]["count"] == ROWS


def test_a_stream_catches_up_from_the_store_and_goes_on_with_brokers(
    spark: SparkSession, tiered: Tiered, tmp_path: Path
):
    given = {"kafka.bootstrap.servers": tiered.log.bootstrap, **tiered.options}
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS // 3)}
    rows = spark.readStream.format("tidelog").options(**given, **options).load()
    sink = {"checkpointLocation": str(tmp_path / "checkpoint"), "path": str(tmp_path / "rows")}
    query = rows.writeStream.format("parquet").options(**sink).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(120)
        assert query.exception() is None
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "rows"))
    assert found.count() == found.select("partition", "offset").distinct().count() == ROWS


def test_the_parts_of_a_stream_do_not_depend_on_the_store(tiered: Tiered):
    """A micro-batch that is run again must have the same tasks, whatever was copied or deleted meanwhile."""
    options = options_of(tiered, streaming=True, startingOffsets="earliest", minPartitions="6")
    with_store, without = LogStreamReader(options), LogStreamReader(replace(options, tier=None))
    try:
        start = with_store.initialOffset()
        end = with_store.latestOffset(start, with_store.getDefaultReadLimit())
        parts, plain = with_store.partitions(start, end), without.partitions(start, end)
        assert [replace(part, stored=()) for part in parts] == plain
        assert len(parts) == 6
        assert any(part.stored for part in parts)
    finally:
        with_store.stop()
        without.stop()


def test_a_store_that_is_not_there_is_told_at_once(spark: SparkSession, tiered: Tiered):
    given = {"kafka.bootstrap.servers": tiered.log.bootstrap, "subscribe": tiered.topic, "tier.path": "file:///nowhere"}
    with pytest.raises(PySparkException, match=r"tier\.path: there is no folder /nowhere here"):
        spark.read.format("tidelog").options(**given).load().collect()
