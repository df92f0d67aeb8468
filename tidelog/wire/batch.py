"""Kafka's record batch, version 2: the one unit that producers send, disks hold, replicas exchange and consumers get.

    base offset 8 | length 4 | leader epoch 4 | magic 1 | CRC-32C 4 | attributes 2 | last offset delta 4 |
    base timestamp 8 | max timestamp 8 | producer id 8 | producer epoch 2 | base sequence 4 | record count 4 | records

All integers are big-endian. `length` counts what follows it; the checksum covers everything from `attributes` on.
So base offset and leader epoch can be stamped into a batch without touching its content, and a checksum says
nothing about them.

A batch of our own (a Raft entry that is no client record) is a control batch that holds no record: its last offset
delta is -1, so it takes no offset, and behind the header stand one byte of kind and the entry's content.

Cost: reading or stamping a header is one `struct` call; only `check_batch` touches the content, once, in C.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from crc32c import crc32c

Buffer = bytes | bytearray | memoryview

MAGIC = 2
HEADER_BYTES = 61
LENGTH_END = 12  # base offset and length: what must be read to know where the next batch begins

_HEADER = struct.Struct(">qiibIhiqqqhii")
_FACTS = struct.Struct(">qiibIhiqq")
_STAMP = struct.Struct(">qii")
_FRAME = struct.Struct(">qi")
_CHECKED_FROM = 21  # the checksum covers the batch from `attributes` on

ATTRIBUTE_CONTROL = 0x20
ATTRIBUTE_COMPRESSION = 0x07
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


def read_header(batch: Buffer, position: int = 0) -> BatchHeader:
    try:
        return BatchHeader._make(_HEADER.unpack_from(batch, position))
    except struct.error:
        raise CorruptBatchError(f"a batch header has {HEADER_BYTES} bytes, {len(batch) - position} are there") from None


def read_frame(batch: Buffer) -> tuple[int, int]:
    """(base offset, length) of a batch of which only the first twelve bytes need to be there."""
    try:
        base_offset, length = _FRAME.unpack_from(batch)
    except struct.error:
        raise CorruptBatchError(f"a batch begins with {LENGTH_END} bytes, {len(batch)} are there") from None
    return base_offset, length


def read_facts(batch: Buffer) -> tuple[int, int, int, int]:
    """(size, checksum, last offset delta, max timestamp): what a log needs of a batch it takes in, and no more."""
    _, length, _, _, crc, _, delta, _, newest = _FACTS.unpack_from(batch)
    return LENGTH_END + length, crc, delta, newest


def read_stamp(batch: Buffer) -> tuple[int, int]:
    """(base offset, leader epoch)."""
    base_offset, _, leader_epoch = _STAMP.unpack_from(batch)
    return base_offset, leader_epoch


def stamp(batch: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log. Neither field is covered by the checksum."""
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, leader_epoch)


def check_batch(batch: Buffer, position: int = 0) -> BatchHeader:
    """The header of the intact batch at `position`; raises CorruptBatchError when it is anything else."""
    header = read_header(batch, position)
    if header.magic != MAGIC:
        raise CorruptBatchError(f"magic is {header.magic}, not {MAGIC}")
    end = position + header.size
    if header.size < HEADER_BYTES or end > len(batch):
        raise CorruptBatchError(f"the batch claims {header.size} bytes, {len(batch) - position} are there")
    with memoryview(batch) as view, view[position + _CHECKED_FROM : end] as checked:
        computed = crc32c(checked)
    if computed != header.crc:
        raise CorruptBatchError(f"checksum is {computed:08x}, the batch says {header.crc:08x}")
    if header.record_count < 0 or header.last_offset_delta < (-1 if header.attributes & ATTRIBUTE_CONTROL else 0):
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
    return _assemble(body, ATTRIBUTE_CONTROL, -1, NO_TIMESTAMP, NO_TIMESTAMP, 0, base_offset, leader_epoch)


def read_own_batch(batch: Buffer) -> tuple[int, bytes]:
    """(kind, content) of a batch made by `build_own_batch`."""
    if len(batch) <= HEADER_BYTES:
        raise CorruptBatchError("an entry of our own has at least its kind behind the header")
    return batch[HEADER_BYTES], bytes(batch[HEADER_BYTES + 1 :])


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


def build_batch(records: Sequence[Record], base_offset: int = 0, leader_epoch: int = -1) -> bytearray:
    """An uncompressed batch of `records`, as a producer without idempotence sends it."""
    if not records:
        raise ValueError("a batch holds at least one record")
    base_timestamp = records[0].timestamp
    body = bytearray()
    for delta, record in enumerate(records):
        encoded = _encode_record(record, delta, record.timestamp - base_timestamp)
        _put_varint(body, len(encoded))
        body += encoded
    newest = max(record.timestamp for record in records)
    return _assemble(body, 0, len(records) - 1, base_timestamp, newest, len(records), base_offset, leader_epoch)


def read_records(batch: Buffer) -> list[Record]:
    """The records of an intact, uncompressed batch."""
    header = check_batch(batch)
    if header.attributes & ATTRIBUTE_COMPRESSION:
        raise CorruptBatchError("the batch is compressed")
    data = bytes(batch[HEADER_BYTES : header.size])
    records: list[Record] = []
    position = 0
    try:
        for _ in range(header.record_count):
            size, position = _take_varint(data, position)
            if size < 0 or position + size > len(data):
                raise CorruptBatchError(f"a record claims {size} bytes, {len(data) - position} are there")
            records.append(_decode_record(data[position : position + size], header.base_timestamp))
            position += size
    except IndexError:
        raise CorruptBatchError("a field ends behind its record") from None
    except UnicodeDecodeError as error:
        raise CorruptBatchError(f"a header's name is no UTF-8: {error}") from None
    return records


def _assemble(
    body: Buffer,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    record_count: int,
    base_offset: int,
    leader_epoch: int,
) -> bytearray:
    batch = bytearray(HEADER_BYTES + len(body))
    batch[HEADER_BYTES:] = body
    length = len(batch) - LENGTH_END

    def write_header(crc: int) -> None:
        _HEADER.pack_into(
            batch, 0, base_offset, length, leader_epoch, MAGIC, crc, attributes, last_offset_delta,
            base_timestamp, max_timestamp, NO_PRODUCER, -1, -1, record_count,
        )  # fmt: skip

    write_header(0)
    with memoryview(batch) as view, view[_CHECKED_FROM:] as checked:
        crc = crc32c(checked)
    write_header(crc)
    return batch


def _encode_record(record: Record, offset_delta: int, timestamp_delta: int) -> bytearray:
    out = bytearray(1)  # attributes: none are defined
    _put_varint(out, timestamp_delta)
    _put_varint(out, offset_delta)
    _put_bytes(out, record.key)
    _put_bytes(out, record.value)
    _put_varint(out, len(record.headers))
    for name, value in record.headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, value)
    return out


def _decode_record(data: bytes, base_timestamp: int) -> Record:
    timestamp_delta, position = _take_varint(data, 1)
    _, position = _take_varint(data, position)
    key, position = _take_bytes(data, position)
    value, position = _take_bytes(data, position)
    header_count, position = _take_varint(data, position)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _take_bytes(data, position)
        content, position = _take_bytes(data, position)
        headers.append(((name or b"").decode(), content))
    return Record(value, key, base_timestamp + timestamp_delta, tuple(headers))


def _put_varint(out: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def _take_varint(data: bytes, position: int) -> tuple[int, int]:
    zigzag = shift = 0
    while True:
        byte = data[position]
        position += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), position
        shift += 7
        if shift > 63:
            raise CorruptBatchError("a varint has more than ten bytes")


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        _put_varint(out, -1)
    else:
        _put_varint(out, len(value))
        out += value


def _take_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _take_varint(data, position)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise CorruptBatchError("a field ends behind its record")
    return data[position : position + size], position + size
