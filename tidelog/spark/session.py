"""Settings of a Spark session that these sources and sinks are at their best with; each can be overridden.

The checkpoint manager is the one that forks fewer helper processes a micro-batch (8 instead of about 45 on a local
disk); `local[*,4]` lets a failed task be tried again, which plain `local[*]` does not.

Arrow's allocator gives memory that is free for a hundredth of a second back to the system, and gets it again page by
page: a tenth of the time of a task that makes one group of rows after the other. `ALLOCATOR` lets it wait.
"""

import os
import sys
from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import SparkSession

MASTER_LOCAL = "local[*,4]"
ALLOCATOR = ("MIMALLOC_PURGE_DELAY", "10000")  # of workers' environment; milliseconds

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.python.daemon.module": "tidelog.spark.worker_daemon",  # new workers need not import everything again
        "spark.python.unix.domain.socket.enabled": "true",  # a little faster, and no need for a name `localhost`
        f"spark.executorEnv.{ALLOCATOR[0]}": ALLOCATOR[1],
    }
)


def session(name: str, master: str = MASTER_LOCAL, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the defaults, the sources and sinks registered."""
    # Not at the top: the package's own module must be loaded first.
    from tidelog.spark import register  # noqa: PLC0415

    if master.startswith("local"):  # the workers run beside this process, so in its environment
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault(*ALLOCATOR)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**DEFAULTS, **(settings or {})}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark
