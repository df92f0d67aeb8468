"""One driver process a client and test process, shared by all scenarios; topics and groups of each test's own."""

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.e2e.broker import Broker

from .client import Client, eventually
from .driver import Driver, DriverFailed
from .environments import CLIENTS, Unavailable

PREPARE_TIMEOUT_S = 30


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client_name" in metafunc.fixturenames:
        names = [pytest.param(name, marks=() if kind.quick else pytest.mark.slow) for name, kind in CLIENTS.items()]
        metafunc.parametrize("client_name", names, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show with a test that failed what its client logged last."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    if report.failed and "client" in arguments:
        report.sections.append(("client's log", arguments["drivers"].stderr_tail(arguments["client_name"])))
    return report


class Drivers:
    """The drivers that run, by client."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._running: dict[str, tuple[Driver, Client]] = {}

    def client(self, name: str) -> Client:
        if name not in self._running:
            driver = Driver(name, CLIENTS[name].command(self._bootstrap))
            try:
                self._running[name] = driver, Client(driver)
            except BaseException:
                driver.close()
                raise
        return self._running[name][1]

    def tidy(self, name: str) -> None:
        """Close the test's consumers. A driver that was killed, or cannot do it, is started anew by the next test."""
        driver, client = self._running[name]
        try:
            if driver.alive:
                client.reset()
        except DriverFailed:
            pass
        finally:
            if not driver.alive:
                del self._running[name]
                driver.close()

    def stderr_tail(self, name: str) -> str:
        return self._running[name][0].stderr_tail() if name in self._running else ""

    def close(self) -> None:
        for driver, _ in self._running.values():
            driver.close()


@pytest.fixture(scope="session")
def drivers(bootstrap: str) -> Iterator[Drivers]:
    drivers = Drivers(bootstrap)
    yield drivers
    drivers.close()


@pytest.fixture
def client(client_name: str, drivers: Drivers, broker: Broker | None) -> Iterator[Client]:
    if broker is not None:
        broker.check()  # else every test would wait for a dead server
    try:
        client = drivers.client(client_name)
    except Unavailable as unavailable:
        pytest.skip(f"{client_name}: {unavailable}")
    yield client
    drivers.tidy(client_name)


@pytest.fixture
def reference(client_name: str, drivers: Drivers) -> Iterator[Client]:
    """Another client, to check the one under test with."""
    name = "aiokafka" if client_name == "confluent-kafka" else "confluent-kafka"
    yield drivers.client(name)
    drivers.tidy(name)


@pytest.fixture(scope="session")
def preparing(bootstrap: str) -> AdminClient:
    """Makes what a scenario starts from; what a scenario is about, it does with the client it is about."""
    return AdminClient({"bootstrap.servers": bootstrap})


def leaders_known(admin: AdminClient, topic: str) -> int:
    """Of how many partitions the broker knows the leader."""
    found = admin.list_topics(topic, PREPARE_TIMEOUT_S).topics[topic]
    return sum(partition.leader >= 0 for partition in found.partitions.values())


@pytest.fixture
def new_topic(preparing: AdminClient) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        topic = f"t-{uuid4().hex[:12]}"
        configs = {"retention_ms": "-1"} | configs  # scenarios write records of long ago
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        wanted = NewTopic(topic, partitions, 1, config=settings)
        preparing.create_topics([wanted], request_timeout=PREPARE_TIMEOUT_S)[topic].result()
        eventually(lambda: leaders_known(preparing, topic), partitions)
        return topic

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """An empty topic with one partition."""
    return new_topic()


@pytest.fixture
def group() -> str:
    return f"g-{uuid4().hex[:12]}"
