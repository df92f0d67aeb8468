"""One connection to one node: requests out, answers in, in the order of the requests, every wait bounded.

The commands that need more than an ordinary client offers (whole batches as they lie, Tidelog's own requests) use this
instead of librdkafka. It knows nothing of clusters and retries nothing: whoever asks decides what a failure means.
"""

import socket
import struct
import time
from collections import deque
from typing import Any

from tidelog.cli import CommandError
from tidelog.cli.client import ANSWER_S_MAX
from tidelog.wire.errors import ProtocolError
from tidelog.wire.frames import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import APIS, PRIVATE_APIS

FRAME_BYTES_MAX = 128 << 20
SEND_BUFFERS_MAX = 64  # of one sendmsg

_SIZE = struct.Struct(">i")
_APIS = {api.request: api for api in (APIS | PRIVATE_APIS).values()}
_VERSIONS = {0: 9, 1: 12}  # Produce and Fetch name their topic up to these; later versions want its id


class Unreachable(CommandError):
    """Nobody is there, or does not answer in time; another node may."""


class ConnectionEnded(Unreachable):
    """The other side closed the connection instead of answering."""


class NotTidelog(CommandError):
    """Somebody is there, and is no Tidelog node."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address} is not a Tidelog node: only Tidelog's own nodes know this request")


class Link:
    def __init__(self, host: str, port: int, timeout_s: float = ANSWER_S_MAX) -> None:
        self.address = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._numbers = 0
        self._unanswered: deque[RequestHeader] = deque()
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: no such port, no such name
            raise Unreachable(f"{self.address}: {getattr(error, 'strerror', None) or error}") from None

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def ask(self, request: object, *, timeout_s: float | None = None) -> Any:
        """The answer; requests that were sent before must have had theirs."""
        assert not self._unanswered, "answers come in order"
        self.send(request)
        return self.receive(timeout_s=timeout_s)

    def send(self, request: object) -> None:
        api = _APIS[type(request)]
        self._numbers += 1
        header = RequestHeader(api.key, _VERSIONS.get(api.key, api.max_version), self._numbers, "tidelog-cli")
        buffers = [memoryview(buffer) for buffer in encode_request(header, request)]
        self._socket.settimeout(self._timeout_s)
        try:
            while buffers:
                sent = self._socket.sendmsg(buffers[:SEND_BUFFERS_MAX])
                while buffers and sent >= len(buffers[0]):
                    sent -= len(buffers.pop(0))
                if sent:
                    buffers[0] = buffers[0][sent:]
        except OSError as error:
            self.close()
            raise self._failed(error) from None
        self._unanswered.append(header)

    def receive(self, *, timeout_s: float | None = None) -> Any:
        """The answer to the oldest request that has none yet."""
        header = self._unanswered.popleft()
        give_up = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        try:
            (size,) = _SIZE.unpack(self._take(_SIZE.size, give_up))
            if not 0 <= size <= FRAME_BYTES_MAX:
                raise ProtocolError(f"a frame of {size} bytes")
            return decode_response(header, self._take(size, give_up))
        except OSError as error:
            self.close()
            raise self._failed(error) from None
        except ProtocolError:
            self.close()
            raise NotTidelog(self.address) from None

    def _take(self, size: int, give_up: float) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            self._socket.settimeout(max(give_up - time.monotonic(), 0.001))
            count = self._socket.recv_into(view)
            if not count:
                raise ConnectionResetError
            view = view[count:]
        return data

    def _failed(self, error: OSError) -> Unreachable:
        if isinstance(error, ConnectionError):
            return ConnectionEnded(f"{self.address} ended the connection")
        if isinstance(error, TimeoutError):
            return Unreachable(f"no answer from {self.address} in time: is it a Tidelog node, and is it well?")
        return Unreachable(f"{self.address}: {error.strerror or error}")

    def close(self) -> None:
        self._socket.close()
