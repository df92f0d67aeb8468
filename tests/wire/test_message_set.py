"""Message sets of old clients: both ways, against two clients, with every trap of the format, and against liars."""

import struct
import tracemalloc
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.wire import record_oracles
from tests.wire.record_oracles import CLIENTS, places
from tidelog.wire.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_CONTROL,
    CorruptBatchError,
    build_own_batch,
    check_batch,
    seal,
)
from tidelog.wire.compression import Codec, TooLargeError, compress, spoil_lz4_header
from tidelog.wire.message_set import Magic, UnsupportedMagicError, read_message_set, write_message_set
from tidelog.wire.records import Record, build_batch, check_produced, read_records

LIMIT = 1 << 20
OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
NOT_KNOWN = ("aiokafka", Codec.LZ4, 0)  # it refuses what has the wrong checksum
MAGICS: tuple[Magic, ...] = (0, 1)

values = st.none() | st.binary(max_size=50)
records = st.lists(
    st.builds(Record, value=values, key=values, timestamp=st.integers(-1, 2**62)), min_size=1, max_size=6
)


def read_set(data: bytes, bytes_max: int = LIMIT) -> list[Record]:
    return [record for batch in read_message_set(data, bytes_max=bytes_max) for record in read_records(batch)]


def as_old(made: list[Record], magic: int) -> list[Record]:
    """What is left of records in a message set."""
    return [Record(record.value, record.key, record.timestamp if magic else -1) for record in made]


def message(
    value: bytes | None, *, magic: int = 1, attributes: int = 0, offset: int = 0, timestamp: int = 5, key: bytes = b"k"
) -> bytes:
    """One message, written out by hand from Kafka's documentation of the format."""
    content = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    content += (
        struct.pack(">i", len(key)) + key + struct.pack(">i", -1 if value is None else len(value)) + (value or b"")
    )
    return struct.pack(">qiI", offset, 4 + len(content), zlib.crc32(content)) + content


# --- There and back --------------------------------------------------------------------------------------------------


@given(records, st.sampled_from(Codec), st.sampled_from(MAGICS), st.integers(0, 2**60))
def test_what_is_written_reads_back(made: list[Record], codec: Codec, magic: Magic, base_offset: int) -> None:
    batch = build_batch(made, base_offset, codec=codec)
    written = write_message_set(batch, magic, 0, LIMIT)
    (back,) = read_message_set(memoryview(written), bytes_max=LIMIT)
    header = check_batch(back)
    check_produced(header, back, 2)
    assert header.attributes == (Codec.GZIP if codec is Codec.ZSTD else codec)
    assert read_records(back) == as_old(made, magic)


@pytest.mark.parametrize("client", CLIENTS)
@given(records, st.sampled_from(Codec), st.sampled_from(MAGICS))
def test_clients_read_what_we_write(client: str, made: list[Record], codec: Codec, magic: Magic) -> None:
    assume((client, codec, magic) != NOT_KNOWN)
    seen = record_oracles.read(client, write_message_set(build_batch(made, 1000, codec=codec), magic, 0, LIMIT))
    assert seen == as_old(made, magic)
    assert [record.offset for record in seen] == list(range(1000, 1000 + len(made)))


@pytest.mark.parametrize("client", CLIENTS)
@given(records, st.sampled_from(OLD_CODECS), st.sampled_from(MAGICS))
def test_we_read_what_clients_write(client: str, made: list[Record], codec: Codec, magic: Magic) -> None:
    assume((client, codec, magic) != NOT_KNOWN)
    theirs = record_oracles.build(client, magic, codec, made, (-1, -1, -1))
    (batch,) = read_message_set(theirs, bytes_max=LIMIT)
    assert check_batch(batch).attributes == codec
    assert read_records(batch) == as_old(made, magic)


# --- On the way in ---------------------------------------------------------------------------------------------------


def test_runs_and_wrappers_become_a_batch_each_in_their_order() -> None:
    inner = message(b"3", offset=0) + message(b"4", offset=1)
    wrapper = message(compress(Codec.GZIP, inner), attributes=Codec.GZIP, offset=1)
    data = message(b"1") + message(b"2", magic=0) + wrapper + wrapper + message(None)
    batches = [read_records(batch) for batch in read_message_set(data, bytes_max=LIMIT)]
    assert [[record.value for record in batch] for batch in batches] == [
        [b"1", b"2"],
        [b"3", b"4"],
        [b"3", b"4"],
        [None],
    ]
    assert places(batches[0]) == [(0, 5), (1, -1)]
    assert places(batches[1]) == [(0, 5), (1, 5)]
    assert read_message_set(b"", bytes_max=LIMIT) == []


def test_lz4_of_magic_0_is_read_with_the_wrong_checksum_and_the_right_one() -> None:
    """Old Java clients write the wrong one, others never knew."""
    frame = compress(Codec.LZ4, message(b"x", magic=0))
    for payload in (frame, spoil_lz4_header(frame)):
        wrapper = message(payload, magic=0, attributes=Codec.LZ4)
        assert read_set(wrapper) == [Record(b"x", b"k", -1)]
    frame = compress(Codec.LZ4, message(b"x"))
    assert read_set(message(frame, attributes=Codec.LZ4)) == [Record(b"x", b"k", 5)]
    with pytest.raises(CorruptBatchError):
        read_set(message(spoil_lz4_header(frame), attributes=Codec.LZ4))


@pytest.mark.parametrize(
    "data",
    [
        message(None, attributes=Codec.GZIP),
        message(b"no gzip", attributes=Codec.GZIP),
        message(compress(Codec.GZIP, b""), attributes=Codec.GZIP),
        message(compress(Codec.ZSTD, message(b"x")), attributes=Codec.ZSTD),
        message(b"x", attributes=5),
        message(compress(Codec.GZIP, message(b"x", magic=0)), attributes=Codec.GZIP),
        message(compress(Codec.GZIP, message(compress(Codec.GZIP, message(b"x")), attributes=1)), attributes=1),
        message(compress(Codec.GZIP, message(b"x")[:-1]), attributes=Codec.GZIP),
        message(b"x", timestamp=-2),
        message(b"x", timestamp=2**63 - 1),
    ],
    ids=[
        "null wrapper", "garbage", "empty wrapper", "zstd", "no such codec", "other magic inside", "nested",
        "cut inside", "negative time", "endless time",
    ],
)  # fmt: skip
def test_what_must_not_be_is_refused_as_a_whole(data: bytes) -> None:
    for all_of_it in (data, message(b"fine") + data, data + message(b"fine")):
        with pytest.raises(CorruptBatchError):
            read_message_set(all_of_it, bytes_max=LIMIT)


@pytest.mark.parametrize("magic", [2, 3, -1, 127])
def test_another_magic_has_an_error_of_its_own(magic: int) -> None:
    with pytest.raises(UnsupportedMagicError):
        read_message_set(message(b"fine") + message(b"x", magic=magic), bytes_max=LIMIT)
    with pytest.raises(UnsupportedMagicError):
        read_message_set(build_batch([Record(b"x")]), bytes_max=LIMIT)


@pytest.mark.parametrize("magic", MAGICS)
def test_a_set_with_any_bit_damaged_or_cut_anywhere_is_refused(magic: int) -> None:
    inner = message(b"value", magic=magic)
    data = message(b"x", magic=magic) + message(compress(Codec.GZIP, inner), magic=magic, attributes=1)
    first = len(message(b"x", magic=magic))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        if bit // 8 in {*range(8), *range(first, first + 8)}:  # offsets: nothing covers them, and nothing reads them
            assert read_set(bytes(damaged)) == read_set(data)
        else:
            with pytest.raises(CorruptBatchError):
                read_message_set(damaged, bytes_max=LIMIT)
    for end in set(range(1, len(data))) - {first}:
        with pytest.raises(CorruptBatchError):
            read_message_set(data[:end], bytes_max=LIMIT)


@given(st.binary(max_size=100), st.sampled_from((*OLD_CODECS, 4, 5)), st.sampled_from(MAGICS), st.booleans())
def test_garbage_under_a_right_checksum_is_refused(data: bytes, codec: int, magic: Magic, inside: bool) -> None:
    content = struct.pack(">bb", magic, codec) + data
    framed = struct.pack(">qiI", 0, 4 + len(content), zlib.crc32(content)) + content
    for garbage in (
        data,
        framed,
        message(compress(Codec.LZ4, framed) if inside else data, attributes=codec, magic=magic),
    ):
        try:
            read_message_set(garbage, bytes_max=1000)
        except CorruptBatchError:
            continue


def test_sizes_that_lead_astray_are_refused() -> None:
    for size in (-(2**31), -1, 0, 1, 13, 2**31 - 1):
        data = bytearray(message(b"x"))
        struct.pack_into(">i", data, 8, size)
        with pytest.raises(CorruptBatchError):
            read_message_set(data, bytes_max=LIMIT)
    for size in (-(2**31), -2, 2**31 - 1):
        content = struct.pack(">bbqi", 1, 0, 5, size) + b"value"
        data = struct.pack(">qiI", 0, 4 + len(content), zlib.crc32(content)) + content
        with pytest.raises(CorruptBatchError):
            read_message_set(data, bytes_max=LIMIT)


def test_the_limit_holds_for_all_wrappers_together_and_for_memory() -> None:
    inner = message(bytes(100_000))
    wrapper = message(compress(Codec.GZIP, inner), attributes=Codec.GZIP)
    assert len(read_message_set(wrapper * 3, bytes_max=3 * len(inner))) == 3
    with pytest.raises(TooLargeError):
        read_message_set(wrapper * 3, bytes_max=3 * len(inner) - 1)
    for codec in OLD_CODECS[1:]:
        bomb = message(compress(codec, bytes(1 << 26)), attributes=codec)
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatchError):
                read_message_set(bomb, bytes_max=LIMIT)
            assert tracemalloc.get_traced_memory()[1] < 5 * LIMIT + 3 * len(bomb)
        finally:
            tracemalloc.stop()


# --- On the way out --------------------------------------------------------------------------------------------------


def test_the_known_bytes_of_a_message_set() -> None:
    made = [Record(b"1", b"k", 5, (("lost", b"x"),)), Record(None, b"k", 6)]
    plain = build_batch(made, 70)
    zipped = build_batch(made, 70, codec=Codec.GZIP)
    assert write_message_set(plain, 0, 0, LIMIT) == message(b"1", magic=0, offset=70) + message(
        None, magic=0, offset=71
    )
    assert write_message_set(plain, 1, 0, LIMIT) == message(b"1", offset=70) + message(None, offset=71, timestamp=6)
    for magic in MAGICS:
        base = 0 if magic == 1 else 70
        inner = message(b"1", magic=magic, offset=base) + message(None, magic=magic, offset=base + 1, timestamp=6)
        payload = compress(Codec.GZIP, inner)
        wrapper = struct.pack(">bb", magic, 1) + struct.pack(">q", 6) * magic + struct.pack(">ii", -1, len(payload))
        wrapper += payload
        expected = struct.pack(">qiI", 71, 4 + len(wrapper), zlib.crc32(wrapper)) + wrapper
        assert write_message_set(zipped, magic, 0, LIMIT) == expected


def log(*codecs: Codec) -> bytes:
    """Batches of three records each, one behind the other."""
    return b"".join(
        build_batch([Record(b"%d" % n, None, n) for n in range(base, base + 3)], base, codec=codec)
        for base, codec in zip(range(0, 3 * len(codecs), 3), codecs, strict=True)
    )


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("magic", MAGICS)
def test_a_fetch_begins_with_its_offset_even_inside_a_batch(client: str, magic: Magic) -> None:
    data = log(Codec.NONE, Codec.GZIP, Codec.ZSTD, Codec.SNAPPY)
    for first in range(13):
        seen = record_oracles.read(client, write_message_set(data, magic, first, LIMIT))
        assert [record.offset for record in seen] == list(range(first, 12))
        assert [record.value for record in seen] == [b"%d" % n for n in range(first, 12)]


def test_control_batches_and_entries_of_our_own_are_left_out() -> None:
    marker = build_batch([Record(b"commit")], 3)
    struct.pack_into(">h", marker, 21, ATTRIBUTE_CONTROL)
    seal(marker)
    own = build_own_batch(1, b"member", 4, 1)
    batch = build_batch([Record(b"x")], 4)
    written = write_message_set(log(Codec.NONE) + bytes(own + marker + own + batch), 1, 0, LIMIT)
    assert [record.offset for record in record_oracles.read("aiokafka", written)] == [0, 1, 2, 4]
    assert write_message_set(own + marker, 1, 0, LIMIT) == b""


@pytest.mark.parametrize("codec", Codec)
def test_append_time_is_told_to_those_who_know_it(codec: Codec) -> None:
    batch = build_batch([Record(b"x", timestamp=1), Record(b"y", timestamp=2)], 10, codec=codec, append_time_ms=99)
    written = write_message_set(batch, 1, 0, LIMIT)
    assert written[17] & ATTRIBUTE_APPEND_TIME
    for client in CLIENTS:
        assert places(record_oracles.read(client, written)) == [(10, 99), (11, 99)]
    assert not write_message_set(batch, 0, 0, LIMIT)[17] & ATTRIBUTE_APPEND_TIME


def test_a_cut_batch_at_the_end_is_ignored_and_a_damaged_one_is_not() -> None:
    data = log(Codec.GZIP, Codec.NONE)
    whole = len(log(Codec.GZIP))
    expected = write_message_set(data[:whole], 1, 0, LIMIT)
    for end in range(whole, len(data)):
        assert write_message_set(data[:end], 1, 0, LIMIT) == expected
    assert write_message_set(data[: whole - 1], 1, 0, LIMIT) == b""
    for position in (whole - 1, whole + 16, whole + 30):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(CorruptBatchError):
            write_message_set(damaged, 1, 0, LIMIT)
    for size in (-(2**31), -12, 0, 48):
        damaged = bytearray(data)
        struct.pack_into(">i", damaged, whole + 8, size)
        with pytest.raises(CorruptBatchError):
            write_message_set(damaged, 1, 0, LIMIT)


@pytest.mark.parametrize("codec", Codec)
def test_the_set_ends_where_the_limit_is_passed_unless_that_is_at_once(codec: Codec) -> None:
    data = b"".join(build_batch([Record(bytes(1000))], offset, codec=codec) for offset in range(5))
    for limit, count in ((2500, 2), (3500, 3), (LIMIT, 5)):
        assert len(read_set(write_message_set(data, 1, 0, limit))) == count
    with pytest.raises(TooLargeError):
        write_message_set(data, 1, 0, 900)
    assert len(read_set(write_message_set(data, 1, 3, LIMIT))) == 2


@given(st.binary(max_size=150), st.sampled_from(MAGICS))
def test_garbage_in_the_log_is_refused(data: bytes, magic: Magic) -> None:
    for garbage in (data, log(Codec.LZ4) + data):
        try:
            write_message_set(garbage, magic, 0, 1000)
        except CorruptBatchError:
            continue
