"""Receiver and sample master, end to end: dump and WAL together hold, key by key, what the master holds.

Whatever happens on the way: binlog that arrives during the full sync, restarts of either side, a binlog that was purged
while the receiver was away, another lineage.
"""

import asyncio
from pathlib import Path

import pytest

from tests.pikiwi.live_commands import Version
from tests.pikiwi.live_world import LiveWorld
from tidelog.pikiwi.position import Position

TWO = ("db0", "db1")


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_full_sync_while_binlog_arrives_then_incremental(version: Version, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path, version=version, dbs=TWO) as world:
            await world.work(1_500)
            world.live.master.rsync.faults.files_hold = asyncio.Event()  # all but info waits
            await world.world.begin()
            for db in TWO:
                await world.world.until(lambda db=db: world.world.progress(db).state == "streaming")
            await world.work(1_500)
            await world.catch_up()
            assert world.world.progress().snapshot.state == "fetching"
            world.live.master.rsync.faults.files_hold.set()
            await world.dumps_are_ready()
            await world.work(1_000)
            await world.catch_up()
            await world.world.stop()
            assert world.world.records("db1")
            assert world.differences() == []

    asyncio.run(scenario())


def test_from_the_first_item_on_without_a_dump(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path) as world:
            await world.work(2_000)
            await world.world.begin(initial_full_sync=False)
            await world.work(1_000)
            await world.catch_up()
            await world.world.stop()
            assert world.world.checkpoint().database("db0").snapshot.position is None
            assert world.differences() == []

    asyncio.run(scenario())


def test_restarts_of_receiver_and_master(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path, binlog_file_bytes=64 << 10) as world:
            await world.work(800)
            await world.world.begin()
            await world.dumps_are_ready()
            for round_number in range(3):
                await world.work(300)
                if round_number % 2:
                    await world.live.restart()
                    await world.work(300)
                    await world.catch_up()
                await world.world.stop()
                await world.work(300)
                await world.world.begin()
                await world.work(300)
                await world.catch_up()
            await world.world.stop()
            assert world.world.progress().full_syncs == 0  # of the last process: it went on from its WAL
            assert world.differences() == []

    asyncio.run(scenario())


def test_a_binlog_that_was_purged_meanwhile_forces_a_full_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path, binlog_file_bytes=16 << 10, expire_logs_nums=2) as world:
            await world.work(500)
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(200)
            await world.catch_up()
            await world.world.stop()
            reached = world.live.end()
            await world.work(2_000)
            world.live.purge()
            assert min(world.live.master.replication.binlogs["db0"].files) > reached.filenum
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(500)
            await world.catch_up()
            await world.world.stop()
            snapshot = world.world.checkpoint().database("db0").snapshot
            assert snapshot.position is not None
            assert snapshot.position > reached
            assert world.differences() == []

    asyncio.run(scenario())


def test_another_lineage_forces_a_full_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path) as world:
            await world.work(500)
            await world.world.begin()
            await world.dumps_are_ready()
            await world.world.stop()
            before = world.world.checkpoint()
            await world.work(500)
            await world.live.restart("lineage-2")
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(500)
            await world.catch_up()
            await world.world.stop()
            after = world.world.checkpoint()
            assert after.replication_id != before.replication_id
            position = after.database("db0").snapshot.position
            assert position is not None
            assert position > (before.database("db0").snapshot.position or Position(0, 0))
            assert world.differences() == []

    asyncio.run(scenario())
