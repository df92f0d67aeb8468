"""What requests that are under way hold of the node's memory, and how much more may begin.

Produces wait above their bound, and their connections are told when there is room again. Fetches never wait for memory:
their answers get smaller as it gets short.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from tidelog.server.memory import BufferPool
from tidelog.server.settings import Settings

if TYPE_CHECKING:
    from tidelog.server.connection import Connection

FETCH_BYTES_MIN = 64 << 10  # of an answer when memory is short


class UnderWay:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._produce_bytes = 0
        self._waiting: dict[Connection, None] = {}
        self._drained: asyncio.Future[None] | None = None
        self._fetch_pool = BufferPool(settings.memory_fetch_bytes)
        self._fetch_bytes = 0

    def may_produce(self, connection: "Connection") -> bool:
        """If not, the connection's `go_on` is called when it may."""
        if self._produce_bytes < self._settings.memory_produce_bytes:
            return True
        self._waiting[connection] = None
        return False

    def produce_begun(self, size: int) -> None:
        self._produce_bytes += size

    def produce_ended(self, size: int) -> None:
        self._produce_bytes -= size
        if self._drained is not None and not self._produce_bytes and not self._drained.done():
            self._drained.set_result(None)
        if self._waiting and self._produce_bytes < self._settings.memory_produce_bytes:
            waiting, self._waiting = self._waiting, {}
            for connection in waiting:
                asyncio.get_running_loop().call_soon(connection.go_on)

    async def until_produced(self, timeout_s: float) -> None:
        """Wait, but not for ever, until no produce is under way."""
        if self._produce_bytes:
            self._drained = asyncio.get_running_loop().create_future()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained, timeout_s)

    def fetch_allowance(self) -> int:
        """Bytes that one more answer may have: less and less as memory gets short, but never nothing."""
        left = self._settings.memory_fetch_bytes - self._fetch_bytes
        return max(FETCH_BYTES_MIN, min(self._settings.fetch_bytes_max, left // 4))

    def fetch_begun(self, size: int) -> None:
        self._fetch_bytes += size

    def fetch_ended(self, size: int) -> None:
        self._fetch_bytes -= size

    def fetch_memory(self, size: int) -> memoryview:
        buffer = self._fetch_pool.take(size)
        return memoryview(buffer if buffer is not None else bytearray(size))[:size]

    def release_unused(self, bytes_kept: int) -> None:
        """Give memory that nobody uses back to the system."""
        self._fetch_pool.release_unused(bytes_kept)
