"""A stream's folder after a restart, however the process ended: brought in order, checked, and described.

Every operation on the folder leaves, at each step, a state that this module understands (see `housekeeping`, `writer`):

| what is found | what it means | what is done |
| --- | --- | --- |
| `….tmp` | a replacement that did not finish | removed |
| `….active`, trailer empty | a prepared file that was not used | kept as the spare |
| `….active`, no intact header | a segment whose beginning never became durable | removed |
| `….active`, header | a segment; all but the newest wait to be closed | scanned |
| `….log` longer than its index says | closing or truncation did not finish | cut |
| `….log` without an intact index | the index is lost | made again, and checked against the next segment's link |
| `….index` without `….log` | a removal did not finish, or a closing that will be done again | removed |
| older era, or at or below the floor | removal did not finish | removed |

The segments must then follow each other without a hole, from the floor on. Closed segments are checked by their index;
the newest one is read and checked whole.

What can be read is not always on disk: a process that was killed leaves writes that nobody synced, and after a failed
sync the kernel may show pages that it will never write. So the newest segment's entries that are not known to be
durable are written once more, and the file and the folder are synced, before anybody counts on them.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.raft.log import EntryKind
from tidelog.storage.disk import Buffer, Disk
from tidelog.storage.errors import CorruptDataError
from tidelog.storage.housekeeping import cut_file
from tidelog.storage.index_file import ROWS_AT, decode_index, encode_index
from tidelog.storage.rows import ROW_BYTES, position_at, row_at
from tidelog.storage.scan import WINDOW_BYTES, ScannedSegment, scan_active, scan_closed
from tidelog.storage.segment import (
    ACTIVE_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    NO_LINK,
    TRAILER_BYTES,
    Identity,
    Link,
    Segment,
    SegmentShape,
    decode_header,
)
from tidelog.storage.small_file import TEMPORARY, read_file, replace_file
from tidelog.storage.stream_log import RecoveredLog
from tidelog.storage.stream_state import StreamState, load_state
from tidelog.wire.batch import CorruptBatchError, check_batch, read_own_batch


@dataclass(frozen=True, slots=True)
class _Found:
    """A segment's file as it lies there, before it is checked against its neighbours."""

    path: str
    first_index: int
    active: tuple[Identity, SegmentShape] | None  # header of a segment that is not closed
    closed: Segment | None  # described by an intact index

    @property
    def link(self) -> Link | None:
        """What it says of the segment before it."""
        if self.active is not None:
            return self.active[0].link
        return self.closed.identity.link if self.closed is not None else None


def recover_stream(disk: Disk, folder: str, shape: SegmentShape) -> RecoveredLog:
    state = load_state(disk, folder)
    folder_scan = _FolderScan(disk, folder, state, shape)
    found = folder_scan.sort_out()
    segments: list[Segment] = []
    for number, item in enumerate(found):
        follower = found[number + 1].link if number + 1 < len(found) else None
        before = segments[-1] if segments else None
        segment = folder_scan.check(item, before, follower)
        _check_continues(item.path, state, before, segment)
        segments.append(segment)
    active = segments[-1] if segments and segments[-1].rows is not None else None
    return RecoveredLog(
        state=state,
        segments=segments,
        active=active,
        active_settled=folder_scan.settled,
        configurations=[
            pair for item, s in zip(found, segments, strict=True) for pair in _configurations(disk, item, s)
        ],
        next_sequence=folder_scan.next_sequence,
        spare_sequence=folder_scan.spare_sequence,
    )


class _FolderScan:
    def __init__(self, disk: Disk, folder: str, state: StreamState, shape: SegmentShape) -> None:
        self._disk = disk
        self._folder = folder
        self._state = state
        self._shape = shape
        self.next_sequence = 0
        self.spare_sequence: int | None = None
        self.settled = 0

    def sort_out(self) -> list[_Found]:
        """Remove leftovers and return the segments' files, oldest first."""
        names = self._disk.list_directory(self._folder)
        found: list[_Found] = []
        removed = [name for name in names if name.endswith(TEMPORARY)]
        for name in names:
            item = self._look_at(name)
            if item is not None and self._is_current(item):
                found.append(item)
            elif name.endswith((LOG_SUFFIX, ACTIVE_SUFFIX)) and not self._is_spare(name):
                removed.append(name)
        kept = {os.path.basename(item.path).removesuffix(LOG_SUFFIX) for item in found}
        removed += [n for n in names if n.endswith(INDEX_SUFFIX) and n.removesuffix(INDEX_SUFFIX) not in kept]
        for name in removed:
            self._disk.remove(os.path.join(self._folder, name))
        # Also when nothing was removed: a killed process may have left names that only memory holds so far.
        self._disk.sync_directory(self._folder)
        return sorted(found, key=lambda item: item.first_index)

    def _look_at(self, name: str) -> _Found | None:
        path = os.path.join(self._folder, name)
        if name.endswith(ACTIVE_SUFFIX):
            return self._look_at_active(path, int(name.removesuffix(ACTIVE_SUFFIX)))
        if not name.endswith(LOG_SUFFIX):
            return None
        index_path = path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX
        content = read_file(self._disk, index_path) if self._disk.exists(index_path) else b""
        closed = decode_index(content, self._shape)
        if closed is not None:
            self._saw_sequence(closed.identity.sequence)
        return _Found(path, int(name.split("-", maxsplit=1)[0]), None, closed)

    def _look_at_active(self, path: str, sequence: int) -> _Found | None:
        self._saw_sequence(sequence)
        file = self._disk.open_read(path)
        try:
            size = file.size()
            trailer = file.read_at(max(0, size - TRAILER_BYTES), TRAILER_BYTES)
        finally:
            file.close()
        header = decode_header(trailer)
        if header is not None and header[0].sequence == sequence and header[0].stream_uuid == self._state.uuid:
            return _Found(path, header[0].first_index, header, None)
        if not any(trailer) and size == self._shape.file_bytes and self.spare_sequence is None:
            self.spare_sequence = sequence
        return None

    def _saw_sequence(self, sequence: int) -> None:
        self.next_sequence = max(self.next_sequence, sequence + 1)

    def _unused_sequence(self) -> int:
        self.next_sequence += 1
        return self.next_sequence - 1

    def _is_spare(self, name: str) -> bool:
        return name == f"{self.spare_sequence:016d}{ACTIVE_SUFFIX}" if self.spare_sequence is not None else False

    def _is_current(self, item: _Found) -> bool:
        identity = item.active[0] if item.active else item.closed.identity if item.closed else None
        if identity is not None and identity.era < self._state.era:
            return False
        return item.first_index > self._state.floor.index

    def check(self, item: _Found, before: Segment | None, follower: Link | None) -> Segment:
        """The segment in `item`, complete as far as the one behind it says, its file in order."""
        if item.active is not None:
            segment = self._check_active(item, item.active, follower)
        elif item.closed is not None:
            segment = self._check_closed(item, item.closed)
        else:
            segment = self._rebuild_closed(item, before, follower)
        if follower is not None and segment.link != follower:
            raise CorruptDataError(
                item.path, 0, f"the segment ends with {segment.link}, the next one follows {follower}"
            )
        return segment

    def _check_active(self, item: _Found, header: tuple[Identity, SegmentShape], follower: Link | None) -> Segment:
        file = self._disk.open_read(item.path)
        try:
            trailer = file.read_at(header[1].trailer_at, TRAILER_BYTES)
            scanned = scan_active(item.path, file, header, trailer, None if follower is None else follower.count)
        finally:
            file.close()
        if follower is None:
            self._make_certain(item.path, scanned, trailer)
        self.settled = scanned.settled
        return scanned.segment

    def _make_certain(self, path: str, scanned: ScannedSegment, trailer: bytes) -> None:
        """Write again what may not be on disk, and nothing behind it: stale rows could be taken for new ones."""
        segment, certain = scanned.segment, scanned.certain
        assert segment.rows is not None
        rows = bytes(segment.rows[certain * ROW_BYTES :]) + bytes(max(0, scanned.stored - segment.count) * ROW_BYTES)
        if not rows and certain:
            return
        file = self._disk.open_write(path)
        try:
            position = position_at(segment.rows, certain) if certain < segment.count else segment.length
            while position < segment.length:
                piece = file.read_at(position, min(WINDOW_BYTES, segment.length - position))
                file.write_at(position, [piece])
                position += len(piece)
            file.write_at(segment.shape.data_bytes_max + certain * ROW_BYTES, [rows])
            file.write_at(segment.shape.trailer_at, [trailer])
            file.sync()
        finally:
            file.close()

    def _check_closed(self, item: _Found, segment: Segment) -> Segment:
        size = self._size(item.path)
        if segment.identity.stream_uuid != self._state.uuid:
            raise CorruptDataError(item.path, 0, "its index belongs to a segment of another stream")
        if size < segment.length:
            raise CorruptDataError(item.path, size, f"the file ends here, its index says {segment.length} bytes")
        if size > segment.length:
            cut_file(self._disk, item.path, segment.length)
        return segment

    def _rebuild_closed(self, item: _Found, before: Segment | None, follower: Link | None) -> Segment:
        floor = self._state.floor
        identity = Identity(
            stream_uuid=self._state.uuid,
            era=self._state.era,
            sequence=self._unused_sequence(),  # the old one is not known, and the new one must be nobody else's
            first_index=item.first_index,
            base_offset=before.next_offset if before else floor.offset,
            previous_term=before.last_term if before else floor.term,
            salt=follower.salt if follower else 0,
            link=before.link if before else NO_LINK,
        )
        file = self._disk.open_read(item.path)
        try:
            segment = scan_closed(item.path, file, identity, self._shape, file.size())
        finally:
            file.close()
        assert segment.rows is not None
        replace_file(self._disk, item.path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX, encode_index(segment, segment.rows))
        segment.forget_rows()
        return segment

    def _size(self, path: str) -> int:
        file = self._disk.open_read(path)
        try:
            return file.size()
        finally:
            file.close()


def _check_continues(path: str, state: StreamState, before: Segment | None, segment: Segment) -> None:
    identity = segment.identity
    begins = (identity.first_index, identity.base_offset, identity.previous_term)
    if before is not None:
        must = (before.last_index + 1, before.next_offset, before.last_term)
    else:
        must = (state.floor.index + 1, state.floor.offset, state.floor.term)
    if begins != must:
        raise CorruptDataError(
            path, 0, f"a hole in the log: (index, offset, term before) is {begins}, {must} must follow"
        )


def _configurations(disk: Disk, item: _Found, segment: Segment) -> Sequence[tuple[int, bytes]]:
    """(index, content) of the membership entries in the segment."""
    if not segment.controls:
        return []
    rows: Buffer
    if segment.rows is not None:
        rows = segment.rows
    else:
        rows = read_file(disk, item.path.removesuffix(LOG_SUFFIX) + INDEX_SUFFIX)[ROWS_AT:]
    found: list[tuple[int, bytes]] = []
    file = disk.open_read(item.path)
    try:
        for number in segment.controls:
            row = row_at(rows, number)
            if row.kind == EntryKind.CONFIGURATION:
                batch = file.read_at(row.position, segment.end_of(rows, number) - row.position)
                try:
                    check_batch(batch)
                except CorruptBatchError as error:
                    raise CorruptDataError(item.path, row.position, f"a membership entry: {error}") from error
                found.append((segment.first_index + number, read_own_batch(batch)[1]))
    finally:
        file.close()
    return found
