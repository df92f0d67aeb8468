"""What a region knows of its tables: marks, and what may be deleted."""

import pytest

from tidelog.regionwal import DROPPED, BadMark, RegionMeta, SequenceMap, TableMeta
from tidelog.regionwal.byte_meter import MARKS_MAX, SPACING_BYTES_MIN, ByteMeter


def region(**tables: list[tuple[int, int]]) -> RegionMeta:
    """Tables named t1, t2 … with the offsets of their entries."""
    made = RegionMeta()
    for name, entries in tables.items():
        for _, offset in entries:
            made.append(int(name[1:]), offset, 1, 1, offset + 1)
    return made


def test_fields_are_the_specifications() -> None:
    table = TableMeta(
        next_seq_num=5,
        latest_marked_deleted=2,
        current_high_watermark=32,
        seq_offset_mapping=SequenceMap([(2, 16), (3, 16), (4, 31)]),
    )

    assert RegionMeta({9: table}).table_metas[9].safe_delete_offset == 16


def test_new_table_begins_at_one_and_has_nothing_to_delete() -> None:
    assert RegionMeta().next_seq_num(4) == 1
    assert TableMeta().safe_delete_offset is None


def test_write_moves_all_three_numbers() -> None:
    made = RegionMeta()
    made.append(1, offset=10, count=3, width=1, end_offset=13)
    made.append(1, offset=20, count=2, width=4, end_offset=28)

    table = made.table_metas[1]
    assert (table.next_seq_num, table.latest_marked_deleted, table.current_high_watermark) == (6, 1, 28)
    assert list(table.seq_offset_mapping.items()) == [(1, 10), (2, 11), (3, 12), (4, 20), (5, 24)]


@pytest.mark.parametrize(
    ("up_to", "changed", "marked", "left"),
    [
        (0, False, 1, [1, 2, 3]),
        (1, True, 2, [2, 3]),
        (3, True, 4, []),
        (DROPPED, True, 4, []),
    ],
)
def test_mark_drops_what_it_covers(up_to: int, changed: bool, marked: int, left: list[int]) -> None:
    made = region(t1=[(1, 5), (2, 6), (3, 9)])

    assert made.mark(1, up_to) is changed
    table = made.table_metas[1]
    assert table.latest_marked_deleted == marked
    assert [sequence for sequence, _ in table.seq_offset_mapping.items()] == left


def test_mark_above_the_last_entry_is_refused_and_changes_nothing() -> None:
    made = region(t1=[(1, 5)])

    with pytest.raises(BadMark, match="its last entry is 1"):
        made.mark(1, 2)
    assert made == region(t1=[(1, 5)])


def test_mark_below_an_earlier_one_changes_nothing() -> None:
    made = region(t1=[(1, 5), (2, 6), (3, 7)])
    made.mark(1, 2)

    assert made.mark(1, 1) is False
    assert made.mark(1, 2) is False
    assert made.table_metas[1].latest_marked_deleted == 3


def test_table_that_was_never_written_can_be_dropped_but_not_marked() -> None:
    made = RegionMeta()

    assert made.mark(1, DROPPED) is False
    assert made.mark(1, 0) is False
    with pytest.raises(BadMark, match="never written"):
        made.mark(1, 1)
    assert made.table_metas == {}


def test_dropped_table_keeps_its_numbers() -> None:
    made = region(t1=[(1, 5), (2, 6)])
    made.mark(1, DROPPED)

    assert made.next_seq_num(1) == 3


@pytest.mark.parametrize(
    ("marks", "safe"),
    [
        ({}, 0),
        ({1: 1}, 3),
        ({1: 2}, 3),
        ({1: 2, 2: 1}, 8),
        ({2: 2}, 0),
        ({1: 2, 2: 2}, 9),  # all is flushed: the largest high watermark
    ],
)
def test_region_may_delete_below_the_oldest_live_entry_of_any_table(marks: dict[int, int], safe: int) -> None:
    made = region(t1=[(1, 0), (2, 5)], t2=[(1, 3), (2, 8)])
    for table, up_to in marks.items():
        made.mark(table, up_to)

    assert made.safe_delete_offset() == safe


def test_region_without_tables_may_delete_nothing() -> None:
    assert RegionMeta().safe_delete_offset() == 0


def test_tables_that_pin_the_log_come_oldest_first() -> None:
    made = region(t1=[(1, 50)], t2=[(1, 3)], t3=[(1, 7)], t4=[(1, 1)])
    made.mark(4, 1)

    assert made.tables_below(50) == [2, 3]
    assert made.tables_below(51) == [2, 3, 1]


def test_copy_is_not_changed_by_what_happens_later() -> None:
    made = region(t1=[(1, 5), (2, 6)])
    copied = made.copy()
    made.mark(1, 1)
    made.append(1, 9, 1, 1, 10)

    assert copied == region(t1=[(1, 5), (2, 6)])


# --- bytes -----------------------------------------------------------------------------------------------------------


def test_meter_says_how_much_lies_behind_an_offset() -> None:
    meter = ByteMeter()
    for offset in range(1000):
        meter.add(offset, SPACING_BYTES_MIN)

    for offset in (0, 1, 500, 998):
        exact = (1000 - offset) * SPACING_BYTES_MIN
        assert exact <= meter.bytes_from(offset) <= exact + 8 * SPACING_BYTES_MIN


def test_meter_has_a_bound_however_much_is_added() -> None:
    meter = ByteMeter()
    for offset in range(100_000):
        meter.add(offset, SPACING_BYTES_MIN)

    assert len(meter.marks) <= MARKS_MAX
    assert meter.bytes_from(0) == meter.total_bytes == 100_000 * SPACING_BYTES_MIN


def test_meter_becomes_fine_again_when_the_log_is_cleaned() -> None:
    meter = ByteMeter()
    for offset in range(100_000):
        meter.add(offset, SPACING_BYTES_MIN)
    meter.drop_below(99_990)
    for offset in range(100_000, 100_100):
        meter.add(offset, SPACING_BYTES_MIN)

    assert meter.bytes_from(100_090) <= 12 * SPACING_BYTES_MIN


def test_meter_of_nothing_is_zero() -> None:
    assert ByteMeter().bytes_from(0) == 0
