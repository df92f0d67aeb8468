"""From the sample master through `tidelog pikiwi run` into topics, with real Spark on real nodes, and into a table.

The pipeline is killed and started again, a leader is killed, the master restarts and purges its binlog: every command
is in the topics once and in order, and the table holds what the master holds.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.embedded import Up
from tests.e2e.pipeline.check import check_topics, table_differences
from tests.spark.jars import class_archive
from tidelog.cli.admin import Admin
from tidelog.cli.demo_pipeline import QUICK, SETTLE_S, tidelog_command
from tidelog.cli.demo_processes import Child, SampleMaster
from tidelog.pikiwi.checkpoint import CheckpointFile, DatabaseCheckpoint
from tidelog.pikiwi.config import load_config
from tidelog.spark.tables.build import build, open_state

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

WAIT_S_MAX = 300.0
POLL_S = 0.05


class PipelineWorld:
    def __init__(self, folder: Path, *master: str) -> None:
        self._folder = folder
        self.up = Up(folder / "up", "--nodes", "3", "--port", "0", "--console-port", "0")
        try:
            self.master = SampleMaster(folder, *master)
        except BaseException:
            self.up.kill()
            raise
        self._config_path = folder / "source.toml"
        lines = {
            "master_port": self.master.port,
            "wal_dir": str(folder / "wal"),
            "dump_path": str(folder / "dump"),
            "checkpoint_path": str(folder / "checkpoint.json"),
            "checkpoint_interval_ms": 50,
            "kafka_brokers": self.up.bootstrap,
        }
        self._config_path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
        self.config = load_config(self._config_path, [], {})
        self.pipeline: Child | None = None

    def begin(self) -> Child:
        quick = f"{QUICK} {class_archive()}"
        command = tidelog_command("pikiwi", "run", "--config", str(self._config_path), "--spark", quick)
        self.pipeline = Child("pipeline", self._folder, command)
        return self.pipeline

    @property
    def checkpoint(self) -> DatabaseCheckpoint:
        found = CheckpointFile(self.config.checkpoint_path, self.config.source).load()
        return found.database("db0") if found is not None else DatabaseCheckpoint()

    def until(self, condition: Callable[[], object], what: str) -> None:
        give_up_s = time.monotonic() + WAIT_S_MAX
        while not condition():
            assert self.pipeline is not None
            assert not self.pipeline.ended, self.pipeline.last_words()
            assert time.monotonic() < give_up_s, f"{what}: {self.checkpoint}\n{self.pipeline.last_words()}"
            time.sleep(POLL_S)

    def dump_is_delivered(self, after: object = None) -> None:
        def done() -> bool:
            snapshot = self.checkpoint.snapshot
            return snapshot.state == "done" and snapshot.uuid != after

        self.until(done, "the dump was not delivered")

    @property
    def delivered_seq(self) -> int:
        ack = self.checkpoint.ack_cp
        return 0 if ack is None else ack.seq

    def some_is_delivered(self, after: int) -> None:
        self.until(lambda: self.delivered_seq > after, f"nothing was delivered behind record {after}")

    def catch_up(self) -> None:
        end = self.master.obey("where").partition("=")[2]
        self.until(
            lambda: self.checkpoint.ack_cp is not None and str(self.checkpoint.ack_cp.position) == end,
            f"the binlog was not delivered up to {end}",
        )

    def kill_leader(self, topic: str) -> None:
        admin = Admin(self.up.bootstrap)
        try:
            self.up.kill_node(next(row.leader for row in admin.partitions(topic) if row.leader > 0))
        finally:
            admin.close()

    def assert_all_delivered(self) -> None:
        """Of the last dump and everything behind it."""
        items = self._folder / "items"
        self.master.obey(f"items {items}")
        snapshot, binlog = check_topics(self.up.bootstrap, self.config, items)
        assert snapshot.right, snapshot
        assert binlog.right, binlog
        assert snapshot.events > 0
        assert binlog.events > 0

    def assert_table_is_right(self) -> None:
        for _ in build(open_state(self._folder / "table", self.config), self.config):
            pass
        now_ms = time.time_ns() // 1_000_000 + int(SETTLE_S * 1000)  # what expires soon has, by everybody's clock
        state = self._folder / "state"
        self.master.obey(f"state {state}")
        keys, told = table_differences(state, self._folder / "table", now_ms)
        assert told == []
        assert keys > 0

    def stop(self) -> None:
        if self.pipeline is not None:
            self.pipeline.stop()
        self.master.stop()
        self.up.kill()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PipelineWorld]:
    made = PipelineWorld(tmp_path, "--binlog-file-bytes", str(1 << 20), "--expire-logs-nums", "1000000")
    yield made
    made.stop()


@pytest.mark.parametrize("commands", [800, pytest.param(25_000, marks=pytest.mark.long)])
def test_dump_and_binlog_into_topics_and_a_table_whatever_is_killed(world: PipelineWorld, commands: int) -> None:
    master = world.master
    master.obey(f"shop {commands}")
    pipeline = world.begin()
    world.until(lambda: world.checkpoint.snapshot.state in ("ready", "running", "done"), "no dump came")
    master.obey(f"shop {commands}")
    world.dump_is_delivered()
    world.some_is_delivered(after=0)
    world.kill_leader(world.config.kafka_topic_binlog)
    delivered = world.delivered_seq
    master.obey(f"shop {commands // 2}")
    world.some_is_delivered(after=delivered)
    pipeline.kill()  # and the receiver with it

    master.obey("restart")
    master.obey(f"shop {commands // 2}")
    world.begin()
    master.obey(f"shop {commands}")
    world.catch_up()
    world.assert_all_delivered()
    world.assert_table_is_right()


@pytest.mark.long
def test_a_purged_binlog_forces_a_full_sync_and_the_pipeline_goes_on_from_it(tmp_path: Path) -> None:
    world = PipelineWorld(tmp_path, "--binlog-file-bytes", str(64 << 10), "--expire-logs-nums", "2")
    try:
        world.master.obey("shop 2000")
        pipeline = world.begin()
        world.dump_is_delivered()
        world.master.obey("shop 500")
        world.catch_up()
        pipeline.stop()
        world.assert_table_is_right()

        before = world.checkpoint.snapshot.uuid
        world.master.obey("shop 5000")
        world.master.obey("purge")
        world.begin()
        world.dump_is_delivered(after=before)
        world.master.obey("shop 500")
        world.catch_up()
        world.assert_table_is_right()
    finally:
        world.stop()
