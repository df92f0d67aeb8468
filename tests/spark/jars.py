"""Jars that Spark's tests can do without: the official Kafka connector, delta-spark, and the archive that makes a JVM
start quickly.

They come from Maven Central, each without its dependencies (Spark's parent pom names a mirror that may
not answer). The archive of loaded classes (AppCDS) is written by the first JVM that ends, and used by all later ones.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.clients.environments import Unavailable, clients_folder

JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.commons:commons-pool2:2.12.0",
    "org.apache.kafka:kafka-clients:3.9.1",
)
DELTA_JARS = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
FETCH_S_MAX = 120.0


def connector_jars() -> list[Path]:
    """The connector's jars; Unavailable where they cannot be had."""
    return _all_fetched("spark-kafka-connector", JARS)


def delta_jars() -> list[Path]:
    """For MERGE; Unavailable where they cannot be had."""
    return _all_fetched("delta-spark", DELTA_JARS)


def _all_fetched(name: str, jars: Sequence[str]) -> list[Path]:
    folder = clients_folder() / name
    folder.mkdir(exist_ok=True)
    with open(folder / ".lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [_fetched(folder, jar) for jar in jars]


def _fetched(folder: Path, jar: str) -> Path:
    _, name, version = jar.split(":")
    file = folder / f"{name}-{version}.jar"
    if file.exists():
        return file
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("there is no mvn: install Maven")
    copy = ["dependency:copy", f"-Dartifact={jar}", f"-DoutputDirectory={folder}", "-Dmdep.useBaseVersion=true"]
    get = ["dependency:get", f"-Dartifact={jar}", "-Dtransitive=false"]
    for goal in (get, copy):
        try:
            done = subprocess.run(
                [maven, "--quiet", "--batch-mode", *goal], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=FETCH_S_MAX, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Maven did not bring {jar} in {FETCH_S_MAX:.0f} s") from None
        if done.returncode:
            raise Unavailable(
                f"Maven does not bring {jar}: {' '.join(done.stdout.decode(errors='replace').split())[-300:]}"
            )
    return file


def class_archive() -> str:
    """The JVM's option: use the archive if it is there, else write it."""
    import pyspark  # noqa: PLC0415

    java = shutil.which("java") or ""
    kind = hashlib.sha256(f"{pyspark.__version__} {Path(java).resolve()}".encode()).hexdigest()[:12]
    archive = clients_folder() / f"spark-{kind}.jsa"
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:disable -Xlog:all=off"
    if os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return ""  # one writes it
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable -Xlog:all=off"
