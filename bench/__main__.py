"""`make bench`: every benchmark of this folder, or those whose names are given; `cluster` stands for all of its own."""

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

from bench import broker, cluster, consensus, node, regionwal, server, storage
from bench.cluster_clients import clients
from bench.cluster_failover import KILLS, failover
from bench.cluster_streams import STREAMS, streams
from bench.one_request import one_request
from bench.pages import pages
from bench.pikiwi_dump import pikiwi_dump
from bench.pikiwi_events import pikiwi_events
from bench.pikiwi_receive import pikiwi_receive
from bench.rounds import Line, print_report
from bench.spark_log import spark_log
from bench.spark_pipeline import spark_pipeline
from bench.spark_snapshot import ELEMENTS, spark_snapshot
from bench.spark_tables import KEYS, spark_tables
from bench.spark_tier import spark_tier
from bench.tier import tier

Benchmark = Callable[[], Line | list[Line]]

CLUSTER = "cluster"


def benchmarks(kills: int, stream_count: int, elements: int, keys: int) -> dict[str, Benchmark]:
    return {
        "appends": storage.appends,
        "reads": storage.reads,
        "recovery": storage.recovery,
        "step": consensus.step,
        "idle": consensus.idle,
        "produce": broker.produce,
        "fetch": broker.fetch,
        "record-size": broker.record_size,
        "serve": server.serve,
        "node": node.node,
        "idle-node": server.idle_node,
        "floor": cluster.floor,
        "cluster-raw": cluster.raw,
        "one-request": one_request,
        "pages": pages,
        "cluster-memory": cluster.memory,
        "cluster-clients": clients,
        "cluster-failover": partial(failover, kills),
        "cluster-streams": partial(streams, stream_count),
        "regionwal": regionwal.regionwal,
        "pikiwi-receive": pikiwi_receive,
        "pikiwi-dump": pikiwi_dump,
        "pikiwi-events": pikiwi_events,
        "spark-log": spark_log,
        "spark-tables": partial(spark_tables, keys),
        "tier": tier,
        "spark-tier": spark_tier,
        "spark-pipeline": spark_pipeline,
        "spark-snapshot": partial(spark_snapshot, elements),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Ratios against a floor run in the same minutes."
    )
    parser.add_argument(
        "names", nargs="*", help=f"{CLUSTER}, or any of {', '.join(benchmarks(0, 0, 0, 0))}; default: all"
    )
    parser.add_argument(
        "--kills", type=int, default=KILLS, help=f"leaders killed by cluster-failover (default: {KILLS})"
    )
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"of cluster-streams (default: {STREAMS:,})")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help=f"of spark-snapshot (default: {ELEMENTS:,})")
    parser.add_argument("--keys", type=int, default=KEYS, help=f"of spark-tables, at most (default: {KEYS:,})")
    parser.add_argument("--json", action="store_true", help="print what was measured as JSON")
    options = parser.parse_args(arguments)
    known = benchmarks(options.kills, options.streams, options.elements, options.keys)
    names = [
        name
        for asked in options.names or known
        for name in ([name for name in known if name.startswith(f"{CLUSTER}-")] if asked == CLUSTER else [asked])
    ]
    if unknown := set(names) - known.keys():
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that folders and processes go, whatever ends this
    lines: list[Line] = []
    for name in names:
        print(f"{name} …", file=sys.stderr)
        outcome = known[name]()
        lines += outcome if isinstance(outcome, list) else [outcome]
    if options.json:
        print(json.dumps([dataclasses.asdict(line) for line in lines], indent=1))
    else:
        print_report(lines)
    return 0 if all(line.met for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
