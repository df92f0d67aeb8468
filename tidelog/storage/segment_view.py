"""What others may know of a segment: a value, made without touching a file."""

from typing import NamedTuple

from tidelog.storage.rows import row_of_timestamp, timestamp_at
from tidelog.storage.segment import Segment


class SegmentView(NamedTuple):  # not a dataclass: thousands are made every few seconds
    first_index: int
    last_index: int  # first_index - 1 while it is empty
    base_offset: int
    next_offset: int
    length: int  # bytes of its batches
    newest_timestamp: int  # of its records; -1 when none has one
    oldest_timestamp: int  # of the first record that has one; -1 when none has, or it is not at hand
    closed: bool  # its files have the form and the names that they keep


def view_of(segment: Segment) -> SegmentView:
    rows, oldest = segment.rows, -1
    if rows is not None and segment.newest_timestamp >= 0:
        oldest = timestamp_at(rows, row_of_timestamp(rows, segment.count, 0))
    return SegmentView(
        segment.first_index, segment.last_index, segment.base_offset, segment.next_offset, segment.length,
        segment.newest_timestamp, oldest, rows is None,
    )  # fmt: skip
