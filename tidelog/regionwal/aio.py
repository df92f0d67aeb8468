"""The region WAL for asyncio: the same names and the same rules, awaited.

A write waits for the log without a thread: only handing it over takes one of the pool's for a moment. All other calls
ask the log and run on the pool, at most `Settings.threads` at a time; reads take a thread only while a chunk is
fetched. A write that is cancelled is not taken back: it is in the log, or not, as if its caller had died.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tidelog.regionwal import wal
from tidelog.regionwal.log import Log
from tidelog.regionwal.reading import Bound, Entry
from tidelog.regionwal.replay import Handlers, ReplayResult
from tidelog.regionwal.settings import Settings
from tidelog.regionwal.statistics import CleanResult, Statistics
from tidelog.regionwal.writer import Batch

T = TypeVar("T")

_MIN, _MAX = Bound.min(), Bound.max()


class RegionWal:
    """Use as an asynchronous context manager, or await `close`."""

    def __init__(self, settings: Settings, log: Log | None = None) -> None:
        self.settings = settings
        self._wal = wal.RegionWal(settings, log)
        self._threads = ThreadPoolExecutor(settings.threads, thread_name_prefix="regionwal-async")

    async def open_region(self, region_id: int, *, accept_loss: bool = False) -> None:
        await self._run(lambda: self._wal.open_region(region_id, accept_loss=accept_loss))

    async def close_region(self, region_id: int) -> None:
        await self._run(lambda: self._wal.close_region(region_id))

    async def regions(self) -> list[int]:
        return await self._run(self._wal.regions)

    async def write(self, region_id: int, table_id: int, payloads: Sequence[bytes]) -> int:
        return (await self.write_batch(region_id, {table_id: payloads}))[table_id]

    async def write_batch(self, region_id: int, batch: Batch) -> dict[int, int]:
        return await asyncio.wrap_future(await self._run(lambda: self._wal.submit(region_id, batch)))

    async def read(
        self, region_id: int, table_id: int, start: Bound = _MIN, end: Bound = _MAX
    ) -> AsyncGenerator[Entry, None]:
        chunks = self._wal.read_chunks(region_id, table_id, start, end)
        async with contextlib.aclosing(self._entries(chunks)) as entries:
            async for entry in entries:
                yield entry

    async def scan(self, region_id: int) -> AsyncGenerator[Entry, None]:
        async with contextlib.aclosing(self._entries(self._wal.scan_chunks(region_id))) as entries:
            async for entry in entries:
                yield entry

    async def replay(self, region_id: int, handlers: Handlers, parallel: int = 1) -> ReplayResult:
        """The handlers are plain functions, and run on threads, not on the event loop."""
        return await self._run(lambda: self._wal.replay(region_id, handlers, parallel))

    async def sequence_num(self, region_id: int, table_id: int) -> int:
        return await self._run(lambda: self._wal.sequence_num(region_id, table_id))

    async def mark_delete(self, region_id: int, table_id: int, up_to: int) -> None:
        await self._run(lambda: self._wal.mark_delete(region_id, table_id, up_to))

    async def clean_region(self, region_id: int) -> CleanResult:
        return await self._run(lambda: self._wal.clean_region(region_id))

    async def statistics(self, region_id: int | None = None) -> Statistics:
        return await self._run(lambda: self._wal.statistics(region_id))

    async def close(self) -> None:
        await self._run(self._wal.close)
        self._threads.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def _entries(self, chunks: Generator[list[Entry], None, None]) -> AsyncGenerator[Entry, None]:
        fetching: asyncio.Future[list[Entry] | None] | None = None
        try:
            while True:
                fetching = asyncio.ensure_future(self._run(lambda: next(chunks, None)))
                chunk = await asyncio.shield(fetching)
                if chunk is None:
                    return
                for entry in chunk:
                    yield entry
        finally:
            if fetching is not None and not fetching.done():  # cancelled: the thread is still in the generator
                await asyncio.wait([fetching])
            await self._run(chunks.close)

    async def __aenter__(self) -> "RegionWal":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
