"""The index: one row of 32 bytes an entry, which answers by Raft index, by client offset and by time.

    offset delta 4 | position 4 | newest timestamp so far 8 | term 4 | batch CRC-32C 4 | kind 1, synced 3 | chain 4

* `offset delta`: the entry's base offset less the segment's. Entries of our own repeat the next record's offset, so the
  last row at or below an offset is the one that holds it.
* `newest timestamp so far`: a running maximum over the segment, so it never falls, and the first row that reaches a
  time is the first batch that does.
* `batch CRC-32C`, `term` and `offset delta` repeat what stands in the batch, so that a row vouches for one batch at one
  place; the batch's own checksum covers neither its offset nor its epoch.
* `synced`: how many rows of this segment were known to be durable when this one was written.
* `chain`: CRC-32C of the row's first 24 bytes, begun with the previous row's chain XOR the kind; the first row begins
  with the segment's salt, drawn at random for each use of a file. A row is genuine only behind the rows it was written
  behind. So neither a truncated entry nor another stream's entry in a recycled file can come back.

Row number is index less the segment's first index: lookup by index is arithmetic, by offset or time a binary search.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import NamedTuple

from crc32c import crc32c

from tidelog.storage.disk import Buffer

ROW_BYTES = 32
SYNCED_MAX = 0xFFFFFF
OFFSET_DELTA_MAX = 0xFFFFFFFF

_CHAINED = struct.Struct(">IIqII")
_ROW = struct.Struct(">IIqIIII")
_U32 = struct.Struct(">I")
_I64 = struct.Struct(">q")
_TAIL = struct.Struct(">II")

_POSITION_AT = 4
_TIMESTAMP_AT = 8
_KIND_AT = 24


class Row(NamedTuple):
    offset_delta: int
    position: int
    newest_timestamp: int
    term: int
    batch_crc: int
    kind: int
    synced: int
    chain: int


def pack_row(
    chain_before: int,
    offset_delta: int,
    position: int,
    newest_timestamp: int,
    term: int,
    batch_crc: int,
    kind: int,
    synced: int,
) -> tuple[bytes, int]:
    """The row's bytes and its chain."""
    chained = _CHAINED.pack(offset_delta, position, newest_timestamp, term, batch_crc)
    chain = crc32c(chained, chain_before ^ kind)
    return chained + _TAIL.pack(kind << 24 | synced, chain), chain


def chain_of(chain_before: int, rows: Buffer, number: int) -> int:
    """What the chain of row `number` must be behind `chain_before`."""
    at = number * ROW_BYTES
    return crc32c(bytes(rows[at : at + _KIND_AT]), chain_before ^ rows[at + _KIND_AT])


def row_at(rows: Buffer, number: int) -> Row:
    delta, position, newest, term, crc, kind_and_synced, chain = _ROW.unpack_from(rows, number * ROW_BYTES)
    return Row(delta, position, newest, term, crc, kind_and_synced >> 24, kind_and_synced & SYNCED_MAX, chain)


def offset_delta_at(rows: Buffer, number: int) -> int:
    return _U32.unpack_from(rows, number * ROW_BYTES)[0]


def position_at(rows: Buffer, number: int) -> int:
    return _U32.unpack_from(rows, number * ROW_BYTES + _POSITION_AT)[0]


def timestamp_at(rows: Buffer, number: int) -> int:
    return _I64.unpack_from(rows, number * ROW_BYTES + _TIMESTAMP_AT)[0]


def row_of_offset(rows: Buffer, count: int, offset_delta: int) -> int:
    """Number of the row that holds the offset, which must lie in the segment."""
    return _last_at_most(offset_delta_at, rows, count, offset_delta)


def row_of_timestamp(rows: Buffer, count: int, timestamp: int) -> int:
    """Number of the first row whose batch reaches `timestamp`; `count` when none does."""
    return bisect_left(range(count), timestamp, key=lambda number: timestamp_at(rows, number))


def row_of_position(rows: Buffer, count: int, position: int) -> int:
    """Number of the last row that begins at or before `position`."""
    return _last_at_most(position_at, rows, count, position)


def _last_at_most(column: Callable[[Buffer, int], int], rows: Buffer, count: int, value: int) -> int:
    """Number of the last row whose value in an ascending column is at most `value`; -1 when there is none.

    A stream's batches are often alike, so a straight line from the first row to the last mostly hits. Where it misses,
    it has told on which side to search.
    """
    low, high = 0, count
    if count > 2 and (last := column(rows, count - 1)) > 0:
        guess = max(0, min(value * (count - 1) // last, count - 2))
        if column(rows, guess) > value:
            high = guess
        elif value < column(rows, guess + 1):
            return guess
        else:
            low = guess
    return low + bisect_right(range(low, high), value, key=lambda number: column(rows, number)) - 1
