"""Records of a WAL's files as columns, many at a time: a walk over the lengths, then everything else at once.

A chunk is some records that follow one another. Every record is checked as `tidelog.pikiwi.wal.scan` checks it (both
checksums, numbers without a gap, growing positions); when anything is wrong, that scan is asked, which says what.

The checksum of a header is linear in its bytes: those of all headers are one lookup for each byte that is not the same
in all of them.

Cost: about half a microsecond a record, of which most is its payload's checksum; one chunk of about `CHUNK_BYTES` in
memory, or one larger record.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from crc32c import crc32c

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.reader import WalGone
from tidelog.pikiwi.wal.record import BINLOG_RAW, HEADER_BYTES, MAGIC, VERSION, WalPoint
from tidelog.pikiwi.wal.scan import scan
from tidelog.pikiwi.wal.segments import Segment, list_segments
from tidelog.spark.kernel.decode import gather

CHUNK_BYTES = 4 << 20

_HEADER = np.dtype(
    [
        ("magic", "S4"), ("header_len", "<u2"), ("version", "u1"), ("kind", "u1"), ("zero", "<u4"), ("epoch", "<u4"),
        ("seq", "<u8"), ("filenum", "<u4"), ("offset", "<u8"), ("length", "<u4"), ("payload_crc", "<u4"),
        ("header_crc", "<u4"), ("reserved", "<u8"),
    ]
)  # fmt: skip
assert _HEADER.itemsize == HEADER_BYTES
_UNREAD = np.dtype((np.void, HEADER_BYTES))  # gathered as a whole: numpy would copy a record field by field
_length_at = struct.Struct("<I").unpack_from
_LENGTH = 36
_CRC = 44
_END = bytes(HEADER_BYTES - _CRC)  # the checksum's own field, taken as zero, and the reserved ones


def _crc_tables() -> npt.NDArray[np.uint32]:
    """What each value of each byte of a header adds to its checksum."""
    nothing = crc32c(bytes(HEADER_BYTES))
    tables = np.zeros((_CRC, 256), dtype=np.uint32)
    for place in range(_CRC):
        for bit in range(8):
            header = bytearray(HEADER_BYTES)
            header[place] = 1 << bit
            adds = np.uint32(crc32c(header) ^ nothing)
            tables[place, 1 << bit : 2 << bit] = tables[place, : 1 << bit] ^ adds
    return tables


_CRC_TABLES = _crc_tables()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records `seq`, `seq` + 1, …"""

    seq: int
    epochs: npt.NDArray[np.int64]
    filenums: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    payloads: pa.Array

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        return np.arange(self.seq, self.seq + len(self), dtype=np.int64)


def read_chunks(folder: Path, start: WalPoint, end: WalPoint) -> Iterator[Chunk]:
    """The records between two places, of which the second is durable."""
    place = start
    for segment, begin, end_bytes in stretches(folder, start, end):
        place = WalPoint(place.seq, place.position, segment.number, begin)
        with _open(segment) as descriptor:
            size = os.fstat(descriptor).st_size if end_bytes is None else end_bytes
            while place.offset < size:
                data, bounds = _read(descriptor, segment, place, size)
                chunk = _chunk(data, bounds, place.seq, place.position)
                if chunk is None:
                    _explain(descriptor, segment, place, place.offset + bounds[-1])
                last = Position(int(chunk.filenums[-1]), int(chunk.offsets[-1]))
                place = WalPoint(place.seq + len(chunk), last, segment.number, place.offset + bounds[-1])
                yield chunk
    if place.seq != end.seq:
        raise CorruptWal(folder, place.offset, f"record {place.seq} is the last, {end.seq} were durable")


def stretches(folder: Path, start: WalPoint, end: WalPoint) -> list[tuple[Segment, int, int | None]]:
    """The segments between two places, each with its first byte and its end (None: it is complete)."""
    found = {segment.number: segment for segment in list_segments(folder)}
    parts: list[tuple[Segment, int, int | None]] = []
    for number in range(start.segment, end.segment + 1):
        begin = start.offset if number == start.segment else 0
        end_bytes = end.offset if number == end.segment else None
        if end_bytes is not None and begin >= end_bytes:
            continue  # nothing of it is wanted; it may not even have a file yet
        if number not in found:
            raise WalGone(f"segment {number} of {folder} was removed: record {start.seq + 1} is no longer there")
        parts.append((found[number], begin, end_bytes))
    return parts


# --- parts ------------------------------------------------------------------------------------------------------------


class _open:  # noqa: N801 - it stands where `open` would
    """A segment's descriptor, for a while."""

    def __init__(self, segment: Segment) -> None:
        try:
            self._descriptor = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            raise WalGone(f"{segment.path} was removed while it was read: everything in it was delivered") from None

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _read(descriptor: int, segment: Segment, place: WalPoint, end: int) -> tuple[bytes, list[int]]:
    """Whole records from a place on, about CHUNK_BYTES of them, and where each begins and the last ends."""
    wanted = CHUNK_BYTES
    while True:
        data = _pread(descriptor, min(wanted, end - place.offset), place.offset)
        bounds, needed = _walk(data)
        if len(bounds) > 1:
            return data, bounds
        if place.offset + needed > end or len(data) < min(wanted, end - place.offset):
            _explain(descriptor, segment, place, end)
        wanted = needed


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    parts: list[bytes] = []
    while size:
        piece = os.pread(descriptor, size, offset)
        if not piece:
            break
        parts.append(piece)
        size -= len(piece)
        offset += len(piece)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _walk(data: bytes) -> tuple[list[int], int]:
    """Bounds of the whole records, and how many bytes are needed for one more."""
    at, size = 0, len(data)
    bounds = [0]
    add = bounds.append
    last_header = size - HEADER_BYTES
    while at <= last_header:
        behind = at + HEADER_BYTES + _length_at(data, at + _LENGTH)[0]
        if behind > size:
            return bounds, behind
        at = behind
        add(at)
    return bounds, at + HEADER_BYTES


def _headers(data: bytes, begins: npt.NDArray[Any]) -> npt.NDArray[Any]:
    every = np.ndarray(max(0, len(data) - HEADER_BYTES + 1), _UNREAD, buffer=data, strides=(1,))
    return every[begins].view(_HEADER)


def _chunk(data: bytes, bounds: list[int], seq: int, position: Position) -> Chunk | None:
    """None when something is wrong."""
    begins = np.array(bounds[:-1], dtype=np.int64)
    headers = _headers(data, begins)
    if not _checksums_hold(data, bounds, headers):
        return None
    count = len(begins)
    filenums, offsets = headers["filenum"].astype(np.int64), headers["offset"].astype(np.int64)
    before_files = np.concatenate(([position.filenum], filenums[:-1]))
    before_offsets = np.concatenate(([position.offset], offsets[:-1]))
    grows = (filenums > before_files) | ((filenums == before_files) & (offsets > before_offsets))
    known = (headers["magic"] == MAGIC) & (headers["header_len"] == HEADER_BYTES) & (headers["version"] == VERSION)
    due = headers["seq"].astype(np.int64) == np.arange(seq + 1, seq + 1 + count)
    if not (grows & known & due & (headers["kind"] == BINLOG_RAW)).all():
        return None
    payloads = gather(pa.py_buffer(data), begins + HEADER_BYTES, headers["length"].astype(np.int64))
    return Chunk(seq + 1, headers["epoch"].astype(np.int64), filenums, offsets, payloads)


def _checksums_hold(data: bytes, bounds: list[int], headers: npt.NDArray[Any]) -> bool:
    if headers["reserved"].any():  # nobody writes them yet, and the checksum's end is then always the same
        return False
    begins, ends = bounds[:-1], bounds[1:]
    of_payloads = np.array(
        [crc32c(data[at + HEADER_BYTES : end]) for at, end in zip(begins, ends, strict=True)], dtype=np.uint32
    )
    of_headers = _header_crcs(headers)
    return np.array_equal(of_headers, headers["header_crc"]) and np.array_equal(of_payloads, headers["payload_crc"])


def _header_crcs(headers: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """With their own field and the reserved ones taken as zero: that of the first, and what differs from it."""
    content = headers.view(np.uint8).reshape(len(headers), HEADER_BYTES)
    first = content[0].tobytes()
    words = headers.view(np.uint64).reshape(len(headers), HEADER_BYTES // 8)
    differs = np.bitwise_or.reduce(words ^ words[0], axis=0).view(np.uint8)
    found = np.full(len(headers), crc32c(first[:_CRC] + _END), dtype=np.uint32)
    for place in np.flatnonzero(differs[:_CRC]).tolist():
        adds = _CRC_TABLES[place] ^ _CRC_TABLES[place, first[place]]
        found ^= adds[content[:, place]]
    return found


def _explain(descriptor: int, segment: Segment, place: WalPoint, end: int) -> NoReturn:
    """Let the plain scan say what is wrong with these bytes."""
    for _ in scan(descriptor, segment.path, place, end):
        pass
    raise CorruptWal(segment.path, place.offset, "a record behind this has reserved fields set: a newer version's")
