"""Replay deals a region out to its tables; and what the log's client is handed, is accounted for."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tidelog.regionwal import Entry, Settings
from tidelog.regionwal.log import Delivery, Log, Record
from tidelog.regionwal.reading import Chunk
from tidelog.regionwal.replay import Replay

from .memory_log import message

WAIT_S = 30


def chunks(tables: int, rounds: int) -> Iterator[Chunk]:
    for turn in range(rounds):
        yield [[Entry(table, 3 * turn + n, b"row", 0) for n in (1, 2, 3)] for table in range(tables)]


@pytest.mark.parametrize("parallel", [1, 4])
def test_each_table_gets_all_its_entries_in_order(parallel: int) -> None:
    got: dict[int, list[int]] = {table: [] for table in range(10)}

    def handler(entries: Sequence[Entry]) -> None:
        got[entries[0].table_id] += [entry.sequence for entry in entries]

    result = Replay(dict.fromkeys(range(10), handler), parallel, 2, 10_000).run(chunks(10, 20))

    assert (result.entries, result.tables, result.skipped, result.failed) == (600, 10, {}, {})
    assert all(sequences == list(range(1, 61)) for sequences in got.values())


@pytest.mark.parametrize("parallel", [1, 4])
def test_failing_table_stops_alone_and_unknown_ones_are_counted(parallel: int) -> None:
    done = {1: 0, 2: 0}

    def fine(entries: Sequence[Entry]) -> None:
        done[1] += len(entries)

    def fails(entries: Sequence[Entry]) -> None:
        done[2] += len(entries)
        if done[2] > 5:
            raise ValueError("full")

    handlers = {1: fine, 2: fails}
    result = Replay(handlers.get, parallel, 3, 10_000).run(chunks(3, 10))

    assert done == {1: 30, 2: 6}
    assert result.skipped == {0: 30}
    assert list(result.failed) == [2]
    assert not result.complete
    assert result.entries == 30


@pytest.mark.parametrize("parallel", [1, 3])
def test_handler_never_gets_more_than_a_batch(parallel: int) -> None:
    sizes: list[int] = []
    stretch = [Entry(1, n, b"row", n) for n in range(1, 1001)]

    Replay({1: lambda entries: sizes.append(len(entries))}, parallel, 300, 10_000).run([[stretch]])

    assert sizes == [300, 300, 300, 100]


def test_tables_run_at_the_same_time() -> None:
    both = threading.Barrier(2)  # each handler waits for the other: one after the other would never end

    def handler(_entries: Sequence[Entry]) -> None:
        both.wait(WAIT_S)

    result = Replay(dict.fromkeys(range(2), handler), 2, 100, 10_000).run(chunks(2, 1))

    assert result.complete


def test_reader_is_never_far_ahead_of_slow_tables() -> None:
    read = handled = ahead_max = 0

    def counted() -> Iterator[Chunk]:
        nonlocal read, ahead_max
        for chunk in chunks(2, 200):
            ahead_max = max(ahead_max, read - handled)
            read += sum(len(entry.payload) for stretch in chunk for entry in stretch)
            yield chunk

    def slow(entries: Sequence[Entry]) -> None:
        nonlocal handled
        time.sleep(0.0005)  # slower than the reader; nothing is waited for
        with counting:
            handled += sum(len(entry.payload) for entry in entries)

    counting = threading.Lock()
    Replay(dict.fromkeys(range(2), slow), 2, 3, 60).run(counted())

    assert handled == read
    assert ahead_max < 60 + 4 * 9  # the bound, what passed it last, and what two handlers hold


def test_reading_that_fails_ends_the_replay() -> None:
    def broken() -> Iterator[Chunk]:
        yield from chunks(1, 1)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Replay({0: lambda _entries: None}, 3, 100, 10_000).run(broken())


# --- what the client is handed ---------------------------------------------------------------------------------------

RECORDS: list[Record] = [(b"key", b"value", [])] * 5


class Client:
    """A producer that takes so many records, then does something else."""

    def __init__(self, takes: int, then: BaseException) -> None:
        self.reports: list[Any] = []
        self._takes = takes
        self._then = then

    def produce(self, *arguments: Any, headers: Any) -> None:
        if len(self.reports) == self._takes:
            raise self._then
        self.reports.append(arguments[4])


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log(Settings(bootstrap="127.0.0.1:1"))
    yield made
    made.close()


def send(log: Log, client: Client) -> tuple[Delivery, list[bool]]:
    done: list[bool] = []
    delivery = Delivery(len(RECORDS), lambda: done.append(True))
    log._producer = client  # type: ignore[assignment]
    try:
        log.send("topic", RECORDS, delivery, deadline=0.0)
    finally:
        log._producer = None
    return delivery, done


@pytest.mark.parametrize(
    "then", [BufferError(), KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))], ids=["full", "refused"]
)
def test_delivery_is_done_when_what_was_taken_is_reported(log: Log, then: BaseException) -> None:
    client = Client(2, then)
    delivery, done = send(log, client)
    assert delivery.error is not None
    assert not done

    for report in client.reports:
        report(None, message("topic", 5))

    assert done == [True]


def test_interrupted_caller_leaves_nothing_that_is_never_done(log: Log) -> None:
    done: list[bool] = []
    delivery = Delivery(len(RECORDS), lambda: done.append(True))
    client = Client(2, KeyboardInterrupt())
    log._producer = client  # type: ignore[assignment]

    with pytest.raises(KeyboardInterrupt):
        log.send("topic", RECORDS, delivery, deadline=0.0)
    log._producer = None
    for report in client.reports:
        report(None, message("topic", 5))

    assert done == [True]
    assert delivery.error is not None


def test_delivery_of_nothing_that_was_taken_is_done_at_once(log: Log) -> None:
    delivery, done = send(log, Client(0, BufferError()))

    assert done == [True]
    assert delivery.error is not None


def test_client_that_is_ended_by_a_fatal_error_is_replaced(log: Log) -> None:
    client = Client(0, KafkaException(KafkaError(KafkaError._FATAL)))
    delivery = Delivery(len(RECORDS), lambda: None)
    log._producer = client  # type: ignore[assignment]

    log.send("topic", RECORDS, delivery, deadline=0.0)

    assert log._producer is None
