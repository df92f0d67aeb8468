"""Events on their way into topics: which partition each goes to, and what becomes of one that is too large.

* An event's partition follows from its key, as every Kafka client computes it (murmur2), over the number of partitions
  that `Delivery` names, which is the same when a micro-batch is sent again, also after the topic has grown.
* An event that concerns keys of more than one partition (`broadcast`) goes to each, in its place in the order.
* An event larger than `event_bytes_max` goes to the dead letters: a small JSON object that says which command of which
  key it was, where it stands in the binlog, and why it is there. The event's own arguments are not in it.

Events leave sorted by partition, each copied once: the sink then only slices.
"""

import json
from collections.abc import Callable
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
_FEW = 1 << 16

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


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Events in their order; `left_out` says how many items have none."""

    key: pa.Array
    values: Callable[[Rows], pa.Array]
    """The values of these events, in the order in which they are named."""
    broadcast: npt.NDArray[np.bool_]
    times_us: npt.NDArray[np.int64]
    left_out: int = 0


def out_of(values: pa.Array) -> Callable[[Rows], pa.Array]:
    """`Outgoing.values` of an array."""
    return lambda events: values.take(numbers(events))


@dataclass(frozen=True, slots=True)
class Messages:
    """Rows for the sink (`MESSAGE_SCHEMA`), and how many items became none."""

    rows: pa.RecordBatch
    left_out: int


def messages(events: Outgoing, delivery: Delivery) -> Messages:
    """Rows for the sink, those of a partition together and in the order of their items."""
    partitions = choose_partitions(events.key, delivery.partitions, 0, 0)
    nowhere = np.zeros(len(events.key), dtype=bool)
    found = _sorted(partitions, events.broadcast, nowhere, delivery)
    key, value = events.key.take(numbers(found.event)), events.values(found.event)
    too_large = _lengths(key) + _lengths(value) + ENVELOPE_BYTES > delivery.event_bytes_max
    if too_large.any():
        nowhere[found.event[too_large]] = True
        found = _sorted(partitions, events.broadcast, nowhere, delivery)
        key, value = events.key.take(numbers(found.event)), events.values(found.event)
        key, value = _with_dead_letters(key, value, found.is_dead, delivery)
    return Messages(_rows(found, key, value, events.times_us, delivery), events.left_out)


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Which event a message is of, which partition it goes to, and whether it is a dead letter instead."""

    event: Rows
    partition: npt.NDArray[np.int32]
    is_dead: npt.NDArray[np.bool_]


def _sorted(
    partitions: Rows, broadcast: npt.NDArray[np.bool_], dead: npt.NDArray[np.bool_], delivery: Delivery
) -> _Sorted:
    """By topic (dead letters last), partition and event."""
    event = np.arange(len(partitions))
    copies = np.where(broadcast & ~dead, delivery.partitions, 1)
    if delivery.partitions > 1 and (copies > 1).any():
        event = np.repeat(event, copies)
        partitions = _spread(partitions, copies)
    place = partitions + dead[event] * delivery.partitions
    if 2 * delivery.partitions <= _FEW:
        place = place.astype(np.uint16)  # these numpy sorts in linear time
    order = np.argsort(place, kind="stable")
    event = event[order]
    return _Sorted(event, partitions[order].astype(np.int32), dead[event])


def _rows(
    found: _Sorted, key: pa.Array, value: pa.Array, times_us: npt.NDArray[np.int64], delivery: Delivery
) -> pa.RecordBatch:
    names, partition = [delivery.topic], numbers(found.partition)
    if found.is_dead.any():  # whoever is not needed may not exist
        names.append(delivery.dead_letter_topic)
        partition = optional_numbers(found.partition, found.is_dead)
    topic = pa.DictionaryArray.from_arrays(numbers(found.is_dead.astype(np.int32)), pa.array(names, pa.string()))
    times = pa.Array.from_buffers(TIMESTAMP, len(key), [None, pa.py_buffer(times_us[found.event])])
    return pa.RecordBatch.from_arrays([topic, partition, key, value, times], schema=MESSAGE_SCHEMA)


def _spread(partitions: Rows, copies: Rows) -> Rows:
    """The partition of each copy: 0, 1, 2, … of an event that goes everywhere."""
    behind = np.cumsum(copies)
    numbered = np.arange(behind[-1]) - np.repeat(behind - copies, copies)
    everywhere = np.repeat(copies > 1, copies)
    return np.where(everywhere, numbered, np.repeat(partitions, copies))


def _lengths(array: pa.Array) -> npt.NDArray[np.int64]:
    bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return np.diff(bounds.astype(np.int64))


def _with_dead_letters(
    key: pa.Array, value: pa.Array, dead: npt.NDArray[np.bool_], delivery: Delivery
) -> tuple[pa.Array, pa.Array]:
    keys, values = key.to_pylist(), value.to_pylist()
    for row in np.flatnonzero(dead).tolist():
        size = len(keys[row]) + len(values[row]) + ENVELOPE_BYTES
        values[row] = dead_letter(values[row], size, delivery)
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
