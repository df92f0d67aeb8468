"""Who holds a stream and who votes on the cluster changes, at an operator's word or because a node is lost."""

import asyncio

import pytest

from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import (
    QUICK_STABLE_MS,
    STAY,
    admin,
    ask_admin,
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
from tidelog.server import operations
from tidelog.server.operations import OperationError, change_members
from tidelog.storage import StorageError
from tidelog.wire.errors import ErrorCode


@pytest.fixture(autouse=True)
def _soon_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", QUICK_STABLE_MS)


async def _write(server: Server, topic: str, count: int) -> None:
    client = await server.connect()
    for number in range(count):
        assert (await client.produce(topic, batch_of(f"{number}"))).error_code == 0
    await client.close()


async def _everything(server: Server, topic: str) -> list[str]:
    client = await server.connect()
    return await client.read_all(topic)


async def test_a_replica_is_replaced_and_nothing_is_lost(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [1, 2, 3])
    await _write(await cluster.until_led("t"), "t", 5)
    await admin(cluster.servers[4], "reassign", topic="t", partition=0, replicas=[4, 1, 2])
    await until(lambda: voters(cluster, "t") == (1, 2, 4))
    stream = partition_of(cluster.any, "t").stream
    await until(lambda: stream not in cluster.servers[3].broker.node.replicas)
    leader = await lead(cluster, "t", 4)
    assert await _everything(leader, "t") == ["0", "1", "2", "3", "4"]


async def test_a_leader_that_is_to_leave_hands_over_first(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [1, 2, 3])
    await lead(cluster, "t", 1)
    await _write(cluster.servers[1], "t", 1)
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[4, 2, 3])
    await until(lambda: voters(cluster, "t") == (2, 3, 4))
    await until(lambda: cluster.leader("t") is cluster.servers[4])
    assert await _everything(cluster.servers[4], "t") == ["0"]


async def test_a_replica_is_taken_away_and_its_log_deleted(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    stream = partition_of(cluster.any, "t").stream
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, 2])
    await until(lambda: voters(cluster, "t") == (1, 2))
    node = cluster.servers[3].broker.node
    await until(lambda: stream not in node.replicas and stream not in node.streams_on_disk)


async def test_a_change_that_would_cost_the_quorum_is_refused_unless_it_is_forced(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await cluster.until_led("t")
    stream = leader.replica("t").stream
    away, kept = (node for node in (1, 2, 3) if node != number_of(leader))
    await cluster.kill(away)
    await until(lambda: not leader.broker.is_alive(away))
    with pytest.raises(OperationError) as refused:
        await change_members(leader.broker, stream, (), (), (kept,))
    assert refused.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "quorum" in refused.value.message
    configuration = leader.replica("t").group.configuration
    assert configuration.voters == (1, 2, 3)
    # With force the leader begins it, and ends it when the other one is back.
    change = asyncio.ensure_future(change_members(leader.broker, stream, (), (), (kept,), force=True))
    await until(lambda: leader.replica("t").group.configuration != configuration)
    change.cancel()
    await cluster.start_node(away)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))  # as the topic says


async def test_an_operator_may_have_a_stream_wait_for_a_node_that_is_away(cluster: ClusterWorld) -> None:
    """The controller asks for no such change by itself; by force it does, and the change ends when the node is back."""
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await _write(leader, "t", 1)
    await cluster.kill(3)
    controller = await cluster.controller()
    await until(lambda: not (leader.broker.is_alive(3) or controller.broker.is_alive(3)))
    await admin(leader, "reassign", topic="t", partition=0, replicas=[1, 3], force=True)
    await until(lambda: leader.replica("t").group.configuration.joint)
    await cluster.start_node(3)
    await until(lambda: voters(cluster, "t") == (1, 3))
    assert await _everything(await cluster.until_led("t"), "t") == ["0"]


async def test_replicas_that_are_away_are_taken_only_by_force(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [1, 2])
    await cluster.kill(4)
    controller = await cluster.controller()
    await until(lambda: not controller.broker.is_alive(4))
    refused = await ask_admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, 4])
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert partition_of(controller, "t").replicas == (1, 2)
    await admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, 4], force=True)
    assert partition_of(controller, "t").replicas == (1, 4)
    await cluster.start_node(4, roles="data")
    await until(lambda: voters(cluster, "t") == (1, 4))


async def test_a_learner_that_has_not_caught_up_is_not_promoted(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BEHIND_ENTRIES_MAX", 2)
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2])
    leader = await lead(cluster, "t", 1)
    await _write(leader, "t", 5)
    stream = leader.replica("t").stream
    # Node 3 knows nothing of it: it is added and learns nothing.
    await change_members(leader.broker, stream, (3,), (), ())
    with pytest.raises(OperationError, match="caught up"):
        await change_members(leader.broker, stream, (), (3,), ())
    assert 3 not in leader.replica("t").group.configuration.voters


async def test_a_drained_node_is_emptied_then_removed_ends_and_comes_back_only_empty(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    fourth = await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [4, 1, 2], [3, 4], [4])
    await cluster.until_led("t")
    refused = await ask_admin(cluster.any, "remove-node", node=4)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "drain" in (refused.error_message or "")
    await _write(await cluster.until_led("t", 2), "t", 1)
    await admin(cluster.any, "drain-node", node=4)
    controller = await cluster.controller()
    await until(lambda: not controller.broker.state.uses(4))
    await until(lambda: fourth.broker.node.streams_on_disk == [CLUSTER_STREAM])
    rows = [partition_of(controller, "t", number) for number in range(3)]
    assert [len(row.replicas) for row in rows] == [3, 2, 1]
    assert all(set(row.replicas) == set(row.voters) for row in rows)
    await admin(cluster.any, "remove-node", node=4)
    await until(lambda: fourth.failure is not None)
    assert "removed" in str(fourth.failure)
    await cluster.kill(4)
    cluster.wipe(4)
    again = await cluster.start_node(4, roles="data")
    assert again.broker.state.nodes.keys() == {1, 2, 3, 4}
    await create_on(cluster.any, "u", [4])
    await _write(await cluster.until_led("u"), "u", 1)


async def test_a_removed_node_with_its_folder_is_refused(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await cluster.kill(4)
    await admin(cluster.any, "remove-node", node=4)
    await until(lambda: all(cluster_members(server) == ((1, 2, 3), ()) for server in cluster.servers.values()))
    with pytest.raises(StorageError, match="empty folder"):
        async with asyncio.timeout(6):
            await cluster.start_node(4, roles="data")


async def test_a_node_whose_streams_would_have_too_few_others_is_not_drained(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    refused = await ask_admin(cluster.any, "drain-node", node=3)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert not any(node.draining for node in cluster.any.broker.state.nodes.values())


@pytest.mark.parametrize("dead", [False, True], ids=["alive", "dead"])
async def test_by_force_streams_are_left_with_fewer_replicas_and_nothing_is_lost(
    cluster: ClusterWorld, dead: bool
) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [3, 1, 2])
    await create_on(cluster.any, "moved", [3])
    await lead(cluster, "t", 3)
    await _write(cluster.servers[3], "t", 3)
    await cluster.until_led("moved")
    if dead:
        await cluster.kill(3)
        await cluster.until_led("t")
    await admin(cluster.any, "drain-node", node=3, force=True)
    await until(lambda: voters(cluster, "t") == (1, 2))
    if dead:
        await cluster.start_node(3)  # what has no other replica can be moved only by the node that has it
    controller = await cluster.controller()
    await until(lambda: not controller.broker.state.uses(3))
    await admin(cluster.servers[1], "remove-node", node=3, force=True)
    await until(lambda: cluster.servers[3].failure is not None)
    await cluster.kill(3)
    assert await _everything(await cluster.until_led("t"), "t") == ["0", "1", "2"]
    await _write(await cluster.until_led("t"), "t", 1)


async def test_a_dead_nodes_replicas_are_placed_elsewhere_and_it_drops_what_is_no_longer_its_own(
    cluster: ClusterWorld,
) -> None:
    quick = {"replica_replace_after_ms": 300}
    await cluster.start(3, **quick)
    await cluster.start_node(4, roles="data", **quick)
    await create_on(cluster.any, "t", [1, 2, 4])
    leader = await lead(cluster, "t", 1)
    await _write(leader, "t", 3)
    stream = partition_of(leader, "t").stream
    await cluster.kill(4)
    await until(lambda: voters(cluster, "t") == (1, 2, 3))
    await until(lambda: cluster.servers[3].high_watermark("t") == 3)
    again = await cluster.start_node(4, roles="data", **quick)
    await until(lambda: stream not in again.broker.node.streams_on_disk)
    assert stream not in again.broker.node.replicas
    assert voters(cluster, "t") == (1, 2, 3)


async def test_a_node_that_is_away_for_less_than_the_grace_time_keeps_its_replicas(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.start_node(4, roles="data")
    await create_on(cluster.any, "t", [1, 2, 4])
    await lead(cluster, "t", 1)
    await cluster.kill(4)
    controller = await cluster.controller()
    await until(lambda: 4 in controller.broker.controller_loop.health().dead)
    for _ in range(3):  # three rounds of the controller
        watched = controller.broker.controller_loop._planner._known_topics
        await until(lambda watched=watched: controller.broker.controller_loop._planner._known_topics is not watched)
    assert partition_of(controller, "t").replicas == (1, 2, 4)
    assert voters(cluster, "t") == (1, 2, 4)


async def test_data_only_nodes_join_follow_the_cluster_and_take_streams(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await asyncio.gather(*(cluster.start_node(node, roles="data") for node in (4, 5)))
    for server in cluster.servers.values():
        await until(lambda server=server: cluster_members(server) == ((1, 2, 3), (4, 5)))
        await until(lambda server=server: server.broker.state.nodes.keys() == {1, 2, 3, 4, 5})
    await create_on(cluster.servers[5], "t", [4, 5])
    leader = await cluster.until_led("t")
    await _write(leader, "t", 1)
    assert number_of(leader) in (4, 5)
    assert voters(cluster, "t") == (4, 5)


async def test_the_config_servers_change_to_others(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await asyncio.gather(*(cluster.start_node(node, roles="config,data") for node in (4, 5, 6)))
    await create_on(cluster.any, "before", [1, 4])
    await admin(cluster.servers[6], "config-nodes", nodes=[4, 5, 6])
    for server in cluster.servers.values():
        await until(lambda server=server: cluster_members(server) == ((4, 5, 6), (1, 2, 3)))
    controller = await cluster.controller()
    assert number_of(controller) in (4, 5, 6)
    await asyncio.gather(*(cluster.kill(node) for node in (1, 2, 3)))
    await create_on(cluster.servers[4], "after", [5, 6])
    await _write(await cluster.until_led("after"), "after", 1)


async def test_after_a_change_of_config_servers_nodes_restart_with_the_new_ones_named(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await asyncio.gather(*(cluster.start_node(node, roles="config,data") for node in (4, 5, 6)))
    await create_on(cluster.any, "t", [4, 5, 6])
    await admin(cluster.servers[6], "config-nodes", nodes=[4, 5, 6])
    await until(lambda: all(cluster_members(s) == ((4, 5, 6), (1, 2, 3)) for s in cluster.servers.values()))
    for node in (1, 2, 3):
        await admin(cluster.servers[6], "remove-node", node=node)
        await cluster.kill(node)
    await until(lambda: all(cluster_members(s) == ((4, 5, 6), ()) for s in cluster.servers.values()))
    cluster._peer_ports = {node: cluster.servers[4].broker.state.nodes[node].peer_port for node in (4, 5, 6)}
    cluster._config_servers = [4, 5, 6]
    for node in (4, 5, 6):
        await cluster.kill(node)
    await asyncio.gather(*(cluster.start_node(node) for node in (4, 5, 6)))
    await _write(await cluster.until_led("t"), "t", 1)
    assert cluster.any.broker.state.nodes.keys() == {4, 5, 6}


async def test_the_config_servers_change_while_one_of_them_is_down(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await asyncio.gather(*(cluster.start_node(node, roles="config,data") for node in (4, 5)))
    await lead_cluster(cluster, 1)
    await cluster.kill(3)
    await until(lambda: not cluster.servers[1].broker.is_alive(3))
    await admin(cluster.servers[5], "config-nodes", nodes=[1, 4, 5])
    await until(lambda: cluster_members(cluster.servers[1])[0] == (1, 4, 5))
    third = await cluster.start_node(3)
    await until(lambda: cluster_members(third) == ((1, 4, 5), (2, 3)))
    assert third.broker.state.config_nodes == (1, 4, 5)


@pytest.mark.parametrize("removed", [1, 2], ids=["the controller", "the other one"])
async def test_a_config_server_is_removed_only_when_it_has_no_vote_any_more(
    cluster: ClusterWorld, removed: int
) -> None:
    """It ended as soon as it heard of it. When it was one of two, nobody could take its vote from it then."""
    await cluster.start(2)
    await lead_cluster(cluster, 1)
    leaving, staying = cluster.servers[removed], cluster.servers[3 - removed]
    await admin(staying, "remove-node", node=removed, force=True)
    await until(lambda: leaving.failure is not None)
    await cluster.kill(removed)
    assert cluster_members(staying)[0] == (3 - removed,)
    await create_on(staying, "t", [3 - removed])
    await _write(await cluster.until_led("t"), "t", 1)


async def test_so_few_config_servers_that_none_may_fail_are_taken_only_by_force(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    for method, content in (("config-nodes", {"nodes": [1, 2]}), ("remove-node", {"node": 3})):
        refused = await ask_admin(cluster.any, method, **content)
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "none may fail" in (refused.error_message or "")
    await admin(cluster.any, "config-nodes", nodes=[1, 2], force=True)
    await until(lambda: all(cluster_members(server) == ((1, 2), (3,)) for server in cluster.servers.values()))


async def test_only_nodes_with_role_config_become_config_servers_and_five_of_them_at_most(
    cluster: ClusterWorld,
) -> None:
    await cluster.start(5)
    await cluster.start_node(6)
    await cluster.start_node(7, roles="data")
    refused = await ask_admin(cluster.any, "config-nodes", nodes=[1, 2, 7], force=True)
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "`config`" in (refused.error_message or "")
    refused = await ask_admin(cluster.any, "config-nodes", nodes=[1, 2, 3, 4, 5, 6])
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert cluster.any.broker.state.config_nodes == (1, 2, 3, 4, 5)
    await admin(cluster.any, "config-nodes", nodes=[1, 2, 3, 4, 6])


async def test_no_replica_is_given_to_a_node_that_holds_none(cluster: ClusterWorld) -> None:
    """One that has no role `data`, or is being drained."""
    await cluster.start(3)
    await asyncio.gather(cluster.start_node(4, roles="config"), cluster.start_node(5))
    await create_on(cluster.any, "t", [1, 2])
    await admin(cluster.any, "drain-node", node=5)
    for unfit in (4, 5):
        refused = await ask_admin(cluster.any, "reassign", topic="t", partition=0, replicas=[1, unfit], force=True)
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
        with pytest.raises(AssertionError, match="drained"):
            await create_on(cluster.any, "u", [1, unfit])
    assert partition_of(cluster.any, "t").replicas == (1, 2)


async def test_config_servers_of_which_most_are_away_are_refused(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await asyncio.gather(*(cluster.start_node(node, roles="config,data") for node in (4, 5)))
    controller = await cluster.controller()
    await asyncio.gather(cluster.kill(4), cluster.kill(5))
    await until(lambda: not (controller.broker.is_alive(4) or controller.broker.is_alive(5)))
    refused = await ask_admin(cluster.any, "config-nodes", nodes=[1, 4, 5])
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert controller.broker.state.config_nodes == (1, 2, 3)


async def test_a_node_that_was_cut_off_is_the_same_member_afterwards(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await cluster.until_led("t")
    away = cluster.servers[next(n for n in (1, 2, 3) if n != number_of(leader))]
    others = [server for server in cluster.servers.values() if server is not away]
    cut(away, off=others)
    await until(lambda: not leader.broker.is_alive(number_of(away)))
    await _write(await cluster.until_led("t"), "t", 3)
    heal(*cluster.servers.values())
    await until(lambda: away.high_watermark("t") == 3)
    assert voters(cluster, "t") == (1, 2, 3)
