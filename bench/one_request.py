"""`python -m bench one-request`: where the time of a produce goes, when there is one at a time.

Three nodes that note their steps (`bench.traced`), a stream that has been in use for a while, one record a request.
Each line is the median, over the requests, of one part of the way. Those of the parts that follow each other until the
answer are added up; what is missing to what the client waits is processes being woken, or waiting for a core.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from bench.cluster import SEGMENT_BYTES, TOPIC, Sender
from bench.cluster_nodes import NODES, running_cluster
from bench.frames import KIB, batch_of
from bench.rounds import Line, percentile
from bench.scratch import scratch
from bench.traced import Steps, read_steps

REQUESTS, REQUESTS_BEFORE = 3_000, 1_000


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    leads: bool
    begins: str
    ends: str
    on_the_way: bool = True


PARTS = (
    Part("leader: receives, parses and checks it", True, "request", "turn"),
    Part("leader: stamps it, logs it, has messages made", True, "turn", "sending"),
    Part("leader: sends one of two messages", True, "sending", "sent"),
    Part("leader: hands its own write to the kernel", True, "submitting", "submitted", on_the_way=False),
    Part("leader: its disk", True, "submitted", "written", on_the_way=False),
    Part("follower: receives, checks and logs it", False, "message", "turn"),
    Part("follower: lays it out", False, "turn", "submitting"),
    Part("follower: hands the write to the kernel", False, "submitting", "submitted"),
    Part("follower: its disk", False, "submitted", "written"),
    Part("follower: takes the disk's report", False, "written", "turn"),
    Part("follower: has its acknowledgement made", False, "turn", "sending"),
    Part("follower: sends it", False, "sending", "sent"),
    Part("leader: receives it", True, "message", "turn"),
    Part("leader: commits, applies, answers", True, "turn", "answered"),
)


def lengths_us(steps: Steps, begins: str, ends: str) -> Iterator[float]:
    """How long it takes from the last time that something begins to when it ends."""
    begun: int | None = None
    for when, step in steps:
        if step == begins:
            begun = when
        elif step == ends and begun is not None:
            yield (when - begun) / 1e3
            begun = None


def one_request() -> list[Line]:
    batch = batch_of(KIB, KIB)
    with scratch() as folder:
        with running_cluster(folder, trace_folder=folder, storage_segment_bytes=SEGMENT_BYTES) as cluster:
            cluster.create([TOPIC])
            cluster.await_home(TOPIC)
            with closing(Sender(cluster, TOPIC)) as sender:
                sender.use()
                sender.produce(batch, REQUESTS_BEFORE, 1)
                begun_ns = time.perf_counter_ns()
                latencies_us = [latency_s * 1e6 for latency_s in sender.produce(batch, REQUESTS, 1).latencies_s]
                ended_ns = time.perf_counter_ns()
                leader = sender.leader
        traces = {node: read_steps(os.path.join(folder, f"node-{node}.steps")) for node in NODES}
    measured = {node: [step for step in steps if begun_ns <= step[0] < ended_ns] for node, steps in traces.items()}
    lines: list[Line] = []
    on_the_way_us = 0.0
    for part in PARTS:
        nodes = [steps for node, steps in measured.items() if (node == leader) == part.leads]
        taken_us = [taken for steps in nodes for taken in lengths_us(steps, part.begins, part.ends)]
        on_the_way_us += percentile(taken_us, 0.5) if taken_us and part.on_the_way else 0.0
        lines.append(_line(part.name if part.on_the_way else f"{part.name} (meanwhile)", taken_us))
    client = _line("what the client waits", latencies_us)
    rest_us = percentile(latencies_us, 0.5) - on_the_way_us
    return [*lines, Line("the rest: being woken, waiting for a core", f"{rest_us:.0f} µs"), client]


def _line(name: str, taken_us: Sequence[float]) -> Line:
    if not taken_us:
        return Line(name, "–", note="no such step: where the kernel does not write by itself, a thread does")
    low, middle, high = (percentile(taken_us, share) for share in (0.25, 0.5, 0.75))
    return Line(name, f"{middle:.0f} µs", note=f"half of them {low:.0f} to {high:.0f}")
