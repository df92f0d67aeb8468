import pytest

from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tidelog.pikiwi.commands import (
    COMMANDS,
    DATA_TYPES,
    UNKNOWN,
    Effect,
    Keys,
    ZeroExpiry,
    absolute_set,
    command_of,
    data_type_of,
    effect_of,
    keys_of,
    relative_setex,
)
from tidelog.pikiwi.resp import parse_command

SEED = {
    "string": "set setex psetex setnx append incr decr mset msetnx incrby decrby getset",
    "hash": "hset hmset hdel hincrby hincrbyfloat",
    "list": "lpush rpush lpop rpop ltrim lset linsert rpoplpush",
    "set": "sadd srem spop sinterstore sunionstore sdiffstore",
    "zset": "zadd zrem zincrby zremrangebyrank zremrangebyscore",
}

ANY_TYPE = {"del", "expireat", "pexpireat", "persist"}


@pytest.mark.parametrize("data_type", SEED)
def test_every_command_whose_type_the_seed_knows_has_that_type(data_type: str) -> None:
    for name in SEED[data_type].split():
        assert data_type_of(name) == data_type_of(name.upper()) == data_type, name


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_command_is_known_with_its_key(version: str) -> None:
    for _, item in recorded(version):
        args = parse_command(item.content)
        command = command_of(args[0])
        assert command.name in COMMANDS
        assert list(keys_of(command, args)) == [args[1]]
        assert (command.data_type == UNKNOWN) == (command.name in ANY_TYPE)


def test_types_are_those_of_the_table_and_a_name_that_is_not_in_it_is_unknown() -> None:
    assert {command.data_type for command in COMMANDS.values()} == {*DATA_TYPES, UNKNOWN}
    strange = command_of(b"FROBNICATE\xff")
    assert (strange.data_type, strange.effect, strange.keys) == (UNKNOWN, Effect.NON_IDEMPOTENT, Keys.FIRST)
    assert data_type_of("frobnicate") == UNKNOWN


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("flushdb", []),
        ("FLUSHALL", []),
        ("SET k v", ["k"]),
        ("DEL a", ["a"]),
        ("UNLINK a b c", ["a", "b", "c"]),
        ("RENAME a b", ["a", "b"]),
        ("RPOPLPUSH a b", ["a", "b"]),
        ("SMOVE a b m", ["a", "b"]),
        ("MSET a 1 b 2", ["a", "b"]),
        ("BITOP AND d a b", ["d"]),
        ("PFMERGE d a b", ["d"]),
        ("BLPOP a b 0", ["a", "b"]),
        ("XGROUP CREATE x g 0", ["x"]),
        ("DECR", []),
    ],
)
def test_keys_that_a_command_may_change(line: str, keys: list[str]) -> None:
    args = line.encode().split()
    assert list(keys_of(command_of(args[0]), args)) == [key.encode() for key in keys]


@pytest.mark.parametrize(
    ("effect", "lines"),
    [
        (
            Effect.IDEMPOTENT,
            ["SET k v", "SET k v EX 5", "SET NX v", "hset h f v", "del k", "zadd z 1 NX"],
        ),
        (Effect.IDEMPOTENT, ["expireat k 5", "flushdb", "XADD x 1-1 f v", "XADD x 1-1 MAXLEN 3", "getset k v"]),
        (
            Effect.CONDITIONAL,
            ["setnx k v", "SET k v nx", "SET k v EX 5 XX", "hsetnx h f v", "renamenx a b"],
        ),
        (Effect.NON_IDEMPOTENT, ["decr k", "lpop l", "rpush l v", "setrange k 1 x", "hincrby h f 1", "zincrby z 1 m"]),
        (Effect.NON_IDEMPOTENT, ["rename a b", "zpopmin z", "ltrim l 0 1", "pfadd p a", "expire k 5", "whatever k"]),
        (Effect.NON_IDEMPOTENT, ["XADD x MAXLEN 3 1-1 f v", "zadd z INCR 1 m", "zadd z nx 1 m", "lset l 0 a"]),
    ],
)
def test_effects(effect: Effect, lines: list[str]) -> None:
    for line in lines:
        args = line.encode().split()
        assert effect_of(command_of(args[0]), args) is effect, line


@pytest.mark.parametrize(
    ("time", "translated"),
    [
        (b"0", [b"SET", b"k", b"v"]),
        (b"1", [b"SET", b"k", b"v", b"EXAT", b"1"]),
        (b"1794771485", [b"SET", b"k", b"v", b"EXAT", b"1794771485"]),
        (b"100000000000", [b"SET", b"k", b"v", b"EXAT", b"100000000000"]),
        (b"100000000001", [b"SET", b"k", b"v", b"PXAT", b"100000000001"]),
        (b"1794770985929", [b"SET", b"k", b"v", b"PXAT", b"1794770985929"]),
        (b"-1", None),
        (b"007", None),
        (b"", None),
        (b"soon", None),
    ],
)
def test_pksetexat_becomes_a_set_with_an_absolute_expiry(time: bytes, translated: list[bytes] | None) -> None:
    assert absolute_set([b"pksetexat", b"k", time, b"v"]) == translated


def test_a_zero_of_a_3_5_master_keeps_the_expiry() -> None:
    arguments = [b"pksetexat", b"k", b"0", b"v"]
    assert absolute_set(arguments, ZeroExpiry.KEEP) == [b"SET", b"k", b"v", b"KEEPTTL"]


def test_pksetexat_of_another_length_is_left_alone() -> None:
    assert absolute_set([b"pksetexat", b"k", b"0"]) is None
    assert relative_setex([b"pksetexat", b"k", b"0"], 5) is None


@pytest.mark.parametrize(
    ("time", "translated"),
    [
        (b"0", [b"SET", b"k", b"v"]),
        (b"1700000100", [b"setex", b"k", b"100", b"v"]),
        (b"1700000100001", [b"setex", b"k", b"101", b"v"]),
        (b"1700000000", [b"setex", b"k", b"1", b"v"]),
        (b"5", [b"setex", b"k", b"1", b"v"]),
    ],
)
def test_a_relative_expiry_is_never_below_one_second(time: bytes, translated: list[bytes]) -> None:
    assert relative_setex([b"pksetexat", b"k", time, b"v"], 1_700_000_000) == translated
