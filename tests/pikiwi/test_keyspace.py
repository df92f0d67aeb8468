import ast
import re
from collections import deque
from pathlib import Path

import pytest

from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tidelog.pikiwi.commands import ZeroExpiry, absolute_set
from tidelog.pikiwi.dump.plan import plan
from tidelog.pikiwi.dump.reader import read_keys, read_range
from tidelog.pikiwi.keyspace import Entry, Keyspace, KeyspaceError, Stream
from tidelog.pikiwi.resp import parse_command

NOW_MS = 1_700_000_000_000
FIXTURE_CLOCK_MS = 1_794_770_500_000
_EXPECTED = re.compile(r"\('(\w+)', (b['\"].*?['\"])\) (.*) etime_ms (\d+) extra ")


def run(*lines: str, space: Keyspace | None = None, now_ms: int = NOW_MS) -> Keyspace:
    space = space or Keyspace()
    for line in lines:
        space.apply(line.encode().split(b" "), now_ms)
    return space


def value(space: Keyspace, key: bytes, now_ms: int = NOW_MS) -> object:
    found = space.get(key, now_ms)
    return found[1].value if found is not None else None


def space_of(version: str) -> Keyspace:
    if version.startswith("3"):
        return Keyspace(types_apart=True, zero_expiry=ZeroExpiry.KEEP)
    return Keyspace()


def expected(version: str) -> dict[tuple[str, bytes], tuple[object, int]]:
    text = (Path(__file__).parent / "fixtures" / f"expected-{version}.txt").read_text(encoding="utf-8")
    found: dict[tuple[str, bytes], tuple[object, int]] = {}
    for line in text.splitlines():
        match = _EXPECTED.match(line)
        if match is None:
            continue
        data_type, key, contents, expire_ms = match[1], ast.literal_eval(match[2]), match[3], int(match[4])
        if "(131072)" in contents:
            shown: object = 131072
        elif data_type == "zset":
            shown = ast.literal_eval(contents.replace("-inf", "-1e999").replace(": inf", ": 1e999"))
        else:
            shown = ast.literal_eval(contents)
        found[data_type, key] = (shown, expire_ms)
    return found


def shown(data_type: str, held: Entry) -> object:
    match data_type:
        case "string" if len(held.value) == 131072:
            return 131072
        case "list":
            return list(held.value)
        case "set":
            return dict.fromkeys(held.value, 1)
        case "stream":
            return [(each, b"".join(len(f).to_bytes(4, "little") + f for f in fields)) for each, fields in
                    held.value.entries.items()]  # fmt: skip
    return held.value


@pytest.mark.parametrize("translated", [False, True])
@pytest.mark.parametrize("version", VERSIONS)
def test_the_recorded_commands_of_a_real_master_leave_what_its_dump_holds(version: str, translated: bool) -> None:
    space = space_of(version)
    keep = ZeroExpiry.KEEP if version.startswith("3") else ZeroExpiry.NONE
    for _, item in recorded(version):
        args = parse_command(item.content)
        if translated and args[0] == b"pksetexat":
            args = absolute_set(args, keep) or args
        space.apply(args, item.exec_time_s * 1000)
    wanted = expected(version)
    del wanted["string", b"during"]  # written after the recording ended
    held = {(data_type, key): entry for data_type, key, entry in space.all(FIXTURE_CLOCK_MS)}
    if version.startswith("3"):
        del held["stream", b"x"]  # the full sync of 3.5 has no streams
    assert held.keys() == wanted.keys()
    for at, (contents, expire_ms) in wanted.items():
        assert shown(at[0], held[at]) == contents, at
        # The master keeps milliseconds; its binlog has them for some commands only.
        if version.startswith("3"):
            assert held[at].expire_ms == expire_ms, at
        else:
            assert abs(held[at].expire_ms - expire_ms) <= 1_500, at


@pytest.mark.parametrize("version", VERSIONS)
def test_a_dump_builds_the_same_space_as_the_binlog(version: str) -> None:
    by_dump, by_binlog = space_of(version), space_of(version)
    folder = Path(__file__).parent / "fixtures" / f"dump-{version}"
    for each in plan(folder, now_ms=FIXTURE_CLOCK_MS, batch_num=2):
        for command in read_range(each):
            by_dump.apply(command.args, FIXTURE_CLOCK_MS)
    for _, item in recorded(version):
        by_binlog.apply(parse_command(item.content), item.exec_time_s * 1000)
    by_dump.apply([b"DEL", b"during"], FIXTURE_CLOCK_MS)  # written after the recording ended
    if version.startswith("3"):
        by_binlog.apply([b"DEL", b"x"], FIXTURE_CLOCK_MS)  # the full sync of 3.5 has no streams
    held = [
        {(kind, key): entry.value for kind, key, entry in space.all(FIXTURE_CLOCK_MS)} for space in (by_dump, by_binlog)
    ]
    assert held[0] == held[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_hyperloglog_is_byte_for_byte_the_masters(version: str) -> None:
    folder = Path(__file__).parent / "fixtures" / f"dump-{version}"
    ranges = plan(folder, now_ms=FIXTURE_CLOCK_MS, types=["string"], prefixes=[b"pf"])
    held = [part.elements[0] for each in ranges for part in read_keys(each) if part.key == b"pf"]
    assert [value(run("PFADD pf a b"), b"pf")] == held


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (["SET k v"], b"v"),
        (["SET k v", "SET k w NX"], b"v"),
        (["SET k w NX"], b"w"),
        (["SET k w XX"], None),
        (["SET k v", "SET k w XX"], b"w"),
        (["setnx k a", "setnx k b"], b"a"),
        (["SET k v", "getset k w"], b"w"),
        (["SET k 10", "DECR k"], b"9"),
        (["DECRBY k 5"], b"-5"),
        (["INCR k", "INCRBY k 9"], b"10"),
        (["INCRBYFLOAT k 1.5", "INCRBYFLOAT k 0.1"], b"1.6"),
        (["INCRBYFLOAT k 1e2"], b"100"),
        (["APPEND k ab", "APPEND k cd"], b"abcd"),
        (["SET k gs", "SETRANGE k 1 Z"], b"gZ"),
        (["SETRANGE k 2 ab"], b"\0\0ab"),
        (["SET k abcdef", "SETRANGE k 1 XY"], b"aXYdef"),
        (["SETBIT k 7 1"], b"\x01"),
        (["SETBIT k 7 0"], None),
        (["SETBIT k 7 1", "SETBIT k 100 0"], b"\x01"),
        (["SETBIT k 15 1", "SETBIT k 0 1", "SETBIT k 15 0"], b"\x80\x00"),
        (["SET k v", "delvx k w"], b"v"),
        (["SET k v", "delvx k v"], None),
        (["MSET k 1 x 2"], b"1"),
        (["SET x 1", "MSETNX k 1 x 2"], None),
        (["SET k v", "DEL k"], None),
        (["HSET k f v", "SET k v"], b"v"),
        (["SET k v", "flushdb"], None),
        (["SET a v", "RENAME a k"], b"v"),
        (["SET a v", "SET k w", "RENAMENX a k"], b"w"),
        (["SET k w", "RENAME a k"], b"w"),
        (["SET k w", "RENAME k k"], b"w"),
        (["RPUSH k a b", "LPUSH k c d"], deque([b"d", b"c", b"a", b"b"])),
        (["RPUSHX k a"], None),
        (["RPUSH k a", "LPUSHX k b", "RPUSHX k c"], deque([b"b", b"a", b"c"])),
        (["RPUSH k a b c d", "LPOP k", "RPOP k"], deque([b"b", b"c"])),
        (["RPUSH k a b c d", "LPOP k 2", "RPOP k 9"], None),
        (["RPUSH k a b a b a", "LREM k 2 a"], deque([b"b", b"b", b"a"])),
        (["RPUSH k a b a b a", "LREM k -2 a"], deque([b"a", b"b", b"b"])),
        (["RPUSH k a b a", "LREM k 0 a"], deque([b"b"])),
        (["RPUSH k a b c", "LSET k 0 A", "LSET k -1 C"], deque([b"A", b"b", b"C"])),
        (["RPUSH k a b", "LINSERT k BEFORE b x", "LINSERT k after b y"], deque([b"a", b"x", b"b", b"y"])),
        (["RPUSH k a", "LINSERT k BEFORE none x"], deque([b"a"])),
        (["RPUSH k a b c d", "LTRIM k 1 -2"], deque([b"b", b"c"])),
        (["RPUSH k a b", "LTRIM k 5 9"], None),
        (["RPUSH a 1 2", "RPOPLPUSH a k"], deque([b"2"])),
        (["RPUSH k 1 2", "RPOPLPUSH k k"], deque([b"2", b"1"])),
        (["HSET k f v g w", "HSETNX k f no", "HSETNX k h x", "HDEL k g"], {b"f": b"v", b"h": b"x"}),
        (["HSET k f v", "HDEL k f"], None),
        (["HINCRBY k f 3", "HINCRBY k f -5"], {b"f": b"-2"}),
        (["HINCRBYFLOAT k f 0.1", "HINCRBYFLOAT k f 0.2"], {b"f": b"0.3"}),
        (["SADD k a b", "SREM k a c"], {b"b"}),
        (["SADD k a", "SREM k a"], None),
        (["SADD a m n", "SMOVE a k m"], {b"m"}),
        (["SADD a n", "SMOVE a k m"], None),
        (["ZADD k 1 a 2 b", "ZINCRBY k 1.5 a", "ZREM k b"], {b"a": 2.5}),
        (["ZADD k 1 b 1 a 2 c", "ZPOPMIN k"], {b"b": 1.0, b"c": 2.0}),
        (["ZADD k 1 b 1 a 2 c", "ZPOPMAX k 2"], {b"a": 1.0}),
        (["ZADD k 1 a 2 b 3 c", "ZREMRANGEBYRANK k 0 -2"], {b"c": 3.0}),
        (["ZADD k 1 a 2 b 3 c", "ZREMRANGEBYSCORE k (1 2"], {b"a": 1.0, b"c": 3.0}),
        (["ZADD k 1 a inf b -inf c", "ZREMRANGEBYSCORE k -inf (inf"], {b"b": float("inf")}),
        (["ZADD k 0 a 0 b 0 c", "ZREMRANGEBYLEX k [a (c"], {b"c": 0.0}),
        (["ZADD k 0 a", "ZREMRANGEBYLEX k - +"], None),
        (["GEOADD k 13.36 38.11 Palermo"], {b"Palermo": 3479099943497504.0}),
    ],
)  # fmt: skip
def test_what_commands_leave(lines: list[str], left: object) -> None:
    assert value(run(*lines), b"k") == left


def test_streams() -> None:
    space = run("XADD k 1-1 a 1", "XADD k 2-0 b 2 c 3", "XADD k 2-0 again x", "XADD k MAXLEN ~ 2 5 d 4", "XDEL k 2-0")
    stream = value(space, b"k")
    assert isinstance(stream, Stream)
    assert stream.entries == {(5, 0): (b"d", b"4")}
    assert (stream.last_id, stream.entries_added, stream.max_deleted_id) == ((5, 0), 3, (2, 0))
    run("XTRIM k MAXLEN 0", space=space)
    assert stream.entries == {}
    run("XSETID k 9-9 ENTRIESADDED 7 MAXDELETEDID 8-0", "XADD k 9-9 too old", space=space)
    assert (stream.entries, stream.last_id, stream.entries_added) == ({}, (9, 9), 7)
    run("XADD k 10-1 a 1", "XADD k 11-1 a 1", "XTRIM k MINID 11", "XADD none NOMKSTREAM 1-1 a 1", space=space)
    assert list(stream.entries) == [(11, 1)]
    assert value(space, b"none") is None


def expire_ms(space: Keyspace, key: bytes = b"k") -> int:
    found = space.get(key, NOW_MS)
    assert found is not None
    return found[1].expire_ms


@pytest.mark.parametrize(
    ("lines", "expiry"),
    [
        (["SET k v EX 5"], NOW_MS + 5_000),
        (["SET k v PX 5"], NOW_MS + 5),
        (["SET k v EXAT 1700000009"], 1_700_000_009_000),
        (["SET k v PXAT 1700000009001"], 1_700_000_009_001),
        (["SETEX k 5 v"], NOW_MS + 5_000),
        (["PSETEX k 5 v"], NOW_MS + 5),
        (["pksetexat k 1700000009 v"], 1_700_000_009_000),
        (["pksetexat k 1700000009001 v"], 1_700_000_009_001),
        (["pksetexat k 0 v"], 0),
        (["SETEX k 5 1", "SET k v"], 0),
        (["SETEX k 5 1", "SET k v KEEPTTL"], NOW_MS + 5_000),
        (["SETEX k 5 1", "pksetexat k 0 2"], 0),
        (["SETEX k 5 1", "DECR k"], NOW_MS + 5_000),
        (["SETEX k 5 1", "SETRANGE k 0 2"], NOW_MS + 5_000),
        (["SETEX k 5 1", "getset k 2"], 0),
        (["HSET k f v", "expireat k 1700000009"], 1_700_000_009_000),
        (["HSET k f v", "pexpireat k 1700000009001"], 1_700_000_009_001),
        (["HSET k f v", "EXPIRE k 9"], NOW_MS + 9_000),
        (["HSET k f v", "PEXPIRE k 9"], NOW_MS + 9),
        (["HSET k f v", "EXPIRE k 9", "HSET k g w"], NOW_MS + 9_000),
        (["HSET k f v", "EXPIRE k 9", "HDEL k f", "HSET k f v"], 0),
        (["HSET k f v", "EXPIRE k 9", "PERSIST k"], 0),
        (["SETEX a 5 v", "RENAME a k"], NOW_MS + 5_000),
    ],
)
def test_expiry(lines: list[str], expiry: int) -> None:
    assert expire_ms(run(*lines)) == expiry


def test_a_key_is_gone_once_its_expiry_is_past() -> None:
    space = run("SETEX k 5 v", "EXPIRE absent 5")
    assert value(space, b"k", NOW_MS + 5_000) == b"v"
    assert value(space, b"k", NOW_MS + 5_001) is None
    assert value(run("SET k v", "EXPIREAT k 0"), b"k") is None
    run("RPUSH l a", "EXPIRE l 5", space=space)
    run("RPUSH l b", space=space, now_ms=NOW_MS + 6_000)
    assert value(space, b"l") == deque([b"b"])
    assert [key for _, key, _ in space.all(NOW_MS + 9_000)] == [b"l"]


def test_a_3_5_master_keeps_types_apart_and_the_expiry_of_a_zero() -> None:
    space = Keyspace(types_apart=True, zero_expiry=ZeroExpiry.KEEP)
    run("SET k 1", "HSET k f v", "RPUSH k a", "EXPIRE k 9", "pksetexat k 0 2", space=space)
    assert [(kind, entry.expire_ms) for kind, _, entry in space.all(NOW_MS)] == [
        ("string", NOW_MS + 9_000), ("list", NOW_MS + 9_000), ("hash", NOW_MS + 9_000)
    ]  # fmt: skip
    found = space.get(b"k", NOW_MS, "hash")
    assert found is not None
    assert found[1].value == {b"f": b"v"}
    run("DEL k", space=space)
    assert list(space.all(NOW_MS)) == []


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["SPOP k"], "not known here"),
        (["frobnicate k"], "not known here"),
        (["SET k"], "at least 3"),
        (["HSET k f v", "RPUSH k a"], "is a hash here"),
        (["SET k v", "DECR k"], "no integer"),
        (["HSET k f v", "HINCRBY k f 1"], "no integer"),
        (["HINCRBY k f x"], "no integer"),
        (["ZADD k nan m"], "not a number"),
        (["ZADD k x m"], "no number"),
        (["ZINCRBY k x m"], "no number"),
        (["ZADD k 1 m 2"], "lacks its member"),
        (["HSET k f v g"], "lacks its value"),
        (["MSET k 1 x"], "lacks its value"),
        (["LSET k 0 a"], "no such element"),
        (["SET k v EX"], "no integer"),
        (["SET k v FOO"], "no option"),
        (["SETBIT k -1 1"], "no such bit"),
        (["SETBIT k 4294967296 1"], "no such bit"),
        (["SETRANGE k 536870912 x"], "at most"),
        (["INCRBYFLOAT k x"], "no number"),
        (["XADD k 1-1 f"], "at least 5"),
        (["XADD k x-1 f v"], "no integer"),
        (["XADD k 1-1 f v g"], "pairs"),
        (["XTRIM k SIZE 5"], "MAXLEN or MINID"),
        (["GEOADD k 200 0 m"], "no place"),
        (["GEOADD k 1 2 m 3"], "longitude, latitude and name"),
    ],
)  # fmt: skip
def test_what_cannot_have_worked_on_the_master_is_refused_and_changes_nothing(lines: list[str], why: str) -> None:
    space = run(*lines[:-1])
    before = [(kind, key, repr(entry)) for kind, key, entry in space.all(NOW_MS)]
    with pytest.raises(KeyspaceError, match=why):
        run(lines[-1], space=space)
    assert [(kind, key, repr(entry)) for kind, key, entry in space.all(NOW_MS)] == before


def test_a_command_that_worked_proves_that_a_key_of_another_type_has_just_expired() -> None:
    space = run("SETEX k 1 v", "RPUSH k a")
    assert value(space, b"k") == deque([b"a"])
    with pytest.raises(KeyspaceError):
        run("SETEX k 2 v", "RPUSH k a")


@pytest.mark.parametrize(
    ("begin", "command", "key"),
    [("rpush a 1 2", "rpoplpush a b", b"a"), ("sadd a 1 2", "smove a b 1", b"a")],
)
def test_a_move_to_a_key_of_another_type_takes_nothing_out(begin: str, command: str, key: bytes) -> None:
    space = run(begin, "set b x")
    before = repr(space.get(key, NOW_MS))
    with pytest.raises(KeyspaceError):
        run(command, space=space)
    assert repr(space.get(key, NOW_MS)) == before
