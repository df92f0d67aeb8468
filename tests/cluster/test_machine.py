"""The cluster's state machine: every command, every rejection, and the same state by replay or by snapshot."""

import json
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cluster import (
    CLUSTER_STREAM,
    AddPartitions,
    AllotProducerIds,
    AlterNodeConfigs,
    AlterTopicConfigs,
    Applied,
    ClusterState,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    Machine,
    Node,
    Partition,
    RegisterNode,
    Rejection,
    Snapshot,
    UnknownCommandError,
    decode_command,
    encode_command,
)

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)

EVERY_COMMAND: list[Command] = [
    FoundCluster("cluster-1"),
    RegisterNode(1, "host", 9092),
    RegisterNode(2, "größe", 9093, "rack-b"),
    CreateTopic("a", A, [[1], [2, 1]], {"retention.ms": "5"}),
    CreateTopic("__groups", B, [[1]], {}, internal=True),
    AddPartitions(A, 2, [[2], [1]]),
    AlterTopicConfigs(A, {"retention.ms": None, "max.message.bytes": "100"}),
    AlterNodeConfigs("", {"topic.partitions": "3"}),
    AlterNodeConfigs("1", {"topic.partitions": "4", "topic.auto.create": None}),
    AllotProducerIds(1_000),
    DeleteTopic(B),
]


def _machine(*commands: Command) -> Machine:
    machine = Machine()
    for command in commands:
        assert machine.apply(command).rejection is None, command
    return machine


def _streams(state: ClusterState) -> list[int]:
    return [partition.stream for topic in state.topics.values() for partition in topic.partitions]


# --- each command ----------------------------------------------------------------------------------------------------


def test_the_first_founding_names_the_cluster_for_ever() -> None:
    machine = _machine(FoundCluster("first"), FoundCluster("second"))
    assert machine.state.cluster_id == "first"


def test_a_node_that_registers_again_has_moved() -> None:
    machine = _machine(RegisterNode(1, "old", 1, "a"), RegisterNode(2, "other", 2), RegisterNode(1, "new", 3, "b"))
    assert machine.state.nodes == {1: Node(1, "new", 3, "b"), 2: Node(2, "other", 2)}


def test_a_topic_gets_streams_of_its_own() -> None:
    machine = Machine()
    applied = machine.apply(CreateTopic("a", A, [[1, 2], [2, 3]], {"retention.ms": "5"}))
    assert applied.created == (Partition(1, (1, 2)), Partition(2, (2, 3)))
    topic = machine.state.topics["a"]
    assert topic is machine.state.topics_by_id[A] is applied.topic
    assert (topic.name, topic.id, dict(topic.configs), topic.internal) == ("a", A, {"retention.ms": "5"}, False)
    assert CLUSTER_STREAM not in _streams(machine.state)


@pytest.mark.parametrize(
    ("second", "why"), [(CreateTopic("a", B, [[1]], {}), "name"), (CreateTopic("b", A, [[1]], {}), "id")]
)
def test_a_topic_whose_name_or_id_is_taken_is_rejected_and_changes_nothing(second: CreateTopic, why: str) -> None:
    machine = _machine(CreateTopic("a", A, [[1]], {}))
    before = machine.state.to_json()
    assert machine.apply(second) == Applied(Rejection.TOPIC_EXISTS), why
    assert machine.state.to_json() == before


def test_a_deleted_topic_is_gone_by_name_and_id() -> None:
    machine = _machine(CreateTopic("a", A, [[1], [1]], {}), CreateTopic("b", B, [[1]], {}))
    applied = machine.apply(DeleteTopic(A))
    assert [partition.stream for partition in applied.deleted] == [1, 2]
    assert applied.topic is not None
    assert applied.topic.name == "a"
    assert list(machine.state.topics) == ["b"]
    assert list(machine.state.topics_by_id) == [B]


def test_partitions_are_added_behind_those_that_are_there() -> None:
    machine = _machine(CreateTopic("a", A, [[1]], {"retention.ms": "5"}), CreateTopic("b", B, [[1]], {}))
    applied = machine.apply(AddPartitions(A, 1, [[2], [3]]))
    assert applied.created == (Partition(3, (2,)), Partition(4, (3,)))
    topic = machine.state.topics["a"]
    assert [partition.stream for partition in topic.partitions] == [1, 3, 4]
    assert dict(topic.configs) == {"retention.ms": "5"}
    assert machine.state.topics_by_id[A] is topic


def test_two_requests_for_more_partitions_made_at_once_do_not_add_twice() -> None:
    machine = _machine(CreateTopic("a", A, [[1]], {}), AddPartitions(A, 1, [[1]]))
    before = machine.state.to_json()
    assert machine.apply(AddPartitions(A, 1, [[1]])) == Applied(Rejection.PARTITIONS_CHANGED)
    assert machine.state.to_json() == before


@pytest.mark.parametrize(
    "command", [DeleteTopic(C), AddPartitions(C, 1, [[1]]), AlterTopicConfigs(C, {"retention.ms": "1"})]
)
def test_a_topic_that_is_not_there_cannot_be_changed(command: Command) -> None:
    machine = _machine(CreateTopic("a", A, [[1]], {}))
    before = machine.state.to_json()
    assert machine.apply(command) == Applied(Rejection.TOPIC_UNKNOWN)
    assert machine.state.to_json() == before


def test_settings_of_a_topic_are_merged_and_none_takes_one_back() -> None:
    machine = _machine(
        CreateTopic("a", A, [[1]], {"retention.ms": "1", "retention.bytes": "2"}),
        AlterTopicConfigs(A, {"retention.ms": None, "max.message.bytes": "3", "cleanup.policy": None}),
    )
    expected = {"retention.bytes": "2", "max.message.bytes": "3"}
    assert dict(machine.state.topics["a"].configs) == expected
    assert dict(machine.state.topics_by_id[A].configs) == expected


def test_settings_of_nodes_are_merged_for_each_node_and_for_all() -> None:
    machine = _machine(
        AlterNodeConfigs("", {"x": "1", "y": "2"}),
        AlterNodeConfigs("7", {"x": "3"}),
        AlterNodeConfigs("", {"x": None}),
    )
    assert machine.state.node_configs == {"": {"y": "2"}, "7": {"x": "3"}}


def test_producer_ids_are_allotted_in_blocks_that_never_meet() -> None:
    machine = Machine()
    firsts = [machine.apply(AllotProducerIds(count)).first_producer_id for count in (10, 1, 1_000, 10)]
    assert firsts == [0, 10, 11, 1_011]


def test_a_value_handed_out_before_does_not_change_with_the_state() -> None:
    """Whoever holds a topic while another command is applied keeps what it was."""
    machine = _machine(CreateTopic("a", A, [[1]], {"retention.ms": "1"}))
    held = machine.state.topics["a"]
    machine.apply(AlterTopicConfigs(A, {"retention.ms": "2"}))
    machine.apply(AddPartitions(A, 1, [[1]]))
    assert dict(held.configs) == {"retention.ms": "1"}
    assert len(held.partitions) == 1


# --- stream numbers --------------------------------------------------------------------------------------------------

_TOPIC_IDS = st.integers(1, 4).map(lambda number: UUID(int=number))
_COMMANDS = st.lists(
    st.one_of(
        st.builds(
            CreateTopic,
            st.sampled_from("abcd"),
            _TOPIC_IDS,
            st.lists(st.just([1]), min_size=1, max_size=3),
            st.just({}),
        ),
        st.builds(DeleteTopic, _TOPIC_IDS),
        st.builds(AddPartitions, _TOPIC_IDS, st.integers(1, 4), st.lists(st.just([1]), min_size=1, max_size=2)),
        st.builds(AlterTopicConfigs, _TOPIC_IDS, st.dictionaries(st.sampled_from("xy"), st.none() | st.just("1"))),
        st.builds(
            AlterNodeConfigs, st.sampled_from(["", "1"]), st.dictionaries(st.just("z"), st.none() | st.just("2"))
        ),
        st.builds(AllotProducerIds, st.integers(1, 5)),
        st.builds(RegisterNode, st.integers(1, 3), st.just("h"), st.integers(1, 9), st.none() | st.just("r")),
    ),
    max_size=30,
)


@given(_COMMANDS)
def test_no_stream_number_is_ever_given_out_twice(commands: list[Command]) -> None:
    machine, given_out = Machine(), [CLUSTER_STREAM]
    for command in commands:
        given_out += [partition.stream for partition in machine.apply(command).created]
    assert len(set(given_out)) == len(given_out)
    assert set(_streams(machine.state)) <= set(given_out)


@given(_COMMANDS, _COMMANDS)
def test_a_snapshot_at_any_place_gives_the_same_state(before: list[Command], after: list[Command]) -> None:
    """One machine applies everything, the other begins at the snapshot, through the bytes of the log."""
    whole = Machine()
    for command in before:
        whole.apply(command)
    fresh = Machine()
    fresh.apply(decode_command(encode_command(whole.snapshot())))
    assert fresh.state == whole.state
    for command in after:
        assert fresh.apply(command) == whole.apply(decode_command(encode_command(command)))
    assert fresh.state == whole.state
    assert fresh.state.to_json() == whole.state.to_json()


@given(_COMMANDS)
def test_by_name_and_by_id_there_are_the_same_topics(commands: list[Command]) -> None:
    machine = Machine()
    for command in commands:
        machine.apply(command)
        state = machine.state
        assert {topic.id: topic for topic in state.topics.values()} == state.topics_by_id
        assert all(name == topic.name for name, topic in state.topics.items())


def test_a_snapshot_does_not_change_with_the_state_it_was_taken_of() -> None:
    machine = _machine(*EVERY_COMMAND)
    snapshot = machine.snapshot()
    before = json.dumps(snapshot.state, sort_keys=True)
    machine.apply(AlterNodeConfigs("1", {"topic.partitions": "9"}))
    machine.apply(AlterNodeConfigs("5", {"topic.partitions": "9"}))
    assert json.dumps(snapshot.state, sort_keys=True) == before


# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", EVERY_COMMAND, ids=lambda command: type(command).__name__)
def test_a_command_survives_its_record(command: Command) -> None:
    assert decode_command(encode_command(command)) == command


def test_the_state_survives_json() -> None:
    state = _machine(*EVERY_COMMAND).state
    again = ClusterState.from_json(json.loads(json.dumps(state.to_json())))
    assert again == state
    assert decode_command(encode_command(Snapshot(state.to_json()))) == Snapshot(
        json.loads(json.dumps(state.to_json()))
    )


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"not json",
        b"[]",
        b"null",
        b"7",
        b'"found-cluster"',
        b"{}",
        b'{"do":"fly"}',
        b'{"do":null}',
        b'{"do":["found-cluster"]}',
        b'{"do":"found-cluster"}',
        b'{"do":"found-cluster","cluster_id":"x","since":4}',
        b'{"do":"delete-topic","id":"xyz"}',
        b'{"do":"delete-topic","id":7}',
        b"\xff\xfe",
    ],
)
def test_a_record_that_this_version_cannot_read_is_an_unknown_command(record: bytes) -> None:
    with pytest.raises(UnknownCommandError):
        decode_command(record)
