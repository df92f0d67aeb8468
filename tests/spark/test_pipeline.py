"""The pipeline of one database from its WAL into topics, through real Spark, disturbed at every step."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.sql import SparkSession

from tidelog.pikiwi.position import Position
from tidelog.spark.message_sink import MessageSink
from tidelog.spark.pipeline import database
from tidelog.spark.pipeline.database import state_folder
from tidelog.spark.pipeline.errors import DeliveryStopped

from . import faulty, faulty_pipeline
from .pikiwi_world import Source, shop
from .pipeline_world import Running, content, expected
from .world import Log

PARTITIONS = 3


@pytest.fixture
def world(tmp_path: Path, tidelog_log: Log) -> Iterator[tuple[Source, str]]:
    """A source whose events go to a topic of their own."""
    topic = tidelog_log.topic(PARTITIONS)
    source = Source(tmp_path, kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic)
    source.begin()
    yield source, topic
    source.close()


def test_events_go_to_the_partition_of_their_key_in_order_and_what_is_delivered_leaves_the_wal(
    spark: SparkSession, tidelog_log: Log, world: tuple[Source, str]
):
    source, topic = world
    source.write(shop(3000))
    assert source.wals["db0"].segment_count > 1
    with Running(spark, source) as running:
        running.catch_up()
        source.write(shop(200, seed=2))
        running.catch_up()
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)
    source.book()
    assert source.wals["db0"].segment_count == 1
    source.write(shop(100, seed=3))
    with Running(spark, source) as running:  # goes on behind what was cleaned away
        running.catch_up()
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)


def test_an_event_that_is_too_large_goes_to_the_dead_letters_and_the_others_go_on(
    spark: SparkSession, tidelog_log: Log, world: tuple[Source, str]
):
    source, topic = world
    small = [[b"SET", b"a", b"1"], [b"SET", b"b", b"2"]]
    source.write([small[0], [b"SET", b"large", b"x" * 1_000_000], small[1]])
    with Running(spark, source) as running:
        running.catch_up()
    events = source.events()
    assert content(tidelog_log, topic) == expected([events[0], events[2]], PARTITIONS)
    [letters] = [rows for rows in log_values(tidelog_log, f"{topic}.dead-letter") if rows]
    [letter] = [json.loads(value) for value in letters]
    assert letter["reason"] == "event_too_large"
    assert (letter["key"], letter["op"]) == ("large", "set")
    assert letter["position"] == json.loads(events[1].value)["position"]
    assert f"{topic} takes 1,000,000" in letter["message"]


@pytest.mark.parametrize("at", [faulty.MID_WRITE, faulty.MID_WRITE_ALWAYS, faulty.BEFORE_COMMIT, faulty.AFTER_COMMIT])
def test_what_dies_between_write_and_commit_goes_on_without_loss_or_repetition(
    spark: SparkSession, tidelog_log: Log, world: tuple[Source, str], at: str
):
    source, topic = world
    folder = state_folder(source.config)
    folder.mkdir()
    (folder / "fault").write_text(at)
    spark.dataSource.register(faulty_pipeline.FaultySink)
    try:
        source.write(shop(500))
        with Running(spark, source) as running:
            running.catch_up()
            source.write(shop(500, seed=2))
            running.catch_up()
            source.write(shop(500, seed=3))
            running.catch_up()
    finally:
        spark.dataSource.register(MessageSink)
    assert list(folder.glob("died-*")), "the fault did not happen"
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)


@pytest.mark.slow
def test_a_topic_that_has_grown_gets_the_rest_of_a_batch_where_the_batch_began(
    spark: SparkSession, tidelog_log: Log, world: tuple[Source, str]
):
    source, topic = world
    folder = state_folder(source.config)
    folder.mkdir()
    (folder / "fault").write_text(faulty.MID_WRITE_ALWAYS)
    first = shop(500)
    spark.dataSource.register(faulty_pipeline.FaultySink)
    try:
        source.write([[b"SET", b"first", b"1"]])
        with Running(spark, source) as running:
            running.catch_up()
            source.write(first)
            running.until(lambda: running.telling.failures)
    finally:
        spark.dataSource.register(MessageSink)
    tidelog_log.grow(topic, PARTITIONS + 1)
    with Running(spark, source) as running:
        running.catch_up()
        before = len(source.events())
        source.write([[b"SET", b"key-%d" % number, b"grown"] for number in range(100)])
        running.catch_up()
    events = source.events()
    parts = expected(events[:before], PARTITIONS), expected(events[before:], PARTITIONS + 1)
    assert content(tidelog_log, topic) == {
        number: parts[0].get(number, []) + parts[1][number] for number in range(PARTITIONS + 1)
    }


def test_a_filter_holds_events_back_and_what_it_holds_back_counts_as_delivered(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path
):
    topic = tidelog_log.topic(PARTITIONS)
    source = Source(tmp_path, kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic, filter=("key=wanted*",))
    source.begin()
    source.write([[b"SET", b"wanted", b"1"], *([b"SET", b"other-%d" % number, b"2"] for number in range(50))])
    with Running(spark, source) as running:
        running.catch_up()
    source.close()
    assert content(tidelog_log, topic) == expected(source.events()[:1], PARTITIONS)


@pytest.mark.slow
def test_a_cluster_that_refuses_for_ever_stops_the_pipeline_with_the_position(
    spark: SparkSession, world: tuple[Source, str], monkeypatch: pytest.MonkeyPatch
):
    source, _ = world
    source.write(shop(10))
    folder = state_folder(source.config)
    folder.mkdir()
    (folder / "fault").write_text(faulty_pipeline.ALWAYS)
    monkeypatch.setattr(database, "PAUSE_S_FIRST", 0.01)
    monkeypatch.setattr(database, "FAILURES_MAX", 2)
    spark.dataSource.register(faulty_pipeline.FaultySink)
    try:
        with Running(spark, source) as running:
            with pytest.raises(DeliveryStopped, match=r"up to 3:100 .* 2 times in a row: died always"):
                running.until(lambda: False)
            running.failure = None
    finally:
        spark.dataSource.register(MessageSink)


@pytest.mark.slow
def test_what_was_delivered_before_does_not_count_as_got_on_when_a_batch_fails_for_ever(
    spark: SparkSession, world: tuple[Source, str], monkeypatch: pytest.MonkeyPatch
):
    source, _ = world
    folder = state_folder(source.config)
    folder.mkdir()
    (folder / "fault").write_text("")
    monkeypatch.setattr(database, "PAUSE_S_FIRST", 0.01)
    monkeypatch.setattr(database, "FAILURES_MAX", 3)
    spark.dataSource.register(faulty_pipeline.FaultySink)
    try:
        source.write(shop(10))
        with Running(spark, source) as running:
            running.catch_up()
            delivered = source.wals["db0"].last_position
            (folder / "fault").write_text(faulty_pipeline.ALWAYS)
            source.write(shop(10, seed=2))
            with pytest.raises(DeliveryStopped, match=rf"up to {delivered} is delivered.* 3 times in a row: died"):
                running.until(lambda: False)
            running.failure = None
    finally:
        spark.dataSource.register(MessageSink)


def test_a_limit_that_was_lowered_holds_for_the_next_batch_too(
    spark: SparkSession, tidelog_log: Log, world: tuple[Source, str]
):
    source, topic = world
    source.write([[b"SET", b"a", b"1"]])
    with Running(spark, source) as running:
        running.catch_up()
    source.config = replace(source.config, kafka_message_max_bytes=10_000)
    source.write([[b"SET", b"large", b"x" * 20_000], [b"SET", b"b", b"2"]])
    with Running(spark, source) as running:
        running.catch_up()
    events = source.events()
    assert content(tidelog_log, topic) == expected([events[0], events[2]], PARTITIONS)
    assert len([value for rows in log_values(tidelog_log, f"{topic}.dead-letter") for value in rows]) == 1


def test_spark_keeps_its_checkpoint_here_whatever_its_own_file_system_is(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path
):
    topic = tidelog_log.topic(PARTITIONS)
    folder = tmp_path / "50% of a#b c%20d"
    source = Source(folder, kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic)
    source.begin()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    spark.conf.set("fs.viewfs.mounttable.elsewhere.linkFallback", elsewhere.as_uri())
    spark.conf.set("fs.defaultFS", "viewfs://elsewhere/")
    try:
        source.write(shop(100))
        with Running(spark, source) as running:
            running.catch_up()
        source.write(shop(100, seed=2))
        with Running(spark, source) as running:
            running.catch_up()
    finally:
        spark.conf.unset("fs.defaultFS")
        source.close()
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.slow
def test_a_wal_that_is_a_stream_is_delivered_and_begins_anew(spark: SparkSession, tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic(PARTITIONS)
    stream = {"wal_backend": "stream", "wal_stream_prefix": f"wal.{topic}"}
    source = Source(tmp_path, kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic, **stream)
    source.begin()
    source.write(shop(500))
    with Running(spark, source) as running:
        running.catch_up()
        source.write(shop(100, seed=2))
        running.catch_up()
        delivered = source.events()
        source.begin(Position(9, 0))
        source.write(shop(100, seed=3))
        running.catch_up()
    source.close()
    assert content(tidelog_log, topic) == expected([*delivered, *source.events()], PARTITIONS)


def log_values(log: Log, topic: str) -> list[list[bytes]]:
    return list(log.values(topic).values())
