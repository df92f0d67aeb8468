"""Consumers read from a replica in their own data centre (KIP-392), and never more than is committed."""

import asyncio
import time
from typing import Any

import pytest

from tests.server.client import Client, batch_of, fetch_request, values_of
from tests.server.cluster.clusters import Cluster, started
from tests.server.world import World, until
from tidelog.server.leaders import members_of
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import FetchRequest, FetchResponsePartition


async def _three(world: World, *racks: str, values: int = 3) -> Cluster:
    """A stream on three nodes, led by the first, that everybody has."""
    cluster = await started(world, *(racks or ("a", "b", "c")))
    await cluster.create("t", [1, 2, 3])
    client = await cluster.connect(1)
    for number in range(values):
        await client.produce("t", batch_of(str(number)))
    await until(lambda: all(member.high_watermark("t") == values for member in cluster.members.values()))
    leader = cluster[1]
    replica = leader.replica("t")
    await until(lambda: all(each.match == replica.log.last_index for each in members_of(leader.broker, replica)))
    return cluster


def _request(offset: int, rack: str, **options: Any) -> FetchRequest:
    request = fetch_request("t", [(0, offset)], **options)
    request.rack_id = rack
    return request


async def _fetch(client: Client, offset: int, rack: str, version: int = 12, **options: Any) -> FetchResponsePartition:
    response = await client.ask(_request(offset, rack, **options), version)
    return response.responses[0].partitions[0]


async def test_the_leader_sends_a_consumer_to_the_replica_in_its_rack(world: World) -> None:
    cluster = await _three(world)
    client = await cluster.connect(1)
    answer = await _fetch(client, 0, "b", max_wait_ms=60_000, min_bytes=1 << 20)
    assert (answer.error_code, answer.preferred_read_replica, answer.records) == (0, 2, b"")
    assert answer.high_watermark == 3
    for version, rack in ((12, ""), (12, "a"), (12, "elsewhere"), (10, "b")):
        answer = await _fetch(client, 0, rack, version)
        assert (answer.preferred_read_replica, values_of(answer.records)) == (-1, ["0", "1", "2"])


async def test_a_consumer_is_sent_on_though_the_stream_sleeps(world: World) -> None:
    cluster = await _three(world)
    await until(lambda: cluster[1].replica("t").group.asleep)
    await asyncio.sleep(1.0)  # longer than anybody is waited for who is awake
    assert (await _fetch(await cluster.connect(1), 0, "b")).preferred_read_replica == 2


async def test_a_consumer_is_not_sent_to_a_replica_that_is_away(world: World) -> None:
    cluster = await _three(world)
    await cluster.stop_node(2)
    client = await cluster.connect(1)

    async def served() -> bool:
        answer = await _fetch(client, 0, "b")
        return answer.preferred_read_replica == -1 and values_of(answer.records) == ["0", "1", "2"]

    async with asyncio.timeout(10):
        while not await served():  # noqa: ASYNC110 - each look is a request
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(("racks", "nearest"), [(("a", "b", "b"), 3), (("a", "b", "c"), -1)])
async def test_a_consumer_is_sent_only_to_a_replica_that_has_its_offset(
    world: World, racks: tuple[str, ...], nearest: int
) -> None:
    cluster = await _three(world, *racks)
    cluster[2].disk.hold_syncs()  # it has the records in memory, and cannot promise them
    client = await cluster.connect(1)
    await client.produce("t", batch_of("3"))
    assert (await _fetch(client, 4, "b")).preferred_read_replica == nearest
    cluster[2].disk.release_syncs()


async def test_a_follower_serves_those_who_were_sent_to_it(world: World) -> None:
    cluster = await _three(world)
    client = await cluster.connect(2)
    answer = await _fetch(client, 1, "b")
    assert (answer.error_code, answer.high_watermark, answer.log_start_offset) == (0, 3, 0)
    assert values_of(answer.records)[-2:] == ["1", "2"]
    assert answer.preferred_read_replica == -1
    for version, rack in ((12, ""), (12, "a"), (10, "b")):
        answer = await _fetch(client, 1, rack, version)
        assert (answer.error_code, answer.records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, b"")


async def test_a_long_poll_at_a_follower_ends_when_something_is_committed(world: World) -> None:
    cluster = await _three(world)
    reader, writer = await cluster.connect(2), await cluster.connect(1)
    reader.send(_request(3, "b", max_wait_ms=60_000), 12)
    await until(lambda: len(cluster[2].replica("t").watchers) == 1)
    await writer.produce("t", batch_of("new"))
    answer = (await reader.receive()).responses[0].partitions[0]
    assert values_of(answer.records) == ["new"]


async def test_a_follower_asks_for_patience_above_its_watermark_and_refuses_below_its_start(world: World) -> None:
    cluster = await _three(world)
    client = await cluster.connect(2)
    began = time.monotonic()
    answer = await _fetch(client, 4, "b", max_wait_ms=200)
    assert (answer.error_code, answer.high_watermark) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    assert time.monotonic() - began >= 0.15, "it waits, as for anything that is to come"
    assert (await _fetch(client, -1, "b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_a_follower_lacks_is_served_when_it_comes(world: World) -> None:
    cluster = await _three(world)
    reader, writer = await cluster.connect(2), await cluster.connect(1)
    reader.send(_request(4, "b", max_wait_ms=60_000), 12)
    await until(lambda: len(cluster[2].replica("t").watchers) == 1)
    for value in ("3", "4"):
        await writer.produce("t", batch_of(value))
    answer = (await reader.receive()).responses[0].partitions[0]
    assert (answer.error_code, values_of(answer.records)) == (0, ["4"])


async def test_a_follower_shows_nothing_that_is_not_committed(world: World) -> None:
    cluster = await _three(world)
    await cluster.stop_node(3)
    cluster[2].disk.hold_syncs()
    writer = await cluster.connect(1)
    writer.send_produce("t", batch_of("uncommitted"))
    await cluster[2].until_appended("t", 4)
    client = await cluster.connect(2)
    answer = await _fetch(client, 0, "b")
    assert (answer.error_code, answer.high_watermark) == (0, 3)
    assert values_of(answer.records) == ["0", "1", "2"]
    assert (await _fetch(client, 4, "b")).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    cluster[2].disk.release_syncs()
    assert (await writer.receive_produced()).error_code == 0


async def test_a_follower_that_does_not_hear_its_leader_sends_consumers_back(world: World) -> None:
    cluster = await _three(world)
    client = await cluster.connect(2)
    client.send(_request(3, "b", max_wait_ms=60_000), 12)
    await until(lambda: len(cluster[2].replica("t").watchers) == 1)
    cluster[2].broker.peers.receive = lambda _envelope: None  # it is deaf
    answer = (await client.receive()).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_of_a_term_in_which_nothing_is_committed_yet_sends_consumers_back(world: World) -> None:
    """Its watermark may be older than what the leader before has acknowledged."""
    cluster = await _three(world)
    stream = cluster[1].replica("t").stream
    for member in cluster.members.values():
        member.disk.hold_syncs(f"/streams/{stream}/")
    cluster[1].broker.node.transfer_leadership(stream, 3)
    await until(lambda: cluster[2].replica("t").group.leader == 3)
    client = await cluster.connect(2)
    assert (await _fetch(client, 0, "b")).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    for member in cluster.members.values():
        member.disk.release_syncs()
    await until(lambda: cluster[2].replica("t").follows)
    assert values_of((await _fetch(client, 0, "b")).records) == ["0", "1", "2"]


@pytest.mark.parametrize("node", [1, 2], ids=["leader", "follower"])
async def test_a_reader_whose_log_has_parted_is_told_where(world: World, node: int) -> None:
    cluster = await _three(world)
    term = cluster[1].replica("t").group.term
    await cluster.until_led("t", 2)
    await cluster.until_led("t", 1)
    writer = await cluster.connect(1)
    await writer.produce("t", batch_of("3"))
    await until(lambda: all(member.high_watermark("t") == 4 for member in cluster.members.values()))
    newest = cluster[1].replica("t").group.term
    client = await cluster.connect(node)
    rack = "ab"[node - 1]

    async def ask(offset: int, epoch: int) -> tuple[int, tuple[int, int] | None, int]:
        request = _request(offset, rack)
        request.topics[0].partitions[0].last_fetched_epoch = epoch
        answer = (await client.ask(request, 12)).responses[0].partitions[0]
        parted = answer.diverging_epoch
        return answer.error_code, parted and (parted.epoch, parted.end_offset), len(values_of(answer.records))

    assert await ask(2, term) == (0, None, 2)
    assert await ask(3, term) == (0, None, 1)
    assert await ask(4, newest) == (0, None, 0)
    assert await ask(4, term) == (0, (term, 3), 0), "the term ended before what the reader says it has of it"
    assert await ask(2, newest + 1) == (0, (newest, 4), 0), "a term that nobody here knows"
