"""Programs that are measured from outside: started, waited for, asked what they use, and ended by their pid."""

import ctypes
import os
import re
import selectors
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

START_S_MAX = 170.0  # Kafka takes its time with the first records of a thousand topics
STOP_S_MAX = 20.0
RUN_S_MAX = 240.0
SETTLE_S_MAX = 2.0
SETTLED_S = 0.02  # a program that uses next to nothing for so long has nothing left to do
SETTLED_SHARE = 0.1  # of a core
LOG_BYTES_SHOWN = 4_000

_PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the program's process: should the benchmark be killed, the kernel kills it too."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class ProgramFailed(Exception):
    """A program did not start, or not stop."""


class Program:
    def __init__(self, arguments: Sequence[str], log_path: str) -> None:
        self._log_path = log_path
        with open(log_path, "wb") as log:
            # In a session of its own: Ctrl-C is for the benchmark, which ends what it has started.
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock that a thread could hold
            )
        self.pid = self._process.pid
        # clock_getcpuclockid(3): the CPU clock of another process, all its threads, in nanoseconds.
        self._cpu_clock = (~self._process.pid << 3) | 2

    def await_ready(self, pattern: bytes) -> "re.Match[bytes]":
        """Wait for a line on stdout that begins like that."""
        assert self._process.stdout is not None
        output, deadline = b"", time.monotonic() + START_S_MAX
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not (ready := re.search(b"^" + pattern + b".*\n", output, re.MULTILINE)):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise ProgramFailed(f"not ready after {START_S_MAX:.0f} s\n{self._log_tail()}")
                data = os.read(self._process.stdout.fileno(), 65536)
                if not data:
                    raise ProgramFailed(f"ended before it was ready\n{self._log_tail()}")
                output += data
        return ready

    def last_words(self) -> str:
        """Wait for its end; gives what it has printed since it was ready."""
        try:
            output, _ = self._process.communicate(timeout=RUN_S_MAX)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"still there after {RUN_S_MAX:.0f} s\n{self._log_tail()}") from None
        if self._process.returncode:
            raise ProgramFailed(f"ended with status {self._process.returncode}\n{self._log_tail()}")
        return output.decode()

    def cpu_s(self) -> float:
        """Since it was started, user and system."""
        return time.clock_gettime(self._cpu_clock)

    def memory_mb(self, key: str = "VmRSS") -> float:
        """`key` as in /proc/PID/status: VmRSS now, VmHWM the most it ever was."""
        with open(f"/proc/{self._process.pid}/status") as status:
            kib = next(int(line.split()[1]) for line in status if line.startswith(f"{key}:"))
        return kib * 1024 / 1e6

    def settle(self) -> None:
        """Wait until it has nothing to do any more: that would be done at somebody else's expense."""
        deadline = time.monotonic() + SETTLE_S_MAX
        while time.monotonic() < deadline:
            before = self.cpu_s()
            time.sleep(SETTLED_S)
            if self.cpu_s() - before < SETTLED_S * SETTLED_SHARE:
                return

    def terminate(self) -> None:
        """Ask it to end; `stop` waits for that."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        self.terminate()
        try:
            self._process.communicate(timeout=STOP_S_MAX)  # reads on, so that a full pipe cannot hold it up
        except subprocess.TimeoutExpired:
            self.kill()
            raise ProgramFailed(f"still there {STOP_S_MAX:.0f} s after SIGTERM\n{self._log_tail()}") from None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _log_tail(self) -> str:
        with open(self._log_path, "rb") as log:
            return log.read()[-LOG_BYTES_SHOWN:].decode(errors="replace")


class Metered:
    """Something done to programs round by round, and what each round costs each of them."""

    def __init__(self, programs: Sequence[Program], round_bytes: int, action: Callable[[], float]) -> None:
        self._programs = programs
        self._round_bytes = round_bytes
        self._action = action
        self._cpu_s: list[list[float]] = []  # of each program, by round

    def __call__(self) -> float:
        """One round; gives what `action` does, its seconds."""
        for program in self._programs:
            program.settle()
        before_s = [program.cpu_s() for program in self._programs]
        seconds = self._action()
        self._cpu_s.append([program.cpu_s() - used_s for program, used_s in zip(self._programs, before_s, strict=True)])
        return seconds

    @property
    def cpu_ms_per_mb(self) -> float:
        """The first program's."""
        return self.cpu_ms_per_mb_each[0]

    @property
    def cpu_ms_per_mb_each(self) -> list[float]:
        """The median; as many CPU seconds a GB."""
        return [
            statistics.median(used_s) * 1e3 / (self._round_bytes / 1e6) for used_s in zip(*self._cpu_s, strict=True)
        ]


@contextmanager
def started(arguments: Sequence[str], log_path: str) -> Iterator[Program]:
    """`python -m` with these arguments, until the end of the block."""
    program = Program(arguments, log_path)
    try:
        yield program
    except BaseException:
        program.kill()
        raise
    program.stop()


class Server(NamedTuple):
    program: Program
    address: tuple[str, int]

    @property
    def bootstrap(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"


@contextmanager
def serving(arguments: Sequence[str], log_path: str) -> Iterator[Server]:
    """A program that says, when it serves: `ready … bootstrap=HOST:PORT`."""
    with started(arguments, log_path) as program:
        ready = program.await_ready(rb"ready\b.*\bbootstrap=(\S+):(\d+)")
        yield Server(program, (ready.group(1).decode(), int(ready.group(2))))


@contextmanager
def serving_node(folder: str, **settings: object) -> Iterator[Server]:
    """One node, a cluster of its own, with its data below `folder`; settings as in `Settings`."""
    arguments = ["tidelog.cli", "server", "--set", f"data.dir={os.path.join(folder, 'data')}", "--set", "port=0"]
    for name, value in settings.items():
        arguments += ["--set", f"{name.replace('_', '.')}={value}"]
    with serving(arguments, os.path.join(folder, "node.log")) as server:
        yield server
