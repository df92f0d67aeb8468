"""The status document, and what is made of it together with the checkpoint."""

import asyncio
import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog import faults
from tidelog.faults import Action
from tidelog.pikiwi import status as status_module
from tidelog.pikiwi.checkpoint import CheckpointFile, Point, Snapshot
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import Progress
from tidelog.pikiwi.status import STALE_S, StatusError, document, keep_writing, read_status, report, write_status
from tidelog.pikiwi.wal import WalPoint


@pytest.fixture(autouse=True)
def cleared() -> Iterator[None]:
    yield
    faults.clear()


def streaming() -> Progress:
    progress = Progress("10.0.0.1:9221", replication_id="lineage")
    progress.link("connected")
    held = progress.database("db0")
    held.session(4, Position(3, 100), Position(3, 500))
    held.got(Position(3, 300), 2, 180)
    held.synced(Position(3, 300), 2, 990, 0.25)
    held.told_master(Position(3, 300))
    held.wal(Position(3, 100), 292)
    return progress


def test_everything_is_in_the_document(tmp_path: Path) -> None:
    write_status(tmp_path / "state" / "status.json", document(streaming(), 1000.0))
    found = read_status(tmp_path / "state" / "status.json")

    assert found is not None
    assert (found["source_id"], found["state"], found["written_ms"]) == ("10.0.0.1:9221", "connected", 1_000_000)
    one = found["databases"]["db0"]
    assert (one["master_end"], one["received"], one["durable"], one["acknowledged"]) == (
        "3:500", "3:300", "3:300", "3:300",
    )  # fmt: skip
    assert (one["lag_bytes"], one["lag_s"], one["wal_bytes"], one["wal_first"]) == (200, 10, 292, "3:100")
    assert (one["items"], one["syncs"], one["sync_s"], one["snapshot"]["state"]) == (2, 1, 0.25, "none")


def test_none_when_there_is_none_and_an_error_for_anything_else(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) is None
    for content in ("", "[]", '{"format": 9}'):
        path.write_text(content)
        with pytest.raises(StatusError, match="status document"):
            read_status(path)


def test_a_report_puts_receiver_and_pipeline_together(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "checkpoint.json", "10.0.0.1:9221")
    file.advance_durable({"db0": WalPoint(1, Position(3, 200), 1, 146)}, {}, "lineage")
    file.advance_ack("db0", 0, Point(1, Position(3, 120)))
    file.set_snapshot("db0", Snapshot("running", Position(3, 100), 17))
    found = report(document(streaming(), 1000.0), file.load(), "10.0.0.1:9221", 1001.0)

    assert (found["running"], found["state"], found["replication_id"]) == (True, "connected", "lineage")
    one = found["databases"]["db0"]
    assert (one["durable"], one["ack"], one["undelivered_bytes"]) == ("3:300", "3:120", 180), (
        "the receiver knows better"
    )
    assert one["pipeline_snapshot"] == "running"


def test_a_document_that_is_old_is_of_a_receiver_that_does_not_run(tmp_path: Path) -> None:
    content = document(streaming(), 1000.0)

    assert report(content, None, "x", 1000.0 + STALE_S - 0.1)["running"] is True
    old = report(content, None, "x", 1000.0 + STALE_S)
    assert (old["running"], old["state"], old["age_s"]) == (False, "not running", STALE_S)


def test_a_checkpoint_alone_is_reported_too(tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "checkpoint.json", "x")
    file.advance_durable({"db0": WalPoint(1, Position(3, 200), 1, 146)}, {}, "lineage")
    found = report(None, file.load(), "x", 5.0)

    assert (found["running"], found["age_s"], found["replication_id"]) == (False, None, "lineage")
    assert (found["databases"]["db0"]["durable"], found["databases"]["db0"]["ack"]) == ("3:200", None)


def test_it_is_written_again_and_again_and_a_last_time_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_module, "EVERY_S", 0.001)
    path = tmp_path / "status.json"
    progress = streaming()

    async def scenario() -> None:
        stop = asyncio.Event()
        writing = asyncio.create_task(keep_writing(path, progress, stop))
        async with asyncio.timeout(30):
            while not path.exists() or json.loads(path.read_text())["detail"] != "changed":
                progress.detail = "changed"
                await asyncio.sleep(0)
        progress.link("stopped")
        stop.set()
        await writing

    asyncio.run(scenario())
    assert json.loads(path.read_text())["state"] == "stopped"
    assert report(read_status(path), None, "x", 0.0)["running"] is False


def test_a_disk_that_does_not_take_it_is_a_warning_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_module, "EVERY_S", 0.001)
    faults.arm("disk.write", Action("error", code=errno.ENOSPC, count=3))
    path = tmp_path / "status.json"

    async def scenario() -> None:
        stop = asyncio.Event()
        writing = asyncio.create_task(keep_writing(path, streaming(), stop))
        async with asyncio.timeout(30):
            while not path.exists():  # noqa: ASYNC110 - a file has no event
                await asyncio.sleep(0)
        stop.set()
        await writing

    asyncio.run(scenario())
    assert caplog.text.count("cannot write the status") == 1, "once, not once a second"
