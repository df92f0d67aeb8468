"""New replicas are filled while the world goes on: topics deleted, plans changed, nodes restarted, records written."""

import asyncio
import time
from typing import Any

import pytest

from tests.server.client import batch_of, numbered
from tests.server.many import ClusterWorld
from tests.server.operating import QUICK_STABLE_MS, STAY, admin, create_on, lead, partition_of, voters
from tests.server.world import Server, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.quotas import BURST_S
from tidelog.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic

SMALL: dict[str, Any] = {"storage_segment_bytes": 1 << 20, "raft_election_timeout_ms": 1_000} | STAY
SLOW: dict[str, Any] = SMALL | {"fill_bytes_per_second": 1 << 20}  # a segment a second
WIDE = "x" * 100_000


@pytest.fixture(autouse=True)
def _soon_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", QUICK_STABLE_MS)


async def _write(server: Server, count: int) -> None:
    client = await server.connect()
    for _ in range(count):
        client.send_produce("t", batch_of(WIDE))
    for _ in range(count):
        assert (await client.receive_produced()).error_code == 0
    await client.close()


async def _being_filled(cluster: ClusterWorld, node: int, **settings: Any) -> tuple[Server, int]:
    """A cluster in which a node has begun to be filled with 8 segments and needs seconds for it."""
    await cluster.start(3, **SMALL)
    newcomer = await cluster.start_node(node, roles="data", **settings)
    await create_on(cluster.any, "t", [1, 2, 3])
    await _write(await lead(cluster, "t", 1), 80)
    stream = partition_of(cluster.any, "t").stream
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, 2, node])
    await until(lambda: newcomer.broker.assigned.filler.bytes_filled > 0)
    return newcomer, stream


def _holds_nothing(server: Server, stream: int) -> bool:
    node = server.broker.node
    return (
        stream not in node.streams_on_disk
        and stream not in node._store.fillings
        and not server.broker.assigned.filler.streams
    )


async def test_a_topic_that_is_deleted_while_a_replica_is_filled_leaves_nothing(cluster: ClusterWorld) -> None:
    newcomer, stream = await _being_filled(cluster, 4, **SLOW)
    client = await cluster.any.connect()
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=5_000)
    assert (await client.ask(request)).responses[0].error_code == 0
    await until(lambda: _holds_nothing(newcomer, stream))
    assert newcomer.broker.node.streams_on_disk == [CLUSTER_STREAM]
    await create_on(cluster.any, "t", [4, 1])
    await _write(await cluster.until_led("t"), 1)


async def test_a_move_that_is_taken_back_while_a_replica_is_filled_leaves_nothing(cluster: ClusterWorld) -> None:
    newcomer, stream = await _being_filled(cluster, 4, **SLOW)
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, 2, 3])
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    await until(lambda: _holds_nothing(newcomer, stream))
    assert cluster.servers[3].high_watermark("t") == 80


async def test_a_replica_is_filled_no_faster_than_is_allowed(cluster: ClusterWorld) -> None:
    rate = 3 << 20
    newcomer, _ = await _being_filled(cluster, 4, **SMALL | {"fill_bytes_per_second": rate})
    filler, since = newcomer.broker.assigned.filler, time.monotonic()
    before = filler.bytes_filled
    await until(lambda: voters(cluster, "t") == (1, 2, 4))
    more, saved_up = filler.bytes_filled - before, rate * BURST_S
    assert more > 4 << 20
    assert time.monotonic() - since >= (more - saved_up) / rate


async def test_a_node_that_restarts_while_it_is_filled_goes_on(cluster: ClusterWorld) -> None:
    await _being_filled(cluster, 4, **SLOW)
    await cluster.kill(4)
    again = await cluster.start_node(4, roles="data", **SMALL)
    await until(lambda: voters(cluster, "t") == (1, 2, 4))
    await until(lambda: again.high_watermark("t") == 80)
    leader = await lead(cluster, "t", 4)
    client = await leader.connect()
    assert await client.read_all("t") == [WIDE] * 80


async def test_a_leader_that_dies_while_it_fills_a_replica_is_replaced_as_source(cluster: ClusterWorld) -> None:
    newcomer, _ = await _being_filled(cluster, 4, **SLOW | {"fill_bytes_per_second": 4 << 20})
    await cluster.kill(1)
    await until(lambda: 4 in voters(cluster, "t"))
    await until(lambda: newcomer.high_watermark("t") == 80)


async def test_streams_that_have_no_leader_do_not_keep_others_from_being_filled(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.filler.FILLING_MAX", 1)
    await cluster.start(3, **SMALL)
    newcomer = await cluster.start_node(4, roles="data", **SMALL)
    await create_on(cluster.any, "lost", [1])
    await create_on(cluster.any, "t", [2, 3])
    await _write(await lead(cluster, "t", 2), 20)
    lost = partition_of(cluster.any, "lost").stream
    await cluster.kill(1)
    await admin(cluster.any, "reassign", topic="lost", partition=0, replicas=[1, 4], force=True)
    await until(lambda: newcomer.broker.assigned.filler.streams == [lost])
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[2, 3, 4])
    await until(lambda: voters(cluster, "t") == (2, 3, 4))
    assert lost in newcomer.broker.assigned.filler.streams


async def test_a_stream_moves_to_entirely_other_nodes_while_it_is_written(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await asyncio.gather(*(cluster.start_node(node, roles="data", **SMALL) for node in (4, 5, 6)))
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    producer = await cluster.any.new_producer()
    written = 0
    writing = True

    async def write() -> None:
        nonlocal written
        while writing:
            leader = await cluster.until_led("t")
            client = await leader.connect()
            while writing:
                answer = await client.produce("t", numbered(producer, written, f"{written}"), timeout_ms=2_000)
                if answer.error_code:
                    break  # it has moved on
                assert answer.base_offset == written
                written += 1
            await client.close()

    writer = asyncio.ensure_future(write())
    await until(lambda: written > 20)
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[4, 5, 6])
    await until(lambda: voters(cluster, "t") == (4, 5, 6))
    at = written
    await until(lambda: written > at + 20 or writer.done())
    writing = False
    await writer
    leader = await lead(cluster, "t", 6)
    client = await leader.connect()
    assert await client.read_all("t") == [f"{number}" for number in range(written)]
    stream = partition_of(leader, "t").stream
    for node in (1, 2, 3):
        await until(lambda node=node: stream not in cluster.servers[node].broker.node.streams_on_disk)


async def test_data_nodes_find_each_other_after_restarts_on_other_ports(cluster: ClusterWorld) -> None:
    await cluster.start(3, **SMALL)
    await asyncio.gather(*(cluster.start_node(node, roles="data", **SMALL) for node in (4, 5)))
    await create_on(cluster.any, "t", [4, 5])
    await _write(await cluster.until_led("t"), 1)
    for node in (4, 5):
        port = cluster.servers[1].broker.state.nodes[node].peer_port
        await cluster.kill(node)
        await cluster.start_node(node, roles="data", **SMALL)
        assert cluster.servers[1].broker.state.nodes[node].peer_port != port
        await _write(await cluster.until_led("t"), 1)
    assert voters(cluster, "t") == (4, 5)
