"""The sink `tidelog-table`: a streaming query's rows appended to a Delta table, each micro-batch exactly once.

    query.writeStream.format("tidelog-table").option("path", "events").option("checkpointLocation", …).start()

Tasks write Parquet files, the driver makes them the table's by one commit, which says "query Q, batch N" too. A batch
that is run again after its commit finds that and takes its own files away. A query is known by the id in its
checkpoint: a new checkpoint is a new query, and what it reads again is appended again.

The table is made with the query's columns when there is none; later queries must have the same.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidelog.spark.errors import BadOption
from tidelog.spark.sink import QUERY_ID
from tidelog.spark.tables.delta import DataFile, DeltaFolder, TableBusy, TableError, write_file

FORMAT = "tidelog-table"
COMMITS_MAX = 10  # tries, when other queries append to the same table
FILE_BYTES_MAX = 128 << 20  # of rows in memory; a task with more writes several files


class TableDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        if overwrite:
            raise BadOption('rows can only be appended: use outputMode("append")')
        return TableStreamWriter(_folder(self.options), to_arrow_schema(schema, timezone="UTC"))


def _folder(options: Mapping[str, str]) -> Path:
    path = dict(options).get("path", "")
    if not path:
        raise BadOption("path: say which folder the table is in")
    return Path(path.removeprefix("file://")).absolute()


@dataclass
class FilesMessage(WriterCommitMessage):
    """What a task has written."""

    query_id: str
    files: list[DataFile]


class TableStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self._folder = folder
        self._schema = schema
        if not DeltaFolder.exists(folder):
            DeltaFolder.create(folder, schema)
        elif not _same(DeltaFolder.open(folder).schema, schema):
            raise TableError(f"{folder} has other columns than the query: choose another folder, or other columns")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> FilesMessage:
        task = TaskContext.get()
        query_id = task.getLocalProperty(QUERY_ID) if task is not None else None
        if not query_id:
            raise TableError(f"this Spark does not tell a task its query ({QUERY_ID})")
        files: list[DataFile] = []
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in iterator:
            held.append(batch)
            size += batch.nbytes
            if size >= FILE_BYTES_MAX:
                files.append(self._file(held))
                held, size = [], 0
        if any(len(batch) for batch in held):
            files.append(self._file(held))
        return FilesMessage(query_id, files)

    def _file(self, batches: list[pa.RecordBatch]) -> DataFile:
        return write_file(self._folder, pa.Table.from_batches(batches).cast(self._schema))

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        told = [message for message in messages if message is not None]
        if not told:
            return
        source = f"query/{told[0].query_id}"
        files = [each for message in told for each in message.files]
        for _ in range(COMMITS_MAX):
            table = DeltaFolder.open(self._folder)
            stands = table.position(source)
            if stands is not None and stands >= batchId:
                self._remove(files)
                return
            try:
                table.commit(files, [], {source: batchId})
            except TableBusy:
                continue
            return
        raise TableBusy(f"{self._folder}: others were faster {COMMITS_MAX} times; the batch is tried again")

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803, ARG002
        """Also when a commit failed, maybe behind the point where the files became the table's."""
        held = {each.path for each in DeltaFolder.open(self._folder).files()}
        written = [each for message in messages if message is not None for each in message.files]
        self._remove([each for each in written if each.path not in held])

    def _remove(self, files: list[DataFile]) -> None:
        """Files of no commit."""
        for each in files:
            os.unlink(self._folder / each.path)


def _same(one: pa.Schema, other: pa.Schema) -> bool:
    return [(field.name, field.type) for field in one] == [(field.name, field.type) for field in other]
