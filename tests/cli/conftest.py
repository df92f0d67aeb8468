"""A server of our own for the commands: one a test process."""

from collections.abc import Iterator

import pytest

from tidelog.cli import main

from .command import Tidelog
from .server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.stop()


@pytest.fixture
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One that the test may kill."""
    server = Server(tmp_path_factory.mktemp("mortal"))
    yield server
    server.kill()


@pytest.fixture
def tidelog(server: Server) -> Tidelog:
    return Tidelog(server.bootstrap)


@pytest.fixture
def stream(server: Server, request: pytest.FixtureRequest) -> str:
    """An empty stream of one partition, named after the test."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    assert main(["stream", "create", name, "--partitions", "1", "--bootstrap", server.bootstrap]) == 0
    return name
