"""What lies between nodes: for each ordered pair a small proxy that the first one dials to reach the second.

Each direction between two nodes can be cut or slowed. Nothing is lost on a connection that lives on, as with TCP: what
was sent while a direction was cut waits, and comes late when it is healed, unless `reset` ends the connections that
were cut, so that both ends have to dial again. A connection that is made while a direction is cut is accepted, as
by a kernel, and then hears nothing.

All proxies run on one event loop in a thread of their own; the methods of `Network` may be called from anywhere.
"""

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.ports import free_port

CHUNK_BYTES = 64 << 10
CALL_TIMEOUT_S = 10.0

_T = TypeVar("_T")


@dataclass(slots=True)
class _Direction:
    """From one node to another, on whosever connection."""

    open: asyncio.Event
    was_cut: bool = False
    delay_s: float = 0.0
    bytes_per_second: int = 0  # 0: no bound


@dataclass(eq=False, slots=True)
class _Connection:
    pair: tuple[int, int]
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter | None = None
    tasks: list[asyncio.Task[None]] = field(default_factory=list)


class Network:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._thread.start()
        self._directions: dict[tuple[int, int], _Direction] = {}
        self._connections: set[_Connection] = set()
        self._servers: list[asyncio.Server] = []

    def add(self, source: int, target: int, port: int) -> int:
        """A link for `source` to reach `target`, which listens on `port`; gives the port to dial instead."""
        return self._call(self._add(source, target, port))

    # Faults

    def cut(self, one: int, other: int) -> None:
        """Both ways."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def cut_one_way(self, source: int, target: int) -> None:
        """What `source` sends does not reach `target`; the other way all is well."""
        self._call(self._cut(source, target))

    def isolate(self, node: int, others: Iterable[int]) -> None:
        for other in others:
            if other != node:
                self.cut(node, other)

    def slow(self, one: int, other: int, delay_ms: int, bytes_per_second: int = 0) -> None:
        """Both ways."""
        self._call(self._slow(one, other, delay_ms / 1000, bytes_per_second))

    def heal(self, *, reset: bool = False) -> None:
        """All is as it was. `reset`: connections on which something was cut end, and what waited there is lost."""
        self._call(self._heal(reset))

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    # On the loop

    def _call(self, coroutine: "Coroutine[Any, Any, _T]") -> _T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_TIMEOUT_S)

    async def _add(self, source: int, target: int, port: int) -> int:
        for pair in ((source, target), (target, source)):
            if pair not in self._directions:
                self._directions[pair] = direction = _Direction(asyncio.Event())
                direction.open.set()
        own = free_port()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._carry((source, target), port, reader, writer)

        self._servers.append(await asyncio.start_server(accepted, "127.0.0.1", own))
        return own

    async def _carry(
        self, pair: tuple[int, int], port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        source, target = pair
        connection = _Connection(pair, writer)
        self._connections.add(connection)
        forth, back = self._directions[pair], self._directions[target, source]
        try:
            await forth.open.wait()
            far_reader, connection.far = await asyncio.open_connection("127.0.0.1", port)
            connection.tasks += [
                asyncio.create_task(_pump(reader, connection.far, forth)),
                asyncio.create_task(_pump(far_reader, writer, back)),
            ]
            await asyncio.wait(connection.tasks, return_when=asyncio.FIRST_COMPLETED)
        except OSError:
            pass  # nobody listens there: the end of our own side says so
        finally:
            self._connections.discard(connection)
            _end(connection)

    async def _cut(self, source: int, target: int) -> None:
        direction = self._directions[source, target]
        direction.open.clear()
        direction.was_cut = True

    async def _slow(self, one: int, other: int, delay_s: float, bytes_per_second: int) -> None:
        for pair in ((one, other), (other, one)):
            self._directions[pair].delay_s = delay_s
            self._directions[pair].bytes_per_second = bytes_per_second

    async def _heal(self, reset: bool) -> None:
        if reset:
            for connection in list(self._connections):
                source, target = connection.pair
                if self._directions[source, target].was_cut or self._directions[target, source].was_cut:
                    _end(connection)
        for direction in self._directions.values():
            direction.was_cut, direction.delay_s, direction.bytes_per_second = False, 0.0, 0
            direction.open.set()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            _end(connection)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            if direction.delay_s:
                await asyncio.sleep(direction.delay_s)
            if direction.bytes_per_second:
                await asyncio.sleep(len(data) / direction.bytes_per_second)
            await direction.open.wait()
            writer.write(data)
            await writer.drain()
        await direction.open.wait()  # the end of a connection does not get through either


def _end(connection: _Connection) -> None:
    for task in connection.tasks:
        task.cancel()
    for writer in (connection.near, connection.far):
        if writer is not None:
            writer.transport.abort()
