"""Codecs: what goes in comes out, others read it and are read, nothing grows past its limit, garbage is refused."""

import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.wire import record_oracles
from tests.wire.record_oracles import CLIENTS
from tidelog.wire.batch import CorruptBatchError
from tidelog.wire.compression import (
    MEMBERS_MAX,
    Codec,
    TooLargeError,
    codec_of,
    compress,
    decompress,
    looks_compressed,
    mend_lz4_header,
    spoil_lz4_header,
)

COMPRESSED = tuple(codec for codec in Codec if codec is not Codec.NONE)
LIMIT = 1 << 20
TEXT = b"".join(b'{"station": %d, "tide_cm": %d}' % (n % 7, n * n % 400) for n in range(4000))  # more than a block

contents = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(max_size=40), st.integers(0, 2500)
)


def linked_lz4(data: bytes) -> bytes:
    return lz4.frame.compress(data, block_linked=True, content_checksum=True, block_checksum=True, store_size=True)


def streamed_zstd(data: bytes, checksum: bool = False) -> bytes:
    """As Java writes it: with no content size."""
    stream = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
    return stream.compress(data) + stream.flush()


@given(st.sampled_from(Codec), contents)
def test_what_is_compressed_decompresses_and_never_past_its_limit(codec: Codec, data: bytes) -> None:
    payload = compress(codec, memoryview(bytearray(data)))
    assert decompress(codec, payload, len(data)) == data
    assert decompress(codec, memoryview(payload), LIMIT) == data
    if data:
        with pytest.raises(TooLargeError):
            decompress(codec, payload, len(data) - 1)


@pytest.mark.parametrize("codec", Codec)
def test_content_of_many_blocks_reads_back(codec: Codec) -> None:
    for data in (TEXT, random.Random(1).randbytes(200_000), bytes(3 * LIMIT)):
        assert decompress(codec, compress(codec, data), len(data)) == data


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("data", [b"x", TEXT], ids=["one byte", "many blocks"])
def test_clients_read_what_we_write_and_we_read_what_they_write(client: str, codec: Codec, data: bytes) -> None:
    assert record_oracles.decode(client, codec, compress(codec, data)) == data
    theirs = record_oracles.encode(client, codec, data)
    assert decompress(codec, theirs, len(data)) == data
    assert looks_compressed(codec, theirs)


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        (Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))),
        (Codec.SNAPPY, compress(Codec.SNAPPY, TEXT).replace(struct.pack(">ii", 1, 1), struct.pack("<ii", 1, 1), 1)),
        (Codec.LZ4, linked_lz4(TEXT)),
        (Codec.ZSTD, streamed_zstd(TEXT)),
        (Codec.ZSTD, streamed_zstd(TEXT, checksum=True)),
        (Codec.ZSTD, zstandard.ZstdCompressor(level=19, write_checksum=True).compress(TEXT)),
    ],
    ids=["raw snappy", "xerial, wrong byte order", "linked lz4", "streamed zstd", "streamed, checked zstd", "zstd 19"],
)
def test_forms_that_others_write_are_read(codec: Codec, payload: bytes) -> None:
    assert looks_compressed(codec, payload)
    assert decompress(codec, payload, len(TEXT)) == TEXT
    for limit in (0, 1, len(TEXT) - 1):
        with pytest.raises(TooLargeError):
            decompress(codec, payload, limit)


def test_lz4_blocks_are_written_independent_because_java_reads_no_others() -> None:
    assert compress(Codec.LZ4, TEXT)[4] & 0x20


@pytest.mark.parametrize("codec", COMPRESSED)
def test_all_members_of_a_payload_are_read(codec: Codec) -> None:
    one = compress(codec, b"ebb ")
    assert decompress(codec, one + compress(codec, b"and ") + compress(codec, b"flow"), 12) == b"ebb and flow"
    with pytest.raises(TooLargeError):
        decompress(codec, one * 3, 11)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_members_have_a_limit_since_each_costs_more_than_its_bytes(codec: Codec) -> None:
    empty = compress(codec, b"")
    assert decompress(codec, empty * MEMBERS_MAX, 0) == b""
    with pytest.raises(CorruptBatchError, match="more than"):
        decompress(codec, empty * (MEMBERS_MAX + 1), 0)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_payload_that_is_cut_or_has_something_behind_it_is_refused(codec: Codec) -> None:
    for data in (b"value", TEXT[:3000]):
        payload = compress(codec, data)
        # A xerial stream may end after its header or any block: each is whole in itself.
        whole = {16} if codec is Codec.SNAPPY else set[int]()
        for length in set(range(len(payload))) - whole:
            with pytest.raises(CorruptBatchError):
                decompress(codec, payload[:length], LIMIT)
        for stray in (b"\x00", b"stray bytes", b"\xff" * 20):
            with pytest.raises(CorruptBatchError):
                decompress(codec, payload + stray, LIMIT)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_damaged_bit_is_refused_or_at_least_does_no_harm(codec: Codec) -> None:
    payload = compress(codec, TEXT[:400])
    for bit in range(len(payload) * 8):
        damaged = bytearray(payload)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert len(decompress(codec, damaged, LIMIT)) <= LIMIT
        except CorruptBatchError:
            continue


@given(st.sampled_from(COMPRESSED), st.binary(max_size=100), st.booleans())
def test_garbage_is_refused_and_nothing_else_happens(codec: Codec, garbage: bytes, begins_well: bool) -> None:
    data = compress(codec, b"value" * 20)[:12] + garbage if begins_well else garbage
    looks_compressed(codec, data)
    for read in (lambda: decompress(codec, data, 1000), lambda: mend_lz4_header(data)):
        try:
            assert len(read()) <= max(1000, len(data))
        except CorruptBatchError:
            continue


GIBIBYTE = 1 << 30


def gzip_bomb() -> bytes:
    """The same block over and over; that the checksum at the end is wrong must not matter."""
    stream = zlib.compressobj(1, wbits=31)
    head, block = (stream.compress(bytes(1 << 24)) + stream.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return head + block * (GIBIBYTE >> 24) + stream.flush()


def xerial_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 15)))
    return compress(Codec.SNAPPY, b"")[:16] + (struct.pack(">i", len(block)) + block) * (GIBIBYTE >> 15)


def lz4_bomb() -> bytes:
    stream = lz4.frame.LZ4FrameCompressor(block_size=lz4.frame.BLOCKSIZE_MAX4MB)
    return stream.begin() + b"".join(stream.compress(bytes(1 << 24)) for _ in range(GIBIBYTE >> 24)) + stream.flush()


def zstd_bomb(content_size: int = -1) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj(size=content_size)
    return b"".join(stream.compress(bytes(1 << 24)) for _ in range(GIBIBYTE >> 24)) + stream.flush()


@pytest.mark.parametrize(
    ("codec", "make"),
    [
        (Codec.GZIP, gzip_bomb),
        (Codec.SNAPPY, xerial_bomb),
        (Codec.SNAPPY, lambda: b"\xff\xff\xff\xff\x0f" + b"\xfe\x01\x00" * 1000),  # raw, and claims 4 GiB
        (Codec.LZ4, lz4_bomb),
        (Codec.ZSTD, zstd_bomb),
        (Codec.ZSTD, lambda: zstd_bomb(GIBIBYTE)),
        (Codec.ZSTD, lambda: b"\x28\xb5\x2f\xfd\x00\x58" + b"\x02\x00\x10\x00" * 8192 + b"\x03\x00\x10\x00"),
    ],
    ids=["gzip", "xerial", "raw snappy", "lz4", "zstd", "zstd with its size", "zstd of runs"],
)
def test_a_gibibyte_of_zeros_does_not_go_off(codec: Codec, make: Callable[[], bytes]) -> None:
    bomb = make()
    limit, slack = 4 << 20, 3 << 20
    tracemalloc.start()
    try:
        with pytest.raises(TooLargeError):
            decompress(codec, bomb, limit)
        assert tracemalloc.get_traced_memory()[1] < limit + slack
    finally:
        tracemalloc.stop()


def test_a_claim_that_cannot_be_true_costs_no_memory() -> None:
    """Few bytes that say they hold many, within the limit."""
    snappy = b"\x80\x80\x80\x20" + b"\x00x"  # 64 MiB
    zstd = zstandard.ZstdCompressor().compress(bytes(1 << 26))
    zstd = zstd[: zstandard.frame_header_size(zstd)] + b"\x01\x00\x00"  # one empty block
    for codec, payload in ((Codec.SNAPPY, snappy), (Codec.ZSTD, zstd)):
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatchError, match="claim"):
                decompress(codec, payload, 1 << 27)
            assert tracemalloc.get_traced_memory()[1] < 1 << 16
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_payload_looks_like_its_own_codec_only(codec: Codec) -> None:
    payload = compress(codec, TEXT)
    for position, buffer in ((0, payload), (5, bytearray(b"batch" + payload)), (1, memoryview(b"." + payload))):
        assert looks_compressed(codec, buffer, position)
    for other in COMPRESSED:
        # Raw snappy has no magic: what others write may pass for it.
        assert other is codec or other is Codec.SNAPPY or not looks_compressed(other, payload)
    assert looks_compressed(Codec.NONE, payload)
    assert not any(looks_compressed(codec, data) for data in (b"", payload[:1], b"\xff" * 50, bytes(50)))
    assert not any(looks_compressed(number, payload) for number in (-1, 5, 6, 7))


def test_codec_of_attributes() -> None:
    assert [codec_of(attributes) for attributes in (0, 1, 2, 3, 4, 0x78 | 2)] == [*Codec, Codec.SNAPPY]
    for attributes in (5, 6, 7):
        with pytest.raises(CorruptBatchError):
            codec_of(attributes)


def xxh32_of_lz4(data: bytes) -> int:
    """xxHash32 out of the lz4 library: an LZ4 frame may end with that of its content."""
    return int.from_bytes(lz4.frame.compress(data, content_checksum=True)[-4:], "little")


@pytest.mark.parametrize("with_size", [False, True])
def test_the_wrong_checksum_of_old_lz4_headers_takes_the_magic_in(with_size: bool) -> None:
    right = lz4.frame.compress(TEXT, block_linked=False, store_size=with_size)
    checksum_at = 14 if with_size else 6
    wrong = spoil_lz4_header(right)
    assert right[checksum_at] == xxh32_of_lz4(right[4:checksum_at]) >> 8 & 0xFF
    assert wrong[checksum_at] == xxh32_of_lz4(right[:checksum_at]) >> 8 & 0xFF
    assert (wrong[:checksum_at], wrong[checksum_at + 1 :]) == (right[:checksum_at], right[checksum_at + 1 :])
    assert mend_lz4_header(wrong) == right
    with pytest.raises(CorruptBatchError, match="hecksum"):
        decompress(Codec.LZ4, wrong, LIMIT)
    for garbage in (b"", right[:4], right[:checksum_at], b"\x04\x22\x4d\x18\x61" + bytes(20)):
        with pytest.raises(CorruptBatchError):
            mend_lz4_header(garbage)
