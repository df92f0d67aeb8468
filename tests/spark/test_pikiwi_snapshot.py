"""Dumps read through Spark, and delivered by the pipeline before the binlog behind them."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.sql import SparkSession

from tidelog.pikiwi.checkpoint import Snapshot
from tidelog.pikiwi.dump import DumpInfo, plan, read_range
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.spark import pikiwi_snapshot
from tidelog.spark.kernel.messages import Delivery
from tidelog.spark.kernel.snapshot_rows import load_plan, save_plan
from tidelog.spark.kernel.wal_options import event_rules
from tidelog.spark.message_sink import MessageSink
from tidelog.spark.orders import Delivered, DumpOrder
from tidelog.spark.pipeline import database

from . import faulty, faulty_pipeline
from .pikiwi_world import LINEAGE, Source, shop
from .pipeline_world import Running, content, expected
from .world import Log

FIXTURES = Path(__file__).parent.parent / "pikiwi" / "fixtures"
RECORDED = FIXTURES / "dump-4.0.1"
NOW_MS = 1_700_000_000_000
PARTITIONS = 3
STEPS = (
    faulty.BEFORE_WRITE,
    faulty.MID_WRITE,
    faulty.MID_WRITE_ALWAYS,
    faulty.AFTER_WRITE,
    faulty.BEFORE_COMMIT,
    faulty.AFTER_COMMIT,
)


def source_with_dump(folder: Path, log: Log | None = None, uuid: str = "uuid-1", **settings: Any) -> Source:
    """A receiver has fetched the recorded dump, and its WAL begins at the dump's position."""
    brokers = {} if log is None else {"kafka_brokers": log.bootstrap}
    source = Source(folder, **brokers, **settings)
    place_dump(source, uuid)
    return source


def place_dump(source: Source, uuid: str) -> None:
    target = source.config.dump_path / "db0"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(RECORDED, target)
    position = DumpInfo.load(target).position
    source.file.set_snapshot("db0", Snapshot("saving"))
    source.begin(position)
    source.file.set_snapshot("db0", Snapshot("fetching", position, 0, uuid))
    source.write([[b"SET", b"first-behind-the-dump", uuid.encode()]])
    source.file.set_snapshot("db0", Snapshot("ready", position, 0, uuid))


def snapshot_values(source: Source, ts_ms: int) -> list[bytes]:
    """What the plain reader and builder make of the dump."""
    folder = source.config.dump_path / "db0"
    builder = EventBuilder(EventSettings("db0", source.config.source, LINEAGE))
    position = DumpInfo.load(folder).position
    events = [
        builder.snapshot_event(command, position, ts_ms)
        for one in plan(folder, now_ms=ts_ms)
        for command in read_range(one)
    ]
    return [event.value for event in events if event is not None]


def time_of(values: list[bytes]) -> int:
    [ts_ms] = {json.loads(value)["ts_ms"] for value in values}
    return ts_ms


def test_a_dump_is_read_in_every_form_by_any_number_of_tasks(spark: SparkSession, tmp_path: Path):
    source = source_with_dump(tmp_path)
    source.close()
    reader = spark.read.format("pikiwi-snapshot").option("settings", json.dumps(source.settings))
    events = reader.option("ranges", "4").load().collect()
    found = [bytes(row.value) for row in events]
    assert Counter(found) == Counter(snapshot_values(source, time_of(found)))
    assert {row.seq for row in events} == {0}
    typed = reader.option("decode", "typed").load().collect()
    commands = reader.option("decode", "command").load().collect()
    assert len(found) > 20
    words = Counter(tuple(map(bytes, row.args)) for row in typed)
    assert words == Counter(tuple(map(bytes, row.args)) for row in commands)
    assert words == Counter(
        command.args for one in plan(tmp_path / "dump" / "db0", now_ms=time_of(found)) for command in read_range(one)
    )


def test_a_plan_is_the_same_when_it_is_read_back(tmp_path: Path):
    source = source_with_dump(tmp_path, filter=("key=a*,b",))
    source.close()
    made = pikiwi_snapshot.plan_dump(tmp_path / "dump" / "db0", source.config, NOW_MS, ranges=5, width=2)
    assert made.ranges
    save_plan(tmp_path / "plan.json", made)
    assert load_plan(tmp_path / "plan.json") == made


def test_an_order_for_a_range_delivers_or_leaves_out_every_command_of_it(tmp_path: Path):
    source = source_with_dump(tmp_path, filter=("type=string,hash",), snapshot_reader_types="string,hash,set")
    source.close()
    folder = tmp_path / "dump" / "db0"
    made = pikiwi_snapshot.plan_dump(folder, source.config, NOW_MS, ranges=3)
    rules = event_rules(source.config, "db0", LINEAGE)
    orders = [DumpOrder(rules, one, made.position, NOW_MS, Delivery("t", PARTITIONS, 1 << 20)) for one in made.ranges]
    delivered = Delivered(orders)
    sent = sum(rows.num_rows for rows in delivered)
    read = Counter(command.data_type for one in made.ranges for command in read_range(one))
    assert read["set"], "something has to be left out"
    assert (sent, delivered.left_out) == (read["string"] + read["hash"], read["set"])


@pytest.mark.parametrize("mode", ["dual", pytest.param("single", marks=pytest.mark.slow)])
def test_the_dump_is_delivered_and_then_the_binlog_that_arrived_meanwhile(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path, mode: str
):
    topics = [tidelog_log.topic(PARTITIONS), tidelog_log.topic(PARTITIONS)]
    if mode == "single":
        topics[1] = topics[0]
    names = {"kafka_topic_snapshot": topics[0], "kafka_topic_binlog": topics[1], "kafka_topic_single": topics[0]}
    source = source_with_dump(tmp_path, tidelog_log, kafka_stream_mode=mode, **names)
    with Running(spark, source) as running:
        running.catch_up()
        source.write(shop(100))
        running.catch_up()
        snapshot = running.held().snapshot
    source.close()
    binlog = expected(source.events(), PARTITIONS)
    found = content(tidelog_log, topics[0])
    if mode == "single":  # in every partition the snapshot comes first
        for number, rows in found.items():
            count = len(rows) - len(binlog[number])
            assert rows[count:] == binlog[number]
            found[number] = rows[:count]
    else:
        assert content(tidelog_log, topics[1]) == binlog
    values = [value for rows in found.values() for _, value in rows]
    assert Counter(values) == Counter(snapshot_values(source, time_of(values)))
    assert (snapshot.state, snapshot.snapshot_seq, snapshot.uuid) == ("done", len(values), "uuid-1")


@pytest.mark.slow
@pytest.mark.parametrize("at", STEPS)
def test_a_dump_whose_delivery_dies_at_any_step_goes_on_without_loss_or_repetition(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
):
    topics = {
        "kafka_topic_snapshot": tidelog_log.topic(PARTITIONS),
        "kafka_topic_binlog": tidelog_log.topic(PARTITIONS),
    }
    source = source_with_dump(tmp_path, tidelog_log, **topics)
    cut_small = pikiwi_snapshot.plan_dump
    monkeypatch.setattr(
        database, "plan_dump", lambda folder, config, now_ms, width: cut_small(folder, config, now_ms, 12, 2)
    )
    folder = database.state_folder(source.config)
    folder.mkdir()
    (folder / "fault").write_text(at)
    spark.dataSource.register(faulty_pipeline.FaultySink)
    try:
        with Running(spark, source) as running:
            running.until(lambda: running.held().snapshot.state == "done")
            assert list(folder.glob("died-*")), "the fault did not happen, or in the binlog"
            running.catch_up()
            snapshot = running.held().snapshot
    finally:
        spark.dataSource.register(MessageSink)
    source.close()
    made = load_plan(folder / "db0" / "1" / "plan.json")
    builder = EventBuilder(EventSettings("db0", source.config.source, LINEAGE))
    found = content(tidelog_log, topics["kafka_topic_snapshot"])
    for one in made.ranges:  # ranges are delivered side by side, each in its order
        events = [builder.snapshot_event(command, made.position, made.ts_ms) for command in read_range(one)]
        rows = expected([event for event in events if event is not None], PARTITIONS)
        assert {number: [row for row in found[number] if row in rows[number]] for number in found} == rows
    count = sum(len(rows) for rows in found.values())
    assert count == len(snapshot_values(source, made.ts_ms)) == snapshot.snapshot_seq
    assert content(tidelog_log, topics["kafka_topic_binlog"]) == expected(source.events(), PARTITIONS)


@pytest.mark.slow
def test_a_dump_goes_on_where_it_was_and_a_full_sync_in_the_middle_begins_anew(
    spark: SparkSession, tidelog_log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshot_topic, binlog_topic = tidelog_log.topic(PARTITIONS), tidelog_log.topic(PARTITIONS)
    source = source_with_dump(
        tmp_path, tidelog_log, kafka_topic_snapshot=snapshot_topic, kafka_topic_binlog=binlog_topic
    )
    cut_small = pikiwi_snapshot.plan_dump
    monkeypatch.setattr(
        database, "plan_dump", lambda folder, config, now_ms, width: cut_small(folder, config, now_ms, 12, 1)
    )
    with Running(spark, source) as running:
        running.until(lambda: running.telling.ranges_done >= 2)
    assert 0 < running.telling.ranges_done < running.telling.ranges_total, "it was stopped in the middle"
    with Running(spark, source) as running:
        running.catch_up()
        values = [value for rows in content(tidelog_log, snapshot_topic).values() for _, value in rows]
        first = snapshot_values(source, time_of(values))
        assert Counter(values) == Counter(first)
        assert running.held().snapshot.state == "done"
        source.write(shop(50))
        running.catch_up()
        delivered = source.events()
        place_dump(source, "uuid-2")
        running.catch_up()
        source.write(shop(50, seed=2))
        running.catch_up()
        assert (running.telling.generation, running.held().snapshot.uuid) == (2, "uuid-2")
    source.close()
    assert content(tidelog_log, binlog_topic) == expected([*delivered, *source.events()], PARTITIONS)
    values = [value for rows in content(tidelog_log, snapshot_topic).values() for _, value in rows]
    assert len(values) == 2 * len(first)
