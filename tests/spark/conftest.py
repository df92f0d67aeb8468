"""One cluster of three nodes, one Apache Kafka and one Spark session a test process, each made when first wanted."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.embedded import Up
from tests.e2e.clients.environments import ROOT, Unavailable
from tests.regionwal.apache_kafka import ApacheKafka

from .jars import class_archive, connector_jars
from .world import Log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JVM_END_S_MAX = 120


@pytest.fixture(scope="session")
def tidelog_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    up = Up(tmp_path_factory.mktemp("tidelog"), "--nodes", "3", "--port", "0", "--console-port", "0")
    yield Log(up.bootstrap, replicas=3)
    assert up.stop() == 0


@pytest.fixture(scope="session")
def kafka_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Log]:
    try:
        kafka = ApacheKafka(tmp_path_factory.mktemp("kafka"))
    except Unavailable as reason:
        pytest.skip(f"no Apache Kafka: {reason}")
    yield Log(kafka.bootstrap, replicas=1)
    kafka.kill()  # nothing of it is kept


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=pytest.mark.slow)])
def log(request: pytest.FixtureRequest) -> Log:
    """Tidelog, and Apache Kafka: what is tested with this holds on both."""
    return request.getfixturevalue(f"{request.param}_log")


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Up]:
    """Three nodes of which a test may kill some."""
    up = Up(tmp_path / "mortal", "--nodes", "3", "--port", "0", "--console-port", "0")
    yield up
    up.kill()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """The session of all Spark tests: quick to start, failed tasks are tried again, with the official connector."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")
    from tidelog.spark.session import session  # noqa: PLC0415

    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # Spark's workers import from this folder
    try:
        jars = ",".join(map(str, connector_jars()))
    except Unavailable:
        jars = ""  # the tests that want it say so
    settings = {
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {class_archive()}",
        "spark.driver.memory": "1g",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "FATAL",  # tests make queries fail on purpose; what matters reaches them as exceptions
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(tmp_path_factory.mktemp("spark")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        **({"spark.jars": jars} if jars else {}),
    }
    made = session("tests", "local[2,4]", settings)
    yield made
    gateway: Any = made.sparkContext._gateway
    made.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # a JVM ends with its parent's end of the pipe; the first one writes its archive then
    gateway.proc.wait(JVM_END_S_MAX)
