"""kill -9 of the leader at every step of copying and deleting: real processes, a real client, the same bytes after."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.faults.cluster import ClusterFailed
from tests.tier.processes import TOPIC, VALUE_BYTES, WAIT_S, TieredProcesses

COPY_POINTS = (
    "tier.copy.started",
    "tier.copy.log-put",
    "tier.copy.indexes-put",
    "tier.copy.finished",
    "tier.manifest",
)
DELETE_POINTS = ("tier.delete.started", "tier.delete.indexes-gone", "tier.delete.objects-gone")
CRASHED = 137
SEGMENTS_BYTES = 4 << 20  # what counts for retention is whole segments, and one may lie in both tiers
LEADERS_MAX = 4  # that may come and go until one of them reaches a point


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[TieredProcesses]:
    made = TieredProcesses(tmp_path)
    try:
        yield made
    finally:
        made.close()


def kill_leader_at(processes: TieredProcesses, point: str, records: int) -> None:
    """Let the leader crash at the point. On a busy machine another may lead by then: it crashes instead."""
    armed: set[int] = set()
    for _ in range(LEADERS_MAX):
        leader = processes.cluster.leader(TOPIC)
        if leader not in armed:
            armed.add(leader)
            processes.cluster.admin("fault", node=leader, point=point, action="crash")
        processes.write(records)
        node = processes.cluster.nodes[leader]
        try:
            ended = node.wait_ended(WAIT_S / LEADERS_MAX)
        except ClusterFailed:
            continue
        assert ended == CRASHED, point
        for other in armed - {leader}:
            processes.cluster.admin("fault", node=other, point=point)
        node.start()
        processes.cluster.wait_ready()
        return
    raise AssertionError(f"nobody has come to {point}")


def test_a_leader_killed_at_any_step_of_a_copy_loses_nothing_and_leaves_nothing(processes: TieredProcesses) -> None:
    processes.start()
    processes.write(100)
    for point in COPY_POINTS:
        kill_leader_at(processes, point, records=60)
    processes.wait_tiered(processes.written - 120)
    assert processes.check_every_offset() == (0, processes.written)
    found = processes.scrub()
    assert (found["missing"], found["foreign"]) == ([], [])
    assert found["orphans"] == [], "the next leader knows of everything that a killed one has begun"


@pytest.mark.slow
def test_a_leader_killed_at_any_step_of_a_deletion_finishes_it_later(processes: TieredProcesses) -> None:
    processes.start(**{"retention.bytes": str(3 << 20)})
    processes.write(150)
    for point in DELETE_POINTS:
        kill_leader_at(processes, point, records=200)
        assert processes.check_every_offset()[1] == processes.written
    status = processes.cluster.wait_for(
        lambda: (found := processes.status())["RemoteDeleteLagSegments"] == 0 and found, "the deletions", WAIT_S
    )
    assert status["start_offset"] > 0
    assert processes.check_every_offset() == (status["start_offset"], processes.written)
    found = processes.scrub()
    assert (found["missing"], found["orphans"]) == ([], [])


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_a_hundred_kills_at_random_moments(processes: TieredProcesses) -> None:
    rng, kept_bytes = random.Random(7), 40 << 20
    processes.start(**{"retention.bytes": str(kept_bytes)})
    for _ in range(100):
        processes.write(rng.randrange(20, 80))
        leader = processes.cluster.leader(TOPIC)
        processes.cluster.nodes[leader].kill()
        processes.cluster.nodes[leader].start()
        processes.cluster.wait_ready()
    first, last = processes.check_every_offset()
    assert last == processes.written
    assert (last - first) * VALUE_BYTES > kept_bytes - SEGMENTS_BYTES, "retention takes no more than it may"
    processes.scrub()
    found = processes.scrub()
    assert (found["missing"], found["orphans"]) == ([], [])
