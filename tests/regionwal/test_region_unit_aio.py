"""The asynchronous API is the synchronous one, awaited: the same names, and no thread for each write that waits."""

import asyncio
import inspect
from typing import Any, cast

import pytest

from tidelog.regionwal import Fenced, RegionWal, Settings
from tidelog.regionwal.aio import RegionWal as AsyncRegionWal
from tidelog.regionwal.log import Log

from .memory_log import MemoryBroker, MemoryLog

THREADS = 2
SYNC_ONLY = {"submit", "read_chunks", "scan_chunks"}  # what the asynchronous one is made of


def wal_on(broker: MemoryBroker) -> tuple[AsyncRegionWal, MemoryLog]:
    log = MemoryLog(broker)
    settings = Settings(bootstrap="memory", clean_period_s=0, write_timeout_s=5.0, threads=THREADS)
    return AsyncRegionWal(settings, cast("Log", log)), log


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in vars(kind).items() if not name.startswith("_") and callable(value)}


def test_both_have_the_same_names_and_arguments() -> None:
    ours, theirs = public(AsyncRegionWal), public(RegionWal)

    assert set(ours) == set(theirs) - SYNC_ONLY
    for name, method in ours.items():
        assert list(inspect.signature(method).parameters) == list(inspect.signature(theirs[name]).parameters), name


def test_round_of_everything() -> None:
    async def run() -> None:
        wal, _ = wal_on(MemoryBroker())
        async with wal:
            assert await wal.write(7, 1, [b"a", b"b"]) == 2
            assert await wal.write_batch(7, {1: [b"c"], 2: [b"x"]}) == {1: 3, 2: 1}
            assert [entry.payload async for entry in wal.read(7, 1)] == [b"a", b"b", b"c"]
            assert [entry.payload async for entry in wal.scan(7)] == [b"a", b"b", b"c", b"x"]
            assert await wal.sequence_num(7, 1) == 3
            await wal.mark_delete(7, 1, 2)
            assert (await wal.clean_region(7)).deleted_records > 0
            result = await wal.replay(7, lambda _table: lambda _entries: None, parallel=2)
            assert result.entries == 2
            assert (await wal.statistics(7)).regions[0].region_id == 7
            assert await wal.regions() == [7]
            await wal.close_region(7)
            await wal.open_region(7)

    asyncio.run(run())


def test_waiting_writes_hold_no_threads() -> None:
    async def run() -> None:
        wal, log = wal_on(MemoryBroker())
        async with wal:
            await wal.open_region(7)
            log.hold = True
            writes = [asyncio.create_task(wal.write(7, table, [b"row"])) for table in range(10 * THREADS)]
            while log.waiting < len(writes):  # noqa: ASYNC110 - the log knows no loop
                await asyncio.sleep(0)

            assert await wal.sequence_num(7, 1) == 0  # there is a thread for it, while all those wait
            log.release()
            assert await asyncio.gather(*writes) == [1] * len(writes)

    asyncio.run(run())


def test_cancelled_write_harms_nobody() -> None:
    async def run() -> None:
        wal, log = wal_on(MemoryBroker())
        async with wal:
            await wal.open_region(7)
            log.hold = True
            write = asyncio.create_task(wal.write(7, 1, [b"row"]))
            while not log.waiting:  # noqa: ASYNC110 - the log knows no loop
                await asyncio.sleep(0)
            write.cancel()
            with pytest.raises(asyncio.CancelledError):
                await write
            log.release()

            assert await wal.write(7, 1, [b"row"]) == 2

    asyncio.run(run())


def test_reading_can_be_left_early() -> None:
    async def run() -> None:
        wal, _ = wal_on(MemoryBroker())
        async with wal:
            await wal.write(7, 1, [b"row"] * 20)
            async for entry in wal.scan(7):
                if entry.sequence == 5:
                    break
            assert len([entry async for entry in wal.scan(7)]) == 20

    asyncio.run(run())


def test_errors_are_the_same() -> None:
    async def run() -> None:
        broker = MemoryBroker()
        first, _ = wal_on(broker)
        second, _ = wal_on(broker)
        async with first, second:
            await first.write(7, 1, [b"row"])
            await second.open_region(7)
            with pytest.raises(Fenced):
                await first.write(7, 1, [b"row"])

    asyncio.run(run())
