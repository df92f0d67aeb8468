"""Membership changes as a table, and the bytes of a configuration."""

import pytest

from tests.raft.tables import cases
from tidelog.raft import Action, Change, Configuration, ConfigurationError
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
