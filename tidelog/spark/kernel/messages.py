"""Events on their way into topics: which partition each goes to, and what becomes of one that is too large.

* An event's partition follows from its key, as every Kafka client computes it (murmur2), over the number of partitions
  that `Delivery` names, which is the same when a micro-batch is sent again, also after the topic has grown.
* An event that concerns keys of more than one partition (`broadcast`) goes to each, in its place in the order.
* An event larger than `event_bytes_max` goes to the dead letters: a small JSON object that says which command of which
  key it was, where it stands in the binlog, and why it is there. The event's own arguments are not in it.

Events come in any order, and leave sorted by partition, each copied once: the sink then only slices.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.spark.kernel.arrays import numbers, optional_numbers
from tidelog.spark.kernel.decode import TIMESTAMP
from tidelog.spark.kernel.partitioner import choose_partitions

ENVELOPE_BYTES = 128  # what a record and the batch around it take besides key and value, at most
KEY_BYTES_MAX = 1024  # of a dead letter
DEAD_LETTER = ".dead-letter"

MESSAGE_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", TIMESTAMP),
    ]
)
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
    """Events. `item` says in which order they are, `left_out` how many items have none."""

    item: npt.NDArray[np.int64]
    key: pa.Array
    value: pa.Array
    broadcast: npt.NDArray[np.bool_]
    times_us: npt.NDArray[np.int64]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows for the sink (`MESSAGE_SCHEMA`), and how many items became none."""

    rows: pa.RecordBatch
    left_out: int


def messages(events: Outgoing, delivery: Delivery) -> Messages:
    """Rows for the sink, those of a partition together and in the order of their items."""
    partitions = choose_partitions(events.key, delivery.partitions, 0, 0).astype(np.int32)
    sizes = _lengths(events.key) + _lengths(events.value) + ENVELOPE_BYTES
    too_large = sizes > delivery.event_bytes_max
    copies = np.where(events.broadcast & ~too_large, delivery.partitions, 1)
    key, value, names = events.key, events.value, [delivery.topic]
    if too_large.any():
        key, value = _with_dead_letters(key, value, too_large, sizes, delivery)
        names.append(delivery.dead_letter_topic)
    event = np.arange(len(key))
    if (copies > 1).any():
        event = np.repeat(event, copies)
        partitions = _spread(partitions, copies)
    # One copy of every event, into its place: by topic, partition and item.
    order = np.lexsort((events.item[event], partitions, too_large[event]))
    event, partitions = event[order], partitions[order]
    rows = numbers(event)
    dead = too_large[event]
    topic = pa.DictionaryArray.from_arrays(numbers(dead.astype(np.int32)), pa.array(names, pa.string()))
    chosen = optional_numbers(partitions, dead) if dead.any() else numbers(partitions)
    timestamp = pa.Array.from_buffers(TIMESTAMP, len(event), [None, pa.py_buffer(events.times_us[event])])
    columns = [topic, chosen, key.take(rows), value.take(rows), timestamp]
    return Messages(pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA), events.left_out)


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
    too_large: npt.NDArray[np.bool_],
    sizes: npt.NDArray[np.int64],
    delivery: Delivery,
) -> tuple[pa.Array, pa.Array]:
    keys, values = key.to_pylist(), value.to_pylist()
    for row in np.flatnonzero(too_large).tolist():
        values[row] = dead_letter(values[row], int(sizes[row]), delivery)
        keys[row] = keys[row][:KEY_BYTES_MAX]
    return pa.array(keys, pa.binary()), pa.array(values, pa.binary())


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
