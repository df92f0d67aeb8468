"""A dump's way into a topic through Spark: elements a CPU-second, and how it grows from one task to two.

The dump has strings, hashes, sets, zsets and lists, a fifth of the elements each, and `PER_KEY` elements a collection.
A CPU-second is one of all processes of the pipeline (driver, JVM, Python workers), not of the cluster. A small dump is
delivered unmeasured at first: a JVM needs a while to get warm. Then the same dump is delivered by one task at a time,
and by two: the second is the measured one, and the ratio of their times is the growth.
"""

import json
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster_nodes import running_cluster
from bench.rounds import Line
from bench.scratch import scratch
from bench.spark_log import _children as children
from bench.spark_log import _tree_cpu_s as tree_cpu_s
from tests.pikiwi.dump_writer import FloydWriter

ELEMENTS = 1_000_000  # the target is for 5 M: `--elements 5000000`
WARM_ELEMENTS = 100_000
PER_KEY = 100
INSTANCE_ELEMENTS = 250_000  # what the writer of the dump holds in memory
RANGES = 8
PARTITIONS = 4
TARGET = 100_000
INFO = Path(__file__).parent.parent / "tests" / "pikiwi" / "fixtures" / "dump-4.0.1" / "info"


@dataclass(frozen=True, slots=True)
class _Delivered:
    elements: int
    cpu_s: float
    wall_s: float


def spark_snapshot(elements: int = ELEMENTS) -> list[Line]:
    # Not at the top: the other benchmarks run without Spark.
    from tidelog.spark.pipeline.supervisor import JAVA  # noqa: PLC0415
    from tidelog.spark.session import session  # noqa: PLC0415

    with scratch() as folder, running_cluster(folder) as cluster:
        nodes = children(os.getpid())
        topics = ["warm", "one", "two"]
        cluster.create([name + end for name in topics for end in ("", ".dead-letter")], PARTITIONS)
        small, large = Path(folder) / "small", Path(folder) / "large"
        _write(small, WARM_ELEMENTS)
        _write(large, elements)
        settings = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
        spark = session("bench", "local[2,4]", {**JAVA, **settings})
        try:
            _deliver(spark, small, WARM_ELEMENTS, cluster.bootstrap, "warm", 2, nodes)
            one = _deliver(spark, large, elements, cluster.bootstrap, "one", 1, nodes)
            two = _deliver(spark, large, elements, cluster.bootstrap, "two", 2, nodes)
        finally:
            spark.stop()
    speed = elements / two.cpu_s
    growth = one.wall_s / two.wall_s
    return [
        Line(
            f"spark pipeline, dump of {elements:,} elements to topic",
            f"{speed / 1000:.0f} k/s",
            f"≥ {TARGET // 1000} k/s",
            speed >= TARGET,
            f"elements a CPU-second; {elements / two.wall_s / 1000:.0f} k a second",
            {"elements": elements, "cpu_s": two.cpu_s, "wall_s": two.wall_s},
        ),
        Line(
            "spark pipeline, dump, one task to two",
            f"× {growth:.2f}",
            note=f"{one.wall_s:.1f} s and {two.wall_s:.1f} s; {one.cpu_s:.1f} and {two.cpu_s:.1f} s of CPU",
            raw={"one_wall_s": one.wall_s, "two_wall_s": two.wall_s},
        ),
    ]


def _write(folder: Path, elements: int) -> None:
    folder.mkdir()
    shutil.copy(INFO, folder / "info")
    for instance, begin in enumerate(range(0, elements, INSTANCE_ELEMENTS)):
        _write_instance(FloydWriter(folder, instance), begin, min(INSTANCE_ELEMENTS, elements - begin) // 5)


def _write_instance(writer: FloydWriter, begin: int, each: int) -> None:
    for number in range(begin, begin + each):
        writer.string(b"string:%08d" % number, b"value of %d" % number)
    for number in range(begin, begin + each, PER_KEY):
        name, numbers = b"%%s:%08d" % number, range(min(PER_KEY, begin + each - number))
        writer.hash(name % b"hash", {b"field:%06d" % each: b"value of %d" % each for each in numbers})
        writer.set(name % b"set", [b"member:%06d" % each for each in numbers])
        writer.zset(name % b"zset", {b"member:%06d" % each: each / 7 for each in numbers})
        writer.list(name % b"list", [b"value of %d" % each for each in numbers])
    writer.close()


def _deliver(
    spark: Any, dump: Path, elements: int, bootstrap: str, topic: str, width: int, nodes: set[int]
) -> _Delivered:
    from tidelog.pikiwi.config import Config  # noqa: PLC0415
    from tidelog.spark.kernel.snapshot_rows import save_plan  # noqa: PLC0415
    from tidelog.spark.pikiwi_snapshot import DONE, plan_dump  # noqa: PLC0415
    from tidelog.spark.pipeline import query  # noqa: PLC0415
    from tidelog.spark.pipeline.settings import settings_json  # noqa: PLC0415

    folder = dump.parent / topic
    config = Config(master_port=9221, checkpoint_path=folder / "checkpoint.json", kafka_brokers=bootstrap)
    cpu_s, begun_s = tree_cpu_s(os.getpid(), nodes), time.monotonic()
    save_plan(folder / "plan.json", plan_dump(dump, config, 1, RANGES, width))
    options = {
        "settings": settings_json(config),
        "db": "db0",
        "path": str(dump),
        "decode": "order",
        "plan": str(folder / "plan.json"),
        "startingOffsets": json.dumps({DONE: 0}),
        "topic": topic,
        "partitions": str(PARTITIONS),
    }
    what = query.Query(
        topic, "pikiwi-snapshot", options, bootstrap, config.kafka_message_max_bytes, folder / "commits",
        folder / "spark", ends=True,
    )  # fmt: skip
    query.run(spark, what, threading.Event(), lambda: False, lambda *_: None, lambda: None)
    record, _ = query.committed(folder / "commits")
    assert record is not None
    assert query.counts(record, topic).done == elements // 5 + 4 * -(-elements // 5 // PER_KEY), "all of it arrived"
    return _Delivered(elements, tree_cpu_s(os.getpid(), nodes) - cpu_s, time.monotonic() - begun_s)
