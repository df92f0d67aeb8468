"""A log in memory that can do to a client whatever a network can: lose records, lose answers, deliver late and anyhow.

`MemoryBroker` is the log, `MemoryLog` one process's access to it, with the methods of `tidelog.regionwal.log.Log`. Each
record that is sent meets a *fate*; the default is that all goes well. Everything happens on the calling thread, so a
test, or a seed, decides every interleaving.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, Message

from tidelog.regionwal.errors import Timeout
from tidelog.regionwal.log import Delivery, Record
from tidelog.regionwal.log_errors import OutOfRange

TIMED_OUT = KafkaError(KafkaError._MSG_TIMED_OUT)
NO_OFFSET = -1001
ASK_S_MAX = 30.0
CHUNK_RECORDS = 3  # small, so that reads meet chunk borders


class Fate(Enum):
    FINE = "it lands and the client hears of it"
    ANSWER_LOST = "it lands and the client hears of a time-out"
    LOST = "it never lands"
    LATE = "the client hears of a time-out, and it lands some time later"


class MemoryBroker:
    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.earliest: dict[str, int] = {}
        self.late: list[tuple[str, Record]] = []

    def append(self, topic: str, record: Record) -> int:
        self.records[topic].append(record)
        return len(self.records[topic]) - 1

    def arrive(self, index: int = 0) -> None:
        """A late record lands."""
        self.append(*self.late.pop(index))


def all_fine(_topic: str) -> Fate:
    return Fate.FINE


class MemoryLog:
    def __init__(self, broker: MemoryBroker, fate: Callable[[str], Fate] = all_fine) -> None:
        self.broker = broker
        self.fate = fate
        self.before: Callable[[str], None] = lambda _call: None  # called before each call, with its name
        self.hold = False  # keep delivery reports back until `release`
        self.records_read = 0
        self._reports: list[tuple[Delivery, KafkaError | None, Message]] = []

    def topics(self) -> dict[str, int]:
        return dict.fromkeys(self.broker.records, 1)

    def ensure_topics(self, topics: Sequence[str], _deadline: float) -> None:
        self.before("ensure_topics")
        for topic in topics:
            self.broker.records.setdefault(topic, [])
            self.broker.earliest.setdefault(topic, 0)

    def read_deadline(self) -> float:
        return time.monotonic() + ASK_S_MAX

    def watermarks(self, topic: str, _deadline: float) -> tuple[int, int]:
        self.before("watermarks")
        return self.broker.earliest[topic], len(self.broker.records[topic])

    def delete_before(self, topic: str, offset: int) -> None:
        self.before("delete_before")
        assert offset <= len(self.broker.records[topic])
        self.broker.earliest[topic] = max(offset, self.broker.earliest[topic])

    def send(self, topic: str, records: Iterable[Record], delivery: Delivery, _deadline: float) -> None:
        self.before("send")
        for record in records:
            fate = self.fate(topic)
            offset = NO_OFFSET
            if fate in (Fate.FINE, Fate.ANSWER_LOST):
                offset = self.broker.append(topic, record)
            elif fate is Fate.LATE:
                self.broker.late.append((topic, record))
            error = None if fate is Fate.FINE else TIMED_OUT
            self._reports.append((delivery, error, message(topic, offset)))
        if not self.hold:
            self.report()

    @property
    def waiting(self) -> int:
        """Records that were sent and not reported."""
        return len(self._reports)

    def release(self) -> None:
        self.hold = False
        self.report()

    def report(self) -> None:
        """Tell of what was sent, as the client's polling thread does."""
        reports, self._reports = self._reports, []
        for delivery, error, sent in reports:
            delivery.report(error, sent)

    def write(self, topic: str, records: Sequence[Record]) -> int:
        done: list[bool] = []
        delivery = Delivery(len(records), lambda: done.append(True))
        held, self.hold = self.hold, False
        self.send(topic, records, delivery, 0.0)
        self.hold = held
        assert done
        if delivery.error is not None:
            raise Timeout(f"cannot write to {topic}")
        return delivery.last_offset

    def read(self, topic: str, start: int, end: int, bulk: bool = True) -> Iterator[list[Message]]:
        self.before("read")
        while start < end:
            if start < self.broker.earliest[topic]:
                raise OutOfRange(f"{topic} has nothing at offset {start}")
            chunk = [
                message(topic, offset, *self.broker.records[topic][offset])
                for offset in range(start, min(end, start + CHUNK_RECORDS))
            ]
            start += len(chunk)
            self.records_read += len(chunk)
            yield chunk
            self.before("read")

    def close(self) -> None:
        pass


def message(topic: str, offset: int, key: bytes = b"", value: bytes = b"", headers: Any = None) -> Message:
    return Message(topic=topic, partition=0, offset=offset, key=key, value=value, headers=headers)


class InlineExecutor(Executor):
    """Does at once, on the calling thread, what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class LaterExecutor(Executor):
    """Does nothing until it is told to."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], Any]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self._waiting.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
