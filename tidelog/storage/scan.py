"""Reading a segment back from its file after a restart: what of it counts, and what is damaged.

For an active segment three things can be told apart.

* An entry counts when its row continues the chain and its batch is intact and stands where the row says.
* What does not count and was never known to be durable is the rest of a write that a crash cut short: it is dropped.
* What does not count and was durable (a later row's `synced`, or the settled mark, says so) is damage: the node must
  not start with it.

A damaged row before intact ones is made again from its batch; the next row's chain proves that it is the same.
"""

from dataclasses import dataclass
from typing import cast

from tidelog.raft.log import Entry, EntryKind
from tidelog.storage.disk import File
from tidelog.storage.errors import CorruptDataError
from tidelog.storage.rows import ROW_BYTES, Row, chain_of, row_at
from tidelog.storage.segment import Identity, Segment, SegmentShape, decode_settled_mark
from tidelog.wire.batch import LENGTH_END, BatchHeader, CorruptBatchError, check_batch, read_frame, read_own_batch

WINDOW_BYTES = 1 << 20
_PIECE_BYTES = 4096
_EMPTY_PIECE = bytes(_PIECE_BYTES)


class Window:
    """Batches of a file, read in large pieces."""

    def __init__(self, file: File, end: int, likely_end: int | None = None) -> None:
        """Nothing is wanted behind `end`, and most likely little behind `likely_end`."""
        self._file = file
        self._end = end
        self._likely_end = end if likely_end is None else likely_end
        self._start = 0
        self._data = memoryview(b"")

    def batch(self, position: int) -> memoryview:
        """The bytes that claim to be the batch at `position`."""
        size = LENGTH_END + read_frame(self._bytes(position, LENGTH_END))[1]
        if size < LENGTH_END or position + size > self._end:
            raise CorruptBatchError(f"the batch claims {size} bytes, the file has room for {self._end - position}")
        return self._bytes(position, size)

    def _bytes(self, position: int, length: int) -> memoryview:
        at = position - self._start
        if at < 0 or at + length > len(self._data):
            available = self._end - position
            if length > available:
                raise CorruptBatchError(f"{length} bytes are wanted, the file ends after {available}")
            ahead = min(WINDOW_BYTES, max(_PIECE_BYTES, self._likely_end - position))
            self._data = memoryview(self._file.read_at(position, min(max(length, ahead), available)))
            self._start, at = position, 0
            if len(self._data) < length:
                raise CorruptBatchError(f"{length} bytes are wanted, the file has {len(self._data)}")
        return self._data[at : at + length]


@dataclass(frozen=True, slots=True)
class ScannedSegment:
    segment: Segment
    settled: int  # rows that the settled mark vouches for
    certain: int  # entries that are known to be on disk, row and batch
    stored: int  # rows in the file up to the last one that is not empty; those behind the segment's must not stay there


def scan_active(
    path: str, file: File, header: tuple[Identity, SegmentShape], trailer: bytes, count_max: int | None
) -> ScannedSegment:
    """What counts of an active segment; exactly `count_max` entries where the following segment's link says so."""
    identity, shape = header
    stored = _stored_rows(file, shape, count_max)
    chained, synced = _walk_chain(stored, identity)
    mark = decode_settled_mark(trailer)
    settled = mark[0] if mark else 0
    durable = max(synced, settled) if count_max is None else count_max
    segment = Segment(identity, shape)
    last_position = row_at(stored, chained - 1).position if chained else 0
    window = Window(file, shape.data_bytes_max, last_position + _PIECE_BYTES)
    for number in range(chained):
        try:
            take_batch(segment, window.batch(segment.length), row_at(stored, number))
        except CorruptBatchError as error:
            if number < durable:
                raise CorruptDataError(path, segment.length, f"entry {segment.last_index + 1}: {error}") from error
            break  # the rest of a write that a crash cut short
    else:
        _repair_rows(segment, window, stored)
    if segment.count < durable:
        raise CorruptDataError(
            path,
            shape.data_bytes_max + segment.count * ROW_BYTES,
            f"the row of entry {segment.last_index + 1} is damaged, {durable - segment.count} durable entries with it",
        )
    return ScannedSegment(segment, settled, min(durable, chained), -(-len(stored.rstrip(b"\0")) // ROW_BYTES))


def scan_closed(path: str, file: File, identity: Identity, shape: SegmentShape, length: int) -> Segment:
    """A closed segment whose index is lost, made again from its batches, which must fill the file."""
    segment = Segment(identity, shape)
    window = Window(file, length)
    while segment.length < length:
        try:
            take_batch(segment, window.batch(segment.length))
        except CorruptBatchError as error:
            raise CorruptDataError(path, segment.length, f"entry {segment.last_index + 1}: {error}") from error
    return segment


def _stored_rows(file: File, shape: SegmentShape, count_max: int | None) -> bytes:
    """All rows in the file but for the empty end, which is most of a young segment's, and of most files a hole."""
    first = shape.data_bytes_max
    size = shape.rows_bytes_max if count_max is None else count_max * ROW_BYTES
    if count_max is None:
        written = file.written_until(first, first + size) - first
        size = -(-written // ROW_BYTES) * ROW_BYTES
    rows = file.read_at(first, size)
    end = len(rows)
    while end and rows[max(0, end - _PIECE_BYTES) : end] == _EMPTY_PIECE[: min(end, _PIECE_BYTES)]:
        end -= min(end, _PIECE_BYTES)
    return rows[:end]


def _walk_chain(stored: bytes, identity: Identity) -> tuple[int, int]:
    """(how many rows continue the chain, how many rows those say are durable)."""
    chain = identity.salt
    synced = 0
    for number in range(len(stored) // ROW_BYTES):
        row = row_at(stored, number)
        chain = chain_of(chain, stored, number)
        if row.chain != chain:
            return number, synced
        if synced < row.synced <= number:  # a row cannot know of itself, so a larger number is damage to it
            synced = row.synced
    return len(stored) // ROW_BYTES, synced


def take_batch(segment: Segment, batch: memoryview, row: Row | None = None) -> None:
    """Append the batch that follows, when it is intact and, where a row is given, when it is the one of its row."""
    header = check_batch(batch)
    kind = _kind_of(header, batch)
    if header.base_offset != segment.next_offset:
        raise CorruptBatchError(f"base offset is {header.base_offset}, {segment.next_offset} must follow")
    if header.leader_epoch < segment.last_term:
        raise CorruptBatchError(f"leader epoch is {header.leader_epoch}, behind {segment.last_term}")
    if row is not None:
        found = (segment.next_offset - segment.base_offset, segment.length, header.leader_epoch, header.crc, kind)
        if found != (row.offset_delta, row.position, row.term, row.batch_crc, row.kind):
            raise CorruptBatchError("the batch is not the one that its row names")
    entry = Entry(segment.last_index + 1, header.leader_epoch, cast(EntryKind, kind), batch)
    facts = (header.length, header.crc, header.last_offset_delta, header.max_timestamp)
    if not segment.extend([(entry, batch, facts)], 0, 0 if row is None else row.synced):
        raise CorruptBatchError("the segment has no room for the batch")


def _kind_of(header: BatchHeader, batch: memoryview) -> int:
    return read_own_batch(batch)[0] if header.is_ours else 0


def _repair_rows(segment: Segment, window: Window, stored: bytes) -> None:
    """Go on from batches alone where the rows break off, as far as the chain of a later stored row confirms it."""
    confirmed = segment.count
    while segment.count < len(stored) // ROW_BYTES:
        try:
            take_batch(segment, window.batch(segment.length))
        except CorruptBatchError:
            break
        if row_at(stored, segment.count - 1).chain == segment.chain:
            confirmed = segment.count
    assert segment.rows is not None
    segment.cut(segment.rows, confirmed)
