"""Batches from the outside: the checksum covers all but the stamp, and garbage is refused by name."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.wire.batch import (
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    CorruptBatchError,
    build_own_batch,
    check_batch,
    read_frame,
    read_header,
    read_own_batch,
    read_stamp,
    split_batches,
    stamp,
)
from tidelog.wire.records import Record, build_batch

STAMP_BYTES = {*range(8), *range(12, 16)}  # base offset and leader epoch: all that the checksum does not cover
FRAME_BYTES = set(range(8, 12))  # the length, which says what the checksum covers


@given(st.integers(1, 255), st.binary(max_size=100), st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_an_entry_of_our_own_reads_back_and_takes_no_offset(kind: int, content: bytes, offset: int, epoch: int) -> None:
    batch = build_own_batch(kind, content, offset, epoch)
    header = check_batch(batch)
    assert header.is_ours
    assert header.next_offset == offset
    assert header.record_count == 0
    assert header.max_timestamp == -1
    assert read_stamp(batch) == (offset, epoch)
    assert read_own_batch(batch) == (kind, content)
    assert batch == build_own_batch(kind, memoryview(content), offset, epoch), "the same bytes on every replica"


def test_the_known_bytes_of_a_batch() -> None:
    """Written out by hand from Kafka's documentation of the format."""
    batch = build_batch([Record(b"hi", key=None, timestamp=1000)], base_offset=5, leader_epoch=3)
    record = bytes([16, 0, 0, 0, 1, 4]) + b"hi" + bytes([0])
    checked = struct.pack(">hiqqqhii", 0, 0, 1000, 1000, -1, -1, -1, 1) + record
    assert bytes(batch) == struct.pack(">qiibI", 5, 9 + len(checked), 3, 2, crc32c(checked)) + checked


def test_a_stamp_does_not_disturb_the_checksum() -> None:
    batch = build_batch([Record(b"value")])
    crc = check_batch(batch).crc
    for offset, epoch in ((0, 0), (2**62, 2**31 - 1), (7, -1)):
        stamp(batch, offset, epoch)
        assert read_stamp(batch) == (offset, epoch)
        assert check_batch(batch).crc == crc
    view = memoryview(bytearray(batch))
    stamp(view, 9, 9)
    assert read_stamp(view) == (9, 9)


def test_the_checksum_covers_every_bit_but_the_stamp() -> None:
    batch = build_batch([Record(b"value", key=b"key", timestamp=5, headers=(("name", b"x"),)), Record(None)], 3, 4)
    for position in range(len(batch)):
        for bit in range(8):
            damaged = bytearray(batch)
            damaged[position] ^= 1 << bit
            if position in STAMP_BYTES:
                check_batch(damaged)
            else:
                with pytest.raises(CorruptBatchError):
                    check_batch(damaged)


def test_a_batch_that_is_cut_anywhere_is_refused() -> None:
    batch = bytes(build_batch([Record(b"value")]))
    for length in range(len(batch)):
        for data in (batch[:length], memoryview(batch)[:length]):
            with pytest.raises(CorruptBatchError):
                check_batch(data)
        if length > 0:
            with pytest.raises(CorruptBatchError):
                list(split_batches(batch + batch[:length]))


def test_a_checked_batch_may_stand_in_the_middle_and_what_follows_it_is_not_touched() -> None:
    batch = bytes(build_batch([Record(b"value")]))
    check_batch(b"junk" + batch + b"junk", 4)
    with pytest.raises(CorruptBatchError):
        check_batch(b"junk" + batch[:-1], 4)


@pytest.mark.parametrize("length", [-(2**31), -100, -13, -12, -1, 0, 1, 48, 2**31 - 1])
def test_a_length_that_cannot_be_is_refused(length: int) -> None:
    batch = build_batch([Record(b"value")])
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptBatchError):
        check_batch(batch)
    with pytest.raises(CorruptBatchError):
        list(split_batches(batch + batch))


def _with_checksum(batch: bytearray) -> bytearray:
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return batch


@pytest.mark.parametrize(
    ("position", "layout", "value"),
    [
        (16, ">b", 1),  # magic
        (57, ">i", -1),  # record count
        (23, ">i", -2),  # last offset delta
        (23, ">i", -1),  # takes no offset, and is not ours
    ],
)
def test_a_header_that_makes_no_sense_is_refused_though_its_checksum_fits(
    position: int, layout: str, value: int
) -> None:
    batch = build_batch([Record(b"value")])
    struct.pack_into(layout, batch, position, value)
    with pytest.raises(CorruptBatchError):
        check_batch(_with_checksum(batch))


@given(st.binary(max_size=200))
def test_garbage_is_refused_and_nothing_else_happens(data: bytes) -> None:
    for read in (check_batch, lambda garbage: list(split_batches(garbage)), read_header, read_frame):
        try:
            read(data)
        except CorruptBatchError:
            continue
        assert len(data) >= LENGTH_END or data == b""


def test_an_entry_of_our_own_has_at_least_its_kind() -> None:
    with pytest.raises(CorruptBatchError):
        read_own_batch(build_own_batch(1, b"", 0, 0)[:HEADER_BYTES])


def test_a_control_batch_of_a_client_is_not_ours() -> None:
    """Transaction markers hold a record, and take an offset."""
    batch = build_batch([Record(b"commit")])
    struct.pack_into(">h", batch, 21, ATTRIBUTE_CONTROL | 0x10)
    header = check_batch(_with_checksum(batch))
    assert not header.is_ours
    assert header.next_offset == 1


def test_batches_are_split_where_they_meet() -> None:
    parts = [bytes(build_batch([Record(bytes(size))])) for size in (0, 10, 300)] + [
        bytes(build_own_batch(1, b"", 0, 0))
    ]
    data = b"".join(parts)
    for buffer in (data, bytearray(data), memoryview(data)):
        assert [bytes(buffer[position : position + size]) for position, size in split_batches(buffer)] == parts
    assert list(split_batches(b"")) == []
