"""Kafka's varints, many at a time: zigzag, seven bits a byte, the lowest first.

Cost: a few numpy passes for the first byte of all, then one for each further byte, over only those that have it.
Almost all varints of a record have one or two bytes.
"""

import numpy as np
import numpy.typing as npt

from tidelog.wire.batch import CorruptBatchError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]

VARINT_BYTES_MAX = 10
_LAST_SHIFT = 63  # of the tenth byte, which has room for one bit


def take_varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """(values, positions behind them) of the varints at `at`; IndexError when one ends behind the data."""
    byte = data[at]
    ends = at + 1
    rows = np.flatnonzero(byte >= 0x80)
    if not rows.size:
        value = byte.astype(np.int64)
        return (value >> 1) ^ -(value & 1), ends
    raw = (byte & 0x7F).astype(np.uint64)
    shift = 7
    while rows.size:
        byte = data[ends[rows]]
        if shift >= _LAST_SHIFT and (shift > _LAST_SHIFT or (byte > 1).any()):
            raise CorruptBatchError("a varint has more than 64 bits")
        raw[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        ends[rows] += 1
        rows = rows[byte >= 0x80]
        shift += 7
    return (raw >> np.uint64(1)).astype(np.int64) ^ -(raw & np.uint64(1)).astype(np.int64), ends


def skip_varints(data: Bytes, at: Ints) -> Ints:
    """Positions behind the varints at `at`."""
    ends = at + 1
    rows = np.flatnonzero(data[at] >= 0x80)
    for _ in range(VARINT_BYTES_MAX):
        if not rows.size:
            return ends
        more = data[ends[rows]] >= 0x80
        ends[rows] += 1
        rows = rows[more]
    raise CorruptBatchError("a varint has more than 64 bits")


def put_varints(values: Ints) -> tuple[Bytes, npt.NDArray[np.bool_], Ints]:
    """The varints as rows of a matrix, which of its bytes count, and how many do in each row."""
    raw = (values.astype(np.int64) << 1 ^ values >> 63).astype(np.uint64)
    width = 1
    largest = int(raw.max()) if raw.size else 0
    while largest >> 7 * width:
        width += 1
    matrix = np.empty((len(raw), width), dtype=np.uint8)
    sizes = np.ones(len(raw), dtype=np.int64)
    for column in range(width):
        shifted = raw >> np.uint64(7 * column)
        more = shifted >= 0x80
        matrix[:, column] = (shifted & np.uint64(0x7F)).astype(np.uint8) | (more.astype(np.uint8) << 7)
        sizes += more
    return matrix, np.arange(width) < sizes[:, None], sizes
