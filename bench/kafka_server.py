"""A real Apache Kafka, from Maven Central's jars: how a node of it is prepared and started, and what it is told.

Combined KRaft nodes (broker and controller), 512 MB of heap each, with the flags of Kafka's own start script. Beyond
addresses and folders only the replication is set, so what is measured is Kafka as it comes.
"""

import base64
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.kept import Unavailable, kept

VERSION = "4.1.0"
POM = Path(__file__).parent / "kafka_pins" / "pom.xml"
FETCH_S_MAX = 240.0
FORMAT_S_MAX = 60.0
REASON_CHARACTERS = 300
HEAP = "512m"
# What bin/kafka-server-start.sh gives the JVM.
FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LOGGING = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""


def libraries() -> Path:
    """The folder of Kafka's jars, fetched if need be; about 20 s and 54 MB."""
    return kept("bench-kafka", POM.read_bytes(), _fetch) / "libs"


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise Unavailable("there is no java: install a JRE of version 17 or later")
    return found


def _fetch(folder: Path) -> None:
    java()
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no mvn to fetch Kafka's jars with: install Maven")
    shutil.copy(POM, folder)
    goal = ("dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs")
    try:
        subprocess.run(
            [maven, "--quiet", "--batch-mode", *goal],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FETCH_S_MAX,
            check=True,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven Central did not give Kafka's jars in {FETCH_S_MAX:.0f} s") from None
    except subprocess.CalledProcessError as error:
        said = " ".join((error.stdout + error.stderr).decode(errors="replace").split())
        raise Unavailable(f"Maven Central cannot be reached: {said[-REASON_CHARACTERS:]}") from None


def class_path() -> list[str]:
    return ["-cp", f"{libraries()}/*"]


def properties(
    node: int, ports: Mapping[int, int], controllers: Mapping[int, int], data: str, more: Mapping[str, object]
) -> dict[str, object]:
    """Of one node; `ports` and `controllers` are those of all."""
    replication = min(3, len(ports))
    return {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{number}@127.0.0.1:{port}" for number, port in controllers.items()),
        "listeners": f"PLAINTEXT://127.0.0.1:{ports[node]},CONTROLLER://127.0.0.1:{controllers[node]}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{ports[node]}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": data,
        "default.replication.factor": replication,
        "min.insync.replicas": (replication + 1) // 2,
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": (replication + 1) // 2,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": 1_000,  # a deleted topic's files go at once, before the disk is full of them
        **more,
    }


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()


def prepare(folder: str, node: int, cluster_id: str, settings: Mapping[str, object]) -> list[str]:
    """Formats a node's folder; gives the command that runs it."""
    file = Path(folder) / f"kafka-{node}.properties"
    file.write_text("\n".join(f"{name}={value}" for name, value in settings.items()) + "\n")
    logging = Path(folder) / "log4j2.properties"
    logging.write_text(LOGGING)
    program = [java(), f"-Dlog4j2.configurationFile={logging}", *class_path()]
    _format([*program, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(file)])
    heap = (f"-Xms{HEAP}", f"-Xmx{HEAP}")
    return [program[0], *heap, *FLAGS, *program[1:], "kafka.Kafka", str(file)]


def _format(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=FORMAT_S_MAX, check=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        said = " ".join(((error.stdout or b"") + (error.stderr or b"")).decode(errors="replace").split())
        raise Unavailable(f"Kafka's folder could not be prepared: {said[-REASON_CHARACTERS:]}") from None
