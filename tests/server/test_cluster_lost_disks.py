"""Nodes that lost their disk, or come with one that is not theirs any more, or never was."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import (
    QUICK_STABLE_MS,
    cluster_members,
    create_on,
    cut,
    heal,
    lead,
    lead_cluster,
    number_of,
    partition_of,
    voters,
)
from tests.server.world import Server, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.raft import Role
from tidelog.storage import StorageError
from tidelog.wire.messages import DeleteTopicsRequest, DeleteTopicsRequestTopic


@pytest.fixture(autouse=True)
def _soon_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", QUICK_STABLE_MS)


async def _write(server: Server, topic: str, *values: str) -> None:
    client = await server.connect()
    for value in values:
        assert (await client.produce(topic, batch_of(value))).error_code == 0
    await client.close()


async def _everything(server: Server, topic: str) -> list[str]:
    client = await server.connect()
    return await client.read_all(topic)


async def _wiped(cluster: ClusterWorld, node: int) -> Server:
    await cluster.kill(node)
    cluster.wipe(node)
    return await cluster.start_node(node)


@pytest.mark.parametrize("who", ["follower", "leader", "config leader"])
async def test_a_node_that_lost_its_disk_votes_again_and_no_record_is_lost(cluster: ClusterWorld, who: str) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    await lead_cluster(cluster, 2)
    await _write(cluster.servers[1], "t", "a", "b")
    node = {"follower": 3, "leader": 1, "config leader": 2}[who]
    again = await _wiped(cluster, node)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    for server in cluster.servers.values():
        await until(lambda server=server: cluster_members(server) == ((1, 2, 3), ()))
    await lead(cluster, "t", node)
    assert await _everything(again, "t") == ["a", "b"]
    assert partition_of(again, "t").absent == ()


async def test_two_of_five_lose_their_disks_at_once(cluster: ClusterWorld) -> None:
    await cluster.start(5)
    await create_on(cluster.any, "t", [1, 2, 3, 4, 5])
    await lead(cluster, "t", 1)
    await _write(cluster.servers[1], "t", "a", "b")
    await asyncio.gather(cluster.kill(1), cluster.kill(2))
    cluster.wipe(1)
    cluster.wipe(2)
    await asyncio.gather(cluster.start_node(1), cluster.start_node(2))
    await until(lambda: voters(cluster, "t") == (1, 2, 3, 4, 5))
    await lead(cluster, "t", 2)
    assert await _everything(cluster.servers[2], "t") == ["a", "b"]
    await until(lambda: cluster_members(cluster.servers[2]) == ((1, 2, 3, 4, 5), ()))


async def test_an_old_disk_that_is_put_back_is_refused(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    await cluster.kill(3)
    shutil.copytree(cluster.folder(3), tmp_path / "old")
    cluster.wipe(3)
    await cluster.start_node(3)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    await cluster.stop_node(3)
    cluster.wipe(3)
    shutil.copytree(tmp_path / "old", cluster.folder(3))
    with pytest.raises(StorageError, match="another disk"):
        await cluster.start_node(3)
    await cluster.kill(3)
    await _write(await cluster.until_led("t"), "t", "a")


async def test_a_node_with_another_clusters_folder_is_refused_and_the_folder_stays_as_it_is(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    other = ClusterWorld(tmp_path / "other")
    await asyncio.gather(cluster.start(3), other.start(3))
    await create_on(cluster.any, "t", [1, 2, 3])
    await create_on(other.any, "mine", [1, 2, 3])
    await _write(await other.until_led("mine"), "mine", "a", "b")
    await until(lambda: other.servers[3].high_watermark("mine") == 2)
    await other.stop()
    for node in (1, 2, 3, 1):  # terms that the other cluster has not seen
        await lead_cluster(cluster, node)
        await lead(cluster, "t", node)
    await cluster.kill(3)
    cluster.wipe(3)
    shutil.copytree(other.folder(3), cluster.folder(3))
    with pytest.raises((StorageError, TimeoutError)):  # refused, or not even talked to
        async with asyncio.timeout(1.5):
            await cluster.start_node(3)
    assert CLUSTER_STREAM not in cluster.servers[3].broker.node.replicas or cluster.servers[3].broker.controller < 0
    await cluster.kill(3)
    assert len({server.broker.state.cluster_id for server in cluster.servers.values()}) == 1
    await _write(await cluster.until_led("t"), "t", "c")

    other.wipe(3)
    shutil.copytree(cluster.folder(3), other.folder(3))
    other.servers.clear()
    try:
        await asyncio.gather(*(other.start_node(node) for node in (1, 2, 3)))
        assert other.servers[3].broker.state.topics.keys() == {"mine"}
        await lead(other, "mine", 3)
        assert await _everything(other.servers[3], "mine") == ["a", "b"]
    finally:
        await other.stop()


async def test_an_empty_config_server_that_does_not_reach_the_others_founds_nothing(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    cluster_id = cluster.any.broker.state.cluster_id
    for node in (1, 2, 3):
        await cluster.kill(node)
    cluster.wipe(1)
    starting = asyncio.ensure_future(cluster.start_node(1))
    await until(lambda: 1 in cluster.servers)
    alone = cluster.servers[1].broker
    for _ in range(3):  # it has asked the others in vain, again and again
        alone.peers.arrived.clear()
        await asyncio.wait([asyncio.ensure_future(alone.peers.call(2, "founding", {}, 100))])
        await asyncio.sleep(0.05)
        assert CLUSTER_STREAM not in alone.node.replicas
    # One other is there, and it cannot know either: its log may not hold all that was committed.
    second = asyncio.ensure_future(cluster.start_node(2))
    await until(lambda: 2 in alone.peers.connected)
    await asyncio.sleep(0.3)
    assert CLUSTER_STREAM not in alone.node.replicas
    assert not starting.done()
    await cluster.start_node(3)
    await asyncio.gather(starting, second)
    assert {server.broker.state.cluster_id for server in cluster.servers.values()} == {cluster_id}


async def test_empty_config_servers_found_nothing_before_all_of_them_are_there(cluster: ClusterWorld) -> None:
    founding = asyncio.ensure_future(cluster.start(3))
    await until(lambda: len(cluster.servers) == 3)
    third = cluster.servers[3]
    cut(third, off=[cluster.servers[1], cluster.servers[2]])
    await until(lambda: 2 in cluster.servers[1].broker.peers.connected)
    await asyncio.sleep(0.3)
    assert not any(CLUSTER_STREAM in server.broker.node.replicas for server in cluster.servers.values())
    heal(*cluster.servers.values())
    await founding
    assert len({server.broker.state.cluster_id for server in cluster.servers.values()}) == 1


async def test_a_blank_replica_grants_no_vote(cluster: ClusterWorld) -> None:
    """Node 3 is wiped, node 2 is behind: the two must not elect node 2, which lacks what 1 and 3 had acknowledged."""
    await cluster.start(5)
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    await lead_cluster(cluster, 4)
    first, second, fourth = (cluster.servers[node] for node in (1, 2, 4))
    stream = partition_of(first, "t").stream
    cut(second, off=[server for server in cluster.servers.values() if server is not second])
    await until(lambda: not first.broker.is_alive(2))
    await _write(first, "t", "acknowledged by 1 and 3")
    cut(first, off=[server for server in cluster.servers.values() if server is not first])
    await cluster.kill(3)
    cluster.wipe(3)
    heal(second, fourth, cluster.servers[5])
    cut(first, off=[second, fourth, cluster.servers[5]])  # node 1 alone is away now
    third = await cluster.start_node(3)
    cut(first, off=[third])
    await until(lambda: fourth.broker.is_alive(2) and fourth.broker.is_alive(3))
    second.broker.node._host.campaign(stream, second.broker.node._request())
    await until(lambda: second.replica("t").group.role is not Role.LEADER)
    await asyncio.sleep(1.0)
    assert cluster.leader("t") in (None, first)
    assert not second.replica("t").leads
    heal(*cluster.servers.values())
    leader = await cluster.until_led("t")
    assert await _everything(leader, "t") == ["acknowledged by 1 and 3"]
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    assert number_of(leader) in (1, 2, 3)


async def test_a_data_node_that_lost_its_disk_is_filled_again(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [4, 1, 2])
    await lead(cluster, "t", 4)
    await _write(cluster.servers[4], "t", "a", "b")
    await cluster.kill(4)
    cluster.wipe(4)
    again = await cluster.start_node(4, roles="data")
    await until(lambda: voters(cluster, "t") == (1, 2, 4))
    await until(lambda: cluster_members(again) == ((1, 2, 3), (4,)))
    await lead(cluster, "t", 4)
    assert await _everything(again, "t") == ["a", "b"]


async def test_a_disk_that_is_lost_twice_before_it_is_filled_comes_back_too(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    await _write(cluster.servers[1], "t", "a")
    for _ in range(3):
        await _wiped(cluster, 3)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    await until(lambda: cluster.servers[3].high_watermark("t") == 1)
    await until(lambda: cluster_members(cluster.servers[3]) == ((1, 2, 3), ()))


async def test_a_stream_whose_only_disk_was_lost_holds_up_no_other(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "only", [3])
    await create_on(cluster.any, "t", [1, 2, 3])
    await _wiped(cluster, 3)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    assert cluster.leader("only") is None, "nobody pretends to have it"
    client = await cluster.servers[1].connect()
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="only")], timeout_ms=5_000)
    assert (await client.ask(request)).responses[0].error_code == 0
    await create_on(cluster.any, "only", [3])
    await _write(await cluster.until_led("only"), "only", "new")


async def test_an_empty_second_node_does_not_take_a_living_nodes_number(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead_cluster(cluster, 1)
    third = cluster.servers[3]
    directory = third.broker.node.directory_id
    second = asyncio.ensure_future(cluster.start_node(3, data_dir=str(cluster.folder(33)), peer_port=free_port()))
    await until(lambda: cluster.servers[3] is not third)
    impostor = cluster.servers[3]
    cluster.servers[3] = third
    try:
        await asyncio.sleep(1.0)  # it asks again and again
        assert cluster.servers[1].broker.state.nodes[3].directory == directory
        assert voters(cluster, "t") == (1, 2, 3)
        await until(lambda: cluster_members(cluster.servers[1]) == ((1, 2, 3), ()))
    finally:
        second.cancel()
        await impostor.kill()
