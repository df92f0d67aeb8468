"""Delta tables as views of a Spark session: Spark reads their Parquet files, delta-rs says which.

A state table's view leaves out keys that have expired by the session's clock, as a master would; `<name>_all` has them.
What a view shows is the version that was current when it was made.
"""

from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from tidelog.spark.tables.delta import DeltaFolder, TableError
from tidelog.spark.tables.state import KIND, STATE

FEATURES = frozenset({"timestampNtz"})  # of a table's readers, that plain Parquet files do not need


def make_views(spark: SparkSession, tables: Mapping[str, Path]) -> None:
    for name, folder in tables.items():
        table = DeltaFolder.open(folder)
        rows = read_table(spark, table)
        if table.settings.get(KIND) == STATE:
            rows.createOrReplaceTempView(f"{name}_all")
            lives = sql.col("expire_at").isNull() | (sql.col("expire_at") >= sql.expr("unix_millis(now())"))
            rows = rows.where(lives)
        rows.createOrReplaceTempView(name)


def read_table(spark: SparkSession, table: DeltaFolder) -> DataFrame:
    wanted = set(table.delta.protocol().reader_features or ()) - FEATURES
    if wanted:
        raise TableError(f"{table.folder} needs {', '.join(sorted(wanted))} to be read: use a session with delta-spark")
    schema = from_arrow_schema(table.schema)
    paths = table.delta.file_uris()
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", str(table.folder)).parquet(*paths)
