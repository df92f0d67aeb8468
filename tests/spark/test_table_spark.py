"""Tables and a real Spark: the append sink over restarts, and questions to Delta tables."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.errors import PySparkRuntimeError, StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.pikiwi_world import Source, shop
from tests.spark.tables.commands import FIRST_VERSION, NOW_MS
from tests.spark.tables.test_state import SOURCE, applied, begun
from tidelog.cli import main
from tidelog.spark.tables.append import FilesMessage, TableDataSource, TableStreamWriter
from tidelog.spark.tables.delta import DeltaFolder, TableBusy, TableError, write_file
from tidelog.spark.tables.fold import Command
from tidelog.spark.tables.query import make_views

QUERY_S_MAX = 120
pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def source(tmp_path: Path):
    made = Source(tmp_path / "source")
    made.begin()
    yield made
    made.close()


def appended(spark: SparkSession, source: Source, table: Path, checkpoint: Path) -> None:
    """All events that are there, by a query that ends with them."""
    spark.dataSource.register(TableDataSource)
    rows = spark.readStream.format("pikiwi-wal").option("settings", json.dumps(source.settings)).load()
    writer = rows.writeStream.format("tidelog-table").option("path", str(table))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_S_MAX)
    finally:
        query.stop()


def values(table: Path) -> list[bytes]:
    rows = DeltaTable(str(table)).to_pyarrow_table()
    return [value for _, value in sorted(zip(rows["seq"].to_pylist(), rows["value"].to_pylist(), strict=True))]


def test_events_are_appended_once_also_when_a_committed_batch_is_run_again(
    spark: SparkSession, source: Source, tmp_path: Path
):
    source.write(shop(500))
    appended(spark, source, tmp_path / "events", tmp_path / "c")
    assert values(tmp_path / "events") == [event.value for event in source.events()]
    version = DeltaTable(str(tmp_path / "events")).version()
    for mark in (tmp_path / "c" / "commits").iterdir():  # as if Spark had died before it noted the batch
        mark.unlink()
    source.write(shop(100, seed=2))
    appended(spark, source, tmp_path / "events", tmp_path / "c")
    assert values(tmp_path / "events") == [event.value for event in source.events()]
    assert DeltaTable(str(tmp_path / "events")).version() == version + 1
    files = {Path(each).name for each in DeltaTable(str(tmp_path / "events")).file_uris()}
    assert {path.name for path in (tmp_path / "events").glob("*.parquet")} == files


def test_a_table_of_other_columns_is_refused(spark: SparkSession, source: Source, tmp_path: Path):
    DeltaFolder.create(tmp_path / "events", pa.schema([("other", pa.int64())]))
    source.write(shop(5))
    with pytest.raises(StreamingQueryException, match="other columns than the query"):
        appended(spark, source, tmp_path / "events", tmp_path / "c")


def test_a_commit_waits_its_turn_and_gives_up_at_last(tmp_path: Path):
    schema = pa.schema([("a", pa.int64())])
    writer = TableStreamWriter(tmp_path / "t", schema)
    told = FilesMessage("q", [write_file(tmp_path / "t", pa.table({"a": [1]}, schema=schema))])
    real, failures = DeltaFolder.commit, [TableBusy("busy")] * 3

    def busy(self, *given, **more):
        if failures:
            raise failures.pop()
        return real(self, *given, **more)

    with patch.object(DeltaFolder, "commit", busy):
        writer.commit([told], 0)
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["a"].to_pylist() == [1]
    with patch.object(DeltaFolder, "commit", side_effect=TableBusy("busy")), pytest.raises(TableBusy, match="10 times"):
        writer.commit([told], 1)


def test_a_batch_that_was_committed_before_adds_nothing(tmp_path: Path):
    schema = pa.schema([("a", pa.int64())])
    writer = TableStreamWriter(tmp_path / "t", schema)
    for query, batch in (("q", 0), ("q", 1), ("q", 1), ("q", 0), ("other", 0)):
        told = FilesMessage(query, [write_file(tmp_path / "t", pa.table({"a": [batch]}, schema=schema))])
        writer.commit([told], batch)
    assert sorted(DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["a"].to_pylist()) == [0, 0, 1]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 3


def test_files_of_a_batch_that_is_given_up_are_taken_away(tmp_path: Path):
    schema = pa.schema([("a", pa.int64())])
    writer = TableStreamWriter(tmp_path / "t", schema)
    told = FilesMessage("q", [write_file(tmp_path / "t", pa.table({"a": [1]}, schema=schema))])
    writer.abort([told, None], 0)
    assert list((tmp_path / "t").glob("*.parquet")) == []


def test_files_stay_when_their_commit_fails_behind_the_point_where_they_became_the_tables(tmp_path: Path):
    schema = pa.schema([("a", pa.int64())])
    writer = TableStreamWriter(tmp_path / "t", schema)
    told = FilesMessage("q", [write_file(tmp_path / "t", pa.table({"a": [1]}, schema=schema))])
    with patch.object(DeltaFolder, "_sync_log", side_effect=OSError("disk")), pytest.raises(OSError, match="disk"):
        writer.commit([told], 0)
    again = FilesMessage("q", [write_file(tmp_path / "t", pa.table({"a": [1]}, schema=schema))])
    writer.abort([told, again], 0)  # as Spark does then
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["a"].to_pylist() == [1]
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 1, "what became nobody's is taken away"


def state_table(folder: Path) -> None:
    table = begun(folder)
    run = [
        [b"SET", b"a", b"1"], [b"SET", b"gone", b"1", b"PXAT", b"%d" % (NOW_MS + 60_000)],
        [b"SET", b"later", b"1", b"PXAT", b"4102444800123"], [b"ZADD", b"z", b"2.5", b"m", b"inf", b"\xff"],
        [b"RPUSH", b"l", b"x", b"y"],
    ]  # fmt: skip
    applied(
        table,
        [Command(args[0].lower().decode(), args, NOW_MS, FIRST_VERSION + 1 + at) for at, args in enumerate(run)],
    )
    assert table.position(SOURCE) is not None


def test_a_view_shows_what_has_not_expired_and_another_shows_all(spark: SparkSession, tmp_path: Path):
    state_table(tmp_path / "state")
    make_views(spark, {"state": tmp_path / "state"})
    live = spark.sql("SELECT db, key, type, field, index, value, score FROM state ORDER BY key, index, score").collect()
    assert [(row.db, bytes(row.key), row.type, row["index"], row.score) for row in live] == [
        ("db0", b"a", "string", None, None), ("db0", b"l", "list", 0, None), ("db0", b"l", "list", 1, None),
        ("db0", b"later", "string", None, None), ("db0", b"z", "zset", None, 2.5),
        ("db0", b"z", "zset", None, float("inf")),
    ]  # fmt: skip
    assert spark.sql("SELECT count(DISTINCT key) FROM state_all").first()[0] == 5  # type: ignore[index]


def test_a_table_without_rows_can_be_asked(spark: SparkSession, tmp_path: Path):
    begun(tmp_path / "empty")
    make_views(spark, {"empty": tmp_path / "empty"})
    assert spark.sql("SELECT count(*) FROM empty").first()[0] == 0  # type: ignore[index]


def test_columns_that_older_files_lack_are_null_there(spark: SparkSession, tmp_path: Path):
    table = DeltaFolder.create(tmp_path / "t", pa.schema([("a", pa.int64())]))
    table.commit(table.write(pa.table({"a": [1]})), [], {})
    table.add_columns(pa.schema([("b", pa.string())]))
    table.commit(table.write(pa.table({"a": [2], "b": ["x"]})), [], {})
    make_views(spark, {"t": tmp_path / "t"})
    assert [tuple(row) for row in spark.sql("SELECT a, b FROM t ORDER BY a").collect()] == [(1, None), (2, "x")]


def test_a_folder_without_a_table_is_said_so(spark: SparkSession, tmp_path: Path):
    with pytest.raises(TableError, match="holds no Delta table"):
        make_views(spark, {"t": tmp_path / "nothing"})


def test_a_table_that_needs_more_than_parquet_to_be_read_is_refused(spark: SparkSession, tmp_path: Path):
    begun(tmp_path / "t")
    protocol = SimpleNamespace(reader_features=["deletionVectors", "timestampNtz"])
    with (
        patch.object(DeltaTable, "protocol", return_value=protocol),
        pytest.raises(TableError, match="needs deletionVectors to be read"),
    ):
        make_views(spark, {"t": tmp_path / "t"})


def query(tmp_path: Path, sql: str, *more: str) -> int:
    return main(["table", "query", sql, "--table", str(tmp_path / "state"), *more])


@pytest.fixture
def commanded(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command asks the session of the tests, and leaves it running."""
    monkeypatch.setattr("tidelog.spark.session.session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)


@pytest.mark.usefixtures("commanded")
def test_the_command_answers_in_a_table_or_in_json(tmp_path: Path, capfd):
    state_table(tmp_path / "state")
    assert query(tmp_path, "SELECT key, value, index FROM state WHERE type = 'list' ORDER BY index") == 0
    assert capfd.readouterr().out == "key  value  index\nl    x          0\nl    y          1\n"
    assert query(tmp_path, "SELECT key, field, score FROM state WHERE type = 'zset' ORDER BY score", "--json") == 0
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == [
        {"key": "z", "field": "m", "score": 2.5},
        {"key": "z", "field": "base64:/w==", "score": "inf"},
    ]
    assert query(tmp_path, "SELECT key FROM state ORDER BY key", "--rows", "2") == 0
    said = capfd.readouterr()
    assert said.out == "key\na\nl\n"
    assert "only the first 2 rows" in said.err


@pytest.mark.usefixtures("commanded")
def test_a_wrong_question_is_one_line(tmp_path: Path, capfd):
    state_table(tmp_path / "state")
    assert query(tmp_path, "SELECT nothing FROM state") == 1
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.startswith("tidelog: the query: ")
    assert len(said.err.splitlines()) == 1


def test_a_spark_that_does_not_start_is_one_line(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    state_table(tmp_path / "state")

    def broken(*_: object, **__: object) -> None:
        os.write(2, b"noise\njava: not found\nCMD: bad array subscript\n")
        raise PySparkRuntimeError("the gateway exited")

    monkeypatch.setattr("tidelog.spark.session.session", broken)
    assert query(tmp_path, "SELECT 1") == 1
    assert capfd.readouterr().err == (
        "tidelog: Spark did not start: java: not found; CMD: bad array subscript; "
        "it needs Java 17 or later (JAVA_HOME)\n"
    )
