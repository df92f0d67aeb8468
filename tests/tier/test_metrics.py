"""What tiering counts, and how far behind it says it is."""

from pathlib import Path

import pytest

from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, create_on
from tests.server.world import until
from tests.tier.segments import remote, view
from tests.tier.tiered import TIERED, read_numbers, settings, write
from tidelog.tier.cache import CacheCounts
from tidelog.tier.metadata import RemoteLog, SegmentAdded, SegmentMoved, SegmentState
from tidelog.tier.metrics import Sample, TierMetrics, lags_of


def finished(log: RemoteLog, base_offset: int, last_offset: int) -> RemoteLog:
    segment = remote(base_offset, last_offset)
    log.apply(SegmentAdded(segment, 0))
    log.apply(SegmentMoved(segment.id, SegmentState.COPY_FINISHED, 0))
    return log


def test_counts_are_kept_by_topic_and_for_the_node() -> None:
    metrics = TierMetrics()
    metrics.count("a", copy_requests=1, copy_bytes=10)
    metrics.count("b", copy_bytes=5)
    metrics.count("a", fetch_errors=2)
    assert (metrics.topic("a").copy_bytes, metrics.topic("a").fetch_errors) == (10, 2)
    assert metrics.node.named()["RemoteCopyBytes"] == 15
    metrics.keep(["b"])
    assert metrics.topic("a").copy_bytes == 0
    assert metrics.node.copy_bytes == 15, "what the node did it did all the same"


def test_a_count_that_does_not_exist_is_a_mistake() -> None:
    with pytest.raises(AssertionError):
        TierMetrics().count("a", copied=1)


def test_samples_name_the_topic_or_nobody() -> None:
    metrics = TierMetrics()
    metrics.count("a", delete_bytes=7)
    found = metrics.samples([("Chunk", CacheCounts(memory_hits=3, loads=4))])
    assert Sample("RemoteDeleteBytes", 7) in found
    assert Sample("RemoteDeleteBytes", 7, "a") in found
    assert Sample("RemoteChunkCacheMemoryHits", 3) in found
    assert Sample("RemoteChunkCacheLoads", 4) in found


@pytest.mark.parametrize(
    ("copied", "start_offset", "copy", "delete"),
    [
        ([], 0, (2_000, 2), (0, 0)),  # the segment that is written to is not behind
        ([(0, 9)], 0, (1_000, 1), (0, 0)),
        ([(0, 14)], 0, (1_000, 1), (0, 0)),  # half of one that is cut elsewhere
        ([(0, 9), (10, 19)], 0, (0, 0), (0, 0)),
        ([(0, 9), (10, 19)], 10, (0, 0), (1_000, 1)),
        ([(0, 9), (10, 19)], 15, (0, 0), (1_000, 1)),  # the start lies in the second
    ],
)
def test_lags(copied: list[tuple[int, int]], start_offset: int, copy: tuple[int, int], delete: tuple[int, int]) -> None:
    log = RemoteLog()
    for each in copied:
        finished(log, *each)
    found = lags_of([view(0, 10), view(10, 20), view(20, 25)], log, start_offset)
    assert (found.copy_bytes, found.copy_segments) == copy
    assert (found.delete_bytes, found.delete_segments) == delete


def test_a_deletion_that_was_begun_is_behind_until_it_is_done() -> None:
    log = finished(RemoteLog(), 0, 9)
    log.move_start(10)
    (segment,) = log.readable()
    log.apply(SegmentMoved(segment.id, SegmentState.DELETE_STARTED, 0))
    assert lags_of([], log, 10).delete_segments == 1
    log.apply(SegmentMoved(segment.id, SegmentState.DELETE_FINISHED, 0))
    assert lags_of([], log, 10).delete_segments == 0


async def test_a_node_gives_every_number_there_is(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    leader = await cluster.until_led("t")
    await write(leader, 25)
    await until(lambda: leader.replica("t").log.start_offset == 20)
    assert await read_numbers(leader) == list(range(25))
    tiering = leader.broker.tiering
    assert tiering is not None
    found = {(each.name, each.topic, each.partition): each.value for each in tiering.samples()}
    assert found["RemoteCopyRequests", "t", -1] == found["RemoteCopyRequests", "", -1] == 2
    assert found["RemoteCopyBytes", "t", -1] == found["RemoteLogSizeBytes", "t", 0] > 1_900_000
    assert found["RemoteFetchBytes", "t", -1] >= found["RemoteLogSizeBytes", "t", 0]
    assert found["RemoteCopyLagSegments", "t", 0] == 0
    assert found["RemoteChunkCacheLoads", "", -1] == 2
    assert found["RemoteFetchBytesInFlight", "", -1] == found["RemoteLogReaderTaskQueueSize", "", -1] == 0
    assert found["RemoteCopyOverdueBytes", "t", 0] == 0
    status = await admin(leader, "tier-status", topic="t", partition=0)
    named = {name for name, topic, _ in found if not topic and "Cache" not in name}
    assert named <= status["node"].keys(), "the page says that it has them all"
    tiering.set_bounds(
        leader.settings.changed(
            {
                "remote.log.manager.fetch.max.bytes.per.second": "1",
                "remote.log.manager.copy.max.bytes.per.second": "1000000",  # a little less than a segment
            }
        )
    )
    tiering.reads.rate.charge(10, leader.broker.now())
    assert tiering.begin_read(leader.replica("t"), 0, 10, lambda: None, first=True) is None
    assert tiering.metrics.topic("t").fetch_throttled == 1
    await write(leader, 10, first=25)
    await until(lambda: tiering.metrics.topic("t").copy_throttle_ms > 0)
