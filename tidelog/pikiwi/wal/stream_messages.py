"""Reading the messages of a WAL's stream: a stretch of them, a single one, and searching by what is in them.

A read that fails is an error for its caller and harms nobody else. Waits are bounded by `READ_S_MAX` without a message.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

from confluent_kafka import Consumer, Message, TopicPartition

from tidelog.pikiwi.errors import WalError
from tidelog.pikiwi.wal.record import BadRecord, WalRecord
from tidelog.pikiwi.wal.stream_record import Begin, Follower, decode_message

READ_S_MAX = 30.0
POLL_S = 0.5
MESSAGE_BYTES_MAX = 64 << 20
FETCH_BYTES = 1 << 20
CONSUME_MESSAGES = 1_000

Client = dict[str, str | int | float | bool]


class CorruptStream(WalError):
    """A message that is no record, or not the one that is due."""


class StreamMessages:
    def __init__(self, client: Client, topic: str) -> None:
        self.topic = topic
        self._client = client

    def watermarks(self) -> tuple[int, int]:
        """The offset of the first message, and the one after the last."""
        with closing(self._consumer()) as consumer:
            return consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=READ_S_MAX)

    def at(self, offset: int, consumer: Consumer | None = None) -> WalRecord | Begin:
        for message in self.between(offset, offset + 1, consumer):
            try:
                return decode_message(message.value() or b"")
            except BadRecord as error:
                raise self._damaged(message, error) from None
        raise WalError(f"stream {self.topic} has no message at offset {offset}")

    def between(self, offset: int, end: int, consumer: Consumer | None = None) -> Iterator[Message]:
        """Those at [offset, end), in order."""
        if offset >= end:
            return
        own = consumer or self._consumer()
        try:
            own.assign([TopicPartition(self.topic, 0, offset)])
            deadline = time.monotonic() + READ_S_MAX
            while offset < end:
                messages = own.consume(min(CONSUME_MESSAGES, end - offset), timeout=POLL_S)
                for message in messages:
                    error = message.error()
                    if error is not None:
                        raise WalError(f"stream {self.topic} could not be read at offset {offset}: {error.str()}")
                    offset = offset_of(message) + 1
                    if offset <= end:
                        yield message
                if messages:
                    deadline = time.monotonic() + READ_S_MAX
                elif time.monotonic() > deadline:
                    raise WalError(f"stream {self.topic} gave nothing at offset {offset} for {READ_S_MAX:.0f} s")
        finally:
            if consumer is None:
                own.close()

    def search(self, low: int, high: int, before: Callable[[WalRecord | Begin], bool]) -> int:
        """The offset in [low, high) of the last message that is `before` what is looked for; `low` if none is.

        Among repetitions it may be any of those that are alike, which is as good.
        """
        with closing(self._consumer()) as consumer:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if before(self.at(middle, consumer)) else (low, middle)
        return low

    def taken(self, follower: Follower, message: Message) -> WalRecord | None:
        try:
            return follower.take(message.value() or b"")
        except BadRecord as error:
            raise self._damaged(message, error) from None

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **self._client,
                "group.id": self.topic,  # never joined, never committed: the client only asks for a name
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 10,  # at the end of the stream the next request would wait behind a longer one
                "fetch.message.max.bytes": FETCH_BYTES,  # a larger message comes alone
                "queued.max.messages.kbytes": FETCH_BYTES >> 6,
                "receive.message.max.bytes": MESSAGE_BYTES_MAX + (1 << 20),
            }
        )

    def _damaged(self, message: Message, error: BadRecord) -> CorruptStream:
        return CorruptStream(f"stream {self.topic}: damaged at offset {offset_of(message)}: {error}")


def offset_of(message: Message) -> int:
    offset = message.offset()
    assert offset is not None, "the message came from a broker"
    return offset
