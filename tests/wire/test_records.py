"""Records: what goes in comes out, two clients agree, lies are refused, and a produced batch is judged by its head."""

import random
import struct
import timeit

import pytest
from crc32c import crc32c
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.wire import record_oracles
from tests.wire.fuzz_records import TARGETS, fuzz_one
from tests.wire.record_oracles import CLIENTS, places
from tidelog.wire.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    HEADER_BYTES,
    LENGTH_END,
    CorruptBatchError,
    build_own_batch,
    check_batch,
    read_facts,
    read_frame,
    read_header,
    seal,
)
from tidelog.wire.compression import Codec, TooLargeError
from tidelog.wire.records import (
    NO_OFFSET,
    InvalidBatchError,
    InvalidReason,
    Record,
    build_batch,
    check_produced,
    first_at_time,
    newest_record,
    read_records,
    set_append_time,
)

codecs = st.sampled_from(Codec)
values = st.none() | st.binary(max_size=60) | st.binary(min_size=62, max_size=66).map(lambda data: data * 130)
records = st.lists(
    st.builds(
        Record,
        value=values,
        key=values,
        timestamp=st.integers(-1, 2**62),
        headers=st.lists(st.tuples(st.text(max_size=8), values), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=6,
)
MANY = [Record(b"value %d" % n, b"key", 1_000 + n, (("name", b"x" * (n % 3)),)) for n in range(200)]


# --- There and back --------------------------------------------------------------------------------------------------


@given(records, codecs, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_a_batch_reads_back(made: list[Record], codec: Codec, base_offset: int, epoch: int) -> None:
    batch = build_batch(made, base_offset, epoch, codec=codec, producer_id=7, producer_epoch=1, base_sequence=40)
    header = check_batch(batch)
    found = read_records(batch)
    assert found == made
    assert [record.offset for record in found] == [base_offset + delta for delta in range(len(made))]
    assert (header.base_offset, header.leader_epoch, header.record_count) == (base_offset, epoch, len(made))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    assert header.next_offset == base_offset + len(made)
    assert header.max_timestamp == max(record.timestamp for record in made)
    assert header.attributes == codec
    assert header.size == len(batch)
    assert not header.is_ours
    assert read_facts(batch) == (len(batch), header.crc, len(made) - 1, header.max_timestamp)
    assert read_frame(batch[:LENGTH_END]) == (base_offset, len(batch) - LENGTH_END)
    check_produced(header, batch, 9)


def test_an_empty_batch_is_no_batch() -> None:
    with pytest.raises(ValueError, match="at least one record"):
        build_batch([])


def test_a_batch_may_be_built_from_a_stream_and_read_from_a_view() -> None:
    batch = build_batch((record for record in MANY), codec=Codec.LZ4)
    assert read_records(memoryview(batch)) == read_records(bytes(batch)) == MANY


def test_where_a_record_was_read_is_no_part_of_what_it_says() -> None:
    assert Record(b"x").offset == NO_OFFSET
    assert Record(b"x", offset=3) == Record(b"x", offset=4)


def test_an_entry_of_our_own_holds_no_record() -> None:
    assert read_records(build_own_batch(1, b"content", 5, 1)) == []


@pytest.mark.parametrize("value", [0, -1, 63, -64, 64, -65, 8191, -8192, 8192, -8193, 2**31, 2**62, -(2**62)])
def test_numbers_of_every_length_read_back(value: int) -> None:
    made = [Record(b"first", timestamp=0), Record(b"second", timestamp=value)]
    assert read_records(build_batch(made)) == made


# --- Other clients ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", CLIENTS)
@given(records, codecs)
def test_clients_read_our_batches_and_we_read_theirs(client: str, made: list[Record], codec: Codec) -> None:
    ours = build_batch(made, 1000, 3, codec=codec)
    theirs_of_ours = record_oracles.read(client, bytes(ours))
    assert theirs_of_ours == made
    assert places(theirs_of_ours) == places(read_records(ours))
    assume(made[0].timestamp >= 0)  # or aiokafka's builder takes the second record's timestamp for the first's
    theirs = record_oracles.build(client, 2, codec, made, (7, 1, 40))
    header = check_batch(theirs)
    check_produced(header, theirs, 9)
    assert read_records(theirs) == made
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 40)
    if header.attributes == Codec.NONE:  # compressed bytes depend on levels and versions; these do not
        assert theirs == build_batch(
            made, leader_epoch=header.leader_epoch, producer_id=7, producer_epoch=1, base_sequence=40
        )


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_see_the_append_time_that_we_set(client: str) -> None:
    batch = build_batch(MANY, 50, codec=Codec.ZSTD)
    set_append_time(batch, 777)
    seen = record_oracles.read(client, bytes(batch))
    assert places(seen) == [(50 + n, 777) for n in range(len(MANY))]


# --- Time ------------------------------------------------------------------------------------------------------------


def test_append_time_is_set_without_touching_records() -> None:
    batch = build_batch(MANY, 50, codec=Codec.SNAPPY)
    before = bytes(batch)
    set_append_time(memoryview(batch), 777)
    assert batch == build_batch(MANY, 50, codec=Codec.SNAPPY, append_time_ms=777)
    header = check_batch(batch)
    assert header.attributes == Codec.SNAPPY | ATTRIBUTE_APPEND_TIME
    assert header.max_timestamp == 777
    assert batch[HEADER_BYTES:] == before[HEADER_BYTES:]
    assert {record.timestamp for record in read_records(batch)} == {777}


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(-5, 25), codecs, st.none() | st.just(9))
def test_search_by_time_agrees_with_reading_all(
    times: list[int], wanted: int, codec: Codec, append_time: int | None
) -> None:
    made = [Record(b"x", timestamp=at) for at in times]
    batch = build_batch(made, 100, codec=codec, append_time_ms=append_time)
    found = places(read_records(batch))
    assert first_at_time(batch, wanted) == next((place for place in found if place[1] >= wanted), None)
    assert newest_record(batch) == max(found, key=lambda place: (place[1], -place[0]))


def test_an_entry_of_our_own_has_no_time() -> None:
    batch = build_own_batch(1, b"content", 5, 1)
    assert first_at_time(batch, -5) is None
    with pytest.raises(CorruptBatchError):
        newest_record(batch)


def test_a_batch_that_is_old_is_not_even_decompressed() -> None:
    batch = build_batch(MANY, codec=Codec.GZIP)
    assert first_at_time(batch, MANY[-1].timestamp + 1, bytes_max=0) is None
    with pytest.raises(TooLargeError):
        first_at_time(batch, MANY[-1].timestamp, bytes_max=10)


# --- Lies ------------------------------------------------------------------------------------------------------------


def forged(body: bytes, count: int = 1, attributes: int = 0) -> bytearray:
    """A batch with a right checksum around anything."""
    batch = build_batch([Record(b"")])[:HEADER_BYTES] + body
    struct.pack_into(">i", batch, 8, len(batch) - LENGTH_END)
    struct.pack_into(">h", batch, 21, attributes)
    struct.pack_into(">i", batch, 23, max(count - 1, 0))
    struct.pack_into(">i", batch, 57, count)
    seal(batch)
    check_batch(batch)
    return batch


@given(st.binary(max_size=120), st.integers(0, 2**31 - 1), st.integers(0, 7))
def test_garbage_with_a_checksum_that_fits_is_refused_too_and_soon(body: bytes, count: int, codec: int) -> None:
    """A batch that its sender made wrong on purpose: sizes and counts that lead astray, or nowhere."""
    batch = forged(body, count, codec)
    for read in (read_records, lambda batch: first_at_time(batch, 1), newest_record):
        try:
            found = read(batch)
        except CorruptBatchError:
            continue
        assert read is not read_records or (found is not None and len(found) == count)


@pytest.mark.parametrize("codec", Codec)
def test_content_with_any_bit_damaged_is_refused_or_reads_as_something_else(codec: Codec) -> None:
    batch = build_batch(MANY[:3], codec=codec)
    for bit in range(HEADER_BYTES * 8, len(batch) * 8):
        damaged = bytearray(batch)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptBatchError):
            read_records(damaged)
        seal(damaged)  # a sender who means it
        try:
            assert len(read_records(damaged, bytes_max=1000)) == 3
        except CorruptBatchError:
            continue


def test_content_that_is_cut_is_refused_though_its_checksum_fits() -> None:
    for codec in Codec:
        batch = build_batch(MANY[:3], codec=codec)
        for end in range(HEADER_BYTES, len(batch)):
            with pytest.raises(CorruptBatchError):
                read_records(forged(bytes(batch[HEADER_BYTES:end]), 3, codec))


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"\x01",  # a record of -1 bytes
        b"\x02",  # a record of one byte, of which there is none
        b"\x0c\x00\x00\x00\x01\x7e\x00",  # a value that ends behind its record
        b"\x10\x00\x00\x00\x01\x00\x02\x02\xff",  # a header whose name is no text
        b"\x0e\x00\x00\x00\x01\x00\x02\x01",  # a header without a name
        b"\x0c\x00\x00\x00\x01\x00\x01",  # -1 headers
        b"\x0c\x00\x00\x00\x01\x00\x7e",  # more headers than bytes
        b"\x0c\x00\x00\x02\x01\x00\x00",  # an offset behind the batch's last
        b"\x0c\x00\x00\x01\x01\x00\x00",  # an offset before the batch's first
        b"\x0e\x00\x00\x00\x01\x00\x00\x00",  # a stray byte in the record
        b"\x0c\x00\x00\x00\x01\x00\x00\x00",  # a stray byte behind the record
        b"\x1e\x00\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x01\x00\x00",  # a time that is none
        b"\x80" * 11,  # a number without end
    ],
)
def test_records_that_lead_astray_are_refused(record: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        read_records(forged(record))


def test_a_record_that_leads_back_to_itself_does_not_keep_us_for_ever() -> None:
    with pytest.raises(CorruptBatchError, match="-1 bytes"):
        read_records(forged(b"\x01\x00\x00\x00", count=2**31 - 1))


@pytest.mark.parametrize("codec", Codec)
def test_records_have_a_limit_in_bytes(codec: Codec) -> None:
    batch = build_batch([Record(bytes(1000))], codec=codec)
    assert len(read_records(batch, bytes_max=1100)) == 1
    with pytest.raises(TooLargeError):
        read_records(batch, bytes_max=1000)


@given(st.integers(0, len(TARGETS) - 1), st.binary(min_size=1, max_size=150))
@settings(max_examples=600)
def test_no_decoder_is_surprised_by_anything(target: int, data: bytes) -> None:
    fuzz_one(bytes((target,)) + data)


@pytest.mark.parametrize("codec", Codec)
def test_no_decoder_is_surprised_by_what_is_almost_right(codec: Codec) -> None:
    content = bytes(build_batch(MANY[:4], codec=codec)[HEADER_BYTES:])
    chance = random.Random(codec)
    for _ in range(300):
        damaged = bytearray(struct.pack(">i", 4) + content)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        for target in range(len(TARGETS)):
            fuzz_one(bytes((target, codec)) + damaged)


# --- What a producer may send ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "layout", "value", "reason"),
    [
        (57, ">i", 0, InvalidReason.RECORD_COUNT),
        (57, ">i", -1, InvalidReason.RECORD_COUNT),
        (57, ">i", 3, InvalidReason.OFFSET_DELTA),
        (23, ">i", 0, InvalidReason.OFFSET_DELTA),
        (21, ">h", ATTRIBUTE_CONTROL, InvalidReason.CONTROL),
        (21, ">h", ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL, InvalidReason.CONTROL),
        (21, ">h", ATTRIBUTE_TRANSACTIONAL, InvalidReason.TRANSACTIONAL),
        (21, ">h", ATTRIBUTE_APPEND_TIME, InvalidReason.TIMESTAMP_TYPE),
        (51, ">h", -1, InvalidReason.PRODUCER),
        (53, ">i", -1, InvalidReason.PRODUCER),
        (21, ">h", 5, InvalidReason.CODEC),
        (21, ">h", 7, InvalidReason.CODEC),
        (21, ">h", Codec.GZIP, InvalidReason.PAYLOAD),
        (21, ">h", Codec.LZ4, InvalidReason.PAYLOAD),
        (21, ">h", Codec.ZSTD, InvalidReason.PAYLOAD),
    ],
)
def test_what_a_producer_must_not_send_is_refused(
    position: int, layout: str, value: int, reason: InvalidReason
) -> None:
    batch = build_batch(MANY[:2], producer_id=7, producer_epoch=0, base_sequence=0)
    check_produced(read_header(batch), batch, 9)
    struct.pack_into(layout, batch, position, value)
    with pytest.raises(InvalidBatchError, match="refused") as refused:
        check_produced(read_header(batch), batch, 9)
    assert refused.value.reason is reason
    assert reason.kafka_error in {2, 32, 76, 87}


@pytest.mark.parametrize("codec", Codec)
def test_every_codec_is_taken_and_zstd_from_version_7_on(codec: Codec) -> None:
    batch = build_batch(MANY, codec=codec)
    check_produced(read_header(batch), batch, 7)
    request = memoryview(b"a request" + batch)
    check_produced(read_header(request, 9), request, 13, position=9)
    if codec is Codec.ZSTD:
        with pytest.raises(InvalidBatchError) as refused:
            check_produced(read_header(batch), batch, 6)
        assert refused.value.reason is InvalidReason.ZSTD_VERSION
    else:
        check_produced(read_header(batch), batch, 3)


def test_a_sequence_without_a_producer_means_nothing() -> None:
    batch = build_batch(MANY, base_sequence=5)
    check_produced(read_header(batch), batch, 9)


@pytest.mark.parametrize("codec", Codec)
def test_the_check_costs_the_same_for_a_batch_of_any_size(codec: Codec) -> None:
    """Sixty times the records, and not even ten times the cost. (A busy machine would break an absolute figure.)"""

    def cost(batch: bytearray) -> float:
        header = read_header(batch)
        return min(timeit.repeat(lambda: check_produced(header, batch, 9), number=200, repeat=20))

    assert cost(build_batch(MANY * 60, codec=codec)) < 10 * cost(build_batch(MANY, codec=codec))


def test_the_known_bytes_of_records() -> None:
    """Written out by hand from Kafka's documentation of the format."""
    batch = build_batch(
        [Record(b"hi", b"k", 1000), Record(None, None, 1001, (("h", b""), ("n", None)))],
        producer_id=9,
        producer_epoch=2,
        base_sequence=70,
        append_time_ms=5,
    )
    first = bytes([18, 0, 0, 0, 2, *b"k", 4, *b"hi", 0])
    second = bytes([24, 0, 2, 2, 1, 1, 4, 2, *b"h", 0, 2, *b"n", 1])
    checked = struct.pack(">hiqqqhii", 8, 1, 1000, 5, 9, 2, 70, 2) + first + second
    assert bytes(batch) == struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked
