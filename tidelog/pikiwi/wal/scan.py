"""Reading one segment from a place on, in pieces of bounded size: `scan` gives records, each checked; `walk` only where
they lie.

Damage is `CorruptWal` with the file and the byte where the bad record begins. What follows a bad record is not read:
without its length nobody knows where the next one begins, and records may not be left out anyway.

`walk` is for finding places. It looks at magic, number, position and length, and leaves checksums out, which makes it
several times as fast. So a place that it leads to holds only if the records that say so are whole: `check_header`.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.record import HEADER_BYTES, MAGIC, BadRecord, WalPoint, WalRecord, decode_header

PIECE_BYTES = 1 << 20

_PLACE = struct.Struct("<4s12xQIQI")  # magic, seq, filenum, offset, payload length


def scan(descriptor: int, path: Path, start: WalPoint, end: int) -> Iterator[tuple[WalRecord, int]]:
    """The records in bytes [start.offset, end) of a segment, each with the byte behind it.

    `start.seq` and `start.position` are those of the record before; a negative seq: not known.
    """
    _, last, _, offset = start
    expected = start.seq + 1 if start.seq >= 0 else None
    data, base = b"", offset  # `data` holds the bytes of the file from `base` on
    while offset < end:
        at = offset - base
        held = len(data) - at
        try:
            if held < HEADER_BYTES:
                data, base = _more(descriptor, data[at:], offset, HEADER_BYTES, end), offset
                continue
            epoch, seq, filenum, item_end, length, crc = decode_header(data, at)
            size = HEADER_BYTES + length
            if held < size:
                data, base = _more(descriptor, data[at:], offset, size, end), offset
                continue
            payload = data[at + HEADER_BYTES : at + size]
            if crc32c(payload) != crc:
                raise BadRecord("the checksum of the payload is wrong")
            if seq != expected and expected is not None:
                raise BadRecord(f"record {seq} stands where {expected} is due")
            position = Position(filenum, item_end)
            if position <= last:
                raise BadRecord(f"record {seq} ends at {position}, which does not follow {last}")
        except BadRecord as error:
            raise CorruptWal(path, offset, str(error)) from None
        expected, last = seq + 1, position
        offset += size
        yield WalRecord(epoch, seq, position, payload), offset


def walk(descriptor: int, path: Path, start: WalPoint, end: int) -> Iterator[tuple[int, tuple[int, int], int]]:
    """Number, position and the byte behind each record in bytes [start.offset, end) of a segment."""
    seq, last, _, offset = start
    data, base = b"", offset
    fields = _PLACE.unpack_from
    while offset < end:
        at = offset - base
        if len(data) - at < HEADER_BYTES:
            try:
                data, base = _more(descriptor, data[at:], offset, HEADER_BYTES, end), offset
            except BadRecord as error:
                raise CorruptWal(path, offset, str(error)) from None
            continue
        magic, number, filenum, item_end, length = fields(data, at)
        position = (filenum, item_end)
        seq += 1
        after = offset + HEADER_BYTES + length
        if magic != MAGIC or number != seq or position <= last or after > end:
            for _ in scan(descriptor, path, start, end):
                pass  # it finds the first record that is not whole, which may lie before this one
            raise CorruptWal(path, offset, f"record {number}, which ends at {filenum}:{item_end}, does not follow")
        last = position
        offset = after
        if offset - base > len(data):  # the payload goes beyond what was read: begin again behind it
            data, base = b"", offset
        yield seq, position, offset


def check_header(descriptor: int, path: Path, offset: int) -> None:
    """The record that begins here has a whole header, or it is damage."""
    try:
        decode_header(_more(descriptor, b"", offset, HEADER_BYTES, offset + HEADER_BYTES), 0)
    except BadRecord as error:
        raise CorruptWal(path, offset, str(error)) from None


def _more(descriptor: int, rest: bytes, offset: int, wanted: int, end: int) -> bytes:
    """At least `wanted` bytes from `offset` on, of which `rest` is the beginning."""
    if end - offset < wanted:
        raise BadRecord(f"the record needs {wanted} bytes or more, {end - offset} are left")
    goal = min(max(wanted, PIECE_BYTES), end - offset)
    parts = [rest]
    held = len(rest)
    while held < goal:
        piece = os.pread(descriptor, goal - held, offset + held)
        if not piece:
            raise BadRecord(f"the file ends at byte {offset + held}, {end} were durable")
        parts.append(piece)
        held += len(piece)
    return b"".join(parts)
