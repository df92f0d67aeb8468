"""Retention's choice, as tables, and what a roll and a view of the segments say."""

import pytest

from tests.sim.disk import SimDisk
from tests.storage.world import (
    EntryKind,
    batch,
    files_of,
    new_disk,
    open_store,
    power_cut_at_every_step,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import SegmentView, Store, should_roll, start_for

NOW = 1_000_000
NONE = -1


def _segments(*rows: tuple[int, int, int]) -> list[SegmentView]:
    """(entries that are records, bytes, newest timestamp) of each; the last one is the active one."""
    views: list[SegmentView] = []
    index, offset = 1, 0
    for records, length, newest in rows:
        entries = max(1, records)
        views.append(SegmentView(index, index + entries - 1, offset, offset + records, length, newest, -1, True))
        index, offset = index + entries, offset + records
    return views


OLD, YOUNG = NOW - 1001, NOW - 1000  # with retention.ms = 1000

AGES = [
    ("all too old, the active one stays", [(10, 1, OLD), (10, 1, OLD), (10, 1, OLD)], 20),
    ("exactly as old as allowed", [(10, 1, YOUNG), (10, 1, YOUNG)], None),
    ("stops at the first young one", [(10, 1, OLD), (10, 1, YOUNG), (10, 1, OLD), (10, 1, OLD)], 10),
    ("the active one alone", [(10, 1, OLD)], None),
    ("no times: goes with the next that has some", [(10, 1, -1), (10, 1, -1), (10, 1, OLD), (1, 1, -1)], 30),
    ("no times: stays with a young one", [(10, 1, -1), (10, 1, YOUNG), (1, 1, -1)], None),
    ("no times behind: stays", [(10, 1, OLD), (10, 1, -1), (1, 1, OLD)], 10),
    ("no times at all", [(10, 1, -1), (10, 1, -1)], None),
    ("nothing but entries of our own", [(0, 1, -1), (0, 1, -1), (10, 1, OLD)], None),
    ("entries of our own before old records", [(0, 1, -1), (10, 1, OLD), (10, 1, OLD)], 10),
    ("a time in the future stays", [(10, 1, NOW + 5000), (10, 1, OLD), (10, 1, OLD)], None),
]


@pytest.mark.parametrize(("rows", "expected"), [row[1:] for row in AGES], ids=[row[0] for row in AGES])
def test_by_age(rows: list[tuple[int, int, int]], expected: int | None) -> None:
    assert start_for(_segments(*rows), 1000, NONE, 1000, NOW) == expected
    assert start_for(_segments(*rows), NONE, NONE, 1000, NOW) is None


SIZES = [
    ("as much as allowed", 300, [(10, 100, YOUNG)] * 3, None),
    ("less than a segment too much", 201, [(10, 100, YOUNG)] * 3, None),
    ("a whole segment too much", 200, [(10, 100, YOUNG)] * 3, 10),
    ("the active one counts and stays", 0, [(10, 100, YOUNG)] * 3, 20),
    ("a large one stays, though a small one behind could go", 100, [(1, 90, 1), (1, 10, 1), (1, 80, 1)], None),
    ("no bound", -1, [(10, 100, YOUNG)] * 3, None),
]  # fmt: skip


@pytest.mark.parametrize(("bound", "rows", "expected"), [row[1:] for row in SIZES], ids=[row[0] for row in SIZES])
def test_by_size(bound: int, rows: list[tuple[int, int, int]], expected: int | None) -> None:
    assert start_for(_segments(*rows), NONE, bound, 1000, NOW) == expected


def test_whichever_of_age_and_size_asks_for_more() -> None:
    rows = _segments((10, 100, OLD), (10, 100, YOUNG), (10, 100, YOUNG), (10, 100, YOUNG))
    assert start_for(rows, 1000, 300, 1000, NOW) == 10
    assert start_for(rows, 1000, 200, 1000, NOW) == 20
    assert start_for(rows, 1000, 400, 1000, NOW) == 10


def test_nothing_behind_the_commit_index_goes() -> None:
    rows = _segments(*[(10, 100, OLD)] * 4)
    assert [start_for(rows, 1000, 0, committed, NOW) for committed in (0, 9, 10, 19, 20, 29, 30, 99)] == [
        *(None, None, 10, 10, 20, 20, 30, 30)
    ]


@pytest.mark.parametrize(
    ("oldest", "newest", "segment_ms", "retention_ms", "rolls"),
    [
        (NOW - 1000, NOW, 1000, NONE, False),
        (NOW - 1001, NOW, 1000, NONE, True),
        (NOW - 1001, NOW, NONE, NONE, False),
        (NOW - 9999, NOW - 1000, NONE, 1000, False),
        (NOW - 9999, NOW - 1001, NONE, 1000, True),
        (NOW - 9999, NOW - 1001, 99999, 1000, True),
        (-1, -1, 0, 0, False),
    ],
)
def test_when_the_active_segment_is_closed(
    oldest: int, newest: int, segment_ms: int, retention_ms: int, rolls: bool
) -> None:
    active = SegmentView(1, 5, 0, 5, 100, newest, oldest, False)
    assert should_roll(active, segment_ms, retention_ms, NOW) is rolls


# Rolling


def test_a_roll_closes_what_holds_something_and_begins_another() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    log.roll()
    assert len(log.segments_view()) == 1
    log.append_new(1, EntryKind.NOOP, [b""])
    log.append_new(1, EntryKind.DATA, [batch(timestamp=70), batch(timestamp=50), batch(timestamp=90)])
    length = log.size_bytes
    active = SegmentView(1, 4, 0, 3, length, 90, 70, False)
    assert log.segments_view() == [active]
    log.roll()
    log.roll()
    assert log.segments_view() == [active, SegmentView(5, 4, 3, 3, 0, -1, -1, False)]
    rest(store)
    closed = active._replace(oldest_timestamp=-1, closed=True)
    assert log.segments_view()[0] == closed
    log.append_new(2, EntryKind.DATA, [batch(timestamp=95)])
    rest(store)
    assert len(files_of(disk, 5, ".log")) == 1
    expected = state_of(log)
    log = reopened(disk).streams[5]
    assert state_of(log) == expected
    assert log.segments_view()[0] == closed
    assert log.segments_view()[1].oldest_timestamp == 95


def test_power_cut_while_rolling() -> None:
    def scenario(store: Store) -> None:
        for number in range(3):
            store.streams[5].append_new(1, EntryKind.DATA, [sized_batch(700, bytes([65 + number]))])
            write(store)
            store.streams[5].roll()
            rest(store)

    def world(disk: SimDisk) -> Store:
        store = open_store(disk)
        store.create_stream(5, b"")
        rest(store)
        return store

    def check(store: Store) -> None:
        log = store.streams[5]
        views = log.segments_view()
        assert [view.base_offset for view in views] == list(range(len(views)))
        assert log.last_index in (log.segments_view()[-1].first_index - 1, log.segments_view()[-1].first_index)
        log.append_new(2, EntryKind.DATA, [batch()])
        rest(store)
        assert log.durable_index == log.last_index

    assert power_cut_at_every_step(world, scenario, check) > 10


def test_what_retention_asks_for_is_what_trimming_deletes() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for number in range(4):
        log.append_new(1, EntryKind.DATA, [batch(timestamp=1000 * number)])
        log.roll()
    rest(store)
    start = start_for(log.segments_view(), 1000, -1, log.last_index, 3000)
    assert start == 2  # of 0, 1000 | 2000, 3000
    log.trim(start, log.last_index)
    rest(store)
    assert (log.first_index, log.start_offset) == (3, 2)
    assert start_for(log.segments_view(), 1000, -1, log.last_index, 3000) is None


def test_segments_that_were_not_committed_at_a_trim_go_at_the_next_though_the_start_stays() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [batch()])
        log.roll()
    rest(store)
    log.trim(3, 1)
    assert (log.first_index, log.start_offset) == (2, 3)
    log.trim(3, 3)
    rest(store)
    assert (log.first_index, log.start_offset) == (4, 3)
    assert reopened(disk).streams[5].first_index == 4
