"""However a dump is cut, its ranges hold every wanted key once, and each can be read alone."""

import multiprocessing
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.pikiwi.dump_keys import FIXTURES, NOW_MS, Whole, read_all, whole_keys
from tests.pikiwi.dump_writer import BlackwidowWriter, FloydWriter
from tidelog.pikiwi.dump import DATA_TYPES, DumpRange, plan, read_keys
from tidelog.pikiwi.errors import ConfigError, DumpError


@pytest.fixture(scope="module")
def floyd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("floyd")
    for instance in range(2):
        writer = FloydWriter(folder, instance)
        for number in range(200):
            name = b"%d:%03d" % (instance, number)
            writer.string(b"user:" + name, name * 20)
            writer.hash(b"user:hash:" + name, {b"f%d" % field: name * 5 for field in range(number % 7 + 1)})
            writer.list(b"item:" + name, [b"%d" % value for value in range(number % 30 + 1)])
        writer.hash(b"big:%d" % instance, {b"f%05d" % field: b"v" for field in range(4000)})
        writer.list(b"big:%d" % instance, [b"%d" % value for value in range(4000)])
        writer.zset(b"user\xff:%d" % instance, {b"m": 1.5})
        writer.set(b"user:set:%d" % instance, [b"m"])
        writer.stream(b"user:stream:%d" % instance, [(1, 1, (b"f", b"v"))])
        writer.close()
    return folder


@pytest.fixture(scope="module")
def blackwidow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blackwidow")
    writer = BlackwidowWriter(folder)
    for number in range(300):
        name = b"user:%d" % number
        writer.string(name, name * 20)
        writer.hash(b"h" + name, {b"f%d" % field: name * 5 for field in range(number % 7 + 1)})
        writer.hash(name, {b"f": b"v"})
        writer.list(name, [b"%d" % value for value in range(number % 30 + 1)])
    writer.close()
    return folder


@cache
def everything(folder: Path) -> Whole:
    return read_all(folder)


@pytest.fixture(params=["floyd", "blackwidow"])
def dump(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("ranges", [2, 5, 16, 61])
def test_any_number_of_ranges_gives_the_same_keys_each_once(ranges: int, dump: Path) -> None:
    planned = plan(dump, now_ms=NOW_MS, ranges=ranges)
    assert whole_keys(planned) == everything(dump)
    assert len(planned) >= min(ranges, 5)


def test_single_mode_is_one_range_with_everything(dump: Path) -> None:
    (only,) = plan(dump, now_ms=NOW_MS, mode="single", ranges=8)
    assert whole_keys([only]) == everything(dump)
    databases = [piece.database for piece in only.pieces]
    assert databases == sorted(databases), "each database is opened once"


def test_a_range_of_type_mode_has_one_type(dump: Path) -> None:
    for each in plan(dump, now_ms=NOW_MS, ranges=9):
        assert len({piece.data_type for piece in each.pieces}) == 1


def test_shares_are_about_even_and_large_sources_are_cut(floyd: Path) -> None:
    planned = plan(floyd, now_ms=NOW_MS, types=["string"], ranges=8)
    sizes = [sum(len(key.elements[0]) for key in read_keys(each)) for each in planned]
    assert len(planned) >= 6
    assert max(sizes) < sum(sizes) / 2


@pytest.mark.parametrize("types", [["string"], ["list", "hash"], ["zset", "set", "stream"], []])
def test_only_the_wanted_types_come_out(types: list[str], dump: Path) -> None:
    wanted = {key: value for key, value in everything(dump).items() if key[0] in types}
    assert read_all(dump, types=types, ranges=4) == wanted


@pytest.mark.parametrize(
    "prefixes",
    [[b"user:"], [b"user:hash:", b"item:"], [b"user", b"user:hash:"], [b"user\xff"], [b"nobody"], [b"", b"user"]],
)
@pytest.mark.parametrize("ranges", [1, 12])
def test_only_keys_with_the_wanted_prefixes_come_out_once(prefixes: list[bytes], ranges: int, dump: Path) -> None:
    wanted = {key: value for key, value in everything(dump).items() if key[1].startswith(tuple(prefixes))}
    mode = "type" if ranges > 1 else "single"
    assert read_all(dump, prefixes=prefixes, ranges=ranges, mode=mode) == wanted


def test_a_prefix_narrows_what_is_read_where_keys_lie_together(floyd: Path) -> None:
    for each in plan(floyd, now_ms=NOW_MS, prefixes=[b"user:"]):
        assert all(piece.lower is not None and piece.upper is not None for piece in each.pieces)


def read_pickled(pickled: bytes) -> Whole:
    return whole_keys([pickle.loads(pickled)])


def test_ranges_are_read_by_several_processes_at_once(floyd: Path) -> None:
    planned = plan(floyd, now_ms=NOW_MS, ranges=6)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        parts = pool.map(read_pickled, [pickle.dumps(each) for each in planned])
    together: dict[Any, Any] = {}
    for part in parts:
        assert together.keys().isdisjoint(part)
        together |= part
    assert together == everything(floyd)


def test_two_readers_of_one_database_do_not_disturb_each_other(floyd: Path) -> None:
    first, second = (plan(floyd, now_ms=NOW_MS, mode="single")[0] for _ in range(2))
    pairs = zip(read_keys(first), read_keys(second), strict=True)
    assert all(a == b for a, b in pairs)


def test_a_plan_is_plain_data() -> None:
    planned = plan(FIXTURES / "dump-4.0.1", now_ms=NOW_MS, ranges=3, prefixes=[b"k"], list_tail_n=4, batch_num=7)
    assert pickle.loads(pickle.dumps(planned)) == planned
    assert all(isinstance(each, DumpRange) and each.list_tail_n == 4 and each.batch_num == 7 for each in planned)


@pytest.mark.parametrize(
    "options",
    [
        {"types": ["strings"]},
        {"ranges": 0},
        {"ranges": 10**9},
        {"list_tail_n": -1},
        {"batch_num": 0},
        {"batch_bytes": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        plan(FIXTURES / "dump-4.0.1", now_ms=NOW_MS, **options)


def test_a_dump_that_is_not_fetched_completely_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "fetch.json").write_text('{"uuid": "u", "complete": false, "files": []}')
    with pytest.raises(DumpError, match="not fetched completely"):
        plan(tmp_path, now_ms=NOW_MS)


def test_a_database_without_its_column_family_is_an_error(tmp_path: Path) -> None:
    writer = FloydWriter(tmp_path)
    del writer.rows["hash_data_cf"]
    writer.close()
    with pytest.raises(DumpError, match="no column family hash_data_cf"):
        plan(tmp_path, now_ms=NOW_MS)
    assert plan(tmp_path, now_ms=NOW_MS, types=set(DATA_TYPES) - {"hash"})
