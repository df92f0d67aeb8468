"""Rows that need clusters of their own: starting, losing a leader, a thousand streams; and Java's own producer."""

import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import cast

from bench import cluster_failover, kafka_server
from bench.arena import KIB, MB, Arena, Effort, open_arena
from bench.cluster_failover import BareProducer
from bench.cluster_nodes import Cluster, wait_for
from bench.contenders import KAFKA, TIDELOG, Contender, kafka, running, tidelog
from bench.figures import Figure
from bench.frames import batch_of
from bench.kept import Unavailable
from bench.load_client import Outcome
from bench.processes import started
from bench.scratch import scratch
from bench.side_by_side_produce import rates

QUICKER = f"{KAFKA}, broker.session.timeout.ms=2000"
FIRST = "first"
FAILOVER = cluster_failover.TOPIC
LOAD_S = (0.3, 0.8)  # between kills, so that they do not fall together with anything that comes at intervals
LOAD_PACE_S = 0.01
FIRST_S_MAX = 60.0
IDLE_S = 10.0
REST_S = 8.0  # until everything is asleep
MANY_BYTES = 4 * MB  # a round over many streams: librdkafka sends a request for each stream
JAVA_RECORD_BYTES = 1_000
JAVA_PACED_MB = 20
_JAVA_SAID = re.compile(
    r"records sent, .*?\(([\d.]+) MB/sec\).*?([\d.]+) ms 50th, ([\d.]+) ms 95th, ([\d.]+) ms 99th, "
)

Make = Callable[[str], Contender]


@contextmanager
def _prepared(name: str, make: Make) -> Iterator[Contender]:
    """With folders of its own, not started; killed in the end, whatever is left of it."""
    with scratch() as folder:
        path = os.path.join(folder, name)
        os.makedirs(path)
        contender = make(path)
        try:
            yield contender
        finally:
            contender.kill_all()


def _peers(effort: Effort, makes: dict[str, Make]) -> dict[str, Make]:
    """Those that can be had here."""
    if not effort.kafka:
        return {}
    try:
        kafka_server.libraries()
    except Unavailable:
        return {}
    return makes


def start_up(effort: Effort) -> list[Figure]:
    """Three nodes that have never run, to the first acknowledged record of a new topic."""
    measured: dict[str, list[float]] = {}
    for _ in range(effort.kills):
        for name, make in {TIDELOG: tidelog, **_peers(effort, {KAFKA: kafka})}.items():
            with _prepared("start", make) as contender:
                begun = time.perf_counter()
                contender.begin()
                contender.create([FIRST])
                wait_for(f"{name} acknowledges nothing", FIRST_S_MAX, partial(_acknowledges, contender))
                measured.setdefault(name, []).append(time.perf_counter() - begun)
    theirs = measured.get(KAFKA, [])
    name = "three nodes' start to the first acknowledged record"
    return [Figure("start-up", name, "s", measured[TIDELOG], KAFKA if theirs else "", theirs, "<= 0.25")]


def _acknowledges(contender: Contender) -> bool:
    """A record of the new topic. Raises AssertionError while it is refused: Kafka does so for a while (19)."""
    with closing(contender.connect(contender.leader_of(FIRST))) as client:
        client.produce(FIRST, batch_of(KIB, KIB), 1, 1)
    return True


def failover(effort: Effort) -> list[Figure]:
    """kill -9 of the leader, to the next acknowledged record. Time-outs decide, so each runs for itself."""
    quicker = partial(kafka, broker_session_timeout_ms=2_000)
    makes = {TIDELOG: tidelog, **_peers(effort, {KAFKA: kafka, QUICKER: quicker})}
    measured = {name: _outages(make, effort.kills) for name, make in makes.items()}
    name, ours = "leader killed, to the next acknowledged record", measured[TIDELOG]
    if KAFKA not in measured:
        return [Figure("failover", name, "s", ours)]
    return [
        Figure("failover", name, "s", ours, KAFKA, measured[KAFKA], "<= 0.1"),
        Figure("failover", name, "s", ours, QUICKER, measured[QUICKER]),
    ]


def _outages(make: Make, kills: int) -> list[float]:
    outages_s: list[float] = []
    with _prepared("failover", make) as prepared, running(prepared) as contender:
        contender.create([FAILOVER])
        contender.await_home(FAILOVER)
        # It asks, connects and looks who runs, which both can do.
        with closing(BareProducer(cast(Cluster, contender))) as bare:
            for _ in range(kills):
                until = time.perf_counter() + random.uniform(*LOAD_S)
                while time.perf_counter() < until:
                    bare.produce()
                    time.sleep(LOAD_PACE_S)
                leader, killed_at = bare.leader, time.perf_counter()
                contender.kill(leader)
                bare.produce()
                outages_s.append(time.perf_counter() - killed_at)
                contender.start([leader])
                contender.await_in_sync(FAILOVER)
    return outages_s


def many_streams(effort: Effort) -> list[Figure]:
    """A thousand topics of three replicas: made, left alone, and written in turn."""
    count, row = effort.streams, "streams-1000"
    topics = [f"many-{number:04}" for number in range(count)]
    with open_arena(effort) as arena:
        created_s: dict[str, list[float]] = {}
        for name, contender in arena.contenders.items():
            begun = time.perf_counter()
            contender.create(topics)
            created_s[name] = [time.perf_counter() - begun]
        time.sleep(REST_S)
        before_s = {name: contender.cpu_s() for name, contender in arena.contenders.items()}
        time.sleep(IDLE_S)
        idle = {
            name: [(contender.cpu_s() - before_s[name]) / IDLE_S / len(contender.programs) * 100]
            for name, contender in arena.contenders.items()
        }
        produced = arena.each(lambda who: arena.produce(who, "many", topics=count, bytes_max=MANY_BYTES))
    peer = KAFKA if KAFKA in produced else ""
    name = f"{count:,} streams × 3"
    return [
        Figure(
            row,
            f"{name}: produce 1 KiB in turn",
            "MB/s",
            rates(produced[TIDELOG]),
            peer,
            rates(produced.get(KAFKA, [])),
            ">= 1.0",
        ),
        Figure(row, f"{name}: idle CPU of a node", "% of a core", idle[TIDELOG], peer, idle.get(KAFKA, ()), "<= 0.5"),
        Figure(row, f"{name}: creating them", "s", created_s[TIDELOG], peer, created_s.get(KAFKA, ()), "<= 2.0"),
    ]


# --- Java's own producer, a second opinion ---------------------------------------------------------------------------


def java(arena: Arena) -> list[Figure]:
    """Kafka's ProducerPerformance, idempotent as Java's producer is by default: saturating, and paced."""
    try:
        program = ["bench.become", kafka_server.java(), "-Xmx512m", *kafka_server.class_path()]
    except Unavailable as reason:
        arena.remarks.append(f"no second opinion from Java's producer: {reason}")
        return []

    def perform(who: Contender, topic: str, throughput: int, seconds: float) -> Outcome:
        records = int(seconds * (throughput if throughput > 0 else 40 * MB // JAVA_RECORD_BYTES))
        told = ["--topic", topic, "--record-size", JAVA_RECORD_BYTES, "--throughput", throughput]
        told += ["--num-records", records, "--producer-props", f"bootstrap.servers={who.bootstrap}", "acks=all"]
        command = [*program, "org.apache.kafka.tools.ProducerPerformance", *map(str, told)]
        with started(command, os.path.join(arena.folder, "java.log")) as performance:
            return parse_performance(performance.last_words())

    with arena.topic() as topic:
        fast = arena.each(lambda who: perform(who, topic, -1, 2 * arena.effort.seconds))
        throughput = JAVA_PACED_MB * MB // JAVA_RECORD_BYTES
        paced = arena.each(lambda who: perform(who, topic, throughput, 2 * arena.effort.seconds))
    peer = KAFKA if arena.kafka else ""
    ours, theirs = paced[TIDELOG], paced.get(KAFKA, [])
    return [
        Figure("java", "Java's perf tool, 1 stream", "MB/s", rates(fast[TIDELOG]), peer, rates(fast.get(KAFKA, []))),
        *(
            Figure(
                "java",
                f"Java's perf tool at {JAVA_PACED_MB} MB/s: {share}",
                "ms",
                [one.outcome.latencies_ms[share] for one in ours],
                peer,
                [one.outcome.latencies_ms[share] for one in theirs],
                note="its own start included",
            )
            for share in ("p50", "p99")
        ),
    ]


def parse_performance(said: str) -> Outcome:
    """The last line of ProducerPerformance, which counts in MiB."""
    found = [match for line in said.splitlines() if (match := _JAVA_SAID.search(line))]
    if not found:
        raise ValueError(f"ProducerPerformance said nothing of the kind: {said[-300:]}")
    rate, p50, p95, p99 = map(float, found[-1].groups())
    size = int(rate * (1 << 20))  # of a second
    return Outcome(1.0, size // JAVA_RECORD_BYTES, size, latencies_ms={"p50": p50, "p95": p95, "p99": p99})
