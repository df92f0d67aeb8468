"""A WAL in a stream of any log that speaks Kafka's protocol, for pipelines on other machines.

One stream of one partition a database, `<prefix>.<db>`; the records are those of the files (`stream_record.py`). The
producer is idempotent, waits for all in-sync replicas and never gives up on a message by itself, so what arrives is
always a beginning of what was appended, in order and without a gap. `sync` waits until everything has arrived, and
fails, for good, when it does not within `TIMEOUT_S`. Opening reads the end of the stream back: what did arrive of an
attempt that failed counts, as a torn tail's whole records do in files.

One writer at a time: a lock in `wal_dir` keeps a second receiver on this machine away. One elsewhere is found out by
the offsets of what we wrote: between our own records there must be none of others.

A place (`WalPoint`) has the message's offset for `offset`, and 0 for `segment`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage] - documented so

from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.disk import lock_folder
from tidelog.pikiwi.wal.reader import WalGone
from tidelog.pikiwi.wal.record import WalPoint, WalRecord, encode_records
from tidelog.pikiwi.wal.stream_messages import MESSAGE_BYTES_MAX, Client, StreamMessages, offset_of
from tidelog.pikiwi.wal.stream_record import Begin, Follower, decode_message, encode_begin

TIMEOUT_S = 30.0
QUEUE_MESSAGES_MAX = 200_000
QUEUE_KBYTES_MAX = 256 << 10
TAIL_MESSAGES = 10_000  # read back when it is opened: more than a writer that died can have left in doubt
RECORD_BYTES = 200  # what a record is taken to have before any was seen
CLEAN_MESSAGES_MIN = 10_000  # fewer are not worth it
CLEAN_EVERY_S = 60.0

_TOPIC = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",  # only what was delivered is removed, by `clean`
    "retention.bytes": "-1",
    "max.message.bytes": str(MESSAGE_BYTES_MAX),
}

_log = logging.getLogger(__name__)


def open_stream_wal(config: Config, database: str) -> "StreamWal":
    folder = config.wal_dir / database
    return StreamWal(
        config.stream_brokers, f"{config.wal_stream_prefix}.{database}", database, config.kafka_client_id, folder
    )


class StreamWal:
    def __init__(self, brokers: str, topic: str, database: str, client_id: str, folder: Path) -> None:
        self.topic = topic
        self._key = database.encode()
        self._client: Client = {
            "bootstrap.servers": brokers,
            "client.id": client_id,
            "log_level": 2,  # what matters comes as an error; the library's own lines would go to stderr
        }
        self._failure: str | None = None
        self._unsent = 0  # messages given to the producer that have not arrived yet
        self._next_offset = 0  # of the message that arrives next
        self._seen_bytes = self._seen_messages = 0
        self._clean_again_s = 0.0
        self._messages = StreamMessages(self._client, topic)
        self._lock = _locked(folder)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        try:
            self._create_topic()
            self._low, self._next_offset = self._messages.watermarks()
            follower = self._read_tail()
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        empty = self._next_offset == self._low
        self.first_position = None if empty else self._messages.at(self._low).position
        self.durable: WalPoint | None = None
        if follower.seq is not None and follower.position is not None:
            self.durable = WalPoint(follower.seq, follower.position, 0, self._next_offset)
        self._tail = self.durable
        self._producer = Producer(
            {
                **self._client,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,  # `sync` does not wait for it
                "message.timeout.ms": 0,  # never by itself: a message left out would leave a gap
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "queue.buffering.max.messages": QUEUE_MESSAGES_MAX,
                "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
            }
        )

    def _create_topic(self) -> None:
        admin = AdminClient(self._client)
        if self.topic in admin.list_topics(timeout=TIMEOUT_S).topics:
            return
        created = admin.create_topics([NewTopic(self.topic, 1, config=_TOPIC)], operation_timeout=TIMEOUT_S)
        try:
            _ended(created[self.topic])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    # --- what it holds ---

    @property
    def last_seq(self) -> int:
        return 0 if self._tail is None else self._tail.seq

    @property
    def last_position(self) -> Position | None:
        return None if self._tail is None else self._tail.position

    @property
    def size_bytes(self) -> int:
        """By the mean of what was read and written since it was opened: brokers do not tell."""
        return (self._next_offset - self._low) * self._record_bytes

    @property
    def _record_bytes(self) -> int:
        return self._seen_bytes // self._seen_messages if self._seen_messages else RECORD_BYTES

    # --- writing ---

    def append(self, epoch: int, items: Sequence[tuple[Position, bytes]]) -> None:
        if not items:
            return
        tail = self._usable()
        parts, size = encode_records(epoch, tail.seq, tail.position, items)
        self._seen_bytes += size
        self._seen_messages += len(items)
        for header, payload in zip(parts[::2], parts[1::2], strict=True):
            self._produce(header + payload)
        self._tail = WalPoint(tail.seq + len(items), items[-1][0], 0, tail.offset + len(items))

    def _produce(self, value: bytes) -> None:
        deadline = 0.0
        while True:
            try:
                self._producer.produce(self.topic, value, self._key, partition=0, on_delivery=self._arrived)
            except BufferError:
                now = time.monotonic()
                deadline = deadline or now + TIMEOUT_S
                if now > deadline or self._failure is not None:
                    raise self._failed(self._failure or f"nothing was taken for {TIMEOUT_S:.0f} s") from None
                self._producer.poll(0.1)
            except KafkaException as error:
                raise self._failed(error.args[0]) from None
            else:
                self._unsent += 1
                return

    def _arrived(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or _advice(error)
            return
        offset = offset_of(message)
        if offset != self._next_offset:
            self._failure = self._failure or (
                f"something else was written to it: our record has offset {offset}, {self._next_offset} was due. "
                "Stop the other receiver, then start again"
            )
            return
        self._next_offset += 1
        self._unsent -= 1

    def sync(self) -> None:
        tail = self._usable()
        if self._unsent:
            self._producer.flush(TIMEOUT_S)
            if self._failure is not None or self._unsent:
                raise self._failed(self._failure or f"{self._unsent} records did not arrive within {TIMEOUT_S:.0f} s")
        self.durable = tail

    # --- reading ---

    def read(self, after_seq: int) -> Iterator[WalRecord]:
        durable = self._durable()
        if after_seq > durable.seq:
            raise WalError(f"record {after_seq} is not in stream {self.topic}: the last one is {durable.seq}")
        first = self._messages.at(self._low)
        if after_seq < (first.seq if isinstance(first, Begin) else first.seq - 1):
            raise WalGone(f"record {after_seq} is no longer in stream {self.topic}, which begins with {first.seq}")
        return self._records(self._search(lambda found: found.seq <= after_seq), durable, after_seq)

    def _records(self, offset: int, end: WalPoint, after_seq: int) -> Iterator[WalRecord]:
        follower = Follower()
        for message in self._messages.between(offset, end.offset):
            record = self._messages.taken(follower, message)
            if record is not None and record.seq > after_seq:
                yield record

    def seek(self, position: Position) -> int:
        durable = self._durable()
        if position >= durable.position:
            return durable.seq
        offset = self._search(lambda found: found.position <= position)
        found = self._messages.at(offset)
        if found.position > position:
            raise WalGone(f"{position} is no longer in stream {self.topic}")
        return found.seq

    def _search(self, before: Callable[[WalRecord | Begin], bool]) -> int:
        return self._messages.search(self._low, self._next_offset, before)

    # --- its two ends ---

    def clean(self, ack: Position) -> int:
        """Remove what lies at or before `ack`, all but the last record. Gives about how many bytes.

        Finding the place takes some requests, so it is looked for only when it may be worth it.
        """
        durable = self._durable()
        now_s = time.monotonic()
        if self._next_offset - self._low <= CLEAN_MESSAGES_MIN or now_s < self._clean_again_s:
            return 0
        self._clean_again_s = now_s + CLEAN_EVERY_S
        last = self._search(lambda found: found.position <= min(ack, durable.position))
        count = min(last, self._next_offset - 1) - self._low
        if count < CLEAN_MESSAGES_MIN:
            return 0
        try:
            self._trim(self._low + count)
        except KafkaException as error:
            _log.warning("stream %s could not be trimmed, which can wait: %s", self.topic, error.args[0].str())
            return 0
        self.first_position = self._messages.at(self._low).position
        return count * self._record_bytes

    def _trim(self, offset: int) -> None:
        admin = AdminClient(self._client)
        place = TopicPartition(self.topic, 0, offset)
        _ended(admin.delete_records([place], request_timeout=TIMEOUT_S)[place])
        self._low = offset

    def reset(self, position: Position, after_seq: int = 0) -> None:
        if self._failure is not None:
            self._usable()
        seq = max(self.last_seq, after_seq)
        begin = self._next_offset + self._unsent
        self._produce(encode_begin(Begin(seq, position)))
        self._tail = WalPoint(seq, position, 0, begin + 1)
        self.sync()
        try:
            if begin > self._low:
                self._trim(begin)
        except KafkaException as error:
            raise self._failed(error.args[0]) from None
        self.first_position = position

    def close(self) -> None:
        if self._lock < 0:
            return
        try:
            if self._failure is None and self._tail is not None:
                self.sync()
        finally:
            self._producer.purge()
            os.close(self._lock)
            self._lock = -1
            self._failure = self._failure or "it is closed"

    # --- opening ---

    def _read_tail(self) -> Follower:
        """Also ends what a writer that died left undone: nothing may stand before the place where it began anew."""
        follower = Follower()
        begin = self._low
        for message in self._messages.between(max(self._low, self._next_offset - TAIL_MESSAGES), self._next_offset):
            value = message.value() or b""
            if self._messages.taken(follower, message) is None and isinstance(decode_message(value), Begin):
                begin = offset_of(message)
            self._seen_bytes += len(value)
            self._seen_messages += 1
        if begin > self._low:
            self._trim(begin)
        return follower

    # --- failures ---

    def _durable(self) -> WalPoint:
        if self.durable is None:
            raise WalError(f"stream {self.topic} has no beginning yet: say with reset() where it begins")
        return self.durable

    def _usable(self) -> WalPoint:
        if self._failure is not None:
            raise WalError(f"stream {self.topic} cannot be used any more: {self._failure}")
        if self._tail is None:
            raise WalError(f"stream {self.topic} has no beginning yet: say with reset() where it begins")
        return self._tail

    def _failed(self, why: "KafkaError | str | None") -> WalError:
        self._failure = why if isinstance(why, str) else _advice(why)
        return WalError(f"the WAL in stream {self.topic} failed: {self._failure}")


def _ended(future: "Future[Any]") -> None:
    """Wait for an admin request; the client ends each by itself, and this is for the case that it does not."""
    try:
        future.result(TIMEOUT_S + 5)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None


def _locked(folder: Path) -> int:
    try:
        return lock_folder(folder)
    except OSError as error:
        raise WalError(f"cannot lock {folder}: {error.strerror}") from error


def _advice(error: KafkaError | None) -> str:
    assert error is not None
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return f"an item is larger than the stream takes: raise its max.message.bytes ({error.str()})"
    return f"{error.str()}. Nothing unsafe was acknowledged: look at the brokers, then start again"
