"""The broker that the end-to-end tests run against: one a test process, ours unless the environment names another."""

import os
import socket
from collections.abc import Iterator

import pytest

from .broker import Broker

CONNECT_TIMEOUT_S = 10
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "100",
    "retention.check.ms": "100",
}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | None]:
    """Our server; None when `TIDELOG_E2E_BOOTSTRAP` names a broker that runs already."""
    if "TIDELOG_E2E_BOOTSTRAP" in os.environ:
        yield None
        return
    store = {"remote.log.store.url": f"file://{tmp_path_factory.mktemp('store')}"}
    broker = Broker(tmp_path_factory.mktemp("broker"), settings=SETTINGS | store)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def bootstrap(broker: Broker | None) -> str:
    if broker is not None:
        return broker.bootstrap
    address = os.environ["TIDELOG_E2E_BOOTSTRAP"]
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()  # else every test would find out by itself
    return address


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show with a test that failed what the server logged last."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, Broker):
        report.sections.append(("server's log", broker.log_tail()))
    return report
