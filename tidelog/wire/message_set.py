"""Message sets: what clients before Kafka 0.11 send (Produce v0-2) and understand (Fetch v0-3).

    offset 8 | size 4 | CRC-32 4 | magic 1 | attributes 1 | timestamp 8, if magic is 1 | key | value
    key and value: their length in 4 bytes, or -1 for null, then the bytes

All integers are big-endian. `size` counts what follows it; the checksum covers everything from `magic` on. Messages
stand one after the other. The attributes have the codec in their lowest three bits, and in magic 1 the append-time bit.

A compressed message is a wrapper: its value is a message set of the same magic, compressed as a whole, whose messages
are not compressed themselves. The wrapper's offset is that of its last message. Inside, magic 0 has absolute offsets,
magic 1 offsets that count from the first message. Two more traps: LZ4 in magic 0 has a wrong checksum in its frame's
header (see `compression`), and no old client knows zstd or headers.

The log holds version 2 batches only, so sets are converted on their way in and out. Each wrapper becomes one batch with
the same codec, and so does each run of messages that are not compressed; offsets, which a producer cannot know, are
not looked at. On the way out headers are lost, zstd becomes gzip, control batches and records before the fetched offset
are left out; offsets stay.

Invariants. Nothing is returned before everything is checked; whatever is wrong is a CorruptBatchError. No more than the
stated number of bytes is ever decompressed, in a set as a whole.

Cost: a few microseconds a message, either way. This is the slow path, for clients that are old.
"""

import struct
import zlib
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, NamedTuple

from tidelog.wire.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    NO_TIMESTAMP,
    Buffer,
    CorruptBatchError,
    check_batch,
    read_frame,
)
from tidelog.wire.compression import (
    Codec,
    TooLargeError,
    codec_of,
    compress,
    decompress,
    mend_lz4_header,
    spoil_lz4_header,
)
from tidelog.wire.records import Record, build_batch, decode_records, read_content

Magic = Literal[0, 1]

_FRAME = struct.Struct(">qiIb")  # offset, size, checksum, magic
_SIZE = struct.Struct(">i")
_CHECKED_FROM = 16  # the checksum covers the message from `magic` on
_HEAD_BYTES = (18, 26)  # of a message before its key, by magic
_TIMESTAMP_AT = 18
_TIMESTAMP_MAX = 2**62  # so that the difference of two timestamps fits into 64 bits, as a batch needs it
_CODEC_FOR_OLD = {Codec.ZSTD: Codec.GZIP}


class UnsupportedMagicError(CorruptBatchError):
    """A message of a format that this request cannot carry: a version 2 batch, or something unheard of."""


class _Message(NamedTuple):
    magic: int
    codec: Codec
    timestamp: int
    key: bytes | None
    value: bytes | None


# --- On the way in ---------------------------------------------------------------------------------------------------


def read_message_set(data: Buffer, *, bytes_max: int) -> list[bytearray]:
    """The batches that a produced message set becomes. Messages of magic 0 have no timestamp, and get none.

    `bytes_max` bounds what all its wrappers decompress to. A message that is cut off is an error: only an answer to a
    fetch may end with one.
    """
    batches: list[bytearray] = []
    for codec, run in groupby(_messages(bytes(data)), key=lambda message: message.codec):
        if codec is Codec.NONE:
            batches.append(build_batch(map(_record, run)))
            continue
        for wrapper in run:
            inner = _unwrap(wrapper, bytes_max)
            bytes_max -= len(inner)
            batches.append(build_batch(_inner_records(inner, wrapper.magic), codec=codec))
    return batches


def _messages(data: bytes) -> Iterator[_Message]:
    position = 0
    while position < len(data):
        try:
            _, size, crc, magic = _FRAME.unpack_from(data, position)
        except struct.error:
            raise CorruptBatchError(f"{len(data) - position} stray bytes behind the last message") from None
        if magic not in (0, 1):
            raise UnsupportedMagicError(f"a message has magic {magic}, a message set has 0 or 1")
        end = position + LENGTH_END + size
        if end < position + _HEAD_BYTES[magic] or end > len(data):
            raise CorruptBatchError(f"a message claims {size} bytes, {len(data) - position - LENGTH_END} are there")
        message = data[position:end]
        computed = zlib.crc32(memoryview(message)[_CHECKED_FROM:])
        if computed != crc:
            raise CorruptBatchError(f"checksum is {computed:08x}, the message says {crc:08x}")
        yield _decode_message(message, magic)
        position = end


def _decode_message(message: bytes, magic: int) -> _Message:
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", message, _TIMESTAMP_AT)
        if not NO_TIMESTAMP <= timestamp <= _TIMESTAMP_MAX:
            raise CorruptBatchError(f"a message has timestamp {timestamp}")
    key, position = _take_bytes(message, _HEAD_BYTES[magic])
    value, position = _take_bytes(message, position)
    if position != len(message):
        raise CorruptBatchError(f"{len(message) - position} stray bytes behind a message's value")
    return _Message(magic, codec_of(message[_CHECKED_FROM + 1]), timestamp, key, value)


def _unwrap(wrapper: _Message, bytes_max: int) -> bytes:
    if wrapper.value is None:
        raise CorruptBatchError("a compressed message has no value")
    if wrapper.codec is Codec.ZSTD:
        raise CorruptBatchError("messages of magic 0 and 1 cannot be compressed by zstd")
    value = wrapper.value
    if wrapper.codec is Codec.LZ4 and wrapper.magic == 0:
        value = mend_lz4_header(value)
    inner = decompress(wrapper.codec, value, bytes_max)
    if not inner:
        raise CorruptBatchError("a compressed message holds no message")
    return inner


def _inner_records(data: bytes, magic: int) -> Iterator[Record]:
    for message in _messages(data):
        if message.magic != magic:
            raise CorruptBatchError(f"a wrapper of magic {magic} holds a message of magic {message.magic}")
        if message.codec is not Codec.NONE:
            raise CorruptBatchError("a compressed message holds a compressed message")
        yield _record(message)


def _record(message: _Message) -> Record:
    return Record(message.value, message.key, message.timestamp)


def _take_bytes(message: bytes, position: int) -> tuple[bytes | None, int]:
    try:
        (size,) = _SIZE.unpack_from(message, position)
    except struct.error:
        raise CorruptBatchError("a message ends before its key or value") from None
    position += _SIZE.size
    if size == -1:
        return None, position
    end = position + size
    if size < 0 or end > len(message):
        raise CorruptBatchError(f"a key or value claims {size} bytes, {len(message) - position} are there")
    return message[position:end], end


# --- On the way out --------------------------------------------------------------------------------------------------


def write_message_set(batches: Buffer, magic: Magic, first_offset: int, bytes_max_decompressed: int) -> bytes:
    """The records from `first_offset` on of consecutive batches, as a message set. A cut batch at the end is ignored.

    Where the limit is passed the set ends, and the client fetches on from there; only if it is passed by the very first
    batch it is an error. The set may be empty though there are batches (of control records): then the caller has to
    read on, since an old client would ask for the same offset for ever.
    """
    out = bytearray()
    bytes_left = bytes_max_decompressed  # each batch may take what the ones before it left
    with memoryview(batches) as view:
        position = 0
        while position + HEADER_BYTES <= len(view):
            size = LENGTH_END + read_frame(view[position : position + LENGTH_END])[1]
            if size >= HEADER_BYTES and position + size > len(view):
                break
            try:
                bytes_left -= _convert(view[position : position + max(size, 0)], magic, first_offset, bytes_left, out)
            except TooLargeError:
                if not out:
                    raise
                break
            position += size
    return bytes(out)


def _convert(batch: memoryview, magic: Magic, first_offset: int, bytes_max: int, out: bytearray) -> int:
    """Append the batch's messages to `out`; how many bytes its records have, decompressed."""
    header = check_batch(batch)
    if header.attributes & ATTRIBUTE_CONTROL or header.next_offset <= first_offset:
        return 0
    content = read_content(batch, header, bytes_max)
    records = [record for record in decode_records(content, header) if record.offset >= first_offset]
    if not records:
        return len(content)
    codec = codec_of(header.attributes)
    append_time = header.attributes & ATTRIBUTE_APPEND_TIME if magic == 1 else 0
    # In magic 1 what is inside a wrapper counts from its first message.
    base = records[0].offset if magic == 1 and codec is not Codec.NONE else 0
    messages = bytearray()
    for record in records:
        _put_message(messages, magic, append_time, record.offset - base, record.timestamp, record.key, record.value)
    if codec is Codec.NONE:
        out += messages
    else:
        codec = _CODEC_FOR_OLD.get(codec, codec)
        payload = compress(codec, messages)
        if codec is Codec.LZ4 and magic == 0:
            payload = spoil_lz4_header(payload)
        newest = max(record.timestamp for record in records)
        _put_message(out, magic, codec | append_time, records[-1].offset, newest, None, payload)
    return len(content)


def _put_message(
    out: bytearray, magic: Magic, attributes: int, offset: int, timestamp: int, key: bytes | None, value: bytes | None
) -> None:
    content = bytearray((magic, attributes))
    if magic == 1:
        content += timestamp.to_bytes(8, "big", signed=True)
    for field in (key, value):
        content += _SIZE.pack(-1 if field is None else len(field))
        content += field or b""
    out += struct.pack(">qiI", offset, 4 + len(content), zlib.crc32(content))
    out += content
