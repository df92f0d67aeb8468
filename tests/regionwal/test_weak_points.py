"""Where HoraeDB's WAL on Kafka is known to be weak, a test a point (more: test_ambiguous_write, test_two_nodes)."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.e2e.broker import Broker
from tests.ports import free_port
from tidelog.regionwal import DROPPED, Bound, LogLost, RegionWal, RegionWalError, Settings, Timeout
from tidelog.regionwal.log import Log as Queue

from .world import World, contents, expected, payloads

REGION, TABLE = 3, 8
LONG_S = 60.0


# --- No hang ----------------------------------------------------------------------------------------------------------


def test_region_that_was_never_written_is_read_without_a_hang(wal: RegionWal) -> None:
    assert contents(wal.scan(REGION)) == []
    assert contents(wal.read(REGION, TABLE)) == []
    assert wal.sequence_num(REGION, TABLE) == 0


def test_region_that_is_flushed_and_cleaned_opens_without_a_hang(world: World) -> None:
    first = world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 10))
    first.mark_delete(REGION, TABLE, 10)
    first.clean_region(REGION)
    first.close()

    second = world.node()

    assert contents(second.scan(REGION)) == []
    assert second.sequence_num(REGION, TABLE) == 10


def test_log_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    """HoraeDB's client once tried for ever."""
    wal = RegionWal(Settings(bootstrap=f"127.0.0.1:{free_port()}", open_timeout_s=1.0, clean_period_s=0))
    try:
        with pytest.raises((Timeout, RegionWalError)):
            wal.open_region(REGION)
    finally:
        wal.close()


# --- The log keeps what is live ---------------------------------------------------------------------------------------


def test_topics_are_never_emptied_by_time_size_or_compaction(world: World) -> None:
    world.node().open_region(REGION)

    for topic in (world.data_topic(REGION), world.meta_topic(REGION)):
        configs = world.configs(topic)
        assert configs["retention.ms"] == "-1"
        assert configs["retention.bytes"] == "-1"
        assert configs["cleanup.policy"] == "delete"


def test_live_entries_that_somebody_removed_are_missed_and_said(world: World) -> None:
    """A database that goes on with a log that has lost entries has lost rows, and does not know."""
    first = world.node()
    first.write(REGION, TABLE, payloads(TABLE, 1, 10))
    cut = list(first.scan(REGION))[4].offset
    first.close()
    world.trim(world.data_topic(REGION), cut)

    second = world.node()

    with pytest.raises(LogLost, match=world.data_topic(REGION)):
        second.open_region(REGION)


@pytest.mark.slow
def test_topics_have_three_replicas_where_there_are_three_nodes(tmp_path: Path) -> None:
    broker = Broker(tmp_path, nodes=3)
    wal = RegionWal(Settings(bootstrap=broker.bootstrap, clean_period_s=0))
    try:
        wal.write(REGION, TABLE, payloads(TABLE, 1, 10))
        topics = World.admin_of(broker.bootstrap).list_topics(timeout=LONG_S).topics
        for topic in (f"wal_data_{REGION}", f"wal_meta_{REGION}"):
            [partition] = topics[topic].partitions.values()
            assert len(partition.replicas) == 3
    finally:
        wal.close()
        broker.stop()


# --- Deleting ---------------------------------------------------------------------------------------------------------


def test_dropped_table_gives_way(world: World) -> None:
    """HoraeDB passes the largest number for it, and then refuses that."""
    wal = world.node()
    wal.write(REGION, TABLE, payloads(TABLE, 1, 10))
    wal.write(REGION, TABLE + 1, payloads(TABLE + 1, 1, 10))

    wal.mark_delete(REGION, TABLE, DROPPED)
    wal.clean_region(REGION)

    [first, *_] = contents(wal.scan(REGION))
    assert first == expected(TABLE + 1, 1, 1)[0]
    assert world.earliest(world.data_topic(REGION)) == next(wal.scan(REGION)).offset


def test_dropped_table_that_was_never_written_is_no_error(wal: RegionWal) -> None:
    wal.mark_delete(REGION, TABLE, DROPPED)

    assert wal.sequence_num(REGION, TABLE) == 0


def test_scan_while_entries_are_marked_and_cleaned_gives_no_error_and_no_gap(tidelog_world: World) -> None:
    """HoraeDB's own comment: it "may lead to error". Entries deleted meanwhile may or may not be seen, others must."""
    wal = tidelog_world.node()
    tables = range(4)
    for first in range(1, 2_001, 100):
        wal.write_batch(REGION, {table: payloads(table, first, 100, 100) for table in tables})
    stop = threading.Event()
    failures: list[BaseException] = []

    def delete() -> None:
        try:
            for up_to in range(50, 1_501, 50):
                if stop.is_set():
                    return
                for table in tables:
                    wal.mark_delete(REGION, table, up_to)
                wal.clean_region(REGION)
        except RegionWalError as error:
            failures.append(error)

    deleter = threading.Thread(target=delete)
    deleter.start()
    try:
        for _ in range(5):
            for table in tables:
                found = [entry.sequence for entry in wal.read(REGION, table)]
                assert found[-1] == 2_000
                assert found == list(range(found[0], 2_001))
            seen: dict[int, list[int]] = {table: [] for table in tables}
            for entry in wal.scan(REGION):
                seen[entry.table_id].append(entry.sequence)
            for sequences in seen.values():
                assert sequences == list(range(sequences[0], 2_001))
    finally:
        stop.set()
        deleter.join(LONG_S)
    assert failures == []


# --- Cold tables ------------------------------------------------------------------------------------------------------


def test_cold_table_that_pins_the_log_is_named_and_the_database_asked_to_flush_it(world: World) -> None:
    asked: list[tuple[int, list[int]]] = []
    wal = world.node(pinned_bytes_max=10_000, on_pinned=lambda region, tables: asked.append((region, list(tables))))
    cold, hot = 1, 2
    wal.write(REGION, cold, payloads(cold, 1, 1))
    wal.write(REGION, hot, payloads(hot, 1, 200, 200))
    wal.mark_delete(REGION, hot, 200)

    wal.clean_region(REGION)

    assert asked == [(REGION, [cold])]
    wal.mark_delete(REGION, cold, 1)
    wal.clean_region(REGION)
    assert asked == [(REGION, [cold])]
    assert world.earliest(world.data_topic(REGION)) == world.latest(world.data_topic(REGION))


def count_records_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by the size of each chunk that the WAL gets from the log from now on."""
    read, counted = Queue.read, list[int]()

    def counting(queue: Queue, topic: str, start: int, end: int, bulk: bool = True) -> Iterator[list[Message]]:
        for chunk in read(queue, topic, start, end, bulk):
            counted.append(len(chunk))
            yield chunk

    monkeypatch.setattr(Queue, "read", counting)
    return counted


def test_cold_table_is_read_without_reading_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wal = world.node()
    cold, hot = 1, 2
    wal.write(REGION, cold, payloads(cold, 1, 3))
    for first in range(1, 3_001, 500):
        wal.write(REGION, hot, payloads(hot, first, 500, 200))
    wal.write(REGION, cold, payloads(cold, 4, 3))
    read = count_records_read(monkeypatch)

    assert contents(wal.read(REGION, cold)) == expected(cold, 1, 6)

    assert sum(read) == 6


# --- Opening and closing ----------------------------------------------------------------------------------------------


def test_region_leaves_the_cache_when_it_is_closed(wal: RegionWal) -> None:
    wal.write(REGION, TABLE, payloads(TABLE, 1, 1))
    assert [region.region_id for region in wal.statistics().regions] == [REGION]

    wal.close_region(REGION)

    assert wal.statistics().regions == ()
    assert contents(wal.read(REGION, TABLE)) == expected(TABLE, 1, 1)  # and comes back when it is wanted


def test_recovery_reads_what_came_after_the_snapshot_and_not_the_log(world: World) -> None:
    first = world.node()
    for start in range(1, 5_001, 500):
        first.write(REGION, TABLE, payloads(TABLE, start, 500, 100))
    first.close_region(REGION)  # leaves a snapshot
    first.write(REGION, TABLE, payloads(TABLE, 5_001, 7, 100))

    second = world.node()
    second.open_region(REGION)

    [region] = second.statistics().regions
    assert region.recovery_records_read < 50
    assert second.sequence_num(REGION, TABLE) == 5_007
    assert contents(second.read(REGION, TABLE, Bound.included(4_999))) == expected(TABLE, 4_999, 5_007, 100)


# --- Large entries ----------------------------------------------------------------------------------------------------


def test_entry_larger_than_a_message_may_be_is_read_back_whole(world: World) -> None:
    wal = world.node()
    large = [bytes([number]) * 3_000_000 for number in range(2)]

    assert wal.write(REGION, TABLE, [b"small", *large, b"small"]) == 4

    assert [entry.payload for entry in wal.read(REGION, TABLE)] == [b"small", *large, b"small"]
    assert [entry.payload for entry in world.node().scan(REGION)] == [b"small", *large, b"small"]
