"""Topics through the protocol: what is refused, and with which code."""

import pytest

from tests.server.world import World, until
from tidelog.cluster import TopicConfig
from tidelog.raft import Role
from tidelog.storage import StoredVote
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsAssignment,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
)


def _topic(name: str, partitions: int = 1, replicas: int = 1, **more: object) -> CreateTopicsRequestTopic:
    return CreateTopicsRequestTopic(name=name, num_partitions=partitions, replication_factor=replicas, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        pytest.param(_topic("there"), ErrorCode.TOPIC_ALREADY_EXISTS, id="there already"),
        pytest.param(_topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, id="a name with a blank"),
        pytest.param(_topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, id="no name"),
        pytest.param(_topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, id="dots"),
        pytest.param(_topic("n" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, id="a long name"),
        pytest.param(_topic("t", 0), ErrorCode.INVALID_PARTITIONS, id="no partitions"),
        pytest.param(_topic("t", -2), ErrorCode.INVALID_PARTITIONS, id="negative partitions"),
        pytest.param(_topic("t", 11), ErrorCode.INVALID_PARTITIONS, id="more than a topic may have"),
        pytest.param(_topic("t", 10), ErrorCode.POLICY_VIOLATION, id="more than the cluster may have"),
        pytest.param(_topic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, id="more replicas than nodes"),
        pytest.param(_topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, id="no replicas"),
        pytest.param(
            _topic("t", -1, -1, assignments=[CreateTopicsAssignment(partition_index=0, broker_ids=[9])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            id="a node that is not there",
        ),
        pytest.param(
            _topic("t", -1, -1, assignments=[CreateTopicsAssignment(partition_index=1, broker_ids=[1])]),
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            id="partitions with a gap",
        ),
        pytest.param(
            _topic("t", 1, 1, assignments=[CreateTopicsAssignment(partition_index=0, broker_ids=[1])]),
            ErrorCode.INVALID_REQUEST,
            id="numbers and an assignment",
        ),
        pytest.param(
            _topic("t", configs=[CreateTopicsRequestConfig(name="cleanup.policy", value="compact")]),
            ErrorCode.INVALID_CONFIG,
            id="compaction",
        ),
        pytest.param(
            _topic("t", configs=[CreateTopicsRequestConfig(name="retention.ms", value=None)]),
            ErrorCode.INVALID_CONFIG,
            id="a setting without a value",
        ),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True], ids=["create", "validate"])
async def test_a_topic_that_cannot_be_made(
    world: World, topic: CreateTopicsRequestTopic, error: ErrorCode, validate_only: bool
) -> None:
    server = await world.start(topic_partitions_max=10, streams_max=10)
    await server.create("there")
    client = await server.connect()
    response = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=validate_only))
    assert response.topics[0].error_code == error
    assert list(server.broker.state.topics) == ["there"]


async def test_validation_makes_nothing(world: World) -> None:
    server = await world.start()
    client = await server.connect()
    response = await client.ask(CreateTopicsRequest(topics=[_topic("t", 3)], timeout_ms=10_000, validate_only=True))
    assert (response.topics[0].error_code, response.topics[0].num_partitions) == (0, 3)
    assert not server.broker.state.topics


async def test_a_topic_named_twice_in_one_request_is_not_made(world: World) -> None:
    server = await world.start()
    client = await server.connect()
    response = await client.ask(CreateTopicsRequest(topics=[_topic("t"), _topic("t")], timeout_ms=10_000))
    assert [topic.error_code for topic in response.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert not server.broker.state.topics


async def test_auto_creation_ends_where_the_cluster_is_full(world: World) -> None:
    server = await world.start(streams_max=2)
    client = await server.connect()
    names = [MetadataRequestTopic(name=f"t{number}") for number in range(3)]
    response = await client.ask(MetadataRequest(topics=names))
    assert [topic.error_code for topic in response.topics] == [0, 0, ErrorCode.POLICY_VIOLATION]


async def test_a_topic_grows_as_far_as_the_cluster_has_room(world: World) -> None:
    server = await world.start(streams_max=4)
    await server.create("t", 2)
    client = await server.connect()
    codes: list[int] = []
    for count in (5, 2, 4):
        asked = [CreatePartitionsRequestTopic(name="t", count=count)]
        response = await client.ask(CreatePartitionsRequest(topics=asked, timeout_ms=10_000))
        codes.append(response.results[0].error_code)
    assert codes == [ErrorCode.POLICY_VIOLATION, ErrorCode.INVALID_PARTITIONS, 0]
    assert len(server.broker.state.topics["t"].partitions) == 4


async def test_who_led_a_new_stream_and_forgot_its_log_does_not_lead_the_same_term_again(world: World) -> None:
    """What it sent then may be on other nodes' disks: other entries of that term would be taken for it."""
    server = await world.start()
    node, me = server.broker.node, server.broker.settings.node_id
    node._store.stores[0]._votes[77] = StoredVote(1, me)  # as a crash leaves it before the stream's files are made
    again = node.begin(77, [me], TopicConfig.of({}))
    first = node.begin(78, [me], TopicConfig.of({}))
    await until(lambda: again.ready and first.ready)
    assert (again.group.term, first.group.term) == (2, 1)
    member = node.begin(79, [me + 1, me], TopicConfig.of({}))
    assert (member.group.term, member.group.role) == (1, Role.FOLLOWER), "the first term is another's"
