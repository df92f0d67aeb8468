"""The log as Spark's input and output.

    tidelog.spark.register(spark)
    spark.read.format("tidelog").option("kafka.bootstrap.servers", …).option("subscribe", …).load()

`kernel/` is plain Python and Arrow, and needs no Spark; `link`, `cluster`, `fetch`, `produce` speak Kafka's protocol to
any cluster; `source` and `sink` are what Spark sees. pyspark is imported only by those two and `session`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the formats `tidelog`, `pikiwi-wal` and `pikiwi-snapshot` known to this session."""
    # Not at the top: the kernels must be importable without pyspark.
    from tidelog.spark.pikiwi_snapshot import PikiwiSnapshotDataSource  # noqa: PLC0415
    from tidelog.spark.pikiwi_wal import PikiwiWalDataSource  # noqa: PLC0415
    from tidelog.spark.source import TidelogDataSource  # noqa: PLC0415

    for source in (TidelogDataSource, PikiwiWalDataSource, PikiwiSnapshotDataSource):
        spark.dataSource.register(source)
