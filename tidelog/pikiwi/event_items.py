"""Many binlog items as columns: where their arguments are, found for all of them at once.

`Items` holds payloads as one buffer with offsets (an Arrow array). `shapes` groups the ones that are surely well formed
by their number of arguments; a `Shape` is such a group, with the places of all arguments as matrices of positions in
the buffer. An item is in a shape only if `parse_command` would give just those arguments: what is doubtful is left
out, for the caller to look at one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pikiwi.binlog import HEADER_BYTES, ITEM_TYPE
from tidelog.pikiwi.resp import RespLimits

Column: TypeAlias = np.ndarray[Any, Any]

ARGUMENTS_MAX = 32  # an item with more is looked at alone: its own work is larger than what a shape saves
LENGTH_DIGITS_MAX = 9

HEADER = np.dtype(
    {
        "names": ["kind", "exec_time_s", "term_id", "logic_id", "filenum", "offset", "length"],
        "formats": ["<u2", "<u4", "<u4", "<u8", "<u4", "<u8", "<u4"],
    }
)  # packed, as on the wire
assert HEADER.itemsize == HEADER_BYTES
_UNREAD = np.dtype((np.void, HEADER_BYTES))  # gathered as a whole: numpy would copy a record field by field

PLAIN = np.zeros(256, dtype=bool)
"""Bytes that stand in a JSON string as they are."""
PLAIN[0x20:0x7F] = True
PLAIN[[ord('"'), ord("\\")]] = False
DIGITS = np.zeros(256, dtype=bool)
DIGITS[ord("0") : ord("9") + 1] = True


class Items:
    def __init__(self, payloads: pa.Array, filenums: Column, offsets: Column) -> None:
        width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
        _, offsets_buffer, data_buffer = payloads.buffers()
        bounds = np.frombuffer(offsets_buffer, width)[payloads.offset : payloads.offset + len(payloads) + 1]
        bounds = bounds.astype(np.int64)
        self.starts, self.ends = bounds[:-1], bounds[1:]
        self._buffer = data_buffer if data_buffer is not None else pa.py_buffer(b"")
        self.data = np.frombuffer(self._buffer, np.uint8)
        self.filenums = filenums
        self.offsets = offsets

    def cut(self, start: int, end: int) -> bytes:
        return self.data[start:end].tobytes()

    def payload(self, row: int) -> bytes:
        return self.cut(int(self.starts[row]), int(self.ends[row]))

    def headers(self, rows: Column) -> Column:
        """Of items that are at least a header long: a gather from one view that has a header at every byte."""
        size = max(0, len(self.data) - HEADER_BYTES + 1)
        return np.ndarray(size, _UNREAD, buffer=self._buffer, strides=(1,))[self.starts[rows]].view(HEADER)

    def header_field(self, name: LiteralString, rows: Column) -> Column:
        """One field of these items' headers: less to gather than whole ones."""
        kind, offset = HEADER.fields[name][:2]  # pyright: ignore[reportOptionalSubscript]
        size = max(0, len(self.data) - HEADER_BYTES + 1)
        return np.ndarray(size, kind, buffer=self._buffer, offset=offset, strides=(1,))[self.starts[rows]]

    def slices(self, starts: Column, ends: Column) -> pa.Array:
        """These pieces of the buffer; they are in its order and do not overlap."""
        bounds = np.empty(2 * len(starts), dtype=np.int64)
        bounds[0::2], bounds[1::2] = starts, ends
        every = pa.Array.from_buffers(
            pa.large_binary(), max(0, len(bounds) - 1), [None, pa.py_buffer(bounds), self._buffer]
        )
        return gather(every, np.arange(0, len(bounds), 2))

    def consist_of(self, table: Column, starts: Column, ends: Column) -> Column:
        """Which of these pieces have only bytes of the table."""
        pieces = self.slices(starts, ends)
        bounds, data = parts_of(pieces)
        wrong = np.flatnonzero(~table[data])
        fine = np.ones(len(starts), dtype=bool)
        fine[np.searchsorted(bounds, wrong, "right") - 1] = False
        return fine


def gather(array: pa.Array, rows: Column) -> pa.Array:
    return pc.take(array, pa.array(rows), boundscheck=False)


def parts_of(array: pa.Array) -> tuple[Column, Column]:
    """Bounds and bytes of a large binary or string array; the bounds begin at 0."""
    bounds = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[bounds[0] : bounds[-1]]
    return bounds - bounds[0], data


@dataclass(frozen=True, slots=True)
class Shape:
    """Items with the same number of arguments; all matrices have a row an item and a column an argument."""

    rows: Column
    count: int
    content_starts: Column
    content_ends: Column
    length_starts: Column
    """Where an argument's own text begins, with its $; it ends two bytes after the argument."""
    arg_starts: Column
    arg_ends: Column

    def chosen(self, mask: Column) -> "Shape":
        if mask.all():
            return self
        return Shape(
            self.rows[mask],
            self.count,
            self.content_starts[mask],
            self.content_ends[mask],
            self.length_starts[mask],
            self.arg_starts[mask],
            self.arg_ends[mask],
        )


def shapes(items: Items, rows: Column, limits: RespLimits, others: list[Column]) -> Iterator[Shape]:
    """The shapes among these (ascending) rows; rows of none are appended to `others` as they are found."""
    long_enough = items.ends[rows] - items.starts[rows] > HEADER_BYTES
    others.append(rows[~long_enough])
    rows = rows[long_enough]
    if not len(rows):
        return
    starts, ends = items.starts[rows] + HEADER_BYTES, items.ends[rows]
    headers = items.headers(rows)
    fine = (headers["kind"] == ITEM_TYPE) & (headers["length"] == ends - starts)
    fine &= (items.data[starts] == ord("*")) & (ends - starts <= limits.command_bytes_max)
    breaks = _line_breaks(items.data, int(starts[0]), int(ends[-1]))
    first = np.searchsorted(breaks, starts)
    last = np.searchsorted(breaks, ends - 1)  # its LF has to be in the item too
    found = last - first
    fine &= found > 0
    # A place that is good to read, for the rows of which nothing holds:
    end_of_count = breaks[np.minimum(first, max(0, len(breaks) - 1))] if len(breaks) else starts
    digits = end_of_count - starts - 1
    fine &= (digits == 1) | (digits == 2)
    tens, ones = items.data[starts + 1].astype(np.int64) - 48, items.data[np.minimum(starts + 2, ends - 1)] - 48
    count = np.where(digits == 2, tens * 10 + ones, tens)
    fine &= (tens >= 1) & (tens <= 9) & ((digits == 1) | (ones <= 9))
    fine &= (count <= min(ARGUMENTS_MAX, limits.arguments_max)) & (found == 2 * count + 1)
    others.append(rows[~fine])
    for number in np.unique(count[fine]).tolist():
        at = np.flatnonzero(fine & (count == number))
        lines = breaks[first[at][:, None] + np.arange(2 * number + 1)]
        yield _checked(items, rows[at], starts[at], ends[at], lines, limits, others)


def _line_breaks(data: Column, start: int, end: int) -> Column:
    """Where CRLFs are."""
    returns = np.flatnonzero(data[start : end - 1] == 13) + start
    return returns[data[returns + 1] == 10]


def _checked(
    items: Items, rows: Column, starts: Column, ends: Column, lines: Column, limits: RespLimits, others: list[Column]
) -> Shape:
    """The shape of rows in which every second line ends an argument, of those whose lengths say the same."""
    length_starts, length_ends, arg_ends = lines[:, 0:-1:2] + 2, lines[:, 1::2], lines[:, 2::2]
    arg_starts = length_ends + 2
    arg_lengths = arg_ends - arg_starts
    digits = length_ends - length_starts - 1
    fine = (items.data[length_starts] == ord("$")) & (digits >= 1) & (digits <= LENGTH_DIGITS_MAX)
    fine &= arg_lengths <= limits.argument_bytes_max
    said = np.zeros(digits.shape, dtype=np.int64)
    for place in range(min(LENGTH_DIGITS_MAX, int(digits.max()))):
        digit = (
            items.data[np.minimum(length_starts + 1 + place, length_ends)] - 48
        )  # unsigned: below "0" is far above 9
        here = place < digits
        fine &= ~here | (digit <= 9)
        said = np.where(here, said * 10 + digit, said)
    fine &= (items.data[length_starts + 1] != ord("0")) | (digits == 1)
    fine &= said == arg_lengths
    right = fine.all(axis=1) & (arg_ends[:, -1] + 2 == ends)
    others.append(rows[~right])
    shape = Shape(rows, arg_starts.shape[1], starts, ends, length_starts, arg_starts, arg_ends)
    return shape.chosen(right)
