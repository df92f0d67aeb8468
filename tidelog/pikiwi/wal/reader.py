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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidelog.pikiwi.errors import CorruptWal, WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.mark import Mark, read_mark
from tidelog.pikiwi.wal.record import HEADER_BYTES, BadRecord, WalPoint, WalRecord, decode_header
from tidelog.pikiwi.wal.scan import check_header, scan, walk
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
        return self._gone_if_missing(lambda: self._search(view, view.segments[index], partial(_not_after, position)))

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
        return self._search(view, view.segments[index], partial(_up_to, seq))

    def read(self, start: WalPoint, end: WalPoint | None = None) -> Iterator[WalRecord]:
        """The records from `start` up to `end`, or to what is durable when this is called."""
        seq, position = start.seq, start.position
        for segment, begin, end_bytes in self._stretches(start, end):
            record = None
            with _opened(segment, begin, end_bytes) as (descriptor, end_byte):
                place = WalPoint(seq, position, segment.number, begin)
                for record, _ in scan(descriptor, segment.path, place, end_byte):
                    yield record
            if record is not None:
                seq, position = record.seq, record.position

    def advance(self, start: WalPoint, records_max: int, bytes_max: int) -> WalPoint:
        """The place so many records or bytes further, whichever comes first, but a record at least if there is one."""
        place = start
        left = bytes_max
        for segment, begin, end_bytes in self._stretches(start, None):
            place = WalPoint(place.seq, place.position, segment.number, begin)
            wanted = partial(_within, start.seq + 1, start.seq + records_max, begin + left)
            place, at_end = _walked(segment, place, end_bytes, wanted)
            if not at_end:
                break
            left -= place.offset - begin
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

    def _search(self, view: _View, segment: Segment, before: "Before") -> WalPoint:
        """The last place in the segment that is `before` what is looked for, from the nearest one that is known."""
        places = self._places.setdefault(segment.number, [self._beginning(view, segment)])
        self._places.move_to_end(segment.number)
        low, high = 0, len(places)  # places[low] is before it
        while high - low > 1:
            middle = (low + high) // 2
            seq, position, _, offset = places[middle]
            low, high = (middle, high) if before(seq, position, offset) else (low, middle)
        place, _ = _walked(segment, places[low], view.end_bytes(segment), before, places)
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


Before = Callable[[int, tuple[int, int], int], bool]
"""Of a place's number, position and byte: whether what is looked for lies behind it, or is it."""


def _up_to(wanted: int, seq: int, _position: tuple[int, int], _offset: int) -> bool:
    return seq <= wanted


def _not_after(wanted: Position, _seq: int, position: tuple[int, int], _offset: int) -> bool:
    return position <= wanted


def _within(first_seq: int, last_seq: int, last_byte: int, seq: int, _position: tuple[int, int], offset: int) -> bool:
    return seq == first_seq or (seq <= last_seq and offset <= last_byte)


def _walked(
    segment: Segment, place: WalPoint, end_bytes: int | None, before: Before, places: list[WalPoint] | None = None
) -> tuple[WalPoint, bool]:
    """The last place from `place` on that is `before` what is looked for, and whether it is the segment's end.

    Places on the way are added to `places`, which ends at or behind `place`.
    """
    indexed = places[-1].offset if places else 0
    at = place.seq, place.position, place.offset
    began = None  # where the record in front of `at` begins
    at_end = True
    with _opened(segment, place.offset, end_bytes) as (descriptor, end):
        for following in walk(descriptor, segment.path, place, end):
            if not before(*following):
                check_header(descriptor, segment.path, at[2])  # it decided, so it must be whole
                at_end = False
                break
            began, at = at[2], following
            if places is not None and at[2] - indexed >= INDEX_EVERY_BYTES:
                check_header(descriptor, segment.path, began)
                indexed = at[2]
                places.append(WalPoint(at[0], Position(*at[1]), segment.number, indexed))
        if began is not None:
            check_header(descriptor, segment.path, began)
    return WalPoint(at[0], Position(*at[1]), segment.number, at[2]), at_end


@contextmanager
def _opened(segment: Segment, begin: int, end_bytes: int | None) -> Iterator[tuple[int, int]]:
    """A segment's descriptor, and where what counts of it ends: at `end_bytes`, or all when it is complete."""
    if end_bytes is not None and begin >= end_bytes:
        yield -1, begin  # nothing there yet; a WAL that just began anew may not even have the file
        return
    try:
        descriptor = os.open(segment.path, os.O_RDONLY)
    except FileNotFoundError:
        raise WalGone(f"{segment.path} was removed while it was read: everything in it was delivered") from None
    try:
        size = os.fstat(descriptor).st_size
        end = size if end_bytes is None else end_bytes
        if size < end:
            raise CorruptWal(segment.path, size, f"the file ends here, {end} bytes of it were durable")
        yield descriptor, end
    finally:
        os.close(descriptor)
