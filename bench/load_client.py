"""The client of `tidelog bench`, a process of its own: the C program where a compiler is there, else its Python twin.

Both have the same roles and arguments (see load_client.c) and answer with an `Outcome`.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka

from bench.kept import Unavailable, kept
from bench.processes import Program, started

SOURCE = Path(__file__).with_name("load_client.c")
COMPILE_S_MAX = 60.0
PYTHON_TWIN = "bench.load_client_python"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a client did once it was ready; latencies as far as its role measures them."""

    seconds: float
    records: int
    bytes: int
    failed: int = 0
    cpu_s: float = 0.0
    """What the client itself used."""
    latencies_ms: dict[str, float] = field(default_factory=dict)
    """`p50`, `p95`, `p99`, `p999`, `max`."""

    @property
    def mb_per_s(self) -> float:
        return self.bytes / 1e6 / self.seconds

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds


@dataclass(frozen=True, slots=True)
class LoadClient:
    name: str
    command: tuple[str, ...]
    """Behind `python -m`."""
    folder: str
    """For what it has to say."""

    @contextmanager
    def started(self, role: str, **arguments: object) -> Iterator[Program]:
        """From when it is ready."""
        given = [f"{name}={value}" for name, value in arguments.items()]
        with started([*self.command, role, *given], os.path.join(self.folder, f"client-{role}.log")) as program:
            program.await_ready(b"ready")
            yield program

    def run(self, role: str, **arguments: object) -> Outcome:
        with self.started(role, **arguments) as program:
            return outcome_of(program)


def outcome_of(program: Program) -> Outcome:
    """Waits for its end."""
    return Outcome(**json.loads(program.last_words().splitlines()[-1]))


def load_client(folder: str) -> LoadClient:
    version = confluent_kafka.libversion()[0]
    try:
        program, library = _compiled(), _librdkafka()
    except Unavailable as missing:
        return LoadClient(f"confluent-kafka on librdkafka {version} ({missing})", (PYTHON_TWIN,), folder)
    return LoadClient(f"C on librdkafka {version}", ("bench.become", str(program), str(library)), folder)


def _librdkafka() -> Path:
    """The one that came with confluent-kafka."""
    package = Path(confluent_kafka.__file__).parent
    for library in sorted((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*")):
        return library
    raise Unavailable("confluent-kafka brought no librdkafka of its own")


def _compiled() -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unavailable("there is no C compiler")
    version = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=COMPILE_S_MAX).stdout

    def compile_into(folder: Path) -> None:
        command = [compiler, "-O2", "-o", str(folder / "load_client"), str(SOURCE), "-ldl", "-lpthread"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=COMPILE_S_MAX)
        if done.returncode:
            said = " ".join(done.stderr.decode(errors="replace").split())
            raise Unavailable(f"{compiler} does not compile {SOURCE.name}: {said[:200]}")

    return (
        kept("bench-client", SOURCE.read_bytes() + version + platform.machine().encode(), compile_into) / "load_client"
    )
