"""The checkpoint file: whose it is, that nothing in it goes back, and that no crash leaves half of it."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidelog import faults
from tidelog.faults import Action
from tidelog.pikiwi import checkpoint as checkpoint_module
from tidelog.pikiwi.checkpoint import Checkpoint, CheckpointFile, Point, Snapshot
from tidelog.pikiwi.errors import EXIT_FILES, CheckpointError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalPoint

SOURCE = "10.0.0.1:9221"
SEED = {
    "version": 1,
    "source_id": SOURCE,
    "epoch": 11,
    "ack_cp": {"seq": 82226, "filenum": 267, "offset": 76760742},
    "durable_cp": {"seq": 82447, "filenum": 267, "offset": 76836081, "wal_segment": 1, "wal_offset": 33084480},
    "snapshot": {
        "state": "done",
        "bgsave_end_file_num": 267,
        "bgsave_end_offset": 45044585,
        "snapshot_seq": 57102467,
    },
}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[CheckpointFile]:
    yield CheckpointFile(tmp_path / "checkpoint.json", SOURCE)
    faults.clear()


def place(seq: int, offset: int | None = None) -> WalPoint:
    return WalPoint(seq, Position(3, 100 * seq if offset is None else offset), 1, 200 * seq)


def durable(file: CheckpointFile, seq: int, database: str = "db0") -> Checkpoint:
    return file.advance_durable({database: place(seq)}, {database: 7}, "lineage-1")


# --- what the file looks like ---


def test_there_is_none_at_first(file: CheckpointFile) -> None:
    assert file.load() is None


def test_the_specifications_example_is_read(file: CheckpointFile) -> None:
    file.path.write_text(json.dumps(SEED))
    found = file.load()
    assert found is not None
    held = found.database("db0")

    assert held.ack_cp == Point(82226, Position(267, 76760742))
    assert held.durable_cp == WalPoint(82447, Position(267, 76836081), 1, 33084480)
    assert held.snapshot == Snapshot("done", Position(267, 45044585), 57102467)
    assert (held.epoch, found.replication_id) == (11, "")


def test_the_first_database_stands_at_the_top_in_the_specifications_words(file: CheckpointFile) -> None:
    file.path.write_text(json.dumps(SEED))
    file.set_snapshot("db1", Snapshot("fetching", Position(1, 2), uuid="u"))
    written = json.loads(file.path.read_text())

    for name, value in SEED.items():
        if name == "snapshot":
            assert written[name] == {**SEED["snapshot"], "uuid": ""}
        else:
            assert written[name] == value
    assert set(written["databases"]) == {"db0", "db1"}
    assert written["databases"]["db1"]["snapshot"]["state"] == "fetching"


def test_a_file_of_the_go_tool_goes_to_the_database_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.json"
    path.write_text(json.dumps(SEED))
    found = CheckpointFile(path, SOURCE, "db3").load()

    assert found is not None
    assert list(found.databases) == ["db3"]


numbers = st.integers(0, 2**64 - 1)
positions = st.builds(Position, st.integers(0, 2**32 - 1), numbers)
snapshots = st.one_of(
    st.just(Snapshot()),
    st.builds(
        Snapshot, st.sampled_from(["saving", "ready", "running", "done"]), positions, numbers, st.text(max_size=9)
    ),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["db0", "db1", "db7"]), st.tuples(numbers, positions, snapshots)), st.text())
def test_what_is_written_is_read(
    tmp_path: Path, content: dict[str, tuple[int, Position, Snapshot]], lineage: str
) -> None:
    path = tmp_path / "round-trip.json"
    path.unlink(missing_ok=True)
    file = CheckpointFile(path, SOURCE)

    def change(checkpoint: Checkpoint) -> Checkpoint:
        checkpoint = replace(checkpoint, replication_id=lineage)
        for name, (seq, position, snapshot) in content.items():
            changed = replace(
                checkpoint.database(name),
                ack_cp=Point(seq, position),
                durable_cp=WalPoint(seq, position, 2, 3),
                snapshot=snapshot,
            )
            checkpoint = checkpoint.with_database(name, changed)
        return checkpoint

    written = file.update(change)
    assert CheckpointFile(path, SOURCE).load() == written


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "is no checkpoint"),
        (b"[]", "is no checkpoint"),
        (b"{}", "it lacks 'version'"),
        (b'{"version": 2, "source_id": "x"}', "it has version 2"),
        (b'{"version": 1, "source_id": 5}', "source_id is 5"),
        (b'{"version": 1, "source_id": "x", "ack_cp": {"seq": 1, "filenum": 2}}', "it lacks 'offset'"),
        (b'{"version": 1, "source_id": "x", "ack_cp": {"seq": -1, "filenum": 2, "offset": 1}}', "seq is -1"),
        (
            b'{"version": 1, "source_id": "x", "ack_cp": {"seq": 1, "filenum": 5000000000, "offset": 1}}',
            "no binlog pos",
        ),
        (b'{"version": 1, "source_id": "x", "snapshot": {"state": "odd"}}', "no snapshot state 'odd'"),
        (b'{"version": 1, "source_id": "x", "databases": 3}', "is no checkpoint"),
        (b" " * (2 << 20), "more than"),
        (b"\xff\xfe", "is no checkpoint"),
    ],
)
def test_what_is_no_checkpoint_is_refused_and_left_alone(file: CheckpointFile, content: bytes, why: str) -> None:
    file.path.write_bytes(content)

    with pytest.raises(CheckpointError, match=why) as raised:
        durable(file, 1)
    assert raised.value.exit_status == EXIT_FILES
    assert file.path.read_bytes() == content


# --- whose it is ---


def test_another_sources_file_is_refused(file: CheckpointFile) -> None:
    durable(file, 1)
    other = CheckpointFile(file.path, "10.0.0.2:9221")

    with pytest.raises(CheckpointError, match=r"belongs to source 10\.0\.0\.1:9221, not to 10\.0\.0\.2:9221"):
        other.load()
    with pytest.raises(CheckpointError, match="belongs to source"):
        durable(other, 2)


def test_another_lineage_is_refused_until_it_is_taken_over(file: CheckpointFile) -> None:
    durable(file, 5)
    with pytest.raises(CheckpointError, match="lineage lineage-1, not lineage-2"):
        file.advance_durable({"db0": place(6)}, {}, "lineage-2")

    after = file.new_lineage("lineage-2")
    assert (after.replication_id, dict(after.databases)) == ("lineage-2", {})
    file.restart_from("db0", place(5, 1), "full sync")
    assert file.advance_durable({"db0": place(6, 2)}, {}, "lineage-2").database("db0").durable_cp == place(6, 2)


# --- nothing goes back ---


def test_durable_never_goes_back(file: CheckpointFile) -> None:
    durable(file, 5)

    for lower in (place(4), place(5, 499), place(4, 600), place(6, 400)):
        with pytest.raises(CheckpointError, match="DurableCP cannot go back from 3:500"):
            file.advance_durable({"db0": lower}, {}, "lineage-1")
    found = file.load()
    assert found is not None
    assert found.database("db0").durable_cp == place(5)


def test_acknowledged_moves_only_without_gaps_and_never_back(file: CheckpointFile) -> None:
    def acknowledge(after: int, seq: int, offset: int | None = None) -> Point | None:
        point = Point(seq, Position(3, 100 * seq if offset is None else offset))
        return file.advance_ack("db0", after, point).database("db0").ack_cp

    assert acknowledge(0, 3) == Point(3, Position(3, 300))
    with pytest.raises(CheckpointError, match="records 4 to 5 of db0 were not delivered"):
        acknowledge(5, 9)
    assert acknowledge(3, 5) == Point(5, Position(3, 500))
    assert acknowledge(3, 5) == Point(5, Position(3, 500)), "a batch that is repeated changes nothing"
    assert acknowledge(0, 4) == Point(5, Position(3, 500))
    assert acknowledge(4, 8) == Point(8, Position(3, 800)), "one that overlaps moves it on"
    with pytest.raises(CheckpointError, match="AckCP cannot go back"):
        acknowledge(8, 9, 700)


def test_a_database_cannot_be_taken_away(file: CheckpointFile) -> None:
    durable(file, 1)
    with pytest.raises(CheckpointError, match="db0 cannot be taken away"):
        file.update(lambda checkpoint: replace(checkpoint, databases={}))


def test_a_restart_with_a_reason_may_go_anywhere(file: CheckpointFile, caplog: pytest.LogCaptureFixture) -> None:
    durable(file, 5)
    file.advance_ack("db0", 0, Point(4, Position(3, 400)))
    held = file.restart_from("db0", WalPoint(5, Position(1, 0), 2, 0), "the master's data is another").database("db0")

    assert (held.ack_cp, held.durable_cp) == (Point(5, Position(1, 0)), WalPoint(5, Position(1, 0), 2, 0))
    assert "starts from 1:0: the master's data is another" in caplog.text


def test_the_start_that_was_applied_is_remembered_through_everything(file: CheckpointFile) -> None:
    file.restart_from("db0", place(1), "filenum and offset are set", "3:100")
    durable(file, 5)
    file.advance_ack("db0", 1, Point(4, Position(3, 400)))
    file.restart_from("db0", place(9, 1), "full sync")
    found = CheckpointFile(file.path, SOURCE).load()

    assert found is not None
    assert found.database("db0").started_from == "3:100"
    assert file.restart_from("db0", place(9, 2), "another start", "master").database("db0").started_from == "master"


# --- two processes ---


def test_receiver_and_pipeline_do_not_undo_each_others_work(file: CheckpointFile) -> None:
    program = """
import sys
from pathlib import Path
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalPoint
file = CheckpointFile(Path(sys.argv[1]), "10.0.0.1:9221")
for seq in range(1, 101):
    if sys.argv[2] == "receiver":
        file.advance_durable({"db0": WalPoint(seq, Position(3, seq), 1, seq)}, {"db0": 7}, "lineage-1")
    else:
        file.advance_ack("db0", seq - 1, Point(seq, Position(3, seq)))
"""
    started = [
        subprocess.Popen([sys.executable, "-c", program, str(file.path), role]) for role in ("receiver", "pipeline")
    ]
    assert [process.wait(60) for process in started] == [0, 0]

    found = file.load()
    assert found is not None
    held = found.database("db0")
    assert (held.ack_cp, held.durable_cp) == (Point(100, Position(3, 100)), WalPoint(100, Position(3, 100), 1, 100))


def test_a_lock_that_is_never_given_back_is_an_error_and_not_a_hang(
    file: CheckpointFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable(file, 1)
    monkeypatch.setattr(checkpoint_module, "LOCK_S_MAX", 0.02)
    with open(f"{file.path}.lock", "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="has been held by another process"):
            durable(file, 2)
    durable(file, 2)


# --- crashes ---


@pytest.mark.parametrize("point", ["disk.write", "disk.sync", "disk.rename", "disk.sync-directory"])
def test_a_failure_at_any_step_leaves_the_file_before_or_the_one_after(file: CheckpointFile, point: str) -> None:
    durable(file, 1)
    faults.arm(point, Action("error", code=errno.EIO, count=1))
    with pytest.raises(CheckpointError, match=r"cannot write .*checkpoint.json: Input/output error"):
        durable(file, 2)

    found = file.load()
    assert found is not None
    replaced = point == "disk.sync-directory"
    assert found.database("db0").durable_cp == place(2 if replaced else 1)
    assert durable(file, 3).database("db0").durable_cp == place(3)


@pytest.mark.parametrize("point", ["disk.write", "disk.sync", "disk.rename", "disk.sync-directory"])
def test_a_process_that_is_killed_at_any_step_leaves_a_whole_file_and_no_lock(file: CheckpointFile, point: str) -> None:
    durable(file, 1)
    program = """
import sys
from pathlib import Path
from tidelog.pikiwi.checkpoint import CheckpointFile
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalPoint
CheckpointFile(Path(sys.argv[1]), "10.0.0.1:9221").advance_durable(
    {"db0": WalPoint(2, Position(3, 200), 1, 400)}, {"db0": 7}, "lineage-1")
"""
    environment = {**os.environ, "TIDELOG_FAULTS": f"{point}=crash"}
    ended = subprocess.run([sys.executable, "-c", program, str(file.path)], env=environment, check=False, timeout=60)
    assert ended.returncode == faults.CRASH_STATUS

    found = file.load()
    assert found is not None
    assert found.database("db0").durable_cp in (place(1), place(2))
    assert durable(file, 3).database("db0").durable_cp == place(3)


def test_defect_11_the_checkpoint_is_synced_with_its_folder_and_written_only_when_it_changed(
    file: CheckpointFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Go tool rewrites the file for every record and never syncs it."""
    done: list[str] = []
    real_sync, real_folder, real_replace = os.fdatasync, os.fsync, Path.replace
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: (done.append("file"), real_sync(descriptor)))
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("folder"), real_folder(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("rename"), real_replace(path, target)))
    durable(file, 1)
    assert done == ["file", "rename", "folder"]
    durable(file, 1)
    assert done == ["file", "rename", "folder"]
