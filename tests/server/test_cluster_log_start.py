"""Where logs begin: moved by an entry, so on all replicas alike, and never back, whoever leads next."""

import asyncio
import time

import pytest

from tests.server.client import EARLIEST, batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, STAY, create_on, cut, heal, lead, number_of
from tests.server.world import Server, until
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)

SMALL = {"storage_segment_bytes": 1 << 20, "retention_check_ms": 50} | STAY
WIDE = "x" * 100_000


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


async def _write(server: Server, count: int, first_time: int | None = None) -> None:
    client = await server.connect()
    for _ in range(count):
        when = int(time.time() * 1000) if first_time is None else first_time
        assert (await client.produce("t", batch_of(WIDE, first_time=when))).error_code == 0
    await client.close()


async def _delete_before(server: Server, offset: int) -> tuple[int, int]:
    client = await server.connect()
    asked = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
    topics = [DeleteRecordsRequestTopic(name="t", partitions=[asked])]
    answer = (await client.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5_000))).topics[0].partitions[0]
    await client.close()
    return answer.error_code, answer.low_watermark


async def _earliest(server: Server) -> tuple[int, int]:
    client = await server.connect()
    answer = await client.list_offset("t", EARLIEST)
    await client.close()
    return answer.error_code, answer.offset


def _starts(cluster: ClusterWorld) -> set[int]:
    return {server.replica("t").log.start_offset for server in cluster.servers.values()}


async def _every_leader_says(cluster: ClusterWorld, start: int) -> None:
    for node in list(cluster.servers):
        leader = await lead(cluster, "t", node)
        assert await _earliest(leader) == (0, start)


async def test_retention_by_size_moves_the_start_on_all_replicas_alike(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3], retention_bytes=str(1 << 20))
    leader = await lead(cluster, "t", 1)
    await _write(leader, 40)
    await until(lambda: min(_starts(cluster)) > 10)
    await until(lambda: len(_starts(cluster)) == 1)
    (start,) = _starts(cluster)
    kept = sum(segment.length for segment in leader.replica("t").log.segments_view())
    assert kept >= 1 << 20, "no more is deleted than the setting says"
    await _every_leader_says(cluster, start)


async def test_retention_by_time_moves_the_start_on_all_replicas_alike(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3], retention_ms="3600000")
    leader = await lead(cluster, "t", 1)
    await _write(leader, 3, first_time=1_000)  # long ago
    await until(lambda: _starts(cluster) == {3})
    await _write(leader, 2)
    client = await leader.connect()
    assert len(await client.read_all("t", offset=3)) == 2
    await _every_leader_says(cluster, 3)


async def test_records_deleted_at_the_leader_are_deleted_everywhere(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await _write(leader, 5)
    assert await _delete_before(leader, 3) == (0, 3)
    await until(lambda: _starts(cluster) == {3})
    assert (await _delete_before(cluster.servers[2], 4))[0] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await _delete_before(leader, 1) == (0, 3), "a start does not go back"
    assert (await _delete_before(leader, 6))[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    await _every_leader_says(cluster, 3)


async def test_a_replica_that_missed_the_deletion_shows_no_earlier_start_when_it_leads(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await _write(leader, 5)
    away = cluster.servers[3]
    cut(away, off=[cluster.servers[1], cluster.servers[2]])
    await until(lambda: not leader.broker.is_alive(3))
    assert await _delete_before(leader, 4) == (0, 4)
    assert away.replica("t").log.start_offset == 0
    heal(*cluster.servers.values())
    leader = await lead(cluster, "t", 3)
    assert await _earliest(leader) == (0, 4)


async def test_after_a_restart_of_all_nodes_the_log_begins_no_earlier(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await _write(leader, 5)
    assert await _delete_before(leader, 4) == (0, 4)
    for node in (1, 2, 3):
        await cluster.kill(node)
    await asyncio.gather(*(cluster.start_node(node, **SMALL) for node in (1, 2, 3)))
    leader = await cluster.until_led("t")
    client = await leader.connect()
    assert await _earliest(leader) == (0, 4)
    assert (await client.fetch("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert len(await client.read_all("t", offset=4)) == 1
    await _every_leader_says(cluster, 4)


async def test_a_new_replica_begins_where_the_log_begins(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", 100)
    await cluster.start(3, **SMALL)
    fourth = await cluster.start_node(4, roles="data", **SMALL)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await _write(leader, 25)
    assert await _delete_before(leader, 17) == (0, 17)
    controller = await cluster.controller()
    stream = leader.replica("t").stream
    await controller.broker.operations.reassign(stream, [4, 1, 2], False)
    await until(lambda: stream in fourth.broker.node.replicas and fourth.high_watermark("t") == 25)
    await until(lambda: cluster.leader("t") is fourth)
    assert await _earliest(fourth) == (0, 17)
    assert number_of(fourth) == 4
    client = await fourth.connect()
    assert len(await client.read_all("t", offset=17)) == 8
