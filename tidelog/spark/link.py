"""One connection to one node: requests out, answers in, in the order of the requests, every wait bounded.

The versions are those that both sides speak (ApiVersions, asked once a connection), so a Tidelog node and an Apache
Kafka broker serve alike. Nothing is retried here: whoever asks decides what a failure means. After any failure the
link is closed, and its unanswered requests have an unknown end.
"""

import socket
import struct
import time
from collections import deque
from typing import Any

from tidelog.spark.kernel.security_options import PLAINTEXT, Security
from tidelog.spark.security import AccessRefused, Sasl, wrapped
from tidelog.wire.errors import ErrorCode, ProtocolError
from tidelog.wire.frames import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import APIS, ApiVersionsRequest

CLIENT_ID = "tidelog-spark"
CONNECT_S_MAX = 10.0
FRAME_BYTES_MAX = 128 << 20
SEND_BUFFERS_MAX = 64  # of one sendmsg

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhih")  # of a request: key, version, number, length of the client's name
_APIS = {api.request: api for api in APIS.values()}
_BY_NAME = {0: 12, 1: 12}  # Produce and Fetch name their topic up to these versions; later ones want its id
_API_VERSIONS = 18


class LinkFailed(Exception):
    """Nobody is there, does not answer in time, or does not speak the protocol; another node may."""


class Link:
    def __init__(self, host: str, port: int, request_s: float, security: Security = PLAINTEXT) -> None:
        self.address = f"{host}:{port}"
        self._request_s = request_s
        self._numbers = 0
        self._unanswered: deque[RequestHeader] = deque()
        self._tls = security.tls
        try:
            plain = socket.create_connection((host, port), timeout=min(request_s, CONNECT_S_MAX))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = wrapped(plain, host, security)
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: no such port, no such name
            raise LinkFailed(f"{self.address}: {getattr(error, 'strerror', None) or error}") from None
        self._versions: dict[int, tuple[int, int]] = {_API_VERSIONS: (0, 0)}
        answer = self.ask(ApiVersionsRequest())
        if answer.error_code:
            self.close()
            raise LinkFailed(f"{self.address}: it does not say which requests it serves ({answer.error_code})")
        self._versions = {spoken.api_key: (spoken.min_version, spoken.max_version) for spoken in answer.api_keys}
        try:
            Sasl(self.address, security, self._exchange).run()
        except (LinkFailed, AccessRefused):
            self.close()
            raise
        except (struct.error, ValueError) as error:
            self.close()
            raise LinkFailed(f"{self.address}: its answer to who we are cannot be read: {error}") from None

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def ask(self, request: object) -> Any:
        """The answer; requests that were sent before must have had theirs."""
        assert not self._unanswered, "answers come in order"
        self.send(request)
        return self.receive()

    def send(self, request: object) -> None:
        api = _APIS[type(request)]
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(api.max_version, highest, _BY_NAME.get(api.key, highest))
        if version < max(api.min_version, lowest):
            self.close()
            raise LinkFailed(f"{self.address}: there is no version of {api.name} that both sides speak")
        self._numbers += 1
        header = RequestHeader(api.key, version, self._numbers, CLIENT_ID)
        buffers = [memoryview(buffer) for buffer in encode_request(header, request)]
        try:
            self._socket.settimeout(self._request_s)
            if self._tls:  # it encrypts what lies in one piece
                self._socket.sendall(b"".join(buffers))
                buffers.clear()
            while buffers:
                sent = self._socket.sendmsg(buffers[:SEND_BUFFERS_MAX])
                while buffers and sent >= len(buffers[0]):
                    sent -= len(buffers.pop(0))
                if sent:
                    buffers[0] = buffers[0][sent:]
        except OSError as error:
            self.close()
            raise LinkFailed(f"{self.address}: {error.strerror or error}") from None
        self._unanswered.append(header)

    def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        header = self._unanswered.popleft()
        give_up = time.monotonic() + self._request_s
        try:
            (size,) = _SIZE.unpack(self._take(_SIZE.size, give_up))
            if not 0 <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {size} bytes")
            return decode_response(header, self._take(size, give_up))
        except (OSError, ProtocolError) as error:
            self.close()
            raise LinkFailed(f"{self.address}: {getattr(error, 'strerror', None) or error}") from None

    def _exchange(self, key: int, version: int, content: bytes) -> bytes:
        """A request that `wire` does not know, and the content of its answer."""
        self._numbers += 1
        client = CLIENT_ID.encode()
        frame = _HEAD.pack(key, version, self._numbers, len(client)) + client + content
        give_up = time.monotonic() + self._request_s
        try:
            self._socket.settimeout(self._request_s)
            self._socket.sendall(_SIZE.pack(len(frame)) + frame)
            (size,) = _SIZE.unpack(self._take(_SIZE.size, give_up))
            if not _SIZE.size <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {size} bytes")
            return bytes(self._take(size, give_up)[_SIZE.size :])  # behind the request's number
        except (OSError, ProtocolError) as error:
            raise LinkFailed(f"{self.address}: {getattr(error, 'strerror', None) or error}") from None

    def _take(self, size: int, give_up: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(max(give_up - time.monotonic(), 0.001))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError("it ended the connection")
            view = view[count:]
        return data

    def close(self) -> None:
        self._socket.close()


def error_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error {code}"
