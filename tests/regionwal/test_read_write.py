"""The fourteen read and write cases that HoraeDB holds each of its WALs to, on our own server and on Apache Kafka."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest

from tidelog.regionwal import Bound, RegionWal

from .world import World, by_table, contents, expected, payloads

REGION, TABLE = 7, 3


def test_batch_that_was_written_is_read_back(wal: RegionWal) -> None:
    last = wal.write(REGION, TABLE, payloads(TABLE, 1, 10))

    assert last == 10
    assert contents(wal.read(REGION, TABLE)) == expected(TABLE, 1, 10)


def test_batches_of_every_size_are_read_back_whole(wal: RegionWal) -> None:
    for table, size in enumerate((1, 2, 4, 10, 100)):
        assert wal.write(REGION, table, payloads(table, 1, size)) == size
        assert contents(wal.read(REGION, table)) == expected(table, 1, size)


def test_bounds_of_every_kind_hold_what_they_say(wal: RegionWal) -> None:
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))
    starts = [(Bound.min(), 1), (Bound.included(4), 4), (Bound.excluded(4), 5), (Bound.included(1), 1)]
    ends = [(Bound.max(), 10), (Bound.included(8), 8), (Bound.excluded(8), 7), (Bound.included(10), 10)]

    for (start, first), (end, last) in itertools.product(starts, ends):
        assert contents(wal.read(REGION, TABLE, start, end)) == expected(TABLE, first, last), (start, end)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (Bound.included(6), Bound.included(5)),
        (Bound.excluded(5), Bound.excluded(6)),
        (Bound.excluded(10), Bound.max()),
        (Bound.included(11), Bound.included(99)),
        (Bound.min(), Bound.excluded(1)),
    ],
)
def test_bounds_that_hold_nothing_read_nothing_and_end(tidelog_world: World, start: Bound, end: Bound) -> None:
    wal = tidelog_world.node()
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))

    assert contents(wal.read(REGION, TABLE, start, end)) == []


def test_regions_are_written_in_parallel(wal: RegionWal) -> None:
    def write_and_read(region: int) -> list[tuple[int, int, bytes]]:
        for first in (1, 6):
            wal.write(region, TABLE, payloads(region, first, 5))
        return contents(wal.read(region, TABLE))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(write_and_read, range(4)))

    for region in range(4):
        assert [payload for _, _, payload in found[region]] == payloads(region, 1, 10)


def test_entries_are_there_after_reopening(world: World) -> None:
    first = world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 10))
    first.close()

    second = world.node()
    second.open_region(REGION)

    assert contents(second.read(REGION, TABLE)) == expected(TABLE, 1, 10)
    assert second.sequence_num(REGION, TABLE) == 10


def test_reads_between_writes_see_all_that_was_written(wal: RegionWal) -> None:
    """Two tables, written by turns, each read from its middle on between the writes."""
    for round_ in range(4):
        for table in (TABLE, TABLE + 1):
            wal.write(REGION, table, payloads(table, 1 + 10 * round_, 10))
            last = 10 * (round_ + 1)
            assert contents(wal.read(REGION, table)) == expected(table, 1, last)
            middle = last // 2
            assert contents(wal.read(REGION, table, Bound.included(middle))) == expected(table, middle, last)
            assert wal.sequence_num(REGION, table) == last


def test_entries_that_were_deleted_are_not_read(wal: RegionWal) -> None:
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))

    wal.mark_delete(REGION, TABLE, 10)

    assert contents(wal.read(REGION, TABLE)) == []
    assert contents(wal.scan(REGION)) == []


def test_half_that_was_not_deleted_is_read(wal: RegionWal) -> None:
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))

    wal.mark_delete(REGION, TABLE, 5)

    assert contents(wal.read(REGION, TABLE)) == expected(TABLE, 6, 10)
    assert contents(wal.read(REGION, TABLE, Bound.included(2), Bound.included(7))) == expected(TABLE, 6, 7)


def test_delete_in_one_region_leaves_the_others_alone(wal: RegionWal) -> None:
    for region in (1, 2):
        wal.write(region, TABLE, payloads(TABLE, 1, 10))

    wal.mark_delete(1, TABLE, 10)
    wal.clean_region(1)

    assert contents(wal.read(1, TABLE)) == []
    assert contents(wal.read(2, TABLE)) == expected(TABLE, 1, 10)


def test_sequence_rises_over_many_writes(wal: RegionWal) -> None:
    lasts = [wal.write(REGION, TABLE, payloads(TABLE, 1 + 3 * number, 3)) for number in range(10)]

    assert lasts == [3 * number for number in range(1, 11)]
    assert wal.sequence_num(REGION, TABLE) == 30


def test_sequence_rises_after_everything_was_deleted(wal: RegionWal) -> None:
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))
    wal.mark_delete(REGION, TABLE, 10)
    wal.clean_region(REGION)

    assert wal.sequence_num(REGION, TABLE) == 10
    assert wal.write(REGION, TABLE, payloads(TABLE, 11, 10)) == 20
    assert contents(wal.read(REGION, TABLE)) == expected(TABLE, 11, 20)


@pytest.mark.parametrize("cleaned", [False, True], ids=["marked", "cleaned"])
def test_sequence_rises_after_everything_was_deleted_and_the_region_reopened(world: World, cleaned: bool) -> None:
    first = world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 10))
    first.mark_delete(REGION, TABLE, 10)
    if cleaned:
        first.clean_region(REGION)
    first.close()

    second = world.node()

    assert second.sequence_num(REGION, TABLE) == 10
    assert second.write(REGION, TABLE, payloads(TABLE, 11, 10)) == 20
    assert contents(second.read(REGION, TABLE)) == expected(TABLE, 11, 20)


def test_scan_gives_every_table_of_the_region_and_of_no_other(wal: RegionWal) -> None:
    for region, first in itertools.product((1, 2), (1, 6)):
        for table in range(5):
            wal.write(region, table, payloads(table, first, 5))

    found = by_table(wal.scan(1))

    assert set(found) == set(range(5))
    for table, entries in found.items():
        assert entries == [(sequence, payload) for _, sequence, payload in expected(table, 1, 10)]


def test_region_moves_from_one_node_to_another_and_back(world: World) -> None:
    one, two = world.node(), world.node()
    one.write(REGION, TABLE, payloads(TABLE, 1, 10))
    one.close_region(REGION)

    two.open_region(REGION)
    assert contents(two.read(REGION, TABLE)) == expected(TABLE, 1, 10)
    assert two.write(REGION, TABLE, payloads(TABLE, 11, 10)) == 20
    two.close_region(REGION)

    one.open_region(REGION)
    assert one.write(REGION, TABLE, payloads(TABLE, 21, 10)) == 30
    assert contents(one.read(REGION, TABLE)) == expected(TABLE, 1, 30)
