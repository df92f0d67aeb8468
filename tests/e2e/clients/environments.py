"""Which clients there are, and how each is started: made on demand, once, whoever asks first.

An environment is a folder in `.clients/` (or `$TIDELOG_CLIENTS_DIR`) made from the pins in `drivers/pins/NAME` by the
ordinary tool of the language. It is complete when the hash of its pins stands in its `made` file, so a changed pin
makes it anew. A lock file keeps parallel test processes from making it twice. What cannot be made is `Unavailable`,
and is not tried again in the same test run.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

DRIVERS = Path(__file__).parent / "drivers"
ROOT = Path(__file__).parents[3]
MAKE_TIMEOUT_S = 120
REASON_CHARACTERS = 400


class Unavailable(Exception):
    """This client cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class ClientKind:
    """`command` returns how to start the driver, without the bootstrap address; it may raise Unavailable.

    A `quick` client needs no environment of its own, and is in `make test-fast`.
    """

    command: Callable[[str], Sequence[str]]
    quick: bool = False


def clients_folder() -> Path:
    folder = Path(os.environ.get("TIDELOG_CLIENTS_DIR", ROOT / ".clients"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    return folder


def _program(name: str, hint: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"there is no {name}: {hint}")
    return found


def _run(command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=MAKE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(command)}` took more than {MAKE_TIMEOUT_S} s") from None
    if done.returncode != 0:
        output = " ".join((done.stdout + done.stderr).decode(errors="replace").split())
        raise Unavailable(f"`{' '.join(command)}` failed: {output[-REASON_CHARACTERS:]}")


def environment(name: str, make: Callable[[Path], None]) -> Path:
    """The folder of environment `name`, made by `make` in a folder that already holds its pins."""
    pins = DRIVERS / "pins" / name
    wanted = hashlib.sha256()
    for file in sorted(pins.iterdir()):
        wanted.update(file.name.encode() + b"\0" + file.read_bytes())
    folder = clients_folder() / name
    made, failed = folder / "made", clients_folder() / f"{name}.failed"
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    with open(clients_folder() / f"{name}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists() and made.read_text() == wanted.hexdigest():
            return folder
        if failed.exists():
            failed_run, _, reason = failed.read_text().partition("\n")
            if failed_run == run:
                raise Unavailable(reason)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pins, folder)
        try:
            make(folder)
        except Unavailable as unavailable:
            failed.write_text(f"{run}\n{unavailable}")
            raise
        failed.unlink(missing_ok=True)
        made.write_text(wanted.hexdigest())
    return folder


def _make_virtual_environment(folder: Path) -> None:
    _run([sys.executable, "-m", "venv", "--without-pip", "venv"], folder)
    pip = [sys.executable, "-m", "pip", "--python", "venv/bin/python", "--disable-pip-version-check", "--quiet"]
    _run([*pip, "install", "--retries", "1", "--no-deps", "-r", "requirements.txt"], folder)


def _make_node_modules(folder: Path) -> None:
    npm = _program("npm", "install Node.js with npm")
    _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries", "1"], folder)


def make_java_libraries(folder: Path) -> None:
    """The jars that its pom names, and all that they need, into `libs`."""
    maven = _program("mvn", "install Maven")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs"]
    _run([maven, "--quiet", "--batch-mode", *goal], folder)


def _in_our_environment(driver: str) -> Callable[[str], Sequence[str]]:
    return lambda bootstrap: [sys.executable, str(DRIVERS / driver), bootstrap]


def _kafka_python_2(version: str) -> Callable[[str], Sequence[str]]:
    def command(bootstrap: str) -> Sequence[str]:
        folder = environment("kafka-python-2", _make_virtual_environment)
        return [str(folder / "venv/bin/python"), str(DRIVERS / "kafka_python_driver.py"), bootstrap, version]

    return command


def _kcat(bootstrap: str) -> Sequence[str]:
    if shutil.which("kcat") is None and shutil.which("kafkacat") is None:
        raise Unavailable("there is no kcat: install it (apt-get install kcat)")
    return [sys.executable, str(DRIVERS / "kcat_driver.py"), bootstrap]


def _kafkajs(bootstrap: str) -> Sequence[str]:
    node = _program("node", "install Node.js")
    folder = environment("kafkajs", _make_node_modules)
    return [node, str(DRIVERS / "kafkajs_driver.js"), bootstrap, str(folder)]


def _java(bootstrap: str) -> Sequence[str]:
    java = _program("java", "install a JDK")
    _program("javac", "a JDK is needed, not only a JRE, for the driver is started from its source")
    libraries = environment("java", make_java_libraries) / "libs"
    # Small and quick to start: the tests need neither a large heap nor the optimising compiler.
    options = [
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Xmx256m",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    ]
    return [java, *options, "-cp", f"{libraries}/*", str(DRIVERS / "JavaDriver.java"), bootstrap]


CLIENTS = {
    "confluent-kafka": ClientKind(_in_our_environment("confluent_driver.py"), quick=True),
    "aiokafka": ClientKind(_in_our_environment("aiokafka_driver.py"), quick=True),
    "kafka-python": ClientKind(_in_our_environment("kafka_python_driver.py")),
    "kafka-python-0.10.1": ClientKind(_kafka_python_2("0.10.1")),
    "kafka-python-0.10.0": ClientKind(_kafka_python_2("0.10.0")),
    "kcat": ClientKind(_kcat),
    "kafkajs": ClientKind(_kafkajs),
    "java": ClientKind(_java),
}
