"""The test bed's own promise: a server that breaks the contract of `tidelog up` fails the tests, and says why."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from . import broker
from .broker import Broker, BrokerFailed

READY = "print('ready nodes=1 bootstrap=127.0.0.1:1234 dir=x', flush=True)"
WAIT = "import signal; signal.sigwait([signal.SIGINT])"
BLOCK = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Broker]:
    """Starts a program in the server's place."""

    def start(*lines: str) -> Broker:
        monkeypatch.setattr(broker, "TIDELOG", (sys.executable, "-c", "\n".join(lines)))
        return Broker(tmp_path)

    return start


def test_bootstrap_is_taken_from_the_ready_line(server: Callable[..., Broker]) -> None:
    started = server(BLOCK, "print('starting')", READY, WAIT)

    assert started.bootstrap == "127.0.0.1:1234"
    started.stop()


def test_server_that_ends_before_it_is_ready_fails(server: Callable[..., Broker]) -> None:
    with pytest.raises(BrokerFailed, match=r"(?s)ended before it was ready.*no disk"):
        server("import sys; sys.exit('no disk')")


def test_server_that_is_never_ready_fails(server: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "START_TIMEOUT_S", 1)

    with pytest.raises(BrokerFailed, match="not ready after 1 s"):
        server(BLOCK, WAIT)


def test_server_that_ends_with_another_status_fails(server: Callable[..., Broker]) -> None:
    started = server(BLOCK, READY, WAIT, "import sys; sys.exit('lost a batch')")

    with pytest.raises(BrokerFailed, match=r"(?s)ended with status 1 after SIGINT.*lost a batch"):
        started.stop()


def test_server_that_does_not_end_fails(server: Callable[..., Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "STOP_TIMEOUT_S", 1)
    started = server(BLOCK, READY, WAIT, WAIT)

    with pytest.raises(BrokerFailed, match="still there 1 s after SIGINT"):
        started.stop()
