"""`wal.mark`: how much of a WAL is durable, for recovery and for readers in other processes.

The records themselves cannot tell: a record that reads well may have been written and not synced, and what is broken at
the end of the last segment may be a write that never finished or damage to what was durable. So after every sync the
writer notes how far it reached. The note itself is synced only when a segment ends, is removed or the WAL begins anew;
after a power cut it may be an older one, which is still true: everything up to it is durable.

    two slots, at bytes 0 and 512, of 64 bytes, little endian:
    magic 4 'PMRK' | version 2 = 1 | zero 2 | generation 8 | first segment 4 | segment 4 | bytes 8 | seq 8
    | filenum 4 | offset 8 | zero 8 | CRC-32C 4 of the 60 bytes before

Each note goes to the slot that is not the newest (generation modulo 2), so one that is cut short leaves the other. The
intact slot with the highest generation counts. Segments below `first segment` do not belong to the WAL any more, even
if their files are still there. All records up to `seq`, ending at (filenum, offset), lie in front of byte `bytes` of
`segment` and are durable.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.disk import sync_file
from tidelog.pikiwi.wal.record import WalPoint

NAME = "wal.mark"
MAGIC = b"PMRK"
VERSION = 1
SLOT_BYTES = 64
SLOT_STEP = 512  # a sector each, so that no write touches both
_SLOT = struct.Struct("<4sHHQIIQQIQQ")
_CRC = struct.Struct("<I")


class Mark(NamedTuple):
    generation: int
    first_segment: int
    durable: WalPoint


def encode_mark(mark: Mark) -> bytes:
    seq, (filenum, offset), segment, size = mark.durable
    data = _SLOT.pack(MAGIC, VERSION, 0, mark.generation, mark.first_segment, segment, size, seq, filenum, offset, 0)
    return data + _CRC.pack(crc32c(data))


def decode_mark(data: bytes) -> Mark | None:
    """The newest intact one of a mark file's content."""
    found = [_decode_slot(data[at : at + SLOT_BYTES]) for at in (0, SLOT_STEP)]
    return max((mark for mark in found if mark is not None), default=None)


def _decode_slot(data: bytes) -> Mark | None:
    if len(data) < SLOT_BYTES or _CRC.unpack_from(data, _SLOT.size)[0] != crc32c(data[: _SLOT.size]):
        return None
    magic, version, _, generation, first, segment, size, seq, filenum, offset, _ = _SLOT.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        return None
    return Mark(generation, first, WalPoint(seq, Position(filenum, offset), segment, size))


def read_mark(folder: Path) -> Mark | None:
    """None when there is none; a reader in another process may call this at any time."""
    try:
        with open(folder / NAME, "rb", buffering=0) as file:
            return decode_mark(file.read(SLOT_STEP + SLOT_BYTES))
    except FileNotFoundError:
        return None


class MarkFile:
    """The writer's side."""

    def __init__(self, folder: Path, generation: int) -> None:
        self._descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self._generation = generation

    def write(self, first_segment: int, durable: WalPoint, *, sync: bool = False) -> None:
        self._generation += 1
        data = encode_mark(Mark(self._generation, first_segment, durable))
        written = os.pwrite(self._descriptor, data, SLOT_STEP * (self._generation % 2))
        if written != len(data):
            raise OSError(f"only {written} of {len(data)} bytes were written to {NAME}")
        if sync:
            sync_file(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)
