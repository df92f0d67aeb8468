"""Topics that show another cluster's, straight from the store: read, followed, and never changed."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.client import EARLIEST, LATEST, batch_of, fetch_request, records_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, ask_admin, lead
from tests.server.world import until
from tests.tier.segments import remote
from tests.tier.tiered import attached, owner, read_numbers, settings, stored, write
from tidelog.server.remote_reads import without_epochs_behind
from tidelog.tier.errors import TierError
from tidelog.tier.layout import StreamManifest
from tidelog.tier.metadata import (
    Outcome,
    RemoteLog,
    SegmentAdded,
    SegmentMoved,
    SegmentsAdopted,
    SegmentsMirrored,
    SegmentState,
    decode_event,
    encode_event,
)
from tidelog.wire.batch import read_facts
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)

FINISHED = SegmentState.COPY_FINISHED


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


# What a mirrored stream knows


def mirrored(start_offset: int, *ranges: tuple[int, int]) -> SegmentsMirrored:
    return SegmentsMirrored(start_offset, tuple(remote(*each, state=FINISHED) for each in ranges))


def test_a_mirrored_stream_follows_what_its_owner_says() -> None:
    log = RemoteLog()
    assert log.apply(mirrored(0, (0, 9), (10, 19))) is Outcome.APPLIED
    assert log.apply(mirrored(0, (0, 9), (10, 19))) is Outcome.REPEATED
    assert log.apply(mirrored(12, (20, 29))) is Outcome.APPLIED
    assert [each.base_offset for each in log.readable()] == [10, 20]
    assert (log.first_offset(log.end_offset), log.end_offset) == (12, 30)


def test_a_hole_is_not_taken_up_and_one_who_was_away_for_long_begins_where_the_owner_does() -> None:
    log = RemoteLog()
    log.apply(mirrored(0, (0, 9)))
    log.apply(mirrored(0, (20, 29)))
    assert log.end_offset == 10
    log.apply(mirrored(50, (40, 59), (60, 69)))
    assert [each.base_offset for each in log.readable()] == [40, 60]
    log.apply(mirrored(80))
    assert (log.readable(), log.first_offset(log.end_offset), log.end_offset) == ([], 80, 80)
    log.apply(mirrored(80, (70, 99)))
    assert (log.first_offset(log.end_offset), log.end_offset) == (80, 100)


def test_no_event_that_could_delete_or_replace_reaches_a_mirrored_stream() -> None:
    log = RemoteLog()
    event = mirrored(0, (0, 9))
    log.apply(event)
    log.move_start(10)
    for forbidden in (
        SegmentMoved(event.segments[0].id, SegmentState.DELETE_STARTED, 1),
        SegmentAdded(remote(10, 19), 0),
        SegmentsAdopted(RemoteLog().encode()),
    ):
        assert log.apply(forbidden) is Outcome.REFUSED
    assert len(log) == 1


def test_a_stream_with_segments_of_its_own_mirrors_nobody() -> None:
    log = RemoteLog()
    log.apply(SegmentAdded(remote(0, 9), 0))
    assert log.apply(mirrored(0, (0, 9))) is Outcome.REFUSED
    assert not log.mirrored


def test_what_is_mirrored_survives_as_entry_and_as_snapshot() -> None:
    event = mirrored(3, (0, 9), (10, 19))
    assert decode_event(encode_event(event)) == event
    log, again = RemoteLog(), RemoteLog()
    log.apply(event)
    again.restore(log.encode())
    assert (again.mirrored, again.readable(), again.end_offset) == (True, log.readable(), 20)


def test_leader_epochs_that_the_group_has_not_reached_are_not_shown() -> None:
    batches = [bytearray(batch_of("a")), bytearray(batch_of("b"))]
    for batch, epoch in zip(batches, (2, 7), strict=True):
        batch[12:16] = epoch.to_bytes(4, "big")
    whole = bytes(batches[0] + batches[1])
    pieces = [memoryview(whole)[:70], memoryview(whole)[70:]]
    (shown,) = without_epochs_behind(pieces, 3)
    second = len(batches[0])
    assert [int.from_bytes(shown[at + 12 : at + 16], "big", signed=True) for at in (0, second)] == [2, -1]
    assert read_facts(shown[second:])[0] == len(batches[1])


# On real clusters


async def test_an_attached_topic_is_read_across_clusters_and_follows_its_owner(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        leader = await attached(cluster, tmp_path, 30)
        assert await read_numbers(leader, topic="shown") == list(range(30))
        client = await leader.connect()
        offsets = [(await client.list_offset("shown", each)).offset for each in (EARLIEST, LATEST, -4, -5, 1, -3)]
        assert offsets == [0, 30, 30, 29, 0, 29]
        await write(source, 20, first=35)
        await until(lambda: leader.replica("shown").high_watermark == 50)
        for node in (2, 3):
            leader = await lead(cluster, "shown", node)
            assert await read_numbers(leader, topic="shown") == list(range(50))
        found = await admin(leader, "tier-status", topic="shown", partition=0)
        assert found["topic"]["RemoteFetchRequests"] > 0
        assert (found["attached"], found["local_start_offset"]) == (found["folder"].split("/")[0], 50)


async def test_partitions_that_the_owner_adds_are_shown_too(cluster: ClusterWorld, tmp_path: Path) -> None:
    async with owner(tmp_path) as (world, source):
        await write(source, 15)
        await until(lambda: source.replica("t").remote.copied_until == 10)
        await attached(cluster, tmp_path, 10)
        asked = [CreatePartitionsRequestTopic(name="t", count=3)]
        client = await source.connect()
        assert (await client.ask(CreatePartitionsRequest(topics=asked, timeout_ms=5_000))).results[0].error_code == 0
        await world.until_led("t", 2)
        await write(source, 15, first=100, partition=2)
        for server in cluster.servers.values():
            await until(lambda server=server: len(server.broker.state.topics["shown"].partitions) == 3)
        leader = await cluster.until_led("shown", 2)
        await until(lambda: leader.replica("shown", 2).high_watermark == 10)
        assert await read_numbers(leader, topic="shown", partition=2) == list(range(100, 110))
        assert (await admin(leader, "tier-status", topic="shown", partition=2))["attached"].startswith("t-")


async def test_more_partitions_than_are_allowed_here_are_refused_and_the_others_go_on(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 15)
        await until(lambda: source.replica("t").remote.copied_until == 10)
        leader = await attached(cluster, tmp_path, 10, topic_partitions_max=2)
        topic, tiering = leader.broker.state.topics["shown"], leader.broker.tiering
        assert tiering is not None
        with pytest.raises(TierError, match=r"topic\.partitions\.max"):
            await tiering.add_partitions(topic, 3)
        await tiering.add_partitions(topic, 2)
        await tiering.add_partitions(topic, 2)  # from what was known before: another was faster
        await until(lambda: len(leader.broker.state.topics["shown"].partitions) == 2)


async def test_an_attached_topic_is_only_read(cluster: ClusterWorld, tmp_path: Path) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 15)
        leader = await attached(cluster, tmp_path, 10)
        client = await leader.connect()
        answer = await client.produce("shown", batch_of("mine"))
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert "only read" in (answer.error_message or "")
        client = await leader.connect()
        asked = DeleteRecordsRequestPartition(partition_index=0, offset=5)
        topics = [DeleteRecordsRequestTopic(name="shown", partitions=[asked])]
        answer = (await client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5_000))).topics[0].partitions[0]
        assert answer.error_code == ErrorCode.POLICY_VIOLATION
        assert await read_numbers(leader, topic="shown") == list(range(10))


async def test_nothing_of_the_owners_goes_by_scrub_retention_or_deletion(cluster: ClusterWorld, tmp_path: Path) -> None:
    async with owner(tmp_path, retention_ms="-1") as (_, source):
        await write(source, 25, time_ms=1_000)  # long past the attached topic's own retention
        await until(lambda: source.replica("t").remote.copied_until == 25)  # old as they are, all of them
        leader = await attached(cluster, tmp_path, 25)
        orphan = stored(tmp_path)[0].parent / f"{7:020d}-{'A' * 22}.log"
        orphan.write_bytes(b"the owner's to judge")
        before = {path: path.read_bytes() for path in stored(tmp_path)}
        found = await admin(leader, "tier-scrub", topic="shown", partition=0, remove=True)
        assert (found["orphans"], found["removed"], found["missing"]) == ([], 0, [])
        for replica in [server.replica("shown") for server in cluster.servers.values()]:
            leader.broker.retention.look(replica)
        client = await leader.connect()
        await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="shown")], timeout_ms=5_000))
        controller = await cluster.controller()
        assert controller.broker.tiering is not None
        assert await controller.broker.tiering._deleted_topics.remove() == 0
        assert {path: path.read_bytes() for path in stored(tmp_path)} == before
        assert await read_numbers(source) == list(range(25))


async def test_what_the_owner_deletes_is_gone_here_and_the_start_never_goes_back(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        leader = await attached(cluster, tmp_path, 30)
        replica = source.replica("t")
        replica.move_start(15, replica.now() + 5_000, lambda _: None)
        await until(lambda: leader.replica("shown").start_offset == 15)
        assert await read_numbers(leader, topic="shown", offset=15) == list(range(15, 30))
        client = await leader.connect()
        assert (await client.fetch("shown", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        leader = await lead(cluster, "shown", 2)
        assert leader.replica("shown").start_offset == 15


async def test_after_a_kill_of_all_nodes_an_attached_topic_is_what_it_was_without_its_owners_manifest(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    """What was shown once must not go back, even when the store's manifest cannot be read just then."""
    async with owner(tmp_path) as (world, source):
        await write(source, 35)
        await until(lambda: source.replica("t").remote.copied_until == 30)
        await attached(cluster, tmp_path, 30)
        await until(lambda: all(each.replica("shown").high_watermark == 30 for each in cluster.servers.values()))
        await world.kill(1)
        manifest = next(path for path in stored(tmp_path) if path.name == "manifest.json")
        manifest.rename(tmp_path / "away")
        for node in (1, 2, 3):
            await cluster.kill(node)
        await asyncio.gather(*(cluster.start_node(node, **settings(tmp_path)) for node in (1, 2, 3)))
        leader = await cluster.until_led("shown")
        assert await read_numbers(leader, topic="shown") == list(range(30))


async def test_epochs_of_the_owner_do_not_mislead_clients_of_this_cluster(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    async with owner(tmp_path) as (_, source):
        await write(source, 15)
        await until(lambda: source.replica("t").remote.copied_until == 10)
        path = next(path for path in stored(tmp_path) if path.name == "manifest.json")
        await until(lambda: bool(StreamManifest.decode(path.read_bytes()).segments))
    manifest = StreamManifest.decode(path.read_bytes())
    segments = tuple(replace(each, epochs=((90, each.base_offset),)) for each in manifest.segments)
    path.write_bytes(replace(manifest, segments=segments).encode())
    leader = await attached(cluster, tmp_path, 10)
    client = await leader.connect()
    assert (await client.list_offset("shown", EARLIEST)).leader_epoch == -1
    assert (await client.list_offset("shown", LATEST)).leader_epoch == -1
    asked = OffsetForLeaderEpochRequestPartition(partition=0, current_leader_epoch=-1, leader_epoch=90)
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderEpochRequestTopic(topic="shown", partitions=[asked])]
    )
    answer = (await client.ask(request)).topics[0].partitions[0]
    assert (answer.leader_epoch, answer.end_offset) == (90, 10)
    fetched = (await client.ask(fetch_request("shown", [(0, 0)]), 12)).responses[0].partitions[0]
    assert records_of(fetched.records)[0].offset == 0


async def test_what_cannot_be_attached_says_why(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(1, **settings(tmp_path))
    refused = await ask_admin(cluster.any, "tier-attach", source="nowhere", topic="")
    assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for letter in "AB":
        (tmp_path / "store" / f"twice-{letter * 22}" / "0").mkdir(parents=True)
        (tmp_path / "store" / f"twice-{letter * 22}" / "0" / "x").touch()
    refused = await ask_admin(cluster.any, "tier-attach", source="twice", topic="")
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert f"twice-{'A' * 22}" in (refused.error_message or "")
