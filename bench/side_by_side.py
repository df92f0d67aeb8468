"""`tidelog bench`: the same client work against Tidelog and against a real Apache Kafka, in turn, on this machine.

Rows stand in the order of the table in docs/performance.md. Those that can share clusters do, and are run first; the
others bring their own. A row that fails is said, and does not take the others with it; Ctrl-C ends the run, not what
it has measured.
"""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench import side_by_side_cluster as cluster
from bench import side_by_side_latency as latency
from bench import side_by_side_produce as produce
from bench.about import about_this_run
from bench.arena import FAILURES, Arena, Effort, open_arena
from bench.figures import Figure, Results

SHARED: dict[str, Callable[[Arena], list[Figure]]] = {
    "produce-1k": produce.produce_1k,
    "new-stream": produce.new_stream,
    **{
        f"raw-{label}": partial(produce.raw, batch_bytes=size, label=label) for label, size in produce.RAW_SIZES.items()
    },
    **{
        f"produce-16x{label}": partial(produce.produce_many, value_bytes=size, label=label)
        for label, size in produce.VALUE_SIZES.items()
    },
    "latency-20": partial(latency.latency, mb_per_s=20),
    "latency-40": partial(latency.latency, mb_per_s=40),
    "one-1": partial(latency.one_record, connections=1),
    "one-64": partial(latency.one_record, connections=64),
    "end-to-end": latency.end_to_end,
    "catch-up": latency.catch_up,
    "catch-up-cold": partial(latency.catch_up, cold=True),
    "raw-read": latency.raw_read,
    "tail-4": produce.tail,
    "java": cluster.java,
    "memory": produce.memory,  # last: it asks for the most that was ever used
}
OWN: dict[str, Callable[[Effort], list[Figure]]] = {
    "failover": cluster.failover,
    "start-up": cluster.start_up,
    "streams-1000": cluster.many_streams,
}
ROWS = (*SHARED, *OWN)


def chosen(only: str, known: Sequence[str]) -> list[str]:
    """Names with commas; each may be the beginning of several (`produce`). Empty: all."""
    names: list[str] = []
    for asked in filter(None, (text.strip() for text in only.split(","))):
        found = [asked] if asked in known else [name for name in known if name.startswith(f"{asked}-")]
        if not found:
            raise ValueError(f"there is no {asked}; there are {', '.join(known)}")
        names += found
    return [name for name in known if name in names] or list(known)


def side_by_side(names: Sequence[str], effort: Effort, show: Callable[[Sequence[Figure]], None]) -> Results:
    """`show` gets each row's figures as soon as they are there."""
    figures: list[Figure] = []
    remarks: list[str] = []
    client, stopped = "", False

    def measure(name: str, row: Callable[[], list[Figure]]) -> None:
        nonlocal stopped
        if stopped:
            return
        print(f"{name} …", file=sys.stderr, flush=True)
        begun = time.monotonic()
        try:
            found = row()
        except KeyboardInterrupt:
            stopped = True
            remarks.append(f"stopped by hand in {name}")
            return
        except FAILURES as failure:
            remarks.append(f"{name} failed after {time.monotonic() - begun:.0f} s: {failure}")
            print(remarks[-1], file=sys.stderr, flush=True)
            return
        figures.extend(found)
        show(found)

    if shared := [name for name in names if name in SHARED]:
        with open_arena(effort) as arena:
            client = arena.client.name
            for remark in arena.remarks:
                print(remark, file=sys.stderr, flush=True)
            for name in shared:
                measure(name, partial(SHARED[name], arena))
            remarks += arena.remarks
    for name in names:
        if name in OWN:
            measure(name, partial(OWN[name], effort))
    order = {name: place for place, name in enumerate(ROWS)}
    figures.sort(key=lambda figure: order[figure.row])
    return Results(about_this_run(effort, client), figures, (), remarks)
