"""The sink of the data source `tidelog`: adapters between Spark's writers and the lanes (`produce`).

Spark makes a writer on the driver for each micro-batch, pickles it to the tasks, and makes another one to commit. So
the writer reads the commit record when it is made, and the tasks need no access to it.

Where a task stands in its query, Spark does not tell its writer; it stands in the task's local properties, under
internal names. A test holds Spark to them.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.spark import commit_record
from tidelog.spark.cluster import Cluster
from tidelog.spark.commit_record import CommitRecord, LaneReport
from tidelog.spark.errors import BadCommitRecord, BadOption
from tidelog.spark.kernel.options import WriteOptions, write_options
from tidelog.spark.kernel.rows import check_columns
from tidelog.spark.produce import TRUST_MS, LaneStart, LaneWriter

BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"


@dataclass
class LaneMessage(WriterCommitMessage):
    """What a task tells the driver; None from a batch query, which commits nothing."""

    report: LaneReport | None = None


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool, mode: str) -> WriteOptions:
    options = write_options(given)
    if overwrite:
        raise BadOption(f"a log cannot be overwritten: use {mode}")
    check_columns(to_arrow_schema(schema, timezone="UTC"), options.topic)
    return options


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "rows are written by tasks"
    return task


class LogWriter(DataSourceArrowWriter):
    """A batch query: exactly once over the retries of its tasks. Run again, it writes its rows again."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(given, schema, overwrite, 'mode("append")')
        self._identity = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        start = LaneStart(self._identity, _task().partitionId())
        with Cluster(self._options.bootstrap, self._options.request_s, security=self._options.security) as cluster:
            LaneWriter(cluster, self._options, start, now_ms).write(iterator)
        return LaneMessage()

    def commit(self, messages: list[Any]) -> None:
        """Every task has its rows in the log already."""

    def abort(self, messages: list[Any]) -> None:
        """Rows that were written stay: a log takes nothing back."""


class LogStreamWriter(DataSourceStreamArrowWriter):
    """A streaming query: exactly once over retries of tasks and batches, failed commits and restarts."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = _checked(given, schema, overwrite, 'outputMode("append")')
        self._folder = commit_record.folder_of(self._options)
        self._record = commit_record.load_or_begin(self._folder, now_ms())
        self._is_doubtful = now_ms() - self._record.last_ms > TRUST_MS

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LaneMessage:
        task = _task()
        query_id, batch_id = task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID)
        if not query_id or batch_id is None:
            raise BadCommitRecord(f"this Spark does not tell a task its query and batch ({QUERY_ID}, {BATCH_ID})")
        number, record = task.partitionId(), self._record
        if record.has(query_id, int(batch_id)):
            report = LaneReport(number, query_id, record.generation, {}, {}, skipped=True)
            return LaneMessage(report)
        start = LaneStart(
            record.identity, number, record.lanes.get(number, {}), record.partition_counts, self._is_doubtful
        )
        with Cluster(self._options.bootstrap, self._options.request_s, security=self._options.security) as cluster:
            writer = LaneWriter(cluster, self._options, start, now_ms)
            written = writer.write(iterator)
        return LaneMessage(LaneReport(number, query_id, record.generation, written, writer.partition_counts))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        committed = commit(self._record, messages, batchId, self._options)
        if committed is not self._record:
            commit_record.save(self._folder, committed)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Rows that were written stay; the batch is run again and goes on behind them."""


def commit(record: CommitRecord, messages: list[Any], batch_id: int, options: WriteOptions) -> CommitRecord:
    """The record with this batch; the same one when the batch is in it already, or had no task."""
    reports = [message.report for message in messages if message is not None and message.report is not None]
    if not reports or any(report.skipped for report in reports):
        return record
    offsets = commit_record.logged_source_offsets(options, batch_id)
    return record.after(batch_id, reports, offsets, now_ms())
