"""What clients are told about a cluster: the same by every node, whether it holds a stream or not."""

from tests.server.cluster.clusters import started
from tests.server.world import World
from tidelog.wire.messages import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsRequestTopic,
    FindCoordinatorRequest,
    MetadataRequest,
    MetadataRequestTopic,
)


async def test_every_node_names_the_same_leaders_and_replicas(world: World) -> None:
    cluster = await started(world, "a", "b", "c")
    await cluster.create("t", [1, 2, 3], [2], [3, 1])
    for member in cluster.members.values():
        client = await member.connect()
        response = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        assert sorted((b.node_id, b.port, b.rack) for b in response.brokers) == [
            (node, cluster[node].port, rack) for node, rack in ((1, "a"), (2, "b"), (3, "c"))
        ]
        rows = [
            (p.error_code, p.leader_id, p.replica_nodes, sorted(p.isr_nodes)) for p in response.topics[0].partitions
        ]
        assert rows == [(0, 1, [1, 2, 3], [1, 2, 3]), (0, 2, [2], [2]), (0, 3, [3, 1], [1, 3])]
        described = await client.ask(
            DescribeTopicPartitionsRequest(topics=[DescribeTopicPartitionsRequestTopic(name="t")])
        )
        found = [(p.leader_id, p.replica_nodes, sorted(p.isr_nodes)) for p in described.topics[0].partitions]
        assert found == [row[1:] for row in rows]
        epochs = [p.leader_epoch for p in response.topics[0].partitions]
        assert epochs == [cluster[leader].replica("t", n).group.term for n, leader in enumerate((1, 2, 3))]


async def test_every_node_names_the_same_coordinator(world: World) -> None:
    cluster = await started(world)
    found = set()
    for member in cluster.members.values():
        client = await member.connect()
        response = await client.ask(FindCoordinatorRequest(coordinator_keys=["g"]))
        one = response.coordinators[0]
        assert one.error_code == 0, one.error_message
        found.add((one.node_id, one.port))
    assert len(found) == 1
    node, port = found.pop()
    assert cluster[node].port == port


async def test_the_cluster_is_described_alike_and_who_is_away_is_fenced(world: World) -> None:
    cluster = await started(world)
    for member in cluster.members.values():
        described = await (await member.connect()).ask(DescribeClusterRequest())
        assert described.controller_id == cluster.controller.settings.node_id
        assert sorted(broker.broker_id for broker in described.brokers) == [1, 2, 3]
    gone = next(node for node in cluster.members if node != cluster.controller.settings.node_id)
    await cluster.create("t", [cluster.controller.settings.node_id, gone])
    await cluster.stop_node(gone)
    controller = cluster.controller
    await cluster.until(lambda: gone not in controller.broker.node.nodes_alive)
    client = await controller.connect()
    living = await client.ask(DescribeClusterRequest())
    assert gone not in [broker.broker_id for broker in living.brokers]
    everyone = await client.ask(DescribeClusterRequest(include_fenced_brokers=True))
    assert [broker.broker_id for broker in everyone.brokers if broker.is_fenced] == [gone]
    response = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
    partition = response.topics[0].partitions[0]
    assert (partition.offline_replicas, gone in partition.isr_nodes) == ([gone], False)
