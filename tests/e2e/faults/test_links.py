"""The links between nodes do what they are told: else no scenario shows anything."""

import socket
import threading
from collections.abc import Iterator

import pytest

from .links import Network

WAIT_S = 10.0
SILENCE_S = 0.3


class Echo:
    """Answers every line with itself in capitals; two nodes in one: it is what node 2 serves to node 1."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    self.heard.append(data)
                    connection.sendall(data.upper())
            except OSError:
                pass

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@pytest.fixture
def client(network: Network, echo: Echo) -> Iterator[socket.socket]:
    """Node 1's end of its connection to node 2."""
    with socket.create_connection(("127.0.0.1", network.add(1, 2, echo.port)), WAIT_S) as client:
        client.sendall(b"a")
        assert client.recv(100) == b"A"
        yield client


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_S)
    try:
        client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WAIT_S)
    return False


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(100) == b""
    except ConnectionResetError:
        return True


def test_cut_holds_back_both_ways_and_healing_delivers(network: Network, echo: Echo, client: socket.socket) -> None:
    network.cut(1, 2)
    client.sendall(b"b")
    assert is_silent(client)
    assert echo.heard == [b"a"]

    network.heal()

    assert client.recv(100) == b"B"


def test_cut_one_way_lets_the_other_way_through(network: Network, echo: Echo, client: socket.socket) -> None:
    network.cut_one_way(2, 1)
    client.sendall(b"b")

    assert is_silent(client)
    assert echo.heard == [b"a", b"b"]


def test_healing_with_reset_ends_what_was_cut(network: Network, echo: Echo, client: socket.socket) -> None:
    network.cut(1, 2)
    client.sendall(b"b")
    network.heal(reset=True)

    assert has_ended(client)
    assert echo.heard == [b"a"]


def test_connection_made_while_cut_hears_nothing_until_healed(network: Network, echo: Echo) -> None:
    port = network.add(1, 2, echo.port)
    network.cut(1, 2)
    with socket.create_connection(("127.0.0.1", port), WAIT_S) as client:
        client.sendall(b"b")
        assert is_silent(client)
        network.heal()
        assert client.recv(100) == b"B"


def test_slow_link_delays(network: Network, client: socket.socket) -> None:
    network.slow(1, 2, delay_ms=400)
    client.sendall(b"b")

    assert is_silent(client)
    assert client.recv(100) == b"B"


def test_nobody_at_the_other_end_ends_the_connection(network: Network, echo: Echo) -> None:
    echo.close()
    with socket.create_connection(("127.0.0.1", network.add(1, 2, 9)), WAIT_S) as client:
        assert has_ended(client)
