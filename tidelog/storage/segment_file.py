"""The active segment's file as the writer sees it: two regions that grow, in blocks that exist already.

Only one comes here at a time: the writer's thread, or, to have a run laid out, the loop (see `append_lane`); and the
syncer's to `sync`. A direct file takes whole blocks from aligned memory,
so what is appended goes through a staging buffer, and the last, partial block of a region is kept and written again
with what follows it. The bytes before stay the same in such a rewrite, so a torn one cannot harm them. An ordinary file
takes the buffers as they are. Writing the same run again after a failure is harmless: every write names its position.

A segment with little in it is an ordinary file first. A direct write waits for the disk, and into a hole also for the
block that it needs, one write after the other; where a thousand quiet streams begin or wake, that is all the writer
does. Through the page cache they cost nothing before the sync, and those of many files run at the same time. Once a
segment holds more than BUFFERED_BYTES_MAX, or a part of a small one, it goes on as a direct file. Both handles are of
one file: a sync of either covers what was written through both, and fails if writing any of it back did.
"""

import os
from collections.abc import Callable, Sequence

from tidelog import faults
from tidelog.storage.disk import Buffer, Disk, File, Write
from tidelog.storage.rows import ROW_BYTES
from tidelog.storage.segment import (
    BLOCK_BYTES,
    HEADER_COPY_AT,
    SETTLED_AT,
    TRAILER_BYTES,
    Segment,
    SegmentShape,
    encode_header,
    encode_settled_mark,
)
from tidelog.storage.staging import Staging

BUFFERED_BYTES_MAX = 64 << 10
BUFFERED_PART = 8  # at most this part of a segment


class _Region:
    """A part of the file that is appended to from its start."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._block_at = 0  # region position of the block kept in `_block`
        self._block = b""  # its bytes so far

    def write(self, file: File, position: int, buffers: Sequence[Buffer], staging: Staging) -> None:
        if file.alignment == 1:
            file.write_at(self._start + position, buffers)
            return
        block_at = position - position % BLOCK_BYTES
        filled = position - block_at
        staging.view[:filled] = self._bytes_before(file, block_at, filled)
        for buffer in buffers:
            rest: Buffer = buffer
            while filled + len(rest) >= staging.size:
                room = staging.size - filled
                rest = memoryview(rest)  # a slice of it is no copy
                staging.view[filled:] = rest[:room]
                file.write_at(self._start + block_at, [staging.view])
                block_at += staging.size
                filled, rest = 0, rest[room:]
            staging.view[filled : filled + len(rest)] = rest
            filled += len(rest)
        whole = self._finish(staging.view, block_at, filled)
        if whole:
            file.write_at(self._start + block_at, [staging.view[:whole]])

    def stage(self, file: File, position: int, buffers: Sequence[Buffer], view: memoryview) -> tuple[int, int]:
        """Lay out in `view` what `write` would write: (where in the file, how many bytes)."""
        block_at = position - position % BLOCK_BYTES
        filled = position - block_at
        view[:filled] = self._bytes_before(file, block_at, filled)
        for buffer in buffers:
            end = filled + len(buffer)
            view[filled:end] = buffer
            filled = end
        return self._start + block_at, self._finish(view, block_at, filled)

    def _finish(self, view: memoryview, block_at: int, filled: int) -> int:
        """Make whole blocks of what lies in `view`, and keep the last one if it is partial; gives their bytes."""
        whole = -(-filled // BLOCK_BYTES) * BLOCK_BYTES
        partial_at = filled - filled % BLOCK_BYTES
        view[filled:whole] = bytes(whole - filled)
        self._block_at = block_at + partial_at
        self._block = bytes(view[partial_at:filled])
        return whole

    def _bytes_before(self, file: File, block_at: int, length: int) -> bytes:
        if not length:
            return b""
        if self._block_at == block_at and len(self._block) >= length:
            return self._block[:length]
        return file.read_at(self._start + block_at, BLOCK_BYTES)[:length]  # after a restart or a truncation


class SegmentFile:
    def __init__(self, file: File, segment: Segment, open_direct: Callable[[], File] | None = None) -> None:
        """`open_direct` opens an ordinary file as a direct one, which it shall become when it holds much."""
        shape = segment.shape
        self._file = file
        self._open_direct = open_direct
        self._buffered: File | None = None
        """The handle from before; it stays open, since a sync may be under way."""
        self._identity = segment.identity
        self._shape = shape
        self._data = _Region(0)
        self._rows = _Region(shape.data_bytes_max)

    @property
    def direct(self) -> bool:
        return self._file.alignment > 1

    def write_header(self, staging: Staging) -> None:
        self._write_trailer(b"", staging)

    def write_run(
        self,
        position: int,
        data: Sequence[Buffer],
        rows_position: int,
        rows: Sequence[Buffer],
        staging: Staging,
    ) -> None:
        if self._open_direct is not None and position + sum(map(len, data)) > buffered_bytes_max(self._shape):
            self._buffered, self._file = self._file, self._open_direct()
            self._open_direct = None
        if faults.ARMED:
            self._fail(position, data, rows_position, rows, staging)
        self._data.write(self._file, position, data, staging)
        if faults.ARMED:
            faults.hit("segment.between-data-and-rows")
        self._rows.write(self._file, rows_position, rows, staging)

    def stage_run(
        self,
        number: int,
        position: int,
        data: Sequence[Buffer],
        rows_position: int,
        rows: Sequence[Buffer],
        staging: Staging,
    ) -> tuple[Write, Write]:
        """What `write_run` writes to a direct file, laid out in `staging` for somebody else to write."""
        data_at, data_bytes = self._data.stage(self._file, position, data, staging.view)
        rows_at, rows_bytes = self._rows.stage(self._file, rows_position, rows, staging.view[data_bytes:])
        return (
            (number, self._file, data_at, staging, 0, data_bytes),
            (number + 1, self._file, rows_at, staging, data_bytes, rows_bytes),
        )

    def _fail(
        self, position: int, data: Sequence[Buffer], rows_position: int, rows: Sequence[Buffer], staging: Staging
    ) -> None:
        """Tests only: do a part of a run's writes, make sure the disk has it, and end."""
        if faults.ARMED and faults.hit("segment.torn-data"):
            joined = b"".join(data)
            self._data.write(self._file, position, [joined[: len(joined) // 2]], staging)
            self._file.sync()
            faults.crash()
        if faults.ARMED and faults.hit("segment.torn-row"):
            self._data.write(self._file, position, data, staging)
            self._rows.write(self._file, rows_position, [b"".join(rows)[:-10]], staging)
            self._file.sync()
            faults.crash()

    def write_settled_mark(self, count: int, chain: int, staging: Staging) -> None:
        self._write_trailer(encode_settled_mark(count, chain), staging)

    def take_settled_mark_back(self, staging: Staging) -> None:
        self._write_trailer(b"", staging)

    def wipe_rows(self, first: int, end: int, staging: Staging) -> None:
        self._rows.write(self._file, first * ROW_BYTES, [bytes((end - first) * ROW_BYTES)], staging)

    def _write_trailer(self, mark: bytes, staging: Staging) -> None:
        header = encode_header(self._identity, self._shape)
        block = staging.view[:TRAILER_BYTES]
        block[:] = bytes(TRAILER_BYTES)
        block[: len(header)] = header
        block[HEADER_COPY_AT : HEADER_COPY_AT + len(header)] = header
        block[SETTLED_AT : SETTLED_AT + len(mark)] = mark
        self._file.write_at(self._shape.trailer_at, [block])

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()
        if self._buffered is not None:
            self._buffered.close()


def buffered_bytes_max(shape: SegmentShape) -> int:
    return min(BUFFERED_BYTES_MAX, shape.data_bytes_max // BUFFERED_PART)


def create_segment_file(disk: Disk, folder: str, segment: Segment, staging: Staging) -> SegmentFile:
    """Begin the segment: in the prepared file of its sequence when there is one, in a new sparse one otherwise."""
    path = os.path.join(folder, segment.active_name)
    prepared = disk.exists(path)
    file = disk.open_write(path)
    try:
        if not prepared or file.size() != segment.shape.file_bytes:
            file.truncate(segment.shape.file_bytes)
            file.sync()
            disk.sync_directory(folder)
        if file.written_until(0, segment.shape.file_bytes):  # its blocks are there: no reason to wait
            file.close()
            file = disk.open_write(path, direct=True)
            segment_file = SegmentFile(file, segment)
        else:
            segment_file = SegmentFile(file, segment, lambda: disk.open_write(path, direct=True))
        segment_file.write_header(staging)
    except OSError:
        file.close()
        raise
    return segment_file


def open_segment_file(disk: Disk, folder: str, segment: Segment) -> SegmentFile:
    """Go on with a segment that recovery found."""
    path = os.path.join(folder, segment.active_name)
    if segment.length <= buffered_bytes_max(segment.shape):
        return SegmentFile(disk.open_write(path), segment, lambda: disk.open_write(path, direct=True))
    return SegmentFile(disk.open_write(path, direct=True), segment)
