"""The record format of MANIFEST and log files: 32 KiB blocks of checksummed fragments.

A fragment is `crc u32 | length u16 | type u8` (recycled logs: `| log number u32`) and its bytes; the checksum is a
masked CRC-32C of type, log number and bytes. Types: 1 full, 2 first, 3 middle, 4 last; 5..8 the same in a recycled log,
where a fragment with another log's number is what the file held before and ends the records.

A log may end in a torn record, as after a crash: what is before it counts. A MANIFEST may not (a checkpoint copies
whole records), and a damaged record anywhere else is an error. Memory: one block and one record.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import crc32c

from tidelog.pikiwi.errors import DumpError

BLOCK_BYTES = 32 << 10
RECORD_BYTES_MAX = 1 << 30  # a write batch of RocksDB stays far below

_HEADER = struct.Struct("<IHB")
_LOG_NUMBER = struct.Struct("<I")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_RECYCLED = 4  # added to the type
_CRC_DELTA = 0xA282EAD8
_ALL_ONES = 0xFFFFFFFF


def mask(crc: int) -> int:
    """A CRC-32C as RocksDB stores it: rotated and shifted, so that a checksum of checksums stays a good one."""
    return ((crc >> 15 | crc << 17) + _CRC_DELTA) & _ALL_ONES


def read_records(path: Path, *, log_number: int | None = None) -> Iterator[bytes]:
    """Whole records of a file, in order. With a log's number it is a log: recycled perhaps, and perhaps torn."""
    parts: list[bytes] = []
    held = 0
    for kind, content in _fragments(path, log_number):
        if kind in (_FULL, _FIRST):
            if parts:
                raise DumpError(f"{path}: a record begins inside another; fetch the dump again")
        elif not parts:
            raise DumpError(f"{path}: a record goes on that never began; fetch the dump again")
        parts.append(content)
        held += len(content)
        if held > RECORD_BYTES_MAX:
            raise DumpError(f"{path}: a record has more than {RECORD_BYTES_MAX:,} bytes; fetch the dump again")
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts, held = [], 0
    if parts and log_number is None:
        raise _torn(path)


def _fragments(path: Path, log_number: int | None) -> Iterator[tuple[int, bytes]]:
    at = 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            last = len(block) < BLOCK_BYTES
            begin = 0
            while len(block) - begin >= _HEADER.size:
                crc, length, kind = _HEADER.unpack_from(block, begin)
                if kind == 0 and length == 0:
                    begin = len(block)  # preallocated and never written: the rest of the block holds nothing
                    break
                content = begin + _HEADER.size
                if kind > _LAST + _RECYCLED:
                    raise DumpError(f"{path}: byte {at + begin:,}: a record of kind {kind}, which this reader lacks")
                if kind > _LAST:
                    if log_number is None or block[content : content + _LOG_NUMBER.size] != _LOG_NUMBER.pack(
                        log_number
                    ):
                        return  # from here on the file is what it was before
                    content += _LOG_NUMBER.size
                    kind -= _RECYCLED
                end = content + length
                if end > len(block) and last:
                    break
                if end > len(block):
                    raise DumpError(f"{path}: byte {at + begin:,}: a record leaves its block; fetch the dump again")
                if mask(crc32c.crc32c(block[begin + 6 : end])) != crc:
                    raise DumpError(f"{path}: byte {at + begin:,}: a record's checksum is wrong; fetch the dump again")
                yield kind, block[content:end]
                begin = end
            if last and begin < len(block) and log_number is None:
                raise _torn(path)
            at += len(block)


def _torn(path: Path) -> DumpError:
    return DumpError(f"{path} ends inside a record; fetch the dump again")
