"""Spark reads history: from the object store, from the node that reads it there, and with the official connector.

One node, tiered to a folder, with next to nothing of the stream left on its disk. A CPU-second is one of all processes:
driver, JVM, Python workers, and the node, whose share is shown too. The three take turns in one session, after some
rounds that are not counted. The node keeps what it has fetched twice, so those who read through it have its cache.
"""

import json
import os
import statistics
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from typing import Any

from bench.frames import admin, create_topic
from bench.processes import Program, Server, serving_node
from bench.raw_client import RawClient
from bench.rounds import Line
from bench.scratch import scratch
from bench.spark_log import PARTITIONS, fill, spark_session
from bench.spark_log import _tree_cpu_s as tree_cpu_s
from tidelog.wire.messages import CreateTopicsRequestConfig

RECORDS = 3_000_000
SEGMENT_BYTES = 32 << 20
WARM_UP, ROUNDS = 2, 3
TARGET_RATIO = 2.0
BROKER_SHARE_MAX = 0.05  # of all CPU, while history is read from the store: a node that lives has some to do
TIERED_S_MAX = 180.0
TOPIC = "spark-tier"
NAME = "spark tier.path against spark-sql-kafka-0-10"

STORE, BROKERS, OFFICIAL = "store", "brokers", "official"


def spark_tier() -> list[Line]:
    with scratch() as folder:
        store = f"file://{os.path.abspath(folder)}/store"
        with (
            _node(folder, store, retention_check_ms=100, remote_log_manager_task_interval_ms=100) as server,
            closing(RawClient(server.address)) as client,
        ):
            _create(client)
            fill(server.bootstrap, TOPIC, RECORDS)
            _await_tiered(client)
        with _node(folder, store) as server, spark_session() as (spark, with_official):
            server.program.settle()
            return _measure(spark, server.bootstrap, store, server.program, with_official=with_official)


def _node(folder: str, store: str, **more: object) -> AbstractContextManager[Server]:
    return serving_node(
        folder,
        storage_segment_bytes=SEGMENT_BYTES,
        remote_log_storage_system_enable="true",
        remote_log_store_url=store,
        remote_fetch_max_wait_ms=10_000,
        **more,
    )


def _create(client: RawClient) -> None:
    request = create_topic(TOPIC)
    request.topics[0].num_partitions = PARTITIONS
    request.topics[0].configs = [
        CreateTopicsRequestConfig(name="remote.storage.enable", value="true"),
        CreateTopicsRequestConfig(name="local.retention.bytes", value="1"),
    ]
    assert not client.call(request).topics[0].error_code


def _await_tiered(client: RawClient) -> None:
    """Until only the segments that are being written are on disk."""
    deadline = time.monotonic() + TIERED_S_MAX
    for partition in range(PARTITIONS):
        while True:
            answer = client.call(admin("tier-status", topic=TOPIC, partition=partition))
            if not answer.error_code and json.loads(answer.content)["local_bytes"] <= SEGMENT_BYTES:
                break
            assert time.monotonic() < deadline, "the disk does not empty"
            time.sleep(0.05)


def _measure(spark: Any, bootstrap: str, store: str, node: Program, *, with_official: bool) -> list[Line]:
    own = {"tier.path": store}
    contenders: dict[str, Mapping[str, str]] = {STORE: own, BROKERS: {}, **({OFFICIAL: {}} if with_official else {})}
    speeds: dict[str, list[float]] = {name: [] for name in contenders}
    shares: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(WARM_UP + ROUNDS):
        names.append(names.pop(0))  # who is first pays for what the JVM is still compiling
        for name in names:
            options = contenders[name]
            given = {"kafka.bootstrap.servers": bootstrap, "subscribe": TOPIC, **options}
            reader = spark.read.format("kafka" if name == OFFICIAL else "tidelog").options(**given)
            before, node_before = tree_cpu_s(os.getpid(), frozenset()), node.cpu_s()
            reader.load().write.format("noop").mode("overwrite").save()
            used = tree_cpu_s(os.getpid(), frozenset()) - before
            if number >= WARM_UP:
                speeds[name].append(RECORDS / used)
                shares[name].append((node.cpu_s() - node_before) / used)
    return _report(speeds, shares)


def _report(speeds: Mapping[str, list[float]], shares: Mapping[str, list[float]]) -> list[Line]:
    raw = {"speeds": speeds, "broker_shares": shares}
    median = {name: statistics.median(values) for name, values in speeds.items()}
    share = {name: statistics.median(values) for name, values in shares.items()}
    notes = "; ".join(f"{name} {median[name] / 1e6:.2f} M, broker {share[name]:.0%} of it" for name in speeds)
    lines = [
        Line(
            "spark tier.path: the broker's share of CPU", f"{share[STORE]:.1%}", f"≤ {BROKER_SHARE_MAX:.0%}",
            share[STORE] <= BROKER_SHARE_MAX, notes, raw,
        ),
        Line("spark tier.path against a broker's read", f"{median[STORE] / median[BROKERS]:.2f} ×", raw=raw),
    ]  # fmt: skip
    if OFFICIAL not in speeds:
        return [*lines, Line(NAME, "-", note="its jars are not in .clients/")]
    ratio = statistics.median(ours / theirs for ours, theirs in zip(speeds[STORE], speeds[OFFICIAL], strict=True))
    note = "rows a CPU-second of all processes"
    return [*lines, Line(NAME, f"{ratio:.2f} ×", f"≥ {TARGET_RATIO} ×", ratio >= TARGET_RATIO, note, raw)]
