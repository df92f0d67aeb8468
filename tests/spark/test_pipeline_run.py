"""`tidelog pikiwi run` as a user starts it: test master, receiver, Spark and topics, in processes of their own."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from tests.e2e.clients.environments import ROOT
from tests.pikiwi.master import Master
from tests.pikiwi.master_dumps import FixedDump
from tidelog.pikiwi.checkpoint import Checkpoint, CheckpointFile
from tidelog.pikiwi.dump import DumpInfo, plan, read_range
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.position import Position

from .jars import class_archive
from .pikiwi_world import shop
from .pipeline_world import content, expected
from .world import Log

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parent.parent / "pikiwi" / "fixtures" / "dump-4.0.1"
PARTITIONS = 2
WAIT_S_MAX = 240.0
POLL_S = 0.05


class MasterThread:
    """A master that serves while the test waits for others."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="master")
        self._thread.start()
        self.master: Master = self._do(lambda: Master(folder, keyspace=FixedDump(RECORDED)))
        asyncio.run_coroutine_threadsafe(self.master.start(), self._loop).result(WAIT_S_MAX)

    def _do(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(WAIT_S_MAX)

    def execute(self, commands: list[list[bytes]]) -> Position:
        """Where the binlog ends then."""
        self._do(lambda: [self.master.execute("db0", *command) for command in commands])
        return self._do(lambda: self.master.replication.binlogs["db0"].end)

    def items(self, behind: Position) -> list[tuple[Position, bytes]]:
        every = self._do(self.master.replication.binlogs["db0"].all_items)
        return [item for item in every if item[0] > behind]

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.master.stop(), self._loop).result(WAIT_S_MAX)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[MasterThread]:
    made = MasterThread(tmp_path / "master")
    yield made
    made.close()


class Run:
    def __init__(self, config: Path, folder: Path) -> None:
        self._log = open(folder / "run.log", "ab")  # noqa: SIM115 - closed with the process
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive()}"
        command = [sys.executable, "-m", "tidelog.cli", "pikiwi", "run", "--config", str(config), "--json"]
        command += ["--spark", f"spark.driver.extraJavaOptions={options}", "--spark", "spark.driver.memory=1g"]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def children(self) -> list[int]:
        """All processes that came from it."""
        found, look = [], [self.process.pid]
        while look:
            pid = look.pop()
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                new = [int(child) for child in task.read_text().split()]
                found += new
                look += new
        return found

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        status = self.process.wait(WAIT_S_MAX)
        self._log.close()
        return status


def settings(folder: Path, master: MasterThread, log: Log, **more: str) -> Path:
    topics = {"kafka_topic_snapshot": log.topic(PARTITIONS), "kafka_topic_binlog": log.topic(PARTITIONS)}
    values = {
        "master_port": master.master.port,
        "kafka_brokers": log.bootstrap,
        "wal_dir": str(folder / "wal"),
        "dump_path": str(folder / "dump"),
        "checkpoint_path": str(folder / "checkpoint.json"),
        "binlog_progress_interval": 1,
        **topics,
        **more,
    }
    path = folder / "source.toml"
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


def until(folder: Path, run: Run, source_id: str, condition: Callable[[Checkpoint], object]) -> Checkpoint:
    file = CheckpointFile(folder / "checkpoint.json", source_id)
    give_up = time.monotonic() + WAIT_S_MAX
    while (found := file.load()) is None or not condition(found):
        said = (folder / "run.log").read_text(errors="replace")[-3000:]
        assert run.process.poll() is None, f"it has ended with {run.process.returncode}\n{said}"
        assert time.monotonic() < give_up, f"waited too long\n{said}"
        time.sleep(POLL_S)
    return found


def is_delivered(end: Position) -> Callable[[Checkpoint], bool]:
    def check(found: Checkpoint) -> bool:
        held = found.database("db0")
        return held.snapshot.state == "done" and held.ack_cp is not None and held.ack_cp.position == end

    return check


@pytest.mark.long
def test_a_source_is_delivered_over_a_kill_and_stops_cleanly(master: MasterThread, tidelog_log: Log, tmp_path: Path):
    config = settings(tmp_path, master, tidelog_log)
    found = dict(re.findall(r'^(\w+) = "?([^"\n]*)', config.read_text(), re.MULTILINE))
    source_id = f"127.0.0.1:{master.master.port}"
    master.execute(shop(100))
    run = Run(config, tmp_path)
    try:
        until(tmp_path, run, source_id, lambda found: found.database("db0").snapshot.state == "done")
        end = master.execute(shop(300, seed=2))
        until(tmp_path, run, source_id, is_delivered(end))
        master.execute(shop(2000, seed=3))
        left = run.children()
        assert run.end(signal.SIGKILL) == -signal.SIGKILL
        give_up = time.monotonic() + WAIT_S_MAX
        while any(Path(f"/proc/{pid}").exists() for pid in left):
            assert time.monotonic() < give_up, "its processes outlive it"
            time.sleep(POLL_S)
        end = master.execute(shop(300, seed=4))
        run = Run(config, tmp_path)
        checkpoint = until(tmp_path, run, source_id, is_delivered(end))
    finally:
        if run.process.poll() is None:
            status = run.end(signal.SIGINT)
    assert status == 0, (tmp_path / "run.log").read_text(errors="replace")[-3000:]
    builder = EventBuilder(EventSettings("db0", source_id, checkpoint.replication_id))
    dump = DumpInfo.load(tmp_path / "dump" / "db0").position
    events = [event for item in master.items(dump) if (event := builder.binlog_event(*item)) is not None]
    assert content(tidelog_log, found["kafka_topic_binlog"]) == expected(events, PARTITIONS)
    values = [value for rows in content(tidelog_log, found["kafka_topic_snapshot"]).values() for _, value in rows]
    [ts_ms] = {json.loads(value)["ts_ms"] for value in values}
    commands = [command for one in plan(tmp_path / "dump" / "db0", now_ms=ts_ms) for command in read_range(one)]
    made = [builder.snapshot_event(command, dump, ts_ms) for command in commands]
    assert Counter(values) == Counter(event.value for event in made if event is not None)
    assert checkpoint.database("db0").snapshot.snapshot_seq == len(values)
    lines = [json.loads(line) for line in (tmp_path / "run.log").read_text().splitlines() if line.startswith("{")]
    assert lines[-1]["databases"]["db0"]["binlog"]["ack_position"] == str(end)


@pytest.mark.long
def test_a_jvm_that_is_killed_ends_it_with_the_position(master: MasterThread, tidelog_log: Log, tmp_path: Path):
    config = settings(tmp_path, master, tidelog_log)
    run = Run(config, tmp_path)
    try:
        end = master.execute(shop(100))
        until(tmp_path, run, f"127.0.0.1:{master.master.port}", is_delivered(end))
        [java] = [pid for pid in run.children() if Path(f"/proc/{pid}/comm").read_text() == "java\n"]
        os.kill(java, signal.SIGKILL)
        assert run.ended() == 1
    finally:
        if run.process.poll() is None:
            run.end(signal.SIGKILL)
    said = (tmp_path / "run.log").read_text(errors="replace")
    last = [line for line in said.splitlines() if not line.startswith("{")][-1]
    assert last.startswith(f"tidelog: 127.0.0.1:{master.master.port} db0: everything up to {end} is delivered")
    assert "5 times in a row: Spark's JVM does not answer" in last


def test_a_wrong_setting_ends_it_with_its_own_status(tmp_path: Path):
    (tmp_path / "source.toml").write_text("master_port = 9221\n")
    command = [sys.executable, "-m", "tidelog.cli", "pikiwi", "run", "--config", str(tmp_path / "source.toml")]
    ended = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    assert ended.returncode == 2
    assert b"kafka_brokers is not set" in ended.stderr
