"""A region's metadata as bytes: HoraeDB's protobuf message, with fields of ours that its decoder skips.

    RegionMetaSnapshot { repeated TableMetaData entries = 2;  RegionExtra extra = 1001; }
    TableMetaData { uint64 table_id = 1;  uint64 next_sequence_num = 2;  uint64 latest_marked_deleted = 3;
                    int64 current_high_watermark = 4;  oneof safe_delete_offset { int64 offset = 5; }
                    bytes runs = 1001; }
    RegionExtra { uint64 serial = 1;  uint64 data_epoch = 2;  uint64 data_high_watermark = 3;  uint64 total_bytes = 4;
                  bytes byte_marks = 5; }

`runs` is the table's whole sequence→offset map: for each run the varints count, offset minus the run before's last
offset, stride, width - 1; the first sequence number is `latest_marked_deleted`. `byte_marks` is varints too: offset and
bytes, each minus the one before. The message is encoded here by hand: it is small, and protobuf's runtime is not needed
for anything else. As proto3 says, a field that is 0 is left out, and unknown fields are skipped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.regionwal.formats import U64_MAX, FormatError
from tidelog.regionwal.meta import TableMeta
from tidelog.regionwal.sequence_map import SequenceMap

EXTRA_FIELD = 1001  # far above what HoraeDB's message may grow to

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES_MAX = 10


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A region's metadata as the data topic's records below `data_high_watermark` made it, and the marks."""

    serial: int = 0
    """Grows by one with each snapshot of the region: the largest is the last, whatever order they arrive in."""

    data_epoch: int = 0
    data_high_watermark: int = 0
    tables: dict[int, TableMeta] = field(default_factory=dict)
    total_bytes: int = 0
    byte_marks: tuple[tuple[int, int], ...] = ()

    def encode(self) -> bytes:
        message = bytearray()
        for table, meta in self.tables.items():
            _put_bytes(message, 2, _encode_table(table, meta))
        extra = bytearray()
        _put_number(extra, 1, self.serial)
        _put_number(extra, 2, self.data_epoch)
        _put_number(extra, 3, self.data_high_watermark)
        _put_number(extra, 4, self.total_bytes)
        if self.byte_marks:
            _put_bytes(extra, 5, _encode_byte_marks(self.byte_marks))
        _put_bytes(message, EXTRA_FIELD, extra)
        return bytes(message)

    @classmethod
    def decode(cls, encoded: bytes) -> "Snapshot":
        tables: dict[int, TableMeta] = {}
        extra: dict[int, int | bytes] | None = None
        for number, value in _fields(encoded):
            if number == 2 and isinstance(value, bytes):
                table, meta = _decode_table(value)
                if table in tables:
                    raise FormatError(f"the snapshot has table {table} twice")
                tables[table] = meta
            elif number == EXTRA_FIELD and isinstance(value, bytes):
                extra = dict(_fields(value))
        if extra is None:
            raise FormatError("the snapshot has no sequence→offset map: other software wrote it")
        marks = extra.get(5, b"")
        return cls(
            serial=_number(extra.get(1, 0)),
            data_epoch=_number(extra.get(2, 0)),
            data_high_watermark=_number(extra.get(3, 0)),
            tables=tables,
            total_bytes=_number(extra.get(4, 0)),
            byte_marks=_decode_byte_marks(marks if isinstance(marks, bytes) else b""),
        )


def _encode_table(table: int, meta: TableMeta) -> bytes:
    message = bytearray()
    _put_number(message, 1, table)
    _put_number(message, 2, meta.next_seq_num)
    _put_number(message, 3, meta.latest_marked_deleted)
    _put_number(message, 4, meta.current_high_watermark)
    offset = meta.safe_delete_offset
    if offset is not None:
        _put_number(message, 5, offset, always=True)  # in a oneof, 0 is not the same as absent
        runs = bytearray()
        last = 0
        for run in meta.seq_offset_mapping.runs():
            for number in (run.count, run.offset - last, run.stride, run.width - 1):
                _put_varint(runs, number)
            last = run.last_offset
        _put_bytes(message, EXTRA_FIELD, runs)
    return bytes(message)


def _decode_table(encoded: bytes) -> tuple[int, TableMeta]:
    found = dict(_fields(encoded))
    meta = TableMeta(_number(found.get(2, 0)), _number(found.get(3, 0)), _number(found.get(4, 0)), SequenceMap())
    table, sequence, last = _number(found.get(1, 0)), meta.latest_marked_deleted, 0
    runs = found.get(EXTRA_FIELD, b"")
    if not isinstance(runs, bytes):
        raise FormatError("the snapshot has a number where bytes belong")
    numbers = list(_varints(runs))
    if len(numbers) % 4:
        raise FormatError(f"the map of table {table} ends within a run")
    for count, delta, stride, wide in zip(*[iter(numbers)] * 4, strict=True):
        if count == 0:
            raise FormatError(f"the map of table {table} has an empty run")
        if last + delta + count * (stride + 1) + wide > U64_MAX:
            raise FormatError(f"the map of table {table} goes beyond any log")
        meta.seq_offset_mapping.append(sequence, last + delta, count, stride, wide + 1)
        sequence += count
        last += delta + (count - 1) * stride
    if sequence != meta.next_seq_num:
        raise FormatError(f"the map of table {table} ends before {sequence}, its next sequence is {meta.next_seq_num}")
    return table, meta


def _encode_byte_marks(marks: tuple[tuple[int, int], ...]) -> bytes:
    encoded = bytearray()
    before = (0, 0)
    for mark in marks:
        _put_varint(encoded, mark[0] - before[0])
        _put_varint(encoded, mark[1] - before[1])
        before = mark
    return bytes(encoded)


def _decode_byte_marks(encoded: bytes) -> tuple[tuple[int, int], ...]:
    numbers = list(_varints(encoded))
    if len(numbers) % 2:
        raise FormatError("the byte marks end within a mark")
    offset = size = 0
    marks: list[tuple[int, int]] = []
    for more_offset, more_size in zip(*[iter(numbers)] * 2, strict=True):
        offset, size = offset + more_offset, size + more_size
        marks.append((offset, size))
    return tuple(marks)


# --- protobuf --------------------------------------------------------------------------------------------------------


def _put_varint(out: bytearray, number: int) -> None:
    assert number >= 0
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_number(out: bytearray, field_number: int, number: int, always: bool = False) -> None:
    if number or always:
        _put_varint(out, field_number << 3 | VARINT)
        _put_varint(out, number)


def _put_bytes(out: bytearray, field_number: int, content: bytes | bytearray) -> None:
    _put_varint(out, field_number << 3 | BYTES)
    _put_varint(out, len(content))
    out += content


def _varint(encoded: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    for _ in range(VARINT_BYTES_MAX):
        if position >= len(encoded):
            raise FormatError("the snapshot ends within a number")
        byte = encoded[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number > U64_MAX:
                raise FormatError("the snapshot has a number of more than 64 bits")
            return number, position
        shift += 7
    raise FormatError(f"the snapshot has a number of more than {VARINT_BYTES_MAX} bytes")


def _varints(encoded: bytes) -> Iterator[int]:
    position = 0
    while position < len(encoded):
        number, position = _varint(encoded, position)
        yield number


def _fields(encoded: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers with their values; a fixed-width value, which none of our fields is, comes as its bytes."""
    position = 0
    while position < len(encoded):
        tag, position = _varint(encoded, position)
        kind = tag & 7
        if kind == VARINT:
            value, position = _varint(encoded, position)
            yield tag >> 3, value
            continue
        if kind == BYTES:
            length, position = _varint(encoded, position)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise FormatError(f"the snapshot has a field of wire type {kind}, which protobuf does not have")
        if position + length > len(encoded):
            raise FormatError("the snapshot ends within a field")
        yield tag >> 3, encoded[position : position + length]
        position += length


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise FormatError("the snapshot has bytes where a number belongs")
    return value
