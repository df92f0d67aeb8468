"""The receiver's process ends at each of its steps, as by kill -9, and is started again: before the WAL nothing is lost
and nothing is there twice.

Each test is one history: a run for each crash, one after the other, and a last one that is left alone.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import pytest

from tests.pikiwi.master import TICK_S
from tests.pikiwi.master_world import WAIT_S_MAX, World, in_world
from tidelog import faults

WRITES_MAX = 100_000
STREAMING_POINTS = ("received", "before-append", "before-sync", "after-sync", "before-acknowledge")


class Process:
    """`tidelog pikiwi receive`."""

    def __init__(self, world: World, fault: str = "") -> None:
        config = world.config
        settings = {
            "master_port": config.master_port,
            "db_name": config.db_name,
            "wal_dir": config.wal_dir,
            "dump_path": config.dump_path,
            "checkpoint_path": config.checkpoint_path,
            "checkpoint_interval_ms": 20,
            "initial_full_sync": str(config.initial_full_sync).lower(),
            "binlog_progress_interval": 0,
        }
        self._file = world.folder / "receiver.conf"
        self._file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self._log = (world.folder / "receiver.log").open("ab")
        self._environment = {**os.environ, faults.ENVIRONMENT: f"pikiwi.{fault}" if fault else ""}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        arguments = ("-m", "tidelog.cli", "pikiwi", "receive", "--config", str(self._file))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=self._log, stderr=self._log, env=self._environment
        )

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def wait(self) -> int:
        assert self._process is not None
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                return await self._process.wait()
        finally:
            self._log.close()
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return await self.wait()


async def crash(world: World, fault: str, writes: int, passed: Callable[[], bool] = lambda: False) -> None:
    """One run that ends at the point, while the master goes on writing: so many commands with each of its ticks.

    Or, where an earlier run may have come further than the point, when that is `passed`.
    """
    process = Process(world, fault)
    await process.start()
    for _ in range(WRITES_MAX // writes):
        if process.ended or passed():
            break
        world.write(writes)
        await asyncio.sleep(TICK_S)
    if not process.ended and passed():
        assert await process.stop() == 0
        return
    assert await process.wait() == faults.CRASH_STATUS, (world.folder / "receiver.log").read_text()


async def run_until(world: World, condition: Callable[[], bool]) -> None:
    """A run without a fault, until the condition holds."""
    process = Process(world)
    await process.start()
    async with asyncio.timeout(WAIT_S_MAX):
        while not condition():
            assert not process.ended, (world.folder / "receiver.log").read_text()
            await asyncio.sleep(0.01)
    assert await process.stop() == 0


def has_dump(world: World) -> bool:
    return world.checkpoint().database("db0").snapshot.state == "ready"


def caught_up(world: World) -> bool:
    durable = world.checkpoint().database("db0").durable_cp
    return durable is not None and durable.position == world.end()


@pytest.mark.slow
@in_world()
async def test_a_crash_at_any_step_of_the_stream_loses_and_repeats_nothing(world: World) -> None:
    world.start_settings(initial_full_sync=False)
    for point in STREAMING_POINTS:
        await crash(world, f"{point}=crash,skip:1", writes=120)
    await run_until(world, lambda: caught_up(world))
    assert world.received() == world.sent()
    assert [record.seq for record in world.records()] == list(range(1, len(world.sent()) + 1))


@pytest.mark.slow
@in_world()
async def test_a_crash_at_any_step_of_a_full_sync_leaves_a_dump_and_a_binlog_that_are_everything(world: World) -> None:
    world.write(200)
    for change in range(5):  # of the checkpoint: a lineage, a dump that is wanted, its position, and so on
        await crash(world, f"before-checkpoint=crash,skip:{change}", writes=20)
    await crash(world, "after-reset=crash", writes=20, passed=lambda: has_dump(world))
    for point in ("received=crash", "after-sync=crash"):
        await crash(world, point, writes=20)
    await run_until(world, lambda: caught_up(world) and has_dump(world))
    assert world.dumped_commands() + world.received_commands() == world.commands.commands["db0"]


@pytest.mark.slow
@in_world()
async def test_a_crash_when_the_dump_is_complete_keeps_what_came_meanwhile(world: World) -> None:
    world.write(200)
    await crash(world, "dump-complete=crash", writes=20)
    world.write(50)
    await run_until(world, lambda: caught_up(world) and world.checkpoint().database("db0").snapshot.state == "ready")
    assert world.dumped_commands() + world.received_commands() == world.commands.commands["db0"]
    assert world.master.dumps.saves == 1


@pytest.mark.slow
@in_world()
async def test_the_exit_status_tells_what_is_wrong(world: World) -> None:
    world.start_settings(db_name="db5")
    process = Process(world)
    await process.start()
    assert await process.wait() == 3
    assert "has no db5" in (world.folder / "receiver.log").read_text()
