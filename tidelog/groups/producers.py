"""Idempotent producers of one stream: which batches they have written, so that a retry is not written twice.

Kafka's rules (KIP-98). A producer has an id and an epoch, and numbers its records to each stream. Of each producer the
last five batches are kept:

* a batch that is one of those (same epoch, same first and last sequence) is a duplicate: it is answered with the offset
  it already has;
* an epoch older than the newest seen is fenced off;
* a new epoch begins at sequence 0; within an epoch a batch follows the last one without a gap (after 2^31 - 1 comes 0);
* of a producer that is not known (never seen, or idle for too long) any first sequence is accepted.

The state is a function of the committed log. A leader must also know what it appended and what is not committed yet:
that is kept beside it (`_pending`) and thrown away when leadership ends. So every replica, also after a fail-over,
has the same state at the same index.

Cost: O(1) a batch. Producers idle for `expiration_ms`, and the longest idle beyond `PRODUCERS_MAX`, are forgotten.
"""

import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.wire.errors import ErrorCode

BATCHES_KEPT = 5
PRODUCERS_MAX = 100_000
SEQUENCE_MAX = 2**31 - 1

FORMAT = 1
_HEAD = struct.Struct(">BI")
_PRODUCER = struct.Struct(">qhqB")
_BATCH = struct.Struct(">iiq")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a batch says of its producer."""

    producer_id: int
    epoch: int
    first_sequence: int
    last_sequence: int

    @classmethod
    def of(cls, producer_id: int, epoch: int, first_sequence: int, record_count: int) -> "Numbers":
        return cls(producer_id, epoch, first_sequence, (first_sequence + record_count - 1) % (SEQUENCE_MAX + 1))


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    index: int = 0
    """Of its entry; 0 for one that was committed before a restart."""


class Producer:
    __slots__ = ("batches", "epoch", "last_index", "used_ms")

    def __init__(self, epoch: int, used_ms: int) -> None:
        self.epoch = epoch
        self.used_ms = used_ms
        self.last_index = 0
        self.batches: deque[Written] = deque(maxlen=BATCHES_KEPT)

    def copy(self) -> "Producer":
        made = Producer(self.epoch, self.used_ms)
        made.batches.extend(self.batches)
        return made

    def add(self, numbers: Numbers, base_offset: int, index: int, now_ms: int) -> None:
        if numbers.epoch != self.epoch:
            self.epoch = numbers.epoch
            self.batches.clear()
        self.batches.append(Written(numbers.first_sequence, numbers.last_sequence, base_offset, index))
        self.last_index = index
        self.used_ms = now_ms

    def check(self, numbers: Numbers) -> Written | ErrorCode | None:
        if numbers.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if numbers.epoch > self.epoch:
            return None if numbers.first_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for written in self.batches:
            if (written.first_sequence, written.last_sequence) == (numbers.first_sequence, numbers.last_sequence):
                return written
        if self.batches and numbers.first_sequence != (self.batches[-1].last_sequence + 1) % (SEQUENCE_MAX + 1):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return None


class Producers:
    """Times are milliseconds of the wall clock, because they outlive the process."""

    def __init__(self, expiration_ms: int) -> None:
        self._expiration_ms = expiration_ms
        self._committed: dict[int, Producer] = {}  # least recently used first
        self._pending: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def check(self, numbers: Numbers, now_ms: int) -> Written | ErrorCode | None:
        """Whether the batch may be appended (None), is there already (where), or is refused."""
        producer = self._pending.get(numbers.producer_id) or self._current(numbers.producer_id, now_ms)
        return None if producer is None else producer.check(numbers)

    def appended(self, numbers: Numbers, base_offset: int, index: int, now_ms: int) -> None:
        """The leader appended the batch; it is not committed yet."""
        producer = self._pending.get(numbers.producer_id)
        if producer is None:
            committed = self._current(numbers.producer_id, now_ms)
            producer = committed.copy() if committed is not None else Producer(numbers.epoch, now_ms)
            self._pending[numbers.producer_id] = producer
        producer.add(numbers, base_offset, index, now_ms)

    def committed(self, numbers: Numbers, base_offset: int, index: int, now_ms: int) -> None:
        producer = self._committed.pop(numbers.producer_id, None)
        if producer is None:
            producer = Producer(numbers.epoch, now_ms)
            if len(self._committed) >= PRODUCERS_MAX:
                del self._committed[next(iter(self._committed))]
        self._committed[numbers.producer_id] = producer
        producer.add(numbers, base_offset, index, now_ms)
        pending = self._pending.get(numbers.producer_id)
        if pending is not None and pending.last_index <= index:
            del self._pending[numbers.producer_id]

    def forget_pending(self) -> None:
        """Leadership ended, or what was appended did not stay."""
        self._pending.clear()

    def _current(self, producer_id: int, now_ms: int) -> Producer | None:
        producer = self._committed.get(producer_id)
        if producer is not None and now_ms - producer.used_ms > self._expiration_ms:
            del self._committed[producer_id]
            return None
        return producer

    # What a restart must not forget. The layout is in docs/formats.md.

    def encode(self, now_ms: int, until_offset: int | None = None) -> bytes:
        """All that are not expired; or what they had written before an offset."""
        alive = [(i, p) for i, p in self._committed.items() if now_ms - p.used_ms <= self._expiration_ms]
        parts: list[bytes] = []
        count = 0
        for producer_id, producer in alive:
            batches = [b for b in producer.batches if until_offset is None or b.base_offset < until_offset]
            if not batches and until_offset is not None:
                continue
            count += 1
            parts.append(_PRODUCER.pack(producer_id, producer.epoch, producer.used_ms, len(batches)))
            parts.extend(_BATCH.pack(b.first_sequence, b.last_sequence, b.base_offset) for b in batches)
        return _HEAD.pack(FORMAT, count) + b"".join(parts)

    def restore(self, content: bytes) -> None:
        self._committed = dict(_decode(content)) if content else {}

    def adopt(self, content: bytes) -> None:
        """Those of a log that this one goes on from; who has written to this one already is known better."""
        known = self._committed
        self.restore(content)
        self._committed.update(known)


def _decode(content: bytes) -> Iterator[tuple[int, Producer]]:
    version, count = _HEAD.unpack_from(content)
    if version != FORMAT:
        raise ValueError(f"producers are saved in format {version}; this version reads {FORMAT}")
    position = _HEAD.size
    for _ in range(count):
        producer_id, epoch, used_ms, batches = _PRODUCER.unpack_from(content, position)
        position += _PRODUCER.size
        producer = Producer(epoch, used_ms)
        for _ in range(batches):
            producer.batches.append(Written(*_BATCH.unpack_from(content, position)))
            position += _BATCH.size
        yield producer_id, producer
