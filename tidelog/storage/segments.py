"""The segments of one stream, oldest first: finding an entry by index, offset or time, and reading from their files."""

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tidelog.raft.log import Buffer, Entry, EntryKind
from tidelog.storage.errors import CorruptDataError
from tidelog.storage.readers import FileRange, SegmentReaders
from tidelog.storage.rows import (
    offset_delta_at,
    position_at,
    row_at,
    row_of_offset,
    row_of_position,
    row_of_timestamp,
    timestamp_at,
)
from tidelog.storage.segment import LOG_SUFFIX, Segment
from tidelog.wire.batch import HEADER_BYTES, CorruptBatchError, check_batch, read_own_batch


class Segments:
    """Consecutive segments: each begins at the index and the offset where the one before ends."""

    def __init__(self, folder: str, segments: Sequence[Segment], readers: SegmentReaders) -> None:
        self._folder = folder
        self._segments = list(segments)
        self._readers = readers

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def last(self) -> Segment:
        return self._segments[-1]

    def append(self, segment: Segment) -> None:
        self._segments.append(segment)

    def take_first(self, count: int) -> list[Segment]:
        """Remove the oldest `count` segments and return them."""
        taken = self._segments[:count]
        del self._segments[:count]
        return taken

    def take_from(self, index: int) -> list[Segment]:
        """Remove the segments that begin at `index` or behind it; returns them newest first."""
        taken = [segment for segment in reversed(self._segments) if segment.first_index >= index]
        del self._segments[len(self._segments) - len(taken) :]
        return taken

    def rows(self, segment: Segment) -> Buffer:
        rows = segment.rows
        return self._readers.reader(self._folder, segment).rows() if rows is None else rows

    def of_index(self, index: int) -> Segment:
        return self._segments[bisect_right(self._segments, index, key=_first_index) - 1]

    def offset_of(self, index: int) -> int:
        """Base offset of the entry at `index`."""
        segment = self.of_index(index)
        return segment.base_offset + offset_delta_at(self.rows(segment), index - segment.first_index)

    def locate(self, offset: int) -> tuple[Segment, int]:
        """The segment, and its row, of the entry that holds `offset`, which must lie in the log."""
        segment = self._segments[bisect_right(self._segments, offset, key=_base_offset) - 1]
        return segment, row_of_offset(self.rows(segment), segment.count, offset - segment.identity.base_offset)

    def index_of_offset(self, offset: int) -> int:
        segment, number = self.locate(offset)
        return segment.first_index + number

    def index_at_time(self, timestamp: int, first: int) -> int | None:
        """Index of the first entry from `first` on that reaches `timestamp`, or stands behind one that does."""
        for segment in self._segments:
            if segment.newest_timestamp >= timestamp and segment.last_index >= first:
                number = row_of_timestamp(self.rows(segment), segment.count, timestamp)
                return max(first, segment.first_index + number)
        return None

    def newest_timestamp(self, last_index: int) -> int:
        """Of all entries up to `last_index`: each row says it for its segment so far."""
        newest = -1
        for segment in self._segments:
            if segment.last_index <= last_index:
                newest = max(newest, segment.newest_timestamp)
            elif segment.first_index <= last_index:
                newest = max(newest, timestamp_at(self.rows(segment), last_index - segment.first_index))
        return newest

    def own_indexes(self, first: int, last: int, kind: EntryKind | None = None) -> list[int]:
        """Indexes of the entries first..last that are not records: all, or those of one kind."""
        return [
            segment.first_index + number
            for segment in self._segments
            if segment.controls and segment.first_index <= last and segment.last_index >= first
            for number in segment.controls
            if first <= segment.first_index + number <= last
            and (kind is None or row_at(self.rows(segment), number).kind == kind)
        ]

    def file_ranges(self, segment: Segment, number: int, last: int, bytes_max: int) -> list[FileRange]:
        """Where the record batches lie from row `number` on, up to index `last`; see StreamLog.read for the bounds."""
        reader = self._readers.reader(self._folder, segment)
        rows = reader.rows()
        last_number = min(last, segment.last_index) - segment.first_index
        ranges: list[FileRange] = []
        for first, end in _runs_between(segment.controls, number, last_number):
            position = position_at(rows, first)
            fitting = _last_row_within(segment, rows, first, end, position + bytes_max)
            if fitting < first:
                if ranges:
                    break
                fitting = first  # one batch in any case
            length = segment.end_of(rows, fitting) - position
            ranges.append(FileRange(reader, position, length))
            bytes_max -= length
            if fitting < end:
                break
        return ranges

    def batch_headers(self, segment: Segment, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """(index, header) of the segment's record batches among first..last."""
        reader = self._readers.reader(self._folder, segment)
        rows = reader.rows()
        first_number, last_number = first - segment.first_index, min(last, segment.last_index) - segment.first_index
        for run_first, run_last in _runs_between(segment.controls, first_number, last_number):
            for number in range(run_first, run_last + 1):
                yield segment.first_index + number, reader.file.read_at(position_at(rows, number), HEADER_BYTES)

    def entries(self, first: int, last: int, bytes_max: int) -> list[Entry]:
        """Entries first..last from the file, checked: what a disk has damaged must not reach another replica."""
        segment = self.of_index(first)
        rows = self.rows(segment)
        number, last_number = first - segment.first_index, min(last, segment.last_index) - segment.first_index
        position = position_at(rows, number)
        last_number = max(number, _last_row_within(segment, rows, number, last_number, position + bytes_max))
        reader = self._readers.reader(self._folder, segment)
        data = memoryview(reader.file.read_at(position, segment.end_of(rows, last_number) - position))
        return [self._checked_entry(segment, rows, n, data, position) for n in range(number, last_number + 1)]

    def _checked_entry(self, segment: Segment, rows: Buffer, number: int, data: memoryview, start: int) -> Entry:
        row = row_at(rows, number)
        batch = data[row.position - start : segment.end_of(rows, number) - start]
        try:
            header = check_batch(batch)
            place = (segment.base_offset + row.offset_delta, row.term, row.batch_crc)
            if (header.base_offset, header.leader_epoch, header.crc) != place:
                raise CorruptBatchError("the batch is not the one that the index names")
        except CorruptBatchError as error:
            path = os.path.join(self._folder, segment.closed_name + LOG_SUFFIX)
            raise CorruptDataError(path, row.position, str(error)) from error
        kind = EntryKind(row.kind)
        content: Buffer = batch if kind is EntryKind.DATA else read_own_batch(batch)[1]
        return Entry(segment.first_index + number, row.term, kind, content)


def _first_index(segment: Segment) -> int:
    return segment.first_index


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _runs_between(controls: Sequence[int], first: int, last: int) -> Iterator[tuple[int, int]]:
    """The runs of rows in first..last that hold records, as (first, last) pairs."""
    for control in controls[bisect_right(controls, first - 1) :]:
        if control > last:
            break
        if first < control:
            yield first, control - 1
        first = control + 1
    if first <= last:
        yield first, last


def _last_row_within(segment: Segment, rows: Buffer, first: int, last: int, position_max: int) -> int:
    """The last row of first..last that ends at or before `position_max`; first - 1 when not even the first one does."""
    if segment.end_of(rows, last) <= position_max:
        return last
    beginning = min(last, row_of_position(rows, segment.count, position_max))
    return beginning if segment.end_of(rows, beginning) <= position_max else max(first, beginning) - 1
