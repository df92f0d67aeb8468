"""The scripted shop is the same for the same seed, and has in it what it promises."""

from collections import Counter

import pytest

from tests.pikiwi.live_commands import LiveDatabase, Version
from tests.pikiwi.live_world import START_MS, VirtualClock
from tests.pikiwi.workload import BIG_EVERY, BIG_FIRST, FLUSH_FIRST, QUIET_MS, Shop, Step
from tidelog.pikiwi.commands import COMMANDS, command_of, keys_of

MASTERS_OWN = {"mset", "flushall", "pfmerge"}


def steps(count: int, seed: int = 1, version: Version = "4.0") -> list[Step]:
    return list(Shop(seed, ("db0", "db1"), version, big_bytes=1024).steps(count, VirtualClock()))


def test_the_same_seed_gives_the_same_commands() -> None:
    assert steps(2_000) == steps(2_000)
    assert steps(2_000) != steps(2_000, seed=2)


def test_a_run_in_two_parts_is_the_run_in_one() -> None:
    clock, shop = VirtualClock(), Shop(1, ("db0", "db1"), big_bytes=1024)
    assert list(shop.steps(700, clock)) + list(shop.steps(1_300, clock)) == steps(2_000)


def test_all_types_and_all_that_hurts_are_in_it() -> None:
    found = steps(10_000)
    names = Counter(args[0].lower().decode() for _, args in found)
    types = Counter(COMMANDS[name].data_type for name in names)
    assert set(types) == {"string", "hash", "set", "list", "zset", "stream", "unknown"}
    not_twice = {"decr", "lpop", "rpop", "setrange", "hincrby", "zpopmin", "zincrby", "spop", "append"}
    apart = {"mset", "msetnx", "rpoplpush", "blpop", "smove", "sunionstore", "zunionstore", "pfmerge"}
    times = {"setex", "psetex", "expire", "pexpire", "expireat", "pexpireat", "persist"}
    whole = {"rename", "renamenx", "flushdb", "flushall", "del", "setnx"}
    assert not_twice | apart | times | whole <= names.keys()
    words = {word for _, args in found for word in args[1:]}
    assert any(b"\r\n" in word for word in words)
    assert any(b"\0" in word for word in words)
    assert b"" in words
    assert any(not word.isascii() for word in words)
    assert found[FLUSH_FIRST][1] == (b"FLUSHDB",)


def test_values_of_a_megabyte_come_now_and_then() -> None:
    shop = Shop(1)
    large = [args for _, args in shop.steps(BIG_FIRST + BIG_EVERY + 1, VirtualClock()) if sum(map(len, args)) > 1 << 20]
    assert len(large) == 2


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_nobody_touches_a_key_that_is_about_to_expire(version: Version) -> None:
    """The follower's clock has whole seconds: it could not tell whether the key was there."""
    clock = VirtualClock()
    expiring: dict[tuple[str, bytes], int] = {}
    master = {db: LiveDatabase(version, None) for db in ("db0", "db1")}  # type: ignore[arg-type]
    reused = 0
    for db, args in Shop(4, ("db0", "db1"), version, big_bytes=1024).steps(6_000, clock):
        for key in keys_of(command_of(args[0]), args):
            if (db, key) in expiring:
                assert clock.now_ms > expiring.pop((db, key)) + QUIET_MS
                reused += 1
        if args[0] in (b"SETEX", b"PSETEX") or args[3:4] == [b"PX"]:
            for command in master[db].execute(args, clock.now_ms):
                time = int(command[2]) * (1 if len(command[2]) == 13 else 1000)
                if time < clock.now_ms + 60_000:
                    expiring[db, args[1]] = time
    assert reused > 20
    assert clock.now_ms > START_MS
