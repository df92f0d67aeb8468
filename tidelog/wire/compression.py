"""The codecs of a record batch's payload, with a bound on what a payload may grow to.

    codec    what stands in the payload
    gzip     RFC 1952 members
    snappy   xerial framing: the magic, two 4-byte versions, then blocks of at most 32 KiB (before compression), each
             as its 4-byte length and raw snappy; readers of Kafka clients take plain raw snappy as well, so we do too
    lz4      LZ4 frames with independent blocks: Java cannot read linked ones, so none are written
    zstd     RFC 8878 frames, with or without their content size

A payload may consist of several members (frames, streams), one after the other: all are read.

Invariants. `decompress` returns at most `bytes_max` bytes, and allocates about as much while it finds out (twice as
much when it returns them). Whatever is wrong with the data is a CorruptBatchError and nothing else: truncation, a wrong
checksum, stray bytes, a dictionary we do not have. What is right but too large is a TooLargeError, which is one too.

Cost: all loops over content run in C. Python's are over members, 1 MiB pieces, 32 KiB blocks and zstd's 128 KiB
blocks. `looks_compressed` reads the first few bytes only.
"""

import struct
import zlib
from enum import IntEnum
from typing import Any

import cramjam
import lz4.frame  # pyright: ignore[reportMissingTypeStubs]
import zstandard

from tidelog.wire.batch import ATTRIBUTE_COMPRESSION, Buffer, CorruptBatchError


class Codec(IntEnum):
    """The lowest three bits of a batch's (or an old message's) attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TooLargeError(CorruptBatchError):
    """The payload decompresses to more than the caller allows: a bomb, or a limit that is too low."""


MEMBERS_MAX = 1024  # in one payload; producers write one, and each costs far more than its bytes
_PIECE_BYTES = 1 << 20  # a codec that streams is asked for so much at a time

_GZIP_MAGIC = b"\x1f\x8b\x08"
_GZIP_STEP_BYTES = 64 * 1024
_GZIP_WINDOW = 31  # zlib's largest window, with gzip's header and trailer around it

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, and the oldest that can read it
_XERIAL_BLOCK_BYTES = 32 * 1024
_SNAPPY_RATIO_MAX = 22  # the densest element of raw snappy is three bytes for 64

_lz4: Any = lz4.frame  # it has no type stubs
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_HAS_CONTENT_SIZE = 0x08
_LZ4_HAS_DICTIONARY = 0x01

_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK_BYTES_MAX = 128 * 1024
_ZSTD_RLE, _ZSTD_COMPRESSED = 1, 2  # block types; 0 is raw

_MAGICS = (b"", _GZIP_MAGIC, _XERIAL_MAGIC, _LZ4_MAGIC, _ZSTD_MAGIC)  # by codec


def codec_of(attributes: int) -> Codec:
    try:
        return Codec(attributes & ATTRIBUTE_COMPRESSION)
    except ValueError:
        raise CorruptBatchError(f"there is no codec {attributes & ATTRIBUTE_COMPRESSION}") from None


def compress(codec: Codec, data: Buffer) -> bytes:
    if codec is Codec.GZIP:
        deflate = zlib.compressobj(wbits=_GZIP_WINDOW)
        return deflate.compress(data) + deflate.flush()
    if codec is Codec.SNAPPY:
        return _compress_snappy(data)
    if codec is Codec.LZ4:
        return bytes(_lz4.compress(bytes(data), block_linked=False, store_size=False))
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    return bytes(data)


def decompress(codec: Codec, data: Buffer, bytes_max: int) -> bytes:
    """The content of a payload, at most `bytes_max` bytes of it."""
    output = _Output(bytes_max)
    if codec is Codec.GZIP:
        _decompress_gzip(memoryview(data), output)
    elif codec is Codec.SNAPPY:
        _decompress_snappy(memoryview(data), output)
    elif codec is Codec.LZ4:
        _decompress_lz4(memoryview(data), output)
    elif codec is Codec.ZSTD:
        _decompress_zstd(memoryview(data), output)
    else:
        output.reserve(len(data))
        output.add(bytes(data))
    return output.joined()


def looks_compressed(codec: int, data: Buffer, position: int = 0) -> bool:
    """Does what stands at `position` begin as `codec` says? For a codec that does not exist, nothing does."""
    if not 0 <= codec < len(_MAGICS):
        return False
    magic = _MAGICS[codec]
    if data[position : position + len(magic)] == magic:
        return True
    return codec == Codec.SNAPPY and _looks_like_raw_snappy(data, position)


def _looks_like_raw_snappy(data: Buffer, position: int) -> bool:
    """Raw snappy has no magic: it begins with the length of its content as a varint, and can only grow so much."""
    length = 0
    for shift, byte in enumerate(data[position : position + 5]):
        length |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return 0 < length <= (len(data) - position) * _SNAPPY_RATIO_MAX
    return False


class _Output:
    """Pieces of decompressed data that together never pass the limit."""

    def __init__(self, bytes_max: int) -> None:
        self._pieces: list[bytes] = []
        self._bytes_max = bytes_max
        self.bytes_left = bytes_max

    def reserve(self, size: int) -> None:
        """Refuse a piece before it is made, when its size is known in advance."""
        if size > self.bytes_left:
            raise TooLargeError(f"a payload decompresses to more than {self._bytes_max} bytes")

    def add(self, piece: bytes) -> None:
        self.reserve(len(piece))
        self.bytes_left -= len(piece)
        self._pieces.append(piece)

    def joined(self) -> bytes:
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)


def _decompress_gzip(data: memoryview, output: _Output) -> None:
    position = 0
    for _ in range(MEMBERS_MAX):
        member = zlib.decompressobj(wbits=_GZIP_WINDOW)
        while not member.eof:
            # In small steps, because zlib copies what it did not consume.
            step = data[position : position + _GZIP_STEP_BYTES]
            try:
                piece = member.decompress(step, _PIECE_BYTES)
            except zlib.error as error:
                raise CorruptBatchError(f"gzip: {error}") from None
            position += len(step) - len(member.unconsumed_tail) - len(member.unused_data)
            output.add(piece)
            if not (piece or step or member.eof):
                raise CorruptBatchError("gzip: the payload ends too early")
        if position == len(data):
            return
    raise CorruptBatchError(f"gzip: more than {MEMBERS_MAX} members")


def _compress_snappy(data: Buffer) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    with memoryview(data) as view:
        for start in range(0, max(len(view), 1), _XERIAL_BLOCK_BYTES):
            block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
            out += len(block).to_bytes(4, "big")
            out += block
    return bytes(out)


def _decompress_snappy(data: memoryview, output: _Output) -> None:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        _decompress_snappy_block(data, output)
        return
    position = 0
    while position < len(data):
        # A stream may be followed by another one. Their versions are not looked at: some producers write them with the
        # wrong byte order, and there is only one version.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position += len(_XERIAL_HEADER)
            continue
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if position + size > len(data):
            raise CorruptBatchError(f"snappy: a block claims {size} bytes, {len(data) - position} are there")
        _decompress_snappy_block(data[position : position + size], output)
        position += size
    if position > len(data):
        raise CorruptBatchError("snappy: the payload ends in its header")


def _decompress_snappy_block(block: memoryview, output: _Output) -> None:
    try:
        size = cramjam.snappy.decompress_raw_len(block)
        output.reserve(size)
        if size > len(block) * _SNAPPY_RATIO_MAX:  # it cannot be, and so much memory is not spent on finding out
            raise CorruptBatchError(f"snappy: {len(block)} bytes claim to hold {size}")
        output.add(bytes(cramjam.snappy.decompress_raw(block)))
    except cramjam.DecompressionError as error:
        raise CorruptBatchError(str(error)) from None


def _decompress_lz4(data: memoryview, output: _Output) -> None:
    position = 0
    for _ in range(MEMBERS_MAX):
        context = _lz4.create_decompression_context()
        ended = False
        while not ended:
            try:
                piece, read, ended = _lz4.decompress_chunk(context, data[position:], max_length=_PIECE_BYTES)
            except RuntimeError as error:
                raise CorruptBatchError(f"lz4: {error}") from None
            position += read
            output.add(piece)
            if not (piece or read or ended):
                raise CorruptBatchError("lz4: the payload ends too early")
        if position == len(data):
            return
    raise CorruptBatchError(f"lz4: more than {MEMBERS_MAX} frames")


def _decompress_zstd(data: memoryview, output: _Output) -> None:
    # One for each call: it must not be shared by threads.
    decompressor = zstandard.ZstdDecompressor()
    position = 0
    for _ in range(MEMBERS_MAX):
        try:
            end, size_max, size_is_known = _walk_zstd_frame(data, position)
            output.reserve(size_max if size_is_known else 0)
            room = min(size_max, output.bytes_left) + 1
            output.add(decompressor.decompress(data[position:end], max_output_size=room))
        except zstandard.ZstdError as error:
            if "did not decompress full frame" in str(error):  # the frame is whole, so it is the room that was short
                raise TooLargeError("zstd: a frame holds more than is allowed, or than it says") from None
            raise CorruptBatchError(f"zstd: {error}") from None
        position = end
        if position == len(data):
            return
    raise CorruptBatchError(f"zstd: more than {MEMBERS_MAX} frames")


def _walk_zstd_frame(data: memoryview, position: int) -> tuple[int, int, bool]:
    """(end, the most it can decompress to, whether it is just that much) of the frame at `position`.

    The library decompresses a frame of unknown content size only into a buffer that is large enough, and does not
    notice what follows the frame. Its block headers tell both, and cost one step for 128 KiB of content.
    """
    frame = data[position:]
    parameters = zstandard.get_frame_parameters(frame)
    here = position + zstandard.frame_header_size(frame)
    size_max = 0
    last = False
    while not last:
        head = int.from_bytes(data[here : here + 3], "little")
        last, kind, size = bool(head & 1), head >> 1 & 3, head >> 3
        here += 3 + (1 if kind == _ZSTD_RLE else size)
        size_max += _ZSTD_BLOCK_BYTES_MAX if kind == _ZSTD_COMPRESSED else size
        if here > len(data):
            raise CorruptBatchError("zstd: the payload ends too early")
    if parameters.has_checksum:
        here += 4
    if here > len(data):
        raise CorruptBatchError("zstd: the payload ends in its checksum")
    if parameters.content_size == zstandard.CONTENTSIZE_UNKNOWN:
        return here, size_max, False
    if parameters.content_size > size_max:
        raise CorruptBatchError(f"zstd: a frame claims to hold {parameters.content_size} bytes")
    return here, parameters.content_size, True


def spoil_lz4_header(frame: bytes) -> bytes:
    """The frame as Kafka 0.8 and 0.9 know it: their checksum of the header takes the frame's magic in, by mistake."""
    return _with_lz4_header_checksum(frame, checked_from=0)


def mend_lz4_header(frame: Buffer) -> bytes:
    """The frame with the right checksum of its header, whatever stood there: Java ignores it in old messages too."""
    return _with_lz4_header_checksum(bytes(frame), checked_from=len(_LZ4_MAGIC))


def _with_lz4_header_checksum(frame: bytes, checked_from: int) -> bytes:
    # Magic 4 | flags 1 | block size 1 | content size 8, if a flag says so | checksum 1
    flags = frame[4] if frame.startswith(_LZ4_MAGIC) and len(frame) > 4 else _LZ4_HAS_DICTIONARY
    checksum_at = 14 if flags & _LZ4_HAS_CONTENT_SIZE else 6
    if flags & _LZ4_HAS_DICTIONARY or checksum_at >= len(frame):
        raise CorruptBatchError("lz4: no frame, or one with a dictionary")
    checksum = _xxh32_short(frame[checked_from:checksum_at]) >> 8 & 0xFF
    return frame[:checksum_at] + bytes((checksum,)) + frame[checksum_at + 1 :]


def _xxh32_short(data: bytes) -> int:
    """xxHash32 with seed 0 of fewer than 16 bytes, which need no stripes."""
    assert len(data) < 16, "longer input has another algorithm"
    mask = 0xFFFFFFFF
    value = 374761393 + len(data)
    whole = len(data) & ~3
    for (word,) in struct.iter_unpack("<I", data[:whole]):
        value = value + word * 3266489917 & mask
        value = (value << 17 | value >> 15) * 668265263 & mask
    for byte in data[whole:]:
        value = value + byte * 374761393 & mask
        value = (value << 11 | value >> 21) * 2654435761 & mask
    value = (value ^ value >> 15) * 2246822519 & mask
    value = (value ^ value >> 13) * 3266489917 & mask
    return value ^ value >> 16
