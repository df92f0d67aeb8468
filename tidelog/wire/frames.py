"""Frames: a size of four bytes, a header, a message. Both sides of the connection.

    request:   size 4 | api key 2 | version 2 | correlation id 4 | client id (nullable string) [| tags] | message
    response:  size 4 | correlation id 4 [| tags] | message

The tags stand in flexible versions only, with two exceptions of the protocol's own: the client id stays a classic
string even there, and the header of an ApiVersions response never has tags, because its reader does not know yet which
version the other side understood.

`frame` means a frame's content without its size everywhere here: whoever reads the connection has used that already.
Functions that encode return a list of buffers whose first begins with the size of them all.
"""

import struct
from typing import Any, NamedTuple

from tidelog.wire.codec import Buffer, decoder, encode_onto
from tidelog.wire.codec_source import skip_tags
from tidelog.wire.errors import ProtocolError
from tidelog.wire.messages import APIS, PRIVATE_APIS, Api

API_VERSIONS = 18
SIZE_BYTES = 4

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")  # key, version, correlation id, length of the client id
_REQUEST_BYTES = _REQUEST.size
_RESPONSE = struct.Struct(">ii")  # size, correlation id


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None = None


class UnsupportedVersionError(ProtocolError):
    """A request that is well-formed as far as its header, of a key or version that we do not speak.

    An ApiVersions request of this kind is answered in version 0; any other ends the connection.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"request with key {header.api_key} version {header.api_version} is not supported")
        self.header = header


_SPOKEN = APIS | PRIVATE_APIS

# Every (key, version) that is spoken, and whether it is flexible: one look instead of a range check for each request.
_FLEXIBLE: dict[tuple[int, int], bool] = {
    (api.key, version): api.flexible(version)
    for api in _SPOKEN.values()
    for version in range(api.min_version, api.max_version + 1)
}


def _find(header: RequestHeader) -> tuple[Api, bool]:
    """What a request belongs to, and whether its version is flexible."""
    flexible = _FLEXIBLE.get((header.api_key, header.api_version))
    if flexible is None:
        raise UnsupportedVersionError(header)
    return _SPOKEN[header.api_key], flexible


# --- the server's side -----------------------------------------------------------------------------------------------


def read_header(frame: Buffer) -> tuple[RequestHeader, int]:
    """A request's header, and where its message begins.

    Of a key or version that is not ours only what every header has in common is read, so the position is of no use.
    """
    end = len(frame)
    if end < _REQUEST_BYTES:
        raise ProtocolError(f"request header: {end} bytes are too short")
    key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    position = _REQUEST_BYTES
    client_id = None
    if length != -1:
        stop = position + length
        if length < 0 or stop > end:
            raise ProtocolError(f"request header: client id of length {length} with {end - position} bytes left")
        try:
            client_id = str(frame[position:stop], "utf-8")
        except UnicodeDecodeError:
            raise ProtocolError("request header: client id is not UTF-8") from None
        position = stop
    if _FLEXIBLE.get((key, version)):
        position = _skip_header_tags(frame, position)
    return RequestHeader(key, version, correlation_id, client_id), position


def decode_request(frame: Buffer) -> tuple[RequestHeader, Any]:
    """A whole request.

    Bytes behind the message are ignored, as Kafka does: librdkafka 2.16 asks for all topics (Metadata 10 and later)
    with three bytes too many.
    """
    header, position = read_header(frame)
    api, flexible = _find(header)
    request, _ = decoder(api.request, header.api_version, flexible)(frame, position)
    return header, request


def encode_response(header: RequestHeader, response: object) -> list[Buffer]:
    """The answer to the request with this header, ready to be sent."""
    api, flexible = _find(header)
    out = bytearray(_RESPONSE.pack(0, header.correlation_id))
    if flexible and api.key != API_VERSIONS:
        out.append(0)
    return _sized(out, encode_onto(out, response, header.api_version, flexible))


# --- the client's side -----------------------------------------------------------------------------------------------


def encode_request(header: RequestHeader, request: object) -> list[Buffer]:
    """A request, ready to be sent."""
    _, flexible = _find(header)
    client_id = None if header.client_id is None else header.client_id.encode()
    length = -1 if client_id is None else len(client_id)
    out = bytearray(SIZE_BYTES)
    out += _REQUEST.pack(header.api_key, header.api_version, header.correlation_id, length) + (client_id or b"")
    if flexible:
        out.append(0)
    return _sized(out, encode_onto(out, request, header.api_version, flexible))


def read_correlation_id(frame: Buffer) -> int:
    """Which request a response belongs to; its shape is known only after that."""
    if len(frame) < _SIZE.size:
        raise ProtocolError(f"response header: {len(frame)} bytes are too short")
    return _SIZE.unpack_from(frame)[0]


def decode_response(header: RequestHeader, frame: Buffer) -> Any:
    """The answer to the request with this header."""
    api, flexible = _find(header)
    correlation_id = read_correlation_id(frame)
    if correlation_id != header.correlation_id:
        raise ProtocolError(f"response to request {correlation_id}, expected one to request {header.correlation_id}")
    position = _SIZE.size
    if flexible and api.key != API_VERSIONS:
        position = _skip_header_tags(frame, position)
    response, end = decoder(api.response, header.api_version, flexible)(frame, position)
    if end != len(frame):
        raise ProtocolError(
            f"{api.name} response version {header.api_version}: {len(frame) - end} bytes behind its end"
        )
    return response


# --- parts -----------------------------------------------------------------------------------------------------------


def _skip_header_tags(frame: Buffer, position: int) -> int:
    try:
        if frame[position] == 0:
            return position + 1
        return skip_tags(frame, position, len(frame))
    except IndexError:
        raise ProtocolError("header: ends within its tags") from None


def _sized(out: bytearray, buffers: list[Buffer]) -> list[Buffer]:
    """Put the size of all buffers into the four bytes that the first was begun with."""
    _SIZE.pack_into(out, 0, sum(map(len, buffers)) - SIZE_BYTES)
    return buffers
