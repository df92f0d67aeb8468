"""The same job on a Spark cluster: a standalone one with two workers, on loopback.

By `--master` with the package installed everywhere, and by `spark-submit`, which brings the package along.
"""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

import pyspark

from tests.e2e.clients.environments import ROOT
from tests.ports import free_port
from tidelog.spark.package import PACKAGE, PROGRAM, make_package

from .pikiwi_world import Source, shop
from .pipeline_world import content, expected
from .test_pikiwi_snapshot import snapshot_values, source_with_dump, time_of
from .world import Log

pytestmark = pytest.mark.long

PARTITIONS = 2
WAIT_S_MAX = 180.0
POLL_S = 0.1
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_HOME = Path(pyspark.__file__).parent
SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": JVM,
    "spark.executor.memory": "512m",
}


class StandaloneCluster:
    def __init__(self, folder: Path) -> None:
        self.port, self._ui = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._log = open(folder / "spark.log", "ab")  # noqa: SIM115 - closed in `close`
        self._folder = folder
        self._start("master.Master", "--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._ui))
        for number in range(2):
            work = folder / f"worker-{number}"
            options = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
            self._start("worker.Worker", *options, "--work-dir", str(work), self.url)

    def _start(self, name: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": "",  # a job says or brings what it needs
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_DAEMON_MEMORY": "512m",
        }
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        self._processes.append(
            subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log, cwd=self._folder)
        )

    def await_workers(self) -> None:
        give_up = time.monotonic() + WAIT_S_MAX
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._ui}/json/", timeout=5) as answer:
                    if json.load(answer)["aliveworkers"] == 2:
                        return
            except (OSError, ValueError):
                pass  # not yet
            assert time.monotonic() < give_up, "the cluster did not come up"
            time.sleep(POLL_S)

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(WAIT_S_MAX)
        self._log.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    made = StandaloneCluster(tmp_path)
    try:
        made.await_workers()
        yield made
    finally:
        made.close()


def settings_file(folder: Path, source: Source, **more: str) -> Path:
    path = folder / "source.toml"
    settings = {**source.settings, "kafka_brokers": source.config.kafka_brokers, **more}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    return path


@contextmanager
def started(command: Sequence[str], folder: Path, **environment: str) -> "Iterator[subprocess.Popen[bytes]]":
    """In a process group of its own, as a shell starts it."""
    with open(folder / "run.log", "ab") as log:
        run = subprocess.Popen(
            command,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield run
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def await_delivery(run: "subprocess.Popen[bytes]", source: Source, folder: Path) -> None:
    """Until AckCP is where the WAL ends; a dump is delivered before that."""
    durable = source.wals["db0"].durable
    assert durable is not None
    give_up = time.monotonic() + WAIT_S_MAX
    while True:
        found = source.file.load()
        ack = None if found is None else found.database("db0").ack_cp
        if ack is not None and ack.position == durable.position:
            return
        said = (folder / "run.log").read_text(errors="replace")[-3000:]
        assert run.poll() is None, said
        assert time.monotonic() < give_up, said
        time.sleep(POLL_S)


def spark_settings(flag: str, settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in (flag, f"{name}={value}")]


def test_the_job_runs_on_two_workers(cluster: StandaloneCluster, tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic(PARTITIONS)
    source = Source(tmp_path / "source", kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic)
    source.begin()
    source.write(shop(1000))
    config = settings_file(tmp_path, source, kafka_topic_binlog=topic)
    command = [sys.executable, "-m", "tidelog.cli", "pikiwi", "run", "--config", str(config), "--no-receiver"]
    command += ["--master", cluster.url]
    command += spark_settings("--spark", {**SMALL, "spark.executorEnv.PYTHONPATH": str(ROOT)})
    with started(command, tmp_path, PYTHONPATH=str(ROOT), PYSPARK_PYTHON=sys.executable) as run:
        await_delivery(run, source, tmp_path)
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S_MAX) == 0
    source.close()
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)


def python_without_the_package(folder: Path) -> Path:
    """What workers have when the job brings the package: everything that it needs, not itself."""
    path = folder / "python"
    site = sysconfig.get_path("purelib")
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{site}" exec {sys.executable} -S "$@"\n')  # -S: no .pth files
    path.chmod(0o755)
    return path


def test_spark_submit_delivers_dump_and_binlog_of_a_wal_that_is_a_stream(
    cluster: StandaloneCluster, tidelog_log: Log, tmp_path: Path
):
    topics = {
        "kafka_topic_snapshot": tidelog_log.topic(PARTITIONS),
        "kafka_topic_binlog": tidelog_log.topic(PARTITIONS),
    }
    stream = {"wal_backend": "stream", "wal_stream_prefix": f"wal.{topics['kafka_topic_binlog']}"}
    source = source_with_dump(tmp_path / "source", tidelog_log, **topics, **stream)
    source.write(shop(1000))
    config = settings_file(tmp_path, source, **topics, **stream)
    make_package(tmp_path / "job")
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.url]
    command += spark_settings("--conf", {**SMALL, "spark.pyspark.python": str(python_without_the_package(tmp_path))})
    command += ["--py-files", str(tmp_path / "job" / PACKAGE), str(tmp_path / "job" / PROGRAM)]
    command += ["pikiwi", "run", "--config", str(config), "--no-receiver"]
    with started(command, tmp_path, SPARK_HOME=str(SPARK_HOME), PYTHONPATH=str(ROOT)) as run:
        await_delivery(run, source, tmp_path)
        source.write(shop(100, seed=2))
        await_delivery(run, source, tmp_path)
        os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does
        run.wait(WAIT_S_MAX)
    source.close()
    assert "Traceback" not in (tmp_path / "run.log").read_text(errors="replace")
    assert len(list(tmp_path.glob("worker-*/app-*"))) == 2, "both workers took part"
    assert content(tidelog_log, topics["kafka_topic_binlog"]) == expected(source.events(), PARTITIONS)
    values = [value for rows in content(tidelog_log, topics["kafka_topic_snapshot"]).values() for _, value in rows]
    assert Counter(values) == Counter(snapshot_values(source, time_of(values)))
