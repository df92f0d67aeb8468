"""Texts that are copied into rows: every row is a list of slots of one pool, and one gather writes all rows.

A pool has its slots side by side in one buffer. Slots come as a single text (`add`), as a list (`add_each`), as numbers
(`add_numbers`), or as a column, as they are (`add_array`) or base64 encoded. What is added returns the numbers of its
slots. Everything is added before the first row is asked for.

Base64 of a whole column is one call, for texts whose lengths are multiples of three can be encoded side by side. An
argument is lengthened to one by what follows it in the item, CR and LF: their upper bits are 0, as base64 wants them to
be, so that only the characters of the lengthening itself have to be made `=` afterwards.
"""

from binascii import b2a_base64
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidelog.pikiwi.event_items import Column, Items, gather, parts_of

_EQUALS = ord("=")
_ENDS = {rest: np.frombuffer(b2a_base64(b"\r\n"[2 - rest :], newline=False), np.uint8) for rest in (1, 2)}
_FOUR_DIGITS = np.frombuffer(b"".join(b"%04d" % number for number in range(10_000)), np.uint32)


class Pool:
    def __init__(self) -> None:
        self._data: list[Column] = []
        self._starts: list[Column] = []
        self._mended: list[tuple[Column, Column | int]] = []  # bytes that are other ones, once all is in one buffer
        self._slots = 0
        self._bytes = 0
        self._texts: pa.Array | None = None
        self.empty = self.add(b"")

    def add(self, text: bytes) -> int:
        return int(self.add_each([text])[0])

    def add_each(self, texts: Sequence[bytes]) -> Column:
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return self._added(bounds[:-1], np.frombuffer(b"".join(texts), np.uint8))

    def add_array(self, array: pa.Array) -> Column:
        """A large binary or string array."""
        bounds, data = parts_of(array)
        return self._added(bounds[:-1], data)

    def add_fixed(self, records: Column) -> Column:
        """A column of records, as their bytes; they may still be changed until `rows`."""
        starts = np.arange(len(records), dtype=np.int64) * records.itemsize
        return self._added(starts, records.view(np.uint8))

    def add_numbers(self, numbers: Column, *after: bytes) -> list[Column]:
        """Numbers without a sign, in decimal, with each of these texts behind them; a column of slots for each text."""
        if not len(numbers):
            return [np.zeros(0, dtype=np.int32) for _ in after]
        least, most = (len(str(int(number))) for number in (numbers.min(), numbers.max()))
        digits = np.full(len(numbers), least, dtype=np.int64)
        for more in range(least, most):
            digits += numbers >= 10**more
        words = -(-most // 4)
        decimal = np.empty((len(numbers), words), dtype=np.uint32)
        left = numbers
        for word in reversed(range(words)):
            higher = left // np.uint64(10_000)
            decimal[:, word] = _FOUR_DIGITS[(left - higher * np.uint64(10_000)).astype(np.int64)]
            left = higher
        return [self._numbers_added(decimal, digits, text) for text in after]

    def _numbers_added(self, decimal: Column, digits: Column, after: bytes) -> Column:
        """A row is its digits, aligned right, and the text behind them; a slot begins at the first that counts."""
        count, words = decimal.shape
        filled = np.frombuffer(after + bytes(-len(after) % 4), np.uint32)
        rows = np.empty((count, words + len(filled)), dtype=np.uint32)
        rows[:, :words], rows[:, words:] = decimal, filled
        behind = 4 * (words + rows.shape[1] * np.arange(count, dtype=np.int64))
        starts = np.empty(2 * count, dtype=np.int64)
        starts[0::2], starts[1::2] = behind - digits, behind + len(after)
        return self._added(starts, rows.ravel().view(np.uint8))[0::2]

    def add_base64(self, items: Items, starts: Column, ends: Column) -> Column:
        """Arguments: what follows each in the buffer is a CRLF. A matrix of slots for a matrix of arguments."""
        bounds, encoded = _encoded(items, starts.ravel(), ends.ravel())
        rest = (ends - starts).ravel() % 3
        after = bounds[1:] + self._bytes
        self._mended += ((after[rest > 0] - 1, _EQUALS), (after[rest == 1] - 2, _EQUALS))
        return self._added(bounds[:-1], encoded).reshape(starts.shape)

    def add_base64_content(self, items: Items, starts: Column, ends: Column) -> Column:
        """Whole commands, which end in CRLF. Two bytes of the buffer may have to follow the last (`content_fits`)."""
        bounds, encoded = _encoded(items, starts, ends)
        rest = (ends - starts) % 3
        for number, text in _ENDS.items():
            at = bounds[1:][rest == number] - 4 + self._bytes
            self._mended.append((at[:, None] + np.arange(4), text))
        return self._added(bounds[:-1], encoded)

    def rows(self, slots: Column) -> pa.Array:
        """A binary array: each row is the texts of its slots (a matrix), one after the other."""
        if self._texts is None:
            self._texts = self._joined()
        count, width = slots.shape
        if not count:
            return pa.array([], pa.binary())
        _, bounds, data = gather(self._texts, slots.ravel()).buffers()
        ends = np.frombuffer(bounds, np.int64)[: count * width + 1 : width]
        assert ends[0] == 0
        assert ends[-1] < 2**31
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends.astype(np.int32)), data])

    def _joined(self) -> pa.Array:
        data = np.concatenate(self._data)
        for at, instead in self._mended:
            data[at] = instead
        bounds = np.concatenate([*self._starts, [self._bytes]])
        return pa.Array.from_buffers(pa.large_binary(), self._slots, [None, pa.py_buffer(bounds), pa.py_buffer(data)])

    def _added(self, starts: Column, data: Column) -> Column:
        """A slot ends where the next begins, the last with the data: a slot nobody asks for lies behind it."""
        assert self._texts is None
        slots = np.arange(self._slots, self._slots + len(starts), dtype=np.int32)
        self._data.append(data)
        self._starts.append(np.append(starts, len(data)) + self._bytes)
        self._slots += len(slots) + 1
        self._bytes += len(data)
        return slots


def side_by_side(slots: Sequence[Column | int], count: int) -> Column:
    """A row of slots for each of `count` rows; a slot that is a number is in every row."""
    matrix = np.empty((count, len(slots)), dtype=np.int32)
    for column, slot in enumerate(slots):
        matrix[:, column] = slot
    return matrix


def stacked(matrices: Sequence[Column], empty: int, more: int) -> Column:
    """Rows of slots below each other; the shorter ones are filled, and all lengthened, with a slot that is empty."""
    width = max(matrix.shape[1] for matrix in matrices) + more
    filled = np.full((sum(map(len, matrices)), width), empty, dtype=np.int32)
    begin = 0
    for matrix in matrices:
        filled[begin : begin + len(matrix), : matrix.shape[1]] = matrix
        begin += len(matrix)
    return filled


def content_fits(items: Items, starts: Column, ends: Column) -> Column:
    """Which commands can be lengthened to a multiple of three bytes within the buffer."""
    return _lengthened(starts, ends) <= len(items.data)


def _lengthened(starts: Column, ends: Column) -> Column:
    return starts + (ends - starts + 2) // 3 * 3


def _encoded(items: Items, starts: Column, ends: Column) -> tuple[Column, Column]:
    bounds, data = parts_of(items.slices(starts, _lengthened(starts, ends)))
    return bounds // 3 * 4, np.frombuffer(b2a_base64(data.data, newline=False), np.uint8)
