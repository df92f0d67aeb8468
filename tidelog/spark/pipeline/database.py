"""One database on its way into topics: its dump, then its binlog, then whatever a full sync makes necessary.

A thread a database, so that a full sync of one does not hold up the others. The loop asks `next_step` what to do and
does it until it is over, complete or failed; failures are tried again with growing pauses, and `FAILURES_MAX` in a row
without anything delivered end the pipeline with the position.

AckCP and SnapshotSeq move only by what the sink's commit record says: a batch is in it when all of its rows are in the
topics, and batches follow one another without a gap.
"""

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tidelog.pikiwi.checkpoint import CheckpointFile, DatabaseCheckpoint, Point, Snapshot
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.wal import WalGone, WalPoint
from tidelog.pikiwi.wal.disk import make_folder, replace_file
from tidelog.spark.commit_record import CommitRecord
from tidelog.spark.errors import LogSourceError
from tidelog.spark.kernel.snapshot_rows import load_plan, save_plan
from tidelog.spark.kernel.wal_options import DELIVERY, from_json, to_json, wal_place
from tidelog.spark.pikiwi_snapshot import DONE, plan_dump
from tidelog.spark.pipeline import query
from tidelog.spark.pipeline.errors import DeliveryStopped, PipelineStateError, QueryIdle
from tidelog.spark.pipeline.generation import (
    Begin,
    DeliverBinlog,
    DeliverDump,
    Dump,
    Generation,
    GenerationFolder,
    Step,
    Wait,
    is_over,
    next_step,
    with_snapshot,
)
from tidelog.spark.pipeline.query import Query
from tidelog.spark.pipeline.settings import settings_json
from tidelog.spark.pipeline.telling import DatabaseTelling
from tidelog.spark.pipeline.topics import binlog_topic, delivery_to, snapshot_topic
from tidelog.spark.wal_tail import open_tail

FAILURES_MAX = 5  # in a row
BATCH_RECORDS_MAX = 400_000  # of the WAL: what Spark takes for a batch, whatever is in it, counts less in larger ones
PAUSE_S_FIRST, PAUSE_S_MAX = 1.0, 30.0
WAIT_S = 0.2
IDLE_S_MAX = 600.0  # a query that has something to deliver and delivers nothing; the sink gives up long before
LOOK_S = 0.5  # between looks at the checkpoint while a query runs

_log = logging.getLogger(__name__)


class DatabasePipeline:
    def __init__(
        self, spark: SparkSession, config: Config, database: str, stop: threading.Event, telling: DatabaseTelling
    ) -> None:
        self._spark = spark
        self._config = config
        self._db = database
        self._stop = stop
        self._telling = telling
        first = config.databases[0] if config.databases else database
        self._file = CheckpointFile(config.checkpoint_path, config.source, first)
        self._folder = GenerationFolder(state_folder(config) / database)
        self._tail = open_tail(wal_place(config, database))
        self._look_again_s = 0.0
        self._over = False
        self._begun_s = 0.0  # the query that runs

    def run(self) -> None:
        """Until it is told to stop; raises a PikiwiError when it cannot go on."""
        # Formats are looked up in the thread's own session. A thread has none until something makes it so: this does.
        self._spark.createDataFrame([], "nothing INT")
        try:
            while not self._stop.is_set():
                self._attempt()
        finally:
            self._tail.close()
            self._telling.phase = "stopped"

    def _attempt(self) -> None:
        delivering: Generation | None = None
        try:
            generation = self._folder.load()
            self._recall(generation)
            step = next_step(self._file.load(), self._db, generation, place_is_there=self._place_is_there(generation))
            if isinstance(step, DeliverDump | DeliverBinlog):
                delivering = generation
            self._do(step, generation)
        except PipelineStateError:
            raise
        except (PySparkException, Py4JError, LogSourceError, PikiwiError, OSError) as failure:
            if delivering is not None and self._is_replaced(delivering):
                _log.info("%s %s: the WAL began anew: %s", self._config.source, self._db, query.last_words(failure))
                return
            self._failed(failure)

    def _recall(self, generation: Generation | None) -> None:
        """How far it is, as files say: that is told before the cluster has answered, or when it never does."""
        telling = self._telling
        checkpoint = self._file.load()
        held = DatabaseCheckpoint() if checkpoint is None else checkpoint.database(self._db)
        if generation is None:
            telling.generation, telling.delivered = 0, None if held.ack_cp is None else held.ack_cp.position
            return
        place = self._place(generation)
        telling.generation, telling.delivered, telling.delivered_seq = generation.number, place.position, place.seq
        total = done = 0
        if generation.dump is not None and generation.dump == Dump.of(held.snapshot):
            folder = self._folder.of(generation)
            total = len(load_plan(folder / "plan.json").ranges)
            _, offsets = query.committed(folder / "snapshot")
            done = 0 if offsets is None else offsets[DONE]
        telling.ranges_done, telling.ranges_total = done, total

    def _do(self, step: Step, generation: Generation | None) -> None:
        telling = self._telling
        match step:
            case Wait(reason):
                telling.phase, telling.detail = "waiting", reason
                telling.moved_s = time.monotonic()
                self._stop.wait(WAIT_S)
            case Begin(dump):
                self._begin(generation, dump)
                telling.moved_s = time.monotonic()
            case DeliverDump(dump):
                assert generation is not None
                self._deliver_dump(generation, dump)
            case DeliverBinlog():
                assert generation is not None
                self._deliver_binlog(generation)

    # --- a new generation ---------------------------------------------------------------------------------------------

    def _begin(self, before: Generation | None, dump: Dump | None) -> None:
        checkpoint = self._file.load()
        assert checkpoint is not None, "there is a step"
        held = checkpoint.database(self._db)
        ack = held.ack_cp
        start = self._tail.find(dump.position) if dump is not None else self._beginning(ack)
        if start is None or (ack is not None and (start.seq, start.position) != (ack.seq, ack.position)):
            self._telling.detail = "the receiver begins anew"  # WAL and checkpoint change one after the other
            self._stop.wait(WAIT_S)
            return
        generation = Generation(1 if before is None else before.number + 1, checkpoint.replication_id, start, dump)
        if dump is not None:
            made = plan_dump(
                self._config.dump_path / self._db,
                self._config,
                time.time_ns() // 1_000_000,
                width=max(1, self._spark.sparkContext.defaultParallelism),
            )
            if made.position != dump.position:
                raise DeliveryStopped(
                    f"{self._db}: the dump is of {made.position}, the checkpoint says {dump.position}: let the "
                    "receiver fetch it again"
                )
            save_plan(self._folder.of(generation) / "plan.json", made)
        _log.info("%s %s: delivery begins at %s", self._config.source, self._db, start.position)
        self._folder.save(generation)
        if dump is not None:
            self._set_snapshot(dump, "running", 0)

    def _beginning(self, ack: Point | None) -> WalPoint | None:
        return self._tail.first() if ack is None else self._tail.find(ack.position)

    def _place_is_there(self, generation: Generation | None) -> bool:
        if generation is None:
            return False
        try:
            self._tail.settled(self._place(generation))
        except WalGone:
            return False
        return True

    def _place(self, generation: Generation) -> WalPoint:
        """Up to where the binlog is delivered."""
        _, offsets = query.committed(self._folder.of(generation) / "binlog")
        return generation.start if offsets is None else from_json(offsets)[self._db]

    # --- its dump -----------------------------------------------------------------------------------------------------

    def _deliver_dump(self, generation: Generation, dump: Dump) -> None:
        folder = self._folder.of(generation)
        self._telling.phase, self._telling.detail = "snapshot", ""
        total = self._telling.ranges_total
        topic = snapshot_topic(self._config)
        delivery = delivery_to(self._config, topic)
        record, offsets = query.committed(folder / "snapshot")
        done = 0 if offsets is None else offsets[DONE]
        if done < total:
            start = offsets or self._first_terms(folder / "snapshot.json", {DONE: 0}, delivery)
            ended = self._run(
                Query(
                    f"{self._config.source} {self._db} snapshot",
                    "pikiwi-snapshot",
                    self._options(generation, start, delivery, plan=str(folder / "plan.json")),
                    self._config.kafka_brokers,
                    delivery.event_bytes_max,
                    folder / "snapshot",
                    folder / "spark",
                    ends=True,
                ),
                generation,
                lambda *commit: self._dump_got_on(dump, topic, *commit),
            )
            record, offsets = query.committed(folder / "snapshot")
            if ended != "complete" or offsets is None or offsets[DONE] < total:
                return
        self._set_snapshot(dump, "done", 0 if record is None else query.counts(record, topic).done)
        _log.info("%s %s: the dump at %s is delivered", self._config.source, self._db, dump.position)

    def _dump_got_on(self, dump: Dump, topic: str, record: CommitRecord, offsets: dict[str, Any], is_new: bool) -> None:
        telling = self._telling
        telling.ranges_done, telling.snapshot = offsets[DONE], query.counts(record, topic)
        if is_new:
            self._moved()
        self._set_snapshot(dump, "running", telling.snapshot.done)

    def _set_snapshot(self, dump: Dump, state: Any, snapshot_seq: int) -> None:
        snapshot = Snapshot(state, dump.position, snapshot_seq, dump.uuid)
        self._file.update(lambda checkpoint: with_snapshot(checkpoint, self._db, dump, snapshot))

    # --- its binlog ---------------------------------------------------------------------------------------------------

    def _deliver_binlog(self, generation: Generation) -> None:
        folder = self._folder.of(generation)
        self._telling.phase, self._telling.detail = "binlog", ""
        topic = binlog_topic(self._config)
        delivery = delivery_to(self._config, topic)
        _, offsets = query.committed(folder / "binlog")
        start = offsets or self._first_terms(folder / "binlog.json", to_json({self._db: generation.start}), delivery)
        self._run(
            Query(
                f"{self._config.source} {self._db} binlog",
                "pikiwi-wal",
                self._options(generation, start, delivery, maxRecordsPerTrigger=str(BATCH_RECORDS_MAX)),
                self._config.kafka_brokers,
                delivery.event_bytes_max,
                folder / "binlog",
                folder / "spark",
            ),
            generation,
            lambda *commit: self._binlog_got_on(generation, topic, *commit),
        )

    def _binlog_got_on(
        self, generation: Generation, topic: str, record: CommitRecord, offsets: dict[str, Any], is_new: bool
    ) -> None:
        place = from_json(offsets)[self._db]
        point = Point(place.seq, place.position)
        checkpoint = self._file.load()
        if checkpoint is not None and not is_over(checkpoint, self._db, generation):
            self._file.advance_ack(self._db, generation.start.seq, point)
        telling = self._telling
        telling.delivered, telling.delivered_seq = place.position, place.seq
        telling.binlog = query.counts(record, topic)
        if is_new:
            self._moved()

    # --- queries ------------------------------------------------------------------------------------------------------

    def _options(self, generation: Generation, start: Any, delivery: Any, **more: str) -> dict[str, str]:
        return {
            "settings": settings_json(self._config),
            "db": self._db,
            "replicationId": generation.replication_id,
            "decode": "order",
            "startingOffsets": json.dumps(start),
            "topic": delivery.topic,
            "partitions": str(delivery.partitions),
            "eventBytesMax": str(delivery.event_bytes_max),
            **more,
        }

    @staticmethod
    def _first_terms(path: Path, offset: dict[str, Any], delivery: Any) -> dict[str, Any]:
        """The offset that the first batch begins at, with the terms of its first attempt."""
        try:
            return json.loads(path.read_bytes())
        except FileNotFoundError:
            terms = {"partitions": delivery.partitions, "event_bytes_max": delivery.event_bytes_max}
            first = {**offset, DELIVERY: terms}
            make_folder(path.parent)
            replace_file(path, json.dumps(first).encode())
            return first

    def _run(self, what: Query, generation: Generation, on_commit: Any) -> query.End:
        self._over = False
        self._begun_s = time.monotonic()
        return query.run(self._spark, what, self._stop, lambda: self._is_over(generation), on_commit, self._turn)

    def _is_over(self, generation: Generation, *, look: bool = False) -> bool:
        now_s = time.monotonic()
        if look or now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_S
            self._over = is_over(self._file.load(), self._db, generation)
        return self._over

    def _is_replaced(self, generation: Generation) -> bool:
        try:
            return self._is_over(generation, look=True) or not self._place_is_there(generation)
        except (LogSourceError, PikiwiError, OSError):
            return False  # nobody can tell: what failed counts as failed

    def _turn(self) -> None:
        self._look_at_what_waits()
        now_s = time.monotonic()
        idle_s = min(self._telling.ack_delay_s(now_s), now_s - self._begun_s)
        if idle_s > IDLE_S_MAX:
            raise QueryIdle(f"nothing was delivered for {idle_s:.0f} s, and no error: the query is started anew")

    def _look_at_what_waits(self) -> None:
        durable = self._tail.durable()
        telling = self._telling
        if durable is not None:  # else a stream does not answer
            telling.durable_seq = durable.seq
        if not telling.is_behind:
            telling.moved_s = time.monotonic()

    def _moved(self) -> None:
        """Something was delivered."""
        self._telling.moved_s = time.monotonic()
        self._telling.failures = 0

    # --- failures -----------------------------------------------------------------------------------------------------

    def _failed(self, failure: Exception) -> None:
        telling = self._telling
        telling.failures += 1
        words = query.last_words(failure)
        if telling.failures >= FAILURES_MAX:
            raise DeliveryStopped(
                f"{self._config.source} {self._db}: everything up to {telling.where} is delivered, and then it failed "
                f"{telling.failures} times in a row: {words}"
            ) from failure
        pause_s = min(PAUSE_S_FIRST * 2 ** (telling.failures - 1), PAUSE_S_MAX)
        telling.phase, telling.detail = "retrying", words
        _log.warning(
            "%s %s: delivery failed behind %s: %s; next try in %.0f s",
            self._config.source, self._db, telling.where, words, pause_s,
        )  # fmt: skip
        self._stop.wait(pause_s)


def state_folder(config: Config) -> Path:
    """Beside the checkpoint."""
    path = config.checkpoint_path.absolute()
    return path.with_name(f"{path.stem}.pipeline")
