"""`tidelog bench vdl`: the table VDL has published (docs/vdl_test.md), row by row.

VDL's were three servers of 32 threads with a SATA disk each, over 1 GbE, one synchronous producer; here it is three
nodes and the client on one machine. Published are messages a second; a write asks for a batch of messages and waits
until it is acknowledged, so one connection that sends ready-made requests does the same work.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.about import about_this_run
from bench.arena import FAILURES, KIB, MB, Arena, Effort, open_arena
from bench.figures import Figure, Results
from bench.frames import records_in
from bench.growth import following
from bench.side_by_side_latency import requests
from tidelog.server.clock import wall_ms
from tidelog.wire.records import Record, build_batch

PUBLISHED = "VDL, published"
BATCHES = (1, 10, 25, 50)
WRITES = {
    100: (2_468, 7_481, 13_760, 18_524),
    500: (2_273, 6_779, 11_663, 16_377),
    KIB: (2_193, 5_151, 10_132, 13_990),
    4 * KIB: (1_311, 3_670, 5_308, 6_398),
}
READS = {100: 142_000, KIB: 62_000, 4 * KIB: 20_600}
READ_BYTES = 64 * MB
FILL_S_MAX = 50.0
BESIDE_SIZE, BESIDE_BATCH, BESIDE_WRITES = 100, 25, 13_961  # writes while somebody reads


def messages(size: int, count: int) -> bytes:
    """One batch."""
    value = bytes(range(256)) * (size // 256 + 1)
    return bytes(build_batch([Record(value[:size], timestamp=wall_ms())] * count))


def _write(arena: Arena, topic: str, size: int, count: int) -> float:
    """Messages a second."""
    batch = messages(size, count)
    assert records_in(batch) == count
    return requests(arena, arena.tidelog, topic, batch, 1).records_per_s * count


def write(arena: Arena, size: int) -> list[Figure]:
    figures: list[Figure] = []
    for count, published in zip(BATCHES, WRITES[size], strict=True):
        with arena.used_topic() as topic:
            rounds = [_write(arena, topic, size, count) for _ in range(arena.effort.rounds)]
        name = f"write {size:,} B, batch {count}"
        figures.append(Figure(f"write-{size}", name, "messages/s", rounds, PUBLISHED, [float(published)]))
    return figures


def read(arena: Arena) -> list[Figure]:
    figures: list[Figure] = []
    for size, published in READS.items():
        with arena.topic() as topic:
            filled = arena.produce(arena.tidelog, topic, value_bytes=size, bytes_max=READ_BYTES, seconds=FILL_S_MAX)
            rounds = [
                arena.client.run(
                    "consume", bootstrap=arena.tidelog.bootstrap, topic=topic, partitions=1, records=filled.records
                )
                for _ in range(arena.effort.rounds)
            ]
        rates = [one.records_per_s for one in rounds]
        figures.append(Figure("read", f"read {size:,} B", "messages/s", rates, PUBLISHED, [float(published)]))
    return figures


def both(arena: Arena) -> list[Figure]:
    with arena.used_topic() as topic, following(arena, topic, 1):
        rounds = [_write(arena, topic, BESIDE_SIZE, BESIDE_BATCH) for _ in range(arena.effort.rounds)]
    name = f"write {BESIDE_SIZE} B, batch {BESIDE_BATCH}, while one reads"
    return [Figure("both", name, "messages/s", rounds, PUBLISHED, [float(BESIDE_WRITES)])]


VDL_ROWS: dict[str, Callable[[Arena], list[Figure]]] = {
    **{f"write-{size}": lambda arena, s=size: write(arena, s) for size in WRITES},
    "read": read,
    "both": both,
}


def vdl(names: Sequence[str], effort: Effort, show: Callable[[Sequence[Figure]], None]) -> Results:
    figures: list[Figure] = []
    remarks: list[str] = []
    with open_arena(replace(effort, kafka=False)) as arena:
        for name in names:
            print(f"{name} …", file=sys.stderr, flush=True)
            try:
                found = VDL_ROWS[name](arena)
            except FAILURES as failure:
                remarks.append(f"{name} failed: {failure}")
                continue
            figures += found
            show(found)
        client = arena.client.name
    return Results(about_this_run(effort, client), figures, (), remarks)
