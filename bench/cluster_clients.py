"""What an application sees: librdkafka, records of 1 KiB, `acks=all`, over one stream and over many.

The client is much of the cost here, and on the same two cores. The floor of three replicas, fed by the bare sender, is
run right before and after each, so that the machine's mood shows.
"""

import json
import os
import statistics
from collections.abc import Iterator
from contextlib import contextmanager

from bench.clients import LINGER_MS, VALUE_BYTES, Outcome
from bench.cluster import REQUIRED, FloorCluster, floor_cluster
from bench.cluster_nodes import Cluster, running_cluster
from bench.frames import MIB
from bench.processes import Program, started
from bench.rounds import Line, percentile, spread
from bench.scratch import scratch

MB = 1_000_000
STREAMS = (1, 16, 100)
SEGMENT_BYTES = 16 * MIB  # a hundred streams on three nodes have a file each that is being written
ROUND_BYTES = 48 * MIB
ROUNDS = 4  # the first gets everything warm
PACE_S = 4
SAMPLED = 9  # the delivery report of one record in so many: they cost the client more than the records do
TOPIC = "clients"


def clients() -> list[Line]:
    lines: list[Line] = []
    with scratch() as floor_folder, floor_cluster(floor_folder, REQUIRED) as bare:
        bare.rate()
        for streams in STREAMS:  # each in a cluster of its own, so that what one leaves behind is no other's cost
            with scratch() as folder, running_cluster(folder, storage_segment_bytes=SEGMENT_BYTES) as cluster:
                cluster.create([TOPIC], streams)
                cluster.await_home(TOPIC)
                lines += _Clients(cluster, bare, folder, streams).lines()
    return lines


class _Clients:
    """librdkafka's roles against one topic."""

    def __init__(self, cluster: Cluster, bare: FloorCluster, folder: str, streams: int) -> None:
        self._cluster = cluster
        self._bare = bare
        self._folder = folder
        self._streams = streams
        self._name = f"librdkafka, {streams} stream{'s' if streams > 1 else ''}"

    def lines(self) -> list[Line]:
        produced, rate = self._produce()
        return [produced, self._pace(rate / 2), self._consume()]

    def _produce(self) -> tuple[Line, float]:
        before = self._bare.rate()
        outcome, cpu_s = self._run("produce", ROUND_BYTES, ROUNDS, self._streams)
        floor_rate = statistics.mean((before, self._bare.rate()))
        line, rate = self._fast_line("produce", ROUND_BYTES, outcome, cpu_s, floor_rate)
        return line, rate

    def _consume(self) -> Line:
        round_bytes = ROUND_BYTES * ROUNDS
        outcome, cpu_s = self._run("consume", round_bytes, ROUNDS, self._streams)
        return self._fast_line("consume", round_bytes, outcome, cpu_s, None)[0]

    def _fast_line(
        self, role: str, round_bytes: int, outcome: Outcome, cpu_s: list[float], floor_rate: float | None
    ) -> tuple[Line, float]:
        rates = [round_bytes / MB / seconds for seconds in outcome.seconds[1:]]
        rate, all_gb = statistics.median(rates), round_bytes * ROUNDS / 1e9
        nodes = " + ".join(f"{used / all_gb:.1f}" for used in cpu_s)
        note = f"{spread(rates)}; CPU s/GB: nodes {nodes}, client {outcome.cpu_s / all_gb:.1f}"
        if floor_rate is not None:
            note += f"; {rate / floor_rate:.2f} of the floor's {floor_rate:.0f}"
        raw = {"mb_per_s": rates, "node_cpu_s": cpu_s, "client_cpu_s": outcome.cpu_s, "floor_mb_per_s": floor_rate}
        return Line(f"{self._name}, {role} 1 KiB", f"{rate:.0f} MB/s", note=note, raw=raw), rate

    def _pace(self, rate_mb: float) -> Line:
        records = int(rate_mb * MB / VALUE_BYTES)
        outcome, cpu_s = self._run("pace", records, PACE_S, self._streams, SAMPLED, LINGER_MS)
        p50, p99 = (percentile(outcome.latencies_ms, share) for share in (0.5, 0.99))
        all_gb = rate_mb * PACE_S / 1e3
        nodes = " + ".join(f"{used / all_gb:.1f}" for used in cpu_s)
        return Line(
            f"{self._name}, at {rate_mb:.0f} MB/s",
            f"p50 {p50:.1f} ms",
            note=f"p99 {p99:.1f} (linger {LINGER_MS} included), worst {max(outcome.latencies_ms):.1f} ms; "
            f"CPU s/GB: nodes {nodes}",
            raw={"mb_per_s": rate_mb, "p50_ms": p50, "p99_ms": p99, "node_cpu_s": cpu_s},
        )

    def _run(self, role: str, *numbers: int) -> tuple[Outcome, list[float]]:
        """What the client says, and the CPU seconds of each node meanwhile."""
        programs = list(self._cluster.programs.values())
        with self._started(role, *numbers) as client:
            before_s = [program.cpu_s() for program in programs]
            outcome = Outcome(**json.loads(client.last_words()))
            return outcome, [program.cpu_s() - used_s for program, used_s in zip(programs, before_s, strict=True)]

    @contextmanager
    def _started(self, role: str, *numbers: int) -> Iterator[Program]:
        """From when it is ready."""
        arguments = ["bench.clients", role, self._cluster.bootstrap, TOPIC, *map(str, numbers)]
        with started(arguments, os.path.join(self._folder, f"{role}.log")) as program:
            program.await_ready(b"ready")
            yield program
