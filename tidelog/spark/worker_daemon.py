"""Spark's own daemon for Python workers, with the modules loaded that this package's sources and sinks need.

Spark forks its Python workers from a daemon that knows none of the modules which tasks use; every new worker imports
pyarrow and this package anew, half a second of CPU, and a micro-batch may take several new ones. Forked from a daemon
that has them already, a worker has them too. Set by `session.py` (`spark.python.daemon.module`).
"""

import gc

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc  # for whoever is forked
from pyspark import daemon, worker  # noqa: F401
from pyspark.sql import datasource_internal  # noqa: F401
from pyspark.sql.worker import (  # noqa: F401
    plan_data_source_read,
    python_streaming_sink_runner,
    write_into_data_source,
)

import tidelog.spark.message_sink
import tidelog.spark.pikiwi_snapshot
import tidelog.spark.pikiwi_wal
import tidelog.spark.source
import tidelog.spark.tier_history
import tidelog.spark.tier_read  # noqa: F401


def main() -> None:
    pa.array([1])  # imports pandas, if it is there
    gc.collect()
    gc.freeze()  # what is here stays: collections of a worker need not look at it, and its pages stay shared
    daemon.manager()


if __name__ == "__main__":
    main()
