"""A thousand streams on three nodes: made, left alone, and started again."""

import time

from bench.cluster_nodes import AGREE_S_MAX, NODES, running_cluster, wait_for
from bench.rounds import Line
from bench.scratch import scratch

STREAMS = 1_000
TOPICS_PER_REQUEST = 50
REST_S = 8.0  # until everything is asleep
IDLE_S = 10.0
IDLE_SHARE_MAX = 0.05  # of a core
READY_S_MAX = 5.0


def streams(count: int = STREAMS) -> list[Line]:
    topics = [f"stream-{number:04}" for number in range(count)]
    with scratch() as folder, running_cluster(folder) as cluster:
        programs = [cluster.programs[node] for node in NODES]
        before_s = [program.cpu_s() for program in programs]
        begun = time.perf_counter()
        for first in range(0, count, TOPICS_PER_REQUEST):
            cluster.create(topics[first : first + TOPICS_PER_REQUEST])
        created_s = time.perf_counter() - begun
        created_cpu_s = [program.cpu_s() - used_s for program, used_s in zip(programs, before_s, strict=True)]
        time.sleep(REST_S)
        before_s = [program.cpu_s() for program in programs]
        time.sleep(IDLE_S)
        shares = [(program.cpu_s() - used_s) / IDLE_S for program, used_s in zip(programs, before_s, strict=True)]
        idle_mb = [program.memory_mb() for program in programs]
        stopping = time.perf_counter()
        cluster.stop()
        begun = time.perf_counter()
        stopped_s = begun - stopping
        ready_s = cluster.start()
        used_s = max(program.cpu_s() for program in cluster.programs.values())
        wait_for("streams have no leaders", AGREE_S_MAX, lambda: cluster.all_lead(topics) or None)
        led_s = time.perf_counter() - begun
    slowest_s = max(ready_s.values())
    name = f"{count:,} streams × {len(NODES)} replicas"
    each = ", ".join(f"{share:.1%}" for share in shares)
    return [
        Line(
            f"{name}, created",
            f"{created_s:.1f} s",
            note=f"until every one has a leader; {max(created_cpu_s):.1f} CPU s a node",
            raw={"seconds": created_s, "cpu_s": created_cpu_s},
        ),
        Line(
            f"{name}, idle",
            f"{max(shares):.1%} of a core",
            f"< {IDLE_SHARE_MAX:.0%}",
            max(shares) < IDLE_SHARE_MAX,
            f"of the three: {each}; {max(idle_mb):.0f} MB RSS",
            {"shares": shares, "rss_mb": idle_mb},
        ),
        Line(
            f"{name}, start to ready",
            f"{slowest_s:.1f} s",
            f"< {READY_S_MAX:.0f} s",
            slowest_s < READY_S_MAX,
            f"all three at once, {used_s:.1f} CPU s each; {led_s:.1f} s until every stream has a leader; "
            f"stopping took {stopped_s:.1f} s",
            {"ready_s": ready_s, "ready_cpu_s": used_s, "led_s": led_s, "stopped_s": stopped_s},
        ),
    ]
