"""What administrators ask and change: by Tidelog's own requests and by Kafka's, through any node."""

from pathlib import Path

import pytest

from tests.server.client import batch_of
from tests.server.cluster.clusters import Cluster, Member, started
from tests.server.world import World, until
from tidelog.cluster import Partition
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsRequestPartition,
    AlterPartitionReassignmentsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DescribeQuorumRequest,
    DescribeQuorumRequestPartition,
    DescribeQuorumRequestTopic,
    ElectLeadersRequest,
    ElectLeadersRequestTopic,
    InitProducerIdRequest,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequestTopic,
    ReadSegmentRequest,
    TidelogAdminRequest,
    UnregisterBrokerRequest,
)


def _others(cluster: Cluster) -> list[int]:
    """Nodes that are not the controller."""
    return [node for node in cluster.members if node != cluster.controller.settings.node_id]


async def test_any_node_describes_the_cluster(world: World) -> None:
    cluster = await started(world, "a", "b", "c")
    await cluster.create("t", [1, 2, 3], [2, 3], [2])
    for member in cluster.members.values():
        found = await member.admin("cluster")
        assert found["cluster_id"] == cluster.any.broker.state.cluster_id != ""
        assert (found["controller"], found["founded"]) == (cluster.controller.settings.node_id, True)
        assert found["config_nodes"] == [1, 2, 3]
        assert (found["partitions"], found["leaderless"], found["under_replicated"]) == (3, 0, 0)
        rows = [(row["node"], row["rack"], row["replicas"], row["leaders"]) for row in found["nodes"]]
        assert rows == [(1, "a", 1, 1), (2, "b", 3, 2), (3, "c", 2, 0)]
        assert all(row["alive"] and row["config"] == "voter" and not row["draining"] for row in found["nodes"])
        assert [row["port"] for row in found["nodes"]] == [cluster[node].port for node in (1, 2, 3)]


async def test_a_node_that_is_away_is_missed(world: World) -> None:
    cluster = await started(world)
    gone, kept = _others(cluster)
    await cluster.create("t", [kept, gone], [gone])
    await cluster.stop_node(gone)
    await until(lambda: gone not in cluster.controller.broker.node.nodes_alive)
    found = await cluster[kept].admin("cluster")
    assert [row["node"] for row in found["nodes"] if not row["alive"]] == [gone]
    assert found["under_replicated"] == 2
    assert found["leaderless"] >= 1


async def test_any_node_lists_the_streams(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [3, 1], [2])
    await cluster.create("other", [1])
    for member in cluster.members.values():
        streams = (await member.admin("streams", topic="t"))["streams"]
        assert [(row["topic"], row["partition"], row["leader"], row["replicas"]) for row in streams] == [
            ("t", 0, 3, [3, 1]),
            ("t", 1, 2, [2]),
        ]
        assert streams[0]["stream"] == cluster[3].replica("t").stream
        assert (sorted(streams[0]["voters"]), streams[0]["learners"], streams[0]["absent"]) == ([1, 3], [], [])
        assert len((await member.admin("streams"))["streams"]) == 3


@pytest.mark.parametrize("through", [0, 1], ids=["the controller", "another node"])
async def test_a_leader_is_moved(world: World, through: int) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3])
    member = [cluster.controller, cluster[_others(cluster)[0]]][through]
    await member.admin("transfer-leader", topic="t", partition=0, target=3)
    await until(lambda: cluster[3].replica("t").ready)
    await until(lambda: cluster.controller.broker.leader_node(cluster[3].replica("t").stream) == 3)
    await member.admin("transfer-leader", topic="t", partition=0, target=None)  # home
    await until(lambda: cluster[1].replica("t").ready)


@pytest.mark.parametrize(
    ("method", "content", "error"),
    [
        ("nonsense", {}, ErrorCode.INVALID_REQUEST),
        ("streams", {"topic": "missing"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("streams", {"topic": 1}, ErrorCode.INVALID_REQUEST),
        ("transfer-leader", {"topic": "missing", "partition": 0}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("transfer-leader", {"topic": "t", "partition": 9}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("transfer-leader", {"topic": "t", "partition": "0"}, ErrorCode.INVALID_REQUEST),
        ("transfer-leader", {"topic": "t", "partition": 0, "target": 1}, ErrorCode.ELECTION_NOT_NEEDED),
        ("transfer-leader", {"topic": "t", "partition": 0, "target": 3}, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        ("reassign", {"topic": "t", "partition": 0, "replicas": []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("reassign", {"topic": "t", "partition": 0, "replicas": [1, 9]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("reassign", {"topic": "t", "partition": 0, "replicas": [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ("reassign", {"topic": "t", "partition": 0, "replicas": "1"}, ErrorCode.INVALID_REQUEST),
        ("reassign", {"topic": "t", "partition": 0, "replicas": None}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ("drain-node", {"node": 9}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ("drain-node", {"node": 1, "force": "yes"}, ErrorCode.INVALID_REQUEST),
        ("remove-node", {"node": True}, ErrorCode.INVALID_REQUEST),
        ("remove-node", {"node": 1}, ErrorCode.INVALID_REQUEST),
        ("config-nodes", {"nodes": [1, 9]}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ("segments", {"topic": "missing", "partition": 0}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("segments", {"topic": "elsewhere", "partition": 0}, ErrorCode.REPLICA_NOT_AVAILABLE),
        ("fault", {}, ErrorCode.INVALID_REQUEST),
    ],
)
async def test_what_cannot_be_done_is_refused_with_a_reason(
    world: World, method: str, content: dict[str, object], error: ErrorCode
) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2])
    await cluster.create("elsewhere", [2])
    response = await cluster[1].ask_admin(method, **content)
    assert (response.error_code, bool(response.error_message)) == (error, True), response.error_message


async def test_content_that_is_no_json_object_is_refused(world: World) -> None:
    server = await world.start()
    client = await server.connect()
    for content in ("", "{", "[]", "1", '"x"', "[" * 100_000):
        response = await client.ask(TidelogAdminRequest(method="cluster", content=content))
        assert response.error_code == ErrorCode.INVALID_REQUEST


async def test_replicas_are_moved_and_the_move_is_listed(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2])
    client = await cluster.connect(2)
    listed = await client.ask(ListPartitionReassignmentsRequest())
    assert listed.topics == []
    response = await client.ask(_alter("t", [1, 3]))
    assert response.responses[0].partitions[0].error_code == 0
    stream = cluster[1].replica("t").stream
    await until(lambda: all(set(_partition(member, stream).members) == {1, 3} for member in cluster.members.values()))
    assert cluster.any.broker.state.topics["t"].partitions[0].replicas == (1, 3)
    assert (await client.ask(ListPartitionReassignmentsRequest())).topics == []


async def test_a_move_that_cannot_end_is_listed_and_can_be_cancelled(world: World) -> None:
    cluster = await started(world)
    gone, kept = _others(cluster)
    home = cluster.controller.settings.node_id
    await cluster.create("t", [home, kept])
    await cluster.stop_node(gone)
    await until(lambda: gone not in cluster.controller.broker.node.nodes_alive)
    client = await cluster.connect(kept)
    refused = await client.ask(_alter("t", [home, gone]))
    assert refused.responses[0].partitions[0].error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    await cluster[kept].admin("reassign", topic="t", partition=0, replicas=[home, gone], force=True)
    stream = cluster[kept].replica("t").stream
    await until(lambda: _partition(cluster[kept], stream).replicas == (home, gone))
    listed = await client.ask(
        ListPartitionReassignmentsRequest(
            topics=[ListPartitionReassignmentsRequestTopic(name="t", partition_indexes=[0, 7])]
        )
    )
    row = listed.topics[0].partitions[0]
    assert (row.replicas, row.adding_replicas, row.removing_replicas) == ([home, gone, kept], [gone], [kept])
    cancelled = await client.ask(_alter("t", None))
    assert cancelled.responses[0].partitions[0].error_code == 0
    controller = cluster.controller
    await until(lambda: set(_partition(controller, stream).members) == {home, kept})
    await until(lambda: set(_partition(cluster[kept], stream).replicas) == {home, kept})
    again = await client.ask(_alter("t", None))
    assert again.responses[0].partitions[0].error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


async def test_a_change_of_the_number_of_replicas_can_be_ruled_out(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2])
    request = _alter("t", [1, 2, 3])
    request.allow_replication_factor_change = False
    response = await (await cluster.connect(1)).ask(request)
    assert not response.allow_replication_factor_change
    assert response.responses[0].partitions[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_preferred_leaders_are_elected(world: World, version: int) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3], [2, 1, 3])
    await cluster.until_led("t", 3)
    client = await cluster.connect(2)
    asked = [ElectLeadersRequestTopic(topic="t", partitions=[0, 1, 9])]
    response = await client.ask(ElectLeadersRequest(topic_partitions=asked), version)
    rows = [(row.partition_id, row.error_code) for row in response.replica_election_results[0].partition_result]
    assert rows == [(0, 0), (1, ErrorCode.ELECTION_NOT_NEEDED), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    await until(lambda: cluster[1].replica("t").ready)


async def test_all_leaders_go_home_and_only_those_that_had_to_are_named(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3], [2, 1, 3])
    await cluster.until_led("t", 3)
    response = await (await cluster.connect(2)).ask(ElectLeadersRequest(topic_partitions=None))
    rows = [
        (row.topic, [part.partition_id for part in row.partition_result]) for row in response.replica_election_results
    ]
    assert rows == [("t", [0])]


async def test_no_leader_is_made_that_could_lose_records(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2, 3])
    asked = [ElectLeadersRequestTopic(topic="t", partitions=[0])]
    response = await (await cluster.connect(2)).ask(ElectLeadersRequest(election_type=1, topic_partitions=asked))
    assert response.replica_election_results[0].partition_result[0].error_code == ErrorCode.ELECTION_NOT_NEEDED


async def test_a_node_that_is_counted_on_is_not_removed(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2])
    response = await (await cluster.connect(3)).ask(UnregisterBrokerRequest(broker_id=2))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert "drain" in response.error_message
    response = await (await cluster.connect(3)).ask(UnregisterBrokerRequest(broker_id=99))
    assert response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_quorum_is_described_by_any_node(world: World, version: int) -> None:
    cluster = await started(world)
    controller = cluster.controller.settings.node_id
    replica = cluster.controller.broker.node.replicas[0]
    asked = [
        DescribeQuorumRequestTopic(topic_name=name, partitions=[DescribeQuorumRequestPartition(partition_index=number)])
        for name, number in (("__cluster_metadata", 0), ("__cluster_metadata", 1), ("t", 0))
    ]
    for member in cluster.members.values():
        response = await (await member.connect()).ask(DescribeQuorumRequest(topics=asked), version)
        found = [topic.partitions[0] for topic in response.topics]
        assert [row.error_code for row in found] == [0, *[ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2]
        assert (found[0].leader_id, found[0].leader_epoch) == (controller, replica.group.term)
        assert [row.replica_id for row in found[0].current_voters] == [1, 2, 3]
        assert found[0].observers == []
        leader = next(row for row in found[0].current_voters if row.replica_id == controller)
        assert leader.log_end_offset >= found[0].high_watermark > 0
        if version >= 1:
            assert leader.last_caught_up_timestamp > 0
            for row in found[0].current_voters:  # one may just have been told of the newest entry
                assert (row.last_caught_up_timestamp > 0) == (row.log_end_offset >= found[0].high_watermark)
        if version >= 2:
            assert [node.node_id for node in response.nodes] == [1, 2, 3]
            assert [node.listeners[0].port for node in response.nodes] == [cluster[n].port for n in (1, 2, 3)]


async def test_closed_segments_are_listed_and_handed_out(world: World) -> None:
    cluster = await started(world, storage_segment_bytes=1 << 20)
    await cluster.create("t", [1, 2])
    client = await cluster.connect(1)
    for _ in range(6):
        await client.produce("t", batch_of(b"x" * 300_000))
    await until(lambda: cluster[2].high_watermark("t") == 6)
    await until(lambda: bool(cluster[2].replica("t").log.closed_segments()))
    found = await cluster[2].admin("segments", topic="t", partition=0)
    assert (found["start_offset"], found["high_watermark"]) == (0, 6)
    assert found["floor"] == {"index": 0, "term": 0, "offset": 0}
    segment = found["segments"][0]
    assert (segment["first_index"], segment["base_offset"]) == (1, 0)
    reader = await cluster.connect(2)
    parts = {}
    for part, length in ((0, segment["length"]), (1, segment["index_length"])):
        data = b""
        while len(data) < length:
            asked = ReadSegmentRequest(
                stream=found["stream"], first_index=1, part=part, position=len(data), length=400_000
            )
            response = await reader.ask(asked)
            assert response.error_code == 0
            assert response.data
            data += response.data
        assert len(data) == length
        parts[part] = data
    assert parts[0].count(b"x" * 300_000) == segment["next_offset"]
    for change, error in (
        ({"stream": 999}, ErrorCode.REPLICA_NOT_AVAILABLE),
        ({"first_index": 2}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"part": 2}, ErrorCode.SNAPSHOT_NOT_FOUND),
        ({"length": (1 << 20) + 1}, ErrorCode.INVALID_REQUEST),
        ({"position": -1}, ErrorCode.INVALID_REQUEST),
    ):
        asked = ReadSegmentRequest(stream=found["stream"], first_index=1, length=10)
        for name, value in change.items():
            setattr(asked, name, value)
        assert (await reader.ask(asked)).error_code == error


async def test_replicas_with_the_same_records_have_the_same_checksum(world: World) -> None:
    cluster = await started(world)
    await cluster.create("t", [1, 2])
    client = await cluster.connect(1)
    for number in range(20):
        await client.produce("t", batch_of(str(number) * 50_000, "second"))
    await until(lambda: cluster[2].high_watermark("t") == 40)

    async def checksum(node: int, start: int, end: int) -> dict[str, int]:
        return await cluster[node].admin("checksum", topic="t", partition=0, start=start, end=end)

    for start, end in ((0, 40), (0, 1), (7, 33), (40, 40)):
        first, second = await checksum(1, start, end), await checksum(2, start, end)
        assert first == second
        assert (first["start"], first["end"], first["batches"]) == (start, end, (end + 1) // 2 - start // 2)
    assert (await checksum(1, 0, 2))["crc"] != (await checksum(1, 2, 4))["crc"]
    for start, end, error in (
        (0, 41, ErrorCode.OFFSET_NOT_AVAILABLE),
        (-1, 2, ErrorCode.INVALID_REQUEST),
        (3, 2, ErrorCode.INVALID_REQUEST),
    ):
        response = await cluster[2].ask_admin("checksum", topic="t", partition=0, start=start, end=end)
        assert response.error_code == error
    await client.ask(
        DeleteRecordsRequest(
            topics=[
                DeleteRecordsRequestTopic(
                    name="t", partitions=[DeleteRecordsRequestPartition(partition_index=0, offset=4)]
                )
            ],
            timeout_ms=10_000,
        )
    )
    response = await cluster[1].ask_admin("checksum", topic="t", partition=0, start=0, end=10)
    assert response.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_a_damaged_replica_says_so(world: World) -> None:
    cluster = await started(world, storage_segment_bytes=1 << 20, storage_tail_cache_bytes=1)
    await cluster.create("t", [1, 2])
    client = await cluster.connect(1)
    for _ in range(6):
        await client.produce("t", batch_of(b"x" * 300_000))
    await until(lambda: cluster[2].high_watermark("t") == 6)
    found = await cluster[2].admin("segments", topic="t", partition=0)
    await until(lambda: bool(_first_closed(cluster[2], found["stream"])))
    _damage(cluster[2], found["stream"])
    response = await cluster[2].ask_admin("checksum", topic="t", partition=0, start=0, end=6)
    assert response.error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await cluster[1].admin("checksum", topic="t", partition=0, start=0, end=6))["batches"] == 6


def _first_closed(member: Member, stream: int) -> list[Path]:
    """The file of the first segment, once it is closed."""
    return list(Path(member.settings.data_dir).glob(f"streams/{stream}/*1-*0.log"))


def _damage(member: Member, stream: int) -> None:
    (path,) = _first_closed(member, stream)
    with path.open("r+b") as file:
        file.seek(1_000)
        file.write(b"y")


async def test_producers_get_different_ids_from_different_nodes(world: World) -> None:
    cluster = await started(world)
    ids = [
        (await (await member.connect()).ask(InitProducerIdRequest())).producer_id
        for member in cluster.members.values()
        for _ in range(3)
    ]
    assert len(set(ids)) == 9
    assert min(ids) >= 0


def _partition(member: Member, stream: int) -> Partition:
    found = member.broker.state.partition_of(stream)
    assert found is not None
    return found[0].partitions[found[1]]


def _alter(topic: str, replicas: list[int] | None) -> AlterPartitionReassignmentsRequest:
    partition = AlterPartitionReassignmentsRequestPartition(partition_index=0, replicas=replicas)
    topics = [AlterPartitionReassignmentsRequestTopic(name=topic, partitions=[partition])]
    return AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=10_000)
