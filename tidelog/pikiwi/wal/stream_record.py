"""The WAL's records as messages of a stream: which follow, which are repetitions, which are damage.

A message's value is a record, header and payload, as in a file; its key is the database's name. A second type of
record says that the WAL begins anew: type 2 (set aside for snapshots), no payload, the number of the last record before
it, and the position at which it goes on. It takes the place of a new file's name.

A writer that lost its connection may have written more than it knows, even after its successor looked for the end. The
successor then writes the same items once more, with the same numbers. So a record whose number was there already is a
repetition and left out. What makes that safe is that a number names one item: items come from one binlog, in order, and
the one after record n is always the same. A number that is skipped is damage.
"""

import struct
from typing import NamedTuple

from crc32c import crc32c

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.record import HEADER_BYTES, MAGIC, VERSION, BadRecord, WalRecord, decode_record

BEGIN_ANEW = 2

_TYPE_AT = 7
_FIELDS = struct.Struct("<4sHBBHHIQIQIIIQ")


class Begin(NamedTuple):
    """From here on the WAL goes on at `position`; the next record is `seq` + 1."""

    seq: int
    position: Position


def encode_begin(begin: Begin) -> bytes:
    filenum, offset = begin.position
    fields = (MAGIC, HEADER_BYTES, VERSION, BEGIN_ANEW, 0, 0, 0, begin.seq, filenum, offset, 0, 0)
    return _FIELDS.pack(*fields, crc32c(_FIELDS.pack(*fields, 0, 0)), 0)


def decode_message(value: bytes) -> WalRecord | Begin:
    """Raises BadRecord for anything else."""
    if len(value) == HEADER_BYTES and value[_TYPE_AT] == BEGIN_ANEW:
        fields = _FIELDS.unpack(value)
        begin = Begin(fields[7], Position(fields[8], fields[9]))
        if value != encode_begin(begin):
            raise BadRecord("a record that begins the WAL anew is damaged")
        return begin
    return decode_record(value)


class Follower:
    """Checks a stream message by message."""

    def __init__(self) -> None:
        self.seq: int | None = None  # of the last record; None: nothing was seen yet
        self.position: Position | None = None

    def take(self, value: bytes) -> WalRecord | None:
        """The record, or None for what is none: a repetition, or the WAL beginning anew."""
        found = decode_message(value)
        if isinstance(found, Begin):
            if self.seq is None or found.seq >= self.seq:
                self.seq, self.position = found.seq, found.position
            return None
        if self.seq is not None and self.position is not None:
            if found.seq <= self.seq:
                return None
            if found.seq != self.seq + 1:
                raise BadRecord(f"record {found.seq} stands where {self.seq + 1} is due")
            if found.position <= self.position:
                raise BadRecord(f"record {found.seq} ends at {found.position}, which does not follow {self.position}")
        self.seq, self.position = found.seq, found.position
        return found
