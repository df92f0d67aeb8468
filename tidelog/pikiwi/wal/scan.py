"""Reading one segment from a place on: record after record, each checked, in pieces of bounded size.

Damage is `CorruptWal` with the file and the byte where the bad record begins. What follows a bad record is not read:
without its length nobody knows where the next one begins, and records may not be left out anyway.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.record import HEADER_BYTES, BadRecord, WalPoint, WalRecord, decode_header

PIECE_BYTES = 1 << 20


def scan(
    descriptor: int, path: Path, start: WalPoint, end: int, *, payloads: bool = True
) -> Iterator[tuple[WalRecord, int]]:
    """The records in bytes [start.offset, end) of a segment, each with the byte behind it.

    `start.seq` and `start.position` are those of the record before; a negative seq: not known. Without `payloads` the
    records have none and only headers are checked; it is for finding places.
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
            payload = data[at + HEADER_BYTES : at + size] if payloads else b""
            if payloads and crc32c(payload) != crc:
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
