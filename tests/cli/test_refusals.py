"""What every command says when it cannot do what it is asked: one line, a status that is not 0, in bounded time.

They are many and quickly over, so they run in this process.
"""

import socket
from collections.abc import Iterator

import pytest

from tidelog.cli import main

from .command import Tidelog, one_line
from .server import Server

ON_A_STREAM = (
    ("stream", "describe", "missing"),
    ("stream", "alter", "missing", "--partitions", "9"),
    ("stream", "alter", "missing", "--config", "retention.ms=1"),
    ("stream", "delete", "missing"),
    ("stream", "trim", "missing", "--before", "latest"),
    ("produce", "missing"),
    ("consume", "missing", "--exit"),
    ("consume", "missing", "--group", "g", "--exit"),
)
EVERY_COMMAND = (
    ("stream", "create", "missing"),
    ("stream", "list"),
    ("cluster", "status"),
    ("cluster", "nodes"),
    ("cluster", "transfer-leader", "missing", "--to", "1"),
    ("cluster", "add-node", "1"),
    ("cluster", "remove-node", "1"),
    ("cluster", "balance"),
    ("backup", "--to", "/nowhere/at/all"),
    ("verify",),
    *ON_A_STREAM,
)

WRONG_ARGUMENTS = (
    ("stream",),
    ("stream", "create"),
    ("stream", "create", ""),
    ("stream", "create", "größe"),
    ("stream", "create", "name", "--partitions", "0"),
    ("stream", "create", "name", "--config", "retention.ms"),
    ("stream", "delete"),
    ("stream", "trim", "name"),
    ("stream", "trim", "name", "--before", "-3"),
    ("produce",),
    ("produce", "name", "--codec", "rar"),
    ("produce", "name", "--header", "=value"),
    ("produce", "name", "--header", "not=utf-8:\udcff"),
    ("consume", "name", "--from", "yesterday"),
    ("consume", "name", "--from", "time:yesterday"),
    ("consume", "name", "--max", "0"),
    ("consume", "name", "--timeout", "never"),
    ("consume", "name", "--keys", "--json"),
    ("consume", "name", "--bootstrap", "localhost"),
    ("stream", "alter", "name", "--nodes", "1,1"),
    ("up", "--nodes", "0"),
    ("up", "--port", "http"),
    ("cluster",),
    ("cluster", "transfer-leader", "name"),
    ("cluster", "transfer-leader", "name:x", "--to", "1"),
    ("cluster", "remove-node", "first"),
    ("backup",),
    ("backup", "--to", "there", "--rate", "fast"),
    ("restore",),
    ("restore", "--from", "there", "=name"),
    ("verify", "--dir", "here", "--backup", "there"),
    ("no-such-command",),
)


def sentence(arguments: tuple[str, ...]) -> str:
    return " ".join(arguments)


@pytest.fixture(scope="module")
def closed_port() -> Iterator[str]:
    """An address at which nobody can listen while the tests run: it is taken, and not listened at."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize("arguments", EVERY_COMMAND, ids=sentence)
def test_no_cluster_there(arguments: tuple[str, ...], closed_port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--bootstrap", closed_port]) == 1
    line = one_line(capsys.readouterr().err)
    assert line.startswith(f"no cluster at {closed_port} (Connection refused): start one with `tidelog up`")


@pytest.mark.parametrize("arguments", ON_A_STREAM, ids=sentence)
def test_unknown_stream(arguments: tuple[str, ...], server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--bootstrap", server.bootstrap]) == 1
    line = one_line(capsys.readouterr().err)
    assert line.startswith("there is no stream missing: ")
    assert "`tidelog stream create`" in line


def test_asking_for_an_unknown_stream_does_not_create_it(tidelog: Tidelog) -> None:
    tidelog.fail("produce", "missing", stdin=b"a line\n")
    tidelog.fail("consume", "missing", "--exit")
    assert "missing" not in {row["stream"] for row in tidelog.succeed("stream", "list", "--json").parsed}


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS, ids=sentence)
def test_wrong_arguments(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


def test_bootstrap_flag_wins_over_the_environment(tidelog: Tidelog, closed_port: str) -> None:
    assert f"no cluster at {closed_port}" in tidelog.fail("stream", "list", "--bootstrap", closed_port)


@pytest.mark.slow
def test_a_listener_that_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        line = Tidelog(address).fail("stream", "list")
    assert line.startswith(f"no answer from {address} in 10 s")
