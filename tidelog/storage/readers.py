"""Open files and loaded rows of segments, the most recently used ones, within a bound.

A `FileRange` keeps its segment's file open by holding the reader. A deleted segment's file is reused for other data
only when no reader of it is left, so that bytes on their way to a consumer cannot change under it.
"""

import os
import weakref
from collections import OrderedDict
from collections.abc import Sequence

from tidelog.storage.disk import Buffer, Disk, File
from tidelog.storage.errors import CorruptDataError
from tidelog.storage.index_file import ROWS_AT, decode_index
from tidelog.storage.rows import ROW_BYTES
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from tidelog.storage.small_file import read_file


class SegmentReader:
    """One segment's file, open for reading, and once it is closed its rows."""

    __slots__ = ("__weakref__", "_disk", "_file", "_folder", "_rows", "_segment")

    def __init__(self, disk: Disk, folder: str, segment: Segment) -> None:
        self._disk = disk
        self._folder = folder
        self._segment = segment
        self._rows: bytes | None = None
        self._file: File | None = None

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._open()
        return self._file

    def rows(self) -> Buffer:
        in_memory = self._segment.rows
        if in_memory is not None:
            return in_memory
        if self._rows is None:
            self._rows = self._load_rows()
        return self._rows

    def _load_rows(self) -> bytes:
        """The rows in the index file, which may still hold more of them than a truncation has left."""
        path = os.path.join(self._folder, self._segment.closed_name + INDEX_SUFFIX)
        content = read_file(self._disk, path)
        described = decode_index(content, self._segment.shape)
        if described is None or described.identity.salt != self._segment.identity.salt:
            raise CorruptDataError(path, 0, "the index is damaged since the start: restart the node, it is made again")
        if described.count < self._segment.count:
            raise CorruptDataError(path, ROWS_AT, f"the index should hold {self._segment.count} rows")
        return content[ROWS_AT : ROWS_AT + self._segment.count * ROW_BYTES]

    def open_index(self) -> File:
        """The index file of a closed segment, which has its name until the segment is trimmed."""
        return self._disk.open_read(os.path.join(self._folder, self._segment.closed_name + INDEX_SUFFIX))

    def forget_rows(self) -> None:
        self._rows = None

    def _open(self) -> File:
        """The file is renamed by housekeeping when the segment is closed, at any moment."""
        closed = os.path.join(self._folder, self._segment.closed_name + LOG_SUFFIX)
        try:
            return self._disk.open_read(os.path.join(self._folder, self._segment.active_name))
        except FileNotFoundError:
            return self._disk.open_read(closed)


class FileRange:
    """Bytes of a segment as they lie in its file. Valid as long as the object lives."""

    __slots__ = ("_reader", "file", "length", "position")

    def __init__(self, reader: SegmentReader, position: int, length: int) -> None:
        self._reader = reader
        self.file = reader.file  # opened now: later the segment may have lost its name
        self.position = position
        self.length = length

    def __len__(self) -> int:
        return self.length

    def read(self) -> bytes:
        return self.file.read_at(self.position, self.length)

    def read_into(self, memory: memoryview) -> int:
        """Read into memory that is there already: cheaper than `read` by what new memory costs."""
        return self.file.read_into(self.position, memory[: self.length])

    def read_ready(self, memory: memoryview) -> int:
        """What of it can be had without waiting for the disk, from its start on."""
        return self.file.read_ready(self.position, memory[: self.length])


Chunk = Buffer | FileRange


def chunk_bytes(chunks: Sequence[Chunk]) -> bytes:
    """The chunks' content, joined: for tests and tools. Servers send chunks as they are."""
    return b"".join(chunk.read() if isinstance(chunk, FileRange) else chunk for chunk in chunks)


class SegmentReaders:
    """The readers of all streams of a node."""

    def __init__(self, disk: Disk, readers_max: int) -> None:
        self._disk = disk
        self._readers_max = readers_max
        self._recent: OrderedDict[Segment, SegmentReader] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[Segment, SegmentReader] = weakref.WeakValueDictionary()

    def reader(self, folder: str, segment: Segment) -> SegmentReader:
        reader = self._recent.get(segment)
        if reader is not None:
            self._recent.move_to_end(segment)
            return reader
        reader = self._alive.get(segment)
        if reader is None:
            reader = self._alive[segment] = SegmentReader(self._disk, folder, segment)
        self._recent[segment] = reader
        if len(self._recent) > self._readers_max:
            self._recent.popitem(last=False)
        return reader

    def forget(self, segment: Segment) -> weakref.ref[SegmentReader] | None:
        """Let go of the segment; the answer tells, when called, whether somebody still reads it."""
        self._recent.pop(segment, None)
        reader = self._alive.get(segment)
        return None if reader is None else weakref.ref(reader)

    def clear(self) -> None:
        self._recent.clear()
