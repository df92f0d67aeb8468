"""Three nodes, three replicas, synced before every acknowledgement: a bare sender beside the floor of three replicas.

The sender streams ready-made Produce requests over one connection to the leader of one stream; the same sender talks to
the floor (`bench.floor`) in turn, so both meet whatever else the machine does.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from bench.cluster_nodes import Cluster, running_cluster
from bench.frames import KIB, MIB, batch_of, produce_frame
from bench.processes import Metered, Program, Server, serving
from bench.raw_client import RawClient, Sent
from bench.rounds import Line, compare, percentile, spread
from bench.scratch import scratch

MB = 1_000_000
TOPIC = "bare"
SEGMENT_BYTES = 64 * MIB  # small, so that files are used again soon, as in a stream that has reached its retention
SEGMENTS_FILLED = 8  # before anything is measured: from then on there is always a file to use again
KEPT_BYTES = 2 * SEGMENT_BYTES  # of what was sent: more than the tail cache holds
ROUNDS = 7
ROUND_TRIES_MAX = 3  # a leader may change in the middle of a round, which then does not count
RATIO_MIN = 0.5

IDLE_AFTER_S = 3
LOAD_STREAMS = 16
LOAD_S = 4.0
IDLE_MB_MAX = 150
LOADED_MB_MAX = 400


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    batch_bytes: int
    window: int
    """Requests in flight."""
    count: int
    """Requests a round."""


SHAPES = (
    Shape("1 MB", MB, 5, 64),
    Shape("64 KiB", 64 * KIB, 32, 1_000),
    Shape("16 KiB", 16 * KIB, 64, 3_000),
    Shape("1 KiB", 1 * KIB, 256, 16_000),
)
REQUIRED = SHAPES[1]


class _Sending:
    """One side of the comparison: rounds of one shape, what they cost each process and how long requests take."""

    def __init__(self, programs: list[Program], round_bytes: int, send: Callable[[], Sent]) -> None:
        self._send = send
        self._round_mb = round_bytes / MB
        self._latencies_ms: list[float] = []
        self.round = Metered(programs, round_bytes, self._send_round)

    def _send_round(self) -> float:
        sent = self._send()
        self._latencies_ms += [latency_s * 1e3 for latency_s in sent.latencies_s]
        return sent.seconds

    @property
    def latencies_ms(self) -> tuple[float, float]:
        return percentile(self._latencies_ms, 0.5), percentile(self._latencies_ms, 0.99)

    def __str__(self) -> str:
        p50, p99 = self.latencies_ms
        cpu = " + ".join(f"{used:.2f}" for used in self.round.cpu_ms_per_mb_each)
        return f"p50 {p50:.1f}, p99 {p99:.1f} ms, {cpu} CPU s/GB"

    def raw(self, seconds: list[float]) -> dict[str, object]:
        p50, p99 = self.latencies_ms
        return {
            "mb_per_s": [self._round_mb / taken for taken in seconds],
            "p50_ms": p50,
            "p99_ms": p99,
            "cpu_s_per_gb": self.round.cpu_ms_per_mb_each,
        }


# --- The floor -------------------------------------------------------------------------------------------------------


@dataclass
class FloorCluster:
    """A leader and two followers that take frames of one shape."""

    shape: Shape
    programs: list[Program]
    """The leader's first."""
    port: int
    """The leader's."""
    client: RawClient
    frame: bytes
    batch: bytes

    def send(self) -> Sent:
        return self.client.send_windowed(self.frame, self.shape.count, self.shape.window)

    def rate(self) -> float:
        """MB/s of one round."""
        return self.shape.count * len(self.batch) / MB / self.send().seconds


@contextmanager
def floor_cluster(folder: str, shape: Shape, connections: int = 1) -> Iterator[FloorCluster]:
    batch = batch_of(shape.batch_bytes)
    frame = produce_frame(TOPIC, batch)
    with ExitStack() as stack:

        def serve(name: str, role: str, *numbers: int) -> Server:
            path = os.path.join(folder, name)
            arguments = ["bench.floor", role, path, str(SEGMENT_BYTES), *map(str, numbers)]
            return stack.enter_context(serving(arguments, f"{path}.log"))

        followers = [serve("floor-2", "follow"), serve("floor-3", "follow")]
        ports = [follower.address[1] for follower in followers]
        leader = serve("floor-1", "lead", connections, len(frame), frame.index(batch), len(batch), *ports)
        client = stack.enter_context(closing(RawClient(leader.address)))
        programs = [server.program for server in (leader, *followers)]
        yield FloorCluster(shape, programs, leader.address[1], client, frame, batch)


def floor() -> list[Line]:
    """The floor alone, as in the table it was first measured for."""
    lines: list[Line] = []
    for shape in SHAPES:
        with scratch() as folder, floor_cluster(folder, shape) as bare:
            sending = _Sending(bare.programs, shape.count * len(bare.batch), bare.send)
            seconds = [sending.round() for _ in range(1 + ROUNDS)][1:]
        mb = shape.count * len(bare.batch) / MB
        rates = [mb / taken for taken in seconds]
        note = f"{spread(rates)}; {shape.count / statistics.median(seconds):,.0f} requests/s; {sending}"
        name = f"floor of three replicas, {shape.name} × {shape.window}"
        lines.append(Line(name, f"{statistics.median(rates):.0f} MB/s", note=note, raw=sending.raw(seconds)))
    return lines


# --- The cluster beside it -------------------------------------------------------------------------------------------


@dataclass
class Sender:
    """The bare sender to whichever node leads the stream."""

    cluster: Cluster
    topic: str
    moves: int = 0
    """How often the leader changed in the middle of a round."""
    leader: int = field(init=False)
    client: RawClient = field(init=False)
    _rounds: list[tuple[int, int]] = field(default_factory=list)
    """(the offset behind it, its bytes) of those not forgotten yet"""

    def __post_init__(self) -> None:
        self._connect()

    def _connect(self) -> None:
        self.leader = self.cluster.leader_of(self.topic)
        self.client = self.cluster.connect(self.leader)

    def close(self) -> None:
        self.client.close()

    def produce(self, batch: bytes, count: int, window: int) -> Sent:
        for _ in range(ROUND_TRIES_MAX - 1):
            try:
                sent = self.client.produce(self.topic, batch, count, window)
                break
            except (OSError, AssertionError):
                self.moves += 1
                self.client.close()
                time.sleep(1.0)
                self._connect()
        else:
            sent = self.client.produce(self.topic, batch, count, window)
        self._rounds.append((self.cluster.latest_offset(self.topic), count * len(batch)))
        return sent

    def use(self) -> None:
        """Have the stream in use for a while, so that it writes to files that were used before."""
        for _ in range(SEGMENTS_FILLED):
            self.produce(batch_of(MB), SEGMENT_BYTES // MB, 5)
            self.forget()

    def forget(self) -> None:
        """Cut the stream as retention does: the oldest goes, what is in the nodes' memory stays."""
        kept_bytes = 0
        for place in reversed(range(len(self._rounds))):
            offset, round_bytes = self._rounds[place]
            if kept_bytes >= KEPT_BYTES:
                self.client.delete_before(self.topic, offset)
                del self._rounds[:place]
                return
            kept_bytes += round_bytes

    @property
    def programs(self) -> list[Program]:
        """The leader's first."""
        others = [self.cluster.programs[node] for node in sorted(self.cluster.programs) if node != self.leader]
        return [self.cluster.programs[self.leader], *others]


def raw() -> list[Line]:
    with scratch() as folder, running_cluster(folder, storage_segment_bytes=SEGMENT_BYTES) as cluster:
        cluster.create([TOPIC])
        cluster.await_home(TOPIC)
        with closing(Sender(cluster, TOPIC)) as sender:
            sender.use()
            return [_raw_line(sender, folder, shape) for shape in SHAPES]


def _raw_line(sender: Sender, folder: str, shape: Shape) -> Line:
    with floor_cluster(folder, shape) as bare:
        batch, round_bytes, moves = bare.batch, shape.count * len(bare.batch), sender.moves
        ours = _Sending(sender.programs, round_bytes, lambda: sender.produce(batch, shape.count, shape.window))
        beside = _Sending(bare.programs, round_bytes, bare.send)

        def produce_and_forget() -> float:
            seconds = ours.round()
            sender.forget()
            return seconds

        comparison = compare(produce_and_forget, beside.round, ROUNDS)
    rate, floor_rate = (round_bytes / MB / statistics.median(taken) for taken in (comparison.ours, comparison.floor))
    cpu_ratio = sum(beside.round.cpu_ms_per_mb_each) / sum(ours.round.cpu_ms_per_mb_each)
    note = (
        f"{spread(comparison.ratios, 2)}; {rate:.0f} MB/s, {ours}; floor {floor_rate:.0f} MB/s, {beside}; "
        f"{cpu_ratio:.2f} by CPU alone"
    )
    if sender.moves > moves:
        note += f"; the leader changed {sender.moves - moves} times"
    required = shape is REQUIRED
    return Line(
        f"cluster, {shape.name} × {shape.window} in flight",
        f"{comparison.ratio:.2f} of floor",
        f">= {RATIO_MIN}" if required else "",
        comparison.ratio >= RATIO_MIN or not required,
        note,
        {
            "ratios": comparison.ratios,
            "cpu_ratio": cpu_ratio,
            "ours": ours.raw(list(comparison.ours)),
            "floor": beside.raw(list(comparison.floor)),
        },
    )


# --- Memory ----------------------------------------------------------------------------------------------------------


def memory() -> list[Line]:
    """Of each node: at rest, and the most it ever had under the bare sender's load on many streams in turn."""
    with scratch() as folder, running_cluster(folder, storage_segment_bytes=SEGMENT_BYTES) as cluster:
        time.sleep(IDLE_AFTER_S)
        programs = [cluster.programs[node] for node in sorted(cluster.programs)]
        idle_mb = [program.memory_mb() for program in programs]
        topics = [f"load-{number}" for number in range(LOAD_STREAMS)]
        cluster.create(topics)
        batch, deadline, sent_mb = batch_of(64 * KIB), time.monotonic() + LOAD_S, 0.0
        while time.monotonic() < deadline:
            for topic in topics:
                with closing(Sender(cluster, topic)) as sender:
                    sender.produce(batch, 128, 32)
                    sender.produce(batch_of(MB), 8, 5)
                    sent_mb += 128 * len(batch) / MB + 8
        loaded_mb = [program.memory_mb("VmHWM") for program in programs]
    lines: list[Line] = []
    for name, used_mb, limit_mb in (("idle", idle_mb, IDLE_MB_MAX), ("loaded", loaded_mb, LOADED_MB_MAX)):
        each = " ".join(f"{used:.0f}" for used in used_mb)
        line = Line(
            f"memory of a node, {name}",
            f"{max(used_mb):.0f} MB RSS",
            f"< {limit_mb} MB",
            max(used_mb) < limit_mb,
            f"of the three: {each}" + (f"; {sent_mb:.0f} MB over {LOAD_STREAMS} streams" if name == "loaded" else ""),
            {"rss_mb": used_mb},
        )
        lines.append(line)
    return lines
