"""Filling a blank replica with another one's closed segments, as files, before it takes part in the stream.

The source (`manifest_of`, `segment_piece`) says which closed segments it has, all of them committed, and hands out
their bytes. Whoever fills asks for them piece by piece and gives them to a `Filling`:

    filling = store.fill_stream(manifest)
    filling.begin()                                    # again, with the same or another manifest, after a crash
    while (wanted := filling.wanted()) is not None:    # (first index, position, bytes)
        filling.take(wanted[0], wanted[1], data)
    filling.finish()
    log = store.adopt_stream(filling)                  # this and `fill_stream` belong to the loop, the rest elsewhere

Only batches are transferred. Each is checked as it comes (checksum, dense offsets, rising terms), and rows are made
from it as the log would; at a segment's end the rows' chain, begun with the source's salt, must come out as the
source's did. It covers every batch's place, offset, term, checksum and kind, so the index is as good as the source's;
and it is ours: it carries this replica's own identity, so that segments of several sources can follow each other.

    <directory>/filling/<stream>/
      filling.tmp                                the identity that this replica's files are made with
      <first index>-<base offset>.log.tmp        the segment that is coming: whole batches
      <first index>-<base offset>.log, .index    segments that are complete and durable
      stream.json                                written last; then the folder is renamed to streams/<stream>

So the stream exists with everything that was filled, or not at all. What a restart finds of the coming segment is
checked again, and written again, since nobody knows whether it is on disk.

Faults: a batch that does not fit, and a full disk, leave everything as it was, and the same piece is wanted again.
After any other error it is no longer `ready`: begin again. A failed sync is fatal for the node, as everywhere.

Cost: a piece is checked, written and forgotten; rows of one segment are in memory. Files are synced every few pieces,
so that no sync of ours makes the group commits of other streams wait for hundreds of megabytes.
"""

import os
from dataclasses import dataclass
from typing import Any

from tidelog.storage.disk import Disk, File
from tidelog.storage.errors import CorruptDataError, StorageError, SyncFailedError, TransferError
from tidelog.storage.index_file import decode_index, encode_index, index_bytes
from tidelog.storage.readers import SegmentReader
from tidelog.storage.recovery import recover_stream
from tidelog.storage.scan import WINDOW_BYTES, Window, take_batch
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, NO_LINK, Identity, Segment, SegmentShape
from tidelog.storage.small_file import (
    TEMPORARY,
    encode_json,
    read_file,
    read_json,
    rename_into_place,
    replace_file,
)
from tidelog.storage.stream_log import RecoveredLog, StreamLog
from tidelog.storage.stream_state import STATE_NAME, Floor, StreamState
from tidelog.wire.batch import LENGTH_END, CorruptBatchError, read_frame

PIECE_BYTES_MAX = 1 << 20
SYNC_BYTES = 16 << 20
MARKER_NAME = "filling" + TEMPORARY  # recovery takes it, and the coming segment, for leftovers
PART_LOG, PART_INDEX = 0, 1


@dataclass(frozen=True, slots=True)
class ClosedSegment:
    """A closed segment as its source describes it."""

    first_index: int
    last_index: int
    base_offset: int
    next_offset: int
    length: int
    index_length: int
    newest_timestamp: int
    last_term: int
    salt: int
    chain: int

    @property
    def name(self) -> str:
        """Of its files, without suffix."""
        return f"{self.first_index:020d}-{self.base_offset:020d}"

    def is_in(self, segment: Segment) -> bool:
        """Whether `segment` has exactly these entries; they are committed, so the same place is the same content."""
        return (
            segment.first_index, segment.last_index, segment.base_offset, segment.next_offset, segment.length,
            segment.last_term, segment.newest_timestamp,
        ) == (
            self.first_index, self.last_index, self.base_offset, self.next_offset, self.length,
            self.last_term, self.newest_timestamp,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a source has of a stream as closed segments, and what must be known before the first of them."""

    stream: int
    floor: Floor
    start_offset: int
    configuration_index: int
    configuration: bytes
    application_index: int  # may lie behind the last segment
    application: bytes
    segments: tuple[ClosedSegment, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "floor": {"index": self.floor.index, "term": self.floor.term, "offset": self.floor.offset},
            "start_offset": self.start_offset,
            "configuration_index": self.configuration_index,
            "configuration": self.configuration.hex(),
            "application_index": self.application_index,
            "application": self.application.hex(),
            "segments": [{name: getattr(each, name) for name in _FIELDS} for each in self.segments],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Manifest":
        """Checked to be a log without holes; further fields are ignored."""
        try:
            floor = Floor(*(int(value["floor"][name]) for name in ("index", "term", "offset")))
            segments = tuple(ClosedSegment(**{name: int(each[name]) for name in _FIELDS}) for each in value["segments"])
            manifest = cls(
                stream=int(value["stream"]),
                floor=floor,
                start_offset=int(value["start_offset"]),
                configuration_index=int(value["configuration_index"]),
                configuration=bytes.fromhex(value["configuration"]),
                application_index=int(value["application_index"]),
                application=bytes.fromhex(value["application"]),
                segments=segments,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TransferError(f"a list of segments that cannot be read: {error!r}") from error
        manifest.check()
        return manifest

    def check(self) -> None:
        index, term, offset = self.floor.index, self.floor.term, self.floor.offset
        for each in self.segments:
            follows = (each.first_index, each.base_offset) == (index + 1, offset)
            grows = (
                each.last_index > index and each.next_offset >= offset and each.last_term >= term and each.length > 0
            )
            if not follows or not grows:
                raise TransferError(f"stream {self.stream}: {each} does not follow index {index} at offset {offset}")
            index, term, offset = each.last_index, each.last_term, each.next_offset

    @property
    def end_offset(self) -> int:
        return self.segments[-1].next_offset if self.segments else self.floor.offset

    @property
    def length(self) -> int:
        return sum(each.length for each in self.segments)


_FIELDS = (
    "first_index", "last_index", "base_offset", "next_offset", "length", "index_length", "newest_timestamp",
    "last_term", "salt", "chain",
)  # fmt: skip


# The source's side.


def manifest_of(log: StreamLog, committed_index: int) -> Manifest:
    """The log's closed segments up to the commit index: those can go, but never change. For the loop's thread."""
    segments: list[ClosedSegment] = []
    for segment in log.closed_segments():
        if segment.last_index > min(committed_index, log.durable_index):
            break
        segments.append(_describe(segment))
    state = log.state()
    return Manifest(
        log.stream, state.floor, state.start_offset, state.configuration_index, state.configuration,
        state.application_index, state.application, tuple(segments),
    )  # fmt: skip


def _describe(segment: Segment) -> ClosedSegment:
    return ClosedSegment(
        segment.first_index, segment.last_index, segment.base_offset, segment.next_offset, segment.length,
        index_bytes(segment), segment.newest_timestamp, segment.last_term, segment.identity.salt, segment.chain,
    )  # fmt: skip


class SegmentPiece:
    """Bytes of a closed segment's file. Found on the loop, read in any thread, though it may be trimmed meanwhile."""

    __slots__ = ("_file", "_length", "_position", "_reader")

    def __init__(self, reader: SegmentReader, file: File, position: int, length: int) -> None:
        self._reader = reader  # while it lives, a deleted segment's file is not used for another one
        self._file = file
        self._position = position
        self._length = length

    def read(self) -> bytes:
        return self._file.read_at(self._position, self._length)


def segment_piece(log: StreamLog, first_index: int, part: int, position: int, length: int) -> SegmentPiece:
    """Up to `length` bytes of a closed segment's log or index, fewer at its end. For the loop's thread."""
    segment = next((each for each in log.closed_segments() if each.first_index == first_index), None)
    if segment is None:
        raise TransferError(
            f"stream {log.stream} has no closed segment at index {first_index} (any more): ask for the list again"
        )
    if part not in (PART_LOG, PART_INDEX) or position < 0 or not 0 <= length <= PIECE_BYTES_MAX:
        raise TransferError(f"stream {log.stream}: no part {part} with {length} bytes at {position}")
    reader = log.reader_of(segment)
    file = reader.file if part == PART_LOG else reader.open_index()
    end = segment.length if part == PART_LOG else index_bytes(segment)
    return SegmentPiece(reader, file, position, max(0, min(length, end - position)))


# The blank replica's side.


class Filling:
    """A stream that is being filled. One thread at a time; no thread of the store comes here."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        target: str,
        manifest: Manifest,
        shape: SegmentShape,
        uuid: bytes,
    ) -> None:
        """`folder` is where files are kept until the stream is complete, `target` where the stream then is.

        `uuid` is what this replica's files are known by, unless an earlier filling has begun with another.
        """
        manifest.check()
        self.manifest = manifest
        self.stream = manifest.stream
        self.recovered: RecoveredLog | None = None
        """What was filled, once it is finished."""
        self.folder = folder
        self.target = target
        self._disk = disk
        self._shape = shape
        self._uuid = uuid
        self._done: list[Segment] = []  # complete, in the manifest's order
        self._coming: _ComingSegment | None = None
        self._begun = False

    @property
    def filled_bytes(self) -> int:
        """How much of the manifest's segments is here."""
        coming = self._coming.segment.length if self._coming is not None else 0
        return sum(segment.length for segment in self._done) + coming

    def begin(self) -> None:
        """Take up what an earlier filling has left and the manifest still names; remove the rest."""
        self.close()
        self._disk.make_directory(self.folder)
        self._uuid = self._load_marker()
        self._done = []
        for each in self.manifest.segments:
            segment = self._load_done(each)
            if segment is None or not each.is_in(segment) or not self._continues(segment.identity):
                break
            self._done.append(segment)
        kept = {MARKER_NAME}
        for each in self.manifest.segments[: len(self._done)]:
            kept |= {each.name + LOG_SUFFIX, each.name + INDEX_SUFFIX}
        if len(self._done) < len(self.manifest.segments):
            kept.add(self.manifest.segments[len(self._done)].name + LOG_SUFFIX + TEMPORARY)
        for name in self._disk.list_directory(self.folder):
            if name not in kept:
                self._disk.remove(os.path.join(self.folder, name))
        self._disk.sync_directory(self.folder)  # a killed process may have left names that only memory holds so far
        self._begun = True
        self._open_next()

    @property
    def ready(self) -> bool:
        """Whether it is begun and has not failed since."""
        return self._coming is not None or (self._begun and len(self._done) == len(self.manifest.segments))

    def wanted(self) -> tuple[int, int, int] | None:
        """(first index of a segment, position in its log, bytes) of the next piece; None when nothing is missing."""
        if not self.ready:
            raise StorageError(f"stream {self.stream}: the filling was not begun, or failed: begin it again")
        coming = self._coming
        if coming is None:
            return None
        position = coming.position
        return coming.source.first_index, position, min(PIECE_BYTES_MAX, coming.source.length - position)

    def take(self, first_index: int, position: int, data: bytes) -> None:
        """The piece that was wanted, or the beginning of it."""
        coming = self._coming
        if coming is None or (first_index, position) != (coming.source.first_index, coming.position) or not data:
            raise TransferError(
                f"stream {self.stream}: {len(data)} bytes at {position} of the segment at index {first_index} were "
                f"not asked for: {self.wanted()} are"
            )
        coming.take(data)
        if coming.is_whole:
            self._complete_coming()
            self._open_next()

    def finish(self) -> None:
        """Make it a stream: durable, and there after a restart. `Store.adopt_stream` makes it one of this process."""
        if self.wanted() is not None:
            raise StorageError(f"stream {self.stream} is not filled yet: {self.wanted()} is missing")
        if self._disk.exists(self.target):
            raise StorageError(f"stream {self.stream} is there already, as {self.target}")
        manifest = self.manifest
        state = StreamState(
            stream=self.stream,
            uuid=self._uuid,
            era=0,
            floor=manifest.floor,
            start_offset=min(max(manifest.start_offset, manifest.floor.offset), manifest.end_offset),
            configuration_index=manifest.configuration_index,
            configuration=manifest.configuration,
            application_index=manifest.application_index,
            application=manifest.application,
            learned_start=manifest.start_offset,
        )
        replace_file(self._disk, os.path.join(self.folder, STATE_NAME), state.encode())
        self._disk.rename(self.folder, self.target)
        self._disk.sync_directory(os.path.dirname(self.folder))
        self._disk.sync_directory(os.path.dirname(self.target))
        self.recovered = recover_stream(self._disk, self.target, self._shape)

    def close(self) -> None:
        """Let go of the files; what has come stays for the next `begin`."""
        if self._coming is not None:
            self._coming.file.close()
            self._coming = None

    def _load_marker(self) -> bytes:
        """The identity of this replica's files. Without it what lies here has none, and is removed."""
        path = os.path.join(self.folder, MARKER_NAME)
        if self._disk.exists(path):
            try:
                return bytes.fromhex(read_json(self._disk, path)["uuid"])
            except CorruptDataError:
                pass  # begun and not finished, or damaged: nothing that matters is lost
        for name in self._disk.list_directory(self.folder):
            self._disk.remove(os.path.join(self.folder, name))
        replace_file(self._disk, path, encode_json({"uuid": self._uuid.hex()}))
        return self._uuid

    def _load_done(self, each: ClosedSegment) -> Segment | None:
        path = os.path.join(self.folder, each.name)
        if not self._disk.exists(path + LOG_SUFFIX) or not self._disk.exists(path + INDEX_SUFFIX):
            return None
        segment = decode_index(read_file(self._disk, path + INDEX_SUFFIX), self._shape)
        if segment is None or segment.identity.stream_uuid != self._uuid:
            return None
        file = self._disk.open_read(path + LOG_SUFFIX)
        try:
            return segment if file.size() == segment.length else None
        finally:
            file.close()

    def _continues(self, identity: Identity) -> bool:
        """Whether a segment that is here was made behind the one before it; the first of all may have lost that one."""
        before = self._done[-1] if self._done else None
        if identity.previous_term != self._term_before:
            return False
        return before is None or identity.link == before.link

    @property
    def _term_before(self) -> int:
        return self._done[-1].last_term if self._done else self.manifest.floor.term

    def _open_next(self) -> None:
        """Go on with the first segment that is not complete; an earlier process may have left it whole."""
        while len(self._done) < len(self.manifest.segments):
            source = self.manifest.segments[len(self._done)]
            before = self._done[-1] if self._done else None
            identity = Identity(
                stream_uuid=self._uuid,
                era=0,
                sequence=before.identity.sequence + 1 if before else 0,
                first_index=source.first_index,
                base_offset=source.base_offset,
                previous_term=self._term_before,
                salt=source.salt,
                link=before.link if before else NO_LINK,
            )
            file = self._disk.open_write(self._path(source) + TEMPORARY)
            self._coming = _ComingSegment(source, Segment(identity, self._shape), file)
            self._coming.take_up()
            if not self._coming.is_whole:
                return
            self._complete_coming()

    def _complete_coming(self) -> None:
        coming = self._coming
        assert coming is not None
        try:
            coming.complete(self._disk, self._path(coming.source))
        except TransferError:
            self._disk.remove(self._path(coming.source) + TEMPORARY)
            raise
        finally:
            self.close()
        self._done.append(coming.segment)

    def _path(self, source: ClosedSegment) -> str:
        return os.path.join(self.folder, source.name + LOG_SUFFIX)


class _ComingSegment:
    """A segment whose batches are coming. In its file are whole batches, all of them checked; the rest is in memory."""

    def __init__(self, source: ClosedSegment, segment: Segment, file: File) -> None:
        self.source = source
        self.segment = segment
        self.file = file
        self._rest = b""  # the beginning of a batch whose end has not come yet
        self._unsynced = 0

    @property
    def position(self) -> int:
        return self.segment.length + len(self._rest)

    @property
    def is_whole(self) -> bool:
        return self.position == self.source.length

    def take_up(self) -> None:
        """Check what an earlier process left, and write it again: it may be in memory only. The rest is cut off."""
        size = self.file.size()
        window = Window(self.file, size)
        while self.segment.length < min(size, self.source.length):
            try:
                take_batch(self.segment, window.batch(self.segment.length))
            except CorruptBatchError:
                break
        if size > self.segment.length:
            self.file.truncate(self.segment.length)
        for start in range(0, self.segment.length, WINDOW_BYTES):
            piece = self.file.read_at(start, min(WINDOW_BYTES, self.segment.length - start))
            self._write(start, piece)

    def take(self, data: bytes) -> None:
        """Check what has come whole and write it. An error leaves everything as it was."""
        segment, count = self.segment, self.segment.count
        start = segment.length
        joined = self._rest + data if self._rest else data
        view = memoryview(joined)
        at = 0
        try:
            if start + len(joined) > self.source.length:
                raise CorruptBatchError(f"the segment has {self.source.length} bytes, {start + len(joined)} came")
            while len(view) - at >= LENGTH_END:
                size = LENGTH_END + read_frame(view[at : at + LENGTH_END])[1]
                if size < LENGTH_END or start + at + size > self.source.length:
                    raise CorruptBatchError(f"a batch claims {size} bytes")
                if at + size > len(view):
                    break
                take_batch(segment, view[at : at + size])
                at += size
            self._write(start, view[:at])
        except (CorruptBatchError, OSError) as error:
            assert segment.rows is not None
            segment.cut(segment.rows, count)
            self._rest = b""
            if isinstance(error, OSError):
                raise
            raise TransferError(f"byte {start + at} of the segment {self.source.name}: {error}") from error
        self._rest = bytes(view[at:])

    def _write(self, position: int, data: bytes | memoryview) -> None:
        if data:
            self.file.write_at(position, [data])
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._sync()

    def _sync(self) -> None:
        try:
            self.file.sync()
        except OSError as error:
            raise SyncFailedError(f"sync of the segment {self.source.name}: {error}") from error
        self._unsynced = 0

    def complete(self, disk: Disk, path: str) -> None:
        """All bytes are here: compare with what the source says, make them durable, and give them their names."""
        segment, source = self.segment, self.source
        if not source.is_in(segment) or segment.chain != source.chain:
            raise TransferError(f"the segment {source.name} is not the one that its source names: {source}")
        assert segment.rows is not None
        self._sync()
        index_path = path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
        rename_into_place(disk, index_path, encode_index(segment, segment.rows))
        disk.rename(path + TEMPORARY, path)
        disk.sync_directory(os.path.dirname(path))
        segment.forget_rows()
