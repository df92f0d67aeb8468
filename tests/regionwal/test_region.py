"""HoraeDB's cases for a region, its cleaner and its snapshots, seen through the API and by an outsider in the log."""

import itertools

from tidelog.regionwal import DROPPED, RegionWal

from .world import World, by_table, contents, expected, payloads

REGION = 5
TABLES = range(5)


def test_interleaved_tables_are_scanned_in_the_order_of_the_log(wal: RegionWal) -> None:
    for first, table in itertools.product((1, 4, 7), TABLES):
        wal.write(REGION, table, payloads(table, first, 3))

    entries = list(wal.scan(REGION))

    assert [entry.offset for entry in entries] == sorted({entry.offset for entry in entries})
    assert [(entry.table_id, entry.sequence) for entry in entries] == [
        (table, first + number) for first in (1, 4, 7) for table in TABLES for number in range(3)
    ]


def test_write_of_several_tables_gives_the_last_sequence_of_each(wal: RegionWal) -> None:
    wal.write(REGION, 1, payloads(1, 1, 2))

    lasts = wal.write_batch(REGION, {1: payloads(1, 3, 3), 2: payloads(2, 1, 4)})

    assert lasts == {1: 5, 2: 4}
    assert by_table(wal.scan(REGION)) == {
        table: [(sequence, payload) for _, sequence, payload in expected(table, 1, last)]
        for table, last in lasts.items()
    }


def test_scan_does_not_give_what_is_marked_before_it_is_cleaned(wal: RegionWal) -> None:
    wal.write_batch(REGION, {table: payloads(table, 1, 6) for table in TABLES})

    for table in TABLES:
        wal.mark_delete(REGION, table, table + 1)

    assert by_table(wal.scan(REGION)) == {
        table: [(sequence, payload) for _, sequence, payload in expected(table, table + 2, 6)] for table in TABLES
    }


def test_mark_shows_in_every_field_of_the_tables_metadata(world: World) -> None:
    """The five facts of a table: next sequence, mark, high watermark, where the mark lies, what lies after it."""
    wal = world.node()
    for first, table in itertools.product((1, 4), TABLES):
        wal.write(REGION, table, payloads(table, first, 3))
    offsets = {(entry.table_id, entry.sequence): entry.offset for entry in wal.scan(REGION)}

    for table in TABLES:
        wal.mark_delete(REGION, table, 2)

    assert tables_of(wal) == [(table, 7, 3, offsets[table, 6] + 1, offsets[table, 3], 4) for table in TABLES]


def test_clean_moves_the_logs_beginning_to_the_oldest_live_entry(world: World) -> None:
    wal = world.node()
    for first, table in itertools.product((1, 4), TABLES):
        wal.write(REGION, table, payloads(table, first, 3))
    offsets = {(entry.table_id, entry.sequence): entry.offset for entry in wal.scan(REGION)}
    for table in TABLES:
        wal.mark_delete(REGION, table, {2: 4, 4: 5}.get(table, 6))

    wal.clean_region(REGION)

    assert world.earliest(world.data_topic(REGION)) == offsets[2, 5]
    assert by_table(wal.scan(REGION)) == {
        table: [(sequence, payload) for _, sequence, payload in expected(table, first, 6)]
        for table, first in ((2, 5), (4, 6))
    }


def test_region_that_is_flushed_whole_is_cleaned_to_its_end(world: World) -> None:
    wal = world.node()
    wal.write_batch(REGION, {table: payloads(table, 1, 6) for table in TABLES})
    for table in TABLES:
        wal.mark_delete(REGION, table, 6)

    wal.clean_region(REGION)

    topic = world.data_topic(REGION)
    assert world.earliest(topic) == world.latest(topic)
    assert contents(wal.scan(REGION)) == []


def test_cleaning_twice_changes_nothing(world: World) -> None:
    wal = world.node()
    wal.write(REGION, 1, payloads(1, 1, 10))
    wal.mark_delete(REGION, 1, 5)
    wal.clean_region(REGION)
    before = world.earliest(world.data_topic(REGION))

    wal.clean_region(REGION)

    assert world.earliest(world.data_topic(REGION)) == before
    assert contents(wal.read(REGION, 1)) == expected(1, 6, 10)


def test_region_without_any_table_is_cleaned_to_nothing(world: World) -> None:
    wal = world.node()
    wal.open_region(REGION)

    wal.clean_region(REGION)

    assert contents(wal.scan(REGION)) == []
    assert wal.write(REGION, 1, payloads(1, 1, 1)) == 1


def test_meta_topic_holds_one_snapshot_after_cleaning(world: World) -> None:
    wal = world.node()
    for number in range(1, 4):
        wal.write(REGION, 1, payloads(1, number, 1))
        wal.mark_delete(REGION, 1, number)
        wal.clean_region(REGION)

    assert len(world.records(world.meta_topic(REGION))) == 1


def test_recovered_metadata_is_what_it_was(world: World) -> None:
    first = world.node()
    for start, table in itertools.product((1, 4), TABLES):
        first.write(REGION, table, payloads(table, start, 3))
    first.mark_delete(REGION, 1, 4)
    first.mark_delete(REGION, 2, 6)
    first.mark_delete(REGION, 3, DROPPED)
    before = tables_of(first)
    first.clean_region(REGION)
    after_cleaning = tables_of(first)
    first.close()

    second = world.node()
    second.open_region(REGION)

    assert before == after_cleaning
    assert tables_of(second) == before


def test_recovered_metadata_is_what_it_was_without_any_snapshot_of_it(world: World) -> None:
    """The first node never marks, never cleans and is never closed: the log alone tells."""
    first = world.node()
    first.write_batch(REGION, {table: payloads(table, 1, 3 + table) for table in TABLES})
    before = tables_of(first)

    second = world.node()
    second.open_region(REGION)

    assert tables_of(second) == before


def tables_of(wal: RegionWal) -> list[tuple[int, int, int, int, int | None, int]]:
    """Of each: next sequence, mark, high watermark, where its oldest live entry lies, how many are live."""
    [region] = wal.statistics(REGION).regions
    return [
        (
            table.table_id,
            table.next_sequence,
            table.marked_deleted,
            table.high_watermark,
            table.first_live_offset,
            table.live_entries,
        )
        for table in region.tables
    ]
