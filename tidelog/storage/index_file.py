"""The index file of a closed segment: its identity, its rows, and what recovery wants to know without reading rows.

    magic 8 | identity | data bytes 4 | rows 4 | next offset 8 | newest timestamp 8 | chain 4 | terms 4 | controls 4
    rows, 32 bytes each (see `rows`)
    terms begun in the segment: term 4, first index 8, first offset 8 each
    controls: row number 4 each
    CRC-32C 4 of everything before it

It can always be made again from the segment; the next segment's link says whether the result is right.
"""

import struct

from crc32c import crc32c

from tidelog.storage.disk import Buffer
from tidelog.storage.rows import ROW_BYTES
from tidelog.storage.segment import IDENTITY_BYTES, Identity, Segment, SegmentShape

_MAGIC = b"TIDEIDX1"
_SUMMARY = struct.Struct(">IIqqIII")
_TERM_START = struct.Struct(">IQQ")
_CRC = struct.Struct(">I")

ROWS_AT = len(_MAGIC) + IDENTITY_BYTES + _SUMMARY.size


def encode_index(segment: Segment, rows: Buffer) -> bytes:
    summary = _SUMMARY.pack(
        segment.length, segment.count, segment.next_offset, segment.newest_timestamp, segment.chain,
        len(segment.term_starts), len(segment.controls),
    )  # fmt: skip
    parts: list[Buffer] = [_MAGIC, segment.identity.encode(), summary, bytes(rows[: segment.count * ROW_BYTES])]
    parts += [_TERM_START.pack(*start) for start in segment.term_starts]
    parts.append(struct.pack(f">{len(segment.controls)}I", *segment.controls))
    content = b"".join(parts)
    return content + _CRC.pack(crc32c(content))


def index_bytes(segment: Segment) -> int:
    """Length of the segment's index file."""
    terms = len(segment.term_starts) * _TERM_START.size
    return ROWS_AT + segment.count * ROW_BYTES + terms + 4 * len(segment.controls) + _CRC.size


def decode_index(content: bytes, shape: SegmentShape) -> Segment | None:
    """The closed segment that the file describes, without its rows; None when the file is not whole and intact."""
    if len(content) < ROWS_AT + _CRC.size or not content.startswith(_MAGIC):
        return None
    body = memoryview(content)[: -_CRC.size]
    if crc32c(body) != _CRC.unpack_from(content, len(body))[0]:
        return None
    segment = Segment(Identity.decode(content, len(_MAGIC)), shape)
    length, count, next_offset, newest, chain, terms, controls = _SUMMARY.unpack_from(content, ROWS_AT - _SUMMARY.size)
    at = ROWS_AT + count * ROW_BYTES
    segment.term_starts = [_TERM_START.unpack_from(content, at + n * _TERM_START.size) for n in range(terms)]
    segment.controls = list(struct.unpack_from(f">{controls}I", content, at + terms * _TERM_START.size))
    segment.length, segment.count, segment.next_offset = length, count, next_offset
    segment.newest_timestamp, segment.chain = newest, chain
    segment.forget_rows()
    return segment
