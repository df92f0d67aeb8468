"""Processes of the demo's second half: anything that writes to a log file, and the master, which takes orders."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from tidelog.cli import CommandError
from tidelog.cli.children import end_with_parent

ROOT = Path(__file__).parents[2]
MASTER = "tests.pikiwi.live_master"
STOP_S_MAX = 60.0
LINES_SHOWN = 20


class Child:
    """A process whose output goes to a file, `<name>.log`."""

    def __init__(self, name: str, folder: Path, command: list[str], *, orders: bool = False) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE if orders else subprocess.DEVNULL,
                stdout=subprocess.PIPE if orders else log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
                },
                start_new_session=True,  # Ctrl-C is for us; we tell our children
                preexec_fn=end_with_parent,  # noqa: PLW1509 - a system call, whatever other threads hold
                text=True,
            )

    @property
    def ended(self) -> bool:
        """In order; any other end is an error."""
        status = self.process.poll()
        if status:
            raise CommandError(f"{self._log.stem} ended with status {status}:\n{self.last_words()}")
        return status is not None

    def last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LINES_SHOWN:])

    def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


class SampleMaster:
    """The sample master; ends with us, since its input does."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", MASTER, "--folder", str(folder / "master"), *arguments]
        self._child = Child("master", folder, command, orders=True)
        ready = self._line().split()
        if ready[:1] != ["ready"]:
            self.stop()
            raise CommandError(f"the sample master did not start:\n{self._child.last_words()}")
        self.port = int(ready[1])

    def obey(self, order: str) -> str:
        """Its answer."""
        pipe = _there(self._child.process.stdin)
        pipe.write(f"{order}\n")
        pipe.flush()
        verdict, _, answer = self._line().partition(" ")
        if verdict != "ok":
            raise CommandError(f"the sample master, told to {order}: {verdict} {answer}\n{self._child.last_words()}")
        return answer

    def stop(self) -> int:
        """Its exit status."""
        _there(self._child.process.stdin).close()
        status = self._child.process.wait(STOP_S_MAX)
        _there(self._child.process.stdout).close()
        return status

    def _line(self) -> str:
        return _there(self._child.process.stdout).readline().strip()


def _there(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
