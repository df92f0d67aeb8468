"""Batches come whole, in order and complete, whatever happens to the cluster meanwhile."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.embedded import Up
from tests.ports import free_port
from tidelog.spark.cluster import Cluster
from tidelog.spark.errors import DataLost, NoAnswer
from tidelog.spark.fetch import FetchOrigin, whole_batches
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_records
from tidelog.spark.kernel.options import Subscription
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.produce import LaneStart, LaneWriter
from tidelog.wire.records import Record, build_batch

from .world import Log, frame, numbered, rows_between

VALUE = pa.schema([RECORD_SCHEMA.field("value")])


def fill(log: Log, topic: str, values: list[bytes], partition: int = 0) -> None:
    """In many small batches."""
    column = pa.array([partition] * len(values), pa.int32())
    options = log.write_options(topic=topic, **{"kafka.batch.size": "4096"})
    with log.cluster() as cluster:
        start = LaneStart(f"fill {topic} {partition} {values[0]!r}", 0)
        LaneWriter(cluster, options, start, lambda: 0).write([frame(values, partition=column)])


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 400), st.integers(0, 20))
def test_a_run_ends_with_its_last_whole_batch(counts, kept, end):
    batches, ends, offset = [], [], 0
    for count in counts:
        batches.append(build_batch([Record(b"value")] * count, offset))
        offset += count
        ends.append(offset)
    data = b"".join(map(bytes, batches))[:kept]
    run, next_offset = whole_batches(memoryview(data), end)
    whole = 0
    while whole < len(batches) and sum(map(len, batches[: whole + 1])) <= kept and ([0, *ends])[whole] < end:
        whole += 1
    assert bytes(run) == b"".join(map(bytes, batches[:whole]))
    if whole:
        assert next_offset is not None
        assert next_offset >= min(ends[whole - 1], end)


def test_a_range_may_begin_and_end_within_a_batch(log: Log):
    topic = log.topic()
    fill(log, topic, numbered(0, 1000))
    with log.cluster() as cluster:
        rows = list(rows_between(cluster, OffsetRange(topic, 0, 333, 777)))
    assert [row["value"] for row in rows] == numbered(333, 777)
    assert [row["offset"] for row in rows] == list(range(333, 777))


def test_reading_goes_on_with_the_next_leader(mortal: Up):
    log = Log(mortal.bootstrap, replicas=3)
    topic = log.topic()
    fill(log, topic, numbered(0, 20_000))
    found: list[bytes] = []
    with log.cluster() as cluster:
        runs = FetchOrigin(cluster, 16 << 10, fail_on_data_loss=True).runs(OffsetRange(topic, 0, 0, 20_000))
        for number, run in enumerate(runs):
            if number == 3:
                mortal.kill_node(log.leader(topic))
            for batch in decode_records(run.data, Place(topic, 0, run.start, 20_000), VALUE):
                found += batch.column(0).to_pylist()
    assert found == numbered(0, 20_000)


@pytest.mark.parametrize("start", [0, 5])
def test_offsets_that_are_gone_are_an_error_or_left_out(tidelog_log: Log, start: int):
    topic = tidelog_log.topic()
    fill(tidelog_log, topic, numbered(0, 1000))
    tidelog_log.trim(topic, 0, 600)
    wanted = OffsetRange(topic, 0, start, 1000)
    with tidelog_log.cluster() as cluster:
        with pytest.raises(DataLost, match=rf"{topic}-0: offset {start} is gone, the log holds 600 to 1000"):
            list(FetchOrigin(cluster, 1 << 20, fail_on_data_loss=True).runs(wanted))
        rows = [
            value
            for run in FetchOrigin(cluster, 1 << 20, fail_on_data_loss=False).runs(wanted)
            for batch in decode_records(run.data, Place(topic, 0, run.start, 1000), VALUE)
            for value in batch.column(0).to_pylist()
        ]
    assert rows == numbered(600, 1000)


def test_a_log_that_ends_too_early_is_data_lost(tidelog_log: Log):
    topic = tidelog_log.topic()
    fill(tidelog_log, topic, numbered(0, 10))
    with tidelog_log.cluster() as cluster, pytest.raises(DataLost, match="ends at 10, offset 20 was there before"):
        list(FetchOrigin(cluster, 1 << 20, fail_on_data_loss=True).runs(OffsetRange(topic, 0, 0, 20)))


def test_a_topic_that_nobody_knows_is_named(tidelog_log: Log, monkeypatch):
    monkeypatch.setattr("tidelog.spark.cluster.UNKNOWN_TOPIC_S_MAX", 0.0)
    with tidelog_log.cluster() as cluster, pytest.raises(NoAnswer, match="there is no topic nowhere: make it first"):
        cluster.partitions(Subscription(topics=("nowhere",)))


def test_a_partition_that_is_not_there_is_named(tidelog_log: Log):
    topic = tidelog_log.topic(2)
    with tidelog_log.cluster() as cluster:
        assert cluster.partitions(Subscription(partitions=((topic, 1),))) == [(topic, 1)]
        with pytest.raises(NoAnswer, match=f"topic {topic} has no partition 2: it has 2"):
            cluster.partitions(Subscription(partitions=((topic, 2),)))


def test_a_pattern_matches_whole_names(tidelog_log: Log):
    for name in ("pattern-a", "pattern-b", "a-pattern-a"):
        tidelog_log.topic(name=name)
    with tidelog_log.cluster() as cluster:
        found = cluster.partitions(Subscription(pattern="pattern-[ab]"))
    assert found == [("pattern-a", 0), ("pattern-b", 0)]


def test_a_silent_cluster_ends_in_an_error_that_says_where():
    with Cluster([("127.0.0.1", free_port())], 1.0, answer_s=0.1) as cluster, pytest.raises(NoAnswer, match="refused"):
        cluster.topics(["t"])
