"""The codec by itself, on tables made for the purpose: kinds of field, rules of versions, ways to be malformed."""

import traceback
import tracemalloc
from typing import Any
from uuid import UUID

import pytest

from tidelog.wire.codec import (
    ZERO_UUID,
    Buffer,
    array,
    boolean,
    bytes_,
    decode,
    decoder,
    encode,
    encode_onto,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    table,
    uint16,
    uint32,
    uuid,
)
from tidelog.wire.codec_source import decode_uvarint, encode_uvarint
from tidelog.wire.errors import ErrorCode, ProtocolError


@table
class Fixed:
    flag: bool = boolean()
    tiny: int = int8()
    small: int = int16()
    port: int = uint16()
    medium: int = int32()
    mask: int = uint32()
    large: int = int64()
    ratio: float = float64()
    id: UUID = uuid()


@table
class Point:
    x: int = int32(default=-1)
    name: str | None = string(nullable_since=0, default=None)


@table
class Shape:
    """One of everything that has a length."""

    title: str = string()
    note: str | None = string(nullable_since=0, default=None)
    blob: bytes = bytes_()
    maybe: bytes | None = bytes_(nullable_since=0, default=None)
    numbers: list[int] = array(int32())
    words: list[str] = array(string())
    ids: list[UUID] = array(uuid())
    points: list[Point] | None = array(Point, nullable_since=0)
    centre: Point = struct(Point)
    corner: Point | None = struct(Point, nullable_since=0)


@table
class Changing:
    """A field that went, one that came, and one that may be null from version 3 on."""

    old: int = int16(until=1, default=7)
    always: str = string(nullable_since=3)
    new: list[int] = array(int8(), since=2)


@table
class Tagged:
    plain: int = int8()
    count: int = int64(since=1, default=-1, tag=0)
    label: str | None = string(since=1, nullable_since=1, default=None, tag=1)
    point: Point | None = struct(Point, since=1, tag=2)
    points: list[Point] = array(Point, since=1, tag=5)
    key: UUID = uuid(since=1, tag=200)


@table
class Chunk:
    index: int = int32()
    records: Buffer | None = records()
    check: int = int16()


@table
class Chunks:
    name: str = string()
    chunks: list[Chunk] = array(Chunk)


FIXED = Fixed(
    flag=True, tiny=-2, small=-3, port=65535, medium=-4, mask=0xFFFFFFFF, large=-5, ratio=0.5, id=UUID(int=258)
)
SHAPE = Shape(
    title="t",
    blob=b"bb",
    numbers=[1, 2],
    words=["w"],
    ids=[UUID(int=1)],
    points=[Point(x=3)],
    centre=Point(x=4, name="c"),
    corner=Point(x=5),
)


def joined(message: object, version: int = 0, flexible: bool = False) -> bytes:
    return b"".join(encode(message, version, flexible))


def spelled(text: str) -> bytes:
    """Bytes written as hex with any spacing; what is in quotes is text."""
    parts = text.split("'")
    return b"".join(part.encode() if index % 2 else bytes.fromhex(part) for index, part in enumerate(parts))


# --- what stands on the wire -----------------------------------------------------------------------------------------


def test_fixed_fields_stand_in_order_and_big_endian() -> None:
    expected = "01 fe fffd ffff fffffffc ffffffff fffffffffffffffb 3fe0000000000000 00000000000000000000000000000102"
    assert joined(FIXED) == spelled(expected)
    assert joined(FIXED, flexible=True) == spelled(expected + "00")


def test_classic_lengths_are_two_bytes_for_strings_and_four_for_the_rest() -> None:
    assert joined(SHAPE) == spelled(
        "0001 't' ffff 00000002 'bb' ffffffff 00000002 00000001 00000002 00000001 0001 'w'"
        "00000001 00000000000000000000000000000001 00000001 00000003 ffff 00000004 0001 'c' 01 00000005 ffff"
    )


def test_flexible_lengths_are_one_more_and_every_struct_ends_with_its_tags() -> None:
    assert joined(SHAPE, flexible=True) == spelled(
        "02 't' 00 03 'bb' 00 03 00000001 00000002 02 02 'w'"
        "02 00000000000000000000000000000001 02 00000003 00 00 00000004 02 'c' 00 01 00000005 00 00 00"
    )


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("message", [FIXED, SHAPE, Fixed(), Shape(), Shape(points=None, corner=None)])
def test_what_was_written_is_read(message: Any, flexible: bool) -> None:
    body = joined(message, flexible=flexible)
    assert decode(type(message), 0, flexible, body) == (message, len(body))
    assert decode(type(message), 0, flexible, b"?" + body, 1) == (message, len(body) + 1)
    assert decode(type(message), 0, flexible, memoryview(bytearray(body))) == (message, len(body))


def test_error_codes_can_be_sent_as_they_are() -> None:
    assert joined(Changing(old=ErrorCode.NOT_LEADER_OR_FOLLOWER)) == spelled("0006 0000")


# --- versions --------------------------------------------------------------------------------------------------------


def test_fields_outside_their_versions_are_not_sent_and_read_as_defaults() -> None:
    message = Changing(old=1, always="a", new=[2])
    assert joined(message, version=1) == spelled("0001 0001 'a'")
    assert joined(message, version=2) == spelled("0001 'a' 00000001 02")
    assert decode(Changing, 1, False, joined(message, 1))[0] == Changing(old=1, always="a", new=[])
    assert decode(Changing, 2, False, joined(message, 2))[0] == Changing(old=7, always="a", new=[2])


def test_null_is_read_only_from_the_version_that_allows_it() -> None:
    body = spelled("ffff 00000000")
    assert decode(Changing, 3, False, body)[0].always is None
    with pytest.raises(ProtocolError, match=r"Changing.always: length -1"):
        decode(Changing, 2, False, body)
    with pytest.raises(ProtocolError):
        decode(Changing, 2, True, spelled("00 01 00"))


def test_defaults_are_not_shared() -> None:
    first, second = Shape(), Shape()
    first.numbers.append(1)
    first.centre.x = 9
    assert second == Shape()
    body = joined(Changing(), version=1)
    one, two = decode(Changing, 1, False, body)[0], decode(Changing, 1, False, body)[0]
    one.new.append(1)
    assert two.new == []


def test_a_decoder_is_compiled_once() -> None:
    assert decoder(Shape, 0, False) is decoder(Shape, 0, False)
    assert decoder(Shape, 0, False) is not decoder(Shape, 0, True)


# --- tagged fields ---------------------------------------------------------------------------------------------------


def test_tagged_fields_are_left_out_while_they_have_their_default() -> None:
    assert joined(Tagged(plain=1), version=1, flexible=True) == spelled("01 00")


def test_tagged_fields_stand_in_order_of_tags_each_with_its_size() -> None:
    message = Tagged(plain=1, key=UUID(int=1), points=[Point(x=2)], point=Point(x=3, name="p"), label="l", count=4)
    body = joined(message, version=1, flexible=True)
    assert body == spelled(
        "01 05  00 08 0000000000000004  01 02 02 'l'  02 07 00000003 02 'p' 00"
        "05 07 02 00000002 00 00  c801 10 00000000000000000000000000000001"
    )
    assert decode(Tagged, 1, True, body) == (message, len(body))


def test_unknown_tags_are_skipped_wherever_a_struct_ends() -> None:
    assert decode(Tagged, 1, True, spelled("01 02 01 02 02 'l' 63 03 ffffff"))[0] == Tagged(plain=1, label="l")
    assert decode(Point, 0, True, spelled("00000001 00 02 00 00 8101 01 ff")) == (Point(x=1), 12)


def test_a_tagged_field_must_fill_its_size_exactly() -> None:
    for size in ("01", "03"):
        with pytest.raises(ProtocolError, match="label"):
            decode(Tagged, 1, True, spelled(f"01 01 01 {size} 02 'l' 00 00"))


# --- records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flexible", [False, True])
def test_records_are_neither_copied_in_nor_out(flexible: bool) -> None:
    batch = memoryview(bytearray(b"batch"))
    message = Chunks(name="n", chunks=[Chunk(index=1, records=batch, check=2), Chunk(), Chunk(records=b"more")])
    buffers = encode(message, 0, flexible)
    assert [len(buffer) for buffer in buffers if buffer is batch] == [5]
    assert len(buffers) == 5  # what stands before, batch, what stands between, batch, what stands behind

    frame = bytearray(b"".join(buffers))
    read, end = decode(Chunks, 0, flexible, memoryview(frame))
    assert read == message
    assert end == len(frame)
    view = read.chunks[0].records
    assert isinstance(view, memoryview)
    position = frame.index(b"batch")
    frame[position : position + 5] = b"BATCH"
    assert bytes(view) == b"BATCH"


def test_empty_records_are_not_null() -> None:
    for flexible in (False, True):
        message = Chunks(chunks=[Chunk(records=b""), Chunk(records=None)])
        read, _ = decode(Chunks, 0, flexible, joined(message, flexible=flexible))
        assert [chunk.records for chunk in read.chunks] == [b"", None]


def test_a_message_without_records_is_one_buffer_behind_what_was_there() -> None:
    assert encode_onto(bytearray(b"head"), Point(x=1), 0, False) == [spelled("'head' 00000001 ffff")]
    assert encode_onto(bytearray(b"head"), Chunks(), 0, False) == [spelled("'head' 0000 00000000")]


# --- malformed input -------------------------------------------------------------------------------------------------

MALFORMED = {
    "empty": (Fixed, False, ""),
    "one byte short": (Point, False, "00000001 ff"),
    "string longer than the input": (Point, False, "00000001 0003 'ab'"),
    "string length below null": (Point, False, "00000001 fffe"),
    "string is not UTF-8": (Point, False, "00000001 0002 c328"),
    "string is half a surrogate pair": (Point, False, "00000001 0003 eda080"),
    "array count below null": (Shape, False, "0000 ffff 00000000 ffffffff fffffffe"),
    "array null where it may not be": (Shape, False, "0000 ffff 00000000 ffffffff ffffffff"),
    "bytes null where they may not be": (Shape, False, "0000 ffff ffffffff"),
    "compact string longer than the input": (Point, True, "00000001 04 'ab'"),
    "compact string null where it may not be": (Shape, True, "00"),
    "length of six bytes": (Shape, True, "ffffffffff01"),
    "length of 33 bits": (Shape, True, "ffffffff1f"),
    "length without end": (Shape, True, "8080"),
    "tags without end": (Point, True, "00000001 00 01"),
    "more tags than bytes": (Point, True, "00000001 00 ffffffff0f"),
    "tag longer than the input": (Point, True, "00000001 00 01 09 05 0000"),
    "tag of a known field longer than the input": (Tagged, True, "01 01 01 05 02 'l'"),
    "records longer than the input": (Chunks, False, "0000 00000001 00000000 7fffffff 0000"),
    "records length below null": (Chunks, False, "0000 00000001 00000000 fffffffe 0000"),
    "struct neither present nor null": (Shape, True, "01 00 01 00 01 01 01 01 00000000 00 00 02 00000000 00 00 00"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_input_is_refused(name: str) -> None:
    cls, flexible, text = MALFORMED[name]
    with pytest.raises(ProtocolError):
        decode(cls, 1, flexible, spelled(text))


@pytest.mark.parametrize("flexible", [False, True])
@pytest.mark.parametrize("message", [FIXED, SHAPE, Chunks(chunks=[Chunk(records=b"batch")])])
def test_every_shorter_input_is_refused(message: Any, flexible: bool) -> None:
    body = joined(message, flexible=flexible)
    for length in range(len(body)):
        with pytest.raises(ProtocolError):
            decode(type(message), 0, flexible, body[:length])


@pytest.mark.parametrize(
    ("cls", "flexible", "text"),
    [
        (Shape, False, "0000 ffff 00000000 ffffffff 7fffffff"),  # numbers
        (Shape, True, "01 00 01 00 ffffffff0f"),
        (Shape, False, "0000 ffff 00000000 ffffffff 00000000 7fffffff"),  # words
        (Shape, False, "0000 ffff 00000000 ffffffff 00000000 00000000 7fffffff"),  # ids
        (Chunks, False, "0000 7fffffff"),
        (Chunks, True, "01 ffffffff0f"),
        (Shape, False, "0000 ffff 7fffffff"),  # blob
        (Point, True, "00000001 00 ffffffff07"),  # tags
    ],
)
def test_a_huge_count_in_a_small_message_allocates_nothing(cls: type[Any], flexible: bool, text: str) -> None:
    body = spelled(text).ljust(20, b"\x00")
    read = decoder(cls, 0, flexible)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            read(body, 0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


# --- variable-length integers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16383, "ff7f"), (16384, "808001"),
     (0xFFFFFFFF, "ffffffff0f")],
)  # fmt: skip
def test_uvarint(value: int, text: str) -> None:
    assert encode_uvarint(value) == spelled(text)
    assert decode_uvarint(spelled("ff" + text), 1) == (value, 1 + len(spelled(text)))


def test_lengths_around_one_byte() -> None:
    for length in (125, 126, 127, 128, 16382, 16383):
        message = Shape(title="x" * length, numbers=[1] * length)
        body = joined(message, flexible=True)
        assert decode(Shape, 0, True, body) == (message, len(body))


def test_zero_uuid_is_the_default() -> None:
    assert Fixed().id == ZERO_UUID == UUID(int=0)


def test_an_error_in_generated_code_shows_the_line_and_so_the_field() -> None:
    wrong: Any = None
    with pytest.raises(AttributeError) as caught:
        encode(Shape(title=wrong), 0, False)
    shown = "".join(traceback.format_exception(caught.value))
    assert "encoder of Shape version 0" in shown
    assert "message.title.encode()" in shown
