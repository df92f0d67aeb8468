"""`tidelog bench growth`: how cost grows with what is stored, who asks, and how many there are.

Three nodes, default settings, records of 1 KiB unless it is their size that grows. CPU is that of all nodes together;
it is what stays comparable when the machine is busy otherwise.
"""

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace

from bench.about import about_this_run
from bench.arena import FAILURES, KIB, Arena, Effort, open_arena
from bench.cluster_nodes import AGREE_S_MAX, wait_for
from bench.contenders import Contender
from bench.figures import Results, Series
from bench.frames import batch_of, fetch_frame, records_in
from bench.load_client import Outcome, outcome_of
from bench.rounds import percentile
from bench.side_by_side_latency import paced, requests

RECORD_SIZES = (10, 100, 1_000, 10_000, 100_000, 900_000)
STREAMS = (1, 10, 100, 1_000)
CONNECTIONS = (1, 4, 16, 64, 256, 1_024)
CONSUMERS = (0, 1, 2, 4, 8, 16)
NODES = (1, 3, 5, 7)
PACED_MB = 20
FOLLOWED_MAX = 5_000_000
FOLLOW_S_MAX = 60.0

SHORTEST_LOG = 10_000
LOG_BATCH_BYTES = 16 * KIB
LOG_RECORD_BYTES = 10
LOG_WINDOW = 32
READS = 500


def _measured(who: Contender, action: Callable[[], Outcome]) -> tuple[Outcome, float]:
    """What came of it, and what it cost the nodes."""
    who.settle()
    before_s = who.cpu_s()
    return action(), who.cpu_s() - before_s


def record_size(arena: Arena) -> Series:
    points: list[list[float]] = []
    for size in RECORD_SIZES:
        with arena.used_topic() as topic:
            outcome, cpu_s = _measured(
                arena.tidelog, lambda s=size, t=topic: arena.produce(arena.tidelog, t, value_bytes=s)
            )
        gb = outcome.bytes / 1e9
        points.append([size, outcome.mb_per_s, outcome.records_per_s, cpu_s / gb, outcome.cpu_s / gb])
    columns = ["bytes a record", "MB/s", "records/s", "nodes' CPU s/GB", "client's CPU s/GB"]
    return Series("record-size", "one stream, saturating", columns, points)


def streams(arena: Arena) -> Series:
    points: list[list[float]] = []
    for count in STREAMS:
        with arena.topic(count) as topic:
            outcome, cpu_s = _measured(
                arena.tidelog, lambda t=topic, c=count: arena.produce(arena.tidelog, t, partitions=c)
            )
        points.append([count, outcome.mb_per_s, cpu_s / (outcome.bytes / 1e9), arena.tidelog.memory_mb()])
    columns = ["streams", "MB/s", "nodes' CPU s/GB", "largest node's MB"]
    return Series("streams", "1 KiB records over all streams in turn, saturating", columns, points)


def connections(arena: Arena) -> Series:
    points: list[list[float]] = []
    for count in CONNECTIONS:
        with arena.used_topic() as topic:
            outcome, cpu_s = _measured(
                arena.tidelog,
                lambda t=topic, c=count: requests(arena, arena.tidelog, t, batch_of(KIB, KIB), c, skip_s=0),
            )
        latencies = outcome.latencies_ms
        points.append([count, outcome.records_per_s, latencies["p50"], latencies["p99"], cpu_s / outcome.records * 1e6])
    columns = ["connections", "requests/s", "p50 ms", "p99 ms", "nodes' CPU µs a request"]
    return Series("connections", "one record of 1 KiB a request, one at a time on each", columns, points)


def consumers(arena: Arena) -> Series:
    points: list[list[float]] = []
    seconds = 1.0 + arena.effort.seconds
    for count in CONSUMERS:
        with arena.used_topic() as topic, following(arena, topic, count) as taken:
            arguments = paced(PACED_MB, seconds)
            outcome, cpu_s = _measured(
                arena.tidelog,
                lambda t=topic, a=arguments: arena.client.run("pace", bootstrap=arena.tidelog.bootstrap, topic=t, **a),
            )
        latencies = outcome.latencies_ms
        points.append([count, taken() / seconds, latencies["p50"], latencies["p99"], cpu_s / outcome.seconds])
    columns = ["consumers", "MB/s read", "p50 ms", "p99 ms", "nodes' CPU, cores"]
    return Series("consumers", f"at the tail of a stream written at {PACED_MB} MB/s", columns, points)


@contextmanager
def following(arena: Arena, topic: str, count: int) -> Iterator[Callable[[], float]]:
    """So many consumers meanwhile; gives how many MB they took, once they have ended."""
    if not count:
        yield lambda: 0.0
        return
    arguments = {"consumers": count, "count": FOLLOWED_MAX, "skip": 0, "seconds": FOLLOW_S_MAX}
    taken: list[Outcome] = []
    with arena.client.started("follow", bootstrap=arena.tidelog.bootstrap, topic=topic, **arguments) as followers:
        yield lambda: taken[0].bytes / 1e6
        followers.terminate()
        taken.append(outcome_of(followers))


def log_length(arena: Arena, records: int) -> Series:
    points: list[list[float]] = []
    batch = batch_of(LOG_BATCH_BYTES, LOG_RECORD_BYTES)
    per_batch, written, who = records_in(batch), 0, arena.tidelog
    with arena.topic() as topic:
        length = SHORTEST_LOG
        while length <= records:
            more = max(1, (length - written) // per_batch)
            with closing(who.connect(who.leader_of(topic))) as client:
                sent = client.produce(topic, batch, more, LOG_WINDOW)
            written += more * per_batch
            read_ms, read_cpu_us = _random_reads(who, topic, written)
            points.append(
                [
                    written,
                    more * per_batch / sent.seconds,
                    read_ms,
                    read_cpu_us,
                    who.memory_mb(),
                    _restart_s(who, topic),
                ]
            )
            length *= 10
    columns = ["records", "records/s appended", "p50 ms a read", "CPU µs a read", "largest node's MB", "restart s"]
    title = f"{LOG_RECORD_BYTES} B records in batches of {per_batch:,}; reads at random offsets; all nodes restarted"
    return Series("log-length", title, columns, points)


def _random_reads(who: Contender, topic: str, written: int) -> tuple[float, float]:
    """The median in milliseconds, and the nodes' CPU in microseconds."""
    latencies_s: list[float] = []
    choose = random.Random(written)
    with closing(who.connect(who.leader_of(topic))) as client:
        before_s = who.cpu_s()
        for _ in range(READS):
            frame = fetch_frame(topic, choose.randrange(written), LOG_BATCH_BYTES)
            begun = time.perf_counter()
            client.exchange(frame)
            latencies_s.append(time.perf_counter() - begun)
        cpu_s = who.cpu_s() - before_s
    return percentile(latencies_s, 0.5) * 1e3, cpu_s / READS * 1e6


def _restart_s(who: Contender, topic: str) -> float:
    who.stop()
    begun = time.perf_counter()
    who.start()
    wait_for(f"{topic} has no leader", AGREE_S_MAX, lambda: who.all_lead([topic]) or None)
    taken_s = time.perf_counter() - begun
    who.await_home(topic)  # or the leader would change while more is appended
    return taken_s


def nodes(effort: Effort) -> Series:
    """Each number a cluster of its own; three replicas where there are as many."""
    points: list[list[float]] = []
    for count in NODES:
        with open_arena(effort, nodes=count) as arena, arena.topic(16) as topic:
            outcome, cpu_s = _measured(
                arena.tidelog, lambda a=arena, t=topic: a.produce(a.tidelog, t, partitions=16, producers=8)
            )
            points.append(
                [count, min(3, count), outcome.mb_per_s, cpu_s / (outcome.bytes / 1e9), arena.tidelog.memory_mb()]
            )
    columns = ["nodes", "replicas", "MB/s", "nodes' CPU s/GB", "largest node's MB"]
    return Series("nodes", "1 KiB records over 16 streams by 8 producers, all on this machine", columns, points)


GROWTHS: dict[str, Callable[[Arena], Series] | None] = {
    "record-size": record_size,
    "streams": streams,
    "connections": connections,
    "consumers": consumers,
    "log-length": None,  # how long is an argument
    "nodes": None,  # clusters of its own
}


def growth(names: Sequence[str], effort: Effort, records: int, show: Callable[[Series], None]) -> Results:
    alone = replace(effort, kafka=False)
    found: list[Series] = []
    remarks: list[str] = []
    client = ""

    def keep(name: str, measure: Callable[[], Series]) -> None:
        print(f"{name} …", file=sys.stderr, flush=True)
        try:
            found.append(measure())
        except FAILURES as failure:
            remarks.append(f"{name} failed: {failure}")
            return
        show(found[-1])

    if shared := [name for name in names if name != "nodes"]:
        with open_arena(alone) as arena:
            client = arena.client.name
            for name in shared:
                measure = GROWTHS[name] or (lambda arena: log_length(arena, records))
                keep(name, lambda m=measure, a=arena: m(a))
    if "nodes" in names:
        keep("nodes", lambda: nodes(alone))
    return Results(about_this_run(effort, client), (), found, remarks)
