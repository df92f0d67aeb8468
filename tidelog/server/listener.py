"""The sockets of a node: takes connections, and looks after those that are stuck.

Once in a while every connection is looked at: one that has sent and taken nothing for too long is closed; so is one
whose frame has stopped arriving, or whose client has stopped reading, and sooner when the node is short of memory.
"""

import asyncio
import logging
import socket
from typing import Any

from tidelog.server.broker import Broker
from tidelog.server.connection import Connection

log = logging.getLogger(__name__)

SWEEP_S = 1.0
STUCK_MS = 30_000  # a frame that stops arriving, an answer that is not taken
STUCK_SHORT_OF_MEMORY_MS = 2_000
POOL_KEPT_BYTES = 16 << 20  # of unused receive memory
BACKLOG = 1_024


class Listener:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, host: str, port: int, listening: socket.socket | None = None) -> int:
        """Listen, at an address or on a socket that does already, without answering yet; gives the port."""
        loop = asyncio.get_running_loop()
        where: dict[str, Any] = {"sock": listening} if listening is not None else {"host": host, "port": port}
        self._server = await loop.create_server(
            lambda: Connection(self._broker), backlog=BACKLOG, start_serving=False, **where
        )
        return self._server.sockets[0].getsockname()[1]

    async def serve(self) -> None:
        assert self._server is not None
        await self._server.start_serving()
        self._plan_sweep()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._server is not None:
            self._server.close()

    def _plan_sweep(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        broker, now = self._broker, self._broker.now()
        exhausted = broker.pool.exhausted
        stuck_ms = STUCK_SHORT_OF_MEMORY_MS if exhausted else STUCK_MS
        for connection in list(broker.connections):
            sending = connection.note_progress(now)
            still_ms = now - connection.progress_ms
            if still_ms > stuck_ms and (sending or connection.receiving):
                connection.abort(
                    "it has stopped in the middle of a frame" if connection.receiving else "it does not read"
                )
            elif still_ms > broker.settings.connections_idle_ms and connection.idle:
                connection.abort("idle")
            else:
                connection.revisit()
        broker.pool.release_unused(POOL_KEPT_BYTES)
        broker.under_way.release_unused(POOL_KEPT_BYTES)
        self._plan_sweep()
