"""A region's parts by themselves, on a log in memory: which records count, what is read, snapshots, cleaning."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from tidelog.regionwal import (
    DROPPED,
    Bound,
    CorruptRecord,
    LogLost,
    RegionMeta,
    RegionWal,
    Settings,
    SettingsError,
    UnsupportedVersion,
    formats,
)
from tidelog.regionwal import snapshots as snapshots_module
from tidelog.regionwal.byte_meter import ByteMeter
from tidelog.regionwal.fold import DataFold, MetaFold, Overtaken, Piece
from tidelog.regionwal.formats import EPOCH_TABLE, WHOLE, Part
from tidelog.regionwal.log import Log
from tidelog.regionwal.reading import ranges
from tidelog.regionwal.sequence_map import Run
from tidelog.regionwal.snapshot_format import Snapshot

from .memory_log import MemoryBroker, MemoryLog

DATA, META = "wal_data_7", "wal_meta_7"


def wal_on(broker: MemoryBroker, **settings: Any) -> tuple[RegionWal, MemoryLog]:
    log = MemoryLog(broker)
    chosen = {"bootstrap": "memory", "clean_period_s": 0, "write_timeout_s": 5.0, **settings}
    return RegionWal(Settings(**chosen), cast("Log", log)), log


# --- which records count ---------------------------------------------------------------------------------------------


def fold_of(*records: tuple[int, int, int] | tuple[int, int, int, Part]) -> DataFold:
    """Records as (epoch, table, sequence), at offsets from 0 on."""
    fold = DataFold(RegionMeta(), 0, 0, ByteMeter())
    for offset, (epoch, table, sequence, *rest) in enumerate(records):
        part = cast("Part", rest[0]) if rest else WHOLE
        fold.observe(offset, epoch, table, sequence, part, b"me", 10)
    return fold


def live(fold: DataFold, table: int = 1) -> list[tuple[int, int]]:
    return list(fold.meta.table(table).seq_offset_mapping.items())


def test_record_behind_a_higher_epoch_is_void() -> None:
    fold = fold_of((1, EPOCH_TABLE, 1), (1, 1, 1), (2, EPOCH_TABLE, 2), (1, 1, 2), (2, 1, 2))

    assert live(fold) == [(1, 1), (2, 4)]
    assert fold.void_records == 1


def test_epoch_record_that_is_not_higher_is_void() -> None:
    fold = fold_of((2, EPOCH_TABLE, 2), (2, EPOCH_TABLE, 2), (1, EPOCH_TABLE, 1), (2, 1, 1))

    assert (fold.epoch, fold.epoch_offset, fold.void_records) == (2, 0, 2)
    assert live(fold) == [(1, 3)]


def test_record_counts_only_as_the_next_of_its_table() -> None:
    fold = fold_of((1, 1, 1), (1, 1, 1), (1, 1, 3), (1, 2, 1), (1, 1, 2))

    assert live(fold) == [(1, 0), (2, 4)]
    assert live(fold, 2) == [(1, 3)]
    assert fold.void_records == 2


def test_parts_of_an_entry_must_lie_one_behind_the_other() -> None:
    first, second = Part(0, 2, 77), Part(1, 2, 77)
    fold = fold_of((1, 1, 1, first), (1, 1, 1, second), (1, 1, 2, first), (1, 2, 1), (1, 1, 2, second))

    assert live(fold) == [(1, 0)]
    assert live(fold, 2) == [(1, 3)]


def test_parts_without_a_beginning_are_void() -> None:
    assert live(fold_of((1, 1, 1, Part(1, 2, 5)), (1, 1, 1))) == [(1, 1)]
    assert live(fold_of((1, 1, 1, Part(0, 3, 5)), (1, 1, 1, Part(2, 3, 5)))) == []
    assert live(fold_of((1, 1, 1, Part(0, 2, 5)), (1, 1, 1, Part(1, 2, 6)))) == []


def test_owner_stops_at_the_first_record_of_the_next_owner() -> None:
    fold = fold_of(((1 << 32), EPOCH_TABLE, 1))
    fold.owner = 1
    fold.observe(1, (1 << 32) | 5, EPOCH_TABLE, 1, WHOLE, b"me again", 10)

    with pytest.raises(Overtaken):
        fold.observe(2, 2 << 32, EPOCH_TABLE, 2, WHOLE, b"other", 10)
    assert (fold.next_offset, fold.epoch) == (2, (1 << 32) | 5)


def test_confirming_our_own_records_is_the_same_as_reading_them() -> None:
    read = fold_of(*[(0, 1, n) for n in (1, 2, 3)], (0, 2, 1, Part(0, 2, 1)), (0, 2, 1, Part(1, 2, 1)), (0, 1, 4))
    confirmed = DataFold(RegionMeta(), 0, 0, ByteMeter())
    confirmed.confirm([Piece(1, 1, 3, 1), Piece(2, 1, 1, 2), Piece(1, 4, 1, 1)], 60)

    assert confirmed.meta == read.meta
    assert confirmed.next_offset == read.next_offset


def test_last_snapshot_is_the_one_with_the_largest_serial() -> None:
    fold = MetaFold(0)
    for offset, serial in enumerate([3, 5, 4]):
        fold.observe(offset, 1, WHOLE, Snapshot(serial=serial).encode())

    assert fold.snapshot == Snapshot(serial=5)
    assert fold.snapshot_offset == 1


def test_snapshot_behind_a_higher_epoch_does_not_count() -> None:
    fold = MetaFold(0)
    fold.observe(0, 2, WHOLE, Snapshot(serial=1).encode())
    fold.observe(1, 1, WHOLE, Snapshot(serial=9).encode())

    assert fold.snapshot == Snapshot(serial=1)


def test_parts_of_two_snapshots_are_not_mixed() -> None:
    """Two openers with the same epoch write at the same time."""
    one, two = Snapshot(serial=1, total_bytes=111).encode(), Snapshot(serial=1, total_bytes=222).encode()
    fold = MetaFold(0)
    for offset, (payload, part) in enumerate(
        [(one[:3], Part(0, 2, 1)), (two[:3], Part(0, 2, 2)), (one[3:], Part(1, 2, 1)), (two[3:], Part(1, 2, 2))]
    ):
        fold.observe(offset, 1, part, payload)

    assert fold.snapshot is None


# --- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([], []),
        ([Run(1, 10, 5, 1, 1)], [(10, 15)]),
        ([Run(1, 10, 5, 1, 1), Run(6, 20, 1, 1, 1)], [(10, 21)]),  # a gap of 5: read through
        ([Run(1, 10, 5, 1, 1), Run(6, 115, 2, 3, 3)], [(10, 15), (115, 121)]),
        ([Run(1, 10, 3, 5, 1)], [(10, 21)]),
        ([Run(1, 10, 3, 500, 2)], [(10, 12), (510, 512), (1010, 1012)]),
        ([Run(1, 16, 2, 0, 1), Run(3, 31, 1, 1, 1)], [(16, 32)]),
    ],
)
def test_ranges_read_through_short_gaps_and_jump_over_long_ones(
    runs: Sequence[Run], expected: list[tuple[int, int]]
) -> None:
    assert list(ranges(runs, skip_records_min=100)) == expected


def test_cold_table_is_read_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.regionwal.region.SKIP_BYTES_MIN", 1000)
    wal, log = wal_on(MemoryBroker())
    wal.write(7, 1, [b"cold"])
    wal.write(7, 2, [b"hot" * 10] * 500)
    wal.write(7, 1, [b"cold again"])
    log.records_read = 0

    assert [entry.payload for entry in wal.read(7, 1)] == [b"cold", b"cold again"]
    assert log.records_read == 2


def test_scan_reads_each_record_once_whatever_the_number_of_tables() -> None:
    wal, log = wal_on(MemoryBroker())
    for number in range(40):
        wal.write(7, number % 20, [b"row"] * (1 + number % 3))
    written = sum(1 + number % 3 for number in range(40))
    log.records_read = 0

    assert len(list(wal.scan(7))) == written
    assert log.records_read == written


def test_entries_that_take_turns_and_split_ones_come_back_in_the_logs_order() -> None:
    wal, _ = wal_on(MemoryBroker(), entry_record_bytes_max=4)
    expected = []
    for number in range(30):
        payload = str(number).encode() * (1 + number % 4)
        expected.append((number % 3, number // 3 + 1, payload))
        wal.write(7, number % 3, [payload])

    assert [(entry.table_id, entry.sequence, entry.payload) for entry in wal.scan(7)] == expected
    assert [entry.sequence for entry in wal.read(7, 1, Bound.excluded(3), Bound.included(6))] == [4, 5, 6]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (Bound.min(), Bound.max(), [1, 2, 3, 4, 5]),
        (Bound.included(2), Bound.included(4), [2, 3, 4]),
        (Bound.excluded(2), Bound.excluded(4), [3]),
        (Bound.included(5), Bound.max(), [5]),
        (Bound.excluded(5), Bound.max(), []),
        (Bound.included(9), Bound.included(12), []),
        (Bound.min(), Bound.excluded(1), []),
        (Bound.included(4), Bound.included(2), []),
        (Bound.min(), Bound.min(), []),
        (Bound.max(), Bound.max(), []),
    ],
)
def test_bounds(start: Bound, end: Bound, expected: list[int]) -> None:
    wal, _ = wal_on(MemoryBroker())
    wal.write(7, 1, [b"row"] * 5)

    assert [entry.sequence for entry in wal.read(7, 1, start, end)] == expected


def test_scan_goes_on_when_what_it_reads_is_marked_and_cleaned_meanwhile() -> None:
    wal, _ = wal_on(MemoryBroker())
    wal.write(7, 1, [b"row"] * 20)
    scan = wal.scan(7)
    assert next(scan).sequence == 1
    wal.mark_delete(7, 1, 15)
    wal.clean_region(7)

    rest = [entry.sequence for entry in scan]
    assert rest[-5:] == [16, 17, 18, 19, 20]
    assert rest == sorted(rest)


def test_scan_says_so_when_what_it_reads_is_lost_meanwhile() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"] * 20)
    scan = wal.scan(7)
    next(scan)
    broker.earliest[DATA] = 15

    with pytest.raises(LogLost, match="not marked as deleted"):
        list(scan)


def test_record_that_is_not_what_the_map_says_is_an_error() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"] * 3)
    records = broker.records[DATA]
    records[1] = (formats.data_key(7, 1, 9), *records[1][1:])

    with pytest.raises(LogLost, match=r"sequence 1 of table 1 lies at offset 1, and the log gave sequence 9"):
        list(wal.scan(7))


def test_record_of_a_newer_version_is_refused_when_read_and_when_recovered() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"] * 3)
    records = broker.records[DATA]
    records[2] = (records[2][0], b"\1row", records[2][2])

    with pytest.raises(UnsupportedVersion, match=rf"{DATA} has a record at offset 2.*version 1"):
        list(wal.scan(7))
    with pytest.raises(UnsupportedVersion):
        wal_on(broker)[0].open_region(7)


def test_record_of_somebody_else_is_named_by_its_offset() -> None:
    broker = MemoryBroker()
    wal_on(broker)[0].write(7, 1, [b"row"])
    broker.records[DATA].append((b"who", b"knows", []))

    with pytest.raises(CorruptRecord, match=rf"{DATA} has a record at offset 2 that cannot be read: its key has 3"):
        wal_on(broker)[0].open_region(7)


# --- snapshots and cleaning ------------------------------------------------------------------------------------------


def test_snapshot_that_is_too_long_for_a_record_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_RECORD_BYTES_MAX", 20)
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write_batch(7, {table: [b"row"] for table in range(20)})
    wal.mark_delete(7, 3, 1)
    wal.close_region(7)

    assert len(broker.records[META]) - broker.earliest[META] > 5
    again, _ = wal_on(broker)
    assert [entry.table_id for entry in again.scan(7)] == [table for table in range(20) if table != 3]
    assert again.statistics(7).regions[0].recovery_records_read == 0


def test_snapshot_is_written_when_enough_was_written_since_the_last() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker, snapshot_records=50)
    for _ in range(10):
        wal.write(7, 1, [b"row"] * 20)
    wal.close()  # waits for what is under way beside
    again, _ = wal_on(broker)
    again.open_region(7)

    assert again.statistics(7).regions[0].snapshot_serial >= 2


def test_cleaning_twice_writes_one_snapshot() -> None:
    wal, _ = wal_on(MemoryBroker())
    wal.write(7, 1, [b"row"] * 3)
    wal.mark_delete(7, 1, 2)

    first, second = wal.clean_region(7), wal.clean_region(7)

    assert (first.snapshot_written, first.safe_delete_offset, first.deleted_records) == (True, 3, 3)
    assert (second.snapshot_written, second.deleted_records) == (False, 0)


def test_meta_topic_holds_one_record_after_cleaning_and_after_opening() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"])
    assert len(broker.records[META]) - broker.earliest[META] == 1
    wal.mark_delete(7, 1, 1)
    wal.clean_region(7)
    assert len(broker.records[META]) - broker.earliest[META] == 1


def test_mark_is_forgotten_by_a_crash_and_kept_by_a_close() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"] * 3)
    wal.mark_delete(7, 1, 2)
    after_crash, _ = wal_on(broker)
    assert [entry.sequence for entry in after_crash.scan(7)] == [1, 2, 3]

    after_crash.mark_delete(7, 1, 2)
    after_crash.close_region(7)
    after_close, _ = wal_on(broker)
    assert [entry.sequence for entry in after_close.scan(7)] == [3]


def test_mark_of_a_dropped_table_is_kept_at_once() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write_batch(7, {1: [b"row"] * 3, 2: [b"row"]})
    wal.mark_delete(7, 1, DROPPED)

    after_crash, _ = wal_on(broker)
    assert [entry.table_id for entry in after_crash.scan(7)] == [2]
    assert after_crash.write(7, 1, [b"new table, same id"]) == 4


def test_database_is_asked_to_flush_the_tables_that_pin_too_much() -> None:
    asked: list[tuple[int, Sequence[int]]] = []
    wal, _ = wal_on(
        MemoryBroker(), pinned_bytes_max=300_000, on_pinned=lambda region, tables: asked.append((region, tables))
    )
    wal.write(7, 5, [b"cold"])
    wal.write(7, 4, [b"cold"])
    wal.write(7, 1, [bytes(100_000)] * 8)
    assert wal.clean_region(7).asked_to_flush == (5, 4, 1)
    assert asked == [(7, [5, 4, 1])]

    wal.mark_delete(7, 1, 6)
    wal.mark_delete(7, 4, 1)
    assert wal.clean_region(7).asked_to_flush == (5,)
    wal.mark_delete(7, 5, 1)
    assert wal.clean_region(7).asked_to_flush == ()


def test_callback_that_fails_does_not_stop_the_cleaning() -> None:
    def fail(_region: int, _tables: Sequence[int]) -> None:
        raise RuntimeError("no")

    wal, _ = wal_on(MemoryBroker(), pinned_bytes_max=1, on_pinned=fail)
    wal.write(7, 1, [b"row"])

    assert wal.clean_region(7).asked_to_flush == (1,)


def test_read_only_wal_fences_nobody() -> None:
    broker = MemoryBroker()
    wal, _ = wal_on(broker)
    wal.write(7, 1, [b"row"])
    looker, _ = wal_on(broker, read_only=True)

    assert looker.regions() == [7]
    assert [entry.payload for entry in looker.scan(7)] == [b"row"]
    assert looker.statistics(7).regions[0].state == "read-only"
    assert wal.write(7, 1, [b"more"]) == 2


# --- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [{-1: [b"row"]}, {formats.EPOCH_TABLE: [b"row"]}, {1: ["text"]}, {1: [bytes(101)]}, {1: [bytearray(b"row")]}],
)
def test_batch_that_cannot_be_written_is_refused_and_nothing_is_written(batch: Any) -> None:
    wal, _ = wal_on(MemoryBroker(), entry_bytes_max=100, entry_record_bytes_max=100)

    with pytest.raises(SettingsError):
        wal.write_batch(7, {2: [b"fine"], **batch})
    assert wal.sequence_num(7, 2) == 0


def test_empty_write_says_the_last_sequence_and_writes_nothing() -> None:
    wal, _ = wal_on(MemoryBroker())
    wal.write(7, 1, [b"row"])

    assert wal.write(7, 1, []) == 1
    assert wal.write_batch(7, {1: [], 2: [b"row"], 3: []}) == {1: 1, 2: 1, 3: 0}
    assert wal.write_batch(7, {}) == {}


def test_empty_entry_comes_back() -> None:
    wal, _ = wal_on(MemoryBroker())
    wal.write(7, 1, [b"", b"row", b""])

    assert [entry.payload for entry in wal.read(7, 1)] == [b"", b"row", b""]


@pytest.mark.parametrize(
    "wrong",
    [
        {"namespace": ""},
        {"namespace": "a b"},
        {"write_timeout_s": 0},
        {"threads": 0},
        {"entry_record_bytes_max": 0},
        {"entry_record_bytes_max": 10, "entry_bytes_max": 9},
        {"clean_period_s": -1},
        {"snapshot_records": 0},
    ],
)
def test_setting_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Settings(bootstrap="memory", **wrong)
