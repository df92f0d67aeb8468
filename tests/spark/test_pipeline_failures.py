"""What a pipeline does when things go on failing, without Spark: it stops within its bounds, and says how far it is."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from py4j.protocol import Py4JNetworkError

from tidelog.spark import commit_record
from tidelog.spark.commit_record import CommitRecord
from tidelog.spark.errors import NoAnswer
from tidelog.spark.kernel.messages import Delivery
from tidelog.spark.kernel.snapshot_rows import load_plan
from tidelog.spark.pikiwi_snapshot import DONE
from tidelog.spark.pipeline import database, query, topics
from tidelog.spark.pipeline.database import DatabasePipeline, state_folder
from tidelog.spark.pipeline.errors import DeliveryStopped, TopicError
from tidelog.spark.pipeline.query import Query
from tidelog.spark.pipeline.telling import DatabaseTelling

from .pikiwi_world import Source, shop
from .test_pikiwi_snapshot import place_dump

FAILURES_MAX = 3


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "FAILURES_MAX", FAILURES_MAX)
    monkeypatch.setattr(database, "PAUSE_S_FIRST", 0.0)
    monkeypatch.setattr(database, "delivery_to", lambda config, topic: Delivery(topic, 2, 1 << 20))


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Source]:
    made = Source(tmp_path)
    made.begin()
    made.write(shop(10))
    yield made
    made.close()


def no_spark() -> Any:
    """As much of a session as is asked for before a query starts."""
    return SimpleNamespace(createDataFrame=lambda *_: None, sparkContext=SimpleNamespace(defaultParallelism=1))


def stopped(source: Source, telling: DatabaseTelling | None = None, tail: Any = None) -> str:
    """What the pipeline ends with."""
    pipeline = DatabasePipeline(no_spark(), source.config, "db0", threading.Event(), telling or DatabaseTelling("db0"))
    if tail is not None:
        pipeline._tail = tail
    with pytest.raises(DeliveryStopped) as failure:
        pipeline.run()
    return str(failure.value)


def failing(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def run(_spark: Any, _query: Query, _stop: Any, _over: Any, _commit: Any, on_turn: Any) -> Any:
        on_turn()
        raise failure

    monkeypatch.setattr(query, "_run", run)


def commit(source: Source, kind: str, generation: int, offsets: dict[str, Any]) -> None:
    """As if a batch up to there had been delivered."""
    record = CommitRecord("id", 1, generation=1, batch_id=0, source_offsets=(json.dumps(offsets),))
    commit_record.save(state_folder(source.config) / "db0" / str(generation) / kind, record)


def test_a_wal_that_is_a_stream_and_does_not_answer_is_a_failure_like_others(source: Source):
    class Away:
        def settled(self, _place: Any) -> Any:
            raise NoAnswer("no answer from 10.0.0.1:9092 in 60 s")

        def close(self) -> None: ...

    DatabasePipeline(no_spark(), source.config, "db0", threading.Event(), DatabaseTelling("db0"))._attempt()
    ack = source.written["db0"][0][0]
    start = json.loads((state_folder(source.config) / "db0" / "generation.json").read_text())["start"]
    place = {**start, "seq": start["seq"] + 1, "filenum": ack.filenum, "offset": ack.offset}
    commit(source, "binlog", 1, {"db0": place})
    said = stopped(source, tail=Away())
    assert f"everything up to {ack} is delivered, and then it failed {FAILURES_MAX} times in a row: no answer" in said


def test_a_cluster_that_is_away_from_the_start_does_not_hide_how_far_a_dump_is(
    source: Source, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: Any) -> Any:
        raise TopicError("topic t at 10.0.0.1:9092: timed out")

    monkeypatch.setattr(database, "delivery_to", away)
    place_dump(source, "uuid-1")
    assert "everything up to range 0 of " in stopped(source)
    plan = load_plan(state_folder(source.config) / "db0" / "1" / "plan.json")
    commit(source, "snapshot", 1, {DONE: 1})
    said = stopped(source)
    assert f"everything up to range 1 of {len(plan.ranges)} of the dump at {plan.position} is delivered" in said


def test_a_jvm_that_has_ended_is_told_with_the_position(source: Source, monkeypatch: pytest.MonkeyPatch):
    for failure in (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")):
        failing(monkeypatch, failure)
        assert "everything up to 3:100 is delivered" in stopped(source)
        assert "Spark's JVM does not answer" in stopped(source)


def test_a_second_dump_that_cannot_be_read_stops_the_pipeline_too(source: Source, monkeypatch: pytest.MonkeyPatch):
    failing(monkeypatch, TopicError("full"))
    assert "everything up to 3:100 is delivered" in stopped(source)
    place_dump(source, "uuid-2")
    shutil.rmtree(source.config.dump_path / "db0")
    telling = DatabaseTelling("db0")
    assert f"it failed {FAILURES_MAX} times in a row" in stopped(source, telling)
    assert telling.generation == 1


def test_how_long_nothing_was_delivered_is_counted_over_all_attempts(source: Source, monkeypatch: pytest.MonkeyPatch):
    telling = DatabaseTelling("db0")
    moved_s: list[float] = []

    def run(_spark: Any, _query: Query, _stop: Any, _over: Any, _commit: Any, on_turn: Any) -> Any:
        on_turn()
        moved_s.append(telling.moved_s)
        raise TopicError("full")

    monkeypatch.setattr(query, "_run", run)
    stopped(source, telling)
    assert telling.to_deliver == 10
    assert moved_s == [moved_s[0]] * FAILURES_MAX


def test_a_commit_that_was_there_before_is_seen_and_is_not_the_querys_own(tmp_path: Path):
    stop = threading.Event()
    seen: list[tuple[int, bool]] = []

    def commit_to(generation: int) -> None:
        record = CommitRecord("id", 1, generation=generation, batch_id=0, source_offsets=("{}",))
        commit_record.save(tmp_path / "commits", record)

    def on_commit(record: CommitRecord, _offsets: Any, is_new: bool) -> None:
        seen.append((record.generation, is_new))
        commit_to(record.generation + 1)
        if is_new:
            stop.set()

    commit_to(7)
    what = Query("q", "pikiwi-wal", {}, "10.0.0.1:9092", 1, tmp_path / "commits", tmp_path / "spark")
    assert query.run(MagicMock(), what, stop, lambda: False, on_commit, lambda: None) == "stopped"
    assert seen == [(7, False), (8, True)]


def test_a_topic_that_a_node_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch):
    from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - beside what it is used for

    monkeypatch.setattr(topics, "UNKNOWN_PAUSE_S", 0.0)
    unknown = SimpleNamespace(error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), partitions={})
    known = SimpleNamespace(error=None, partitions={0: None, 1: None})
    answers = [unknown, unknown, known]
    admin: Any = SimpleNamespace(list_topics=lambda topic, timeout: SimpleNamespace(topics={topic: answers.pop(0)}))
    assert topics._partitions(admin, "t") == 2
    monkeypatch.setattr(topics, "ANSWER_S_MAX", 0.0)
    answers = [unknown]
    with pytest.raises(KafkaException):
        topics._partitions(admin, "t")
