"""A node as a client of another one: asks for the list of a stream's closed segments, and for their bytes.

It speaks the private part of the protocol on the port for clients, so that what it reads neither delays consensus nor
escapes the other node's bounds.
"""

import asyncio
import json
import struct
from typing import Any

from tidelog.wire.errors import ErrorCode, ProtocolError
from tidelog.wire.frames import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import (
    ReadSegmentRequest,
    ReadSegmentResponse,
    TidelogAdminRequest,
    TidelogAdminResponse,
)

TIMEOUT_S = 10.0
ADMIN, READ_SEGMENT = 10_000, 10_001
FRAME_BYTES_MAX = 64 << 20
_SIZE = struct.Struct(">i")


class SourceError(Exception):
    """The other node cannot be read from now."""


class SegmentClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def connect(cls, host: str, port: int) -> "SegmentClient":
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return cls(*await asyncio.open_connection(host, port))
        except (OSError, TimeoutError) as error:
            raise SourceError(f"{host}:{port} cannot be reached: {error!r}") from None

    def close(self) -> None:
        self._writer.close()

    async def admin(self, method: str, content: dict[str, Any]) -> dict[str, Any]:
        request = TidelogAdminRequest(method=method, content=json.dumps(content))
        answer: TidelogAdminResponse = await self._ask(ADMIN, request)
        if answer.error_code:
            raise SourceError(f"{method}: {answer.error_message}")
        try:
            return json.loads(answer.content)
        except ValueError:
            raise SourceError(f"{method}: an answer that is not JSON") from None

    async def read(self, stream: int, first_index: int, part: int, position: int, length: int) -> bytes:
        request = ReadSegmentRequest(
            stream=stream, first_index=first_index, part=part, position=position, length=length
        )
        answer: ReadSegmentResponse = await self._ask(READ_SEGMENT, request)
        if answer.error_code:
            raise SourceError(f"stream {stream} cannot be read: {ErrorCode(answer.error_code).name}")
        return bytes(answer.data)

    async def _ask(self, api_key: int, request: object) -> Any:
        self._correlation_id += 1
        header = RequestHeader(api_key, 0, self._correlation_id, "tidelog-node")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self._writer.writelines(encode_request(header, request))
                await self._writer.drain()
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                if not 0 < size <= FRAME_BYTES_MAX:
                    raise SourceError(f"an answer of {size} bytes")
                return decode_response(header, await self._reader.readexactly(size))
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ProtocolError) as error:
            raise SourceError(f"no answer: {error!r}") from None
