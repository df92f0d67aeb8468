"""The sample master logs what real masters log, and its dumps and its process tell the truth."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pikiwi.live_commands import Command, LiveDatabase, Version, clock_of, keyspace_of
from tests.pikiwi.live_dump import EVERYTHING_MS, INSTANCES, instance_of, write_dump
from tests.pikiwi.live_state import differences, read_state, state_of, write_state
from tests.pikiwi.live_world import SETTLE_MS, VirtualClock, snapshot_into
from tests.pikiwi.recorded_commands import recorded
from tests.pikiwi.workload import Shop
from tidelog.cli import CommandError
from tidelog.cli.demo_processes import SampleMaster
from tidelog.pikiwi.dump.info import INFO_NAME
from tidelog.pikiwi.keyspace import KeyspaceError
from tidelog.pikiwi.resp import parse_command

FIXTURES = Path(__file__).parent / "fixtures"
VERSIONS: dict[str, Version] = {"3.5.5": "3.5", "4.0.1": "4.0"}
TRANSACTION = ["SET t1 1", "INCR t2", "HSET th a b"]
MILLISECONDS = re.compile(rb"1794\d{9}")
NOW_MS = 1_794_770_485_500


def database(version: Version = "4.0") -> LiveDatabase:
    return LiveDatabase(version, random.Random(1))


def logged(*lines: str, version: Version = "4.0", now_ms: int = NOW_MS) -> list[Command]:
    """What the last of these commands put on the binlog."""
    made = database(version)
    return [made.execute(tuple(line.encode().split(b" ")), now_ms) for line in lines][-1]


def users_commands(version: str) -> list[tuple[str, str]]:
    """Of the recording: commands and replies."""
    text = (FIXTURES / f"commands-{version}.txt").read_text(encoding="utf-8")
    lines = [match.groups() for match in re.finditer(r"^> (.*?) ->(.*)$", text, re.MULTILINE)]
    return [(command, reply.strip()) for command, reply in lines] + [(command, "") for command in TRANSACTION]


@pytest.mark.parametrize("version", VERSIONS)
def test_it_logs_what_a_real_master_logged_for_the_same_commands(version: str) -> None:
    master = database(VERSIONS[version])
    waiting = [(item.exec_time_s, parse_command(item.content)) for _, item in recorded(version)]
    for line, reply in users_commands(version):
        exec_time_s, next_logged = waiting[0] if waiting else (0, [])
        times = [
            word for word in [reply.encode().partition(b"-")[0], *next_logged[2:3]] if MILLISECONDS.fullmatch(word)
        ]
        milliseconds = int(times[0]) % 1000 if times else 0  # the part of the second, where the recording tells it
        try:
            made = master.execute(tuple(line.encode().split(b" ")), exec_time_s * 1000 + milliseconds)
        except KeyspaceError:
            made = []
        for command in made:
            _, real = waiting.pop(0)
            if command[0] == b"sadd":  # in the order of whatever table the master had them in
                assert (command[:2], set(command[2:])) == (tuple(real[:2]), set(real[2:]))
            else:
                assert list(command) == real
    assert waiting == []


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["FLUSHDB"], [b"flushdb"]),
        (["SET a v", "RENAME a b"], [b"RENAME a b"]),
        (["RPUSH l a", "BRPOP none l 1"], [b"rpop l"]),
        (["SETEX k 100 1", "INCR k"], [b"pksetexat k 1794770585 2"]),
        (["PFADD a x", "SADD s 1", "SDIFFSTORE s s s"], [b"del s"]),
        (["SADD _internal:slotkey:4migrate:1 k"], []),
        (["MSETNX a 1 b 2"], [b"set a 1", b"set b 2"]),
        (["SET a 1", "MSETNX a 1 b 2"], []),
        (["XADD x 7-1 a b", "XADD x MAXLEN ~ 5 * c d"], [b"XADD x MAXLEN ~ 5 1794770485500-0 c d"]),
        (["XADD x 1794770485500-3 a b", "XADD x NOMKSTREAM * c d"], [b"XADD x NOMKSTREAM 1794770485500-4 c d"]),
        (["RPOPLPUSH none l"], []),
        (["SMOVE none s m"], []),
        (["SPOP none"], []),
        (["PEXPIREAT k 1794770999123"], [b"PEXPIREAT k 1794770999123"]),
    ],
)
def test_what_the_recordings_do_not_have_is_taken_apart_too(lines: list[str], wanted: list[bytes]) -> None:
    assert [b" ".join(each) for each in logged(*lines)] == wanted


@pytest.mark.parametrize(
    "lines",
    [
        ["SET k v", "INCR k"],
        ["RPUSH k v", "SADD k v"],
        ["RPUSH k v", "SPOP k"],
        ["LSET k 0 v"],
        ["RPUSH l a", "SET k v", "RPOPLPUSH l k"],
        ["SADD s a", "SET k v", "SMOVE s k a"],
        ["RENAME none k"],
        ["XADD x 5-1 a b", "XADD x 5-1 a b"],
        ["SETEX k 0 v"],
        ["PFMERGE a b"],
    ],
)
def test_what_fails_is_an_error_for_the_user_and_is_not_logged(lines: list[str]) -> None:
    master = database()
    for line in lines[:-1]:
        master.execute(tuple(line.encode().split(b" ")), NOW_MS)
    before = state_of(master.keys, NOW_MS)
    with pytest.raises(KeyspaceError):
        master.execute(tuple(lines[-1].encode().split(b" ")), NOW_MS)
    assert state_of(master.keys, NOW_MS) == before


def test_large_sets_are_stored_in_pieces() -> None:
    members = [b"%04d" % number + b"m" * 1000 for number in range(300)]
    master = database()
    master.execute((b"SADD", b"s", *members), NOW_MS)
    parts = master.execute((b"SUNIONSTORE", b"t", b"s"), NOW_MS)
    assert [part[0] for part in parts] == [b"del", b"sadd", b"sadd", b"sadd"]
    assert sorted(member for part in parts[1:] for member in part[2:]) == members


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_whoever_applies_what_is_logged_holds_what_the_master_holds(version: Version) -> None:
    master, follower, clock = database(version), keyspace_of(version), VirtualClock()
    for _, args in Shop(11, version=version, big_bytes=4096).steps(8_000, clock):
        try:
            made = master.execute(args, clock.now_ms)
        except KeyspaceError:
            continue
        for command in made:
            follower.apply(command, clock_of(version, clock.now_ms // 1000))
    later = clock.now_ms + SETTLE_MS
    state = state_of(master.keys, later)
    assert {data_type for data_type, _ in state} == {"string", "hash", "set", "list", "zset", "stream"}
    assert differences(state, state_of(follower, later)) == []


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_a_dump_holds_every_key_and_what_real_dumps_hold_besides(version: Version, tmp_path: Path) -> None:
    master, clock = database(version), VirtualClock()
    for _, args in Shop(5, version=version, big_bytes=4096).steps(650, clock):
        try:
            master.execute(args, clock.now_ms)
        except KeyspaceError:
            continue
    master.execute((b"PSETEX", b"expired", b"1000", b"v"), clock.now_ms - 60_000)
    write_dump(version, master.keys, [b"emptied", b"stock:0"], tmp_path)
    (tmp_path / INFO_NAME).write_bytes(b"0s\n127.0.0.1\n9221\n0\n0\n")
    read = keyspace_of(version)
    snapshot_into(read, tmp_path)
    held = state_of(read, EVERYTHING_MS)
    assert held["string", b"expired"]
    assert not any(key == b"emptied" for _, key in held)
    wanted = state_of(master.keys, EVERYTHING_MS)
    if version == "3.5":
        wanted = {at: value for at, value in wanted.items() if at[0] != "stream"}
    assert differences(wanted, held) == []


def test_keys_with_one_tag_lie_in_one_instance() -> None:
    assert len({instance_of(b"{tag}%d" % number) for number in range(50)}) == 1
    assert {instance_of(b"key-%d" % number) for number in range(50)} == set(range(INSTANCES))


def test_a_state_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    master, clock = database(), VirtualClock()
    for _, args in Shop(2, big_bytes=4096).steps(650, clock):
        try:
            master.execute(args, clock.now_ms)
        except KeyspaceError:
            continue
    state = state_of(master.keys, clock.now_ms)
    write_state(tmp_path / "state", {"db0": state, "db1": {}})
    assert read_state(tmp_path / "state") == {"db0": state}


def test_differences_are_told_key_by_key() -> None:
    master = {("string", b"a"): (b"1", 0), ("list", b"b"): ([b"1"], 5_000), ("set", b"c"): ([b"1"], 0)}
    other = {("string", b"a"): (b"2", 0), ("list", b"b"): ([b"1"], 3_000), ("set", b"d"): ([b"1"], 0)}
    told = differences(master, other)  # type: ignore[arg-type]
    assert [line.split(")")[0] for line in told] == [
        "('list', b'b'",
        "('set', b'c'",
        "('set', b'd'",
        "('string', b'a'",
    ]
    assert differences(master, master) == []  # type: ignore[arg-type]
    assert differences({("string", b"a"): (b"1", 5_999)}, {("string", b"a"): (b"1", 5_000)}) == []
    assert differences({("string", b"a"): (b"1", 0)}, {("string", b"a"): (b"1", 1_000)}) != []


@pytest.fixture
def master(tmp_path: Path) -> Iterator[SampleMaster]:
    made = SampleMaster(tmp_path, "--db", "db0", "db1", "--binlog-file-bytes", "65536")
    yield made
    assert made.stop() == 0


def test_the_process_says_its_port_and_obeys(master: SampleMaster, tmp_path: Path) -> None:
    assert master.port > 0
    assert re.fullmatch(r"\d+ logged", master.obey("shop 500"))
    assert re.fullmatch(r"db0=\d+:\d+ db1=\d+:\d+", master.obey("where"))
    assert master.obey("caught-up") == "no"
    items = int(master.obey(f"items {tmp_path / 'items'}").split()[0])
    assert len((tmp_path / "items").read_text().splitlines()) == items > 400
    assert master.obey("purge") == "purged"
    assert master.obey("restart") == "restarted"
    assert master.obey("lineage another") == "restarted"
    keys = int(master.obey(f"state {tmp_path / 'state'}").split()[0])
    assert sum(map(len, read_state(tmp_path / "state").values())) == keys > 50
    for nonsense in ("nonsense", "shop many", "shop"):
        with pytest.raises(CommandError, match=f"told to {nonsense}: error"):
            master.obey(nonsense)
