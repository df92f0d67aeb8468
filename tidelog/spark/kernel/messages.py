"""Events on their way into topics: which partition each goes to, and what becomes of one that is too large.

* An event's partition follows from its key, as every Kafka client computes it (murmur2), over the number of partitions
  that `Delivery` names, which is the same when a micro-batch is sent again, also after the topic has grown.
* An event that concerns keys of more than one partition (`broadcast`) goes to each, in its place in the order.
* An event larger than `event_bytes_max` goes to the dead letters: a small JSON object that says which command of which
  key it was, where it stands in the binlog, and why it is there. The event's own arguments are not in it.

On their way from source to sink messages pass through the JVM, where a row costs ten times what it costs here. So they
travel packed: thousands of messages as Arrow writes them, in rows that are pieces of that.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.spark.kernel.arrays import constant_text, numbers, optional_numbers
from tidelog.spark.kernel.decode import TIMESTAMP
from tidelog.spark.kernel.partitioner import choose_partitions

ENVELOPE_BYTES = 128  # what a record and the batch around it take besides key and value, at most
KEY_BYTES_MAX = 1024  # of a dead letter
DEAD_LETTER = ".dead-letter"
PIECE_BYTES = 512 << 10  # of what is packed: larger objects are a burden for the JVM's collector

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", TIMESTAMP),
    ]
)
PACK_SCHEMA = pa.schema([pa.field("messages", pa.binary()), pa.field("count", pa.int32())])
_COPIED = ("op", "data_type", "db", "key", "key_encoding", "ts_ms", "event_id", "source_id", "effect", "position")


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where events go. `partitions` and `event_bytes_max` stay the same for all attempts at a micro-batch."""

    topic: str
    partitions: int
    event_bytes_max: int

    @property
    def dead_letter_topic(self) -> str:
        return self.topic + DEAD_LETTER


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events in order."""

    key: pa.Array
    value: pa.Array
    broadcast: npt.NDArray[np.bool_]
    timestamp: pa.Array


def messages(events: Outgoing, delivery: Delivery) -> pa.RecordBatch:
    """Rows for the sink, in the order of the events."""
    partitions = choose_partitions(events.key, delivery.partitions, 0, 0).astype(np.int32)
    sizes = _lengths(events.key) + _lengths(events.value) + ENVELOPE_BYTES
    too_large = sizes > delivery.event_bytes_max
    copies = np.where(events.broadcast & ~too_large, delivery.partitions, 1)
    key, value, timestamp = events.key, events.value, events.timestamp
    topic = constant_text(delivery.topic, len(key))
    if too_large.any():
        key, value, topic = _with_dead_letters(key, value, topic, too_large, sizes, delivery)
    if (copies > 1).any():
        rows = numbers(np.repeat(np.arange(len(copies), dtype=np.int64), copies))
        topic, key, value, timestamp = (column.take(rows) for column in (topic, key, value, timestamp))
        partitions = _spread(partitions, copies)
        too_large = np.repeat(too_large, copies)
    chosen = optional_numbers(partitions, too_large) if too_large.any() else numbers(partitions)
    return pa.RecordBatch.from_arrays([topic, chosen, key, value, timestamp], schema=MESSAGE_SCHEMA)


def pack(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A few rows, the pieces of one text; the last one says how many messages are in it."""
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, MESSAGE_SCHEMA) as writer:
        writer.write_batch(batch)
    packed = out.getvalue()
    bounds = np.minimum(np.arange(0, packed.size + PIECE_BYTES, PIECE_BYTES, dtype=np.int64), packed.size)
    pieces = len(bounds) - 1
    counts = np.zeros(pieces, dtype=np.int32)
    counts[-1] = batch.num_rows
    texts = pa.Array.from_buffers(pa.binary(), pieces, [None, pa.py_buffer(bounds.astype(np.int32)), packed])
    return pa.RecordBatch.from_arrays([texts, numbers(counts)], schema=PACK_SCHEMA)


def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages in order."""
    pieces: list[pa.Buffer] = []
    for batch in batches:
        for piece, count in zip(batch.column(0), batch.column(1).to_pylist(), strict=True):
            pieces.append(piece.as_buffer())
            if not count:
                continue
            with pa.ipc.open_stream(pieces[0] if len(pieces) == 1 else b"".join(pieces)) as reader:
                yield from reader
            pieces = []
    assert not pieces, "the last piece is missing"


def _spread(partitions: npt.NDArray[np.int32], copies: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """The partition of each copy: 0, 1, 2, … of an event that goes everywhere."""
    behind = np.cumsum(copies)
    numbered = np.arange(behind[-1]) - np.repeat(behind - copies, copies)
    everywhere = np.repeat(copies > 1, copies)
    return np.where(everywhere, numbered, np.repeat(partitions, copies)).astype(np.int32)


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(bounds.astype(np.int64))


def _with_dead_letters(
    key: pa.Array,
    value: pa.Array,
    topic: pa.Array,
    too_large: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    delivery: Delivery,
) -> tuple[pa.Array, pa.Array, pa.Array]:
    keys, values, topics = key.to_pylist(), value.to_pylist(), topic.to_pylist()
    for row in np.flatnonzero(too_large).tolist():
        values[row] = dead_letter(values[row], int(sizes[row]), delivery)
        keys[row] = keys[row][:KEY_BYTES_MAX]
        topics[row] = delivery.dead_letter_topic
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(topics, pa.string())


def dead_letter(event: bytes, size: int, delivery: Delivery) -> bytes:
    """What is told of an event that is too large."""
    content: dict[str, Any] = json.loads(event)
    told = {name: content[name] for name in _COPIED if name in content}
    key = told.get("key", "")
    if len(key) > KEY_BYTES_MAX:
        told |= {"key": key[:KEY_BYTES_MAX], "key_is_cut": True, "event_id": None}
    reason = (
        f"the event has {size:,} bytes as a message and {delivery.topic} takes {delivery.event_bytes_max:,}: "
        "raise kafka_message_max_bytes and the topic's max.message.bytes. The key is still in the source"
    )
    letter = {"reason": "event_too_large", "message": reason, "event_bytes": size, "topic": delivery.topic, **told}
    return json.dumps(letter, ensure_ascii=False).encode()
