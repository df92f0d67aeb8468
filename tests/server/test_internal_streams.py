"""What a node keeps in streams of its own and knows again after a restart: groups' offsets, the cluster's state."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import tidelog.server.cluster_log
import tidelog.server.coordinators
from tests.server.client import WAIT_S, Client, batch_of
from tests.server.world import Server, World, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.groups import partition_of
from tidelog.server.coordinators import TOPIC, Seat, group_settings
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DeleteTopicsRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)

Restart = Callable[[World, Server], Awaitable[Server]]


async def _stopped(world: World, server: Server) -> Server:
    await server.stop()
    return await world.start()


async def _killed(world: World, server: Server) -> Server:
    await until(lambda: not server.broker.node._store.deleting)  # a folder that is being removed cannot be copied
    return await world.start(world.copy_as_killed(server, "copy"))


restarts = pytest.mark.parametrize("restart", [_stopped, _killed], ids=["clean stop", "kill"])


async def _commit(client: Client, offset: int, topic: str = "t", group: str = "g") -> int:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
    asked = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    response = await client.ask(OffsetCommitRequest(group_id=group, topics=asked))
    return response.topics[0].partitions[0].error_code


async def _committed(server: Server, group: str = "g") -> dict[str, int]:
    client = await server.connect()
    response = await client.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]))
    assert response.groups[0].error_code == 0
    return {topic.name: topic.partitions[0].committed_offset for topic in response.groups[0].topics}


@restarts
async def test_committed_offsets_outlive_a_restart(world: World, restart: Restart) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for offset in range(10):
        assert await _commit(client, offset) == 0
    server = await restart(world, server)
    assert await _committed(server) == {"t": 9}


@restarts
async def test_the_journal_is_trimmed_to_its_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, restart: Restart
) -> None:
    monkeypatch.setattr(tidelog.server.coordinators, "SNAPSHOT_EVERY", 10)
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for offset in range(35):
        assert await _commit(client, offset) == 0
        assert await _commit(client, offset + 100, group="other") == 0
    await until(lambda: server.replica(TOPIC).log.start_offset > 50)
    server = await restart(world, server)
    assert await _committed(server) == {"t": 34}
    assert await _committed(server, "other") == {"t": 134}


@restarts
async def test_a_snapshot_does_not_call_for_the_next_one(
    world: World, monkeypatch: pytest.MonkeyPatch, restart: Restart
) -> None:
    """One of more records than SNAPSHOT_EVERY did, for ever, and held commits back each time."""
    monkeypatch.setattr(tidelog.server.coordinators, "SNAPSHOT_EVERY", 10)
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for number in range(30):
        assert await _commit(client, number, group=f"g{number}") == 0
    end = server.replica(TOPIC).log.next_offset
    assert end == 30 + (10 + 2) + (21 + 2)  # a snapshot has two markers, and comes not before as many records again
    server = await restart(world, server)
    client = await server.connect()
    for number in range(5):
        assert await _commit(client, number, group=f"g{number}") == 0
    assert server.replica(TOPIC).log.next_offset == end + 5


async def test_a_deleted_topics_offsets_go_with_it(world: World) -> None:
    server = await world.start()
    for topic in ("t", "u"):
        await server.create(topic)
        assert await _commit(await server.connect(), 5, topic) == 0
    await (await server.connect()).ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 5)
    async with asyncio.timeout(WAIT_S):
        while await _committed(server) != {"u": 5}:  # it is a record of its own, behind the deletion
            pass
    server = await _killed(world, server)
    assert await _committed(server) == {"u": 5}


async def test_offsets_are_forgotten_only_when_the_state_here_must_know_their_topic(world: World) -> None:
    """A coordinator may begin on a node whose copy of the cluster's state is behind."""
    server = await world.start()
    await server.create("t")
    assert await _commit(await server.connect(), 5) == 0
    replica = server.replica(TOPIC, partition_of("g", len(server.broker.state.topics[TOPIC].partitions)))
    seat = Seat(replica, group_settings(server.settings), topic_exists=lambda _name: False)
    coordinator = seat.coordinator
    assert coordinator is not None
    seat.known_to_lead(replica.group.term - 1)  # of an earlier time that this node led
    assert coordinator.topics() == {"t"}
    seat.known_to_lead(replica.group.term)
    await until(lambda: not coordinator.topics())


async def test_a_commit_for_a_topic_that_is_not_there_is_refused(world: World) -> None:
    server = await world.start()
    assert await _commit(await server.connect(), 5) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_commit_is_visible_only_when_it_is_durable(world: World) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    assert await _commit(client, 1) == 0
    server.disk.hold_syncs()
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=2, committed_metadata="")
    asked = [OffsetCommitRequestTopic(name="t", partitions=[partition])]
    client.send(OffsetCommitRequest(group_id="g", topics=asked))
    await server.until_appended(TOPIC, 2)
    assert await _committed(server) == {"t": 1}
    server.disk.release_syncs()
    await client.receive()
    assert await _committed(server) == {"t": 2}


async def test_clients_do_not_write_to_internal_streams(world: World) -> None:
    server = await world.start()
    await (await server.connect()).ask(FindCoordinatorRequest(coordinator_keys=["g"]))
    client = await server.connect()
    assert (await client.produce(TOPIC, batch_of("mischief"))).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert server.high_watermark(TOPIC) == 0


async def test_a_node_that_stops_does_not_keep_members_waiting(world: World) -> None:
    server = await world.start(group_initial_rebalance_delay_ms=60_000)
    client = await server.connect()
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    client.send(
        JoinGroupRequest(
            group_id="g",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=protocols,
        ),
        3,
    )
    await until(lambda: any(not connection.idle for connection in server.broker.connections))
    await server.stop()
    await client.expect_closed()


@restarts
async def test_the_clusters_log_is_trimmed_to_its_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch, restart: Restart
) -> None:
    monkeypatch.setattr(tidelog.server.cluster_log, "SNAPSHOT_EVERY", 5)
    server = await world.start()
    ids = {f"t{number}": await server.create(f"t{number}", retention_ms=str(number)) for number in range(12)}
    await (await server.connect()).ask(DeleteTopicsRequest(topic_names=["t3"], timeout_ms=10_000), 5)
    del ids["t3"]
    await until(lambda: server.broker.node.replicas[CLUSTER_STREAM].log.start_offset > 8)
    cluster_id = server.broker.state.cluster_id
    server = await restart(world, server)
    state = server.broker.state
    assert {name: topic.id for name, topic in state.topics.items()} == ids
    assert all(topic.configs == {"retention.ms": name[1:]} for name, topic in state.topics.items())
    assert state.cluster_id == cluster_id
    assert (await (await server.connect()).produce("t7", batch_of("still here"))).error_code == 0
