"""Kafka's record batches into Arrow, vectorised.

A run of whole batches, as a fetch brings it, becomes Arrow record batches of about `GROUP_RECORDS` rows. Python walks
over the batches and, where the records are not laid out as in the batch before, over their lengths, and nothing else a
record: every other number is read for all records of a group at once. Keys and values are gathered by Arrow: the
positions where each begins and ends, laid as the offsets of one BinaryArray over the untouched buffer, make it an array
in which every second slot is wanted, and `take` copies just those.

Invariants. Each batch's checksum is checked. Control batches and records outside [start, end) are left out. The rows
are those that `tidelog.wire.records` reads, in the same order; what it refuses is refused here as well, except that the
headers of records are not looked at unless they are wanted.

Cost: a third of a microsecond a record with key and value, half of one where records differ in size. The memory is that
of one group beside the run itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.spark.kernel.arrays import constant_text, numbers, optional_numbers
from tidelog.spark.kernel.varints import Bytes, Ints, skip_varints, take_varints
from tidelog.wire.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_COMPRESSION,
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    BatchHeader,
    CorruptBatchError,
    check_batch,
)
from tidelog.wire.compression import codec_of, decompress
from tidelog.wire.records import RECORD_BYTES_MAX

GROUP_RECORDS = 20_000  # best on our machines: fewer cost more calls, more leave the caches
GROUP_BYTES = 32 << 20  # of content: large records must not make a group of gigabytes
RAW_BYTES = 256 << 10  # of a raw row: Java's heap has to find it in one piece, and copies it while it is in the caches
ALIKE_MIN = 32  # records of a batch; with fewer it takes longer to compare than to walk
_LONG = 0x8080  # of the first two bytes of a record: its length has more than these
TIMESTAMP_MS_MAX = (1 << 63) // 1000 - 1  # Spark's timestamps are microseconds in 64 bits

HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TIMESTAMP = pa.timestamp("us", tz="UTC")

RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", TIMESTAMP),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
RAW_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("endOffset", pa.int64()),
        pa.field("payload", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run of batches comes from, and which of its offsets are wanted: start <= offset < end."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Piece:
    header: BatchHeader
    begin: int  # of its records, in the run
    end: int


def decode_raw(run: bytearray | memoryview | bytes, place: Place, schema: pa.Schema = RAW_SCHEMA) -> pa.RecordBatch:
    """A row for every about `RAW_BYTES`: whole batches, as they lie, and which of their offsets count."""
    groups = list(_groups(run, place, RAW_BYTES))
    begins = _each(group[0].begin - HEADER_BYTES for group in groups)
    ends = _each(group[-1].end for group in groups)
    columns = {
        "topic": constant_text(place.topic, len(groups)),
        "partition": numbers(np.full(len(groups), place.partition, dtype=np.int32)),
        "offset": numbers(_each(max(place.start, group[0].header.base_offset) for group in groups)),
        "endOffset": numbers(_each(min(place.end, group[-1].header.next_offset) for group in groups)),
        "payload": _stretches(pa.py_buffer(run), begins, ends),
    }
    return pa.RecordBatch.from_arrays([columns[field.name] for field in schema], schema=schema)


def decode_records(run: bytearray | memoryview | bytes, place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a run; `schema` has columns of `RECORD_SCHEMA`, in any order."""
    for group in _groups(run, place, GROUP_BYTES):
        try:
            for pieces, content, spans in _contents(run, group):
                decoded = _decode_group(pieces, content, spans, place, schema)
                for begin in range(0, decoded.num_rows, GROUP_RECORDS):
                    yield decoded.slice(begin, GROUP_RECORDS) if decoded.num_rows > GROUP_RECORDS else decoded
        except IndexError:
            raise CorruptBatchError(f"{_where(place, group)}: the records end too early") from None
        except CorruptBatchError as error:
            raise CorruptBatchError(f"{_where(place, group)}: {error}") from None


def _where(place: Place, group: Sequence[_Piece]) -> str:
    first, last = group[0].header.base_offset, group[-1].header.next_offset
    return f"{place.topic}-{place.partition}, offsets {first} to {last}"


def _groups(run: bytearray | memoryview | bytes, place: Place, bytes_max: int) -> Iterator[list[_Piece]]:
    """The batches of a run that matter, so many at a time that a group has about `GROUP_RECORDS` records."""
    group: list[_Piece] = []
    records = size = position = 0
    while position < len(run):
        header = check_batch(run, position)
        piece = _Piece(header, position + HEADER_BYTES, position + header.size)
        position += header.size
        if header.attributes & ATTRIBUTE_CONTROL or not header.record_count:
            if group:  # a raw row is one stretch of the run: it ends here
                yield group
                group, records, size = [], 0, 0
            continue
        if header.next_offset <= place.start or header.base_offset >= place.end:
            continue
        group.append(piece)
        records += header.record_count
        size += header.size
        if records >= GROUP_RECORDS or size >= bytes_max:
            yield group
            group, records, size = [], 0, 0
    if group:
        yield group


# --- one group --------------------------------------------------------------------------------------------------------


def _decode_group(
    group: Sequence[_Piece],
    content: bytearray | memoryview | bytes,
    spans: Sequence[tuple[int, int]],
    place: Place,
    schema: pa.Schema,
) -> pa.RecordBatch:
    starts, ends, counts = _walk(content, group, spans)
    data = np.frombuffer(content, dtype=np.uint8)
    if (data[starts] & 1).any():  # zigzag
        raise CorruptBatchError("a record has a negative length")
    at = skip_varints(data, starts) + 1  # behind the attributes: none are defined
    time_deltas, at = take_varints(data, at)
    offset_deltas, at = take_varints(data, at)
    key_sizes, key_at = take_varints(data, at)
    value_sizes, value_at = take_varints(data, key_at + np.maximum(key_sizes, 0))
    header_counts, at = take_varints(data, value_at + np.maximum(value_sizes, 0))
    if (at > ends).any() or ((at != ends) & (header_counts == 0)).any():
        raise CorruptBatchError("a record's fields do not end with it")
    if (header_counts < 0).any() or (header_counts > ends - at).any():
        raise CorruptBatchError("a record claims more headers than it has room for")
    last_deltas = _repeat([piece.header.last_offset_delta for piece in group], counts)
    if (offset_deltas < 0).any() or (offset_deltas > last_deltas).any():
        raise CorruptBatchError("a record's offset lies outside its batch")
    offsets = _repeat([piece.header.base_offset for piece in group], counts) + offset_deltas

    keep = None
    if offsets.size and (offsets[0] < place.start or int(offsets.max()) >= place.end or offsets.min() < place.start):
        keep = np.flatnonzero((offsets >= place.start) & (offsets < place.end))

    def kept(values: Ints) -> Ints:
        return values if keep is None else values[keep]

    buffer = pa.py_buffer(content)
    count = len(offsets) if keep is None else len(keep)

    def column(name: str) -> pa.Array:
        match name:
            case "key":
                return gather(buffer, kept(key_at), kept(key_sizes))
            case "value":
                return gather(buffer, kept(value_at), kept(value_sizes))
            case "topic":
                return constant_text(place.topic, count)
            case "partition":
                return numbers(np.full(count, place.partition, dtype=np.int32))
            case "offset":
                return numbers(kept(offsets))
            case "timestamp":
                return _timestamps(kept(_times(group, counts, time_deltas)))
            case "timestampType":
                kinds = [1 if piece.header.attributes & ATTRIBUTE_APPEND_TIME else 0 for piece in group]
                return numbers(kept(_repeat(kinds, counts)).astype(np.int32))
            case "headers":
                return _headers(data, buffer, kept(at), kept(ends), kept(header_counts))
            case _:
                raise AssertionError(f"no such column: {name}")

    return pa.RecordBatch.from_arrays([column(field.name) for field in schema], schema=schema)


def _contents(
    run: bytearray | memoryview | bytes, group: Sequence[_Piece]
) -> Iterator[tuple[Sequence[_Piece], bytearray | memoryview | bytes, list[tuple[int, int]]]]:
    """Some batches of the group, what holds their records, decompressed, and where in it those of each begin and end.
    Only who decompresses knows how much that is: what becomes too much (Arrow counts it in 32 bits) comes in parts."""
    if not any(piece.header.attributes & ATTRIBUTE_COMPRESSION for piece in group):
        yield group, run, [(piece.begin, piece.end) for piece in group]
        return
    view = memoryview(run)
    parts: list[bytes] = []
    spans: list[tuple[int, int]] = []
    position = first = 0
    for number, piece in enumerate(group, 1):
        part = decompress(codec_of(piece.header.attributes), view[piece.begin : piece.end], RECORD_BYTES_MAX)
        parts.append(part)
        spans.append((position, position + len(part)))
        position += len(part)
        if position >= GROUP_BYTES or number == len(group):
            yield group[first:number], b"".join(parts), spans
            parts, spans, position, first = [], [], 0, number


def _walk(
    data: bytearray | memoryview | bytes, group: Sequence[_Piece], spans: Sequence[tuple[int, int]]
) -> tuple[Ints, Ints, list[int]]:
    """Where each record begins and ends.

    Python goes over the records of a batch one by one, unless an earlier batch has as many records in as many bytes,
    and what stands at the beginnings of its records stands here too: then they begin at those places, one by one.
    """
    parts: list[Ints] = []
    loose: list[int] = []  # beginnings that are not yet among the parts
    walked = _Walked(data)
    for piece, (begin, end) in zip(group, spans, strict=True):
        count = piece.header.record_count
        starts = walked.starts_alike(begin, end, count)
        if starts is None:
            found = _record_starts(data, begin, end, count)
            loose += found
            walked.is_now(begin, end, found)
        else:
            parts += (np.array(loose, dtype=np.int64), starts)
            loose = []
    counts = [piece.header.record_count for piece in group]
    begins = np.concatenate([*parts, np.array(loose, dtype=np.int64)])
    ends = np.empty_like(begins)
    ends[:-1] = begins[1:]
    ends[np.cumsum(counts) - 1] = [end for _, end in spans]
    return begins, ends, counts


class _Walked:
    """The batch that was walked over last."""

    def __init__(self, data: bytearray | memoryview | bytes) -> None:
        self._marks = np.ndarray(max(0, len(data) - 1), "<u2", buffer=data, strides=(1,))  # two bytes at every place
        self._size = 0
        self._begin = 0
        self._starts: list[int] = []
        self._inside: tuple[Ints, npt.NDArray[np.uint16]] | None = None  # beginnings within it, and what stands there

    def is_now(self, begin: int, end: int, starts: list[int]) -> None:
        self._size, self._begin, self._starts, self._inside = end - begin, begin, starts, None

    def starts_alike(self, begin: int, end: int, count: int) -> Ints | None:
        """Beginnings of the records of another batch, if they lie as in this one."""
        if count < ALIKE_MIN or count != len(self._starts) or end - begin != self._size:
            return None
        if self._inside is None:
            starts = np.array(self._starts, dtype=np.int64)
            self._inside = starts - self._begin, self._marks[starts]
        inside, marks = self._inside
        starts = inside + begin
        alike = np.array_equal(self._marks[starts], marks) and not ((marks & _LONG) == _LONG).any()
        return starts if alike else None


def _record_starts(data: bytearray | memoryview | bytes, begin: int, end: int, count: int) -> list[int]:
    """The one loop that Python makes over records."""
    if count > end - begin:
        raise CorruptBatchError(f"{end - begin} bytes cannot hold {count} records")
    starts: list[int] = []
    append = starts.append
    position = begin
    for _ in range(count):  # nothing is checked in here that can be checked for all of them afterwards
        append(position)
        byte = data[position]
        if byte >= 0x80:
            second = data[position + 1]
            if second < 0x80:
                position += 2 + (second << 6) + ((byte & 0x7F) >> 1)
            else:
                position = _behind_long_record(data, position)
        else:
            position += 1 + (byte >> 1)
    if position != end:
        raise CorruptBatchError(f"its {count} records do not fill the batch")
    return starts


def _behind_long_record(data: bytearray | memoryview | bytes, position: int) -> int:
    """Where a record ends whose length has more than two bytes."""
    size = shift = 0
    while True:
        byte = data[position]
        size |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            break
        if shift > 28:
            raise CorruptBatchError("a record's length has more than 32 bits")
    return position + (size >> 1)


def gather(buffer: pa.Buffer, begins: Ints, sizes: Ints) -> pa.Array:
    """The byte strings at these places, which rise; a negative size stands for null."""
    count = len(begins)
    if not count:
        return pa.nulls(0, pa.binary())
    nulls = sizes < 0
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = begins
    bounds[1::2] = begins + np.maximum(sizes, 0)
    slots = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), buffer])
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    return slots.take(optional_numbers(wanted, nulls) if nulls.any() else numbers(wanted))


def _stretches(buffer: pa.Buffer, begins: Ints, ends: Ints) -> pa.Array:
    """The same of stretches, as they lie: nothing is copied when each begins where the one before ends."""
    if not len(begins) or (begins[1:] != ends[:-1]).any():
        return gather(buffer, begins, ends - begins)
    bounds = np.append(begins, ends[-1]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(begins), [None, pa.py_buffer(bounds), buffer])


def _times(group: Sequence[_Piece], counts: Sequence[int], deltas: Ints) -> Ints:
    bases = _repeat([piece.header.base_timestamp for piece in group], counts)
    times = bases + deltas
    if (((bases ^ times) & (deltas ^ times)) < 0).any():
        raise CorruptBatchError("a record's timestamp does not fit into 64 bits")
    if any(piece.header.attributes & ATTRIBUTE_APPEND_TIME for piece in group):
        appended = _repeat([bool(piece.header.attributes & ATTRIBUTE_APPEND_TIME) for piece in group], counts)
        times = np.where(appended, _repeat([piece.header.max_timestamp for piece in group], counts), times)
    return times


def _timestamps(times_ms: Ints) -> pa.Array:
    if times_ms.size and (int(times_ms.max()) > TIMESTAMP_MS_MAX or int(times_ms.min()) < -TIMESTAMP_MS_MAX):
        raise CorruptBatchError("a record's timestamp does not fit into Spark's microseconds")
    return pa.Array.from_buffers(TIMESTAMP, len(times_ms), [None, pa.py_buffer(times_ms * 1000)])


def _headers(data: Bytes, buffer: pa.Buffer, at: Ints, ends: Ints, counts: Ints) -> pa.Array:
    """A list for each record; null where there are none, as in Spark's Kafka source."""
    total = int(counts.sum())
    if not total:
        return pa.nulls(len(counts), HEADERS)
    bounds = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=bounds[1:])
    name_at, name_sizes, value_at, value_sizes = (np.empty(total, dtype=np.int64) for _ in range(4))
    at = at.copy()
    rows = np.flatnonzero(counts)
    number = 0
    while rows.size:
        slots = bounds[rows] + number
        sizes, places = take_varints(data, at[rows])
        if (sizes < 0).any():
            raise CorruptBatchError("a header has no name")
        name_at[slots], name_sizes[slots] = places, sizes
        sizes, places = take_varints(data, places + sizes)
        value_at[slots], value_sizes[slots] = places, sizes
        at[rows] = places + np.maximum(sizes, 0)
        if (at[rows] > ends[rows]).any():
            raise CorruptBatchError("a header ends behind its record")
        number += 1
        rows = rows[counts[rows] > number]
    if ((at != ends) & (counts > 0)).any():
        raise CorruptBatchError("a record's fields do not end with it")
    try:
        names = gather(buffer, name_at, name_sizes).cast(pa.string())
    except pa.ArrowInvalid:
        raise CorruptBatchError("a header's name is no UTF-8") from None
    pairs = pa.StructArray.from_arrays([names, gather(buffer, value_at, value_sizes)], fields=list(HEADERS.value_type))
    empty = np.append(counts == 0, False)
    offsets = optional_numbers(bounds, empty)  # a null offset makes a null list
    return pa.ListArray.from_arrays(offsets, pairs, type=HEADERS)


def _each(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _repeat(values: Sequence[int], counts: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.repeat(np.array(values, dtype=np.int64), counts)
