"""Topics made, changed and deleted through any node, by several at once, while the controller changes."""

import asyncio
from uuid import UUID

import pytest

from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import (
    NEVER_STABLE_MS,
    STAY,
    ask_admin,
    cluster_members,
    create_on,
    lead_cluster,
    number_of,
    partition_of,
)
from tests.server.world import Server, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.server import cluster_log
from tidelog.server.replica import Replica
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    IncrementalAlterConfigsEntry,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
    MetadataRequest,
    MetadataRequestTopic,
)

TOPIC_RESOURCE = 2


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


async def _create(server: Server, name: str, partitions: int = 1) -> int:
    client = await server.connect()
    topic = CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=3, assignments=[])
    answer = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    await client.close()
    return answer.topics[0].error_code


async def _delete(server: Server, name: str) -> int:
    client = await server.connect()
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=name)], timeout_ms=10_000)
    answer = await client.ask(request)
    await client.close()
    return answer.responses[0].error_code


async def _leader_told_by(server: Server, name: str) -> int:
    client = await server.connect()
    answer = await client.ask(MetadataRequest(topics=[MetadataRequestTopic(name=name)]))
    await client.close()
    topic = answer.topics[0]
    return -1 if topic.error_code or not topic.partitions else topic.partitions[0].leader_id


async def test_a_topic_made_through_any_node_is_there_at_once_through_that_node(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    for node, server in cluster.servers.items():
        assert await _create(server, f"t{node}") == 0
        leader = cluster.servers[await _leader_told_by(server, f"t{node}")]
        client = await leader.connect()
        answer = await client.produce(f"t{node}", batch_of("x"))
        assert answer.error_code == 0
    for server in cluster.servers.values():
        await until(lambda server=server: server.broker.state.topics.keys() >= {"t1", "t2", "t3"})


async def test_settings_changed_through_one_node_hold_on_all(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await cluster.servers[1].create("t", replication=3)
    for node, server in cluster.servers.items():
        client = await server.connect()
        change = IncrementalAlterConfigsEntry(name="retention.ms", config_operation=0, value=f"{node}000")
        resource = IncrementalAlterConfigsRequestResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configs=[change]
        )
        answer = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]))
        assert answer.responses[0].error_code == 0
        asked = DescribeConfigsRequestResource(
            resource_type=TOPIC_RESOURCE, resource_name="t", configuration_keys=["retention.ms"]
        )
        described = await client.ask(DescribeConfigsRequest(resources=[asked]))
        assert described.results[0].configs[0].value == f"{node}000"
        for other in cluster.servers.values():
            await until(lambda other=other, node=node: other.replica("t").config.retention_ms == node * 1000)


async def test_of_two_nodes_that_make_the_same_topic_at_once_one_wins(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    for turn in range(5):
        name = f"t{turn}"
        codes = await asyncio.gather(*(_create(server, name) for server in cluster.servers.values()))
        assert sorted(codes) == [0, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.TOPIC_ALREADY_EXISTS]
        for server in cluster.servers.values():
            await until(lambda server=server, name=name: name in server.broker.state.topics)
        ids = {server.broker.state.topics[name].id for server in cluster.servers.values()}
        assert len(ids) == 1


async def test_a_topic_deleted_through_one_node_is_gone_from_all_and_from_their_disks(cluster: ClusterWorld) -> None:
    await cluster.start(3)
    await create_on(cluster.servers[1], "t", [1, 2, 3])
    stream = partition_of(cluster.servers[1], "t").stream
    assert await _delete(cluster.servers[3], "t") == 0
    assert "t" not in cluster.servers[3].broker.state.topics
    for server in cluster.servers.values():
        await until(lambda server=server: stream not in server.broker.node.streams_on_disk)
        assert stream not in server.broker.node.replicas
    assert await _delete(cluster.servers[2], "t") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_topic_made_again_under_its_name_has_none_of_the_old_records(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    ids: set[UUID] = set()
    for turn in range(4):
        server = cluster.servers[turn % 3 + 1]
        assert await _create(server, "t") == 0
        ids.add(server.broker.state.topics["t"].id)
        leader = cluster.servers[await _leader_told_by(server, "t")]
        client = await leader.connect()
        assert (await client.produce("t", batch_of(str(turn)))).base_offset == 0
        assert await client.read_all("t") == [str(turn)]
        for other in cluster.servers.values():
            await until(lambda other=other: isinstance(other.broker.replica_of("t", 0), Replica))
            await until(lambda other=other: other.high_watermark("t") == 1)
        assert await _delete(cluster.servers[(turn + 1) % 3 + 1], "t") == 0
        await until(lambda: not any("t" in other.broker.state.topics for other in cluster.servers.values()))
    assert len(ids) == 4


async def test_two_hundred_partitions_are_made_at_once_and_all_have_leaders(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    assert await _create(cluster.servers[1], "t", 200) == 0
    counts = dict.fromkeys(cluster.servers, 0)

    def all_reported() -> bool:
        rows = [partition_of(cluster.servers[3], "t", number) for number in range(200)]
        return all(row.leader > 0 and len(row.voters) == 3 for row in rows)

    await until(all_reported)
    for number in range(200):
        counts[partition_of(cluster.servers[3], "t", number).replicas[0]] += 1
    assert max(counts.values()) - min(counts.values()) <= 1, "preferred leaders are spread"
    leader = await cluster.until_led("t", 199)
    client = await leader.connect()
    assert (await client.produce("t", batch_of("x"), 199)).error_code == 0


async def test_while_the_controller_changes_requests_through_any_node_are_answered(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    asking = True
    errors: list[str] = []

    async def ask(server: Server) -> None:
        while asking:
            response = await ask_admin(server, "cluster")
            if response.error_code:
                errors.append(f"{number_of(server)}: {response.error_message}")

    asked = [asyncio.ensure_future(ask(server)) for server in cluster.servers.values()]
    for turn in range(9):
        await lead_cluster(cluster, turn % 3 + 1)
    asking = False
    await asyncio.gather(*asked)
    assert errors == []


async def test_topics_are_made_and_nothing_else_waits_while_the_controller_is_away(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    await create_on(cluster.servers[1], "t", [1, 2, 3])
    await lead_cluster(cluster, 3)
    await cluster.kill(3)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    assert (await client.produce("t", batch_of("x"))).error_code == 0
    await cluster.controller()
    await create_on(cluster.servers[1], "u", [1, 2])
    again = await cluster.start_node(3, **STAY)
    assert again.broker.state.topics.keys() == {"t", "u"}


async def test_nodes_that_were_away_get_the_snapshot_and_have_what_shall_be_there(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_log, "SNAPSHOT_EVERY", 20)
    await cluster.start(3, **STAY)
    await create_on(cluster.servers[1], "kept", [1, 2, 3])
    await create_on(cluster.servers[1], "deleted", [3, 1, 2])
    await create_on(cluster.servers[1], "again", [3, 1, 2])
    first = {name: partition_of(cluster.servers[1], name).stream for name in ("kept", "deleted", "again")}
    known = cluster.servers[3].broker.node.replicas[CLUSTER_STREAM].log.next_offset
    await cluster.kill(3)
    controller = await cluster.controller()
    log = controller.broker.node.replicas[CLUSTER_STREAM].log
    for turn in range(40):
        if log.start_offset > known:
            break
        name = f"{turn}"
        await create_on(controller, name, [1, 2])
        assert await _delete(controller, name) == 0
    assert log.start_offset > known, "there was a snapshot, and what node 3 would need next is gone"
    assert await _delete(controller, "deleted") == 0
    assert await _delete(controller, "again") == 0
    await create_on(controller, "again", [1, 2, 3])
    await create_on(controller, "new", [2, 3, 1])
    again = await cluster.start_node(3, **STAY)
    await until(lambda: again.broker.state.topics == controller.broker.state.topics)
    assert again.broker.state.topics.keys() == {"kept", "again", "new"}
    assert again.broker.state.next_stream == controller.broker.state.next_stream
    now = {partition_of(again, name).stream for name in ("kept", "again", "new")}
    await until(lambda: set(again.broker.node.streams_on_disk) == {CLUSTER_STREAM, *now})
    assert first["kept"] in now
    assert first["again"] not in now
    await until(lambda: cluster_members(again) == ((1, 2, 3), ()))
    for name in ("kept", "again", "new"):
        leader = await cluster.until_led(name)
        client = await leader.connect()
        assert (await client.produce(name, batch_of("x"))).base_offset == 0
        await until(lambda name=name: again.high_watermark(name) == 1)


async def test_a_node_that_starts_from_a_snapshot_alone_knows_what_the_others_know(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_log, "SNAPSHOT_EVERY", 15)  # 3 nodes, 12 topics and the founding are more
    await cluster.start(3, **STAY)
    for turn in range(12):
        await create_on(cluster.servers[1], f"{turn}", [1, 2])
    controller = await cluster.controller()
    await until(lambda: controller.broker.node.replicas[CLUSTER_STREAM].log.start_offset > 0)
    fourth = await cluster.start_node(4, roles="data", **STAY)
    await until(lambda: fourth.broker.state.topics == controller.broker.state.topics)
    assert fourth.broker.state.cluster_id == controller.broker.state.cluster_id
    await asyncio.gather(*(cluster.stop_node(node) for node in (1, 2, 3, 4)))
    await asyncio.gather(*(cluster.start_node(node, **STAY) for node in (1, 2, 3)))
    assert len(cluster.any.broker.state.topics) == 12
