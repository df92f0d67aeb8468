"""Receiver and pipelines under one roof, without Spark: who is started again, what is told and when, what ends it."""

import itertools
import logging
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import PySparkRuntimeError

from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import EXIT_PASSING, EXIT_SOURCE
from tidelog.spark.pipeline import receiver_process, supervisor
from tidelog.spark.pipeline.errors import DeliveryStopped, SparkUnavailable
from tidelog.spark.pipeline.receiver_process import (
    LIVED_S_MIN,
    PAUSE_S_FIRST,
    RESTARTS_MAX,
    ReceiverEnded,
    ReceiverProcess,
)
from tidelog.spark.pipeline.supervisor import SNAPSHOT_TELL_S, RunOptions
from tidelog.spark.pipeline.telling import DatabaseTelling, Telling

# --- the receiver -----------------------------------------------------------------------------------------------------


class Process:
    """One that lives until it is told to end, as far as it listens."""

    def __init__(self, *, listens: bool = True) -> None:
        self.status: int | None = None
        self.told: list[str] = []
        self._listens = listens

    def poll(self) -> int | None:
        return self.status

    def terminate(self) -> None:
        self.told.append("terminate")
        if self._listens:
            self.status = 0

    def kill(self) -> None:
        self.told.append("kill")
        self.status = -9

    def wait(self, timeout: float = 0.0) -> int:
        if self.status is None:
            raise subprocess.TimeoutExpired("receiver", timeout)
        return self.status


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.processes: list[Any] = []
        self.receiver = ReceiverProcess(self._launch)

    def _launch(self) -> Any:
        self.processes.append(Process())
        return self.processes[-1]

    def ends(self, status: int) -> None:
        self.processes[-1].status = status
        self.receiver.look()

    def passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.receiver.look()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(receiver_process, "time", clock)
    made = World()
    clock.monotonic = lambda: made.now_s
    return made


def test_a_receiver_whose_trouble_may_pass_is_started_again_a_few_times(world: World):
    for number in range(RESTARTS_MAX):
        world.ends(EXIT_PASSING)
        pause_s = PAUSE_S_FIRST * 2**number
        world.passes(pause_s - 0.1)
        assert len(world.processes) == 1 + number, "not yet"
        world.passes(0.1)
        assert len(world.processes) == 2 + number
    with pytest.raises(ReceiverEnded, match="status 1") as ended:
        world.ends(EXIT_PASSING)
    assert ended.value.exit_status == EXIT_PASSING
    assert len(world.processes) == 1 + RESTARTS_MAX


def test_a_receiver_that_has_lived_long_has_all_of_its_restarts_again(world: World):
    for _ in range(3 * RESTARTS_MAX):
        world.passes(LIVED_S_MIN + 1)
        world.ends(EXIT_PASSING)
        world.passes(PAUSE_S_FIRST)
    assert len(world.processes) == 1 + 3 * RESTARTS_MAX


@pytest.mark.parametrize(("status", "handed_through"), [(EXIT_SOURCE, EXIT_SOURCE), (-9, EXIT_PASSING)])
def test_what_does_not_pass_ends_the_pipeline_with_the_receivers_status(world: World, status: int, handed_through: int):
    with pytest.raises(ReceiverEnded) as ended:
        world.ends(status)
    assert ended.value.exit_status == handed_through
    assert len(world.processes) == 1


def test_a_receiver_is_asked_to_stop_and_killed_when_it_does_not_listen(world: World):
    world.receiver.stop()
    assert world.processes[0].told == ["terminate"]
    deaf: Any = Process(listens=False)
    receiver = ReceiverProcess(lambda: deaf)
    receiver.stop()
    assert deaf.told == ["terminate", "kill"]
    receiver.stop()
    assert deaf.told == ["terminate", "kill"], "it has ended"


def test_a_spark_that_does_not_start_is_told_in_one_line_and_the_receiver_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def no_java(*_: Any) -> Any:
        raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited\nmore of it")

    monkeypatch.setattr(supervisor, "session", no_java)
    config = Config(master_port=9221, kafka_brokers="10.0.0.1:9092", checkpoint_path=tmp_path / "checkpoint.json")
    receiver: Any = Process()
    with pytest.raises(SparkUnavailable, match=r"^Spark did not start: .*exited; it needs Java 17"):
        supervisor.run_pipeline(config, RunOptions(receiver=lambda: receiver), lambda _telling: None)
    assert receiver.told == ["terminate"]


# --- the watch --------------------------------------------------------------------------------------------------------

Story = Callable[[DatabaseTelling, threading.Event], None]


class Watched:
    """A watch over one database whose pipeline does as the test says; a turn then takes a second."""

    def __init__(self, folder: Path, story: Story, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.told_s: list[float] = []
        self.stop = threading.Event()
        self._now_s = 0.0
        self._tellings: list[DatabaseTelling] = []
        tellings = self._tellings

        class Pipeline:
            def __init__(self, *given: Any) -> None:
                self._given = given

            def run(self) -> None:
                *_, stop, telling = self._given
                tellings.append(telling)
                story(telling, stop)

        monkeypatch.setattr(supervisor, "DatabasePipeline", Pipeline)
        monkeypatch.setattr(supervisor, "TURN_S", 0.001)
        monkeypatch.setattr(supervisor, "time", SimpleNamespace(monotonic=self._clock))
        self.config = Config(
            master_port=9221,
            db_name="db0",
            wal_dir=folder / "wal",
            dump_path=folder / "dump",
            checkpoint_path=folder / "checkpoint.json",
            **settings,
        )

    def _clock(self) -> float:
        if any(each.phase != "waiting" for each in self._tellings):
            self._now_s += 1.0
        return self._now_s

    def run(self, tell_s: float, tells: int, receiver: Any = None) -> None:
        def tell(_telling: Telling) -> None:
            self.told_s.append(self._now_s)
            if len(self.told_s) >= tells:
                self.stop.set()

        spark: Any = None
        watch = supervisor._Watch(spark, self.config, RunOptions(tell_s=tell_s), self.stop, receiver, tell)
        watch.until_stopped()

    @property
    def between_s(self) -> set[float]:
        """Between lines; the last is told because it ends."""
        return {after - before for before, after in itertools.pairwise(self.told_s[:-1])}


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Watched]:
    return lambda story, **settings: Watched(tmp_path, story, monkeypatch, **settings)


def in_phase(phase: Any, **fields: Any) -> Story:
    def story(telling: DatabaseTelling, stop: threading.Event) -> None:
        for name, value in fields.items():
            setattr(telling, name, value)
        telling.phase = phase
        stop.wait()

    return story


def test_while_a_dump_is_delivered_a_line_is_told_every_five_seconds(watched: Callable[..., Watched]):
    snapshot = watched(in_phase("snapshot"))
    snapshot.run(tell_s=60.0, tells=20)
    assert snapshot.between_s == {SNAPSHOT_TELL_S}


def test_otherwise_it_is_told_as_often_as_is_set(watched: Callable[..., Watched]):
    binlog = watched(in_phase("binlog"))
    binlog.run(tell_s=8.0, tells=10)
    assert binlog.between_s == {8.0}


def test_a_late_delivery_is_warned_of_after_the_time_that_is_set(
    watched: Callable[..., Watched], caplog: pytest.LogCaptureFixture
):
    late = watched(in_phase("binlog", durable_seq=5, moved_s=0.0), pb_ack_delay_warn=30)
    with caplog.at_level(logging.WARNING):
        late.run(tell_s=10.0, tells=6)
    [warning] = [text for text in caplog.messages if "nothing was delivered" in text]
    assert "nothing was delivered for 31 s and 5 items wait" in warning


def test_what_a_pipeline_or_the_receiver_ends_with_is_the_end_of_all(watched: Callable[..., Watched]):
    def fails(_telling: DatabaseTelling, _stop: threading.Event) -> None:
        raise DeliveryStopped("db0: everything up to 3:100 is delivered")

    with pytest.raises(DeliveryStopped, match="up to 3:100"):
        watched(fails).run(tell_s=0.0, tells=1)

    def look() -> None:
        raise ReceiverEnded(EXIT_SOURCE)

    with pytest.raises(ReceiverEnded):
        watched(in_phase("binlog")).run(tell_s=0.0, tells=1, receiver=SimpleNamespace(look=look))
