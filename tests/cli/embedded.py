"""`tidelog up` as a user starts it, in a process of its own, its nodes in processes of theirs."""

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

START_S_MAX = 60
STOP_S_MAX = 60


class Up:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._log = folder / "up.log"
        folder.mkdir(exist_ok=True)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli", "up", "--dir", str(folder / "data"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # a Ctrl-C for the tests is not for the cluster
            )
        try:
            self.ready = self._first_line()
            found = re.fullmatch(r"ready nodes=(\d+) bootstrap=(\S+) dir=(\S+)\n", self.ready)
            assert found, f"{self.ready!r}\n{self.log()}"
            self.bootstrap = found[2]
        except BaseException:
            self.kill()
            raise

    def _first_line(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(START_S_MAX), f"not ready after {START_S_MAX} s\n{self.log()}"
        return self._process.stdout.readline()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def nodes(self) -> dict[int, int]:
        """Node -> process id, of those that run."""
        found: dict[int, int] = {}
        for pid in _children(self._process.pid):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                found |= {int(word[8:]): pid for word in command if word.startswith(b"node.id=")}
        return found

    def kill_node(self, number: int) -> None:
        os.kill(self.nodes()[number], signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Every node that runs stands still. One that is started meanwhile does not, and is alone."""
        nodes = self.nodes().values()
        for pid in nodes:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in nodes:
                os.kill(pid, signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit status; no node may be left."""
        nodes = self.nodes()
        self._process.send_signal(number)
        try:
            status = self._process.wait(STOP_S_MAX)
        finally:
            self.kill()
        assert not [pid for pid in nodes.values() if os.path.exists(f"/proc/{pid}")]
        return status

    def kill(self) -> None:
        """As `kill -9` does; its nodes end by themselves. May be called again."""
        assert self._process.stdout is not None
        nodes = self.nodes()
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        give_up = time.monotonic() + STOP_S_MAX
        while any(_runs(pid) for pid in nodes.values()):
            assert time.monotonic() < give_up, "nodes outlive their parent"
            time.sleep(0.02)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
