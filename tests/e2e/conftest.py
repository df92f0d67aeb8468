"""The broker that the end-to-end tests run against: one a test process, ours unless the environment names another."""

import os
from collections.abc import Iterator

import pytest

from .broker import Broker

SETTINGS = {"group.initial.rebalance.delay.ms": "0"}


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | None]:
    """Our server; None when `TIDELOG_E2E_BOOTSTRAP` names a broker that runs already."""
    if "TIDELOG_E2E_BOOTSTRAP" in os.environ:
        yield None
        return
    broker = Broker(tmp_path_factory.mktemp("broker"), settings=SETTINGS)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def bootstrap(broker: Broker | None) -> str:
    return os.environ["TIDELOG_E2E_BOOTSTRAP"] if broker is None else broker.bootstrap


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show with a test that failed what the server logged last."""
    report = yield
    broker = getattr(item, "funcargs", {}).get("broker")
    if report.failed and isinstance(broker, Broker):
        report.sections.append(("server's log", broker.log_tail()))
    return report
