"""The records inside a version 2 batch, and what a batch must fulfil before its records are taken unseen.

Behind a batch's header stand its records, one after the other, compressed as a whole if the attributes say so:

    length | attributes 1 | timestamp delta | offset delta | key | value | number of headers | headers
    key, value, and name and value of each header: length, or -1 for null, then the bytes

Every number without a size is a varint: zigzag, seven bits a byte, the lowest first. Timestamps and offsets count from
the header's base. With the append-time bit the time of every record is the header's max timestamp instead.

Invariants. What `build_batch` made `read_records` gives back. A batch that is not what it claims to be is a
CorruptBatchError: a record's fields fill its length, its records fill the batch, and their offsets lie within the
batch. (One that was never read here may break the last three: see `check_produced`.)

Cost: `check_produced` is the hot path, constant and about half a microsecond. `set_append_time` is one checksum in C.
All else is for slow paths and tests: about 3 µs a record to read it, 1 to read its place only.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from tidelog.wire.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_BYTES,
    LENGTH_END,
    NO_PRODUCER,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    assemble,
    check_batch,
    read_header,
    seal,
)
from tidelog.wire.compression import Codec, codec_of, compress, decompress, looks_compressed

NO_OFFSET = -1
RECORD_BYTES_MIN = 7  # length, attributes, two deltas, no key, no value, no headers
_LENGTH_WITHOUT_RECORDS = HEADER_BYTES - LENGTH_END
RECORD_BYTES_MAX = 100 << 20  # of a batch's records, decompressed: as much as a request may carry without compression
ZSTD_SINCE = 7  # the version of a produce request from which on a batch may be compressed by zstd (KIP-110)

_ZSTD = int(Codec.ZSTD)  # a comparison with an enumeration's member costs as much as all the others together
_TIME_MIN, _TIME_MAX = -(2**63), 2**63 - 1
_NOT_FROM_PRODUCERS = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_APPEND_TIME


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    offset: int = field(default=NO_OFFSET, compare=False)  # where it was read: its place, not what it says


# --- Is a produced batch fit to be taken? ----------------------------------------------------------------------------


class InvalidReason(Enum):
    """Why a produced batch is refused, with the error code of Kafka's protocol that says so."""

    RECORD_COUNT = ("it holds no record, or fewer bytes than its records need", 87)
    OFFSET_DELTA = ("its last offset delta does not fit its number of records", 87)
    CONTROL = ("clients do not write control batches", 87)
    TRANSACTIONAL = ("transactions are not supported", 87)
    TIMESTAMP_TYPE = ("only the log sets the append time", 32)
    PRODUCER = ("it has a producer id, but no epoch or sequence", 87)
    CODEC = ("there is no such codec", 76)
    ZSTD_VERSION = (f"zstd needs a produce request of version {ZSTD_SINCE} or later", 76)
    PAYLOAD = ("its records do not begin as its codec says", 2)

    @property
    def kafka_error(self) -> int:
        return self.value[1]


class InvalidBatchError(ValueError):
    """An intact batch that must not be appended."""

    def __init__(self, reason: InvalidReason) -> None:
        super().__init__(f"the batch is refused: {reason.value[0]}")
        self.reason = reason


def check_produced(header: BatchHeader, batch: Buffer, produce_version: int, position: int = 0) -> None:
    """Refuse what a produce request must not carry, as far as the header and the first bytes behind it tell.

    `header` is that of the intact batch at `position` in `batch`. Records are not looked at, so that the cost is that
    of a batch: one whose records are garbage under a right checksum is taken, and its readers refuse it.
    """
    _, length, _, _, _, attributes, last_offset_delta, _, _, producer_id, epoch, sequence, record_count = header
    room = RECORD_BYTES_MAX if attributes & ATTRIBUTE_COMPRESSION else length - _LENGTH_WITHOUT_RECORDS
    if not 1 <= record_count * RECORD_BYTES_MIN <= room:
        raise InvalidBatchError(InvalidReason.RECORD_COUNT)
    if last_offset_delta != record_count - 1:
        raise InvalidBatchError(InvalidReason.OFFSET_DELTA)
    if attributes & _NOT_FROM_PRODUCERS:
        raise InvalidBatchError(_reason_against(attributes))
    if producer_id >= 0 and (epoch < 0 or sequence < 0):
        raise InvalidBatchError(InvalidReason.PRODUCER)
    codec = attributes & ATTRIBUTE_COMPRESSION
    if codec:
        if codec >= _ZSTD:
            if codec > _ZSTD:
                raise InvalidBatchError(InvalidReason.CODEC)
            if produce_version < ZSTD_SINCE:
                raise InvalidBatchError(InvalidReason.ZSTD_VERSION)
        if not looks_compressed(codec, batch, position + HEADER_BYTES):
            raise InvalidBatchError(InvalidReason.PAYLOAD)


def _reason_against(attributes: int) -> InvalidReason:
    if attributes & ATTRIBUTE_CONTROL:
        return InvalidReason.CONTROL
    if attributes & ATTRIBUTE_TRANSACTIONAL:
        return InvalidReason.TRANSACTIONAL
    return InvalidReason.TIMESTAMP_TYPE


def set_append_time(batch: bytearray | memoryview, now_ms: int) -> None:
    """Give every record of the batch the log's time. `batch` is the whole batch and nothing else."""
    attributes = read_header(batch).attributes
    struct.pack_into(">h", batch, 21, attributes | ATTRIBUTE_APPEND_TIME)
    struct.pack_into(">q", batch, 35, now_ms)  # max timestamp
    seal(batch)


# --- Batches from records, and back ----------------------------------------------------------------------------------


def build_batch(
    records: Iterable[Record],
    base_offset: int = 0,
    leader_epoch: int = -1,
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    append_time_ms: int | None = None,
) -> bytearray:
    """A batch of `records`, which get the offsets from `base_offset` on; their own are not looked at."""
    body = bytearray()
    count = base_timestamp = newest = 0
    for record in records:
        if count == 0:
            base_timestamp = newest = record.timestamp
        elif record.timestamp > newest:
            newest = record.timestamp
        encoded = _encode_record(record, count, record.timestamp - base_timestamp)
        _put_varint(body, len(encoded))
        body += encoded
        count += 1
    if count == 0:
        raise ValueError("a batch holds at least one record")
    return assemble(
        body if codec is Codec.NONE else compress(codec, body),
        attributes=codec | (0 if append_time_ms is None else ATTRIBUTE_APPEND_TIME),
        last_offset_delta=count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=newest if append_time_ms is None else append_time_ms,
        record_count=count,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def read_records(batch: Buffer, bytes_max: int = RECORD_BYTES_MAX) -> list[Record]:
    """The records of an intact batch, with their offsets. An entry of our own has none."""
    header = check_batch(batch)
    if header.is_ours:
        return []
    return decode_records(read_content(batch, header, bytes_max), header)


def read_content(batch: Buffer, header: BatchHeader, bytes_max: int) -> bytes:
    """What stands behind the header of the batch, decompressed."""
    with memoryview(batch) as view, view[HEADER_BYTES : header.size] as payload:
        return decompress(codec_of(header.attributes), payload, bytes_max)


def decode_records(data: bytes, header: BatchHeader) -> list[Record]:
    """The records of the content of a batch with this header."""
    append_time = header.max_timestamp if header.attributes & ATTRIBUTE_APPEND_TIME else None
    try:
        return [
            _decode_record(data, position, end, offset, timestamp if append_time is None else append_time)
            for offset, timestamp, position, end in _places(data, header)
        ]
    except IndexError:
        raise CorruptBatchError("a field ends behind its record") from None
    except UnicodeDecodeError as error:
        raise CorruptBatchError(f"a header's name is no UTF-8: {error}") from None


def first_at_time(batch: Buffer, timestamp: int, bytes_max: int = RECORD_BYTES_MAX) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that is not older than `timestamp`."""
    header = check_batch(batch)
    if header.max_timestamp < timestamp or header.record_count == 0:
        return None
    if header.attributes & ATTRIBUTE_APPEND_TIME:
        return header.base_offset, header.max_timestamp
    for offset, at, _, _ in _places(read_content(batch, header, bytes_max), header):
        if at >= timestamp:
            return offset, at
    return None


def newest_record(batch: Buffer, bytes_max: int = RECORD_BYTES_MAX) -> tuple[int, int]:
    """(offset, timestamp) of the record with the largest timestamp; of several, the first."""
    header = check_batch(batch)
    if header.record_count == 0:
        raise CorruptBatchError("a batch without records has no newest one")
    if header.attributes & ATTRIBUTE_APPEND_TIME:
        return header.base_offset, header.max_timestamp
    places = _places(read_content(batch, header, bytes_max), header)
    return max(((offset, at) for offset, at, _, _ in places), key=lambda place: place[1])


def _places(data: bytes, header: BatchHeader) -> Iterator[tuple[int, int, int, int]]:
    """(offset, timestamp, position of the key, end) of every record. Each step moves on, so a lie ends soon."""
    base_offset, base_timestamp, delta_max = header.base_offset, header.base_timestamp, header.last_offset_delta
    end = 0
    try:
        for _ in range(header.record_count):
            size, position = _take_varint(data, end)
            end = position + size
            if size < 0 or end > len(data):
                raise CorruptBatchError(f"a record claims {size} bytes, {len(data) - position} are there")
            timestamp_delta, position = _take_varint(data, position + 1)  # behind the attributes: none are defined
            offset_delta, position = _take_varint(data, position)
            if not 0 <= offset_delta <= delta_max:
                raise CorruptBatchError(f"a record has offset delta {offset_delta}, the last has {delta_max}")
            timestamp = base_timestamp + timestamp_delta
            if not _TIME_MIN <= timestamp <= _TIME_MAX:
                raise CorruptBatchError("a record's timestamp does not fit into 64 bits")
            yield base_offset + offset_delta, timestamp, position, end
    except IndexError:
        raise CorruptBatchError("the records end too early") from None
    if end != len(data):
        raise CorruptBatchError(f"{len(data) - end} stray bytes behind the last of {header.record_count} records")


def _decode_record(data: bytes, position: int, end: int, offset: int, timestamp: int) -> Record:
    key, position = _take_bytes(data, position)
    value, position = _take_bytes(data, position)
    header_count, position = _take_varint(data, position)
    if not 0 <= header_count <= end - position:
        raise CorruptBatchError(f"a record claims {header_count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(header_count):
        name, position = _take_bytes(data, position)
        content, position = _take_bytes(data, position)
        if name is None:
            raise CorruptBatchError("a header has no name")
        headers.append((name.decode(), content))
    if position != end:
        raise CorruptBatchError(f"a record's fields end {position - end} bytes behind its end")
    return Record(value, key, timestamp, tuple(headers), offset)


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


def _put_varint(out: bytearray, value: int) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def _take_varint(data: bytes, position: int) -> tuple[int, int]:
    """(value, position behind it). Almost all have one or two bytes."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    second = data[position + 1]
    if second < 0x80:
        return ((second << 7 | byte & 0x7F) >> 1) ^ -(byte & 1), position + 2
    zigzag = byte & 0x7F | (second & 0x7F) << 7
    for shift in range(14, 70, 7):
        position += 1
        byte = data[position + 1]
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (zigzag >> 1) ^ -(zigzag & 1), position + 2
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
    end = position + size
    if end > len(data):
        raise CorruptBatchError("a field ends behind its record")
    return data[position:end], end
