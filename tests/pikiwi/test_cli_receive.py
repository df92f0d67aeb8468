"""`tidelog pikiwi receive` as a user runs it, against a master in a process of its own."""

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from tests.cli.command import Tidelog
from tests.e2e.broker import Broker
from tests.pikiwi.wal_world import all_records
from tidelog.pikiwi.config import load_config
from tidelog.pikiwi.wal import WalReader, open_wal

COMMANDS = 500
TIMEOUT_S = 60

pytestmark = pytest.mark.slow


@pytest.fixture
def master(tmp_path: Path) -> Iterator["Process"]:
    process = Process(tmp_path / "master")
    yield process
    process.end()


class Process:
    """The test master, fed through its standard input."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.pikiwi.master", "--port", "0", "--folder", str(folder)]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, text=True, cwd=Path(__file__).parents[2])
        assert self._process.stdout is not None
        ready = self._process.stdout.readline()
        if not ready.startswith("ready "):
            self.end()
        self.port = int(ready.removeprefix("ready "))

    def execute(self, *commands: str) -> None:
        assert self._process.stdin is not None
        for command in commands:
            self._process.stdin.write(f"db0 {command}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


@pytest.fixture
def config(tmp_path: Path, master: Process) -> Path:
    path = tmp_path / "source.toml"
    path.write_text(f"""
master_port = {master.port}
initial_full_sync = false
binlog_progress_interval = 1
wal_dir = "{tmp_path}/wal"
checkpoint_path = "{tmp_path}/checkpoint.json"
dump_path = "{tmp_path}/dump"
""")
    return path


def until(process: Popen[bytes], wal: Path, seq: int) -> dict[str, Any]:
    """The first progress line after which so much is durable."""
    assert process.stdout is not None
    for line in process.stdout:
        durable = WalReader(wal).durable()
        if durable is not None and durable.seq >= seq:
            return json.loads(line)
    raise AssertionError("it ended before")


def test_what_the_master_executes_is_in_the_wal_and_a_restart_goes_on(
    tmp_path: Path, master: Process, config: Path
) -> None:
    tidelog = Tidelog("127.0.0.1:1")
    for run in (1, 2):
        master.execute(*(f"SET key{run}-{number} value" for number in range(COMMANDS)))
        with tidelog.start("pikiwi", "receive", "--config", str(config), "--json") as receiving:
            told = until(receiving, tmp_path / "wal", run * COMMANDS)
            assert told["state"] == "connected"
            shown = tidelog.succeed("pikiwi", "status", "--config", str(config), "--json").parsed
            assert shown["running"] is True
            receiving.send_signal(signal.SIGTERM)
            _, err = receiving.communicate(timeout=TIMEOUT_S)
        assert receiving.returncode == 0, err
        assert (b"starts from 0:0" in err) == (run == 1), err

    records = all_records(tmp_path / "wal")
    assert [each.seq for each in records] == list(range(1, 2 * COMMANDS + 1))
    for number, each in enumerate(records):
        key = f"key{number // COMMANDS + 1}-{number % COMMANDS}".encode()
        assert each.payload[34:] == b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$5\r\nvalue\r\n" % (len(key), key)
    shown = tidelog.succeed("pikiwi", "status", "--config", str(config), "--json").parsed
    assert (shown["running"], shown["databases"]["db0"]["durable"]) == (False, str(records[-1].position))


def test_a_receiver_that_is_killed_loses_nothing(tmp_path: Path, master: Process, config: Path) -> None:
    tidelog = Tidelog("127.0.0.1:1")
    for run in (1, 2, 3):
        with tidelog.start("pikiwi", "receive", "--config", str(config), "--json") as receiving:
            master.execute(*(f"SET key{run}-{number} value" for number in range(COMMANDS)))
            until(receiving, tmp_path / "wal", (run - 1) * COMMANDS + 1)
            receiving.kill()
            receiving.communicate(timeout=TIMEOUT_S)

    with tidelog.start("pikiwi", "receive", "--config", str(config), "--json") as receiving:
        until(receiving, tmp_path / "wal", 3 * COMMANDS)
        receiving.send_signal(signal.SIGINT)
        receiving.communicate(timeout=TIMEOUT_S)
    assert receiving.returncode == 0
    assert [each.seq for each in all_records(tmp_path / "wal")] == list(range(1, 3 * COMMANDS + 1))


def test_a_second_receiver_on_the_same_wal_ends_with_status_5(tmp_path: Path, master: Process, config: Path) -> None:
    tidelog = Tidelog("127.0.0.1:1")
    master.execute("SET a b")
    with tidelog.start("pikiwi", "receive", "--config", str(config), "--json") as first:
        until(first, tmp_path / "wal", 1)
        second = tidelog.run(
            "pikiwi",
            "receive",
            "--config",
            str(config),
            "--set",
            "local_port=21999",
            "--set",
            f"status_path={tmp_path}/2",
        )
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=TIMEOUT_S)

    assert second.status == 5
    assert "is in use by another receiver" in second.err
    assert first.returncode == 0


def test_the_wal_may_be_a_stream(broker: Broker, master: Process, config: Path) -> None:
    tidelog = Tidelog(broker.bootstrap)
    master.execute(*(f"SET key-{number} value" for number in range(COMMANDS)))
    stream = ["--set", "wal_backend=stream", "--set", f"wal_stream_brokers={broker.bootstrap}"]
    with tidelog.start("pikiwi", "receive", "--config", str(config), "--json", *stream) as receiving:
        assert receiving.stdout is not None
        for line in receiving.stdout:
            if json.loads(line)["databases"].get("db0", {}).get("durable_seq", 0) >= COMMANDS:
                break
        receiving.send_signal(signal.SIGTERM)
        _, err = receiving.communicate(timeout=TIMEOUT_S)
    assert receiving.returncode == 0, err

    wal = open_wal(load_config(config, stream[1::2]), "db0")
    assert [each.seq for each in wal.read(0)] == list(range(1, COMMANDS + 1))
    wal.close()
