"""`tidelog pikiwi run`: the receiver, Spark and a pipeline a database, until a signal or until one cannot go on.

The main thread only watches: it tells progress, warns, looks after the receiver, and gathers what a pipeline ended
with. Everything stops in this order: queries (what they have written and not committed is found again), Spark, the
receiver, which outlives the others so that the master is acknowledged to the last.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelog.pikiwi.checkpoint import CheckpointFile
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import ConfigError
from tidelog.pikiwi.filter import Filter, read_specs
from tidelog.spark.pipeline.database import DatabasePipeline, state_folder
from tidelog.spark.pipeline.errors import SparkUnavailable
from tidelog.spark.pipeline.metrics import MetricsFile
from tidelog.spark.pipeline.query import last_words
from tidelog.spark.pipeline.receiver_process import ReceiverProcess, StartReceiver
from tidelog.spark.pipeline.telling import Telling
from tidelog.spark.session import session

TURN_S = 0.2
SNAPSHOT_TELL_S = 5.0  # while a dump is delivered, at least so often
JOIN_S_MAX = 120.0

JAVA: Mapping[str, str] = MappingProxyType(
    {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
)
"""Spark's JVM only passes orders on here: a batch costs it a third less CPU without Java's second compiler, which is
still at work after a hundred batches, and without a collector that has threads of its own."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunOptions:
    master: str | None = None
    """Where tasks run; None: where `spark-submit` was told, else on this machine."""
    receiver: StartReceiver | None = None
    """Starts it; None: it runs elsewhere."""
    spark: Mapping[str, str] = field(default_factory=dict)
    tell_s: float = 5.0
    """Between progress lines; 0: none."""


def run_pipeline(config: Config, options: RunOptions, tell: Callable[[Telling], None]) -> None:
    """Until SIGINT or SIGTERM; raises a PikiwiError when it cannot go on."""
    if not config.kafka_brokers:
        raise ConfigError("kafka_brokers is not set: it says where the events go, as HOST:PORT[,HOST:PORT…]")
    Filter.parse(read_specs(config.filter), config.exclude)  # a mistake shows before anything starts
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    receiver = ReceiverProcess(options.receiver) if options.receiver else None
    try:
        spark = _started(config, options)
        for number in before:  # Spark has put its own in their place
            signal.signal(number, lambda *_: stop.set())
        try:
            _Watch(spark, config, options, stop, receiver, tell).until_stopped()
        finally:
            with suppress(Py4JError, OSError):  # its JVM may be what has ended
                spark.stop()
    finally:
        if receiver is not None:
            receiver.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(config: Config, options: RunOptions) -> SparkSession:
    try:
        return session(f"tidelog pikiwi {config.source}", options.master, {**JAVA, **options.spark})
    except (PySparkException, Py4JError) as error:
        raise SparkUnavailable(
            f"Spark did not start: {last_words(error)}; it needs Java 17 or later (JAVA_HOME), and its master"
        ) from error


class _Watch:
    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        options: RunOptions,
        stop: threading.Event,
        receiver: ReceiverProcess | None,
        tell: Callable[[Telling], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._options = options
        self._stop = stop
        self._receiver = receiver
        self._tell = tell
        self._telling = Telling(config.source)
        self._metrics = MetricsFile(state_folder(config), self._telling)
        self._threads: dict[str, threading.Thread] = {}
        self._failures: list[BaseException] = []
        first = config.databases[0] if config.databases else "db0"
        self._file = CheckpointFile(config.checkpoint_path, config.source, first)

    def until_stopped(self) -> None:
        told_s = time.monotonic()
        try:
            while not self._stop.wait(TURN_S) and not self._failures:
                self._begin_new_databases()
                if self._receiver is not None:
                    self._receiver.look()
                now_s = time.monotonic()
                self._telling.warn_if_late(self._config.pb_ack_delay_warn, _log.warning, now_s)
                self._metrics.turn(now_s)
                if self._options.tell_s and now_s - told_s >= self._tell_s():
                    told_s = now_s
                    self._tell(self._telling)
        finally:
            self._stop.set()
            for thread in self._threads.values():
                thread.join(JOIN_S_MAX)
            self._metrics.write(time.monotonic(), running=False)
            if self._options.tell_s:
                self._tell(self._telling)
        if self._failures:
            raise self._failures[0]

    def _tell_s(self) -> float:
        if any(each.phase == "snapshot" for each in self._telling.databases):
            return min(self._options.tell_s, SNAPSHOT_TELL_S)
        return self._options.tell_s

    def _begin_new_databases(self) -> None:
        names = self._config.databases
        if not names:  # all: the receiver finds out which there are
            checkpoint = self._file.load()
            names = () if checkpoint is None else tuple(checkpoint.databases)
        for name in names:
            if name not in self._threads:
                thread = threading.Thread(target=self._run, args=(name,), name=f"pipeline of {name}", daemon=True)
                self._threads[name] = thread
                thread.start()

    def _run(self, name: str) -> None:
        try:
            DatabasePipeline(self._spark, self._config, name, self._stop, self._telling.database(name)).run()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it ends all of it
            self._failures.append(error)
