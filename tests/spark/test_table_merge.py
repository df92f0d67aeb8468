"""The state table by MERGE: the same table as ever, exactly once, beside the other engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from tests.e2e.clients.environments import ROOT, Unavailable
from tests.spark.jars import delta_jars
from tests.spark.pikiwi_world import Source
from tests.spark.tables.commands import FIRST_VERSION, NOW_MS
from tests.spark.tables.test_state import applied, begun, sets
from tidelog.cli import main
from tidelog.pikiwi.keyspace import Entry
from tidelog.pikiwi.position import Position
from tidelog.spark.tables.delta import DeltaFolder, TableBusy
from tidelog.spark.tables.merge import GONE, changes
from tidelog.spark.tables.rows import Rows
from tidelog.spark.tables.state import StateTable

RUN_S_MAX = 400


@pytest.fixture(scope="module")
def jars() -> str:
    try:
        return ",".join(map(str, delta_jars()))
    except Unavailable as reason:
        pytest.skip(f"no delta-spark: {reason}")


def ran(*words: str) -> str:
    """A Python program's output; it has to end well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long
def test_merge_and_the_other_engine_take_turns_and_the_table_equals_the_key_space(jars: str, tmp_path: Path):
    told = json.loads(ran("-m", "tests.spark.tables.merging", str(tmp_path / "table"), jars).splitlines()[-1])
    assert told.pop("keys") > 1
    assert told == {
        "crash before": True, "again": True, "locked": True, "clock": True, "protocol": 1,
        "equal": True, "versions": True, "neighbour": 9, "position": True,
    }  # fmt: skip


@pytest.mark.long
def test_the_command_builds_by_merge(jars: str, tmp_path: Path):
    source = Source(tmp_path)
    source.begin(Position(0, 0))
    source.book()
    source.write([[b"SET", b"a", b"1"], [b"INCR", b"a"], [b"RPUSH", b"list", b"x", b"y"]])
    config, table = tmp_path / "source.conf", tmp_path / "table"
    config.write_text("".join(f"{name}={value}\n" for name, value in source.settings.items()))
    words = ["-m", "tidelog.cli", "table", "build", "--config", str(config), "--table", str(table), "--json"]
    steps = [json.loads(line) for line in ran(*words, "--engine", "merge", "--jars", jars).splitlines()]
    assert [(step["step"], step["commands"]) for step in steps] == [("empty", 0), ("binlog", 3)]
    source.close()
    held = {key: entry.value for _, key, entry in StateTable.open(table).held("db0", NOW_MS)}
    assert held[b"a"] == b"2"
    assert list(held[b"list"]) == [b"x", b"y"]


def test_changes_hold_every_new_row_and_the_old_ones_that_have_none_in_their_place(tmp_path: Path):
    table = begun(tmp_path / "t")
    before, after = Rows(), Rows()
    before.put("list", b"l", Entry([b"a", b"b"]), 1)
    before.put("hash", b"h", Entry({b"f": b"1", b"g": b"2"}), 1)
    before.put("string", b"s", Entry(b"v"), 1)
    after.put("list", b"l", Entry([b"b"]), 2)
    after.put("hash", b"h", Entry({b"f": b"1", b"new": b"3"}), 2)
    found = changes(table, "db0", before.table(), {0: after}).to_pylist()
    assert [(row["key"], row["field"], row["index"], row["value"]) for row in found if not row[GONE]] == [
        (b"l", None, 0, b"b"), (b"h", b"f", None, b"1"), (b"h", b"new", None, b"3"),
    ]  # fmt: skip
    lost = {(row["type"], row["key"], row["field"], row["index"]): row["bucket"] for row in found if row[GONE]}
    assert lost == {
        ("list", b"l", None, 1): table.bucket(b"l"),
        ("hash", b"h", b"g", None): table.bucket(b"h"),
        ("string", b"s", None, None): table.bucket(b"s"),
    }


def test_nobody_commits_while_another_writer_is_alone(tmp_path: Path):
    table = begun(tmp_path / "t")
    with DeltaFolder.open(tmp_path / "t").alone(), pytest.raises(TableBusy, match="is writing"):
        applied(table, sets(3))
    assert table.delta.position("pikiwi/test/lineage/db0") == FIRST_VERSION
    applied(table, sets(3))


def test_sparks_options_are_for_merge_only(tmp_path: Path, capfd):
    source = Source(tmp_path)
    config = tmp_path / "source.conf"
    config.write_text("".join(f"{name}={value}\n" for name, value in source.settings.items()))
    assert main(["table", "build", "--config", str(config), "--table", str(tmp_path / "t"), "--jars", "x.jar"]) == 1
    assert "--engine merge" in capfd.readouterr().err
    source.close()
