"""Streams in two tiers on real clusters: copied, read across the border, trimmed, expired, deleted."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.server.client import EARLIEST, LATEST, batch_of, fetch_request, records_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, create_on, lead
from tests.server.world import Server, until
from tests.tier.segments import remote
from tests.tier.tiered import (
    TIERED,
    orphans,
    read_numbers,
    replicas,
    settings,
    stored,
    tiered_cluster,
    until_tiered,
    whole,
    write,
)
from tidelog.server.tier_metadata import RaftMetadata
from tidelog.tier.layout import LOG
from tidelog.tier.metadata import Outcome, SegmentAdded, SegmentState
from tidelog.tier.quota import Pace
from tidelog.tier.store import Parts
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    IncrementalAlterConfigsEntry,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
)

EARLIEST_LOCAL, LATEST_TIERED, PENDING, NEWEST = -4, -5, -6, -3
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


async def offset_of(server: Server, timestamp: int) -> tuple[int, int]:
    client = await server.connect()
    answer = await client.list_offset("t", timestamp)
    await client.close()
    assert answer.error_code == 0
    return answer.offset, answer.timestamp


async def alter(server: Server, topic: str, **configs: str | None) -> tuple[int, str | None]:
    client = await server.connect()
    changes = [
        IncrementalAlterConfigsEntry(
            name=name.replace("_", "."), config_operation=0 if value is not None else 1, value=value
        )
        for name, value in configs.items()
    ]
    resource = IncrementalAlterConfigsRequestResource(resource_type=2, resource_name=topic, configs=changes)
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]))
    await client.close()
    return answer.responses[0].error_code, answer.responses[0].error_message


async def test_a_consumer_reads_from_the_first_record_to_the_last_across_the_border(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    assert leader.replica("t").start_offset == 0
    assert await read_numbers(leader) == list(range(40))
    assert whole(tmp_path, leader.replica("t"))
    assert orphans(tmp_path, leader.replica("t")) == []


async def test_history_gives_way_to_what_is_being_written(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.remote_reads.GIVE_WAY_S", 60.0)
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    leader.disk.hold_syncs("/streams/")
    client = await leader.connect()
    client.send_produce("t", batch_of("40"))
    await until(lambda: leader.broker.node._store.writing)
    reading = asyncio.ensure_future(read_numbers(leader))
    await until(lambda: bool(leader.broker.node._giving_way))
    leader.disk.release_syncs()
    assert (await reading)[:40] == list(range(40))


async def test_history_keeps_a_pace_beside_what_is_being_written_and_only_then(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paced: list[int] = []

    def wait_s(_pace: Pace, size: int, _now_s: float) -> float:
        paced.append(size)
        return 0.0

    monkeypatch.setattr(Pace, "wait_s", wait_s)
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    node = leader.broker.node
    await until(lambda: not node.writes)
    assert await read_numbers(leader) == list(range(40))
    assert not paced
    monkeypatch.setattr("tidelog.server.node.MOMENT_MS", 60_000)
    assert await read_numbers(leader) == list(range(40))
    assert sum(paced) >= 30


async def test_every_replica_serves_history_when_it_leads(cluster: ClusterWorld, tmp_path: Path) -> None:
    await write(await tiered_cluster(cluster, tmp_path), 30)
    await until_tiered(cluster, 20)
    for node in (2, 3, 1):
        leader = await lead(cluster, "t", node)
        assert await read_numbers(leader) == list(range(30))
        assert await offset_of(leader, EARLIEST) == (0, -1)


async def test_streams_in_several_data_folders_are_tiered_from_each_of_them(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    folders = [cluster.folder(1), tmp_path / "second"]
    several = settings(tmp_path, log_dirs=",".join(map(str, folders)))
    await cluster.start(1, **several)
    await create_on(cluster.any, "t", [1], [1], [1], **TIERED)
    for partition in range(3):
        await write(await cluster.until_led("t", partition), 25, partition=partition)
    await until(lambda: all(cluster.any.replica("t", number).log.start_offset >= 20 for number in range(3)))
    assert all(list(folder.glob("streams/[0-9]*")) for folder in folders)
    await cluster.kill(1)
    await cluster.start_node(1, **several)
    for partition in range(3):
        leader = await cluster.until_led("t", partition)
        assert await read_numbers(leader, partition=partition) == list(range(25))


async def test_copies_of_several_leaders_fit_together(cluster: ClusterWorld, tmp_path: Path) -> None:
    """Replicas cut their segments at different places."""
    leader = await tiered_cluster(cluster, tmp_path)
    for turn in range(6):
        await write(leader, 13, first=turn * 13)
        leader.replica("t").log.roll()
        await until(lambda: leader.replica("t").remote.copied_until == turn * 13 + 13)  # noqa: B023
        leader = await lead(cluster, "t", turn % 3 + 1)
    await until_tiered(cluster, 60)
    assert await read_numbers(leader) == list(range(78))
    segments = leader.replica("t").remote.readable()
    ends = [segment.next_offset for segment in segments]
    assert [segment.base_offset for segment in segments] == [0, *ends[:-1]]
    assert len({segment.node for segment in segments}) > 1


async def test_after_a_restart_of_all_nodes_history_is_there(cluster: ClusterWorld, tmp_path: Path) -> None:
    await write(await tiered_cluster(cluster, tmp_path), 30)
    await until_tiered(cluster, 20)
    for node in (1, 2, 3):
        await cluster.kill(node)
    await asyncio.gather(*(cluster.start_node(node, **settings(tmp_path)) for node in (1, 2, 3)))
    leader = await cluster.until_led("t")
    assert await read_numbers(leader) == list(range(30))
    await write(leader, 10, first=30)
    assert await read_numbers(leader) == list(range(40))


async def test_a_wiped_replica_takes_its_state_from_the_others_and_history_from_the_store(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", 100)
    await write(await tiered_cluster(cluster, tmp_path), 40)
    await until_tiered(cluster, 30)
    await cluster.kill(3)
    cluster.wipe(3)
    newcomer = await cluster.start_node(3, **settings(tmp_path))
    await until(lambda: not isinstance(newcomer.broker.replica_of("t", 0), ErrorCode))
    await until(lambda: newcomer.replica("t").high_watermark == 40)
    replica = newcomer.replica("t")
    assert replica.log.size_bytes < 3 << 20, "only what is on the leader's disk was copied"
    assert replica.start_offset == 0
    await until(lambda: any(m.voter for m in replica.group.members(0) if m.node == 3) or replica.follows)
    assert replica.remote.encode() == cluster.servers[1].replica("t").remote.encode()


async def test_what_list_offsets_says_of_both_tiers(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    long_ago = int(time.time() * 1000) - HOUR_MS // 2
    await write(leader, 15, time_ms=long_ago)
    await write(leader, 10, first=15)
    await until_tiered(cluster, 18)
    replica = leader.replica("t")
    copied = replica.remote.copied_until
    assert await offset_of(leader, EARLIEST) == (0, -1)
    assert await offset_of(leader, LATEST) == (25, -1)
    assert await offset_of(leader, EARLIEST_LOCAL) == (replica.log.start_offset, -1)
    assert await offset_of(leader, LATEST_TIERED) == (copied - 1, -1)
    assert await offset_of(leader, PENDING) == (copied, -1)
    assert await offset_of(leader, 1) == (0, long_ago)
    assert (await offset_of(leader, long_ago + 1))[0] == 15
    assert (await offset_of(leader, int(time.time() * 1000) + HOUR_MS)) == (-1, -1)
    assert (await offset_of(leader, NEWEST))[0] == 24


async def test_the_newest_record_is_found_in_the_store(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 5)
    future = int(time.time() * 1000) + HOUR_MS
    await write(leader, 1, first=5, time_ms=future)
    await write(leader, 24, first=6)
    await until_tiered(cluster, 10)
    assert await offset_of(leader, NEWEST) == (5, future)


async def test_leader_epochs_are_those_of_both_tiers(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 12)
    first_epoch = leader.replica("t").group.term
    leader = await lead(cluster, "t", 2)
    await write(leader, 24, first=12)
    await until_tiered(cluster, 20)
    replica = leader.replica("t")
    assert replica.term_of_offset(0) == first_epoch
    assert replica.end_of_term(first_epoch) == (first_epoch, 12)
    client = await leader.connect()
    request = fetch_request("t", [(0, 5)])
    request.topics[0].partitions[0].last_fetched_epoch = first_epoch
    answer = (await client.ask(request, 12)).responses[0].partitions[0]
    assert answer.error_code == 0
    assert records_of(answer.records)[0].offset == 5


async def test_nothing_leaves_the_disk_while_the_store_is_away_and_everything_later(
    cluster: ClusterWorld, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    tiering = leader.broker.tiering
    assert tiering is not None
    put = tiering.store.put_parts

    async def fail(*_: object) -> None:
        raise OSError("away")

    tiering.store.put_parts = fail  # type: ignore[method-assign]
    await write(leader, 40)
    await until(lambda: tiering.metrics.node.copy_errors > 3)
    assert all(replica.log.start_offset == 0 for replica in replicas(cluster))
    assert tiering.overdue_bytes(leader.replica("t")) > 2 << 20
    await until(lambda: "bytes stay on disk because they are not in the store" in caplog.text)
    assert await read_numbers(leader) == list(range(40))
    tiering.store.put_parts = put  # type: ignore[method-assign]
    await until_tiered(cluster, 30)
    await until(lambda: orphans(tmp_path, leader.replica("t")) == [])
    assert await read_numbers(leader) == list(range(40))


async def test_a_copy_that_somebody_began_and_left_is_cleaned_up(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    left = remote(1_000, 1_009)
    tiering = leader.broker.tiering
    assert tiering is not None
    place = tiering.place_of(leader.replica("t"))
    assert place is not None
    await tiering.store.put(place.object_name(left, LOG), b"half a copy")
    assert await RaftMetadata(leader.replica("t")).record(SegmentAdded(left, 0)) is Outcome.APPLIED
    await write(leader, 25)
    await until(lambda: all(replica.remote.segment(left.id) is None for replica in replicas(cluster)))
    await until_tiered(cluster, 20)
    assert orphans(tmp_path, leader.replica("t")) == []


async def test_what_a_deposed_leader_still_puts_is_found_by_a_scrub(cluster: ClusterWorld, tmp_path: Path) -> None:
    """It lands after the next leader has cleaned up what it knew to be begun."""
    old = await tiered_cluster(cluster, tmp_path)
    tiering = old.broker.tiering
    assert tiering is not None
    gate, put, landed = asyncio.Event(), tiering.store.put_parts, list[str]()

    async def held(name: str, parts: Parts) -> None:
        landed.append("")
        await gate.wait()
        await put(name, parts)
        landed[-1] = name

    tiering.store.put_parts = held  # type: ignore[method-assign]
    await write(old, 15)
    await until(lambda: landed != [])
    begun = old.replica("t").remote.segments()[0]
    new = await lead(cluster, "t", 2)
    await until(lambda: new.replica("t").remote.copied_until == 10)
    assert new.replica("t").remote.segment(begun.id) is None, "cleaned up"
    gate.set()
    await until(lambda: landed[0] != "")
    await until(lambda: old.replica("t").stream not in tiering._visits)
    found = await admin(new, "tier-scrub", topic="t", partition=0, remove=True)
    assert landed[0] in found["orphans"]
    assert orphans(tmp_path, new.replica("t")) == []
    assert await read_numbers(new) == list(range(15))


async def test_total_retention_moves_the_start_and_then_deletes_from_the_store(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(3, **settings(tmp_path))
    await create_on(cluster.any, "t", [1, 2, 3], **TIERED, retention_bytes=str(2 << 20))
    leader = await lead(cluster, "t", 1)
    await write(leader, 60)
    await until(lambda: leader.replica("t").start_offset > 20)
    await until(lambda: orphans(tmp_path, leader.replica("t")) == [])
    replica = leader.replica("t")
    await until(lambda: all(each.next_offset > replica.start_offset for each in replica.remote.readable()))
    start = replica.start_offset
    assert await read_numbers(leader, offset=start) == list(range(start, 60))
    client = await leader.connect()
    assert (await client.fetch("t", 0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_deleted_records_are_gone_from_the_store_too(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    client = await leader.connect()
    asked = DeleteRecordsRequestPartition(partition_index=0, offset=15)
    topics = [DeleteRecordsRequestTopic(name="t", partitions=[asked])]
    answer = (await client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5_000))).topics[0].partitions[0]
    assert (answer.error_code, answer.low_watermark) == (0, 15)
    assert await offset_of(leader, EARLIEST) == (15, -1)
    await until(lambda: all(each.last_offset >= 15 for each in leader.replica("t").remote.readable()))
    await until(lambda: orphans(tmp_path, leader.replica("t")) == [])
    assert await read_numbers(leader, offset=15) == list(range(15, 40))
    for node in (2, 3):
        assert await offset_of(await lead(cluster, "t", node), EARLIEST) == (15, -1)


async def test_a_deleted_topic_leaves_nothing_in_the_store(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await create_on(cluster.any, "stays", [1, 2, 3], **TIERED)
    await write(leader, 30)
    await write(await lead(cluster, "stays", 1), 30, topic="stays")
    await until_tiered(cluster, 20)
    await until_tiered(cluster, 20, topic="stays")
    client = await leader.connect()
    await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=5_000))
    await until(lambda: not any(path.parts[-3].startswith("t-") for path in stored(tmp_path)))
    assert await read_numbers(await lead(cluster, "stays", 1), topic="stays") == list(range(30))


async def test_a_folder_of_another_cluster_is_left_alone(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    other = tmp_path / "store" / f"theirs-{'A' * 22}" / "0"
    other.mkdir(parents=True)
    (other / f"{0:020d}-{'B' * 22}.log").write_bytes(b"precious")
    controller = await cluster.controller()
    tiering = controller.broker.tiering
    assert tiering is not None
    tiering.topic_deleted()
    await until(lambda: not tiering._garbage.is_set())
    await asyncio.sleep(0)
    assert (other / f"{0:020d}-{'B' * 22}.log").exists()


async def test_a_slow_stream_is_copied_when_its_segment_has_grown_old(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path, remote_log_roll_ms=50)
    await write(leader, 1, time_ms=int(time.time() * 1000) - HOUR_MS)
    await until(lambda: leader.replica("t").remote.copied_until == 1)
    await until_tiered(cluster, 1)
    assert await read_numbers(leader) == [0]


async def test_a_slow_stream_without_timestamps_is_copied_too(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path, remote_log_roll_ms=50)
    await write(leader, 1, time_ms=-1)
    await until_tiered(cluster, 1)
    assert await read_numbers(leader) == [0]


async def test_a_topic_that_is_not_tiered_is_not_copied(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(3, **settings(tmp_path))
    await create_on(cluster.any, "t", [1, 2, 3])
    await create_on(cluster.any, "tiered", [1, 2, 3], **TIERED)
    await write(await lead(cluster, "t", 1), 25)
    await write(await lead(cluster, "tiered", 1), 25, topic="tiered")
    await until_tiered(cluster, 15, topic="tiered")
    assert all(path.parts[-3].startswith("tiered-") for path in stored(tmp_path))
    assert all(replica.log.start_offset == 0 for replica in replicas(cluster))


async def test_copying_can_be_switched_off_and_what_is_there_stays_readable(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    refused = await alter(leader, "t", remote_log_copy_disable="true")
    assert refused[0] == ErrorCode.INVALID_CONFIG
    assert (await alter(leader, "t", remote_log_copy_disable="true", local_retention_bytes=None))[0] == 0
    await until(lambda: not leader.replica("t").config.remote_copy)
    copied = leader.replica("t").remote.copied_until
    await write(leader, 30, first=30)
    assert leader.replica("t").remote.copied_until in (copied, leader.replica("t").log.start_offset)
    assert await read_numbers(leader) == list(range(60))


async def test_copying_that_is_switched_off_ends_with_the_segment_that_is_being_copied(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    tiering = leader.broker.tiering
    assert tiering is not None
    gate, put, puts = asyncio.Event(), tiering.store.put_parts, []

    async def held(name: str, parts: Parts) -> None:
        puts.append(name)
        await gate.wait()
        await put(name, parts)

    tiering.store.put_parts = held  # type: ignore[method-assign]
    await write(leader, 45)
    await until(lambda: puts != [])
    assert (await alter(leader, "t", remote_log_copy_disable="true", local_retention_bytes=None))[0] == 0
    await until(lambda: not leader.replica("t").config.remote_copy)
    gate.set()
    await until(lambda: leader.replica("t").remote.copied_until == 10)
    await until(lambda: leader.replica("t").stream not in tiering._visits)
    assert len(puts) == 1


async def test_tiering_can_be_taken_back_with_what_is_in_the_store(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    refused = await alter(leader, "t", remote_storage_enable="false")
    assert refused[0] == ErrorCode.INVALID_CONFIG
    assert "remote.log.delete.on.disable" in (refused[1] or "")
    answer = await alter(leader, "t", remote_storage_enable="false", remote_log_delete_on_disable="true")
    assert answer[0] == 0
    replica = leader.replica("t")
    await until(lambda: replica.start_offset >= 20)
    await until(
        lambda: not replica.remote.readable() or replica.remote.readable()[0].next_offset > replica.start_offset
    )
    start = replica.start_offset
    assert await read_numbers(leader, offset=start) == list(range(start, 30))


async def test_a_topic_cannot_be_tiered_without_a_store(cluster: ClusterWorld) -> None:
    await cluster.start(1)
    await cluster.any.create("t")
    code, message = await alter(cluster.any, "t", remote_storage_enable="true")
    assert code == ErrorCode.INVALID_CONFIG
    assert "remote.log.storage.system.enable" in (message or "")


async def test_a_node_without_the_store_refuses_to_start_beside_tiered_topics(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    await cluster.stop_node(1)
    with pytest.raises(Exception, match="topic t is tiered"):
        await cluster.start_node(1)


async def test_a_slow_store_makes_an_empty_answer_and_the_download_goes_on(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path, remote_fetch_max_wait_ms=30)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    tiering = leader.broker.tiering
    assert tiering is not None
    gate, read, reads = asyncio.Event(), tiering.store.read, []

    async def slow(name: str, position: int, length: int) -> memoryview:
        reads.append((name, position))
        await gate.wait()
        return await read(name, position, length)

    tiering.store.read = slow  # type: ignore[method-assign]
    client = await leader.connect()
    answer = await client.fetch("t", 0, max_wait_ms=0)
    assert (answer.error_code, answer.records or b"") == (0, b"")
    assert answer.high_watermark == 30
    tail = await client.fetch("t", 29)
    assert [record.offset for record in records_of(tail.records)] == [29], "readers of the tail do not notice"
    assert (await client.produce("t", batch_of("x"))).error_code == 0
    await until(lambda: len(reads) > 0)
    gate.set()
    asked = len(reads)
    await until(lambda: not tiering.reads.chunks._loading)
    tiering._wait_ms = 10_000  # it comes from memory now; how fast is not the question
    answer = await client.fetch("t", 0)
    assert records_of(answer.records)[0].offset == 0
    assert reads.count(reads[0]) == 1, "what was begun is not fetched again"
    assert len(reads) >= asked


async def test_a_store_that_fails_is_an_error_that_clients_retry(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 30)
    await until_tiered(cluster, 20)
    for path in stored(tmp_path):
        if path.suffix == ".log":
            path.rename(path.with_suffix(".hidden"))
    client = await leader.connect()
    assert (await client.fetch("t", 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    for path in stored(tmp_path):
        if path.suffix == ".hidden":
            path.rename(path.with_suffix(".log"))
    assert await read_numbers(leader) == list(range(30))


async def test_states_move_as_they_should(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 25)
    await until_tiered(cluster, 15)
    states = {segment.state for segment in leader.replica("t").remote.segments()}
    assert states == {SegmentState.COPY_FINISHED}
