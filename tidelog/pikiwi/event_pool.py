"""Texts that are copied into rows: every row is a list of slots of one pool, and one gather writes all rows.

A pool has its slots side by side in one buffer. Slots come as a single text (`add`), as a list (`add_each`), or as a
column, as they are (`add_array`) or base64 encoded. What is added returns the numbers of its slots.

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


class Pool:
    def __init__(self) -> None:
        self._data: list[Column] = []
        self._bounds: list[Column] = [np.zeros(1, dtype=np.int64)]
        self._slots = 0
        self._bytes = 0

    def add(self, text: bytes) -> int:
        return int(self.add_each([text])[0])

    def add_each(self, texts: Sequence[bytes]) -> Column:
        bounds = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return self._added(bounds, np.frombuffer(b"".join(texts), np.uint8))

    def add_array(self, array: pa.Array) -> Column:
        """A large binary or string array."""
        return self._added(*parts_of(array))

    def add_fixed(self, records: Column) -> Column:
        """A column of records, as their bytes; they may still be changed until `rows`."""
        bounds = np.arange(len(records) + 1, dtype=np.int64) * records.itemsize
        return self._added(bounds, records.view(np.uint8))

    def add_base64(self, items: Items, starts: Column, ends: Column) -> Column:
        """Arguments: what follows each in the buffer is a CRLF. A matrix of slots for a matrix of arguments."""
        bounds, encoded = _encoded(items, starts.ravel(), ends.ravel())
        rest = (ends - starts).ravel() % 3
        after = bounds[1:]
        encoded[after[rest > 0] - 1] = _EQUALS
        encoded[after[rest == 1] - 2] = _EQUALS
        return self._added(bounds, encoded).reshape(starts.shape)

    def add_base64_content(self, items: Items, starts: Column, ends: Column) -> Column:
        """Whole commands, which end in CRLF. Two bytes of the buffer may have to follow the last (`content_fits`)."""
        bounds, encoded = _encoded(items, starts, ends)
        rest = (ends - starts) % 3
        for number, text in _ENDS.items():
            at = bounds[1:][rest == number] - 4
            encoded[at[:, None] + np.arange(4)] = text
        return self._added(bounds, encoded)

    def rows(self, slots: Sequence[Column | int], count: int) -> pa.Array:
        """A binary array: each row is the texts of its slots, one after the other."""
        texts = self._texts()
        order = np.empty((count, len(slots)), dtype=np.int32)
        for column, slot in enumerate(slots):
            order[:, column] = slot
        taken = gather(texts, order.ravel())
        bounds, data = parts_of(taken)
        assert bounds[-1] < 2**31
        return pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(bounds[:: len(slots)].astype(np.int32)), pa.py_buffer(data)]
        )

    def _texts(self) -> pa.Array:
        bounds, data = np.concatenate(self._bounds), np.concatenate(self._data)
        self._bounds, self._data = [bounds], [data]  # so that more rows find it done
        return pa.Array.from_buffers(pa.large_binary(), self._slots, [None, pa.py_buffer(bounds), pa.py_buffer(data)])

    def _added(self, bounds: Column, data: Column) -> Column:
        slots = np.arange(self._slots, self._slots + len(bounds) - 1, dtype=np.int32)
        self._data.append(data)
        self._bounds.append(bounds[1:] + self._bytes)
        self._slots += len(slots)
        self._bytes += len(data)
        return slots


def content_fits(items: Items, starts: Column, ends: Column) -> Column:
    """Which commands can be lengthened to a multiple of three bytes within the buffer."""
    return _lengthened(starts, ends) <= len(items.data)


def _lengthened(starts: Column, ends: Column) -> Column:
    return starts + (ends - starts + 2) // 3 * 3


def _encoded(items: Items, starts: Column, ends: Column) -> tuple[Column, Column]:
    bounds, data = parts_of(items.slices(starts, _lengthened(starts, ends)))
    return bounds // 3 * 4, np.frombuffer(bytearray(b2a_base64(data.data, newline=False)), np.uint8)
