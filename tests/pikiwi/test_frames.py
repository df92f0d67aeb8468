"""Framing: whole frames out of any chunks, and nothing kept for what must be refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pikiwi.errors import ProtocolError
from tidelog.pikiwi.protocol import FrameDecoder, encode_frame, parse
from tidelog.pikiwi.protocol import inner_message_pb2 as pb


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


@given(st.lists(st.binary(max_size=300)), st.data())
def test_frames_come_out_as_they_went_in_whatever_the_chunks(contents: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(framed, contents))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = FrameDecoder(300)
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[begin:end])
        found += decoder
    assert found == contents
    assert decoder.held_bytes == 0


def test_frames_left_by_a_reader_that_stopped_are_given_once_each() -> None:
    decoder = FrameDecoder(10)
    decoder.feed(framed(b"a") + framed(b"b") + framed(b"c"))
    for frame in decoder:
        assert frame == b"a"
        break
    assert list(decoder) == [b"b", b"c"]


@given(st.integers(11, 2**32 - 1), st.binary(max_size=50))
def test_a_length_above_the_limit_is_refused_before_anything_is_kept_for_it(length: int, rest: bytes) -> None:
    decoder = FrameDecoder(10)
    decoder.feed(struct.pack(">I", length) + rest)
    with pytest.raises(ProtocolError, match="announced"):
        list(decoder)


def test_text_from_another_server_is_refused() -> None:
    decoder = FrameDecoder(512 << 20)
    decoder.feed(b"-ERR unknown command\r\n")
    with pytest.raises(ProtocolError, match="replication or rsync2 port"):
        list(decoder)


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = parse(pb.InnerResponse, data)
    except ProtocolError:
        return
    assert message.IsInitialized()


def test_a_message_without_a_required_field_is_no_message() -> None:
    partial = pb.InnerResponse(type=pb.kMetaSync).SerializePartialToString()
    with pytest.raises(ProtocolError, match="InnerResponse"):
        parse(pb.InnerResponse, partial)


def test_an_incomplete_request_is_never_sent() -> None:
    with pytest.raises(AssertionError):
        encode_frame(pb.InnerRequest())
