"""Frames from both sides of a connection, and how kafka-python and kio spell the same headers."""

import struct
from typing import Any

import pytest
from kio.serial import entity_reader

from tests.wire.oracles import KAFKA_PYTHON_CLASSES, kio_schema
from tests.wire.samples import MESSAGES
from tidelog.wire.codec import Buffer
from tidelog.wire.errors import ErrorCode, ProtocolError
from tidelog.wire.frames import (
    RequestHeader,
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_correlation_id,
    read_header,
)
from tidelog.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    HeartbeatRequest,
    HeartbeatResponse,
    MetadataRequest,
)


def content(buffers: list[Buffer]) -> memoryview:
    """A frame without its size, which must be right."""
    frame = b"".join(buffers)
    (size,) = struct.unpack_from(">i", frame)
    assert size == len(frame) - 4
    return memoryview(frame)[4:]


HEARTBEAT = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")


def test_request_header_of_classic_versions() -> None:
    header = RequestHeader(12, 3, 99, "me")
    frame = content(encode_request(header, HEARTBEAT))
    assert bytes(frame[:12]) == bytes.fromhex("000c 0003 00000063 0002") + b"me"
    assert read_header(frame) == (header, 12)
    assert decode_request(frame) == (header, HEARTBEAT)


def test_request_header_of_flexible_versions_keeps_the_classic_client_id_and_has_tags() -> None:
    header = RequestHeader(12, 4, 99, "me")
    frame = content(encode_request(header, HEARTBEAT))
    assert bytes(frame[:13]) == bytes.fromhex("000c 0004 00000063 0002") + b"me\x00"
    assert read_header(frame) == (header, 13)
    assert decode_request(frame) == (header, HEARTBEAT)


def test_tags_of_a_request_header_are_skipped() -> None:
    frame = bytearray(content(encode_request(RequestHeader(12, 4, 99, None), HEARTBEAT)))
    frame[10:11] = bytes.fromhex("01 07 02 ffff")
    assert decode_request(frame) == (RequestHeader(12, 4, 99, None), HEARTBEAT)


def test_client_id_may_be_null_or_empty() -> None:
    for client_id in (None, ""):
        header = RequestHeader(3, 1, 5, client_id)
        assert decode_request(content(encode_request(header, MetadataRequest()))) == (header, MetadataRequest())


@pytest.mark.parametrize(("version", "expected"), [(3, "00000063 00000000 0019"), (4, "00000063 00 00000000 0019 00")])
def test_response_header_has_tags_in_flexible_versions(version: int, expected: str) -> None:
    header = RequestHeader(12, version, 99)
    response = HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    frame = content(encode_response(header, response))
    assert bytes(frame) == bytes.fromhex(expected)
    assert read_correlation_id(frame) == 99
    assert decode_response(header, frame) == response


@pytest.mark.parametrize("version", range(5))
def test_response_header_of_api_versions_never_has_tags(version: int) -> None:
    header = RequestHeader(18, version, 99)
    response = ApiVersionsResponse(api_keys=[ApiVersion(api_key=18, max_version=4)])
    frame = content(encode_response(header, response))
    assert bytes(frame[:6]) == bytes.fromhex("00000063 0000")
    assert decode_response(header, frame) == response


def test_records_stay_a_buffer_of_their_own_and_count_into_the_size() -> None:
    batch = memoryview(b"batch" * 1000)
    response = FetchResponse(
        responses=[FetchResponseTopic(topic="t", partitions=[FetchResponsePartition(records=batch)])]
    )
    header = RequestHeader(1, 12, 7)
    buffers = encode_response(header, response)
    assert any(buffer is batch for buffer in buffers)
    assert decode_response(header, content(buffers)) == response


# --- refused ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "version"), [(12, 5), (12, -1), (8, 1), (17, 0), (-1, 0), (32767, 32767), (22, 6)])
def test_unsupported_requests_are_refused_with_their_header(key: int, version: int) -> None:
    frame = struct.pack(">hhih", key, version, 7, 2) + b"me" + b"anything"
    with pytest.raises(UnsupportedVersionError, match=f"key {key} version {version}") as caught:
        decode_request(frame)
    assert caught.value.header == RequestHeader(key, version, 7, "me")


def test_unknown_api_versions_request_can_be_answered_in_version_0() -> None:
    frame = struct.pack(">hhih", 18, 99, 7, -1) + b"\x00whatever"
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame)
    header = caught.value.header._replace(api_version=0)
    answer = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[ApiVersion(api_key=18)])
    assert bytes(content(encode_response(header, answer))) == bytes.fromhex("00000007 0023 00000001 0012 0000 0000")


def test_bytes_behind_a_response_are_refused_and_those_behind_a_request_ignored() -> None:
    header = RequestHeader(12, 4, 99, "me")
    request = bytes(content(encode_request(header, HEARTBEAT)))
    assert decode_request(request + b"\x00") == (header, HEARTBEAT)
    response = bytes(content(encode_response(header, HeartbeatResponse())))
    with pytest.raises(ProtocolError, match="Heartbeat response version 4: 2 bytes behind its end"):
        decode_response(header, response + b"\x00\x00")


def test_every_shorter_frame_is_refused() -> None:
    header = RequestHeader(18, 3, 99, "me")
    request = content(encode_request(header, ApiVersionsRequest(client_software_name="n", client_software_version="v")))
    response = content(encode_response(header, ApiVersionsResponse(api_keys=[ApiVersion(api_key=18)])))
    for length in range(len(request)):
        with pytest.raises(ProtocolError):
            decode_request(request[:length])
    for length in range(len(response)):
        with pytest.raises(ProtocolError):
            decode_response(header, response[:length])


@pytest.mark.parametrize(
    "text",
    [
        "000c 0003 00000063 fffe",
        "000c 0003 00000063 0003 6d65",
        "000c 0003 00000063 0002 c328",
        "000c 0004 00000063 ffff",
    ],
)
def test_malformed_headers_are_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        decode_request(bytes.fromhex(text))


def test_an_answer_to_another_request_is_refused() -> None:
    frame = content(encode_response(RequestHeader(12, 4, 1), HeartbeatResponse()))
    with pytest.raises(ProtocolError, match="response to request 1, expected one to request 2"):
        decode_response(RequestHeader(12, 4, 2), frame)


# --- oracles ---------------------------------------------------------------------------------------------------------


def test_kafka_python_frames_requests_and_responses_as_we_do() -> None:
    for api, cls, version in MESSAGES:
        if cls.__name__ not in KAFKA_PYTHON_CLASSES:
            continue
        header = RequestHeader(api.key, version, 0x01020304, "client")
        frame = b"".join((encode_request if cls is api.request else encode_response)(header, cls()))
        theirs: Any = KAFKA_PYTHON_CLASSES[cls.__name__].decode(frame, version=version, header=True, framed=True)
        assert theirs.header.correlation_id == header.correlation_id
        assert bytes(theirs.encode(header=True, framed=True)) == frame


def test_kio_reads_our_headers() -> None:
    for api, cls, version in MESSAGES:
        schema = kio_schema(api, cls, version)
        if schema is None:
            continue
        header = RequestHeader(api.key, version, 0x01020304, "client")
        frame = (encode_request if cls is api.request else encode_response)(header, cls())
        data = bytes(content(frame))
        theirs: Any
        theirs, position = entity_reader(schema.__header_schema__)(data, 0)
        assert theirs.correlation_id == header.correlation_id
        _, size = entity_reader(schema)(data, position)
        assert position + size == len(data)
