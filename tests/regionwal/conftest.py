"""The logs that the region WAL is proven on, each started once a test process, and the WALs that tests open there."""

import itertools
from collections.abc import Iterator

import pytest

from tests.e2e.clients.environments import Unavailable
from tidelog import faults
from tidelog.regionwal import RegionWal

from .unreliable import UnreliableLog
from .world import Log, World

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def tidelog_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnreliableLog]:
    log = UnreliableLog("tidelog", tmp_path_factory.mktemp("tidelog"))
    yield log
    log.close()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnreliableLog]:
    try:
        log = UnreliableLog("kafka", tmp_path_factory.mktemp("kafka"))
    except Unavailable as unavailable:
        pytest.skip(f"no Apache Kafka here: {unavailable}")
    yield log
    log.close()


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=pytest.mark.slow)])
def broker(request: pytest.FixtureRequest) -> UnreliableLog:
    """Each in turn: what is asked for runs unchanged on both. Whoever does something to it must `heal` it."""
    return request.getfixturevalue(f"{request.param}_broker")


@pytest.fixture
def log(broker: UnreliableLog) -> Log:
    return broker.log


@pytest.fixture
def world(log: Log) -> Iterator[World]:
    """A namespace of the test's own on that log."""
    world = World(log, f"ns{next(_numbers)}")
    yield world
    world.close()


@pytest.fixture
def tidelog_world(tidelog_broker: UnreliableLog) -> Iterator[World]:
    """As `world`, on our own server only: for what does not depend on whose log it is."""
    world = World(tidelog_broker.log, f"ns{next(_numbers)}")
    yield world
    world.close()


@pytest.fixture
def wal(world: World) -> RegionWal:
    return world.node()


@pytest.fixture(autouse=True)
def _no_fault_outlives_its_test() -> Iterator[None]:
    yield
    faults.clear()
