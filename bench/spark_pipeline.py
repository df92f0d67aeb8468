"""The pipeline from a WAL to a topic: events a CPU-second when it catches up, and how long a small batch takes.

A CPU-second is one of all processes of the pipeline (driver, JVM, Python workers), not of the cluster; what the writing
of the WAL takes in this process is left out. Some batches are delivered unmeasured: a JVM needs a while to get warm,
and Spark's workers, which take turns, have to get their memory. A small batch is measured from the WAL's sync to the
sink's commit record: then all of its events are in the topic and durable, and a restart will not send them again.
"""

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster_nodes import running_cluster
from bench.pikiwi_events import Items
from bench.pikiwi_events import _items as items
from bench.rounds import Line, percentile
from bench.scratch import scratch
from bench.spark_log import _children as children
from bench.spark_log import _tree_cpu_s as tree_cpu_s

WARM_BATCHES, WARM_ROUNDS, ROUNDS = 5, 5, 20  # rounds of 20,000 items each
SMALL_ITEMS, SMALL_ROUNDS, SMALL_WARM_ROUNDS = 1_000, 20, 10
PARTITIONS = 4
TOPIC = "events"
TARGET_EVENTS, TARGET_SMALL_MS = 100_000, 400
WAIT_S_MAX = 300.0


def spark_pipeline() -> list[Line]:
    # Not at the top: the other benchmarks run without Spark.
    from tidelog.spark.pipeline.supervisor import JAVA  # noqa: PLC0415
    from tidelog.spark.session import session  # noqa: PLC0415

    with scratch() as folder, running_cluster(folder) as cluster:
        cluster.create([TOPIC, f"{TOPIC}.dead-letter"], PARTITIONS)
        nodes = children(os.getpid())
        settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
        spark = session("bench", "local[2,4]", {**JAVA, **settings})
        try:
            with _Pipeline(spark, Path(folder), cluster.bootstrap) as pipeline:
                return [_catching_up(pipeline, nodes), _small_batches(pipeline)]
        finally:
            spark.stop()


class _Pipeline:
    """Of one database, in a thread, with a WAL that this process writes."""

    def __init__(self, spark: Any, folder: Path, bootstrap: str) -> None:
        from tidelog.pikiwi.checkpoint import CheckpointFile  # noqa: PLC0415
        from tidelog.pikiwi.config import Config  # noqa: PLC0415
        from tidelog.pikiwi.position import Position  # noqa: PLC0415
        from tidelog.pikiwi.wal import FileWal  # noqa: PLC0415
        from tidelog.spark.pipeline.database import DatabasePipeline, state_folder  # noqa: PLC0415
        from tidelog.spark.pipeline.telling import DatabaseTelling  # noqa: PLC0415

        config = Config(
            master_port=9221,
            wal_dir=folder / "wal",
            checkpoint_path=folder / "checkpoint.json",
            kafka_brokers=bootstrap,
            kafka_topic_binlog=TOPIC,
        )
        self.wal = FileWal(config.wal_dir, config.wal_segment_bytes, 2)
        self.wal.reset(Position(3, 0))
        assert self.wal.durable is not None
        CheckpointFile(config.checkpoint_path, config.source).restart_from("db0", self.wal.durable, "bench")
        self._commits = state_folder(config) / "db0" / "1" / "binlog"
        self._stop = threading.Event()
        self._pipeline = DatabasePipeline(spark, config, "db0", self._stop, DatabaseTelling("db0"))
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._made = items()

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error

    def __enter__(self) -> "_Pipeline":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.wal.close()

    def write(self, count: int, rounds: int = 1) -> None:
        """So many more items, so many times. Only the last sync lets the pipeline see them."""
        from tidelog.pikiwi.position import Position  # noqa: PLC0415

        for _ in range(rounds):
            assert self.wal.last_position is not None
            base = self.wal.last_position.offset
            shifted: Items = [(Position(3, base + end.offset), payload) for end, payload in self._made[:count]]
            self.wal.append(1, shifted)
        self.wal.sync()

    def wait(self) -> None:
        """Until everything is in the topic."""
        from tidelog.spark.pipeline.query import committed  # noqa: PLC0415

        give_up = time.monotonic() + WAIT_S_MAX
        while (offsets := committed(self._commits)[1]) is None or offsets["db0"]["seq"] < self.wal.last_seq:
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > give_up:
                raise TimeoutError("the pipeline did not catch up")
            time.sleep(0.002)


def _catching_up(pipeline: _Pipeline, nodes: set[int]) -> Line:
    for _ in range(WARM_BATCHES):
        _written(pipeline, WARM_ROUNDS)
        pipeline.wait()
    cpu_s = tree_cpu_s(os.getpid(), nodes)
    writing_s = _written(pipeline, ROUNDS)
    begun_s = time.monotonic()
    waiting_s = _own_cpu(pipeline.wait)
    cpu_s = tree_cpu_s(os.getpid(), nodes) - cpu_s - writing_s - waiting_s
    count = ROUNDS * len(pipeline._made)
    speed, wall = count / cpu_s, count / (time.monotonic() - begun_s)
    return Line(
        "spark pipeline, WAL to topic",
        f"{speed / 1000:.0f} k/s",
        f"≥ {TARGET_EVENTS // 1000} k/s",
        speed >= TARGET_EVENTS,
        f"events a CPU-second; {wall / 1000:.0f} k a second",
        {"events": count, "cpu_s": cpu_s},
    )


def _written(pipeline: _Pipeline, rounds: int) -> float:
    """CPU seconds that it took."""
    return _own_cpu(lambda: pipeline.write(len(pipeline._made), rounds))


def _own_cpu(work: Callable[[], object]) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


def _small_batches(pipeline: _Pipeline) -> Line:
    took_ms: list[float] = []
    for number in range(SMALL_WARM_ROUNDS + SMALL_ROUNDS):
        pipeline.write(SMALL_ITEMS)
        begun = time.perf_counter()
        pipeline.wait()
        if number >= SMALL_WARM_ROUNDS:
            took_ms.append((time.perf_counter() - begun) * 1000)
    median = statistics.median(took_ms)
    return Line(
        f"spark pipeline, {SMALL_ITEMS:,} events end to end",
        f"{median:.0f} ms",
        f"≤ {TARGET_SMALL_MS} ms",
        median <= TARGET_SMALL_MS,
        f"{min(took_ms):.0f} to {max(took_ms):.0f} ms, 90 % within {percentile(took_ms, 0.9):.0f}",
        {"took_ms": took_ms},
    )
