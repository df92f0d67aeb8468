"""The state table as a real Delta table: equal to the key space, exactly once, whatever happens in between."""

import random
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.spark.tables.commands import FIRST_VERSION, NOW_MS, accepted, contents, script, shown, typed
from tidelog.pikiwi.keyspace import Keyspace
from tidelog.pikiwi.position import Position
from tidelog.spark.tables import delta as delta_module
from tidelog.spark.tables import state as state_module
from tidelog.spark.tables.delta import DeltaFolder, TableBusy, TableError
from tidelog.spark.tables.fold import RULES, Command, FoldError
from tidelog.spark.tables.position import unpack
from tidelog.spark.tables.rows import entries
from tidelog.spark.tables.state import FILES_MAX, StateTable

V4 = RULES["4"]
SOURCE = "pikiwi/test/lineage/db0"
START = unpack(FIRST_VERSION)


def begun(folder: Path, rules=V4, buckets: int = 4) -> StateTable:
    table = StateTable.create(folder, rules, buckets)
    table.replace(SOURCE, "db0", [], START)
    return table


def applied(table: StateTable, commands: list[Command], source: str = SOURCE, db: str = "db0") -> None:
    start = table.position(source)
    assert start is not None
    table.apply(source, db, typed(commands, db), start, unpack(commands[-1].version) if commands else start)


def rows_of(folder: Path, db: str = "db0") -> pa.Table:
    """Read as anyone reads a Delta table."""
    rows = DeltaTable(str(folder)).to_pyarrow_table()
    return rows.filter(pc.field("db") == db)


def held(folder: Path, now_ms: int, db: str = "db0") -> dict[tuple[str, bytes], tuple[object, int]]:
    found = [
        ((data_type, key), (shown(data_type, entry), entry.expire_ms))
        for data_type, key, entry in entries(rows_of(folder, db))
    ]
    assert len(dict(found)) == len(found)
    return {key: value for key, value in found if not 0 < value[1] < now_ms}


def assert_equal(folder: Path, model: Keyspace, now_ms: int) -> None:
    assert held(folder, now_ms) == contents(model, now_ms)


def sets(count: int, first: int = 0, value: bytes = b"v") -> list[Command]:
    return [
        Command("set", [b"SET", b"key-%d" % (first + number), value], NOW_MS, FIRST_VERSION + 1 + first + number)
        for number in range(count)
    ]


@pytest.mark.parametrize("master", ["4", "3.5"])
def test_random_batches_of_all_commands_leave_what_the_key_space_holds(tmp_path: Path, master: str):
    rules = RULES[master]
    commands, model = accepted(script(1500, seed=8), rules)
    table = begun(tmp_path / "t", rules)
    cuts = sorted(random.Random(3).sample(range(len(commands)), 12))
    for begin, end in zip([0, *cuts], [*cuts, len(commands)], strict=True):
        applied(table, commands[begin:end])
    assert_equal(tmp_path / "t", model, commands[-1].exec_ms + rules.clock_ms)
    assert table.position(SOURCE) == unpack(commands[-1].version)


def test_large_and_binary_values_come_back_byte_for_byte(tmp_path: Path):
    large = random.Random(1).randbytes(1 << 20)
    run = [
        [b"SET", b"\x00\xff\r\n", large],
        [b"HSET", b"h", b"\r\n", large, b"", b""],
        [b"RPUSH", b"l", b"", b"\x00", large, b""],
        [b"ZADD", b"z", b"inf", b"", b"-inf", b"\xff", b"0.1", large[:1000]],
        [b"SADD", b"s", b"", large],
        [b"XADD", b"x", b"18446744073709551615-18446744073709551615", b"\x00", large],
        [b"PEXPIREAT", b"l", b"4102444800123"],
    ]
    commands, model = accepted(run, V4)
    assert len(commands) == len(run)
    table = begun(tmp_path / "t")
    for command in commands:
        applied(table, [command])
    assert_equal(tmp_path / "t", model, NOW_MS)


def test_only_buckets_with_named_keys_are_rewritten(tmp_path: Path):
    table = begun(tmp_path / "t", buckets=16)
    applied(table, sets(200))
    before = {each.path for each in table.delta.files()}
    applied(table, sets(1, first=200, value=b"w"))
    after = {each.path for each in table.delta.files()}
    assert len(before) == 16
    assert len(before & after) >= 15


def test_a_flush_takes_the_files_of_its_database_only_and_reads_none(tmp_path: Path):
    table = begun(tmp_path / "t")
    other = "pikiwi/test/lineage/db1"
    table.replace(other, "db1", [], START)
    applied(table, sets(50))
    applied(table, sets(50), other, "db1")
    with patch.object(state_module.pq, "ParquetFile", side_effect=AssertionError("a file was read")):
        applied(table, [Command("flushdb", [b"FLUSHDB"], NOW_MS, FIRST_VERSION + 100)])
    assert held(tmp_path / "t", NOW_MS) == {}
    assert len(held(tmp_path / "t", NOW_MS, "db1")) == 50
    assert table.position(other) == unpack(FIRST_VERSION + 50)


def test_a_crash_before_the_commit_leaves_the_table_as_it_was_and_the_batch_can_be_done_again(tmp_path: Path):
    table = begun(tmp_path / "t")
    applied(table, sets(20))
    before, version = held(tmp_path / "t", NOW_MS), table.delta.version
    incr = [Command("append", [b"APPEND", b"key-1", b"+"], NOW_MS, FIRST_VERSION + 30)]
    with patch.object(DeltaFolder, "commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        applied(table, incr)
    again = StateTable.open(tmp_path / "t")
    assert (held(tmp_path / "t", NOW_MS), again.delta.version) == (before, version)
    applied(again, incr)
    assert held(tmp_path / "t", NOW_MS)["string", b"key-1"] == (b"v+", 0)


def test_a_batch_that_is_in_the_table_already_is_refused(tmp_path: Path):
    table = begun(tmp_path / "t")
    batch = sets(5)
    applied(table, batch)
    with pytest.raises(TableBusy, match="stands at"):
        table.apply(SOURCE, "db0", typed(batch), START, unpack(batch[-1].version))


def test_of_two_writers_the_slower_one_changes_nothing(tmp_path: Path):
    first = begun(tmp_path / "t")
    second = StateTable.open(tmp_path / "t")
    applied(first, sets(5))
    with pytest.raises(TableBusy, match="another process"):
        second.apply(SOURCE, "db0", typed(sets(3, value=b"other")), START, unpack(FIRST_VERSION + 3))
    assert {value for value, _ in held(tmp_path / "t", NOW_MS).values()} == {b"v"}
    assert StateTable.open(tmp_path / "t").position(SOURCE) == unpack(FIRST_VERSION + 5)


def test_a_batch_that_was_computed_from_an_older_version_is_refused_whatever_changed(tmp_path: Path):
    first = begun(tmp_path / "t")
    second = StateTable.open(tmp_path / "t")
    first.replace("pikiwi/test/lineage/db1", "db1", [], START)
    with pytest.raises(TableBusy, match="another process"):
        applied(second, sets(5))
    second.delta.refresh()
    applied(second, sets(5))
    assert len(held(tmp_path / "t", NOW_MS)) == 5


def test_a_command_that_is_not_known_stops_the_batch_and_names_table_and_position(tmp_path: Path):
    table = begun(tmp_path / "t")
    bad = Command("spop", [b"SPOP", b"key-1"], NOW_MS, FIRST_VERSION + 9)
    with pytest.raises(FoldError, match=r"db0, the item that ends at 3:109: spop.*stands at 3:100 and stays"):
        applied(table, [*sets(2), bad])
    assert table.position(SOURCE) == START


def test_a_batch_without_commands_moves_the_position(tmp_path: Path):
    table = begun(tmp_path / "t")
    table.apply(SOURCE, "db0", typed([]), START, Position(4, 0))
    assert StateTable.open(tmp_path / "t").position(SOURCE) == Position(4, 0)


def test_many_small_files_of_a_bucket_are_put_together_as_batches_come(tmp_path: Path):
    table = begun(tmp_path / "t", buckets=1)
    for number in range(30):
        applied(table, sets(1, first=number))
        assert len(table.delta.files()) <= FILES_MAX + 1
    assert len(held(tmp_path / "t", NOW_MS)) == 30


def test_rows_that_do_not_fit_into_memory_are_read_again_instead(tmp_path: Path):
    table = begun(tmp_path / "t")
    applied(table, sets(100))
    with patch.object(state_module, "HELD_BYTES_MAX", 0):
        applied(table, [Command("del", [b"DEL", b"key-7"], NOW_MS, FIRST_VERSION + 101)])
    assert {key for _, key in held(tmp_path / "t", NOW_MS)} == {b"key-%d" % each for each in range(100) if each != 7}


def test_compaction_leaves_one_file_a_bucket_and_drops_what_expired_by_the_tables_own_clock(tmp_path: Path):
    table = begun(tmp_path / "t", buckets=2)
    late = NOW_MS + 60_000
    for number, args in enumerate(
        [[b"PSETEX", b"gone", b"10", b"v"], [b"SET", b"a", b"1"], [b"PSETEX", b"stays", b"120000", b"v"],
         [b"SET", b"b", b"1"]]
    ):  # fmt: skip
        time = NOW_MS if number < 3 else late
        applied(table, [Command(args[0].lower().decode(), args, time, FIRST_VERSION + 1 + number)])
    assert table.clock_ms("db0") == late
    done = table.compact()
    assert done["rows_dropped"] == 1
    assert {key for _, key in held(tmp_path / "t", 0)} == {b"a", b"b", b"stays"}
    assert len(table.delta.files()) <= 2
    assert table.compact()["files_removed"] == 0
    assert table.position(SOURCE) == unpack(FIRST_VERSION + 4)


def test_a_key_whose_end_is_only_just_behind_the_clock_is_not_compacted_away(tmp_path: Path):
    table = begun(tmp_path / "t")
    applied(table, [Command("psetex", [b"PSETEX", b"k", b"10", b"v"], NOW_MS, FIRST_VERSION + 1)])
    applied(table, [Command("set", [b"SET", b"other", b"v"], NOW_MS + 5_000, FIRST_VERSION + 2)])
    assert table.compact()["rows_dropped"] == 0


def test_data_is_on_stable_storage_before_the_commit_and_the_commit_after_it(tmp_path: Path):
    table = begun(tmp_path / "t")
    synced: list[tuple[str, bool]] = []
    log = tmp_path / "t" / "_delta_log" / f"{table.delta.version + 1:020}.json"
    with patch.object(delta_module, "_sync", lambda path: synced.append((path.name, log.exists()))):
        applied(table, sets(20))
    data = [Path(each.path).name for each in table.delta.files()]
    assert len(data) == 4
    assert sorted(name for name, committed in synced if not committed) == sorted(data)
    assert [name for name, committed in synced if committed] == [log.name, "_delta_log"]


def test_rows_too_many_for_one_file_become_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(delta_module, "FILE_BYTES_MAX", 2_000)
    table = begun(tmp_path / "t", buckets=1)
    applied(table, sets(200))
    assert len(table.delta.files()) > 2
    applied(table, [Command("rename", [b"RENAME", b"key-1", b"key-199"], NOW_MS, FIRST_VERSION + 201)])
    assert len(held(tmp_path / "t", NOW_MS)) == 199


def test_any_table_can_be_compacted_also_one_whose_columns_have_grown(tmp_path: Path):
    table = DeltaFolder.create(tmp_path / "t", pa.schema([("a", pa.int64())]))
    table.commit(table.write(pa.table({"a": [1]})), [], {"source": 7})
    table.add_columns(pa.schema([("b", pa.string())]))
    table.commit(table.write(pa.table({"a": [2], "b": ["x"]})), [], {})
    assert table.compact() == {"files_removed": 2, "files_added": 1, "rows_dropped": 0}
    rows = DeltaTable(str(tmp_path / "t")).to_pyarrow_table().sort_by("a")
    assert rows.to_pydict() == {"a": [1, 2], "b": [None, "x"]}
    assert table.compact()["files_removed"] == 0
    assert table.position("source") == 7


def test_files_that_are_large_already_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    table = DeltaFolder.create(tmp_path / "t", pa.schema([("a", pa.int64())]))
    for number in range(3):
        table.commit(table.write(pa.table({"a": [number]})), [], {})
    monkeypatch.setattr("tidelog.spark.tables.delta.COMPACT_BYTES", 1)
    assert table.compact()["files_removed"] == 0


def test_vacuum_deletes_what_no_version_needs_and_the_table_stays_readable(tmp_path: Path):
    table = begun(tmp_path / "t")
    for round_number in range(3):
        applied(table, sets(40, first=40 * round_number))
    orphan = tmp_path / "t" / "db=db0" / "bucket=0" / "part-of-a-commit-that-never-came.parquet"
    orphan.write_bytes(b"")
    assert table.delta.vacuum(168) == []
    gone = table.delta.vacuum(0)
    assert any(orphan.name in each for each in gone)
    assert len(held(tmp_path / "t", NOW_MS)) == 120


def test_the_position_outlives_checkpoints_of_the_log(tmp_path: Path):
    table = begun(tmp_path / "t")
    applied(table, sets(5))
    table.delta.delta.create_checkpoint()
    for path in sorted((tmp_path / "t" / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()  # as a clean-up of old entries does
    again = StateTable.open(tmp_path / "t")
    assert again.position(SOURCE) == unpack(FIRST_VERSION + 5)
    applied(again, sets(5, first=5))
    assert len(held(tmp_path / "t", NOW_MS)) == 10


def test_rows_of_another_batch_are_no_batch(tmp_path: Path):
    table = begun(tmp_path / "t")
    with pytest.raises(AssertionError, match="another batch"):
        table.apply(SOURCE, "db0", typed(sets(5)), START, unpack(FIRST_VERSION + 3))


def test_another_kind_of_table_is_refused(tmp_path: Path):
    DeltaFolder.create(tmp_path / "t", pa.schema([("a", pa.int64())]))
    with pytest.raises(TableError, match="another table"):
        StateTable.open(tmp_path / "t")


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TableError, match="not empty"):
        StateTable.create(tmp_path, V4)
