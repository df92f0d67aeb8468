"""Kafka's record batch, version 2: the one unit that producers send, disks hold, replicas exchange and consumers get.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | CRC-32C 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

All integers are big-endian. `length` counts what follows it; the checksum covers everything from `attributes` on.
So base offset and leader epoch can be stamped into a batch without touching its content, and a checksum says
nothing about them.

A batch of our own (a Raft entry that is no client record) is a control batch that holds no record: its last offset
delta is -1, so it takes no offset, and behind the header stand one byte of kind and the entry's content.

This module knows a batch from the outside; its records and their compression are the subject of `records`.

Cost: reading or stamping a header is one `struct` call; only `check_batch` and `seal` touch the content, once, in C.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

MAGIC = 2
HEADER_BYTES = 61
LENGTH_END = 12  # base offset and length: what must be read to know where the next batch begins

_HEADER = struct.Struct(">qiibIhiqqqhii")
_FACTS = struct.Struct(">8xi5xI2xi8xq")
_INTACT = struct.Struct(">8xi4xbI")
_STAMP = struct.Struct(">q4xi")
_FRAME = struct.Struct(">qi")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_LEADER_EPOCH_AT = 12
_CHECKED_FROM = 21  # the checksum covers the batch from `attributes` on
_KEEP_GIL = 0  # a checksum takes microseconds: to let another thread in meanwhile, and wake it, would take more

ATTRIBUTE_COMPRESSION = 0x07
ATTRIBUTE_APPEND_TIME = 0x08  # the log's own clock: the max timestamp is the time of every record
ATTRIBUTE_TRANSACTIONAL = 0x10
ATTRIBUTE_CONTROL = 0x20
NO_TIMESTAMP = -1
NO_PRODUCER = -1


class CorruptBatchError(ValueError):
    """Bytes that are not a whole and intact version 2 record batch."""


class BatchHeader(NamedTuple):
    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LENGTH_END + self.length

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_ours(self) -> bool:
        """A Raft entry of our own, which holds no record and takes no offset."""
        return bool(self.attributes & ATTRIBUTE_CONTROL) and self.last_offset_delta == -1


# A named tuple's own constructor takes three times as long.
_new_header = cast(Callable[[type[BatchHeader], tuple[Any, ...]], BatchHeader], tuple.__new__)


def read_header(batch: Buffer, position: int = 0) -> BatchHeader:
    try:
        return _new_header(BatchHeader, _HEADER.unpack_from(batch, position))
    except struct.error:
        raise CorruptBatchError(f"a batch header has {HEADER_BYTES} bytes, {len(batch) - position} are there") from None


def read_frame(batch: Buffer) -> tuple[int, int]:
    """(base offset, length) of a batch of which only the first twelve bytes need to be there."""
    try:
        base_offset, length = _FRAME.unpack_from(batch)
    except struct.error:
        raise CorruptBatchError(f"a batch begins with {LENGTH_END} bytes, {len(batch)} are there") from None
    return base_offset, length


unpack_facts: Callable[[Buffer], tuple[int, int, int, int]] = _FACTS.unpack_from
"""(length, checksum, last offset delta, max timestamp): what a log needs of a batch it takes in, and no more.

`length` is the field's, LENGTH_END less than the batch's size. One call in C: logs ask this of every batch.
"""


def read_facts(batch: Buffer) -> tuple[int, int, int, int]:
    """(size, checksum, last offset delta, max timestamp)."""
    length, crc, delta, newest = unpack_facts(batch)
    return LENGTH_END + length, crc, delta, newest


read_stamp: Callable[[Buffer], tuple[int, int]] = _STAMP.unpack_from
"""(base offset, leader epoch)."""


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log. Neither field is covered by the checksum."""
    _BASE_OFFSET.pack_into(batch, 0, base_offset)
    _LEADER_EPOCH.pack_into(batch, _LEADER_EPOCH_AT, leader_epoch)


def is_intact(batch: memoryview) -> bool:
    """Whether these bytes are one whole batch with the checksum it says; the quick way to ask."""
    size = len(batch)
    if size < HEADER_BYTES:
        return False
    length, magic, crc = _INTACT.unpack_from(batch)
    return magic == MAGIC and LENGTH_END + length == size and crc32c(batch[_CHECKED_FROM:], 0, _KEEP_GIL) == crc


def check_batch(batch: Buffer, position: int = 0) -> BatchHeader:
    """The header of the intact batch at `position`; raises CorruptBatchError when it is anything else."""
    header = read_header(batch, position)
    _, length, _, magic, crc, attributes, last_offset_delta, _, _, _, _, _, record_count = header
    if magic != MAGIC:
        raise CorruptBatchError(f"magic is {magic}, not {MAGIC}")
    size = LENGTH_END + length
    end = position + size
    if size < HEADER_BYTES or end > len(batch):
        raise CorruptBatchError(f"the batch claims {size} bytes, {len(batch) - position} are there")
    computed = crc32c(memoryview(batch)[position + _CHECKED_FROM : end], 0, _KEEP_GIL)
    if computed != crc:
        raise CorruptBatchError(f"checksum is {computed:08x}, the batch says {crc:08x}")
    if record_count < 0 or last_offset_delta < (-1 if attributes & ATTRIBUTE_CONTROL else 0):
        raise CorruptBatchError("negative record count or offset delta")
    return header


def split_batches(data: Buffer) -> Iterator[tuple[int, int]]:
    """(position, size) of the batches that stand one after the other in `data`."""
    position = 0
    while position < len(data):
        if position + HEADER_BYTES > len(data):
            raise CorruptBatchError(f"{len(data) - position} stray bytes behind the last batch")
        size = LENGTH_END + _FRAME.unpack_from(data, position)[1]
        if size < HEADER_BYTES or position + size > len(data):
            raise CorruptBatchError(f"the batch at {position} claims {size} bytes, {len(data) - position} are there")
        yield position, size
        position += size


def build_own_batch(kind: int, content: Buffer, base_offset: int, leader_epoch: int) -> bytearray:
    """The control batch that holds a Raft entry of our own. The same entry gives the same bytes on every replica."""
    body = bytes((kind,)) + bytes(content)
    return assemble(
        body,
        attributes=ATTRIBUTE_CONTROL,
        last_offset_delta=-1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        record_count=0,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def read_own_batch(batch: Buffer) -> tuple[int, bytes]:
    """(kind, content) of a batch made by `build_own_batch`."""
    if len(batch) <= HEADER_BYTES:
        raise CorruptBatchError("an entry of our own has at least its kind behind the header")
    return batch[HEADER_BYTES], bytes(batch[HEADER_BYTES + 1 :])


def assemble(
    body: Buffer,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    base_offset: int,
    leader_epoch: int,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """The batch that has these fields and holds `body`, with its length and checksum."""
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    _HEADER.pack_into(
        batch, 0, base_offset, len(batch) - LENGTH_END, leader_epoch, MAGIC, 0, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, record_count,
    )  # fmt: skip
    seal(batch)
    return batch


def seal(batch: bytearray | memoryview) -> None:
    """Write the checksum of a whole batch anew, after a change to what it covers."""
    with memoryview(batch) as view, view[_CHECKED_FROM:] as checked:
        struct.pack_into(">I", batch, _CHECKED_FROM - 4, crc32c(checked))
