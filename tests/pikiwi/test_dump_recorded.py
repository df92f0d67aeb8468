"""Dumps of real servers hold what the servers said they hold."""

import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.pikiwi.dump_keys import FIXTURES, NOW_MS, Whole, read_all
from tidelog.pikiwi.dump import DumpInfo, plan, read_keys, read_range
from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.position import Position

LINE = re.compile(r"^\('(\w+)', (b'.*?')\) (.*) etime_ms (\d+) extra ?(.*)$")
CUT = re.compile(r"^(b'.*)\.\.\.\((\d+)\)$")


def expected(name: str) -> dict[tuple[str, bytes], tuple[int, Any]]:
    """Type and key → expiry and what follows; a value that was cut is left as its text."""
    lines = (LINE.match(line) for line in (FIXTURES / name).read_text().splitlines())
    return {
        (match[1], _python(match[2])): (int(match[4]), match[3] if CUT.match(match[3]) else _python(match[3]))
        for match in lines
        if match
    }


def _python(text: str) -> Any:
    return eval(text, {"__builtins__": {}, "inf": math.inf})


def comparable(keys: Whole) -> dict[tuple[str, bytes], tuple[int, Any]]:
    """As the expected files write values."""
    return {key: (expire_ms, _value(key[0], elements)) for key, (expire_ms, elements) in keys.items()}


def _value(data_type: str, elements: list[Any]) -> Any:
    match data_type:
        case "string":
            return elements[0]
        case "hash" | "zset":
            return dict(elements)
        case "set":
            return dict.fromkeys(elements, 1)
        case "stream":
            entries = [(*entry[:2], b"".join(len(f).to_bytes(4, "little") + f for f in entry[2])) for entry in elements]
            return [((ms, sequence), content) for ms, sequence, content in entries]
        case _:
            return elements


@pytest.mark.parametrize("ranges", [1, 7])
@pytest.mark.parametrize("version", ["3.5.5", "4.0.1"])
def test_a_recorded_dump_holds_exactly_what_its_server_said(version: str, ranges: int) -> None:
    got = comparable(read_all(FIXTURES / f"dump-{version}", ranges=ranges))
    wanted = expected(f"expected-{version}.txt")
    assert got.keys() == wanted.keys()
    for key, (expire_ms, value) in wanted.items():
        got_expire_ms, got_value = got[key]
        assert got_expire_ms == expire_ms, key
        if isinstance(value, str) and (cut := CUT.match(value)):
            assert len(got_value) == int(cut[2])
            assert repr(got_value).startswith(cut[1])
        else:
            assert got_value == value, key


def test_a_hyperloglog_of_4_is_told_from_a_string() -> None:
    keys = [key for each in plan(FIXTURES / "dump-4.0.1", now_ms=NOW_MS) for key in read_keys(each)]
    assert [key.key for key in keys if key.hyperloglog] == [b"pf"]
    assert all(len(key.elements[0]) == 131_072 for key in keys if key.hyperloglog)


def test_streams_of_3_5_are_read_from_a_masters_disk() -> None:
    got = read_all(FIXTURES / "dump-3.5.5-streams")
    entries = [(1794770539916, 0, (b"a", b"1")), (1999999999999, 1, (b"b", b"2", b"c", b"3"))]
    assert got == {("stream", b"x"): (0, entries)}


def test_a_dump_with_a_log_to_replay_is_read() -> None:
    got = read_all(FIXTURES / "dump-4.0.1-with-wal")
    lists = {key: elements for (kind, key), (_, elements) in got.items() if kind == "list"}
    assert lists == {b"walist": [b"a", b"b", b"c"]}
    assert got["string", b"key1"] == (0, [b"value1"])
    assert got["string", b"bigval"][1][0].strip(b"B") == b""


def test_commands_of_a_recorded_dump_follow_the_rules() -> None:
    ranges = plan(FIXTURES / "dump-4.0.1", now_ms=NOW_MS)
    commands = {(c.data_type, c.key, c.batch): c.args for each in ranges for c in read_range(each)}
    assert commands["string", b"k:ex", 0] == (b"SET", b"k:ex", b"v", b"PXAT", b"1794771485905")
    assert commands["string", b"m3", 0] == (b"SET", b"m3", b"3")
    assert commands["list", b"l3", 0] == (b"RPUSH", b"l3", b"x", b"y", b"z")
    assert commands["hash", b"hexp", 0] == (b"HMSET", b"hexp", b"a", b"b")
    assert commands["hash", b"hexp", 1] == (b"PEXPIREAT", b"hexp", b"1794775486551")
    assert commands["set", b"s3", 0] == (b"SADD", b"s3", b"m1", b"m2")
    zset = (b"-2", b"neg", b"-inf", b"ninf", b"4.5", b"one", b"inf", b"pinf", b"0", b"zero")
    assert commands["zset", b"z", 0] == (b"ZADD", b"z", *zset)
    assert commands["stream", b"x", 1] == (b"XADD", b"x", b"1999999999999-1", b"b", b"2", b"c", b"3")


def test_the_clock_that_is_given_decides_what_has_expired() -> None:
    before = read_all(FIXTURES / "dump-4.0.1", now_ms=1794770586099)
    after = read_all(FIXTURES / "dump-4.0.1", now_ms=1794770586100)
    assert before.keys() - after.keys() == {("string", b"k:f")}


def test_reading_leaves_the_dump_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURES / "dump-4.0.1", folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    read_all(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "port", "position"),
    [("3.5.5", 9421, (0, 6124)), ("4.0.1", 9221, (0, 6141)), ("4.0.1-with-wal", 9721, (5, 238))],
)
def test_info_says_where_the_binlog_goes_on(name: str, port: int, position: tuple[int, int]) -> None:
    info = DumpInfo.load(FIXTURES / f"dump-{name}")
    assert info == DumpInfo(0, "127.0.0.1", port, Position(*position))


def test_lines_of_info_that_slaves_accept_and_nobody_writes_are_taken() -> None:
    assert DumpInfo.parse(b"12s\nhost\n9221\n3\n4\n5\n6\n").position == Position(3, 4)


@pytest.mark.parametrize(
    "content", [b"", b"0s\nhost\n1\n2", b"0s\nh\n1\nx\n2\n", b"\xff" * 50, b"0s\nh\n1\n2\n-3\n", b"\n" * 9]
)
def test_an_info_file_that_says_no_position_is_an_error(content: bytes) -> None:
    with pytest.raises(DumpError, match="info file"):
        DumpInfo.parse(content)


def test_a_folder_without_info_is_no_complete_dump(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="not complete"):
        DumpInfo.load(tmp_path)


def test_a_folder_without_databases_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is no dump"):
        plan(tmp_path, now_ms=0)
    with pytest.raises(DumpError, match="no folder"):
        plan(tmp_path / "missing", now_ms=0)


def test_no_damaged_byte_of_a_dump_changes_what_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    shutil.copytree(FIXTURES / "dump-4.0.1", folder)
    wanted = read_all(folder)
    files = sorted(path for path in folder.rglob("*") if path.suffix == ".sst" or path.name.startswith("MANIFEST"))
    chance = random.Random(5)
    noticed = 0
    for file in files:
        whole = file.read_bytes()
        damaged = bytearray(whole)
        at = chance.randrange(len(whole))
        damaged[at] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        try:
            assert read_all(folder, mode="single") == wanted, f"byte {at} of {file} changed keys silently"
        except DumpError:
            noticed += 1
        file.write_bytes(whole)
    assert noticed > len(files) / 4  # the rest is in filters and properties, which need not be read
