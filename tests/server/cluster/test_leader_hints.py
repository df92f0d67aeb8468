"""A client that asks the wrong node learns from the answer who leads and where that node is (KIP-951)."""

import pytest

from tests.server.client import batch_of, fetch_request, produce_request
from tests.server.cluster.clusters import Cluster, started
from tests.server.world import World
from tidelog.wire.errors import ErrorCode


def _term(cluster: Cluster, leader: int) -> int:
    return cluster[leader].replica("t").group.term


@pytest.mark.parametrize("asked", [2, 3], ids=["a follower", "a node without the stream"])
async def test_a_produce_to_the_wrong_node_is_told_who_leads(world: World, asked: int) -> None:
    cluster = await started(world, "a", "b", "c")
    await cluster.create("t", [1, 2])
    topic_id = cluster[1].broker.state.topics["t"].id
    for version in (9, 10, 12, 13):
        client = await cluster.connect(asked)
        named = topic_id if version >= 13 else "t"
        response = await client.ask(produce_request(named, [(0, batch_of("x"))]), version)
        answer = response.responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version < 10:
            assert answer.current_leader is None
            continue
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, _term(cluster, 1))
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        assert endpoints == [(1, "127.0.0.1", cluster[1].port, "a")]


@pytest.mark.parametrize("asked", [2, 3], ids=["a follower", "a node without the stream"])
async def test_a_fetch_from_the_wrong_node_is_told_who_leads(world: World, asked: int) -> None:
    cluster = await started(world, "a", "b", "c")
    await cluster.create("t", [1, 2])
    topic_id = cluster[1].broker.state.topics["t"].id
    client = await cluster.connect(asked)
    for version in (4, 11, 12, 15, 16, 18):
        response = await client.ask(fetch_request(topic_id if version >= 13 else "t", [(0, 0)]), version)
        answer = response.responses[0].partitions[0]
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version >= 12:
            assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, _term(cluster, 1))
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        assert endpoints == ([(1, "127.0.0.1", cluster[1].port, "a")] if version >= 16 else [])


async def test_one_endpoint_serves_several_partitions_of_one_leader(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1], [1], [2])
    client = await cluster.connect(3)
    topic_id = cluster[1].broker.state.topics["t"].id
    response = await client.ask(fetch_request(topic_id, [(0, 0), (1, 0), (2, 0)]), 17)
    assert [p.current_leader.leader_id for p in response.responses[0].partitions] == [1, 1, 2]
    assert [node.node_id for node in response.node_endpoints] == [1, 2]


async def test_a_client_that_knows_an_older_leader_is_fenced_and_told_the_new_one(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3])
    old = _term(cluster, 1)
    await cluster.until_led("t", 2)
    await cluster.until(lambda: cluster[1].replica("t").group.leader == 2)
    for node in (1, 2):
        client = await cluster.connect(node)
        response = await client.ask(fetch_request("t", [(0, 0)], epoch=old), 12)
        answer = response.responses[0].partitions[0]
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (2, _term(cluster, 2))
        later = await client.ask(fetch_request("t", [(0, 0)], epoch=_term(cluster, 2) + 1), 12)
        answer = later.responses[0].partitions[0]
        assert (answer.error_code, answer.current_leader) == (ErrorCode.UNKNOWN_LEADER_EPOCH, None)


async def test_a_produce_that_loses_its_leader_is_told_the_new_one(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3])
    client = await cluster.connect(1)
    await cluster.until_led("t", 3)
    await cluster.until(lambda: cluster[1].replica("t").group.leader == 3)
    response = await client.ask(produce_request("t", [(0, batch_of("x"))]), 12)
    answer = response.responses[0].partition_responses[0]
    assert (answer.error_code, answer.current_leader.leader_id) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 3)
    assert [node.port for node in response.node_endpoints] == [cluster[3].port]
