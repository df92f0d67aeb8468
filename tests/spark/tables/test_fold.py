"""The fold without Spark and without Delta: split anywhere, it leaves what the key space holds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.spark.tables.commands import FIRST_VERSION, FORM_NAMES, NOW_MS, accepted, contents, script, scripts, shown
from tidelog.pikiwi import keyspace
from tidelog.pikiwi.commands import COMMANDS
from tidelog.pikiwi.position import Position
from tidelog.spark.tables.fold import RULES, Command, FoldError, fold, touched
from tidelog.spark.tables.position import PositionTooLarge, pack, unpack
from tidelog.spark.tables.rows import Rows, entries

V4 = RULES["4"]
State = dict[bytes, list[tuple[str, bytes, keyspace.Entry, int]]]


def folded_in_parts(commands: list[Command], cuts: list[int], rules=V4) -> State:
    """As the table does it: only named keys are handed in, as rows; only their rows change."""
    state: State = {}
    for begin, end in zip([0, *cuts], [*cuts, len(commands)], strict=True):
        part = commands[begin:end]
        rows = Rows()
        for key in touched(part):
            for held in state.get(key, ()):
                rows.put(*held)
        result = fold(entries(rows.table()), part, rules)
        assert result.touched == touched(part)
        if result.flushed:
            state.clear()
        for key in result.touched:
            state.pop(key, None)
        for held in result.held:
            state.setdefault(held[1], []).append(held)
    return state


def live(state: State, now_ms: int) -> dict[tuple[str, bytes], tuple[object, int]]:
    return {
        (data_type, key): (shown(data_type, entry), entry.expire_ms)
        for held in state.values()
        for data_type, key, entry, _ in held
        if not 0 < entry.expire_ms < now_ms
    }


@pytest.mark.parametrize("master", ["4", "3.5"])
@given(run=scripts(), cuts=st.lists(st.integers(0, 60), max_size=6))
@settings(max_examples=80, deadline=None)
def test_folding_in_any_parts_leaves_what_the_key_space_holds(master: str, run: list[list[bytes]], cuts: list[int]):
    rules = RULES[master]
    commands, model = accepted(run, rules)
    cuts = sorted(min(cut, len(commands)) for cut in cuts)
    now_ms = (commands[-1].exec_ms if commands else NOW_MS) + rules.clock_ms
    state = folded_in_parts(commands, cuts, rules)
    assert live(state, now_ms) == contents(model, now_ms)
    at_once = folded_in_parts(commands, [], rules)
    assert {k: [each[3] for each in v] for k, v in state.items()} == {
        k: [each[3] for each in v] for k, v in at_once.items()
    }


@pytest.mark.parametrize("master", ["4", "3.5"])
def test_a_long_run_one_command_at_a_time_is_the_same(master: str):
    rules = RULES[master]
    commands, model = accepted(script(3000, seed=5), rules)
    now_ms = commands[-1].exec_ms + rules.clock_ms
    state = folded_in_parts(commands, list(range(1, len(commands))), rules)
    assert live(state, now_ms) == contents(model, now_ms)
    assert {data_type for data_type, _ in contents(model, now_ms)} >= {"string"}


def test_the_scripts_have_every_command_that_the_key_space_knows():
    assert set(keyspace._COMMANDS) == FORM_NAMES
    assert set(keyspace._COMMANDS) <= set(COMMANDS)


def test_a_key_has_the_version_of_the_last_command_that_named_it():
    commands, _ = accepted([[b"SET", b"a", b"1"], [b"SETNX", b"a", b"2"], [b"RENAME", b"a", b"b"]], V4)
    assert [(key, version) for _, key, _, version in fold([], commands[:2], V4).held] == [(b"a", FIRST_VERSION + 2)]
    assert [(key, version) for _, key, _, version in fold([], commands, V4).held] == [(b"b", FIRST_VERSION + 3)]


def test_what_came_before_a_flush_is_gone_and_what_comes_after_it_is_there():
    commands, _ = accepted([[b"SET", b"a", b"1"], [b"FLUSHDB"], [b"SET", b"b", b"2"]], V4)
    result = fold([], commands, V4)
    assert result.flushed
    assert [key for _, key, _, _ in result.held] == [b"b"]


def test_a_command_that_cannot_have_worked_is_named_with_its_position():
    commands = [Command("spop", [b"SPOP", b"a"], NOW_MS, pack(Position(7, 1234)))]
    with pytest.raises(FoldError, match=r"ends at 7:1234: spop: what this command leaves behind is not known"):
        fold([], commands, V4)


def test_a_key_that_expired_between_two_batches_is_gone_for_the_second():
    first = [Command("psetex", [b"PSETEX", b"a", b"1", b"5"], NOW_MS, 1)]
    held = [each[:3] for each in fold([], first, V4).held]
    second = fold(held, [Command("incr", [b"INCR", b"a"], NOW_MS + 5000, 2)], V4)
    assert [entry.value for _, _, entry, _ in second.held] == [b"1"]


def test_rows_in_any_order_are_the_same_keys():
    run = [
        [b"RPUSH", b"l", b"0", b"1", b"2"], [b"XADD", b"x", b"9-0", b"f", b"v"], [b"XADD", b"x", b"10-0", b"f", b"v"],
        [b"HSET", b"h", b"f", b"v", b"g", b"w"],
    ]  # fmt: skip
    commands, _ = accepted(run, V4)
    rows = Rows()
    for held in fold([], commands, V4).held:
        rows.put(*held)
    table = rows.table()
    back = {key: entry.value for _, key, entry in entries(table.take(list(reversed(range(len(table))))))}
    assert list(back[b"l"]) == [b"0", b"1", b"2"]
    assert list(back[b"x"].entries) == [(9, 0), (10, 0)]
    assert back[b"h"] == {b"f": b"v", b"g": b"w"}


@pytest.mark.parametrize("position", [Position(0, 0), Position(12, 3456), Position((1 << 31) - 1, (1 << 32) - 1)])
def test_positions_survive_as_numbers(position: Position):
    assert unpack(pack(position)) == position


@pytest.mark.parametrize("position", [Position(1, 1 << 32), Position(1 << 31, 0)])
def test_a_position_beyond_the_bounds_is_refused(position: Position):
    with pytest.raises(PositionTooLarge):
        pack(position)
