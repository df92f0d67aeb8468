"""What is imported when: the kernels without Spark, Spark's workers without pandas."""

import subprocess
import sys

import pytest

KERNELS = ("arrays", "decode", "encode", "offsets", "options", "partitioner", "ranges", "rows", "varints")


def imported(statement: str) -> set[str]:
    program = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_kernels_and_client_need_no_spark():
    kernels = ", ".join(f"tidelog.spark.kernel.{name}" for name in KERNELS)
    assert "pyspark" not in imported(f"import {kernels}, tidelog.spark.produce, tidelog.spark.decoders")


def test_a_worker_does_not_wait_for_pandas():
    """It costs a third of a second, in each new worker of each micro-batch."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install tidelog[spark]")
    reading = """
import tidelog.spark.source
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_raw, decode_records
from tidelog.wire.records import Record, build_batch
run = build_batch([Record(b"v", b"k", headers=(("a", b"b"),)), Record(None)])
assert sum(batch.num_rows for batch in decode_records(run, Place("t", 0, 0, 9), RECORD_SCHEMA)) == 2
assert decode_raw(run, Place("t", 0, 0, 9)).num_rows == 1
"""
    assert "pandas" not in imported(reading)
