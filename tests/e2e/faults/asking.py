"""Questions to one node, over a connection of their own, with a bound on each: what tests need to know of a cluster."""

import itertools
import json
import socket
import struct
from typing import Any

from tidelog.wire.frames import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import APIS, MetadataRequest, MetadataResponse
from tidelog.wire.messages.metadata import MetadataRequestTopic
from tidelog.wire.messages.private import TidelogAdminRequest

_SIZE = struct.Struct(">i")
_KEYS = {api.request: api for api in APIS.values()}
ADMIN_KEY = 10_000


class AskError(Exception):
    """The node did not answer, or refused."""


def ask(port: int, request: object, timeout_s: float = 5.0) -> Any:
    """The answer to one request, in the newest version that we speak."""
    key, version = (
        (ADMIN_KEY, 0)
        if isinstance(request, TidelogAdminRequest)
        else (_KEYS[type(request)].key, _KEYS[type(request)].max_version)
    )
    header = RequestHeader(key, version, next(_numbers), "faults")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
            connection.sendall(b"".join(encode_request(header, request)))
            (size,) = _SIZE.unpack(_read(connection, _SIZE.size))
            return decode_response(header, _read(connection, size))
    except OSError as error:
        raise AskError(f"{type(request).__name__} to port {port}: {error}") from error


_numbers = itertools.count(1)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the node ended the connection")
        data += part
    return data


def ask_admin(port: int, method: str, timeout_s: float = 15.0, **content: Any) -> dict[str, Any]:
    """One of Tidelog's own methods; `AskError` when it is refused."""
    answer = ask(port, TidelogAdminRequest(method=method, content=json.dumps(content)), timeout_s)
    if answer.error_code:
        raise AskError(f"{method} {content}: error {answer.error_code} {answer.error_message}")
    return json.loads(answer.content)


def ask_metadata(port: int, *topics: str, timeout_s: float = 3.0) -> MetadataResponse:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics], allow_auto_topic_creation=False
    )
    return ask(port, request, timeout_s)
