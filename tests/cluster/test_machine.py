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
    AssignReplicas,
    ClusterState,
    Command,
    CreateTopic,
    DeleteTopic,
    FoundCluster,
    Machine,
    Node,
    NoteLeaders,
    Partition,
    ReadmitReplicas,
    RegisterNode,
    Rejection,
    RemoveNode,
    SetConfigNodes,
    SetDraining,
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
    RegisterNode(3, "c", 9092, None, "c-peers", 9192, ("data",), "disk-3"),
    CreateTopic("c", C, [[1, 2], [2, 1]], {}, start_offsets=(5, 0)),
    NoteLeaders(((1, 1, 4, 17, (1,), (2,)), (3, 2, 1, 1, (2,), ()))),
    AssignReplicas(((1, (1,), (1, 2)), (2, (2, 1), (2, 3)))),
    SetConfigNodes((1, 2)),
    SetDraining(3, True),
    RegisterNode(3, "c", 9092, None, "c-peers", 9192, ("data",), "disk-3b"),
    ReadmitReplicas(((2, 3), (CLUSTER_STREAM, 3))),
    RegisterNode(4, "d", 9092),
    RemoveNode(4),
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


FOUNDED: list[Command] = [FoundCluster("cluster"), *(RegisterNode(node, f"host-{node}", 9092) for node in (1, 2, 3))]


def _founded(*commands: Command) -> Machine:
    return _machine(*FOUNDED, *commands)


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
    machine = _founded()
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
    machine = _founded(CreateTopic("a", A, [[1]], {}))
    before = machine.state.to_json()
    assert machine.apply(second) == Applied(Rejection.TOPIC_EXISTS), why
    assert machine.state.to_json() == before


def test_a_deleted_topic_is_gone_by_name_and_id() -> None:
    machine = _founded(CreateTopic("a", A, [[1], [1]], {}), CreateTopic("b", B, [[1]], {}))
    applied = machine.apply(DeleteTopic(A))
    assert [partition.stream for partition in applied.deleted] == [1, 2]
    assert applied.topic is not None
    assert applied.topic.name == "a"
    assert list(machine.state.topics) == ["b"]
    assert list(machine.state.topics_by_id) == [B]


def test_partitions_are_added_behind_those_that_are_there() -> None:
    machine = _founded(CreateTopic("a", A, [[1]], {"retention.ms": "5"}), CreateTopic("b", B, [[1]], {}))
    applied = machine.apply(AddPartitions(A, 1, [[2], [3]]))
    assert applied.created == (Partition(3, (2,)), Partition(4, (3,)))
    topic = machine.state.topics["a"]
    assert [partition.stream for partition in topic.partitions] == [1, 3, 4]
    assert dict(topic.configs) == {"retention.ms": "5"}
    assert machine.state.topics_by_id[A] is topic


def test_two_requests_for_more_partitions_made_at_once_do_not_add_twice() -> None:
    machine = _founded(CreateTopic("a", A, [[1]], {}), AddPartitions(A, 1, [[1]]))
    before = machine.state.to_json()
    assert machine.apply(AddPartitions(A, 1, [[1]])) == Applied(Rejection.PARTITIONS_CHANGED)
    assert machine.state.to_json() == before


@pytest.mark.parametrize(
    "command", [DeleteTopic(C), AddPartitions(C, 1, [[1]]), AlterTopicConfigs(C, {"retention.ms": "1"})]
)
def test_a_topic_that_is_not_there_cannot_be_changed(command: Command) -> None:
    machine = _founded(CreateTopic("a", A, [[1]], {}))
    before = machine.state.to_json()
    assert machine.apply(command) == Applied(Rejection.TOPIC_UNKNOWN)
    assert machine.state.to_json() == before


def test_settings_of_a_topic_are_merged_and_none_takes_one_back() -> None:
    machine = _founded(
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
    machine = _founded(CreateTopic("a", A, [[1]], {"retention.ms": "1"}))
    held = machine.state.topics["a"]
    machine.apply(AlterTopicConfigs(A, {"retention.ms": "2"}))
    machine.apply(AddPartitions(A, 1, [[1]]))
    assert dict(held.configs) == {"retention.ms": "1"}
    assert len(held.partitions) == 1


# --- founding --------------------------------------------------------------------------------------------------------


def test_a_cluster_is_founded_when_every_config_server_has_registered() -> None:
    machine = Machine()
    steps: list[Command] = [FoundCluster("c", (1, 2)), RegisterNode(3, "h", 1), RegisterNode(2, "h", 1)]
    for step in steps:
        machine.apply(step)
        assert not machine.state.founded
        assert machine.apply(CreateTopic("a", A, [[3]], {})) == Applied(Rejection.NOT_FOUNDED)
        assert machine.apply(SetConfigNodes((3,))) == Applied(Rejection.NOT_FOUNDED)
    machine.apply(RegisterNode(1, "h", 1))
    assert machine.state.founded
    assert machine.apply(CreateTopic("a", A, [[3]], {})).rejection is None


def test_a_second_founding_does_not_change_the_config_servers() -> None:
    machine = _machine(FoundCluster("first", (1, 2, 3)), FoundCluster("second", (4,)))
    assert machine.state.config_nodes == (1, 2, 3)


def test_a_cluster_without_a_name_is_not_founded() -> None:
    assert not _machine(RegisterNode(1, "h", 1)).state.founded


@pytest.mark.parametrize("nodes", [(), (1, 9)])
def test_config_servers_must_be_nodes_that_are_known(nodes: tuple[int, ...]) -> None:
    machine = _founded(SetConfigNodes((1, 2, 1)))
    assert machine.apply(SetConfigNodes(nodes)) == Applied(Rejection.NODE_UNKNOWN)
    assert machine.state.config_nodes == (1, 2)


def test_a_topic_cannot_be_put_on_a_node_that_is_not_known() -> None:
    """It may have been removed while the command was on its way."""
    machine = _founded(CreateTopic("a", A, [[1]], {}))
    before = machine.state.to_json()
    assert machine.apply(CreateTopic("b", B, [[1], [1, 9]], {})) == Applied(Rejection.NODE_UNKNOWN)
    assert machine.apply(AddPartitions(A, 1, [[9]])) == Applied(Rejection.NODE_UNKNOWN)
    assert machine.state.to_json() == before


def test_a_restored_topic_begins_where_it_is_told() -> None:
    applied = _founded().apply(CreateTopic("a", A, [[1], [2], [3]], {}, start_offsets=(7, 8)))
    assert [partition.start_offset for partition in applied.created] == [7, 8, 0]


# --- replicas --------------------------------------------------------------------------------------------------------


def _topic(machine: Machine, number: int = 0) -> Partition:
    return machine.state.topics["a"].partitions[number]


def _reported(voters: tuple[int, ...], learners: tuple[int, ...] = (), *, term: int = 1, index: int = 1) -> NoteLeaders:
    return NoteLeaders([(1, voters[0], term, index, voters, learners)])


def test_a_partition_begins_with_its_replicas_as_voters_though_nobody_reported_yet() -> None:
    machine = _founded(CreateTopic("a", A, [[2, 1]], {}))
    partition = _topic(machine)
    assert (partition.initial, partition.members, partition.voters) == ((2, 1), (2, 1), ())
    assert (partition.leader, partition.term) == (-1, -1)


@pytest.mark.parametrize(
    ("term", "index", "taken"),
    [(5, 10, True), (5, 11, True), (6, 1, True), (5, 9, False), (4, 99, False)],
)
def test_a_report_older_than_what_is_known_changes_nothing(term: int, index: int, *, taken: bool) -> None:
    machine = _founded(CreateTopic("a", A, [[1, 2, 3]], {}), _reported((1, 2, 3), term=5, index=10))
    applied = machine.apply(NoteLeaders([(1, 2, term, index, (1, 2), (3,)), (77, 1, 9, 9, (1,), ())]))
    assert applied.rejection is None
    assert [partition.stream for partition in applied.changed] == ([1] if taken else [])
    partition = _topic(machine)
    assert (partition.leader, partition.voters, partition.learners) == (
        (2, (1, 2), (3,)) if taken else (1, (1, 2, 3), ())
    )


def test_a_report_that_says_nothing_new_changes_nothing() -> None:
    machine = _founded(CreateTopic("a", A, [[1, 2]], {}), _reported((1, 2)))
    topic = machine.state.topics["a"]
    assert machine.apply(_reported((1, 2))) == Applied()
    assert machine.state.topics["a"] is topic


def test_a_node_that_is_new_among_the_replicas_is_a_newcomer() -> None:
    machine = _founded(CreateTopic("a", A, [[1, 2], [1, 2]], {}), _reported((1, 2)))
    applied = machine.apply(AssignReplicas([(1, (1, 2), (1, 3))]))
    assert applied.changed == (_topic(machine),)
    partition = _topic(machine)
    assert (partition.replicas, partition.newcomers, partition.initial) == ((1, 3), (3,), (1, 2))
    assert _topic(machine, 1).replicas == (1, 2)
    machine.apply(AssignReplicas([(1, (1, 3), (2, 1))]))
    assert (_topic(machine).replicas, _topic(machine).newcomers) == ((2, 1), (2,))


def test_replicas_assigned_twice_at_once_are_assigned_once() -> None:
    machine = _founded(CreateTopic("a", A, [[1, 2], [1, 2]], {}))
    machine.apply(AssignReplicas([(1, (1, 2), (1, 3))]))
    before = machine.state.to_json()
    assert machine.apply(AssignReplicas([(1, (1, 2), (3, 2)), (9, (1,), (2,))])) == Applied(Rejection.CHANGED)
    assert machine.state.to_json() == before
    applied = machine.apply(AssignReplicas([(1, (1, 2), (3, 2)), (2, (1, 2), (2, 1))]))
    assert applied.changed == (_topic(machine, 1),)
    assert (_topic(machine, 1).replicas, _topic(machine, 1).newcomers) == ((2, 1), ())


@pytest.mark.parametrize("replicas", [(), (1, 9)])
def test_replicas_must_be_nodes_that_are_known(replicas: tuple[int, ...]) -> None:
    machine = _founded(CreateTopic("a", A, [[1, 2]], {}))
    before = machine.state.to_json()
    assert machine.apply(AssignReplicas([(1, (1, 2), replicas)])) == Applied(Rejection.NODE_UNKNOWN)
    assert machine.state.to_json() == before


# --- lost disks ------------------------------------------------------------------------------------------------------


def _with_disks() -> Machine:
    machine = _machine(FoundCluster("c"), *(RegisterNode(n, "h", 1, directory=f"disk-{n}") for n in (1, 2, 3, 4)))
    machine.apply(CreateTopic("a", A, [[1, 2, 3], [1, 2, 4]], {}))
    return machine


@pytest.mark.parametrize("directory", ["disk-3", ""])
def test_a_node_that_comes_back_with_its_disk_lost_nothing(directory: str) -> None:
    machine = _with_disks()
    assert machine.apply(RegisterNode(3, "elsewhere", 1, directory=directory)) == Applied()
    assert (machine.state.nodes[3].directory, _topic(machine).absent, machine.state.absent) == ("disk-3", (), ())


def test_a_node_whose_disk_has_its_first_name_lost_nothing() -> None:
    """The first versions did not name disks."""
    machine = _founded(CreateTopic("a", A, [[1, 2, 3]], {}), RegisterNode(3, "h", 1, directory="disk-3"))
    assert (machine.state.nodes[3].directory, _topic(machine).absent) == ("disk-3", ())


def test_a_node_that_comes_back_with_another_disk_is_absent_from_all_it_held() -> None:
    machine = _with_disks()
    applied = machine.apply(RegisterNode(3, "h", 1, directory="new"))
    assert [partition.stream for partition in applied.changed] == [1]
    assert (_topic(machine).replicas, _topic(machine).absent, _topic(machine, 1).absent) == ((1, 2, 3), (3,), ())
    assert machine.state.absent == (3,)


def test_a_lost_disk_is_readmitted_only_when_its_group_has_let_go_of_it() -> None:
    machine = _with_disks()
    machine.apply(RegisterNode(3, "h", 1, directory="new"))
    readmit = ReadmitReplicas([(1, 3)])
    assert machine.apply(readmit) == Applied(Rejection.CHANGED), "it was among the first voters, and nobody reported"
    machine.apply(_reported((1, 2, 3)))
    assert machine.apply(readmit) == Applied(Rejection.CHANGED)
    machine.apply(_reported((1, 2), (3,), index=2))
    assert machine.apply(readmit) == Applied(Rejection.CHANGED)
    assert _topic(machine).absent == (3,)
    machine.apply(_reported((1, 2), index=3))
    assert machine.apply(readmit).changed == (_topic(machine),)
    assert (_topic(machine).absent, _topic(machine).newcomers) == ((), (3,))
    assert machine.apply(readmit) == Applied(Rejection.CHANGED)


def test_a_newcomer_that_loses_its_disk_again_is_absent_again() -> None:
    machine = _with_disks()
    machine.apply(_reported((1, 2)))
    machine.apply(RegisterNode(3, "h", 1, directory="new"))
    machine.apply(ReadmitReplicas([(1, 3)]))
    machine.apply(RegisterNode(3, "h", 1, directory="newer"))
    assert (_topic(machine).absent, _topic(machine).newcomers) == ((3,), ())


def test_a_lost_disk_stays_absent_when_the_stream_is_moved_away_and_back_meanwhile() -> None:
    """Otherwise it would begin again as a newcomer while the group still counts on its vote."""
    machine = _with_disks()
    machine.apply(_reported((1, 2, 3)))
    machine.apply(RegisterNode(3, "h", 1, directory="new"))
    machine.apply(AssignReplicas([(1, (1, 2, 3), (1, 2, 4))]))
    assert (_topic(machine).absent, _topic(machine).newcomers) == ((3,), (4,))
    machine.apply(AssignReplicas([(1, (1, 2, 4), (1, 2, 3))]))
    assert (_topic(machine).absent, _topic(machine).newcomers) == ((3,), ())


def test_a_disk_lost_while_the_stream_is_being_moved_off_it_is_absent_too() -> None:
    machine = _with_disks()
    machine.apply(_reported((1, 2, 3)))
    machine.apply(AssignReplicas([(1, (1, 2, 3), (1, 2, 4))]))
    machine.apply(RegisterNode(3, "h", 1, directory="new"))
    assert _topic(machine).absent == (3,)
    machine.apply(_reported((1, 2, 4), index=2))
    assert _topic(machine).absent == ()


def test_a_config_server_that_lost_its_disk_is_absent_until_it_is_readmitted() -> None:
    machine = _with_disks()
    machine.apply(RegisterNode(3, "h", 1, directory="new"))
    assert machine.apply(ReadmitReplicas([(CLUSTER_STREAM, 3)])) == Applied()
    assert machine.state.absent == ()
    assert machine.apply(ReadmitReplicas([(CLUSTER_STREAM, 3)])) == Applied(Rejection.CHANGED)


# --- nodes that leave ------------------------------------------------------------------------------------------------


def test_a_node_drains_until_told_otherwise_also_when_it_restarts() -> None:
    machine = _founded(SetDraining(2, True), RegisterNode(2, "moved", 5))
    assert (machine.state.nodes[2].draining, machine.state.nodes[2].host) == (True, "moved")
    machine.apply(SetDraining(2, False))
    assert not machine.state.nodes[2].draining
    assert machine.apply(SetDraining(9, True)) == Applied(Rejection.NODE_UNKNOWN)


@pytest.mark.parametrize(
    "use",
    [
        [SetConfigNodes((1, 3))],
        [CreateTopic("a", A, [[1, 3]], {})],
        [CreateTopic("a", A, [[1, 3]], {}), AssignReplicas([(1, (1, 3), (1, 2))])],
        [CreateTopic("a", A, [[1]], {}), _reported((1, 3))],
        [CreateTopic("a", A, [[1]], {}), _reported((1,), (3,))],
    ],
)
def test_a_node_that_something_counts_on_cannot_be_removed(use: list[Command]) -> None:
    machine = _founded(*use)
    assert machine.apply(RemoveNode(3)) == Applied(Rejection.NODE_IN_USE)
    assert 3 in machine.state.nodes


def test_a_node_that_nothing_counts_on_is_removed_and_is_a_stranger_when_it_returns() -> None:
    machine = _founded(CreateTopic("a", A, [[1, 3]], {}), AlterNodeConfigs("3", {"x": "1"}))
    machine.apply(AssignReplicas([(1, (1, 3), (1, 2))]))
    machine.apply(_reported((1, 2)))
    assert machine.apply(RemoveNode(3)) == Applied()
    assert 3 not in machine.state.nodes
    assert machine.state.node_configs == {}
    assert machine.state.absent == (3,), "the cluster's own group may still name it"
    assert machine.apply(RemoveNode(3)) == Applied(Rejection.NODE_UNKNOWN)


def test_a_deleted_topic_counts_on_nobody() -> None:
    machine = _founded(CreateTopic("a", A, [[1, 3]], {}), DeleteTopic(A))
    assert machine.apply(RemoveNode(3)) == Applied()


# --- stream numbers --------------------------------------------------------------------------------------------------

_TOPIC_IDS = st.integers(1, 4).map(lambda number: UUID(int=number))
_STREAMS = st.integers(1, 6)
_NODES = st.lists(st.integers(1, 4), max_size=3, unique=True).map(tuple)
_COMMANDS = st.lists(
    st.one_of(
        st.builds(
            CreateTopic,
            st.sampled_from("abcd"),
            _TOPIC_IDS,
            st.lists(st.sampled_from([[1], [2, 1], [1, 2, 3]]), min_size=1, max_size=3),
            st.just({}),
        ),
        st.builds(DeleteTopic, _TOPIC_IDS),
        st.builds(AddPartitions, _TOPIC_IDS, st.integers(1, 4), st.lists(st.just([1]), min_size=1, max_size=2)),
        st.builds(AlterTopicConfigs, _TOPIC_IDS, st.dictionaries(st.sampled_from("xy"), st.none() | st.just("1"))),
        st.builds(
            AlterNodeConfigs, st.sampled_from(["", "1"]), st.dictionaries(st.just("z"), st.none() | st.just("2"))
        ),
        st.builds(AllotProducerIds, st.integers(1, 5)),
        st.builds(
            RegisterNode,
            st.integers(1, 4),
            st.just("h"),
            st.integers(1, 9),
            st.none() | st.just("r"),
            directory=st.sampled_from(["", "x", "y"]),
        ),
        st.builds(
            NoteLeaders,
            st.lists(
                st.tuples(_STREAMS, st.integers(-1, 4), st.integers(1, 3), st.integers(1, 3), _NODES, _NODES),
                max_size=3,
            ),
        ),
        st.builds(AssignReplicas, st.lists(st.tuples(_STREAMS, _NODES, _NODES), max_size=3)),
        st.builds(ReadmitReplicas, st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=3)),
        st.builds(SetDraining, st.integers(1, 4), st.booleans()),
        st.builds(RemoveNode, st.integers(1, 4)),
        st.builds(SetConfigNodes, _NODES),
    ),
    max_size=30,
)


@given(_COMMANDS)
def test_no_stream_number_is_ever_given_out_twice(commands: list[Command]) -> None:
    machine, given_out = _founded(), [CLUSTER_STREAM]
    for command in commands:
        given_out += [partition.stream for partition in machine.apply(command).created]
    assert len(set(given_out)) == len(given_out)
    assert set(_streams(machine.state)) <= set(given_out)


@given(_COMMANDS, _COMMANDS)
def test_a_snapshot_at_any_place_gives_the_same_state(before: list[Command], after: list[Command]) -> None:
    """One machine applies everything, the other begins at the snapshot, through the bytes of the log."""
    whole = _founded()
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
    machine = _founded()
    for command in commands:
        machine.apply(command)
        state = machine.state
        assert {topic.id: topic for topic in state.topics.values()} == state.topics_by_id
        assert all(name == topic.name for name, topic in state.topics.items())


@given(_COMMANDS)
def test_every_stream_is_found_by_its_number_and_every_use_of_a_node_is_counted(commands: list[Command]) -> None:
    machine = _founded()
    for command in commands:
        machine.apply(command)
        state, uses = machine.state, dict.fromkeys(range(1, 5), 0)
        for topic in state.topics.values():
            for number, partition in enumerate(topic.partitions):
                assert state.partition_of(partition.stream) == (topic, number)
                for node in partition.replicas + partition.members:
                    uses[node] += 1
        assert {node: state.uses(node) for node in uses} == uses
        assert all(state.partition_of(stream) is None for stream in {*range(20)} - {*_streams(state)})


@given(_COMMANDS)
def test_what_a_partition_says_of_its_nodes_agrees(commands: list[Command]) -> None:
    machine = _founded()
    for command in commands:
        before = {p.stream: p for topic in machine.state.topics.values() for p in topic.partitions}
        machine.apply(command)
        for topic in machine.state.topics.values():
            for p in topic.partitions:
                assert len(set(p.replicas)) == len(p.replicas)
                assert set(p.newcomers) <= set(p.replicas)
                assert set(p.absent) <= {*p.replicas, *p.members}
                assert not set(p.newcomers) & set(p.absent)
                assert set(p.replicas) <= {*p.initial, *p.newcomers, *p.absent}
                known = before.get(p.stream, p)
                assert p.initial == known.initial
                assert (p.term, p.configuration_index) >= (known.term, known.configuration_index)
                let_go = set(known.absent) - set(p.absent)
                assert not let_go & set(p.members), "it is still counted on"


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


# --- what earlier versions wrote -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "command"),
    [
        (b'{"do":"found-cluster","cluster_id":"x"}', FoundCluster("x", ())),
        (
            b'{"do":"register-node","node":1,"host":"h","port":9092,"rack":null}',
            RegisterNode(1, "h", 9092, None, "", 0, ("config", "data"), ""),
        ),
        (
            b'{"do":"create-topic","name":"a","id":"00000000000000000000000000000001","replicas":[[1]],'
            b'"configs":{},"internal":false}',
            CreateTopic("a", A, [[1]], {}, internal=False, start_offsets=()),
        ),
    ],
)
def test_records_of_the_first_version_are_read(record: bytes, command: Command) -> None:
    assert decode_command(record) == command


def test_a_snapshot_of_the_first_version_is_read() -> None:
    state = ClusterState.from_json(
        {
            "cluster_id": "x",
            "nodes": [[1, "h", 9092, "r"]],
            "topics": [
                {"name": "a", "id": A.hex, "partitions": [[4, [1]], [6, [1]]], "configs": {}, "internal": False}
            ],
            "node_configs": {"": {"y": "2"}},
            "next_stream": 7,
            "next_producer_id": 1_000,
        }
    )
    assert state.founded
    assert (state.nodes, state.config_nodes, state.absent) == ({1: Node(1, "h", 9092, "r")}, (), ())
    assert state.topics["a"].partitions == (Partition(4, (1,), initial=(1,)), Partition(6, (1,), initial=(1,)))
    assert state.partition_of(6) == (state.topics["a"], 1)
    assert ClusterState.from_json(json.loads(json.dumps(state.to_json()))) == state
