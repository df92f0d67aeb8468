"""The state table kept up with delta-spark's MERGE, for a table that is more than one machine should rewrite.

It is the same table with the same positions, and the same fold: Spark finds the rows of the keys that a batch names,
the driver folds the batch over them (`fold.py`), and one MERGE puts the outcome into the table, read and written by
all of Spark's workers. The two engines may take turns.

Exactly once: MERGE commits the position with the rows (`txnAppId` and `txnVersion` are the application transaction that
`delta.py` writes, too), and does nothing when the table has that position already. MERGE does not know of which version
the rows were that were folded, so the table's lock is held from reading them to the commit.

Durability: Spark does not sync what it writes. The files of a batch are synced behind its commit, before anyone is told
that the batch is in the table; a power cut in between may leave a version whose files are not whole.

delta-spark and delta-storage have to be among Spark's jars. Cost: two Spark jobs a batch, some seconds on any table.
"""

from collections.abc import Mapping
from types import MappingProxyType
from uuid import uuid4

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from tidelog.pikiwi.position import Position
from tidelog.spark.tables.delta import TableBusy, TableError
from tidelog.spark.tables.fold import touched
from tidelog.spark.tables.position import pack
from tidelog.spark.tables.rows import FILE_SCHEMA, STATE_SCHEMA, Rows, entries
from tidelog.spark.tables.state import Change, StateTable

SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.databricks.delta.snapshotPartitions": "4",  # of the log, which is small here; 50 by default
    }
)
"""What a session needs for MERGE, besides the jars."""

TXN_APP, TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
GONE = "gone"
CHANGE_SCHEMA = STATE_SCHEMA.append(pa.field(GONE, pa.bool_()))
_IDENTITY = ("type", "key", "field", "index")  # of a row within its database


class MergedTable:
    """A state table whose batches go in by MERGE. `apply` is what `StateTable.apply` is."""

    def __init__(self, table: StateTable, spark: SparkSession) -> None:
        self._table = table
        self._spark = spark
        try:
            spark.read.format("delta").load(str(table.delta.folder))
        except PySparkException as error:
            raise TableError(
                f"Spark cannot read {table.delta.folder} as a Delta table: {str(error).splitlines()[0]} (MERGE needs "
                "the jars of delta-spark and delta-storage, see --jars)"
            ) from error

    def apply(self, source: str, db: str, commands: pa.Table, start: Position, end: Position) -> Change:
        table = self._table
        with table.delta.alone():
            table.delta.refresh()
            batch = table.batch(source, commands, start, end)
            named = table.by_bucket(touched(batch))
            before = self._rows(db, named)
            folded = table.fold(db, entries(before), batch, start)
            after = table.rows(folded)
            files = {each.path for each in table.delta.files()}
            self._merge(source, db, changes(table, db, before, after), named, pack(end), flushed=folded.flushed)
            table.delta.refresh()
            assert table.position(source) == end, "a MERGE commits its position also when it changes no row"
            table.delta.sync(each for each in table.delta.files() if each.path not in files)
            table.note_clock(db, batch)  # by itself: a MERGE has one position. Lost, the next batch notes it
        return Change(table.delta.version, len(batch), len(folded.touched), sum(map(len, after.values())))

    def _rows(self, db: str, named: Mapping[int, list[bytes]]) -> pa.Table:
        """What the table holds of these keys."""
        if not named:
            return FILE_SCHEMA.empty_table()
        pairs = [(bucket, key) for bucket, keys in named.items() for key in keys]
        wanted = pa.table(
            [pa.array([bucket for bucket, _ in pairs], pa.int32()), pa.array([key for _, key in pairs], pa.binary())],
            names=["bucket", "key"],
        )
        held = self._spark.read.format("delta").load(str(self._table.delta.folder))
        held = held.where((sql.col("db") == db) & sql.col("bucket").isin(list(named)))
        found = held.join(sql.broadcast(self._spark.createDataFrame(wanted)), ["bucket", "key"], "left_semi")
        return found.select(*FILE_SCHEMA.names).toArrow().cast(FILE_SCHEMA)

    def _merge(
        self, source: str, db: str, changed: pa.Table, named: Mapping[int, list[bytes]], version: int, *, flushed: bool
    ) -> None:
        spark, view = self._spark, f"tidelog_changes_{uuid4().hex}"
        buckets = ", ".join(map(str, sorted(named))) or "NULL"
        name = f"CAST(X'{db.encode().hex()}' AS STRING)"  # MERGE takes no parameters; this needs no escaping
        flush = f"WHEN NOT MATCHED BY SOURCE AND held.db = {name} THEN DELETE" if flushed else ""
        spark.createDataFrame(changed).createOrReplaceTempView(view)
        spark.conf.set(TXN_APP, source)
        spark.conf.set(TXN_VERSION, str(version))
        try:
            spark.sql(
                f"""
                MERGE INTO delta.`{str(self._table.delta.folder).replace("`", "``")}` held USING {view} changed
                ON held.db = {name} AND held.bucket IN ({buckets}) AND held.bucket = changed.bucket
                   AND held.key = changed.key AND held.type = changed.type
                   AND held.field <=> changed.field AND held.index <=> changed.index
                WHEN MATCHED AND changed.{GONE} THEN DELETE
                WHEN MATCHED THEN UPDATE SET *
                WHEN NOT MATCHED AND NOT changed.{GONE} THEN INSERT *
                {flush}
                """
            )
        except (PySparkException, Py4JJavaError) as error:
            said = str(error).strip().splitlines()[0]
            kind = TableBusy if "Concurrent" in str(error) else TableError
            raise kind(f"{self._table.delta.folder}: MERGE failed and has changed nothing: {said}") from error
        finally:
            spark.conf.unset(TXN_APP)
            spark.conf.unset(TXN_VERSION)
            spark.catalog.dropTempView(view)


def changes(table: StateTable, db: str, before: pa.Table, after: Mapping[int, Rows]) -> pa.Table:
    """Rows to be put in, and those to be taken out (`gone`), one a row of the table at most. Pure."""
    parts = [_changed(db, bucket, rows.table(), gone=False) for bucket, rows in after.items()]
    stays = {identity for part in parts for identity in _identities(part)}
    lost: dict[int, list[int]] = {}
    for number, identity in enumerate(_identities(before)):
        if identity not in stays:
            lost.setdefault(table.bucket(identity[1]), []).append(number)
    parts += [_changed(db, bucket, before.take(numbers), gone=True) for bucket, numbers in lost.items()]
    return pa.concat_tables([CHANGE_SCHEMA.empty_table(), *parts])


def _identities(rows: pa.Table) -> list[tuple[str, bytes, bytes | None, int | None]]:
    return list(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))


def _changed(db: str, bucket: int, rows: pa.Table, *, gone: bool) -> pa.Table:
    columns = {
        "db": pa.repeat(pa.scalar(db, pa.string()), len(rows)),
        "bucket": pa.repeat(pa.scalar(bucket, pa.int32()), len(rows)),
        **{name: rows[name] for name in FILE_SCHEMA.names},
        GONE: pa.repeat(pa.scalar(gone), len(rows)),
    }
    return pa.table(columns, schema=CHANGE_SCHEMA)
