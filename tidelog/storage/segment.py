"""A segment: a run of consecutive entries in one file, with the rows that index them.

While it is written, a segment is `<sequence>.active`, a file of fixed size whose blocks exist already where possible:

    data (data_bytes_max) | rows (rows_bytes_max) | trailer (4096: the header, settled mark, header again)

Data and rows of one group commit are in one file, so one sync makes both durable. Closing writes the rows to
`<first index>-<base offset>.index`, renames the file to `….log` and cuts it behind its data: what remains is, byte for
byte, the record batches.

This module holds what is known of a segment in memory. `rows` of a closed segment are read when needed (see `readers`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from crc32c import crc32c

from tidelog.raft.log import Entry
from tidelog.storage.disk import Buffer
from tidelog.storage.rows import (
    OFFSET_DELTA_MAX,
    ROW_BYTES,
    SYNCED_MAX,
    offset_delta_at,
    pack_row,
    position_at,
    row_at,
)
from tidelog.storage.staging import BLOCK_BYTES
from tidelog.wire.batch import LENGTH_END

TRAILER_BYTES = BLOCK_BYTES
SETTLED_AT = 512  # sectors of their own in the trailer: a torn write of one must not harm the others
HEADER_COPY_AT = 1024  # damage to one copy must not make a segment look as if it had never been begun
ACTIVE_SUFFIX = ".active"
LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"

_HEADER_MAGIC = b"TIDESEG1"
_MARK_MAGIC = b"TIDEMRK1"
_IDENTITY = struct.Struct(">16sIQQQIIQIII")
_SHAPE = struct.Struct(">II")
_MARK = struct.Struct(">II")
_CRC = struct.Struct(">I")

Facts = tuple[int, int, int, int]
"""Of a batch: length, checksum, last offset delta, newest timestamp (`wire.batch.unpack_facts`)."""

Placed = tuple[Entry, Buffer, Facts]
"""An entry with its batch, whose stamp says that the two belong at the log's end."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """Sizes of a segment file's parts; multiples of a block."""

    data_bytes_max: int
    rows_bytes_max: int

    def __post_init__(self) -> None:
        for size, limit in ((self.data_bytes_max, 1 << 32), (self.rows_bytes_max, ROW_BYTES * SYNCED_MAX)):
            if size <= 0 or size % BLOCK_BYTES or size >= limit:
                raise ValueError(
                    f"a segment's part has {size} bytes; it must be a multiple of {BLOCK_BYTES} below {limit}"
                )

    @property
    def file_bytes(self) -> int:
        return self.data_bytes_max + self.rows_bytes_max + TRAILER_BYTES

    @property
    def trailer_at(self) -> int:
        return self.data_bytes_max + self.rows_bytes_max


@dataclass(frozen=True, slots=True)
class Link:
    """The end of the segment before: what a following segment was written behind."""

    first_index: int
    count: int
    salt: int
    chain: int


NO_LINK = Link(0, 0, 0, 0)  # the first segment of an era follows nothing


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes one use of one file: a salt of its own, so that nothing of an earlier use can pass for this one."""

    stream_uuid: bytes
    era: int  # rises when a replica's log begins anew elsewhere (take-over)
    sequence: int  # number of the file in the stream's folder, never used twice
    first_index: int
    base_offset: int
    previous_term: int  # of the entry at first_index - 1
    salt: int
    link: Link

    def encode(self) -> bytes:
        link = self.link
        return _IDENTITY.pack(
            self.stream_uuid, self.era, self.sequence, self.first_index, self.base_offset, self.previous_term,
            self.salt, link.first_index, link.count, link.salt, link.chain,
        )  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer, position: int = 0) -> "Identity":
        uuid, era, sequence, first, base, term, salt, *link = _IDENTITY.unpack_from(data, position)
        return cls(uuid, era, sequence, first, base, term, salt, Link(*link))


IDENTITY_BYTES = _IDENTITY.size


def encode_header(identity: Identity, shape: SegmentShape) -> bytes:
    content = _HEADER_MAGIC + identity.encode() + _SHAPE.pack(shape.data_bytes_max, shape.rows_bytes_max)
    return content + _CRC.pack(crc32c(content))


def decode_header(trailer: Buffer) -> tuple[Identity, SegmentShape] | None:
    """Identity and shape, or None when no segment was begun in this file: neither copy of the header is intact."""
    return _decode_header_at(trailer, 0) or _decode_header_at(trailer, HEADER_COPY_AT)


def _decode_header_at(trailer: Buffer, position: int) -> tuple[Identity, SegmentShape] | None:
    shape_at = len(_HEADER_MAGIC) + IDENTITY_BYTES
    content = bytes(trailer[position : position + shape_at + _SHAPE.size])
    if not content.startswith(_HEADER_MAGIC):
        return None
    if _CRC.unpack_from(trailer, position + len(content))[0] != crc32c(content):
        return None
    return Identity.decode(content, len(_HEADER_MAGIC)), SegmentShape(*_SHAPE.unpack_from(content, shape_at))


def encode_settled_mark(count: int, chain: int) -> bytes:
    content = _MARK_MAGIC + _MARK.pack(count, chain)
    return content + _CRC.pack(crc32c(content))


def decode_settled_mark(trailer: Buffer) -> tuple[int, int] | None:
    """(count, chain) of rows that were durable when the stream was last at rest; None when it never was."""
    end = SETTLED_AT + len(_MARK_MAGIC) + _MARK.size
    content = bytes(trailer[SETTLED_AT:end])
    if not content.startswith(_MARK_MAGIC) or _CRC.unpack_from(trailer, end)[0] != crc32c(content):
        return None
    count, chain = _MARK.unpack_from(content, len(_MARK_MAGIC))
    return count, chain


class Segment:
    """One segment as the log sees it. Appended to and cut by the log alone.

    Invariants: position of row n+1 = end of batch n; `length` is the end of the last batch; `controls` are the numbers
    of the rows of our own entries, ascending; `rows` is None once the segment is closed.
    """

    __slots__ = (
        "chain", "controls", "count", "identity", "length", "newest_timestamp", "next_offset", "rows", "shape",
        "term_starts",
    )  # fmt: skip

    def __init__(self, identity: Identity, shape: SegmentShape) -> None:
        self.identity = identity
        self.shape = shape
        self.rows: bytearray | None = bytearray()
        self.count = 0
        self.length = 0
        self.next_offset = identity.base_offset
        self.newest_timestamp = -1
        self.chain = identity.salt
        self.controls: list[int] = []
        self.term_starts: list[tuple[int, int, int]] = []  # (term, first index, first offset) of terms begun here

    @property
    def first_index(self) -> int:
        return self.identity.first_index

    @property
    def last_index(self) -> int:
        return self.identity.first_index + self.count - 1

    @property
    def base_offset(self) -> int:
        return self.identity.base_offset

    @property
    def last_term(self) -> int:
        return self.term_starts[-1][0] if self.term_starts else self.identity.previous_term

    @property
    def link(self) -> Link:
        return Link(self.identity.first_index, self.count, self.identity.salt, self.chain)

    @property
    def active_name(self) -> str:
        return active_name(self.identity.sequence)

    @property
    def closed_name(self) -> str:
        """Without suffix."""
        return f"{self.identity.first_index:020d}-{self.identity.base_offset:020d}"

    def extend(self, placed: Sequence[Placed], start: int, synced: int) -> int:
        """Take in the batches from `start` on, each with a row at the end of `rows`, until one finds no room.

        Returns how many were taken. One call for all that comes together: this is what an append costs.
        """
        assert self.rows is not None, "a closed segment takes no entry"
        rows, base_offset, first_count = self.rows, self.identity.base_offset, self.count
        data_bytes_max, count_max = self.shape.data_bytes_max, self.shape.rows_bytes_max // ROW_BYTES
        count, length, next_offset = first_count, self.length, self.next_offset
        newest, chain, last_term = self.newest_timestamp, self.chain, self.last_term
        for entry, _, (batch_length, crc, last_offset_delta, timestamp) in islice(placed, start, None):
            end = length + LENGTH_END + batch_length
            if end > data_bytes_max or count >= count_max or next_offset - base_offset > OFFSET_DELTA_MAX:
                break
            term, kind = entry.term, entry.kind
            if timestamp > newest:
                newest = timestamp
            if term != last_term:
                last_term = term
                self.term_starts.append((term, entry.index, next_offset))
            row, chain = pack_row(chain, next_offset - base_offset, length, newest, term, crc, kind, synced)
            if kind:
                self.controls.append(count)
            rows += row
            count += 1
            length = end
            next_offset += last_offset_delta + 1
        self.count, self.length, self.next_offset = count, length, next_offset
        self.newest_timestamp, self.chain = newest, chain
        return count - first_count

    def cut(self, rows: Buffer, count: int) -> None:
        """Keep the first `count` entries. `rows` are the segment's, wherever they lie."""
        assert count <= self.count, "a cut removes entries, it adds none"
        if count < self.count:
            self.length = position_at(rows, count)
            self.next_offset = self.base_offset + offset_delta_at(rows, count)
            last = row_at(rows, count - 1) if count else None
            self.newest_timestamp = last.newest_timestamp if last else -1
            self.chain = last.chain if last else self.identity.salt
        self.count = count
        self.controls = [number for number in self.controls if number < count]
        self.term_starts = [start for start in self.term_starts if start[1] <= self.last_index]
        if self.rows is not None:
            del self.rows[count * ROW_BYTES :]

    def end_of(self, rows: Buffer, number: int) -> int:
        """Position behind the batch of row `number`."""
        return position_at(rows, number + 1) if number + 1 < self.count else self.length

    def forget_rows(self) -> None:
        """The rows are in the index file now."""
        self.rows = None


def active_name(sequence: int) -> str:
    return f"{sequence:016d}{ACTIVE_SUFFIX}"
