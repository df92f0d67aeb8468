"""ListOffsets and OffsetForLeaderEpoch across nodes and leaders: never an offset that later turns out too small."""

import asyncio

import pytest

from tests.server.client import LATEST, Client, batch_of, offsets_request
from tests.server.cluster.clusters import Cluster, started
from tests.server.world import World, until
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)


async def _three(world: World) -> Cluster:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3])
    client = await cluster.connect(1)
    for number in range(3):
        await client.produce("t", batch_of(str(number)))
    return cluster


async def _latest(client: Client, epoch: int = -1, version: int | None = None) -> tuple[int, int]:
    request = offsets_request("t", LATEST)
    request.topics[0].partitions[0].current_leader_epoch = epoch
    answer = (await client.ask(request, version)).topics[0].partitions[0]
    return answer.error_code, answer.offset


async def _end(client: Client, term: int, epoch: int = -1) -> tuple[int, int, int]:
    asked = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=term, current_leader_epoch=epoch)
    topics = [OffsetForLeaderEpochRequestTopic(topic="t", partitions=[asked])]
    answer = (await client.ask(OffsetForLeaderEpochRequest(topics=topics))).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


async def test_only_the_leader_says_where_a_stream_ends(world: World) -> None:
    cluster = await _three(world)
    assert await _latest(await cluster.connect(1)) == (0, 3)
    term = cluster[1].replica("t").group.term
    for node in (2, 3):
        client = await cluster.connect(node)
        assert await _latest(client) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert await _end(client, term) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)


async def test_a_client_with_another_epoch_is_fenced_or_asked_for_patience(world: World) -> None:
    cluster = await _three(world)
    old = cluster[1].replica("t").group.term
    await cluster.until_led("t", 2)
    await cluster.until(lambda: cluster[1].replica("t").group.leader == 2)
    term = cluster[2].replica("t").group.term
    for node in (1, 2):
        client = await cluster.connect(node)
        assert await _latest(client, old) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
        assert await _end(client, old, old) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
        assert await _latest(client, term + 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
        assert await _end(client, old, term + 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    client = await cluster.connect(2)
    assert await _latest(client, term) == (0, 3)
    assert await _end(client, old, term) == (0, old, 3)


@pytest.mark.parametrize("version", [1, 4, 5, 11])
async def test_a_leader_that_does_not_know_what_is_committed_asks_for_patience(world: World, version: int) -> None:
    """KIP-207. Its watermark is older than what its predecessor has acknowledged, and would go back."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    await client.produce("t", batch_of("x"))
    stream = server.replica("t").stream
    server = await world.start(world.copy_as_killed(server, "copy"), never_ready=stream)
    client = await server.connect()
    assert not server.replica("t").ready
    patience = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    assert await _latest(client, version=version) == (patience, -1)
    term = server.replica("t").group.term
    assert await _end(client, term) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)
    assert (await client.fetch("t", 0, max_wait_ms=50)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    server.disk.release_syncs()
    await until(lambda: server.replica("t").ready)
    assert await _latest(client, version=version) == (0, 1)


async def test_a_question_for_the_end_waits_a_moment_for_a_leader_that_is_about_to_know_it(world: World) -> None:
    server = await world.start()
    await server.create("t")
    await (await server.connect()).produce("t", batch_of("x"))
    stream = server.replica("t").stream
    server = await world.start(world.copy_as_killed(server, "copy"), never_ready=stream)
    client = await server.connect()
    asked = asyncio.create_task(_latest(client))
    await until(lambda: bool(server.replica("t").watchers))
    server.disk.release_syncs()
    assert await asked == (0, 1)


async def test_a_fetch_waits_for_a_leader_that_is_about_to_know_what_is_committed(world: World) -> None:
    server = await world.start()
    await server.create("t")
    await (await server.connect()).produce("t", batch_of("x"))
    stream = server.replica("t").stream
    server = await world.start(world.copy_as_killed(server, "copy"), never_ready=stream)
    client = await server.connect()
    reading = client.fetch("t", 0, max_wait_ms=60_000)
    server.disk.release_syncs()
    answer = await reading
    assert (answer.error_code, answer.high_watermark) == (0, 1)


async def test_a_leader_sends_nobody_back_who_knows_more_than_it_may(world: World) -> None:
    """It may be deposed and not know it yet. A reader that is told "out of range", or of a smaller end, begins anew."""
    cluster = await _three(world)
    replica = cluster[1].replica("t")
    term = replica.group.term
    client = await cluster.connect(1)
    assert (await client.fetch("t", 10)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await _end(client, term + 1) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)
    leading = replica.group._leading
    assert leading is not None
    leading._lease_forfeited = True  # as when it has told another to campaign
    cluster[1].broker.peers.receive = lambda _envelope: None  # nobody can tell it that it still leads
    assert replica.ready
    assert (await client.fetch("t", 10, max_wait_ms=100)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await _end(client, term) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1, -1)


async def test_a_leader_of_a_stream_that_sleeps_finds_proof_before_it_sends_a_reader_back(world: World) -> None:
    cluster = await _three(world)
    await until(lambda: cluster[1].replica("t").group.asleep)
    client = await cluster.connect(1)
    assert (await client.fetch("t", 10, max_wait_ms=0)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_the_end_never_goes_back_while_leaders_change(world: World) -> None:
    """Asked of every node all the time: an error, or at least what was acknowledged before the question."""
    cluster = await _three(world)
    clients = {node: await cluster.connect(node) for node in cluster.members}
    acknowledged = 3
    for turn in range(4):
        leader = turn % 3 + 1
        await cluster.until_led("t", leader)
        answer = await (await cluster.connect(leader)).produce("t", batch_of("more"))
        assert answer.error_code == 0
        acknowledged = answer.base_offset + 1
        found = [await _latest(client) for client in clients.values()]
        assert [offset for error, offset in found if not error] == [acknowledged]
    assert acknowledged == 7
