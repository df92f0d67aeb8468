"""One node in a process of its own, which a test may kill.

`tidelog up` would not do: its node is a process in a session of its own, and outlives an `up` that is killed.
"""

import selectors
import subprocess
import sys
from pathlib import Path

START_S_MAX = 60
STOP_S_MAX = 30


class Server:
    def __init__(self, folder: Path, where: str = "", config: Path | None = None) -> None:
        """`where` is another setting for where the data lies; `config` is a file that has all settings."""
        where = where or f"data.dir={folder / 'data'}"
        settings = (where, "port=0", "node.id=1", "group.initial.rebalance.delay.ms=0")
        arguments = [f"--set={setting}" for setting in settings] if config is None else ["--config", str(config)]
        self._log = folder / "server.log"
        with open(self._log, "wb") as log:
            # In a session of its own: a Ctrl-C for the tests must not stop the server under the test that runs.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidelog.cli", "server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            self.bootstrap = self._ready().split("bootstrap=")[1].strip()
        except BaseException:
            self.kill()
            raise

    def _ready(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(START_S_MAX), f"not ready after {START_S_MAX} s\n{self.log()}"
        line = self._process.stdout.readline()
        assert line.startswith("ready "), f"{line!r}\n{self.log()}"
        return line

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def stop(self) -> None:
        self._process.terminate()
        try:
            status = self._process.wait(STOP_S_MAX)
        finally:
            self.kill()
        assert status == 0, self.log()

    def kill(self) -> None:
        """End without a word, as `kill -9` does. May be called again."""
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
