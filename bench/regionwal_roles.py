"""The two sides of the region WAL's measurements, a role a process: `python -m bench.regionwal_roles ROLE BOOTSTRAP …`.

    write   NAMESPACE BATCHES THREADS     rows to a thousand tables in turn, a batch a call, durable when it returns;
            [crash]                       it ends without closing anything
    produce TOPIC BATCHES [flush]         the same keys and values with librdkafka alone, which keeps as many in flight
                                          as it likes; `flush`: it too waits for each batch
    recover NAMESPACE                     open the region, and say what that took and read
    replay  NAMESPACE                     open it, then feed every table its entries
    consume TOPIC COUNT                   the same bytes with librdkafka alone
    map     COUNT                         memory of the map from so many sequences to their offsets

A role prints `ready` when it is about to begin and one line of JSON in the end.
"""

import json
import os
import sys
import time
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tidelog.regionwal import Entry, RegionWal, Settings

REGION = 1
TABLES = 1_000
ROW_BYTES = 200
BATCH_ROWS = 500
KEY_BYTES = 26
VALUE_BYTES = 1 + ROW_BYTES  # with HoraeDB's version byte
NEVER_S = 0.0
REPLAY_PARALLEL = 1  # what one core does
SILENCE_S_MAX = 15.0
FLUSH_S_MAX = 60.0
CONSUMED_AT_ONCE = 10_000

Outcome = dict[str, Any]


class RoleFailed(Exception):
    """A record was not delivered, or does not come."""


class _Clock:
    """Time and CPU since it was made."""

    def __init__(self) -> None:
        print("ready", flush=True)
        self._begun, self._begun_cpu = time.perf_counter(), time.process_time()

    def read(self) -> Outcome:
        return {
            "seconds": time.perf_counter() - self._begun,
            "cpu_s": time.process_time() - self._begun_cpu,
        }


def _settings(bootstrap: str, namespace: str) -> Settings:
    return Settings(bootstrap=bootstrap, namespace=namespace, clean_period_s=NEVER_S)


def write(bootstrap: str, namespace: str, batches: str, threads: str, end: str = "close") -> Outcome:
    rows = [os.urandom(ROW_BYTES) for _ in range(BATCH_ROWS)]
    wal = RegionWal(_settings(bootstrap, namespace))
    wal.open_region(REGION)
    latencies_s: list[float] = []

    def write_one(number: int) -> None:
        begun = time.perf_counter()
        wal.write(REGION, number % TABLES, rows)
        latencies_s.append(time.perf_counter() - begun)

    clock = _Clock()
    with ThreadPoolExecutor(int(threads)) as pool:
        for _ in pool.map(write_one, range(int(batches))):
            pass
    outcome = {**clock.read(), "latencies_ms": sorted(latency_s * 1e3 for latency_s in latencies_s)}
    if end == "crash":
        _end_without_a_word(outcome)
    wal.close()
    return outcome


def _end_without_a_word(outcome: Outcome) -> NoReturn:
    """No snapshot, no goodbye."""
    os.write(1, json.dumps(outcome).encode() + b"\n")
    os._exit(0)


def produce(bootstrap: str, topic: str, batches: str, flush: str = "") -> Outcome:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0 if flush else 5,
            "delivery.report.only.error": True,
            "on_delivery": _fail_undelivered,
        }
    )
    rows = [(os.urandom(KEY_BYTES), os.urandom(VALUE_BYTES)) for _ in range(BATCH_ROWS)]
    clock = _Clock()
    for _ in range(int(batches)):
        for key, value in rows:
            while True:
                try:
                    producer.produce(topic, value, key, partition=0)
                    break
                except BufferError:  # as much as librdkafka holds
                    producer.poll(0.01)
        if flush:
            _flush(producer)
    _flush(producer)
    return clock.read()


def _fail_undelivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise RoleFailed(f"a record was not delivered: {error}")


def _flush(producer: Producer) -> None:
    if left := producer.flush(FLUSH_S_MAX):
        raise RoleFailed(f"{left} records are not acknowledged after {FLUSH_S_MAX:.0f} s")


def recover(bootstrap: str, namespace: str) -> Outcome:
    wal = RegionWal(_settings(bootstrap, namespace))
    clock = _Clock()
    wal.open_region(REGION)
    outcome = clock.read()
    [region] = wal.statistics(REGION).regions
    live = sum(table.live_entries for table in region.tables)
    read = {"bytes": region.recovery_bytes_read, "records": region.recovery_records_read}
    _end_without_a_word({**outcome, "live": live, **read})


def replay(bootstrap: str, namespace: str) -> Outcome:
    wal = RegionWal(_settings(bootstrap, namespace))
    wal.open_region(REGION)
    seen = {"entries": 0, "bytes": 0}

    def take(entries: Sequence[Entry]) -> None:
        seen["entries"] += len(entries)
        seen["bytes"] += sum(len(entry.payload) for entry in entries)

    clock = _Clock()
    wal.replay(REGION, lambda _table: take, parallel=REPLAY_PARALLEL)
    outcome = clock.read()
    wal.close()
    return {**outcome, **seen}


def consume(bootstrap: str, topic: str, count: str) -> Outcome:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",  # librdkafka wants one, and does not join it when partitions are assigned
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 1,  # by default it pauses for a second whenever its queue is full
        }
    )
    clock = _Clock()
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    left, size = int(count), 0
    while left > 0:
        messages = consumer.consume(min(left, CONSUMED_AT_ONCE), SILENCE_S_MAX)
        if not messages or any(message.error() is not None for message in messages):
            raise RoleFailed(f"{left} records do not come: {[str(message.error()) for message in messages[:1]]}")
        left -= len(messages)
        size += sum(len(message) for message in messages)
    outcome = clock.read()
    consumer.close()
    return {**outcome, "bytes": size}


def map_memory(count: str) -> Outcome:
    from tidelog.regionwal.sequence_map import SequenceMap  # noqa: PLC0415 - only this role looks inside

    print("ready", flush=True)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    held = SequenceMap()
    for number in range(int(count)):
        held.append(number + 1, number)
    after, most = tracemalloc.get_traced_memory()
    return {"bytes": after - before, "most_bytes": most - before, "held": len(held)}


ROLES = {
    "write": write,
    "produce": produce,
    "recover": recover,
    "replay": replay,
    "consume": consume,
    "map": map_memory,
}


def main(arguments: list[str]) -> None:
    role, *rest = arguments
    print(json.dumps(ROLES[role](*rest)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
