"""Settings of a Spark session that these sources and sinks are at their best with; each can be overridden.

The checkpoint manager is the one that forks fewer helper processes a micro-batch (8 instead of about 45 on a local
disk); `local[*,4]` lets a failed task be tried again, which plain `local[*]` does not.

Allocators give memory back to the system that is free for a moment, and get it again page by page, each cleared anew: a
tenth of the time of a task that makes one group of rows after the other. `ALLOCATORS` (Arrow's, and the C library's for
numpy and Python) lets workers keep what the next group needs.

Half of what a decoded record costs is Spark's copy of Arrow's columns into its rows. `JAVA` makes that cheaper: a
collector whose barriers cost less than the default one's, and no second check of bounds in vectors that Spark has read
itself, and whose rows it counts.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

MASTER_LOCAL = "local[*,4]"
ALLOCATORS: Mapping[str, str] = MappingProxyType(
    {
        "MIMALLOC_PURGE_DELAY": "10000",  # milliseconds
        "MALLOC_MMAP_THRESHOLD_": str(64 << 20),
        "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
    }
)
"""Of workers' environment."""
JAVA = "-XX:+UseParallelGC -Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"

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
        "spark.driver.extraJavaOptions": JAVA,  # in a local session the driver does the tasks
        "spark.executor.extraJavaOptions": JAVA,
        **{f"spark.executorEnv.{name}": value for name, value in ALLOCATORS.items()},
    }
)


def session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with the defaults, the sources and sinks registered; on this machine, if nobody says otherwise."""
    # Not at the top: the package's own module must be loaded first.
    from tidelog.spark import register  # noqa: PLC0415

    submitted = _submitted()
    master = master or submitted.get("spark.master", MASTER_LOCAL)
    builder = SparkSession.builder.appName(name).master(master)
    defaults = {key: value for key, value in DEFAULTS.items() if key not in submitted}
    if submitted.get("spark.submit.pyFiles"):  # workers find the package there; the daemon that forks them does not
        defaults.pop("spark.python.daemon.module", None)
    for key, value in {**defaults, **(settings or {})}.items():
        builder = builder.config(key, value)
    if master.startswith("local"):  # the workers run beside this process, so in its environment
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        with _for_children(ALLOCATORS):
            spark = builder.getOrCreate()
    else:
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _submitted() -> dict[str, str]:
    """What `spark-submit` was told, if it has started this process."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    SparkContext._ensure_initialized()  # the settings are in the JVM
    return dict(SparkConf().getAll())


@contextmanager
def _for_children(variables: Mapping[str, str]) -> Iterator[None]:
    """For the processes that are started here, not for those that this one starts later."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
