"""Opening a WAL's files after whatever ended the process before: what counts, what is cut off, what is damage.

From the mark (`mark.py`) on, everything is checked:

* the last segment may end in writes that were never synced. It is cut in front of the first record that is not whole,
  and what stays is written once more and synced before anybody relies on it: after a failed sync the kernel may show
  pages that it will never write. What was cut off was acknowledged to nobody;
* anything else that is not whole was durable once, and is `CorruptWal`. So is a file that is missing, or shorter than
  the mark says.

What lies before the mark is checked when it is read. Without a mark, as in a folder that lost it, the whole WAL is
checked. A segment is begun only when the one before is durable, so only the last can have an unfinished end.
"""

import logging
import os
from pathlib import Path
from typing import NamedTuple

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.wal.disk import sync_file, sync_folder
from tidelog.pikiwi.wal.mark import Mark, read_mark
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.pikiwi.wal.scan import PIECE_BYTES, scan
from tidelog.pikiwi.wal.segments import Segment, check_sequence, list_segments

_log = logging.getLogger(__name__)

_UNKNOWN_SEQ = -1


class Recovered(NamedTuple):
    segments: list[Segment]  # oldest first; empty: a WAL that was never begun
    generation: int  # of the newest mark
    tail: WalPoint | None  # all up to it is durable


def recover(folder: Path) -> Recovered:
    mark = read_mark(folder)
    segments = _belonging(folder, mark)
    if not segments:
        if mark is None:
            return Recovered([], 0, None)
        if mark.durable.offset > 0:
            raise CorruptWal(folder, 0, f"segment {mark.durable.segment}, in which it ends, is missing")
        # The WAL was about to begin anew, and its file was not made yet.
        segments = [create(folder, mark.durable)]
    tail = _checked_tail(segments, mark)
    _make_durable(segments[-1], tail, mark)
    return Recovered(segments, 0 if mark is None else mark.generation, tail)


def create(folder: Path, place: WalPoint) -> Segment:
    """A segment without records, whose name is durable."""
    segment = Segment(folder, place.position, place.segment)
    os.close(os.open(segment.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))
    sync_folder(folder)
    return segment


def remove(segments: list[Segment]) -> int:
    """Those that the mark no longer counts, so it may stop anywhere and needs no sync. Gives the bytes."""
    size = 0
    for segment in segments:
        size += segment.path.stat().st_size
        segment.path.unlink()
    return size


def _belonging(folder: Path, mark: Mark | None) -> list[Segment]:
    segments = list_segments(folder)
    if mark is not None:
        remove([segment for segment in segments if segment.number < mark.first_segment])
        segments = [segment for segment in segments if segment.number >= mark.first_segment]
        if segments and segments[0].number != mark.first_segment:
            raise CorruptWal(segments[0].path, 0, f"segment {mark.first_segment}, with which it begins, is missing")
        if segments and segments[-1].number < mark.durable.segment:
            raise CorruptWal(segments[-1].path, 0, f"segment {mark.durable.segment}, in which it ends, is missing")
    check_sequence(segments)
    return segments


def _checked_tail(segments: list[Segment], mark: Mark | None) -> WalPoint:
    """Behind the last whole record."""
    place = WalPoint(_UNKNOWN_SEQ, segments[0].start, segments[0].number, 0) if mark is None else mark.durable
    for segment in segments[place.segment - segments[0].number :]:
        if segment.number != place.segment:
            place = WalPoint(place.seq, place.position, segment.number, 0)
        place = _scanned(segment, place, last=segment is segments[-1])
    return place if place.seq != _UNKNOWN_SEQ else place._replace(seq=0)


def _scanned(segment: Segment, place: WalPoint, *, last: bool) -> WalPoint:
    descriptor = os.open(segment.path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size < place.offset:
            raise CorruptWal(segment.path, size, f"the file ends here, {place.offset} bytes of it were durable")
        try:
            for record, offset in scan(descriptor, segment.path, place, size):
                place = WalPoint(record.seq, record.position, segment.number, offset)
        except CorruptWal as error:
            if not last:
                raise
            _log.warning(
                "%s: cut at byte %d of %d, an unfinished write: %s", segment.path, place.offset, size, error.why
            )
        return place
    finally:
        os.close(descriptor)


def _make_durable(segment: Segment, tail: WalPoint, mark: Mark | None) -> None:
    known = mark.durable.offset if mark is not None and mark.durable.segment == segment.number else 0
    descriptor = os.open(segment.path, os.O_RDWR)
    try:
        os.ftruncate(descriptor, tail.offset)
        for offset in range(known, tail.offset, PIECE_BYTES):
            piece = os.pread(descriptor, min(PIECE_BYTES, tail.offset - offset), offset)
            os.pwrite(descriptor, piece, offset)
        sync_file(descriptor)
    finally:
        os.close(descriptor)
