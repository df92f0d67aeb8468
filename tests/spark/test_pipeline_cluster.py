"""The same job on a Spark cluster: a standalone one with two workers, on loopback."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

import pyspark

from tests.e2e.clients.environments import ROOT
from tests.ports import free_port

from .pikiwi_world import Source, shop
from .pipeline_world import content, expected
from .world import Log

pytestmark = pytest.mark.long

PARTITIONS = 2
WAIT_S_MAX = 180.0
POLL_S = 0.1
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


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
        home = Path(pyspark.__file__).parent
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
            "SPARK_DAEMON_JAVA_OPTS": JVM,
            "SPARK_DAEMON_MEMORY": "512m",
        }
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
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


def test_the_job_runs_on_two_workers(cluster: StandaloneCluster, tidelog_log: Log, tmp_path: Path):
    topic = tidelog_log.topic(PARTITIONS)
    source = Source(tmp_path / "source", kafka_brokers=tidelog_log.bootstrap, kafka_topic_binlog=topic)
    source.begin()
    source.write(shop(1000))
    settings = {**source.settings, "kafka_brokers": tidelog_log.bootstrap, "kafka_topic_binlog": topic}
    config = tmp_path / "source.toml"
    config.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    command = [sys.executable, "-m", "tidelog.cli", "pikiwi", "run", "--config", str(config), "--no-receiver"]
    command += [
        "--master",
        cluster.url,
        "--spark",
        "spark.driver.host=127.0.0.1",
        "--spark",
        "spark.executor.memory=512m",
    ]
    command += ["--spark", f"spark.executorEnv.PYTHONPATH={ROOT}", "--spark", f"spark.driver.extraJavaOptions={JVM}"]
    command += ["--spark", "spark.driver.memory=1g"]
    with open(tmp_path / "run.log", "ab") as log:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
        }
        run = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    try:
        durable = source.wals["db0"].durable
        assert durable is not None
        give_up = time.monotonic() + WAIT_S_MAX
        while (
            (found := source.file.load()) is None
            or found.database("db0").ack_cp is None
            or (
                found.database("db0").ack_cp.position != durable.position  # type: ignore[union-attr]
            )
        ):
            said = (tmp_path / "run.log").read_text(errors="replace")[-3000:]
            assert run.poll() is None, said
            assert time.monotonic() < give_up, said
            time.sleep(POLL_S)
        run.send_signal(signal.SIGINT)
        assert run.wait(WAIT_S_MAX) == 0
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
        source.close()
    assert content(tidelog_log, topic) == expected(source.events(), PARTITIONS)
