"""The `tidelog` command as a user runs it: a process with stdin, stdout, stderr and a status, bounded in time."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import Any

COMMAND_S_MAX = 60


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[bytes]:
        return self.out.splitlines()

    @property
    def parsed(self) -> Any:
        return json.loads(self.out)

    @property
    def parsed_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


class Tidelog:
    def __init__(self, bootstrap: str) -> None:
        self._environment = {**os.environ, "TIDELOG_BOOTSTRAP": bootstrap}

    def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        with self.start(*arguments) as process:
            out, err = process.communicate(stdin, timeout=COMMAND_S_MAX)
        return Ended(process.returncode, out, err.decode())

    def succeed(self, *arguments: str, stdin: bytes = b"") -> Ended:
        ended = self.run(*arguments, stdin=stdin)
        assert ended.status == 0, ended.err
        return ended

    def fail(self, *arguments: str, stdin: bytes = b"") -> str:
        """The one line that it says, without its `tidelog: `."""
        ended = self.run(*arguments, stdin=stdin)
        assert ended.status == 1, ended
        return one_line(ended.err)

    @contextmanager
    def start(self, *arguments: str, stdout: int = PIPE, stderr: int = PIPE) -> Iterator[Popen[bytes]]:
        """A command that runs on; it is killed when the block ends, if it still runs then."""
        command = [sys.executable, "-m", "tidelog.cli", *arguments]
        with Popen(command, stdin=PIPE, stdout=stdout, stderr=stderr, env=self._environment, bufsize=0) as process:
            try:
                yield process
            finally:
                process.kill()


def one_line(text: str) -> str:
    assert text.startswith("tidelog: "), text
    assert text.count("\n") == 1, text
    return text.removeprefix("tidelog: ").rstrip("\n")
