"""Commands as a master writes them, of all kinds and with hostile content, and the typed rows they become."""

import random
from collections.abc import Iterable, Sequence

import pyarrow as pa
from hypothesis import strategies as st

from tidelog.pikiwi.commands import command_of, keys_of
from tidelog.pikiwi.keyspace import Entry, Keyspace, KeyspaceError
from tidelog.spark.kernel.wal_rows import TYPED_SCHEMA
from tidelog.spark.tables.fold import Command, Rules
from tidelog.spark.tables.position import unpack

NOW_MS = 1_700_000_000_000
FIRST_VERSION = 3 << 32 | 100

KEYS = [b"a", b"b", b"", b"\xff\x00\r\n", b"k" * 300]
WORDS = [b"", b"x", b"y", b"\x00", b"\r\n$3\r\n", b"\xfe\xff", b"7", "ü".encode()]
NUMBERS = [b"1", b"-2", b"40"]
SCORES = [b"1", b"-2.5", b"inf", b"-inf", b"1e300", b"0"]
TIMES_S = [b"1699999999", b"1700000001", b"1700000005", b"4102444800"]
TIMES_MS = [b"1699999999500", b"1700000002500", b"4102444800123"]

_FORMS: list[tuple[str, tuple[Sequence[bytes], ...]]] = [
    ("SET", (KEYS, WORDS)), ("SET", (KEYS, WORDS, [b"EXAT"], TIMES_S)), ("SET", (KEYS, WORDS, [b"PXAT"], TIMES_MS)),
    ("SET", (KEYS, WORDS, [b"KEEPTTL"])), ("SET", (KEYS, WORDS, [b"NX", b"XX"])), ("SET", (KEYS, NUMBERS)),
    ("pksetexat", (KEYS, [b"0", *TIMES_S, *TIMES_MS], WORDS)), ("setnx", (KEYS, WORDS)),
    ("SETEX", (KEYS, NUMBERS[::2], WORDS)), ("PSETEX", (KEYS, [b"1", b"1500"], WORDS)),
    ("GETSET", (KEYS, WORDS)), ("MSET", (KEYS, WORDS, KEYS, WORDS)), ("MSETNX", (KEYS, WORDS, KEYS, WORDS)),
    ("delvx", (KEYS, WORDS)), ("APPEND", (KEYS, WORDS)), ("INCR", (KEYS,)), ("DECR", (KEYS,)),
    ("INCRBY", (KEYS, NUMBERS)), ("DECRBY", (KEYS, NUMBERS)), ("INCRBYFLOAT", (KEYS, [b"0.1", b"-1e2"])),
    ("SETRANGE", (KEYS, [b"0", b"3"], WORDS)), ("SETBIT", (KEYS, [b"0", b"9"], [b"0", b"1"])),
    ("RPUSH", (KEYS, WORDS)), ("RPUSH", (KEYS, WORDS, WORDS, WORDS)), ("LPUSH", (KEYS, WORDS, WORDS)),
    ("RPUSHX", (KEYS, WORDS)), ("LPUSHX", (KEYS, WORDS)), ("LPOP", (KEYS,)), ("RPOP", (KEYS,)),
    ("LPOP", (KEYS, [b"2"])),
    ("RPOPLPUSH", (KEYS, KEYS)), ("LSET", (KEYS, [b"0", b"-1"], WORDS)),
    ("LINSERT", (KEYS, [b"BEFORE", b"AFTER"], WORDS, WORDS)), ("LREM", (KEYS, [b"0", b"1", b"-1"], WORDS)),
    ("LTRIM", (KEYS, [b"0", b"1", b"-2"], [b"0", b"-1", b"9"])),
    ("HSET", (KEYS, WORDS, WORDS)), ("HMSET", (KEYS, WORDS, WORDS, WORDS, WORDS)), ("HSETNX", (KEYS, WORDS, WORDS)),
    ("HDEL", (KEYS, WORDS)), ("HDEL", (KEYS, WORDS, WORDS, WORDS)), ("HINCRBY", (KEYS, WORDS, NUMBERS)),
    ("HINCRBYFLOAT", (KEYS, WORDS, [b"0.25"])),
    ("SADD", (KEYS, WORDS, WORDS)), ("SREM", (KEYS, WORDS)), ("SMOVE", (KEYS, KEYS, WORDS)),
    ("ZADD", (KEYS, SCORES, WORDS)), ("ZADD", (KEYS, SCORES, WORDS, SCORES, WORDS)),
    ("ZINCRBY", (KEYS, [b"1.5"], WORDS)),
    ("ZREM", (KEYS, WORDS)), ("ZPOPMIN", (KEYS,)), ("ZPOPMAX", (KEYS, [b"2"])),
    ("ZREMRANGEBYRANK", (KEYS, [b"0", b"1"], [b"0", b"-1"])),
    ("ZREMRANGEBYSCORE", (KEYS, [b"-inf", b"(0"], [b"1", b"(2"])),
    ("ZREMRANGEBYLEX", (KEYS, [b"-", b"[a"], [b"+", b"(y"])), ("GEOADD", (KEYS, [b"13.4"], [b"52.5"], WORDS)),
    ("XADD", (KEYS, [b"1-1", b"5-0", b"9-3", b"99-1"], WORDS, WORDS)),
    ("XADD", (KEYS, [b"MAXLEN"], [b"1"], [b"100-1", b"200-7"], WORDS, WORDS, WORDS, WORDS)),
    ("XDEL", (KEYS, [b"1-1", b"5-0"])), ("XTRIM", (KEYS, [b"MAXLEN"], [b"0", b"1"])),
    ("XTRIM", (KEYS, [b"MINID"], [b"5"])),
    ("XSETID", (KEYS, [b"500-0"], [b"ENTRIESADDED"], [b"12"], [b"MAXDELETEDID"], [b"4-4"])),
    ("PFADD", ([b"hll"], WORDS)),
    ("DEL", (KEYS,)), ("UNLINK", (KEYS, KEYS)), ("RENAME", (KEYS, KEYS)), ("RENAMENX", (KEYS, KEYS)),
    ("EXPIRE", (KEYS, [b"1", b"100", b"-1"])), ("PEXPIRE", (KEYS, [b"1500"])), ("EXPIREAT", (KEYS, TIMES_S)),
    ("PEXPIREAT", (KEYS, TIMES_MS)), ("PERSIST", (KEYS,)), ("FLUSHDB", ()), ("FLUSHALL", ()),
]  # fmt: skip
FORM_NAMES = {name.lower() for name, _ in _FORMS}


def _one(choose: "random.Random") -> list[bytes]:
    name, words = _FORMS[choose.randrange(len(_FORMS))]
    if name.startswith("FLUSH") and choose.random() < 0.7:
        name, words = _FORMS[choose.randrange(10)]
    return [name.encode(), *(choose.choice(list(each)) for each in words)]


def scripts(size_max: int = 60) -> st.SearchStrategy[list[list[bytes]]]:
    """Runs of commands of which some may be refused."""
    forms = st.sampled_from(_FORMS).flatmap(
        lambda form: st.tuples(*(st.sampled_from(list(each)) for each in form[1])).map(
            lambda words: [form[0].encode(), *words]
        )
    )
    return st.lists(forms, max_size=size_max)


def script(count: int, seed: int) -> list[list[bytes]]:
    choose = random.Random(seed)
    return [_one(choose) for _ in range(count)]


def accepted(script: Iterable[Sequence[bytes]], rules: Rules, per_second: int = 10) -> tuple[list[Command], Keyspace]:
    """The commands that work one after the other, with times and versions, and what they leave behind."""
    model = Keyspace(types_apart=rules.types_apart, zero_expiry=rules.zero_expiry)
    commands: list[Command] = []
    for number, args in enumerate(script):
        exec_ms = NOW_MS + number // per_second * 1000
        try:
            model.apply(args, exec_ms + rules.clock_ms)
        except KeyspaceError:
            continue
        commands.append(Command(args[0].lower().decode(), list(args), exec_ms, FIRST_VERSION + len(commands) + 1))
    return commands, model


def typed(commands: Sequence[Command], db: str = "db0") -> pa.Table:
    rows = [
        {
            "db": db,
            "seq": number,
            "filenum": unpack(command.version).filenum,
            "offset": unpack(command.version).offset,
            "exec_ms": command.exec_ms,
            "op": command.op,
            "data_type": command_of(command.args[0]).data_type,
            "key": next(iter(keys_of(command_of(command.args[0]), command.args)), None),
            "args": list(command.args),
        }
        for number, command in enumerate(commands)
    ]
    return pa.Table.from_pylist(rows, schema=TYPED_SCHEMA)


def shown(data_type: str, entry: Entry) -> object:
    """A value without what does not count: the order of fields, of members."""
    return sorted(entry.value) if data_type == "set" else list(entry.value) if data_type == "list" else entry.value


def contents(keyspace: Keyspace, now_ms: int) -> dict[tuple[str, bytes], tuple[object, int]]:
    return {
        (data_type, key): (shown(data_type, entry), entry.expire_ms) for data_type, key, entry in keyspace.all(now_ms)
    }
