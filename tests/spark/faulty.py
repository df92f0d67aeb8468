"""The sink with places where it dies, each once: `faultAt` names the place, `faultFolder` remembers that it happened.

A module of its own, because Spark's workers import it. `WRITE` places fail a task; the others fail the query.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from tidelog.spark.sink import BATCH_ID, LogStreamWriter
from tidelog.spark.source import TidelogDataSource

BEFORE_WRITE = "before-write"
MID_WRITE = "mid-write"
AFTER_WRITE = "after-write"
MID_WRITE_ALWAYS = "mid-write-every-attempt"  # so the query fails
BEFORE_COMMIT = "before-commit"
AFTER_COMMIT = "after-commit"

FAULTY_BATCH = 1  # not the first, so that there is something to go on from


class Died(Exception):
    """Here, on purpose."""


class FaultySource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        options = {name.lower(): value for name, value in dict(self.options).items()}
        at, folder = options.pop("faultat"), options.pop("faultfolder")
        return FaultyWriter(options, schema, overwrite, at, Path(folder))


class FaultyWriter(LogStreamWriter):
    def __init__(self, given: Any, schema: StructType, overwrite: bool, at: str, folder: Path) -> None:
        super().__init__(given, schema, overwrite)
        self._at = at
        self._marks = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        task = TaskContext.get()
        assert task is not None
        if int(task.getLocalProperty(BATCH_ID) or "") != FAULTY_BATCH or task.partitionId() != 0:
            return super().write(iterator)
        self._die_once(BEFORE_WRITE, task)
        if self._at.startswith(MID_WRITE) and self._happens(task):
            batches = list(iterator)
            half = pa.Table.from_batches(batches)
            half = half.slice(0, half.num_rows // 2)
            super().write(iter(half.to_batches()))  # they are in the log when this returns
            raise Died(self._at)
        message = super().write(itertools.chain(iterator))
        self._die_once(AFTER_WRITE, task)
        return message

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        if batchId == FAULTY_BATCH:
            self._die_once(BEFORE_COMMIT)
        super().commit(messages, batchId)
        if batchId == FAULTY_BATCH:
            self._die_once(AFTER_COMMIT)

    def _die_once(self, place: str, task: TaskContext | None = None) -> None:
        if self._at == place and self._happens(task):
            raise Died(place)

    def _happens(self, task: TaskContext | None) -> bool:
        """Whether it is the first time; with every attempt of a task, that of its first job."""
        attempt = task.attemptNumber() if task is not None and self._at == MID_WRITE_ALWAYS else 0
        mark = self._marks / f"died-{attempt}"
        if mark.exists():
            return False
        mark.touch()
        return True
