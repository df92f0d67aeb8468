"""What is alive in a dump comes out, in bounded parts and exact commands; what is not does not."""

import math
import struct
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pikiwi.dump_keys import NOW_MS, read_all
from tests.pikiwi.dump_writer import LEFT, MILLISECONDS, VERSION, BlackwidowWriter, FloydWriter
from tidelog.pikiwi.dump import DumpKey, SnapshotCommand, StreamState, plan, read_keys, read_range
from tidelog.pikiwi.dump.commands import commands_of, score_text
from tidelog.pikiwi.errors import DumpError

NUL_KEYS = [b"", b"\0", b"\0\0", b"a\0", b"a\0b", b"a\0\0b", b"a\0\1", b"a\1", b"a", b"\xff\0\xff", b"{tag}\0"]


def commands(folder: Path, **options: object) -> list[SnapshotCommand]:
    return [each for part in plan(folder, **{"now_ms": NOW_MS, **options}) for each in read_range(part)]  # type: ignore[arg-type]


def test_keys_and_values_with_nuls_and_empty_ones_come_back(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    for key in NUL_KEYS:
        writer.string(b"s" + key, key)
        writer.hash(b"h" + key, dict.fromkeys(NUL_KEYS, key))
        writer.set(b"m" + key, NUL_KEYS)
        writer.zset(b"z" + key, dict.fromkeys(NUL_KEYS, 1.0))
        writer.list(b"l" + key, NUL_KEYS)
        writer.stream(b"x" + key, [(1, 2, NUL_KEYS[:10])])
    writer.close()
    got = read_all(tmp_path)
    assert len(got) == 6 * len(NUL_KEYS)
    for key in NUL_KEYS:
        assert got["string", b"s" + key] == (0, [key])
        assert dict(got["hash", b"h" + key][1]) == dict.fromkeys(NUL_KEYS, key)
        assert set(got["set", b"m" + key][1]) == set(NUL_KEYS)
        assert dict(got["zset", b"z" + key][1]) == dict.fromkeys(NUL_KEYS, 1.0)
        assert got["list", b"l" + key] == (0, NUL_KEYS)
        assert got["stream", b"x" + key] == (0, [(1, 2, tuple(NUL_KEYS[:10]))])


def test_a_key_that_4_0_1_cut_at_its_nul_is_found_by_its_meta_with_leftovers(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    writer.hash(b"bin\0", {b"field": b"value"})
    writer.rows["default"] = [(row + b"key", value) for row, value in writer.rows["default"]]
    writer.close()
    assert read_all(tmp_path) == {("hash", b"bin\0"): (0, [(b"field", b"value")])}


def test_both_layouts_give_lists_in_their_own_order(tmp_path: Path) -> None:
    values = [b"%d" % value for value in range(1000, 0, -1)]  # over two bytes of index, in neither sort order
    floyd, blackwidow = FloydWriter(tmp_path / "4"), BlackwidowWriter(tmp_path / "3")
    for writer in (floyd, blackwidow):
        for key in (b"a", b"bb", b"b", b"aaa"):
            writer.list(key, [key + value for value in values])
        writer.close()
        got = read_all(writer.folder.parent if writer is floyd else writer.folder, batch_num=7)
        assert got == {("list", key): (0, [key + value for value in values]) for key in (b"a", b"bb", b"b", b"aaa")}


def test_dead_versions_empty_and_expired_collections_do_not_come_out(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    writer.hash(b"alive", {b"new": b"1"}, version=VERSION)
    writer.hash(b"expired", {b"f": b"1"}, expire=NOW_MS - 1)
    writer.hash(b"expires", {b"f": b"1"}, expire=NOW_MS)
    writer.set(b"empty", [])
    writer.list(b"popped", [])
    writer.put("list_data_cf", writer.data_row(b"popped", struct.pack("<Q", LEFT + 1)), b"gone" + bytes(24))
    for version in (VERSION - 5, VERSION + 5):
        writer.put("hash_data_cf", writer.data_row(b"alive", b"old", version), b"0" + bytes(24))
    writer.put("set_data_cf", writer.data_row(b"empty", b"old"), bytes(24))
    writer.put("zset_data_cf", writer.data_row(b"never", b"old"), bytes(32))
    writer.put("hash_data_cf", writer.data_row(b"now a string", b"old"), b"0" + bytes(24))
    writer.string(b"now a string", b"v")
    writer.string(b"stale", b"v", expire=NOW_MS - 1)
    writer.close()
    assert read_all(tmp_path) == {
        ("hash", b"alive"): (0, [(b"new", b"1")]),
        ("hash", b"expires"): (NOW_MS, [(b"f", b"1")]),
        ("string", b"now a string"): (0, [b"v"]),
    }


def test_seconds_of_4_0_0_and_milliseconds_of_hyperloglogs_are_recognised(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    expires_s = NOW_MS // 1000 + 60
    times = [(b"seconds", expires_s), (b"ms", expires_s * 1000), (b"marked", expires_s * 1000 | MILLISECONDS)]
    for key, time in times:
        reserve = b"\x80" + bytes(15) if key == b"ms" else bytes(16)
        writer.put("default", writer.meta_row(key), b"\0v" + reserve + struct.pack("<QQ", 0, time))
    writer.close()
    assert read_all(tmp_path) == {("string", key): (expires_s * 1000, [b"v"]) for key, _ in times}


def test_3_5_expires_in_whole_seconds_as_its_server_does(tmp_path: Path) -> None:
    writer = BlackwidowWriter(tmp_path)
    second = NOW_MS // 1000
    for key, expire_s in [(b"past", second - 1), (b"this", second), (b"never", 0), (b"overflowed", -5)]:
        writer.string(key, b"v", expire_s)
        writer.hash(key, {b"f": b"v"}, expire_s)
    writer.close()
    alive = {(kind, key) for kind in ("string", "hash") for key in (b"this", b"never")}
    assert read_all(tmp_path, now_ms=second * 1000 + 999).keys() == alive


def test_one_key_of_several_types_in_3_5_comes_out_as_each(tmp_path: Path) -> None:
    writer = BlackwidowWriter(tmp_path)
    writer.string(b"k", b"v")
    writer.hash(b"k", {b"f": b"v"})
    writer.list(b"k", [b"v"])
    writer.close()
    ids = [(each.data_type, each.key, each.batch) for each in commands(tmp_path)]
    assert ids == [("string", b"k", 0), ("hash", b"k", 0), ("list", b"k", 0)]


def test_bookkeeping_of_slot_migration_is_left_out(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    for name in (b"slotkey", b"slottag"):
        writer.set(b"_internal:%s:4migrate:7" % name, [b"k"])
        writer.string(b"_internal:%s:4migrate:8" % name, b"k")
    writer.string(b"_internal:other", b"kept")
    writer.close()
    assert read_all(tmp_path).keys() == {("string", b"_internal:other")}


@pytest.mark.parametrize("tail", [1, 2, 99, 100, 101, 5000])
def test_only_the_tail_of_a_list_comes_out_when_asked(tail: int, tmp_path: Path) -> None:
    values = [b"%d" % value for value in range(100)]
    writer = FloydWriter(tmp_path)
    writer.list(b"l", values)
    writer.list(b"short", values[:1])
    writer.set(b"s", values)
    writer.close()
    got = read_all(tmp_path, list_tail_n=tail, batch_num=10)
    assert got["list", b"l"] == (0, values[-tail:])
    assert got["list", b"short"] == (0, values[:1])
    assert len(got["set", b"s"][1]) == 100


def test_rows_outside_a_lists_indexes_are_dead(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    writer.list(b"l", [b"a", b"b"])
    for index in (LEFT, LEFT + 3):
        writer.put("list_data_cf", writer.data_row(b"l", struct.pack("<Q", index)), b"popped" + bytes(24))
    writer.close()
    assert read_all(tmp_path) == {("list", b"l"): (0, [b"a", b"b"])}


@pytest.mark.parametrize("count", [1, 511, 512, 513, 1023, 1024, 1025, 64 * 512])
def test_a_key_that_fills_its_batches_exactly_ends_there_and_the_next_follows(count: int, tmp_path: Path) -> None:
    """Defect 7 of the Go tool: 64 × 512 elements ended the whole snapshot silently."""
    writer = FloydWriter(tmp_path)
    writer.hash(b"full", {b"%08d" % field: b"v" for field in range(count)}, expire=NOW_MS + 1)
    writer.hash(b"next", {b"f": b"v"})
    writer.close()
    found = commands(tmp_path)
    full = [each for each in found if each.key == b"full"]
    batches = [*([512] * (count // 512)), *([count % 512] if count % 512 else [])]
    assert [(len(each.args) - 2) // 2 for each in full[:-1]] == batches
    assert full[-1].args == (b"PEXPIREAT", b"full", b"%d" % (NOW_MS + 1))
    assert [each.batch for each in full] == list(range(len(batches) + 1)), "defect 9: ids of batches are unique"
    assert sum((each.args[2::2] for each in full[:-1]), ()) == tuple(b"%08d" % field for field in range(count))
    assert found[-1] == ("hash", b"next", (b"HMSET", b"next", b"f", b"v"), 0)


def test_parts_are_bounded_by_bytes_too(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    writer.list(b"l", [b"x" * 1000] * 100)
    writer.list(b"one", [b"x" * 100_000] * 3)
    writer.close()
    parts = [key for each in plan(tmp_path, now_ms=NOW_MS, batch_bytes=10_000) for key in read_keys(each)]
    assert [len(part.elements) for part in parts if part.key == b"one"] == [1, 1, 1]
    assert {len(part.elements) for part in parts if part.key == b"l"} == {10}


@given(st.floats(allow_nan=False))
def test_a_score_reads_back_as_the_same_double(score: float) -> None:
    """Defect 9 of the Go tool: six decimals."""
    text = score_text(score)
    assert struct.pack("<d", float(text)) == struct.pack("<d", score)


@pytest.mark.parametrize(
    ("score", "text"),
    [(math.inf, b"inf"), (-math.inf, b"-inf"), (0.1, b"0.1"), (3.0, b"3"), (-0.0, b"-0"), (1e300, b"1e+300")],
)
def test_scores_are_written_short(score: float, text: bytes) -> None:
    assert score_text(score) == text


def test_scores_go_through_a_dump_bit_for_bit(tmp_path: Path) -> None:
    scores = {
        b"third": 1 / 3,
        b"tiny": 5e-324,
        b"big": 1.7976931348623157e308,
        b"geo": 3479099943497504.0,
        b"zero": -0.0,
    }
    writer = FloydWriter(tmp_path)
    writer.zset(b"z", scores)
    writer.close()
    (command,) = commands(tmp_path)
    got = {member: float(score) for score, member in zip(command.args[2::2], command.args[3::2], strict=True)}
    assert {member: struct.pack("<d", score) for member, score in got.items()} == {
        member: struct.pack("<d", score) for member, score in scores.items()
    }


def test_a_score_that_is_no_number_is_an_error() -> None:
    with pytest.raises(DumpError, match="no number"):
        list(commands_of(iter([DumpKey("zset", b"z", 0, [(b"m", math.nan)])])))


def stream_commands(folder: Path, **state: object) -> list[tuple[bytes, ...]]:
    writer = FloydWriter(folder)
    writer.stream(b"x", [(5, 0, (b"a", b"1")), (5, 1, (b"b", b"2"))], **state)  # type: ignore[arg-type]
    writer.close()
    return [each.args for each in commands(folder, batch_num=1)]


def test_entries_of_a_stream_come_with_their_ids(tmp_path: Path) -> None:
    assert stream_commands(tmp_path) == [(b"XADD", b"x", b"5-0", b"a", b"1"), (b"XADD", b"x", b"5-1", b"b", b"2")]


@pytest.mark.parametrize(
    "state", [StreamState((9, 9), (0, 0), 2, 2), StreamState((5, 1), (4, 0), 2, 2), StreamState((5, 1), (0, 0), 7, 2)]
)
def test_a_stream_whose_entries_do_not_tell_all_gets_an_xsetid(state: StreamState, tmp_path: Path) -> None:
    found = stream_commands(tmp_path, last_id=state.last_id, deleted=state.max_deleted_id, added=state.entries_added)
    last, deleted = (b"%d-%d" % pair for pair in (state.last_id, state.max_deleted_id))
    xsetid = (b"XSETID", b"x", last, b"ENTRIESADDED", b"%d" % state.entries_added, b"MAXDELETEDID", deleted)
    assert found[-1] == xsetid
    assert len(found) == 3


@pytest.mark.parametrize(
    ("family", "row", "value"),
    [
        ("default", FloydWriter.meta_row(b"bad"), b"\x63" + bytes(40)),  # an unknown type
        ("default", FloydWriter.meta_row(b"bad"), b""),
        ("default", FloydWriter.meta_row(b"bad"), b"\0short"),
        ("default", bytes(8) + b"bad without end", b"\0" + bytes(32)),
        ("hash_data_cf", FloydWriter.data_row(b"bad", b"f")[:20], b""),
        ("zset_data_cf", FloydWriter.data_row(b"bad zset", b"m"), b"1234"),
        ("stream_data_cf", FloydWriter.data_row(b"bad stream", bytes(16), 2), struct.pack("<I", 99) + b"f"),
        ("stream_data_cf", FloydWriter.data_row(b"bad stream", bytes(16), 2), struct.pack("<I", 1) + b"f"),
    ],
)
def test_a_row_that_cannot_be_decoded_is_an_error_with_its_key(
    family: str, row: bytes, value: bytes, tmp_path: Path
) -> None:
    writer = FloydWriter(tmp_path)
    writer.zset(b"bad zset", {b"other": 1.0})
    writer.stream(b"bad stream", [(1, 1, (b"f", b"v"))])
    writer.put(family, row, value)
    writer.close()
    with pytest.raises(DumpError, match=rf"0 \({family}\).*bad"):
        commands(tmp_path)


def test_a_meta_of_the_wrong_size_is_an_error_with_its_key(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    writer.put("hash_data_cf", writer.data_row(b"bad", b"f"), b"v" + bytes(24))
    writer.put("default", writer.meta_row(b"bad"), b"\1" + bytes(50))
    writer.close()
    with pytest.raises(DumpError, match=r"bad.*51 bytes and should have 45"):
        commands(tmp_path, types=["hash"])


def test_memory_is_bounded_by_parts_and_not_by_a_collection(tmp_path: Path) -> None:
    value = b"v" * 1000
    writer = FloydWriter(tmp_path)
    writer.hash(b"large hash", {b"%06d" % field: value for field in range(4000)})
    writer.list(b"large list", [value] * 4000)
    writer.close()
    del writer
    for data_type in ("hash", "list"):
        (piece,) = plan(tmp_path, now_ms=NOW_MS, types=[data_type], batch_num=50)
        tracemalloc.start()
        assert sum(len(part.elements) for part in read_keys(piece)) == 4000
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 1_000_000, "of 4,000,000 bytes in the collection"


def test_a_reader_that_stops_early_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    writer = FloydWriter(tmp_path / "dump")
    writer.hash(b"h", {b"%d" % field: b"v" for field in range(100)})
    writer.close()
    (piece,) = plan(tmp_path / "dump", now_ms=NOW_MS, types=["hash"], batch_num=3)
    keys = read_keys(piece)
    next(keys)
    assert list(scratch.iterdir())
    keys.close()  # type: ignore[attr-defined]
    assert not list(scratch.iterdir())
