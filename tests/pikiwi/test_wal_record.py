"""The record's bytes: the specification's layout, field by field, and that nothing damaged passes."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pikiwi.errors import WalError
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.wal.record import HEADER_BYTES, BadRecord, WalRecord, decode_record, encode_records

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)


def encoded(epoch: int, seq: int, position: Position, payload: bytes) -> bytes:
    parts, size = encode_records(epoch, seq - 1, ZERO, [(position, payload)])
    data = b"".join(parts)
    assert len(data) == size
    return data


def test_record_is_the_specifications_layout_byte_for_byte() -> None:
    payload = b"an item"
    data = encoded(11, 82_447, Position(267, 76_836_081), payload)

    fields = struct.unpack("<IHBBHHIQIQIIIII", data[:56])
    assert data[:4] == b"PWAL"
    assert fields[:-3] == (
        int.from_bytes(b"PWAL", "little"), 56, 1, 1, 0, 0, 11, 82_447, 267, 76_836_081, len(payload), crc32c(payload),
    )  # fmt: skip
    assert fields[-3] == crc32c(data[:44] + bytes(12)), "the header's checksum covers it with its own field zero"
    assert fields[-2:] == (0, 0)
    assert data[56:] == payload


def test_these_bytes_never_change() -> None:
    data = encoded(11, 82_447, Position(267, 76_836_081), b"an item")

    assert data.hex() == (
        "5057414c" "3800" "01" "01" "0000" "0000" "0b000000" "0f42010000000000" "0b010000" "f16c940400000000"
        "07000000" "8b967391" "e1e71fc3" "00000000" "00000000" "616e206974656d"
    )  # fmt: skip


@given(U32, st.integers(1, 2**64 - 1), U32, st.integers(1, 2**64 - 1), st.binary(max_size=300))
def test_what_is_encoded_is_decoded(epoch: int, seq: int, filenum: int, offset: int, payload: bytes) -> None:
    position = Position(filenum, offset)

    assert decode_record(encoded(epoch, seq, position, payload)) == WalRecord(epoch, seq, position, payload)


@given(st.binary(max_size=60), st.data())
def test_no_flipped_bit_passes(payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(encoded(1, 2, Position(3, 4), payload))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8

    with pytest.raises(BadRecord):
        decode_record(bytes(whole))


@given(st.binary(max_size=40), st.data())
def test_nothing_cut_short_passes(payload: bytes, data: st.DataObject) -> None:
    whole = encoded(1, 2, Position(3, 4), payload)

    with pytest.raises(BadRecord):
        decode_record(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_and_never_crash(data: bytes) -> None:
    with pytest.raises(BadRecord):
        decode_record(data)


@pytest.mark.parametrize(("at", "value"), [(4, 60), (6, 2), (7, 2)])
def test_other_versions_types_and_header_lengths_are_refused_by_name(at: int, value: int) -> None:
    data = bytearray(encoded(1, 2, Position(3, 4), b"x"))
    data[at] = value
    data[44:48] = crc32c(data[:44] + bytes(12)).to_bytes(4, "little")

    with pytest.raises(BadRecord, match="is not known here"):
        decode_record(bytes(data))


def test_reserved_words_that_a_later_writer_uses_are_covered_by_the_checksum_and_ignored() -> None:
    data = bytearray(encoded(1, 2, Position(3, 4), b"x"))
    data[48:56] = b"reserved"
    data[44:48] = crc32c(data[:44] + bytes(4) + data[48:56]).to_bytes(4, "little")

    assert decode_record(bytes(data)).payload == b"x"


def test_positions_that_do_not_grow_are_refused() -> None:
    with pytest.raises(WalError, match="does not follow"):
        encode_records(1, 0, Position(3, 4), [(Position(3, 5), b"a"), (Position(3, 5), b"b")])
    with pytest.raises(WalError, match="item that ends at 3:4 does not follow 3:4"):
        encode_records(1, 0, Position(3, 4), [(Position(3, 4), b"a")])


def test_header_is_56_bytes() -> None:
    assert HEADER_BYTES == 56
