"""`tidelog table build`, `compact` and `vacuum` as a user calls them."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from tests.spark.pikiwi_world import Source
from tests.spark.tables.commands import NOW_MS
from tidelog.cli import main
from tidelog.pikiwi.position import Position
from tidelog.spark.tables.delta import DeltaFolder, TableBusy
from tidelog.spark.tables.state import StateTable


@pytest.fixture
def source(tmp_path: Path):
    made = Source(tmp_path)
    made.begin(Position(0, 0))
    made.book()
    yield made
    made.close()


def command(source: Source, action: str, *more: str) -> list[str]:
    config = source.folder / "source.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in source.settings.items()))
    given = ["--config", str(config)] if action == "build" else []
    return ["table", action, *given, "--table", str(source.folder / "table"), *more]


def test_build_says_what_each_step_did_and_goes_on_where_it_stopped(source: Source, capfd):
    source.write([[b"SET", b"a", b"1"], [b"INCR", b"a"]])
    assert main(command(source, "build", "--json")) == 0
    steps = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(step["step"], step["commands"], step["keys"]) for step in steps] == [("empty", 0, 0), ("binlog", 2, 1)]
    assert steps[-1]["position"] == str(source.written["db0"][-1][0])
    assert main(command(source, "build")) == 0
    assert capfd.readouterr().out == "up to date\n"
    source.write([[b"INCR", b"a"]])
    assert main(command(source, "build")) == 0
    assert "1 commands, 1 keys" in capfd.readouterr().out
    held = {key: entry.value for _, key, entry in StateTable.open(source.folder / "table").held("db0", NOW_MS)}
    assert held == {b"a": b"3"}


def test_a_build_that_another_writer_disturbs_goes_on_from_where_the_table_stands(source: Source, capfd):
    source.write([[b"SET", b"a", b"1"]])
    assert main(command(source, "build")) == 0
    source.write([[b"INCR", b"a"]])
    real, disturbed = StateTable.apply, []

    def slowly(self, *given):
        if not disturbed:
            disturbed.append(True)
            StateTable.open(source.folder / "table").delta.commit([], [], {"somebody": 1})
        return real(self, *given)

    with patch.object(StateTable, "apply", slowly):
        assert main(command(source, "build")) == 0
    assert disturbed
    held = {key: entry.value for _, key, entry in StateTable.open(source.folder / "table").held("db0", NOW_MS)}
    assert held == {b"a": b"2"}


def test_a_build_that_is_always_disturbed_gives_up(source: Source, capfd):
    source.write([[b"SET", b"a", b"1"]])
    with patch.object(DeltaFolder, "commit", side_effect=TableBusy("another process writes")) as tries:
        assert main(command(source, "build")) == 1
    assert tries.call_count == 5
    assert capfd.readouterr().err == "tidelog: another process writes\n"


def test_following_waits_for_a_source_that_is_not_there_yet_and_goes_on_when_it_is(
    tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
):
    source = Source(tmp_path)
    rounds = []

    def meanwhile(_seconds: float) -> None:
        rounds.append(len(rounds))
        if len(rounds) == 1:
            source.begin(Position(0, 0))
            source.book()
        elif len(rounds) == 2:
            source.write([[b"SET", b"a", b"1"]])
        else:
            raise KeyboardInterrupt

    # The module's clock only: threads of other tests sleep too.
    monkeypatch.setattr("tidelog.cli.table.time", SimpleNamespace(sleep=meanwhile))
    assert main(command(source, "build", "--follow", "--json")) == 130
    steps = [json.loads(line)["step"] for line in capfd.readouterr().out.splitlines()]
    assert steps == ["empty", "binlog"]
    source.close()


def test_compact_and_vacuum_say_what_they_did(source: Source, capfd):
    for number in range(3):
        source.write([[b"SET", b"key-%d-%d" % (number, each), b"v"] for each in range(50)])
        assert main(command(source, "build")) == 0
    capfd.readouterr()
    assert main(command(source, "compact", "--json")) == 0
    done = json.loads(capfd.readouterr().out)
    assert done["files_removed"] > done["files_added"] > 0
    assert main(command(source, "vacuum", "--retain-hours", "0", "--dry-run", "--json")) == 0
    wanted = json.loads(capfd.readouterr().out)
    assert not wanted["deleted"]
    assert main(command(source, "vacuum", "--retain-hours", "0")) == 0
    assert capfd.readouterr().out == f"{len(wanted['files'])} files were deleted\n"
    table = StateTable.open(source.folder / "table")
    assert len(list(table.held("db0", NOW_MS))) == 150


@pytest.mark.parametrize(
    ("more", "why"),
    [(["--buckets", "7"], "has 32 buckets"), (["--set", "zero_expiry=keep"], "built for a 4 master")],
)
def test_what_a_table_was_made_with_cannot_be_changed(source: Source, capfd, more: list[str], why: str):
    assert main(command(source, "build")) == 0
    assert main(command(source, "build", *more)) == 1
    assert why in capfd.readouterr().err


def test_a_folder_without_a_table_is_one_line_of_error(source: Source, capfd):
    assert main(command(source, "compact")) == 1
    assert capfd.readouterr().err.splitlines() == [
        f"tidelog: {source.folder / 'table'} holds no Delta table; build one with `tidelog table`"
    ]
