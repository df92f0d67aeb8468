"""`tidelog pikiwi`: how it ends, what it says meanwhile, and where a source stands. The receiver is a stand-in here."""

import asyncio
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.pikiwi.test_status import streaming
from tests.ports import free_port
from tidelog.cli import main
from tidelog.cli.pikiwi import bar, progress_line, size
from tidelog.pikiwi import receiver
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import PikiwiError, SyncPointError, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import Progress
from tidelog.pikiwi.status import document, write_status
from tidelog.pikiwi.wal import WalPoint

STOP_S_MAX = 30


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "source.conf"
    path.write_text("master_ip=10.0.0.1\nmaster_port=9221\nbinlog_progress_interval=1\n")
    handlers = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    threshold = gc.get_threshold()
    yield str(path)
    gc.set_threshold(*threshold)
    signal.signal(signal.SIGINT, handlers[0])
    signal.signal(signal.SIGTERM, handlers[1])


class StandIn:
    """A receiver that streams a little, then fails, or gets a signal and stops when it is told to."""

    fails: PikiwiError | None = None
    number: int = signal.SIGTERM
    seen: ClassVar[list[str]] = []

    def __init__(self, config: Config, *, progress: Progress) -> None:
        self.config = config
        self.progress = progress
        self.stopped = asyncio.Event()

    def stop(self) -> None:
        self.stopped.set()

    async def run(self) -> None:
        self.seen.append(self.config.source)
        self.progress.link("connected")
        held = self.progress.database("db0")
        held.session(4, Position(3, 100), Position(3, 500))
        held.synced(Position(3, 300), 2, int(time.time()), 0.1)
        if self.fails is not None:
            raise self.fails
        os.kill(os.getpid(), self.number)
        await asyncio.wait_for(self.stopped.wait(), STOP_S_MAX)
        self.seen.append("stopped")


def stand_in(
    monkeypatch: pytest.MonkeyPatch, *, fails: PikiwiError | None = None, number: int = signal.SIGTERM
) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(
        receiver, "Receiver", type("Made", (StandIn,), {"fails": fails, "number": number, "seen": seen})
    )
    return seen


# --- receive ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_it_cleanly(config: str, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    seen = stand_in(monkeypatch, number=number)

    assert main(["pikiwi", "receive", "--config", config]) == 0
    assert seen == ["10.0.0.1:9221", "stopped"]
    written = json.loads(Path("checkpoint.status.json").read_text())
    assert (written["state"], written["databases"]["db0"]["durable"]) == ("stopped", "3:300")


@pytest.mark.parametrize(("error", "status"), [(SyncPointError("it is gone"), 4), (WalError("disk"), 5)])
def test_an_error_ends_it_with_one_line_and_its_status(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: PikiwiError, status: int
) -> None:
    stand_in(monkeypatch, fails=error)

    assert main(["pikiwi", "receive", "--config", config, "--set", "binlog_progress_interval=0"]) == status
    assert capsys.readouterr().err == f"tidelog: {error}\n"


def test_progress_is_lines_when_nobody_watches(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch)

    assert main(["pikiwi", "receive", "--config", config]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "db0 streaming, at 3:300, 0 items" in captured.err


def test_progress_is_json_lines_for_machines(
    config: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    stand_in(monkeypatch, fails=SyncPointError("it is gone"))

    assert main(["pikiwi", "receive", "--config", config, "--json"]) == 4
    *progress, failed = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert {line["event"] for line in progress} == {"progress"}
    assert progress[-1]["databases"]["db0"]["durable"] == "3:300"
    assert failed == {"event": "failed", "error": "it is gone", "exit_status": 4}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--set", "master_prt=1"], "there is no setting 'master_prt'; did you mean master_port?"),
        (["--set", "nonsense"], "write key=value"),
        (["-F", "key="], "key"),
        (["-F", "typo=dev:*"], "typo"),
        (["-X", "["], "["),
        (["-F", "/no/such/file"], "cannot be read"),
    ],
)
def test_wrong_settings_and_filters_end_it_at_the_start(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], why: str
) -> None:
    seen = stand_in(monkeypatch)

    assert main(["pikiwi", "receive", "-C", config, *arguments]) == 2
    assert why in capsys.readouterr().err
    assert seen == []


def test_without_the_extra_it_says_what_to_install(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tidelog.pikiwi.receiver", None)

    assert main(["pikiwi", "receive", "-C", config]) == 1
    assert "install tidelog with its extra `pikiwi`" in capsys.readouterr().err


def test_logs_go_to_files_when_a_folder_is_set(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)

    assert main(["pikiwi", "receive", "-C", config, "--set", "log_path=logs", "--set", "wal_sync_every=5"]) == 0
    assert "wal_sync_every has no effect" in Path("logs/pikiwi-receive.log").read_text()


def test_metrics_are_served_while_it_runs(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    scraped: list[bytes] = []

    class Scraping(StandIn):
        async def run(self) -> None:
            self.progress.link("connected")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            scraped.append(await reader.read())
            writer.close()

    monkeypatch.setattr(receiver, "Receiver", Scraping)
    assert main(["pikiwi", "receive", "-C", config, "--set", f"metrics_port={port}"]) == 0
    assert b'tidelog_pikiwi_connected{source="10.0.0.1:9221"} 1' in scraped[0]


# --- status ---


def test_status_of_a_source_nobody_started(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pikiwi", "status", "--config", config]) == 1
    assert "nothing is known of 10.0.0.1:9221" in capsys.readouterr().err


def test_status_shows_positions_lag_and_wal(config: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_status(Path("checkpoint.status.json"), document(streaming(), time.time()))
    file = CheckpointFile(Path("checkpoint.json"), "10.0.0.1:9221")
    file.advance_durable({"db0": WalPoint(2, Position(3, 300), 1, 292)}, {}, "lineage")
    file.advance_ack("db0", 0, Point(1, Position(3, 200)))

    assert main(["pikiwi", "status", "--config", config]) == 0
    head, columns, row = capfdbinary.readouterr().out.decode().splitlines()
    assert head == "source 10.0.0.1:9221: connected"
    cells = dict(zip(columns.split("  "), row.split("  "), strict=False))
    assert {"3:500", "3:300", "3:200", "200 B", "100 B", "292 B"} <= {cell.strip() for cell in row.split("  ")}, cells

    assert main(["pikiwi", "status", "--config", config, "--json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    assert (found["running"], found["databases"]["db0"]["undelivered_bytes"]) == (True, 100)


def test_status_says_when_the_receiver_is_gone(config: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write_status(Path("checkpoint.status.json"), document(streaming(), time.time() - 100))

    assert main(["pikiwi", "status", "--config", config]) == 0
    assert b"not running, last heard of 100 s ago" in capfdbinary.readouterr().out


def test_status_refuses_another_sources_checkpoint(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    CheckpointFile(Path("checkpoint.json"), "other").advance_durable({}, {}, "lineage")

    assert main(["pikiwi", "status", "--config", config]) == 5
    assert "belongs to source other" in capsys.readouterr().err


# --- what is shown ---


def test_the_progress_line() -> None:
    progress = streaming()
    assert progress_line(progress, 1000.0) == "connected · db0 streaming, at 3:300, 2 items, 200 B and 10 s behind"
    progress.database("db0").keepalive()
    progress.database("db0").durable = Position(3, 300)
    assert progress_line(progress, 1000.0) == "connected · db0 streaming, at 3:300, 2 items, up to date"
    other = progress.database("db1")
    other.full_sync()
    other.snapshot.fetching("u", 8)
    other.snapshot.fetched(3 << 20, files=2)
    progress.lost("no answer")
    assert progress_line(progress, 1000.0) == (
        "waiting: no answer · db0 waiting, at 3:300, 2 items · "
        "db1 full sync, dump [######..................] 2/8 files, 3.0 MiB"
    )


def test_bars_and_sizes() -> None:
    assert (bar(0, 0), bar(1, 2), bar(9, 2)) == (
        "[" + "." * 24 + "]",
        "[" + "#" * 12 + "." * 12 + "]",
        "[" + "#" * 24 + "]",
    )
    assert [size(count) for count in (None, 0, 1023, 1536, 5 << 30, 3 << 40)] == [
        "?", "0 B", "1023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB",
    ]  # fmt: skip


def test_help_lists_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pikiwi", "receive", "--help"])
    text = capsys.readouterr().out
    assert "wal_segment_bytes = 268435456" in text
    assert "initial_full_sync = true" in text
