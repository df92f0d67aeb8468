"""A local segment as it goes to the store: which of its bytes, and the indexes over them.

Raft's own entries stay here, so the object holds record batches and nothing else; positions in it are those of the file
less the entries left out. Segments of different replicas are cut at different places, so a copy may begin inside one:
where the copies before it end, which is always between two batches.

Cost: an index row at least every 64 KiB, found by search, not by walking: some thousand steps for the largest segment.
"""

from dataclasses import dataclass

from tidelog.storage.rows import offset_delta_at, position_at, row_of_offset, row_of_position, timestamp_at
from tidelog.storage.segment import Segment
from tidelog.tier.layout import encode_offset_row, encode_time_row

INDEX_INTERVAL_BYTES = 64 << 10

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class SegmentImage:
    base_offset: int
    next_offset: int
    size: int
    newest_timestamp: int
    runs: tuple[tuple[int, int], ...]  # (position in the file, bytes), in order
    offsets: bytes
    times: bytes
    epochs: tuple[tuple[int, int], ...]  # (term, first offset in the image)


def image_of(segment: Segment, rows: Buffer, from_offset: int) -> SegmentImage | None:
    """Of a closed segment, from `from_offset` on; None when it has no record there."""
    base = max(segment.base_offset, from_offset)
    if base >= segment.next_offset:
        return None
    first = row_of_offset(rows, segment.count, base - segment.base_offset)
    runs: list[tuple[int, int]] = []
    offsets, times = bytearray(), bytearray()
    size = 0
    for start, end in _runs_of_records(segment, first):
        position, stop = position_at(rows, start), segment.end_of(rows, end)
        number = start
        while number <= end:
            at = position_at(rows, number)
            delta = segment.base_offset + offset_delta_at(rows, number) - base
            offsets += encode_offset_row(delta, size + at - position)
            times += encode_time_row(timestamp_at(rows, number), delta)
            reached = row_of_position(rows, segment.count, at + INDEX_INTERVAL_BYTES)
            number = max(number + 1, reached)
        runs.append((position, stop - position))
        size += stop - position
    newest = segment.newest_timestamp  # of the whole segment: never too small
    return SegmentImage(
        base, segment.next_offset, size, newest, tuple(runs), bytes(offsets), bytes(times), _epochs(segment, base)
    )


def _runs_of_records(segment: Segment, first: int) -> list[tuple[int, int]]:
    """(first row, last row) of what lies between Raft's own entries, from row `first` on."""
    runs: list[tuple[int, int]] = []
    start = first
    for number in [*(n for n in segment.controls if n >= first), segment.count]:
        if start < number:
            runs.append((start, number - 1))
        start = number + 1
    return runs


def _epochs(segment: Segment, base: int) -> tuple[tuple[int, int], ...]:
    """Terms with the first offset of each that takes one; a term that wrote no record here is left out."""
    starts = [(segment.identity.previous_term, segment.base_offset)]
    starts += [(term, offset) for term, _, offset in segment.term_starts]
    ends = [offset for _, offset in starts[1:]] + [segment.next_offset]
    return tuple(
        (term, max(offset, base)) for (term, offset), end in zip(starts, ends, strict=True) if max(offset, base) < end
    )
