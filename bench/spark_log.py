"""Spark reads a stream: rows a CPU-second from our source, decoded and raw, with the official connector beside it.

A CPU-second is one of all processes of the query (driver, JVM, Python workers), not of the cluster. All take turns
on the same stream in one session, after four unmeasured rounds each: so long a JVM still compiles. How it grows from
one task to two is told in seconds.
"""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.cluster_nodes import running_cluster
from bench.rounds import Line
from bench.scratch import scratch

RECORDS = 1_500_000
RECORD_BYTES = 150  # key and value
PARTITIONS = 4
BATCH_BYTES = 36_000  # about 200 records a batch, as producers make them
WARM_ROUNDS, ROUNDS = 4, 3
TARGET_RECORDS, TARGET_RAW, TARGET_RATIO = 0.6e6, 1.5e6, 1.0
TOPIC = "spark"
CONNECTOR_FOLDER = Path(os.environ.get("TIDELOG_CLIENTS_DIR", ".clients")) / "spark-kafka-connector"

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def spark_log() -> list[Line]:
    with scratch() as folder, running_cluster(folder) as cluster:
        cluster.create([TOPIC], PARTITIONS)
        fill(cluster.bootstrap, TOPIC, RECORDS)
        nodes = _children(os.getpid())
        with spark_session() as (spark, with_official):
            return _measure(spark, cluster.bootstrap, nodes, with_official=with_official)


@contextmanager
def spark_session() -> Iterator[tuple[Any, bool]]:
    """A session, and whether it has the official connector."""
    # Not at the top: the other benchmarks run without Spark.
    from tidelog.spark.session import session  # noqa: PLC0415

    jars = ",".join(str(jar.resolve()) for jar in sorted(CONNECTOR_FOLDER.glob("*.jar")))
    settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
    spark = session("bench", "local[2,4]", {**settings, **({"spark.jars": jars} if jars else {})})
    try:
        yield spark, bool(jars)
    finally:
        spark.stop()


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Records in `PARTITIONS` partitions, in batches as producers make them."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    from tidelog.spark.cluster import Cluster  # noqa: PLC0415
    from tidelog.spark.kernel.options import write_options  # noqa: PLC0415
    from tidelog.spark.produce import LaneStart, LaneWriter  # noqa: PLC0415

    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    given = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.batch.size": str(BATCH_BYTES)}
    options = write_options(given)
    rows = 50_000
    data = np.random.default_rng(7).integers(0, 256, RECORD_BYTES * rows, dtype=np.uint8).tobytes()
    keys = pa.array([b"key-%06d" % number for number in range(rows)])
    values = pa.array([data[at * RECORD_BYTES : (at + 1) * RECORD_BYTES - 10] for at in range(rows)])
    partition = pa.array(np.arange(rows, dtype=np.int32) % PARTITIONS)
    batch = pa.RecordBatch.from_arrays([keys, values, partition], names=["key", "value", "partition"])
    with Cluster(options.bootstrap, options.request_s) as cluster:
        LaneWriter(cluster, options, LaneStart("bench", 0), now_ms).write([batch] * (records // rows))


def _measure(spark: Any, bootstrap: str, nodes: Set[int], *, with_official: bool) -> list[Line]:
    contenders: dict[str, Mapping[str, str]] = {
        "record": {"decode": "record"},
        "one task": {"decode": "record"},
        "raw": {"decode": "raw"},
    }
    if with_official:
        contenders["official"] = {}
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    walls_s: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(WARM_ROUNDS + ROUNDS):
        for name, options in contenders.items():
            form = "kafka" if name == "official" else "tidelog"
            given = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, **options}
            before, begun_s = _tree_cpu_s(os.getpid(), nodes), time.monotonic()
            rows = spark.read.format(form).options(**given).load()
            (rows.coalesce(1) if name == "one task" else rows).write.format("noop").mode("overwrite").save()
            if number >= WARM_ROUNDS:
                walls_s[name].append(time.monotonic() - begun_s)
                speeds[name].append(RECORDS / (_tree_cpu_s(os.getpid(), nodes) - before))
    record, raw = statistics.median(speeds["record"]), statistics.median(speeds["raw"])
    one_s, two_s = statistics.median(walls_s["one task"]), statistics.median(walls_s["record"])
    lines = [
        _line("spark source, decoded", record, TARGET_RECORDS, speeds["record"]),
        _line("spark source, raw", raw, TARGET_RAW, speeds["raw"]),
        Line(
            "spark source, decoded, one task to two",
            f"× {one_s / two_s:.2f}",
            note=f"{one_s:.1f} s and {two_s:.1f} s",
            raw={"walls_s": walls_s},
        ),
    ]
    if not with_official:
        return [*lines, Line("spark source against spark-sql-kafka-0-10", "-", note="its jars are not in .clients/")]
    ratios = [ours / theirs for ours, theirs in zip(speeds["record"], speeds["official"], strict=True)]
    ratio = statistics.median(ratios)
    note = f"rows a CPU-second; theirs {statistics.median(speeds['official']) / 1e6:.2f} M"
    name = "spark source against spark-sql-kafka-0-10"
    return [
        *lines,
        Line(name, f"{ratio:.2f} ×", f"≥ {TARGET_RATIO} ×", ratio >= TARGET_RATIO, note, {"speeds": speeds}),
    ]


def _line(name: str, speed: float, target: float, all_speeds: list[float]) -> Line:
    note = f"rows a CPU-second, {min(all_speeds) / 1e6:.2f} to {max(all_speeds) / 1e6:.2f} M"
    return Line(
        name, f"{speed / 1e6:.2f} M/s", f"≥ {target / 1e6:.1f} M/s", speed >= target, note, {"speeds": all_speeds}
    )


def _tree_cpu_s(pid: int, without: Set[int]) -> float:
    """Of a process and all that came from it, also those that have ended and were waited for; `without` some."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) * _TICK_S  # its own and its ended children's, user and system
    return own + sum(_tree_cpu_s(child, without) for child in _children(pid) - without)


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):  # threads and processes end while we look
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found |= {int(child) for child in (task / "children").read_text().split()}
    return found
