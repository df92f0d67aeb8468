"""Tests that are coroutines run in a loop of their own, uvloop as in production; their servers stop with them."""

import asyncio
import inspect
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.server.many import ClusterWorld
from tests.server.world import World

TEST_S_MAX = 120.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path) -> ClusterWorld:
    return ClusterWorld(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def run() -> None:
        try:
            async with asyncio.timeout(TEST_S_MAX):
                await function(**arguments)
        finally:
            for name in ("world", "cluster"):
                if name in arguments:
                    await arguments[name].stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return True
