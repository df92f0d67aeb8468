"""The demo's second half: what happens in a PikiwiDB master, in topics and in a table, while a leader is killed.

A sample master with a shop at work on it is followed by `tidelog pikiwi run` (receiver and Spark): its dump first, then
its binlog, as events in two topics of the demo's cluster. Then `tidelog table build` makes the table of what every key
holds. In the end everything is compared: each command with its event, each key with its rows.

The sample master and the comparison are part of the tests, so this half needs a clone of the repository.
"""

import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.cli import CommandError
from tidelog.cli.demo_processes import MASTER, ROOT, Child, SampleMaster
from tidelog.cli.embedded import EmbeddedCluster

if TYPE_CHECKING:
    from tidelog.pikiwi.checkpoint import DatabaseCheckpoint
    from tidelog.pikiwi.config import Config

CHECK = "tests.e2e.pipeline.check"
WANTED = ("pyspark", "deltalake", "rocksdict")  # besides what the first half needs

# Spark for a short job: it is half over before the best code of the JVM's compilers would pay.
QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

DB = "db0"
SNAPSHOT_TOPIC, BINLOG_TOPIC = "shop.snapshot", "shop.binlog"
COMMANDS_BEFORE = 8_000  # what the dump holds
COMMANDS_MEANWHILE = 3_000  # while the dump is delivered
COMMANDS_AFTER = 9_000
COMMANDS_A_TURN = 300
WAIT_S_MAX = 300.0  # for any one thing; on two idle cores each takes seconds
TURN_S = 0.2
TELL_S = 5.0
FETCHED = ("ready", "running", "done")
SETTLE_S = 4.0  # keys that were about to expire have done so, by everybody's clock


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the comparison found."""

    commands_in: int
    events_out: int
    set_aside: int
    lost: int
    duplicated: int
    disordered: int
    keys: int
    differences: tuple[str, ...]

    @property
    def right(self) -> bool:
        return not (self.lost or self.duplicated or self.disordered or self.differences)


def what_is_missing() -> str:
    """Why this half cannot be shown here; nothing: it can."""
    if not (ROOT / MASTER.replace(".", "/")).with_suffix(".py").exists():
        return "its sample master is part of the tests: run `make demo` in a clone of the repository"
    missing = [name for name in WANTED if importlib.util.find_spec(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: `make setup` does it"
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java", path=None if home is None else str(Path(home) / "bin")) is None:
        return "Spark needs Java 17 or later: install it, or set JAVA_HOME"
    return ""


def show(outcome: Outcome, outage_ms: float) -> None:
    """The summary; CommandError when anything is not as it should be."""
    same = "yes" if not outcome.differences else "no"
    print(f"  commands in       {outcome.commands_in:>9,}   of dump and binlog")
    print(f"  events out        {outcome.events_out:>9,}   (what concerns many keys goes to every partition)")
    print(f"  set aside         {outcome.set_aside:>9,}   too large for the topic, each with its reason")
    print(f"  lost              {outcome.lost:>9,}")
    print(f"  duplicated        {outcome.duplicated:>9,}")
    print(f"  out of order      {outcome.disordered:>9,}")
    print(f"  leader change     {outage_ms:>9,.0f}   ms until what the first killed node led took the next record")
    print(f"  table equals source: {same}, {outcome.keys:,} keys compared one by one", flush=True)
    if not outcome.right:
        raise CommandError("; ".join(["what came out is not what went in", *outcome.differences]))


class Story:
    """`tell` once; then `stop`, whatever happened."""

    def __init__(self, cluster: EmbeddedCluster, folder: Path, kill: Callable[[str], int]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._kill = kill
        folder.mkdir(parents=True, exist_ok=True)
        self._config_path = folder / "source.toml"
        self._master = SampleMaster(folder)
        self._pipeline: Child | None = None

    def tell(self) -> Outcome:
        port = self._master.port
        print(f"a sample PikiwiDB master serves on port {port}; a shop works on it, with all data types", flush=True)
        self._master.obey(f"shop {COMMANDS_BEFORE}")
        config = self._settings(port)
        begun = time.monotonic()
        running = tidelog_command("pikiwi", "run", "--config", str(self._config_path), "--spark", QUICK)
        self._pipeline = Child("pipeline", self._folder, running)
        self._deliver_dump(config)
        print(f"dump delivered {time.monotonic() - begun:.1f} s after the start of receiver and Spark; now the binlog")
        self._deliver_binlog(config)
        self._build_table()
        return self._compare()

    @property
    def to_try(self) -> str:
        """What to ask while everything still runs."""
        return f"tidelog table query 'SELECT type, count(DISTINCT key) FROM keys GROUP BY type' --table {self._table}"

    def stop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.stop()
        self._master.stop()

    # --- what is told ---------------------------------------------------------------------------------------------

    def _settings(self, port: int) -> "Config":
        from tidelog.pikiwi.config import load_config

        lines = {
            "master_port": port,
            "db_name": DB,
            "wal_dir": str(self._folder / "wal"),
            "dump_path": str(self._folder / "dump"),
            "checkpoint_path": str(self._folder / "checkpoint.json"),
            "checkpoint_interval_ms": 100,
            "kafka_brokers": self._cluster.bootstrap,
            "kafka_topic_snapshot": SNAPSHOT_TOPIC,
            "kafka_topic_binlog": BINLOG_TOPIC,
        }
        self._config_path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
        return load_config(self._config_path, [], {})

    def _deliver_dump(self, config: "Config") -> None:
        """The shop goes on meanwhile: what it does is in the binlog behind the dump."""
        self._until(lambda: _checkpoint(config).snapshot.state in FETCHED, "the dump was copied", lambda: "full sync")
        for _ in range(COMMANDS_MEANWHILE // COMMANDS_A_TURN):
            self._master.obey(f"shop {COMMANDS_A_TURN}")
            self._look_after(TURN_S)
        self._until(
            lambda: _checkpoint(config).snapshot.state == "done",
            "the dump was delivered",
            lambda: _dump_progress(_checkpoint(config)),
        )

    def _deliver_binlog(self, config: "Config") -> None:
        victim = 0
        for number in range(COMMANDS_AFTER // COMMANDS_A_TURN):
            self._master.obey(f"shop {COMMANDS_A_TURN}")
            if number == 2:
                victim = self._kill(BINLOG_TOPIC)
                print(
                    f"node {victim}, which leads a part of {BINLOG_TOPIC}, is killed (-9); the shop goes on", flush=True
                )
            self._look_after(TURN_S)
        end = self._master.obey("where").partition("=")[2]
        self._until(
            lambda: _delivered(config) == end,
            "the binlog was delivered",
            lambda: f"delivered up to {_delivered(config)} of {end}",
        )
        print(f"everything up to the end of the binlog ({end}) is in the topics", flush=True)

    def _build_table(self) -> None:
        begun = time.monotonic()
        building = Child(
            "table",
            self._folder,
            tidelog_command("table", "build", "--config", str(self._config_path), "--table", str(self._table)),
        )
        try:
            self._until(lambda: building.ended, "the table was built", lambda: "building the table")
        finally:
            building.stop()
        print(f"built the table of what every key holds in {time.monotonic() - begun:.1f} s", flush=True)

    def _compare(self) -> Outcome:
        self._look_after(SETTLE_S)
        items, state, found = (self._folder / name for name in ("items", "state", "outcome.json"))
        self._master.obey(f"items {items}")
        self._master.obey(f"state {state}")
        command = [sys.executable, "-m", CHECK, "--bootstrap", self._cluster.bootstrap, "--config", self._config_path]
        command += ["--items", items, "--state", state, "--table", self._table, "--outcome", found]
        checking = Child("check", self._folder, list(map(str, command)))
        try:
            self._until(lambda: checking.ended, "everything was compared", lambda: "comparing")
        finally:
            checking.stop()
        return _outcome(json.loads(found.read_text()))

    @property
    def _table(self) -> Path:
        return self._folder / "keys"

    # --- waiting --------------------------------------------------------------------------------------------------

    def _until(
        self,
        done: Callable[[], bool],
        what: str,
        told: Callable[[], str],
    ) -> None:
        give_up = time.monotonic() + WAIT_S_MAX
        tell_at = time.monotonic() + TELL_S
        while not done():
            self._look_after(TURN_S)
            now = time.monotonic()
            if now > give_up:
                raise CommandError(f"after {WAIT_S_MAX:.0f} s it is still not so that {what}: {told()}")
            if now > tell_at:
                tell_at = now + TELL_S
                print(f"  {told()}", flush=True)

    def _look_after(self, seconds: float) -> None:
        self._cluster.run(seconds)
        if self._pipeline is not None and self._pipeline.ended:
            raise CommandError(f"the pipeline has ended:\n{self._pipeline.last_words()}")


def tidelog_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tidelog.cli", *words]


def _checkpoint(config: "Config") -> "DatabaseCheckpoint":
    from tidelog.pikiwi.checkpoint import CheckpointFile, DatabaseCheckpoint

    found = CheckpointFile(config.checkpoint_path, config.source, DB).load()
    return found.database(DB) if found is not None else DatabaseCheckpoint()


def _delivered(config: "Config") -> str:
    ack = _checkpoint(config).ack_cp
    return str(ack.position) if ack is not None else "the beginning"


def _dump_progress(checkpoint: "DatabaseCheckpoint") -> str:
    snapshot = checkpoint.snapshot
    if snapshot.state == "ready":
        return "the dump is here; Spark is starting"
    return f"the dump on its way into {SNAPSHOT_TOPIC}: {snapshot.snapshot_seq:,} events so far"


def _outcome(found: dict[str, Any]) -> Outcome:
    both = (found["snapshot"], found["binlog"])

    def total(name: str) -> int:
        return sum(each[name] for each in both)

    return Outcome(
        commands_in=total("commands"),
        events_out=total("events"),
        set_aside=total("dead_letters"),
        lost=total("lost"),
        duplicated=total("duplicated") + total("unknown"),
        disordered=total("disordered"),
        keys=found["keys"],
        differences=tuple(found["differences"]),
    )
