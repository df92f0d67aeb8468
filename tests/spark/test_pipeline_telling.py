"""What a pipeline tells about itself, without Spark: progress lines, the metrics file, the warning when it is late."""

import json
import logging
from pathlib import Path

import pytest

from tidelog.pikiwi.position import Position
from tidelog.spark.pipeline.metrics import EVERY_S, FILE, MetricsFile
from tidelog.spark.pipeline.telling import WARN_INTERVAL_S, Counts, DatabaseTelling, Telling

SOURCE = "10.0.0.1:9221"


def told() -> tuple[Telling, DatabaseTelling]:
    telling = Telling(SOURCE)
    return telling, telling.database("db0")


def test_the_line_of_a_dump_says_what_was_read_produced_and_held_back():
    telling, db = told()
    assert telling.line() == "db0 waiting"
    db.phase, db.ranges_done, db.ranges_total = "snapshot", 3, 12
    db.snapshot = Counts(produced=1500, filtered=20, dead_letters=1)
    assert telling.line() == "db0 snapshot, 3/12 ranges, read 1,521, produced 1,500, filtered 20"


def test_the_line_of_a_binlog_says_where_it_is_and_what_waits():
    telling, db = told()
    db.phase, db.delivered, db.delivered_seq, db.durable_seq = "binlog", Position(3, 77), 100, 1100
    db.binlog = Counts(produced=90, filtered=10)
    assert telling.line() == "db0 binlog, delivered 3:77, 90 events, 1,000 items to deliver"
    db.delivered_seq = 1100
    assert telling.line().endswith("90 events, up to date")


def test_a_delivery_is_late_while_something_waits_and_nothing_moves():
    telling, db = told()
    warnings: list[str] = []
    db.phase, db.durable_seq, db.moved_s = "binlog", 5, 100.0
    telling.warn_if_late(10, warnings.append, 110.0)
    assert warnings == []
    telling.warn_if_late(10, warnings.append, 111.0)
    telling.warn_if_late(10, warnings.append, 111.0 + WARN_INTERVAL_S - 1)
    assert len(warnings) == 1, "not again within a minute"
    assert "nothing was delivered for 11 s and 5 items wait, from the beginning on" in warnings[0]
    telling.warn_if_late(0, warnings.append, 1000.0)
    db.delivered_seq = 5
    telling.warn_if_late(10, warnings.append, 1000.0)
    assert len(warnings) == 1, "0 means never, and nothing waits now"
    db.phase = "snapshot"
    telling.warn_if_late(10, warnings.append, 2000.0)
    assert "ranges of the dump wait" in warnings[1]


def test_the_metrics_file_is_replaced_as_a_whole_and_says_when_the_pipeline_has_ended(tmp_path: Path):
    telling, db = told()
    db.phase, db.delivered, db.delivered_seq, db.durable_seq, db.moved_s = "binlog", Position(3, 77), 8, 10, 0.0
    db.binlog = Counts(produced=7, filtered=1)
    metrics = MetricsFile(tmp_path / "state", telling)
    metrics.turn(100.0)
    path = tmp_path / "state" / FILE
    first = json.loads(path.read_text())
    assert (first["source_id"], first["running"]) == (SOURCE, True)
    assert first["databases"]["db0"]["binlog"] == {
        "durable_seq": 10, "ack_seq": 8, "ack_position": "3:77", "to_deliver": 2,
        "produced": 7, "filtered": 1, "dead_letters": 0,
    }  # fmt: skip
    assert first["databases"]["db0"]["ack_delay_s"] > 0
    db.binlog = Counts(produced=27, filtered=1)
    metrics.turn(100.0 + EVERY_S / 2)
    assert json.loads(path.read_text()) == first, "it is not time yet"
    metrics.turn(102.0)
    assert json.loads(path.read_text())["databases"]["db0"]["events_per_s"] == 10.0
    db.binlog = Counts()  # a new generation counts anew
    metrics.write(103.0, running=False)
    last = json.loads(path.read_text())
    assert (last["running"], last["databases"]["db0"]["events_per_s"]) == (False, 0.0)
    assert [each.name for each in path.parent.iterdir()] == [FILE]


def test_a_disk_that_refuses_the_metrics_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    telling, _ = told()
    (tmp_path / "state").touch()  # where a folder should be
    metrics = MetricsFile(tmp_path / "state", telling)
    with caplog.at_level(logging.WARNING):
        metrics.turn(1.0)
        metrics.turn(5.0)
    assert len(caplog.messages) == 1
    assert "metrics.json cannot be written" in caplog.messages[0]
