"""One driver process: commands out, answers in, each within its time.

A driver that does not answer in time or dies is killed, and the exception shows the end of what it wrote to stderr.
"""

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

STOP_TIMEOUT_S = 10
STDERR_TAIL_BYTES = 4000


class DriverFailed(Exception):
    """The driver hung, died or has a bug: nothing is known about the broker."""


class Refused(Exception):
    """The client was refused. `code` is Kafka's error code; None where the client gave none."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Driver:
    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._unread = b""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0
        )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def call(self, op: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
        except BrokenPipeError:
            raise self._failed(f"is gone, before {op}") from None
        reply = json.loads(self._line(op, timeout_s))
        if "bug" in reply:
            raise self._failed(f"failed at {op}: {reply['bug']}")
        if "error" in reply:
            raise Refused(reply["error"]["code"], reply["error"]["message"])
        return reply["ok"]

    def _line(self, op: str, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failed(f"did not answer {op} within {timeout_s:.0f} s")
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    raise self._failed(f"ended during {op}")
                self._unread += data
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _failed(self, what: str) -> DriverFailed:
        self._process.kill()
        self._process.wait()
        return DriverFailed(f"{self.name}: the driver {what}\n--- its stderr ---\n{self.stderr_tail()}")

    def stderr_tail(self) -> str:
        size = os.fstat(self._stderr.fileno()).st_size
        start = max(0, size - STDERR_TAIL_BYTES)
        return os.pread(self._stderr.fileno(), size - start, start).decode(errors="replace")

    def close(self) -> None:
        """End it by ending its input; killed if it does not go."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()
