"""From the sample master through receiver, dump and WAL into a state table: it holds what the master holds.

Checked key by key, as any reader of Delta tables sees it: after a full sync with binlog behind it, restarts, a binlog
that was purged, another lineage, and however the work is cut into batches.
"""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.pipeline.check import table_state
from tests.pikiwi.live_commands import Version
from tests.pikiwi.live_state import differences
from tests.pikiwi.live_world import SETTLE_MS, LiveWorld
from tests.pikiwi.workload import BIG_BYTES
from tidelog.spark.tables.build import Limits, build, open_state

TWO = ("db0", "db1")


def build_table(world: LiveWorld, records_max: int = 1_000_000) -> list[str]:
    """Up to what the receiver has; the kinds of steps that were taken."""
    config = world.world.config
    if world.version == "3.5":
        config = replace(config, zero_expiry="keep")
    table = open_state(world.world.folder / "table", config)
    return [step.kind for step in build(table, config, limits=Limits(records_max=records_max))]


def table_differences(world: LiveWorld) -> list[str]:
    later = world.clock.now_ms + SETTLE_MS
    held = table_state(world.world.folder / "table", later)
    return [
        f"{db}: {each}"
        for db in world.live.dbs
        for each in differences(world.seen(world.live.state(db, later)), world.seen(held.get(db, {})))
    ]


@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_a_table_of_dump_and_binlog_equals_the_master(version: Version, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path, version=version, dbs=TWO) as world:
            await world.work(1_000)
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(1_000)
            await world.catch_up()
            assert build_table(world, records_max=400).count("snapshot") == len(TWO)
            assert table_differences(world) == []
            await world.work(1_000)
            await world.catch_up()
            await world.world.stop()
            assert set(build_table(world)) == {"binlog"}
            assert table_differences(world) == []
            assert build_table(world) == []

    asyncio.run(scenario())


def test_a_table_follows_its_source_through_restarts_a_purge_and_another_lineage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with LiveWorld(tmp_path, binlog_file_bytes=16 << 10, expire_logs_nums=2) as world:
            await world.work(800)
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(300)
            await world.catch_up()
            await world.world.stop()
            assert build_table(world) == ["snapshot", "binlog"]
            assert table_differences(world) == []

            await world.live.restart()
            await world.work(2_000)
            world.live.purge()
            await world.world.begin()  # what it has is gone on the master: a full sync
            await world.dumps_are_ready()
            await world.work(300)
            await world.catch_up()
            await world.world.stop()
            assert build_table(world) == ["snapshot", "binlog"]
            assert table_differences(world) == []

            await world.work(300)
            await world.live.restart("another-lineage")
            await world.world.begin()
            await world.dumps_are_ready()
            await world.work(300)
            await world.catch_up()
            await world.world.stop()
            assert build_table(world) == ["snapshot", "binlog"]
            assert table_differences(world) == []

    asyncio.run(scenario())


@pytest.mark.long
@pytest.mark.parametrize("version", ["3.5", "4.0"])
def test_a_hundred_thousand_commands(version: Version, tmp_path: Path) -> None:
    async def scenario() -> None:
        options = {"version": version, "dbs": TWO, "binlog_file_bytes": 4 << 20}
        async with LiveWorld(tmp_path, seed=2026, big_bytes=BIG_BYTES, **options) as world:
            await world.work(30_000)
            await world.world.begin()
            await world.dumps_are_ready()
            for number in range(7):
                await world.work(10_000)
                if number == 2:
                    await world.live.restart()
                await world.catch_up()
                if number % 3 == 1:
                    await world.world.stop()
                    build_table(world, records_max=5_000)
                    await world.world.begin()
            await world.world.stop()
            build_table(world)
            assert table_differences(world) == []

    asyncio.run(scenario())
