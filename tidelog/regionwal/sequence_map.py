"""Where each entry of a table lies in the log: sequence number → offset, as runs.

A table's live sequence numbers have no holes, so the map is a list of *runs*: entry `i` of a run lies at
`offset + i * stride` and takes `width` records there (more than one when it was split). A batch of one table is a run
of stride 1; a thousand tables that take turns make runs of stride 1,000; in HoraeDB's own example two sequence numbers
share an offset, which is stride 0.

Cost: 32 bytes a run in four flat arrays, whatever its length. Appending is O(1), looking up O(log runs), dropping the
oldest O(runs) but a memmove.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Run(NamedTuple):
    sequence: int
    offset: int
    count: int
    stride: int
    width: int

    @property
    def last_offset(self) -> int:
        """Of the last entry's first record."""
        return self.offset + (self.count - 1) * self.stride

    @property
    def end_offset(self) -> int:
        """After the last entry's last record."""
        return self.last_offset + self.width


class SequenceMap:
    __slots__ = ("_end", "_offsets", "_sequences", "_strides", "_widths")

    def __init__(self, pairs: Iterable[tuple[int, int]] = ()) -> None:
        self._sequences = array("Q")  # of each run's first entry
        self._offsets = array("Q")  # of each run's first entry
        self._strides = array("Q")  # without meaning as long as the run has one entry
        self._widths = array("Q")
        self._end = 0  # after the last sequence number
        for sequence, offset in pairs:
            self.append(sequence, offset)

    def append(self, sequence: int, offset: int, count: int = 1, stride: int = 1, width: int = 1) -> None:
        """Entries that follow the last one, without a hole in the numbers and not before it in the log."""
        assert count > 0
        assert width > 0
        if not self._sequences:
            self._begin(sequence, offset, count, stride, width)
            return
        assert sequence == self._end, f"sequence {sequence} does not follow {self._end - 1}"
        length = self._end - self._sequences[-1]
        last = self._offsets[-1] + (length - 1) * self._strides[-1]
        assert offset >= last, f"offset {offset} of sequence {sequence} lies before {last}"
        gap = offset - last
        fits = self._widths[-1] == width and (count == 1 or stride == gap)
        if fits and (length == 1 or gap == self._strides[-1]):
            self._strides[-1] = gap
            self._end += count
        else:
            self._begin(sequence, offset, count, stride, width)

    def _begin(self, sequence: int, offset: int, count: int, stride: int, width: int) -> None:
        self._sequences.append(sequence)
        self._offsets.append(offset)
        self._strides.append(stride)
        self._widths.append(width)
        self._end = sequence + count

    def drop_below(self, sequence: int) -> None:
        """Forget all entries with a smaller number."""
        if not self._sequences or sequence <= self._sequences[0]:
            return
        if sequence >= self._end:
            self.clear()
            return
        keep = bisect_right(self._sequences, sequence) - 1
        for column in (self._sequences, self._offsets, self._strides, self._widths):
            del column[:keep]
        self._offsets[0] += (sequence - self._sequences[0]) * self._strides[0]
        self._sequences[0] = sequence

    def drop_from(self, sequence: int) -> None:
        """Forget the entry with this number and all behind it."""
        if not self._sequences or sequence >= self._end:
            return
        if sequence <= self._sequences[0]:
            self.clear()
            return
        keep = bisect_right(self._sequences, sequence - 1)
        for column in (self._sequences, self._offsets, self._strides, self._widths):
            del column[keep:]
        self._end = sequence

    def clear(self) -> None:
        for column in (self._sequences, self._offsets, self._strides, self._widths):
            del column[:]
        self._end = 0

    def get(self, sequence: int) -> int | None:
        """The offset of an entry's first record."""
        if sequence not in self:
            return None
        index = bisect_right(self._sequences, sequence) - 1
        return self._offsets[index] + (sequence - self._sequences[index]) * self._strides[index]

    @property
    def first(self) -> int | None:
        """The smallest sequence number."""
        return self._sequences[0] if self._sequences else None

    @property
    def first_offset(self) -> int | None:
        return self._offsets[0] if self._offsets else None

    @property
    def end(self) -> int:
        """After the largest sequence number; 0 when there is none."""
        return self._end

    def runs(self, first: int = 0, end: int | None = None) -> Iterator[Run]:
        """In order, cut to the sequence numbers from `first` to before `end`."""
        stop = self._end if end is None else min(end, self._end)
        index = max(0, bisect_right(self._sequences, first) - 1)
        while index < len(self._sequences) and self._sequences[index] < stop:
            start, stride = self._sequences[index], self._strides[index]
            after = self._sequences[index + 1] if index + 1 < len(self._sequences) else self._end
            low, high = max(start, first), min(after, stop)
            if low < high:
                yield Run(low, self._offsets[index] + (low - start) * stride, high - low, stride, self._widths[index])
            index += 1

    def copy(self) -> "SequenceMap":
        copied = SequenceMap()
        copied._sequences = self._sequences[:]
        copied._offsets = self._offsets[:]
        copied._strides = self._strides[:]
        copied._widths = self._widths[:]
        copied._end = self._end
        return copied

    def items(self) -> Iterator[tuple[int, int]]:
        """Every sequence number with its offset."""
        for run in self.runs():
            for index in range(run.count):
                yield run.sequence + index, run.offset + index * run.stride

    @property
    def run_count(self) -> int:
        return len(self._sequences)

    @property
    def memory_bytes(self) -> int:
        """What the runs take, without the few bytes of the object itself."""
        columns = (self._sequences, self._offsets, self._strides, self._widths)
        return sum(column.buffer_info()[1] * column.itemsize for column in columns)

    def __len__(self) -> int:
        return self._end - self._sequences[0] if self._sequences else 0

    def __contains__(self, sequence: int) -> bool:
        return bool(self._sequences) and self._sequences[0] <= sequence < self._end

    def __eq__(self, other: object) -> bool:
        """The same entries at the same places, however they were put together."""
        if not isinstance(other, SequenceMap):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self.items(), other.items(), strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SequenceMap({list(self.runs())})"
