"""librdkafka's side of a measurement, a role a process: `python -m bench.clients ROLE BOOTSTRAP TOPIC …`.

    produce BYTES ROUNDS [PARTITIONS]             as fast as it goes, each round until everything is acknowledged
    consume BYTES ROUNDS [PARTITIONS]             from the beginning, each round anew
    pace    RATE SECONDS [PARTITIONS SAMPLED LINGER_MS]   so many records a second, in steps; how long until the
                                                  delivery report, of one record in so many
    follow  COUNT SKIPPED                         until so many records have come; how long each took since it was made,
                                                  but for the first

A role prints `ready` when it is about to begin and one line of JSON in the end (`Outcome`). Values have 1 KiB and begin
with the time they were made, on a clock that all processes share. A topic's partitions get them in turn.
"""

import json
import os
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

VALUE_BYTES = 1024
LINGER_MS = 5  # librdkafka's default
STEP_S = 0.01  # coarse on purpose: a Python loop that paces finely burns the core it measures
SKIPPED_S = 0.5  # of a paced run: connections and caches get warm
CONSUMED_AT_ONCE = 10_000
SILENCE_S_MAX = 15.0
FLUSH_S_MAX = 20.0

_MADE_NS = struct.Struct("@q")


@dataclass
class Outcome:
    seconds: list[float] = field(default_factory=list)
    """Of each round."""
    latencies_ms: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    """What the client itself used for all rounds."""


class ClientFailed(Exception):
    """A record was not delivered, or does not come."""


def _producer(bootstrap: str, linger_ms: int, **more: Any) -> Producer:
    return Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": linger_ms, **more})


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",  # librdkafka wants one, and does not join it when partitions are assigned
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.queue.backoff.ms": 1,  # by default it pauses for a second whenever its queue is full
        }
    )


def _say_ready() -> None:
    print("ready", flush=True)


def _fail_undelivered(error: KafkaError | None, _message: Message) -> None:
    if error is not None:
        raise ClientFailed(f"a record was not delivered: {error}")


def _flush(producer: Producer) -> None:
    if left := producer.flush(FLUSH_S_MAX):
        raise ClientFailed(f"{left} records are not acknowledged after {FLUSH_S_MAX:.0f} s")


def produce(bootstrap: str, topic: str, round_bytes: int, rounds: int, partitions: int = 1) -> Outcome:
    outcome = Outcome()
    producer = _producer(bootstrap, LINGER_MS, **{"delivery.report.only.error": True, "on_delivery": _fail_undelivered})
    value = os.urandom(VALUE_BYTES)
    _say_ready()
    begun_cpu_s = time.process_time()
    for _ in range(rounds):
        begun = time.perf_counter()
        for number in range(round_bytes // VALUE_BYTES):
            while True:
                try:
                    producer.produce(topic, value, partition=number % partitions)
                    break
                except BufferError:  # as much as librdkafka holds
                    producer.poll(0.01)
        _flush(producer)
        outcome.seconds.append(time.perf_counter() - begun)
    outcome.cpu_s = time.process_time() - begun_cpu_s
    return outcome


def consume(bootstrap: str, topic: str, round_bytes: int, rounds: int, partitions: int = 1) -> Outcome:
    outcome = Outcome()
    consumer = _consumer(bootstrap)
    _say_ready()
    begun_cpu_s = time.process_time()
    for _ in range(rounds):
        begun = time.perf_counter()
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
        left = round_bytes // VALUE_BYTES
        while left > 0:
            messages = consumer.consume(min(left, CONSUMED_AT_ONCE), SILENCE_S_MAX)
            if not messages or any(message.error() is not None for message in messages):
                raise ClientFailed(f"{left} records do not come: {[str(message.error()) for message in messages[:1]]}")
            left -= len(messages)
        outcome.seconds.append(time.perf_counter() - begun)
        consumer.unassign()
    outcome.cpu_s = time.process_time() - begun_cpu_s
    consumer.close()
    return outcome


def pace(
    bootstrap: str, topic: str, rate: int, seconds: int, partitions: int = 1, sampled: int = 1, linger_ms: int = 0
) -> Outcome:
    outcome = Outcome()
    producer = _producer(bootstrap, linger_ms)
    padding = os.urandom(VALUE_BYTES - _MADE_NS.size)

    def report(error: KafkaError | None, message: Message) -> None:
        _fail_undelivered(error, message)
        outcome.latencies_ms.append((message.latency() or 0.0) * 1e3)

    _say_ready()
    step_records, number = int(rate * STEP_S), 0
    begun_cpu_s, next_step = time.process_time(), time.perf_counter()
    for _ in range(int(seconds / STEP_S)):
        for _ in range(step_records):
            value = _MADE_NS.pack(time.perf_counter_ns()) + padding
            if number % sampled:
                producer.produce(topic, value, partition=number % partitions)
            else:
                producer.produce(topic, value, partition=number % partitions, on_delivery=report)
            number += 1
        next_step += STEP_S
        while (left_s := next_step - time.perf_counter()) > 0:
            producer.poll(left_s)
    _flush(producer)
    outcome.cpu_s = time.process_time() - begun_cpu_s
    outcome.latencies_ms = outcome.latencies_ms[int(SKIPPED_S * rate / sampled) :]
    return outcome


def follow(bootstrap: str, topic: str, count: int, skipped: int) -> Outcome:
    outcome = Outcome()
    consumer = _consumer(bootstrap)
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    consumer.poll(0.5)  # nothing is there yet, but the consumer waits for it from now on
    _say_ready()
    begun_cpu_s = time.process_time()
    while len(outcome.latencies_ms) < count:
        message = consumer.poll(SILENCE_S_MAX)
        if message is None or message.error() is not None:
            raise ClientFailed(f"after {len(outcome.latencies_ms)} records: {message and message.error()}")
        value = message.value()
        assert isinstance(value, bytes)
        outcome.latencies_ms.append((time.perf_counter_ns() - _MADE_NS.unpack_from(value)[0]) / 1e6)
    outcome.cpu_s = time.process_time() - begun_cpu_s
    outcome.latencies_ms = outcome.latencies_ms[skipped:]
    consumer.close()
    return outcome


ROLES = {"produce": produce, "consume": consume, "pace": pace, "follow": follow}


def main(arguments: list[str]) -> None:
    role, bootstrap, topic, *numbers = arguments
    outcome = ROLES[role](bootstrap, topic, *map(int, numbers))
    print(json.dumps(asdict(outcome)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
