"""The log, as much of it as a region needs: everything this package asks of a Kafka-compatible cluster is asked here.

    ensure_topics, watermarks, send (with delivery reports), write, read (a range of offsets), delete_before, topics

One producer serves all regions, with one thread that hands out its delivery reports. Readers are consumers without a
group, taken from a small pool, because making one costs a connection. Every call ends: it is given a deadline, or takes
its time-out from the settings. Nothing waits for a record that may never come: the end of a range comes from the log's
high watermark or from a delivery report.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidelog.regionwal.errors import Closed, LogFailed, RegionWalError, Timeout
from tidelog.regionwal.formats import Headers
from tidelog.regionwal.log_errors import TIMEOUTS, OutOfRange, code_of, failure, is_passing
from tidelog.regionwal.settings import KIB, MIB, Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.1
MESSAGE_BYTES = 1_000_000  # of a batch, unless an entry alone needs more: the log's own limit is a little higher
ANSWER_S_MIN, ANSWER_S_MAX = 0.5, 10.0
RETRY_S = 0.05
LINGER_MS = 1  # long enough for the writes that wait to leave together, short enough for one that is alone
QUEUE_MESSAGES_MAX = 1_000_000
READERS_IDLE_MAX = 4  # of each kind
READ_CHUNK_RECORDS_MAX = 2_000
READ_WAIT_S = 0.05  # how long a chunk may wait to become full
FETCH_WAIT_MS = 5  # at the end of the log a fetch waits so long, and holds up the next read of the same reader
TOPIC_CONFIG = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}

Record = tuple[bytes, bytes, Headers]
"""Key, value, headers."""


class Delivery:
    """What became of a group of records, in one place; `done` is called once, when nothing of it is under way.

    Reports come on the log's one polling thread, so counting them needs no lock.
    """

    __slots__ = ("_done", "_expected", "_reported", "error", "last_offset")

    def __init__(self, records: int, done: Callable[[], None]) -> None:
        self._expected = records
        self._reported = 0
        self._done = done
        self.error: KafkaError | None = None
        self.last_offset = -1

    def report(self, error: KafkaError | None, message: Message) -> None:
        self._reported += 1
        if error is not None:
            self.error = self.error or error
        if self._reported == self._expected:
            if error is None:
                self.last_offset = offset_of(message)
            self._done()

    def cut(self, records: int, error: KafkaError) -> None:
        """Only so many records were handed to the client. `done` may be called twice by this, at the same time."""
        self.error = self.error or error
        self._expected = records
        if self._reported == records:
            self._done()


class Log:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        common: dict[str, Any] = {"bootstrap.servers": settings.bootstrap, "client.id": "regionwal"}
        common |= {"logger": logger, "error_cb": _log_error, "log_level": 3}
        self._common = common | dict(settings.client)
        self._admin: AdminClient | None = None
        self._closed = False
        self._pool_lock = threading.Lock()
        self._idle: dict[bool, list[Consumer]] = {False: [], True: []}
        self._producer: Producer | None = None
        self._clients_lock = threading.Lock()
        self._poller: threading.Thread | None = None
        self._room = threading.Event()

    # --- topics ------------------------------------------------------------------------------------------------------

    def _admin_client(self) -> AdminClient:
        with self._clients_lock:
            if self._closed:
                raise Closed("the region WAL is closed")
            if self._admin is None:
                self._admin = AdminClient(self._common)
            return self._admin

    def topics(self) -> dict[str, int]:
        """The names of all topics, with their partitions."""
        admin, timeout_s = self._admin_client(), self._settings.read_timeout_s
        metadata = self._ask(lambda: admin.list_topics(timeout=timeout_s), "list topics")
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def ensure_topics(self, topics: Sequence[str], deadline: float) -> None:
        """Create those that are not there; return when they can be used."""
        admin = self._admin_client()
        metadata = self._ask(lambda: admin.list_topics(timeout=_left(deadline)), "list topics")
        found = {name: len(each.partitions) for name, each in metadata.topics.items() if each.error is None}
        for topic in topics:
            if found.get(topic, 1) != 1:
                raise LogFailed(f"topic {topic} has {found[topic]} partitions, a region's topic has one")
        replicas = min(self._settings.replication_factor, max(1, len(metadata.brokers)))
        missing = [
            NewTopic(topic, num_partitions=1, replication_factor=replicas, config=TOPIC_CONFIG)
            for topic in topics
            if topic not in found
        ]
        if not missing:
            return
        for topic, future in admin.create_topics(missing, operation_timeout=_left(deadline)).items():
            try:
                self._ask(lambda future=future: future.result(timeout=_left(deadline)), f"create topic {topic}")
            except LogFailed as error:
                if code_of(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        for topic in topics:
            self.watermarks(topic, deadline)

    def read_deadline(self) -> float:
        return time.monotonic() + self._settings.read_timeout_s

    def watermarks(self, topic: str, deadline: float) -> tuple[int, int]:
        """The earliest offset, and the one after the last committed record."""
        while True:
            try:
                with self._reader(bulk=False) as reader:
                    return self._ask(
                        lambda: reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=_left(deadline)),
                        f"ask for the ends of {topic}",
                    )
            except RegionWalError as error:  # a topic that was just created, or whose leader just changed
                if time.monotonic() + RETRY_S >= deadline or not is_passing(error):
                    raise
                time.sleep(RETRY_S)

    def delete_before(self, topic: str, offset: int) -> None:
        """Remove the records below an offset."""
        timeout = self._settings.read_timeout_s
        partition = TopicPartition(topic, 0, offset)
        futures = self._admin_client().delete_records([partition], request_timeout=timeout, operation_timeout=timeout)
        future = next(iter(futures.values()))
        self._ask(lambda: future.result(timeout=timeout), f"delete the records of {topic} below {offset}")

    # --- writing -----------------------------------------------------------------------------------------------------

    def producer(self) -> Producer:
        with self._clients_lock:
            if self._closed:
                raise Closed("the region WAL is closed")
            if self._producer is None:
                settings = self._settings
                defaults: dict[str, Any] = {
                    "linger.ms": LINGER_MS,
                    "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                    "queue.buffering.max.kbytes": max(1, settings.write_queue_bytes_max // KIB),
                    "message.max.bytes": max(MESSAGE_BYTES, settings.entry_record_bytes_max + 64 * KIB),
                    "socket.nagle.disable": True,
                    "socket.timeout.ms": _answer_ms(settings.write_timeout_s),
                    "request.timeout.ms": _answer_ms(settings.write_timeout_s),
                }
                required: dict[str, Any] = {
                    "enable.idempotence": True,  # no duplicates, no reordering within one producer's life
                    "acks": "all",
                    "message.timeout.ms": int(settings.write_timeout_s * 1000),
                }
                required["error_cb"] = self._on_producer_error
                self._producer = Producer(defaults | self._common | required)
                self._poller = threading.Thread(
                    target=self._poll, args=(self._producer,), name="regionwal-delivery", daemon=True
                )
                self._poller.start()
            return self._producer

    def _poll(self, producer: Producer) -> None:
        while (self._producer is producer and not self._closed) or len(producer):
            try:
                producer.poll(POLL_S)
            except Exception:
                logger.exception("a delivery report was not taken")
            self._room.set()

    def _on_producer_error(self, error: KafkaError) -> None:
        """A fatal one ends an idempotent producer: the next write makes a new one. Its epoch shuts out the old one."""
        _log_error(error)
        if error.fatal() or error.code() == KafkaError._FATAL:
            self._producer = None

    def send(self, topic: str, records: Iterable[Record], delivery: Delivery, deadline: float) -> None:
        """Hand records to the client, in order. What goes wrong is reported to the delivery, like everything else."""
        sent = 0
        try:
            produce, report = self.producer().produce, delivery.report
            for key, value, headers in records:
                while True:
                    try:
                        produce(topic, value, key, 0, report, headers=headers)
                        break
                    except BufferError:
                        if not self._wait_for_room(deadline):
                            delivery.cut(sent, KafkaError(KafkaError._QUEUE_FULL))
                            return
                sent += 1
        except KafkaException as error:
            known: KafkaError = error.args[0]
            if known.code() == KafkaError._FATAL:
                self._on_producer_error(known)
            delivery.cut(sent, known)
        except BaseException:  # the caller is interrupted; what was handed over is on its way all the same
            delivery.cut(sent, KafkaError(KafkaError._INTR))
            raise

    def _wait_for_room(self, deadline: float) -> bool:
        """After the producer's queue was full; false when the time is over."""
        self._room.clear()
        self._room.wait(max(0.0, min(POLL_S, deadline - time.monotonic())))
        return time.monotonic() < deadline

    def write(self, topic: str, records: Sequence[Record]) -> int:
        """Write a few records and wait; the offset of the last. Somebody else's records may lie between them."""
        timeout_s = self._settings.write_timeout_s
        finished = threading.Event()
        delivery = Delivery(len(records), finished.set)
        self.send(topic, records, delivery, time.monotonic() + timeout_s)
        # The client reports every record within its time-out, and may be somewhat late with that.
        if not finished.wait(2 * timeout_s):
            raise Timeout(f"cannot write to {topic}: no word of {len(records)} records")
        if delivery.error is not None:
            raise failure(delivery.error, f"write to {topic}")
        return delivery.last_offset

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, topic: str, start: int, end: int, bulk: bool = True) -> Generator[list[Message], None, None]:
        """The records from `start` to before `end`, which must be at most the high watermark, in chunks.

        A bulk read fetches far ahead; the other kind only a little, for short ranges.
        """
        if start >= end:
            return
        with self._reader(bulk) as reader:
            reader.assign([TopicPartition(topic, 0, start)])
            position, timeout = start, self._settings.read_timeout_s
            deadline = time.monotonic() + timeout
            while position < end:
                messages = reader.consume(min(READ_CHUNK_RECORDS_MAX, end - position), READ_WAIT_S)
                if any(map(Message.error, messages)):
                    messages, passed = _sort_out(messages, topic, position)
                    position = max(position, passed)
                while messages and offset_of(messages[-1]) >= end:
                    messages.pop()
                    position = end
                if messages:
                    position = max(position, offset_of(messages[-1]) + 1)
                    yield messages
                    deadline = time.monotonic() + timeout
                elif position < end and time.monotonic() >= deadline:
                    raise Timeout(f"{topic} gave nothing at offset {position} for {timeout:g} s, up to {end} was asked")

    @contextlib.contextmanager
    def _reader(self, bulk: bool) -> Iterator[Consumer]:
        with self._pool_lock:
            if self._closed:
                raise Closed("the region WAL is closed")
            idle = self._idle[bulk]
            reader = idle.pop() if idle else None
        if reader is None:
            reader = Consumer(self._reader_options(bulk))
        try:
            yield reader
            reader.unassign()
        except KafkaException as error:
            reader.close()
            raise failure(error.args[0], "read") from error
        except BaseException:
            reader.close()
            raise
        with self._pool_lock:
            keep = not self._closed and len(self._idle[bulk]) < READERS_IDLE_MAX
            if keep:
                self._idle[bulk].append(reader)
        if not keep:
            reader.close()

    def _reader_options(self, bulk: bool) -> dict[str, Any]:
        fetch_bytes = 4 * MIB if bulk else 256 * KIB
        return {
            "fetch.message.max.bytes": fetch_bytes,
            "queued.min.messages": 100_000 if bulk else 1,
            "queued.max.messages.kbytes": 16 * fetch_bytes // KIB,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": FETCH_WAIT_MS,
            "fetch.error.backoff.ms": 20,
            "socket.timeout.ms": _answer_ms(self._settings.read_timeout_s),
            **self._common,
            "group.id": "regionwal",  # required by the client; there is no group: offsets are ours
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_uncommitted",
            "check.crcs": True,
        }

    # --- the rest ----------------------------------------------------------------------------------------------------

    def _ask(self, question: "Callable[[], T]", what: str) -> T:
        try:
            return question()
        except KafkaException as error:
            raise failure(error.args[0], what) from error
        except TimeoutError as error:
            raise Timeout(f"cannot {what}: no answer in time") from error

    def close(self) -> None:
        """Waits for what is being written, at most the write time-out."""
        with self._clients_lock, self._pool_lock:
            self._closed = True
            readers = [reader for idle in self._idle.values() for reader in idle]
            self._idle = {False: [], True: []}
        for reader in readers:
            reader.close()
        if self._poller is not None:
            self._poller.join(2 * self._settings.write_timeout_s)
        self._producer = self._admin = None  # ends their connections, when nobody uses them any more


def _answer_ms(timeout_s: float) -> int:
    """How long one node may take to answer: so that there is time left to ask another one."""
    return int(1000 * min(ANSWER_S_MAX, max(ANSWER_S_MIN, timeout_s / 3)))


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None  # only so for a message that was never sent or read
    return offset


def _sort_out(messages: list[Message], topic: str, position: int) -> tuple[list[Message], int]:
    """Records without the client's events, and up to where the log is known to have nothing more."""
    records: list[Message] = []
    passed = position
    for message in messages:
        error = message.error()
        if error is None:
            records.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            passed = max(passed, offset_of(message))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise OutOfRange(f"{topic} has nothing at offset {position}: {error.str()}")
        elif not error.retriable() and error.code() not in TIMEOUTS:
            raise failure(error, f"read {topic} at offset {position}")
    return records, passed


def _left(deadline: float) -> float:
    """Seconds to a deadline; a question that is asked at all gets a moment to be answered."""
    return max(0.1, deadline - time.monotonic())


def _log_error(error: KafkaError) -> None:
    logger.warning("log client: %s (%s)", error.str(), error.name())
