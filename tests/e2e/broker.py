"""Our server as a user starts it: `tidelog up` in a process of its own, stopped with Ctrl-C.

The contract: with `--port 0` it takes a free port, and prints one line to stdout, when it serves, that begins with
`ready` and contains `bootstrap=HOST:PORT`. After SIGINT it ends with status 0.
"""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path

TIDELOG = (sys.executable, "-m", "tidelog.cli")
START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30
LOG_TAIL_BYTES = 8000


class BrokerFailed(Exception):
    """The server did not start, or did not stop, as it promises."""


class Broker:
    def __init__(self, folder: Path, nodes: int = 1, settings: dict[str, str] | None = None) -> None:
        command = [*TIDELOG, "up", "--nodes", str(nodes), "--dir", str(folder / "data")]
        command += ["--port", "0", "--console-port", "0"]
        for name, value in (settings or {}).items():
            command += ["--set", f"{name}={value}"]
        self._log = folder / "server.log"
        with open(self._log, "wb") as log:
            # In a session of its own: a Ctrl-C for the tests must not stop the server under the test that runs.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
            )
        try:
            self.bootstrap = self._bootstrap_when_ready()
        except BaseException:
            self._kill()
            raise

    def _bootstrap_when_ready(self) -> str:
        assert self._process.stdout is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        output = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                ready = re.search(rb"^ready\b.*\bbootstrap=(\S+).*\n", output, re.MULTILINE)
                if ready:
                    return ready.group(1).decode()
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrokerFailed(f"not ready after {START_TIMEOUT_S} s\n{self.log_tail()}")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise BrokerFailed(f"ended before it was ready\n{self.log_tail()}")
                output += data

    def log_tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def check(self) -> None:
        """Fails when it has ended by itself."""
        if self._process.poll() is not None:
            raise BrokerFailed(f"ended with status {self._process.returncode} in the midst\n{self.log_tail()}")

    def stop(self) -> None:
        self.check()
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)  # reads on, so that a full pipe cannot hold it up
        except subprocess.TimeoutExpired:
            self._kill()
            raise BrokerFailed(f"still there {STOP_TIMEOUT_S} s after SIGINT\n{self.log_tail()}") from None
        if self._process.returncode != 0:
            raise BrokerFailed(f"ended with status {self._process.returncode} after SIGINT\n{self.log_tail()}")

    def _kill(self) -> None:
        """The whole session: `up` has the nodes as processes of their own."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
