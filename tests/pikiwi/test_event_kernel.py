"""The kernel has one rule: it makes what the builder makes. The builder's own rules are in `test_event`."""

import random
from collections.abc import Callable
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tests.pikiwi.test_event import all_settings
from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.errors import ProtocolError, RespError
from tidelog.pikiwi.event import EventBuilder, EventSettings, Pksetexat
from tidelog.pikiwi.filter import Filter
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import RespLimits, encode_command

np = pytest.importorskip("numpy", reason="numpy is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: only the scalar builder is there to test")

from tidelog.pikiwi import event_kernel  # noqa: E402
from tidelog.pikiwi.event_kernel import EventKernel  # noqa: E402
from tidelog.pikiwi.event_pool import Pool, side_by_side  # noqa: E402

DEFAULTS = EventSettings("db0", "10.0.0.1:9221", "dfe36f")
Row = tuple[int, bytes, bytes, bool]


@pytest.fixture(autouse=True)
def groups_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the few items of a test are a group."""
    monkeypatch.setattr(event_kernel, "GROUP_MIN", 1)


def items_of(commands: list[list[bytes]], items_a_second: int = 7) -> list[tuple[Position, bytes]]:
    contents = [encode_command(command) for command in commands]
    ends = list(accumulate(42 + len(content) for content in contents))
    made: list[tuple[Position, bytes]] = []
    for number, (content, end) in enumerate(zip(contents, ends, strict=True)):
        start = Position(number // 50, end - len(content) - 42)
        item = BinlogItem(1_700_000_000 + number // items_a_second, number // 90, 2**63 + number, start, content)
        made.append((Position(number // 49, end), encode_item(item)))
    return made


def by_item(builder: EventBuilder, items: list[tuple[Position, bytes]]) -> list[Row]:
    events = [(number, builder.binlog_event(*item)) for number, item in enumerate(items)]
    return [(number, event.key, event.value, event.broadcast) for number, event in events if event is not None]


def by_kernel(builder: EventBuilder, items: list[tuple[Position, bytes]], payloads: object = None) -> list[Row]:
    filenums, offsets = [end.filenum for end, _ in items], [end.offset for end, _ in items]
    rows: list[Row] = []
    filtered = 0
    for step in EventKernel(builder).build(payloads or [payload for _, payload in items], filenums, offsets):
        columns = (step.item, step.key, step.value, step.broadcast)
        for column in columns:
            column.validate(full=True)
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
        filtered += step.filtered
    assert len(rows) + filtered == len(items)
    return rows


def outcome(
    build: Callable[[EventBuilder, list[tuple[Position, bytes]]], list[Row]],
    builder: EventBuilder,
    items: list[tuple[Position, bytes]],
) -> object:
    try:
        return build(builder, items)
    except (RespError, ProtocolError) as error:
        return repr(error)


def assert_same(
    commands: list[list[bytes]], with_settings: EventSettings = DEFAULTS, chosen: Filter | None = None
) -> None:
    builder, items = EventBuilder(with_settings, chosen or Filter()), items_of(commands)
    assert by_kernel(builder, items) == by_item(builder, items)


@pytest.mark.parametrize("version", VERSIONS)
def test_recorded_commands_of_real_masters_come_out_alike(version: str) -> None:
    builder = EventBuilder(DEFAULTS)
    items = [(record.end, record.payload) for record in recorded(version)]
    assert len(by_item(builder, items)) == len(items)
    assert by_kernel(builder, items) == by_item(builder, items)


USUAL = [b"SET", b"set", b"HSET", b"DEL", b"zadd", b"xadd", b"RPUSH", b"pksetexat", b"expireat", b"flushdb", b"RENAME",
         b"padding", b"mset", b"bitop", b"unknown-one"]  # fmt: skip
keys = st.sampled_from(
    [b"k", b"user:1", b"user:22", b"", b"\xff", "ключ".encode(), b'q"', b"_internal:slotkey:4migrate:1"]
)
values = st.sampled_from(
    [b"v", b"", b"ab", b"abc", b"x" * 70, b"x" * 130, b"a\r\nb", b"\r\n", b"\r", b"\n", b"NX", b"1.5", b"-2", b"inf",
     b"0", b"5", b"MAXLEN", b"1794771485", b"1794770985929", b"100000000000", b"007", b"\xff", b'"', "ж".encode()]
)  # fmt: skip
commands = st.lists(
    st.builds(lambda name, rest: [name, *rest], st.sampled_from(USUAL), st.one_of(
        st.builds(lambda key, rest: [key, *rest], keys, st.lists(values, max_size=4)),
        st.lists(values, max_size=2),
    )),
    max_size=60,
)  # fmt: skip
filters = st.sampled_from(
    [
        Filter(),
        Filter.parse(["key=user:*,k;type=string"]),
        Filter.parse(["action=set;key=^user:.$", "action=pksetexat,del"], ["user:22,q."]),
        Filter.parse(["type=list"], ["k*"]),
    ]
)


@settings(max_examples=150, deadline=None)
@given(commands, all_settings, filters, st.sampled_from(Pksetexat))
def test_any_commands_come_out_alike_with_any_settings(
    lines: list[list[bytes]], with_settings: EventSettings, chosen: Filter, form: Pksetexat
) -> None:
    fields = {name: getattr(with_settings, name) for name in EventSettings.__slots__}
    assert_same(lines, EventSettings(**{**fields, "pksetexat": form}), chosen)


def test_lengths_of_all_remainders_are_encoded_alike() -> None:
    assert_same([[b"SET", b"k" * (number % 7), b"v" * number] for number in range(64)])
    assert_same([[b"S" * (number % 5 + 1), b"k", b"\x00\xff" * number] for number in range(64)])


def test_many_arguments_come_out_alike() -> None:
    assert_same([[b"SADD", b"k", *([b"m"] * number)] for number in range(60)])


def test_groups_that_are_too_small_come_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_kernel, "GROUP_MIN", 30)
    assert_same([[b"SET", b"k", b"v"]] * 40 + [[b"DEL", b"k"]] * 20 + [[b"pksetexat", b"k", b"5", b"v"]] * 20)


def test_steps_are_bounded_by_items_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_kernel, "ITEMS_MAX", 7)
    monkeypatch.setattr(event_kernel, "BYTES_MAX", 400)
    builder = EventBuilder(DEFAULTS)
    items = items_of([[b"SET", b"k%d" % number, b"v" * (number * 37 % 500)] for number in range(40)])
    filenums, offsets = [end.filenum for end, _ in items], [end.offset for end, _ in items]
    steps = list(EventKernel(builder).build([data for _, data in items], filenums, offsets))
    assert max(len(step.item) for step in steps) <= 7
    sizes = [sum(len(items[number][1]) for number in step.item.to_pylist()) for step in steps]
    assert all(size <= 400 or len(step.item) == 1 for size, step in zip(sizes, steps, strict=True))
    assert by_kernel(builder, items) == by_item(builder, items)


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_a_slice_of_an_arrow_array_will_do(kind: str) -> None:
    builder = EventBuilder(DEFAULTS)
    items = items_of([[b"SET", b"k%d" % number, b"v"] for number in range(30)])
    array = pa.array([b"before", *(data for _, data in items), b"after"], getattr(pa, kind)()).slice(1, len(items))
    assert by_kernel(builder, items, array) == by_item(builder, items)


def test_steps_are_of_about_one_size_so_that_the_last_is_not_built_item_by_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_kernel, "ITEMS_MAX", 100)
    items = items_of([[b"SET", b"key-%d" % number, b"value"] for number in range(205)])
    ends = [end for end, _ in items]
    steps = EventKernel(EventBuilder(EventSettings("db0", "h:1"))).build(
        [payload for _, payload in items], [end.filenum for end in ends], [end.offset for end in ends]
    )
    assert [len(step.item) for step in steps] == [69, 69, 67]


def test_values_come_in_the_order_in_which_events_are_named() -> None:
    items = items_of([[b"SET", b"k%d" % number, b"v"] for number in range(9)] + [[b"flushdb"], [b"DEL", b"a", b"b"]])
    filenums, offsets = [end.filenum for end, _ in items], [end.offset for end, _ in items]
    [step] = EventKernel(EventBuilder(DEFAULTS)).build_texts([data for _, data in items], filenums, offsets)
    values = [value for _, _, value, _ in by_item(EventBuilder(DEFAULTS), items)]
    assert step.values().to_pylist() == values
    assert step.values(np.array([10, 3, 3, 0, 9])).to_pylist() == [values[number] for number in (10, 3, 3, 0, 9)]
    assert step.values(np.array([], dtype=np.int64)).to_pylist() == []


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 10**5), max_size=30), st.binary(max_size=9))
def test_numbers_of_any_size_are_written_in_decimal(numbers: list[int], after: bytes) -> None:
    pool = Pool()
    bare, followed = pool.add_numbers(np.array(numbers, dtype=np.uint64), b"", after)
    found = pool.rows(side_by_side([bare, pool.empty, followed], len(numbers)))
    assert found.to_pylist() == [b"%d%d%s" % (number, number, after) for number in numbers]


def test_no_items_are_no_steps() -> None:
    assert list(EventKernel(EventBuilder(DEFAULTS)).build([], [], [])) == []


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_damaged_items_raise_or_come_out_as_they_do_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    items = items_of([[b"SET", b"k%d" % number, b"v" * (number % 12)] for number in range(12)])
    number = chance.randrange(len(items))
    damaged = bytearray(items[number][1])
    for _ in range(chance.randrange(1, 3)):
        at = chance.randrange(len(damaged))
        damaged[at] = chance.choice([0, 10, 13, 36, 42, 48, 49, 57, 255])
    if chance.random() < 0.3:
        del damaged[chance.randrange(len(damaged)) :]
    items[number] = (items[number][0], bytes(damaged))
    builder = EventBuilder(DEFAULTS)
    assert outcome(by_kernel, builder, items) == outcome(by_item, builder, items)


NO_COMMANDS = [
    b"*2\r\n$3\r\nDEL\r\n$1\r\nk\r\nmore",
    b"*2\r\n$3\r\nDEL\r\n$01\r\nk\r\n",
    b"*02\r\n$3\r\nDEL\r\n$1\r\nk\r\n",
    b"*2\r\n$3\r\nDEL\r\n$2\r\nk\r\n",
    b"*2\r\n$3\r\nDEL\r\n:1\r\nk\r\n",
    b"*2\r\n$3\r\nDEL\r\n$\r\n\r\n",
    b"*2\r\n$3\r\nDEL\r\n$:\r\n1234567890\r\n",
    b"*2\r\n$3\r\nDEL\r\n$1\r\nk\n\r",
    b"*:\r\n$3\r\nDEL\r\n$1\r\nk\r\n",
    b"*\r\n",
    b"*",
    b"\r\n",
    b"",
]


@pytest.mark.parametrize("content", NO_COMMANDS)
def test_what_is_no_command_is_refused_as_it_is_alone(content: bytes) -> None:
    builder, items = EventBuilder(DEFAULTS), items_of([[b"DEL", b"k%d" % number] for number in range(4)])
    items[2] = (items[2][0], encode_item(BinlogItem(1_700_000_000, 0, 9, Position(0, 99), content)))
    assert isinstance(outcome(by_item, builder, items), str)
    assert outcome(by_kernel, builder, items) == outcome(by_item, builder, items)


@pytest.mark.parametrize(
    "limits", [RespLimits(arguments_max=2), RespLimits(argument_bytes_max=4), RespLimits(command_bytes_max=30)]
)
def test_limits_hold_in_the_kernel_too(limits: RespLimits) -> None:
    builder = EventBuilder(EventSettings("db0", "s", limits=limits))
    with pytest.raises(RespError, match="at most"):
        by_kernel(builder, items_of([[b"DEL", b"k"]] * 3 + [[b"SET", b"k", b"value"]]))
