"""The data source `regionwal`: the live entries of a database's region, a task a table, for replay and audit.

    spark.read.format("regionwal").option("kafka.bootstrap.servers", …).option("region", "7").load()

What is read is fixed when the query is planned: of each table the entries from its mark up to its last one then. Nobody
is fenced and nothing is written. Columns: table_id, sequence, payload, offset (in the region's data topic).

A task opens the region for itself, which costs what a recovery costs (a snapshot and what came after it); it then reads
its own table's stretches of the log only.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidelog.regionwal import Bound, Entry, RegionWal, Settings
from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.arrays import numbers
from tidelog.spark.kernel.wal_options import Given

OPTIONS = ("kafka.bootstrap.servers", "namespace", "region", "tables")
ID_MAX = 2**63 - 1  # what Spark's BIGINT holds
BATCH_BYTES = 4 << 20

SCHEMA = pa.schema(
    [
        pa.field("table_id", pa.int64()),
        pa.field("sequence", pa.int64()),
        pa.field("payload", pa.binary()),
        pa.field("offset", pa.int64()),
    ]
)


class RegionDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "regionwal"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        if schema != self.schema():
            raise BadOption("the source's schema is fixed")
        given = Given(self.options, OPTIONS, "the regionwal source")
        if not given.text("kafka.bootstrap.servers"):
            raise BadOption("kafka.bootstrap.servers is missing: say where the log is, as HOST:PORT[,HOST:PORT…]")
        if not given.text("region"):
            raise BadOption("region is missing: say by its number which one")
        tables = tuple(_number(word) for word in given.text("tables").split(",") if word.strip())
        where = _Where(
            given.text("kafka.bootstrap.servers"), given.text("namespace", "wal"), given.number("region", 0, least=0)
        )
        return RegionReader(where, tables)


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise BadOption(f"tables: {text.strip()!r} is no table's number")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Where:
    bootstrap: str
    namespace: str
    region: int

    def open(self) -> RegionWal:
        """To read only."""
        settings = Settings(self.bootstrap, self.namespace, read_only=True, client={"log_level": 0})
        wal = RegionWal(settings)
        try:
            if self.region not in wal.regions():  # else it would wait for its topics
                raise BadOption(f"namespace {self.namespace} at {self.bootstrap} has no region {self.region}")
            wal.open_region(self.region)
        except BaseException:
            wal.close()
            raise
        return wal


@dataclass
class TablePartition(InputPartition):
    """Sequence numbers from `first` to before `end` of one table."""

    table: int
    first: int
    end: int


class RegionReader(DataSourceReader):
    def __init__(self, where: _Where, tables: tuple[int, ...]) -> None:
        self._where = where
        self._tables = tables

    def partitions(self) -> list[TablePartition]:
        wal = self._where.open()
        try:
            [region] = wal.statistics(self._where.region).regions
        finally:
            wal.close()
        held = {table.table_id: table for table in region.tables}
        if unknown := [table for table in self._tables if table not in held]:
            raise BadOption(f"region {self._where.region} has no table {', '.join(map(str, unknown))}")
        parts = [
            TablePartition(number, table.marked_deleted, table.next_sequence)
            for number, table in sorted(held.items())
            if table.live_entries and (not self._tables or number in self._tables)
        ]
        if too_large := [part.table for part in parts if part.table > ID_MAX]:
            raise BadOption(f"tables {too_large} have numbers beyond {ID_MAX}, which a BIGINT cannot hold")
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TablePartition):  # Spark starts one task also when there is nothing to read
            return
        wal = self._where.open()
        try:
            bounds = Bound.included(partition.first), Bound.excluded(partition.end)
            held: list[Entry] = []
            size = 0
            for chunk in wal.read_chunks(self._where.region, partition.table, *bounds):
                held += chunk
                size += sum(len(entry.payload) for entry in chunk)
                if size >= BATCH_BYTES:
                    yield _batch(held)
                    held, size = [], 0
            if held:
                yield _batch(held)
        finally:
            wal.close()


def _batch(entries: list[Entry]) -> pa.RecordBatch:
    columns = [
        numbers(np.array([entry.table_id for entry in entries], dtype=np.int64)),
        numbers(np.array([entry.sequence for entry in entries], dtype=np.int64)),
        pa.array([entry.payload for entry in entries], pa.binary()),
        numbers(np.array([entry.offset for entry in entries], dtype=np.int64)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
