"""A region's entries as rows."""

import itertools

import pytest

pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tidelog.regionwal import RegionWal, Settings

from .world import Log

_namespaces = itertools.count()


def region(spark: SparkSession, log: Log, namespace: str, **options: str) -> DataFrame:
    reader = spark.read.format("regionwal").option("kafka.bootstrap.servers", log.bootstrap)
    return reader.options(namespace=namespace, region="7", **options).load()


def test_the_live_entries_of_each_table_are_read_by_a_task_of_its_own(spark: SparkSession, tidelog_log: Log):
    namespace = f"spark{next(_namespaces)}"
    written: dict[int, list[tuple[int, bytes]]] = {}
    with RegionWal(Settings(tidelog_log.bootstrap, namespace)) as wal:
        wal.open_region(7)
        for table in (1, 2, 9):
            last = wal.write(7, table, [b"%d-%d" % (table, number) for number in range(50)])
            written[table] = [(last - 49 + number, b"%d-%d" % (table, number)) for number in range(50)]
        wal.mark_delete(7, 2, written[2][29][0])
        written[2] = written[2][30:]
        wal.close_region(7)  # with a snapshot, in which others find the mark
        wal.open_region(7)
        rows = region(spark, tidelog_log, namespace)
        assert rows.rdd.getNumPartitions() == 3
        found: dict[int, list[tuple[int, bytes]]] = {}
        for row in rows.collect():
            found.setdefault(row.table_id, []).append((row.sequence, bytes(row.payload)))
        assert found == written
        [only] = {row.table_id for row in region(spark, tidelog_log, namespace, tables="9").collect()}
        assert only == 9
        wal.write(7, 1, [b"the writer was not fenced"])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"region": "8"}, "has no region 8"), ({"tables": "5"}, "has no table 5"), ({"tables": "x"}, "no table's number")],
)
def test_what_is_not_there_is_an_error_that_says_so(
    spark: SparkSession, tidelog_log: Log, options: dict[str, str], words: str
):
    namespace = f"spark{next(_namespaces)}"
    with RegionWal(Settings(tidelog_log.bootstrap, namespace)) as wal:
        wal.open_region(7)
        wal.write(7, 1, [b"x"])
    reader = spark.read.format("regionwal").option("kafka.bootstrap.servers", tidelog_log.bootstrap)
    given = {"namespace": namespace, "region": "7", **options}
    with pytest.raises(PySparkException, match=words):
        reader.options(**given).load().collect()
