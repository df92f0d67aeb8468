"""`python -m bench pages`: what direct, durable writes from huge pages are worth, beside the same from ordinary ones.

Three processes at a time, as three nodes on one machine would, write over blocks that exist.
"""

import mmap
import multiprocessing
import os
import statistics
import time

from bench.frames import MIB
from bench.rounds import Line
from bench.scratch import scratch
from tidelog.pages import fresh_memory

PROCESSES = 3
FILE_BYTES = 64 * MIB
SIZES = {"64 KiB": 64 << 10, "1 MiB": MIB, "4 MiB": 4 * MIB}
ROUND_BYTES, WRITES_MAX, ROUNDS = 128 * MIB, 300, 3


def writes_ms(path: str, size: int, huge: bool) -> float:
    """The median of the time that a write takes."""
    memory = fresh_memory(4 * MIB) if huge else mmap.mmap(-1, 4 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = os.urandom(MIB) * 4
    view = memoryview(memory)[:size]
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    try:
        for position in range(0, FILE_BYTES, 4 * MIB):
            os.pwrite(descriptor, memory, position)
        os.fdatasync(descriptor)
        taken_s: list[float] = []
        for number in range(min(WRITES_MAX, ROUND_BYTES // size)):
            begun = time.perf_counter()
            os.pwritev(descriptor, [view], number * size % FILE_BYTES, os.RWF_DSYNC)
            taken_s.append(time.perf_counter() - begun)
        return statistics.median(taken_s) * 1e3
    finally:
        os.close(descriptor)


def pages() -> list[Line]:
    lines: list[Line] = []
    with scratch() as folder, multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        paths = [os.path.join(folder, f"file-{number}") for number in range(PROCESSES)]
        for name, size in SIZES.items():
            taken_ms: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(ROUNDS):
                for huge, medians in taken_ms.items():
                    medians.extend(pool.starmap(writes_ms, [(path, size, huge) for path in paths], chunksize=1))
            ordinary, huge_ms = (statistics.median(medians) for medians in taken_ms.values())
            note = f"{huge_ms:.2f} ms from huge pages, {ordinary:.2f} ms from ordinary ones"
            lines.append(Line(f"durable writes of {name}", f"{huge_ms / ordinary:.2f} of the time", note=note))
    return lines
