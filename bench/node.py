"""One node, one stream, everything synced before it is acknowledged: bare clients beside a floor, then librdkafka.

Bare clients measure the server: the same sender talks to it and to a loop of system calls that does the same work, in
turn. librdkafka says what an application sees; the client then is much of the cost.
"""

import json
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from bench.clients import SKIPPED_S, VALUE_BYTES, Outcome
from bench.frames import KIB, MIB, batch_of, produce_frame
from bench.processes import Metered, Program, Server, serving, serving_node, started
from bench.raw_client import RawClient, Sent
from bench.rounds import Line, compare, percentile, spread
from bench.scratch import scratch

MB = 1_000_000
SHAPES = (  # name and bytes of a batch, requests in flight, requests a round
    ("1 KiB", 1 * KIB, 1, 60),
    ("16 KiB", 16 * KIB, 64, 2_000),
    ("64 KiB", 64 * KIB, 32, 500),
    ("1 MB", MB, 5, 40),
)
ROUNDS = 5
SEGMENT_BYTES = 64 * MIB  # small, so that files are used again soon, as in a stream that has reached its retention
SEGMENTS_FILLED = 3

CLIENT_ROUND_BYTES = 48 * MIB
CLIENT_ROUNDS = 3
PACE = 10_000  # records a second
PACE_S = 2

BARE, FAST, PACED = "bare", "fast", "paced"  # topics


def node() -> list[Line]:
    with scratch() as folder, serving_node(folder, storage_segment_bytes=SEGMENT_BYTES) as server:
        with closing(RawClient(server.address)) as client:
            for topic in (BARE, FAST, PACED):
                client.create(topic)
            client.produce(BARE, batch_of(MB), SEGMENTS_FILLED * SEGMENT_BYTES // MB, 5)
            client.delete_all(BARE)
            lines = [_bare_line(server, client, folder, *shape) for shape in SHAPES]
        clients = _Clients(server, folder)
        lines += clients.produce_and_consume()
        lines += clients.produce_paced()
        memory_mb, most_mb = server.program.memory_mb(), server.program.memory_mb("VmHWM")
    return [*lines, Line("memory of the node after all this", f"{memory_mb:.0f} MB RSS", note=f"at most {most_mb:.0f}")]


# --- Bare clients ----------------------------------------------------------------------------------------------------


class _Sending:
    """One side of the comparison: a round is so many requests, sent by the same client to one program."""

    def __init__(self, program: Program, round_bytes: int, send: Callable[[], Sent]) -> None:
        self._send = send
        self._latencies_ms: list[float] = []
        self.round = Metered([program], round_bytes, self._send_round)

    def _send_round(self) -> float:
        sent = self._send()
        self._latencies_ms += [latency_s * 1e3 for latency_s in sent.latencies_s]
        return sent.seconds

    def __str__(self) -> str:
        p50, p99 = (percentile(self._latencies_ms, share) for share in (0.5, 0.99))
        return f"p50 {p50:.2f}, p99 {p99:.2f} ms, {self.round.cpu_ms_per_mb:.2f} CPU ms/MB"


def _bare_line(
    server: Server, client: RawClient, folder: str, name: str, batch_bytes: int, window: int, count: int
) -> Line:
    batch = batch_of(batch_bytes)
    frame = produce_frame(BARE, batch)
    round_bytes = count * len(batch)
    shape = [str(number) for number in (SEGMENT_BYTES, len(frame), frame.index(batch), len(batch))]
    arguments = ["bench.floor_server", "take", os.path.join(folder, "floor"), *shape]
    with (
        serving(arguments, os.path.join(folder, "floor.log")) as floor,
        closing(RawClient(floor.address)) as floor_client,
    ):
        ours = _Sending(server.program, round_bytes, lambda: client.produce(BARE, batch, count, window))
        bare = _Sending(floor.program, round_bytes, lambda: floor_client.send_windowed(frame, count, window))

        def produce_and_forget() -> float:
            seconds = ours.round()
            client.delete_all(BARE)
            return seconds

        comparison = compare(produce_and_forget, bare.round, ROUNDS)
    rate, floor_rate = (round_bytes / MB / statistics.median(taken) for taken in (comparison.ours, comparison.floor))
    note = f"{spread(comparison.ratios, 2)}; {rate:.0f} MB/s, {ours}; floor {floor_rate:.0f} MB/s, {bare}"
    return Line(f"produce {name} × {window} in flight, synced", f"{comparison.ratio:.2f} of floor", note=note)


# --- librdkafka ------------------------------------------------------------------------------------------------------


class _Clients:
    """Runs librdkafka's roles against a node."""

    def __init__(self, server: Server, folder: str) -> None:
        self._server = server
        self._folder = folder

    def produce_and_consume(self) -> list[Line]:
        """As fast as they go, one after the other; the first round of each gets everything warm."""
        rounds = CLIENT_ROUNDS + 1
        return [
            self._fast_line("produce", CLIENT_ROUND_BYTES, rounds),
            self._fast_line(
                "consume", CLIENT_ROUND_BYTES * rounds, rounds
            ),  # all there is: nothing read ahead for nobody
        ]

    def _fast_line(self, role: str, round_bytes: int, rounds: int) -> Line:
        with self._started(role, FAST, round_bytes, rounds) as client:
            before_s = self._server.program.cpu_s()
            outcome = _outcome_of(client)
            server_ms = (self._server.program.cpu_s() - before_s) * 1e3
        rates = [round_bytes / MB / seconds for seconds in outcome.seconds[1:]]
        rate, all_mb = statistics.median(rates), round_bytes / MB * rounds
        note = (
            f"{spread(rates)}; {rate * MB / VALUE_BYTES:,.0f} records/s; "
            f"server {server_ms / all_mb:.2f} CPU ms/MB, client {outcome.cpu_s * 1e3 / all_mb:.2f}"
        )
        return Line(f"librdkafka, {role} 1 KiB", f"{rate:.0f} MB/s", note=note)

    def produce_paced(self) -> list[Line]:
        """How long records take at a rate that leaves everybody time."""
        count, skipped = PACE * PACE_S, int(PACE * SKIPPED_S)
        with (
            self._started("follow", PACED, count, skipped) as follower,
            self._started("pace", PACED, PACE, PACE_S) as pacer,
        ):
            before_s = self._server.program.cpu_s()
            delivered, followed = _outcome_of(pacer), _outcome_of(follower)
            server_ms = (self._server.program.cpu_s() - before_s) * 1e3
        pace = f"librdkafka, {PACE:,} records/s"
        note = f"server {server_ms / (count * VALUE_BYTES / MB):.2f} CPU ms/MB, one consumer at the tail"
        return [
            _latency_line(f"{pace}, to the delivery report", delivered),
            _latency_line(f"{pace}, to the consumer", followed, note),
        ]

    @contextmanager
    def _started(self, role: str, topic: str, *numbers: int) -> Iterator[Program]:
        """From when it is ready."""
        arguments = ["bench.clients", role, self._server.bootstrap, topic, *map(str, numbers)]
        with started(arguments, os.path.join(self._folder, f"{role}.log")) as program:
            program.await_ready(b"ready")
            yield program


def _outcome_of(client: Program) -> Outcome:
    return Outcome(**json.loads(client.last_words()))


def _latency_line(name: str, outcome: Outcome, note: str = "") -> Line:
    p50_ms, p99_ms = (percentile(outcome.latencies_ms, share) for share in (0.5, 0.99))
    worst = f"p99 {p99_ms:.1f}, worst {max(outcome.latencies_ms):.1f} ms"
    return Line(name, f"p50 {p50_ms:.1f} ms", note=f"{worst}; {note}" if note else worst)
