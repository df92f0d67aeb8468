"""The specification's worked example of recovery, record by record, and what recovery may cost.

A snapshot taken at high watermark 64 says of a table: next 5, marked 2, high watermark 32, map (2,16) (3,16) (4,31).
The log then gives 5 at offset 72, 6 at 81 and 7 at 90.
"""

from typing import cast

import pytest

from tidelog.regionwal import LogLost, RegionMeta, SequenceMap, TableMeta, formats
from tidelog.regionwal.log import Log
from tidelog.regionwal.opening import Opened, Topics, open_to_read, open_to_write
from tidelog.regionwal.snapshot_format import Snapshot
from tidelog.regionwal.snapshots import meta_records

from .memory_log import MemoryBroker, MemoryLog

TABLE, OTHER = 9, 10
TOPICS = Topics(7, "wal_data_7", "wal_meta_7")
EPOCH = 1 << 32
END = 101  # the example's log goes up to offset 100
TIMEOUT_S = 1.0


def record(table: int, sequence: int) -> tuple[bytes, bytes, formats.Headers]:
    return formats.records_of(formats.data_key(7, table, sequence), b"row", 100, [formats.epoch_header(EPOCH)])[0]


@pytest.fixture
def broker() -> MemoryBroker:
    """Offsets 64 to 100: the table's three entries, and another table's in all other places."""
    made = MemoryBroker()
    places = {72: 5, 81: 6, 90: 7}
    other = 0
    data = []
    for offset in range(END):
        if offset in places:
            data.append(record(TABLE, places[offset]))
        elif offset < 64:
            data.append(record(TABLE, 1))  # before the snapshot: recovery must not even look at it
        else:
            other += 1
            data.append(record(OTHER, other))
    made.records = {TOPICS.data: data, TOPICS.meta: meta_records(7, EPOCH, snapshot().encode())}
    made.earliest = {TOPICS.data: 0, TOPICS.meta: 0}
    return made


def snapshot() -> Snapshot:
    table = TableMeta(5, 2, 32, SequenceMap([(2, 16), (3, 16), (4, 31)]))
    return Snapshot(serial=1, data_epoch=EPOCH, data_high_watermark=64, tables={TABLE: table})


def opened(broker: MemoryBroker, accept_loss: bool = False) -> Opened:
    return open_to_write(cast("Log", MemoryLog(broker)), TOPICS, TIMEOUT_S, accept_loss)


def test_example_recovers_as_the_specification_says(broker: MemoryBroker) -> None:
    fold = opened(broker).fold

    table = fold.meta.table_metas[TABLE]
    assert table.next_seq_num == 8
    assert table.latest_marked_deleted == 2
    assert list(table.seq_offset_mapping.items()) == [(2, 16), (3, 16), (4, 31), (5, 72), (6, 81), (7, 90)]
    # The specification leaves 32 here, which contradicts its own definition: the offset after the last write.
    assert table.current_high_watermark == 91


def test_recovery_reads_what_came_after_the_snapshot_and_nothing_else(broker: MemoryBroker) -> None:
    result = opened(broker)

    assert result.records_read == END - 64


def test_second_recovery_finds_the_same(broker: MemoryBroker) -> None:
    first = opened(broker).fold.meta
    second = opened(broker).fold.meta

    assert first == second


def test_snapshot_alone_is_enough_when_nothing_came_after_it(broker: MemoryBroker) -> None:
    del broker.records[TOPICS.data][64:]

    result = opened(broker)

    assert result.fold.meta == RegionMeta(snapshot().tables)
    assert result.records_read == 0


def test_looking_writes_nothing(broker: MemoryBroker) -> None:
    before = {topic: len(records) for topic, records in broker.records.items()}

    result = open_to_read(cast("Log", MemoryLog(broker)), TOPICS, TIMEOUT_S)

    assert result.fold.meta.next_seq_num(TABLE) == 8
    assert {topic: len(records) for topic, records in broker.records.items()} == before


def test_fully_flushed_and_deleted_region_opens_at_once(broker: MemoryBroker) -> None:
    flushed = Snapshot(serial=2, data_epoch=EPOCH, data_high_watermark=END, tables={TABLE: TableMeta(8, 8, 91)})
    broker.records[TOPICS.meta] += meta_records(7, EPOCH, flushed.encode())
    broker.earliest[TOPICS.data] = END

    result = opened(broker)

    assert result.fold.meta.next_seq_num(TABLE) == 8
    assert result.records_read == 0


# --- a log that lost what it should have -----------------------------------------------------------------------------


def test_entries_that_retention_took_are_named(broker: MemoryBroker) -> None:
    broker.earliest[TOPICS.data] = 20

    with pytest.raises(LogLost, match=r"begins at offset 20.*9 \(2 to 3\)"):
        opened(broker)


def test_loss_of_what_no_snapshot_knows_is_seen(broker: MemoryBroker) -> None:
    broker.earliest[TOPICS.data] = 75

    with pytest.raises(LogLost, match=r"records from 64 on.*9 \(2 to 4\), and what came after those"):
        opened(broker)


def test_log_that_was_made_anew_is_seen(broker: MemoryBroker) -> None:
    del broker.records[TOPICS.data][20:]

    with pytest.raises(LogLost, match=r"ends at offset 20, and had records up to 64.*9 \(4 to 4\)"):
        opened(broker)


def test_log_without_a_snapshot_is_read_from_its_beginning_if_it_has_one() -> None:
    made = MemoryBroker()
    made.records = {TOPICS.data: [record(TABLE, 1), record(TABLE, 2)], TOPICS.meta: []}
    made.earliest = {TOPICS.data: 0, TOPICS.meta: 0}
    assert opened(made).fold.meta.next_seq_num(TABLE) == 3

    made.records[TOPICS.meta].clear()
    made.earliest = {TOPICS.data: 1, TOPICS.meta: 0}
    with pytest.raises(LogLost, match="begins at offset 1"):
        opened(made)


def test_loss_can_be_accepted_and_the_rest_is_kept(broker: MemoryBroker) -> None:
    broker.earliest[TOPICS.data] = 20

    fold = opened(broker, accept_loss=True).fold

    table = fold.meta.table_metas[TABLE]
    assert (table.next_seq_num, table.latest_marked_deleted) == (8, 4)
    assert list(table.seq_offset_mapping.items()) == [(4, 31), (5, 72), (6, 81), (7, 90)]


def test_table_goes_on_behind_a_hole_when_the_loss_is_accepted(broker: MemoryBroker) -> None:
    broker.earliest[TOPICS.data] = 75

    fold = opened(broker, accept_loss=True).fold

    table = fold.meta.table_metas[TABLE]
    assert (table.next_seq_num, table.latest_marked_deleted) == (8, 6)
    assert list(table.seq_offset_mapping.items()) == [(6, 81), (7, 90)]


def test_end_that_is_lost_can_be_accepted(broker: MemoryBroker) -> None:
    del broker.records[TOPICS.data][20:]

    fold = opened(broker, accept_loss=True).fold

    table = fold.meta.table_metas[TABLE]
    assert table.next_seq_num == 4
    assert list(table.seq_offset_mapping.items()) == [(2, 16), (3, 16)]
    assert fold.meta.safe_delete_offset() <= len(broker.records[TOPICS.data])
