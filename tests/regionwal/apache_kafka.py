"""A real Apache Kafka broker on loopback, one node that is its own controller, from Maven Central's jars.

The jars are fetched once, by Maven, into the folder of the other clients' environments. Where Java, Maven or the jars
cannot be had, `Unavailable` says why. Ready in about 4 s; everything it writes is in its folder.
"""

import base64
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient  # pyright: ignore[reportPrivateImportUsage]

from tests.e2e.clients.environments import Unavailable, environment, make_java_libraries
from tests.ports import free_port

FORMAT_S_MAX = 60.0
START_S_MAX = 60.0
STOP_S_MAX = 30.0
ASK_S = 1.0
LOG_TAIL_BYTES = 6_000

# Small and quick to start: the tests need neither a large heap nor the optimising compiler.
JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx256m")

LOGGING = """
status = error
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %m (%c)%n
"""


class ApacheKafka:
    """`bootstrap` answers from when the constructor returns until `stop`."""

    def __init__(self, folder: Path, port: int = 0, advertised_port: int = 0) -> None:
        """`advertised_port` is what clients are told to dial: the port itself, or what forwards to it."""
        java = shutil.which("java")
        if java is None:
            raise Unavailable("there is no java: install a JRE of version 17 or later")
        libraries = environment("kafka-server", make_java_libraries) / "libs"
        port, controller_port = port or free_port(), free_port()
        self.bootstrap = f"127.0.0.1:{advertised_port or port}"
        self._log = folder / "kafka.log"
        properties = folder / "server.properties"
        properties.write_text(_properties(port, advertised_port or port, controller_port, folder / "data"))
        logging = folder / "log4j2.properties"
        logging.write_text(LOGGING)
        program = [java, *JVM, f"-Dlog4j2.configurationFile={logging}", "-cp", f"{libraries}/*"]
        cluster_id = base64.urlsafe_b64encode(os.urandom(16)).rstrip(b"=").decode()
        subprocess.run(
            [*program, "kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(properties)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FORMAT_S_MAX,
            check=True,
        )
        with open(self._log, "wb") as log:
            # In a session of its own: a Ctrl-C for the tests must not stop the broker under the test that runs.
            self._process = subprocess.Popen(
                [*program, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.kill()
            raise

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_S_MAX
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        while True:
            try:
                if admin.list_topics(timeout=ASK_S).brokers:
                    return
            except KafkaException:
                pass  # nobody listens there yet
            if self._process.poll() is not None:
                raise Unavailable(f"Apache Kafka ended with {self._process.returncode}: {self.log_tail()}")
            if time.monotonic() > deadline:
                raise Unavailable(f"Apache Kafka does not answer after {START_S_MAX:.0f} s: {self.log_tail()}")

    def log_tail(self) -> str:
        return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def suspend(self) -> None:
        """It is there and does nothing, until `go_on`."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        finally:
            self.kill()

    def kill(self) -> None:
        """May be called again."""
        self._process.kill()
        self._process.wait()


def _properties(port: int, advertised_port: int, controller_port: int, data: Path) -> str:
    return "\n".join(
        f"{name}={value}"
        for name, value in {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{advertised_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": data,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "default.replication.factor": 1,
            "min.insync.replicas": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }.items()
    )
