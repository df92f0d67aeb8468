"""Membership changes as a table, and the bytes of a configuration."""

import pytest

from tests.raft.tables import cases
from tidelog.raft import Action, Change, Configuration, ConfigurationError, quorum_after
from tidelog.raft.configuration import MEMBERS_MAX, change, enter_joint, leave_joint

ACTIONS = {"+": Action.ADD_VOTER, "~": Action.ADD_LEARNER, "-": Action.REMOVE}


def test_membership_changes_as_the_table_says() -> None:
    configuration = Configuration.of([1])
    for case in cases("membership_change.txt"):
        try:
            if case.command == "start":
                configuration = Configuration.of(case.numbers("voters"), case.numbers("learners"))
            elif case.command == "change":
                steps = [Change(ACTIONS[step[0]], int(step[1:])) for step in case.arguments["steps"]]
                configuration = change(configuration, steps)
            else:
                configuration = leave_joint(configuration)
            outcome = str(configuration)
        except ConfigurationError as error:
            outcome = f"refused: {error}"
        assert outcome == case.expected, case.place


@pytest.mark.parametrize(
    ("voters", "changes", "healthy", "kept"),
    [
        ([1, 2, 3], "-3", {1, 2}, True),
        ([1, 2, 3], "-3", {1, 3}, False),  # of 1 and 2 only one
        ([1, 2, 3], "-3", {2, 3}, False),
        ([1, 2, 3], "+4 -3", {1, 2}, True),
        ([1, 2, 3], "+4 -3", {1, 4}, False),  # the joint configuration needs two of 1, 2, 3
        ([1, 2, 3], "+4 -3", {1, 3}, False),  # the new one needs two of 1, 2, 4
        ([1, 2, 3], "+4 -3", {1, 3, 4}, True),
        ([1, 2, 3], "+4", {1, 2}, False),
        ([1, 2, 3], "+4", {1, 2, 3}, True),
        ([1, 2, 3], "~4", {1, 2}, True),  # learners have no say
        ([1, 2, 3], "~4", {1, 4}, False),
        ([1, 2, 3], "~3", {1, 2}, True),
        ([1], "+2 -1", {1, 2}, True),
        ([1], "+2 -1", {2}, False),
        ([1], "+1", {1}, True),  # nothing to do
        ([1, 2, 3], "", {9}, False),
    ],
)
def test_quorum_after_a_change(voters: list[int], changes: str, healthy: set[int], kept: bool) -> None:
    steps = [Change(ACTIONS[step[0]], int(step[1:])) for step in changes.split()]
    assert quorum_after(Configuration.of(voters), steps, healthy) is kept


def test_quorum_after_no_valid_change_is_no_question() -> None:
    with pytest.raises(ConfigurationError, match="at least one voter"):
        quorum_after(Configuration.of([1]), [Change(Action.REMOVE, 1)], {1})


def test_joint_configurations_do_not_nest() -> None:
    plain, joint = Configuration.of([1]), Configuration((2,), outgoing=(1,))
    for old, new in ((joint, plain), (plain, joint)):
        with pytest.raises(ConfigurationError, match="leads from a plain one to a plain one"):
            enter_joint(old, new)


def test_outgoing_voters_vote_and_learners_do_not() -> None:
    configuration = Configuration((2, 3), outgoing=(1, 2), learners=(1, 4))
    assert [node for node in range(6) if configuration.votes(node)] == [1, 2, 3]
    assert configuration.members == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration.of([0]),
        Configuration.of([5, 3, 2**31 - 1], learners=[9, 8]),
        Configuration((4, 5), outgoing=(1, 2, 3), learners=(1,)),
    ],
)
def test_bytes_of_a_configuration_give_it_back(configuration: Configuration) -> None:
    assert Configuration.decode(memoryview(configuration.encode())) == configuration


def test_bytes_of_a_configuration_are_as_documented() -> None:
    configuration = Configuration((1, 2), outgoing=(3,), learners=(4,))
    assert configuration.encode().hex(" ", -4) == ("01000200 01000100 00000100 00000200 00000300 000004"), (
        "version, three counts, four node ids"
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too short"),
        (b"\x02\0\1\0\0\0\0\0\0\0\1", "version 2 is unknown"),
        (b"\x01\0\2\0\0\0\0\0\0\0\1", "2 nodes cannot have 11 bytes"),
        (b"\x01\0\0\0\0\0\0", "at least one voter"),
    ],
)
def test_bytes_that_are_no_configuration_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Configuration.decode(data)


def test_members_are_bounded() -> None:
    Configuration.of([0], range(1, MEMBERS_MAX))
    with pytest.raises(ConfigurationError, match="more than"):
        Configuration.of([0], range(1, MEMBERS_MAX + 1))
