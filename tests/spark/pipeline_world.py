"""A pipeline of one database in a thread, and what it has delivered."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tidelog.pikiwi.checkpoint import DatabaseCheckpoint
from tidelog.pikiwi.event import Event
from tidelog.spark.kernel.partitioner import choose_partitions
from tidelog.spark.pipeline.database import DatabasePipeline
from tidelog.spark.pipeline.telling import DatabaseTelling

from .pikiwi_world import Source
from .world import Log

WAIT_S_MAX = 300.0
POLL_S = 0.02


class Running:
    """Stops at the end of the `with`; what the pipeline ended with is raised there, or is in `failure`."""

    def __init__(self, spark: SparkSession, source: Source, db: str = "db0") -> None:
        self.stop = threading.Event()
        self.telling = DatabaseTelling(db)
        self.failure: BaseException | None = None
        self._source = source
        self._db = db
        self._pipeline = DatabasePipeline(spark, source.config, db, self.stop, self.telling)
        self._thread = threading.Thread(target=self._run, name=f"pipeline of {db}")

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except BaseException as error:  # noqa: BLE001 - it is looked at in the test's thread
            self.failure = error

    def __enter__(self) -> "Running":
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.stop.set()
        self._thread.join(WAIT_S_MAX)
        assert not self._thread.is_alive()
        if self.failure is not None and kind is None:
            raise self.failure

    def until(self, condition: Callable[[], object]) -> None:
        give_up = time.monotonic() + WAIT_S_MAX
        while not condition():
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < give_up, f"waited too long; {self.telling.line()}"
            time.sleep(POLL_S)

    def held(self) -> DatabaseCheckpoint:
        checkpoint = self._source.file.load()
        assert checkpoint is not None
        return checkpoint.database(self._db)

    def catch_up(self) -> None:
        """Until AckCP is where the WAL ends."""
        durable = self._source.wals[self._db].durable
        assert durable is not None

        def is_there() -> bool:
            ack = self.held().ack_cp
            return ack is not None and (ack.seq, ack.position) == (durable.seq, durable.position)

        self.until(is_there)


def expected(events: list[Event], partitions: int) -> dict[int, list[tuple[bytes, bytes]]]:
    """What each partition holds of these events, in order."""
    found: dict[int, list[tuple[bytes, bytes]]] = {number: [] for number in range(partitions)}
    for event in events:
        own = int(choose_partitions(pa.array([event.key], pa.binary()), partitions, 0, 0)[0])
        for number in range(partitions) if event.broadcast else [own]:
            found[number].append((event.key, event.value))
    return found


def content(log: Log, topic: str) -> dict[int, list[tuple[Any, Any]]]:
    return {
        partition: [(row["key"], row["value"]) for row in rows] for partition, rows in sorted(log.rows(topic).items())
    }
