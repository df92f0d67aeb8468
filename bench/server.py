"""A node as a process of its own, seen through its socket: a log that is read, and a node that has nothing to do."""

import os
import statistics
import time
from contextlib import ExitStack, closing
from functools import partial
from glob import glob

from bench.frames import KIB, MIB, batch_of, check_fetched, fetch_frame, records_in
from bench.processes import Metered, serving, serving_node
from bench.raw_client import RawClient
from bench.rounds import Comparison, Line, compare, spread
from bench.scratch import scratch

TOPIC = "bench"
READ_BYTES = 512 * MIB
TAIL_BYTES = 128 * MIB  # behind what is read: more than the tail cache holds
BATCH_BYTES = 64 * KIB
FETCH_BYTES = 8 * MIB  # what the server gives at most with one answer
READ_ROUNDS = 5
FILL_WINDOW = 64
IDLE_AFTER_S = 3
IDLE_S = 5


def serve() -> list[Line]:
    """One reader, one request at a time; beside it a loop that sends it the same files."""
    batch = batch_of(BATCH_BYTES)
    total_bytes = READ_BYTES // len(batch) * len(batch)
    answer_bytes = FETCH_BYTES // len(batch) * len(batch)

    def offset_at(position: int) -> int:
        return position // len(batch) * records_in(batch)

    def frame_at(position: int) -> bytes:
        return fetch_frame(TOPIC, offset_at(position), FETCH_BYTES)

    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        node = stack.enter_context(serving_node(folder))
        client = stack.enter_context(closing(RawClient(node.address)))
        client.create(TOPIC)
        client.produce(TOPIC, batch, (READ_BYTES + TAIL_BYTES) // len(batch), FILL_WINDOW)
        check_fetched(client.exchange(frame_at(MIB)), offset_at(MIB))
        node.program.settle()
        arguments = ["bench.floor_server", "give", str(answer_bytes), *_closed_segments(folder)]
        floor = stack.enter_context(serving(arguments, os.path.join(folder, "floor.log")))
        floor_client = stack.enter_context(closing(RawClient(floor.address)))
        ours, bare = (
            Metered([server.program], total_bytes, partial(reader.read_whole, frame_at, total_bytes, len(batch)))
            for server, reader in ((node, client), (floor, floor_client))
        )
        comparison = compare(ours, bare, READ_ROUNDS)
    return _reading_lines(comparison, total_bytes / 1e6, ours, bare)


def _reading_lines(comparison: Comparison, round_mb: float, ours: Metered, bare: Metered) -> list[Line]:
    rates = [round_mb / seconds for seconds in comparison.ours]
    rate, floor_rate = statistics.median(rates), round_mb / statistics.median(comparison.floor)
    note = f"{spread(rates)}; {comparison.ratio:.2f} of the floor's {floor_rate:.0f} ({spread(comparison.ratios, 2)})"
    return [
        Line("read a warm log, one connection", f"{rate:.0f} MB/s", ">= 500 MB/s", rate >= 500, note),
        Line(
            "what the server uses for it", f"{ours.cpu_ms_per_mb:.2f} CPU s/GB", note=f"floor {bare.cpu_ms_per_mb:.2f}"
        ),
    ]


def _closed_segments(folder: str) -> list[str]:
    paths = sorted(glob(os.path.join(folder, "data", "streams", "*", "*.log")))
    assert sum(map(os.path.getsize, paths)) > READ_BYTES * 0.9, "too few segments were closed to read them"
    return paths


def idle_node() -> list[Line]:
    with scratch() as folder, serving_node(folder) as node:
        time.sleep(IDLE_AFTER_S)
        memory_mb = node.program.memory_mb()
        before_s = node.program.cpu_s()
        time.sleep(IDLE_S)
        used_s = node.program.cpu_s() - before_s
    return [
        Line("memory of an idle node", f"{memory_mb:.0f} MB RSS", "< 80 MB", memory_mb < 80),
        Line("CPU of an idle node", f"{used_s * 1e3:.1f} ms", note=f"in {IDLE_S} s: {used_s / IDLE_S:.2%} of a core"),
    ]
