"""Reading a WAL's files: in the receiver, and in any other process while the receiver goes on writing.

A reader never sees what is not durable: it reads up to the writer's mark (`mark.py`), which moves only after a sync,
and not up to what looks like a whole record, since a record that reads well may be gone after a power cut, and a
pipeline that delivered it would then be ahead of its own source.

Places are `WalPoint`s. One that was given out, as a pipeline's stored offset is, is gone on from without any search;
finding one by position or number looks at file names first, then walks headers from the nearest place that this reader
knows. A place whose segment was removed meanwhile is `WalGone`.
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tidelog.pikiwi.errors import CorruptWal, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.mark import Mark, read_mark
from tidelog.pikiwi.wal.record import HEADER_BYTES, BadRecord, WalPoint, WalRecord, decode_header
from tidelog.pikiwi.wal.scan import scan
from tidelog.pikiwi.wal.segments import Segment, check_sequence, list_segments

INDEX_EVERY_BYTES = 256 << 10
INDEX_SEGMENTS_MAX = 16  # segments whose places are remembered; each has one place per INDEX_EVERY_BYTES


class WalGone(WalError):
    """What is asked for was removed: everything up to it was delivered, or a full sync replaced it."""


class _View(NamedTuple):
    """A WAL at one moment."""

    mark: Mark
    segments: list[Segment]  # those that belong to it, oldest first

    def end_bytes(self, segment: Segment) -> int | None:
        """How much of the segment is durable; None: all, it is complete."""
        return self.mark.durable.offset if segment.number == self.mark.durable.segment else None


class WalReader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._places: OrderedDict[int, list[WalPoint]] = OrderedDict()  # by segment number; ascending within it

    def durable(self) -> WalPoint | None:
        """The place behind the last durable record; None while nothing was ever written."""
        mark = read_mark(self.folder)
        return None if mark is None else mark.durable

    def first(self) -> WalPoint | None:
        """The place before the oldest record."""
        view = self._view()
        return None if view is None else self._gone_if_missing(lambda: self._beginning(view, view.segments[0]))

    def find(self, position: Position) -> WalPoint:
        """The place behind the last record at or before `position`."""
        view = self._present()
        if position >= view.mark.durable.position:
            return view.mark.durable
        index = bisect_right(view.segments, position, key=lambda segment: segment.start) - 1
        if index < 0:
            raise WalGone(f"{position} is no longer in {self.folder}, which begins at {view.segments[0].start}")
        return self._gone_if_missing(
            lambda: self._walk(view, view.segments[index], lambda place: place.position <= position)
        )

    def after(self, seq: int) -> WalPoint:
        """The place behind record `seq`."""
        view = self._present()
        if seq >= view.mark.durable.seq:
            if seq > view.mark.durable.seq:
                raise WalError(f"record {seq} is not in {self.folder}: the last one is {view.mark.durable.seq}")
            return view.mark.durable
        return self._gone_if_missing(lambda: self._after(view, seq))

    def _after(self, view: _View, seq: int) -> WalPoint:
        index = bisect_right(view.segments, seq, key=lambda segment: self._beginning(view, segment).seq) - 1
        if index < 0:
            first = self._beginning(view, view.segments[0]).seq + 1
            raise WalGone(f"record {seq} is no longer in {self.folder}, which begins with {first}")
        return self._walk(view, view.segments[index], lambda place: place.seq <= seq)

    def read(self, start: WalPoint, end: WalPoint | None = None) -> Iterator[WalRecord]:
        """The records from `start` up to `end`, or to what is durable when this is called."""
        seq, position = start.seq, start.position
        for segment, begin, end_bytes in self._stretches(start, end):
            record = None
            place = WalPoint(seq, position, segment.number, begin)
            for record, _ in self._scan(segment, place, end_bytes):
                yield record
            if record is not None:
                seq, position = record.seq, record.position

    def advance(self, start: WalPoint, records_max: int, bytes_max: int) -> WalPoint:
        """The place so many records or bytes further, whichever comes first, but a record at least if there is one."""
        place = start
        size = 0
        for segment, begin, end_bytes in self._stretches(start, None):
            place = WalPoint(place.seq, place.position, segment.number, begin)
            for record, offset in self._scan(segment, place, end_bytes, payloads=False):
                size += offset - place.offset
                if place.seq != start.seq and (size > bytes_max or record.seq - start.seq > records_max):
                    return place
                place = WalPoint(record.seq, record.position, segment.number, offset)
        return place

    def _stretches(self, start: WalPoint, end: WalPoint | None) -> list[tuple[Segment, int, int | None]]:
        """The segments between two places, each with its first byte and its end (None: it is complete)."""
        view = self._present()
        limit = view.mark.durable if end is None or end > view.mark.durable else end
        first = view.segments[0]
        if start.segment < first.number:
            raise WalGone(f"record {start.seq + 1} is no longer in {self.folder}, which begins at {first.start}")
        return [
            (
                segment,
                start.offset if segment.number == start.segment else 0,
                limit.offset if segment.number == limit.segment else None,
            )
            for segment in view.segments[start.segment - first.number :]
            if segment.number <= limit.segment
        ]

    def _scan(
        self, segment: Segment, place: WalPoint, end_bytes: int | None, *, payloads: bool = True
    ) -> Iterator[tuple[WalRecord, int]]:
        """What a segment holds from `place` on, up to `end_bytes`, or to its end when it is complete."""
        if end_bytes is not None and place.offset >= end_bytes:
            return  # nothing there yet; a WAL that just began anew may not even have the file
        try:
            descriptor = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            raise WalGone(f"{segment.path} was removed while it was read: everything in it was delivered") from None
        try:
            size = os.fstat(descriptor).st_size
            end = size if end_bytes is None else end_bytes
            if size < end:
                raise CorruptWal(segment.path, size, f"the file ends here, {end} bytes of it were durable")
            yield from scan(descriptor, segment.path, place, end, payloads=payloads)
        finally:
            os.close(descriptor)

    # --- finding places ---

    def _beginning(self, view: _View, segment: Segment) -> WalPoint:
        places = self._places.get(segment.number)
        if places:
            return places[0]
        if view.end_bytes(segment) == 0:  # a WAL that just began has no record to tell its number
            return WalPoint(view.mark.durable.seq, segment.start, segment.number, 0)
        with open(segment.path, "rb", buffering=0) as file:
            data = file.read(HEADER_BYTES)
        try:
            if len(data) < HEADER_BYTES:
                raise BadRecord(f"{len(data)} bytes are less than a header")
            seq = decode_header(data, 0)[1]
        except BadRecord as error:
            raise CorruptWal(segment.path, 0, str(error)) from None
        place = WalPoint(seq - 1, segment.start, segment.number, 0)
        self._places[segment.number] = [place]
        if len(self._places) > INDEX_SEGMENTS_MAX:
            self._places.popitem(last=False)
        return place

    def _walk(self, view: _View, segment: Segment, before: Callable[[WalPoint], bool]) -> WalPoint:
        """The last place in the segment that is `before` what is looked for."""
        place = self._beginning(view, segment)
        places = self._places.setdefault(segment.number, [place])
        self._places.move_to_end(segment.number)
        low, high = 0, len(places)  # places[low] is before it
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if before(places[middle]) else (low, middle)
        place = places[low]
        for record, offset in self._scan(segment, place, view.end_bytes(segment), payloads=False):
            following = WalPoint(record.seq, record.position, segment.number, offset)
            if not before(following):
                break
            place = following
            if place.offset - places[-1].offset >= INDEX_EVERY_BYTES:
                places.append(place)
        return place

    def _view(self) -> _View | None:
        mark = read_mark(self.folder)
        if mark is None:
            return None
        # A segment behind the durable one was begun and nothing of it counts yet.
        numbers = range(mark.first_segment, mark.durable.segment + 1)
        segments = [segment for segment in list_segments(self.folder) if segment.number in numbers]
        check_sequence(segments)
        if not segments and mark.durable.offset == 0:
            segments = [Segment(self.folder, mark.durable.position, mark.durable.segment)]  # about to be made
        if not segments or segments[-1].number < mark.durable.segment:
            raise CorruptWal(self.folder, 0, f"segment {mark.durable.segment}, in which it ends, is missing")
        return _View(mark, segments)

    def _present(self) -> _View:
        view = self._view()
        if view is None:
            raise WalError(f"there is no WAL in {self.folder}: start a receiver first")
        return view

    def _gone_if_missing(self, search: Callable[[], WalPoint]) -> WalPoint:
        try:
            return search()
        except FileNotFoundError as error:
            raise WalGone(
                f"{error.filename} was removed while it was searched: everything in it was delivered"
            ) from None
