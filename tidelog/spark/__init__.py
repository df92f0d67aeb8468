"""The log as Spark's input and output.

    tidelog.spark.register(spark)
    spark.read.format("tidelog").option("kafka.bootstrap.servers", …).option("subscribe", …).load()

`kernel/` is plain Python and Arrow, and needs no Spark; `link`, `cluster`, `fetch`, `produce` speak Kafka's protocol to
any cluster; `source` and `sink` are what Spark sees of a log, `pikiwi_wal` and `pikiwi_snapshot` of a PikiwiDB source,
`region` of a region WAL; `pipeline/` puts them together. pyspark is imported only by those and `session`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: "SparkSession") -> None:
    """Make the package's formats known to this session.

    That of dumps needs the extra `pikiwi` too, and is left out without it.
    """
    # Not at the top: the kernels must be importable without pyspark.
    from tidelog.spark.message_sink import MessageSink  # noqa: PLC0415
    from tidelog.spark.pikiwi_wal import PikiwiWalDataSource  # noqa: PLC0415
    from tidelog.spark.region import RegionDataSource  # noqa: PLC0415
    from tidelog.spark.source import TidelogDataSource  # noqa: PLC0415
    from tidelog.spark.tables.append import TableDataSource  # noqa: PLC0415

    for source in (TidelogDataSource, MessageSink, PikiwiWalDataSource, RegionDataSource, TableDataSource):
        spark.dataSource.register(source)
    if find_spec("rocksdict") is not None:
        from tidelog.spark.pikiwi_snapshot import PikiwiSnapshotDataSource  # noqa: PLC0415

        spark.dataSource.register(PikiwiSnapshotDataSource)
