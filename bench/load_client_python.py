"""The twin of load_client.c for machines without a compiler: same roles, same arguments, same answers.

Python costs a core long before the log does: figures made with this are lower bounds for both sides.
"""

import json
import os
import resource
import selectors
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path

from confluent_kafka import (  # pyright: ignore[reportPrivateImportUsage]
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)

from bench.rounds import percentile

STEP_S = 0.01  # coarse on purpose: a Python loop that paces finely burns the core it measures
FULL_WAIT_S = 0.005
SILENCE_S_MAX = 20.0
FLUSH_S_MAX = 60.0
CONSUMED_AT_ONCE = 10_000
ANSWER_BYTES_MAX = 4096
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}

_MADE_NS = struct.Struct("@q")
_SIZE = struct.Struct(">i")

Arguments = dict[str, str]


class ClientFailed(Exception):
    """A record was not delivered, or does not come."""


class Outcome:
    """Of everything since it was made, which says `ready`."""

    def __init__(self) -> None:
        self.samples_s: list[float] = []
        self.failed = 0
        print("ready", flush=True)
        self.begun = time.perf_counter()
        self._begun_cpu_s = _cpu_s()

    def show(self, records: int, size: int, seconds: float | None = None) -> None:
        latencies = {name: percentile(self.samples_s, share) * 1e3 for name, share in SHARES.items() if self.samples_s}
        outcome = {
            "seconds": time.perf_counter() - self.begun if seconds is None else seconds,
            "records": records,
            "bytes": size,
            "failed": self.failed,
            "cpu_s": _cpu_s() - self._begun_cpu_s,
            "latencies_ms": latencies,
        }
        if self.failed:
            raise ClientFailed(f"{self.failed} records were not delivered")
        print(json.dumps(outcome), flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# --- Producers -------------------------------------------------------------------------------------------------------


class _Sender:
    def __init__(self, arguments: Arguments, place: int = 0) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": arguments["bootstrap"],
                "acks": "all",
                "linger.ms": float(arguments["linger_ms"]),
                "message.timeout.ms": 60_000,
                "queue.buffering.max.messages": 500_000,
                "queue.buffering.max.kbytes": 65_536,
                "delivery.report.only.error": "rate" not in arguments,
            }
        )
        topic, topics = arguments["topic"], int(arguments.get("topics", 1))
        names = [topic] if topics == 1 else [f"{topic}-{number:04}" for number in range(topics)]
        self._streams = [(name, part) for name in names for part in range(int(arguments.get("partitions", 1)))]
        self.value = os.urandom(int(arguments["value_bytes"]))
        self.failed = 0
        self.records = 0
        self._place = place
        for number in range(len(self._streams)):  # connections and metadata
            self.put(number, self.value)
        self.flush()

    def put(self, number: int, value: bytes, made_s: float = 0.0, samples_s: list[float] | None = None) -> None:
        def report(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self.failed += 1
            elif samples_s is not None:
                samples_s.append(time.perf_counter() - made_s)

        topic, partition = self._streams[number % len(self._streams)]
        while True:
            try:
                self._producer.produce(topic, value, partition=partition, on_delivery=report)
                return
            except BufferError:  # as much as librdkafka holds
                self._producer.poll(FULL_WAIT_S)

    def send_until(self, end: float, records_max: int) -> None:
        while self.records < records_max and time.perf_counter() < end:
            self.put(self.records + self._place, self.value)
            self.records += 1
        self.flush()

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self) -> None:
        if left := self._producer.flush(FLUSH_S_MAX):
            raise ClientFailed(f"{left} records are not acknowledged after {FLUSH_S_MAX:.0f} s")


def produce(arguments: Arguments) -> None:
    count, value_bytes = int(arguments["producers"]), int(arguments["value_bytes"])
    senders = [_Sender(arguments, place) for place in range(count)]
    records_max = int(float(arguments["bytes_max"]) / value_bytes / count)
    outcome = Outcome()
    end = outcome.begun + float(arguments["seconds"])
    threads = [threading.Thread(target=sender.send_until, args=(end, records_max)) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.failed = sum(sender.failed for sender in senders)
    records = sum(sender.records for sender in senders)
    outcome.show(records, records * value_bytes)


def pace(arguments: Arguments) -> None:
    rate, seconds = float(arguments["rate"]), float(arguments["seconds"])
    sender = _Sender(arguments)
    padding = sender.value[_MADE_NS.size :]
    outcome = Outcome()
    counted_from = outcome.begun + float(arguments["skip_seconds"])
    sent = 0
    for step in range(1, int(seconds / STEP_S) + 1):
        while sent < int(rate * step * STEP_S):
            made_s = time.perf_counter()
            value = _MADE_NS.pack(int(made_s * 1e9)) + padding
            sender.put(0, value, made_s, outcome.samples_s if made_s >= counted_from else None)
            sent += 1
        while (left_s := outcome.begun + step * STEP_S - time.perf_counter()) > 0:
            sender.poll(left_s)
    sender.flush()
    outcome.failed = sender.failed
    outcome.show(sent, sent * len(sender.value))


# --- Consumers -------------------------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, arguments: Arguments, partitions: int, *, from_the_end: bool) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": arguments["bootstrap"],
                "group.id": "bench",  # librdkafka wants one, and does not join it when partitions are assigned
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "fetch.queue.backoff.ms": 1,
            }
        )
        self.records = self.bytes = 0
        assigned: list[TopicPartition] = []
        for number in range(partitions):
            place = TopicPartition(arguments["topic"], number, OFFSET_BEGINNING)
            if from_the_end:
                place.offset = self._consumer.get_watermark_offsets(place, SILENCE_S_MAX)[1]
            assigned.append(place)
        self._consumer.assign(assigned)

    def take(self, wait_s: float, count_max: int = 1, samples_s: list[float] | None = None) -> int:
        """Waits until there are so many, or for so long."""
        messages = self._consumer.consume(min(count_max, CONSUMED_AT_ONCE), wait_s)
        for message in messages:
            if (error := message.error()) is not None:
                raise ClientFailed(str(error))
            value = message.value()
            assert isinstance(value, bytes)
            self.bytes += len(value)
            if samples_s is not None:
                samples_s.append(time.perf_counter() - _MADE_NS.unpack_from(value)[0] / 1e9)
        self.records += len(messages)
        return len(messages)


def consume(arguments: Arguments) -> None:
    wanted, first_records, first_bytes = int(arguments["records"]), 0, 0
    outcome = Outcome()
    reader = _Reader(arguments, int(arguments["partitions"]), from_the_end=False)
    while reader.records < wanted:
        before = reader.records
        if not reader.take(SILENCE_S_MAX, wanted - reader.records if before else 1):
            raise ClientFailed(f"nothing comes after {reader.records} records")
        if not before:  # connections are made: now it counts
            outcome.begun = time.perf_counter()
            first_records, first_bytes = reader.records, reader.bytes
    outcome.show(reader.records - first_records, reader.bytes - first_bytes)


def follow(arguments: Arguments) -> None:
    count, skip, seconds = (float(arguments[name]) for name in ("count", "skip", "seconds"))
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    readers = [_Reader(arguments, 1, from_the_end=True) for _ in range(int(arguments["consumers"]))]
    for reader in readers:
        reader.take(0.3)
    outcome = Outcome()

    def run(reader: _Reader, samples_s: list[float]) -> None:
        end = outcome.begun + seconds
        while not ended.is_set() and reader.records < count and time.perf_counter() < end:
            reader.take(0.1, samples_s=samples_s if reader.records >= skip else None)

    threads = [
        threading.Thread(target=run, args=(reader, [] if number else outcome.samples_s))
        for number, reader in enumerate(readers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    outcome.show(sum(reader.records for reader in readers), sum(reader.bytes for reader in readers))


# --- Ready-made requests ---------------------------------------------------------------------------------------------


class _Connection:
    def __init__(self, address: tuple[str, int], frame: bytes, error_at: int) -> None:
        self.socket = socket.create_connection(address, SILENCE_S_MAX)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = frame
        self._error_at = error_at
        self._answer = b""
        self.sent_at = 0.0

    def ask(self) -> None:
        self.sent_at, self._answer = time.perf_counter(), b""
        self.socket.sendall(self._frame)

    def hear(self) -> bool:
        """Whether the answer is whole."""
        received = self.socket.recv(ANSWER_BYTES_MAX)
        if not received:
            raise ClientFailed("the other side has closed the connection")
        self._answer += received
        if len(self._answer) < _SIZE.size or len(self._answer) < _SIZE.size + _SIZE.unpack_from(self._answer)[0]:
            return False
        if error := int.from_bytes(self._answer[_SIZE.size + self._error_at :][:2], "big"):
            raise ClientFailed(f"produce: refused, error {error}")
        return True


def requests(arguments: Arguments) -> None:
    frame = Path(arguments["frame"]).read_bytes()
    address = (arguments["host"], int(arguments["port"]))
    error_at = int(arguments["error_at"])
    connections = [_Connection(address, frame, error_at) for _ in range(int(arguments["connections"]))]
    outcome = Outcome()
    counted_from = last = outcome.begun + float(arguments["skip_seconds"])
    end = counted_from + float(arguments["seconds"])
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.ask()
        while selector.get_map():
            if not (ready := selector.select(SILENCE_S_MAX)):
                raise ClientFailed("no answer comes")
            for key, _ in ready:
                connection: _Connection = key.data
                if not connection.hear():
                    continue
                now = time.perf_counter()
                if connection.sent_at >= counted_from:
                    outcome.samples_s.append(now - connection.sent_at)
                    last = now
                if now < end:
                    connection.ask()
                else:
                    selector.unregister(connection.socket)
    answered = len(outcome.samples_s)
    outcome.show(answered, answered * len(frame), last - counted_from)


ROLES = {"produce": produce, "pace": pace, "follow": follow, "consume": consume, "requests": requests}


def main(given: list[str]) -> None:
    role, *arguments = given
    ROLES[role](dict(argument.split("=", 1) for argument in arguments))
    sys.stdout.flush()
    os._exit(0)  # librdkafka's orderly end would take longer than a round


if __name__ == "__main__":
    main(sys.argv[1:])
