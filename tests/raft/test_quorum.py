"""Majorities, plain and joint: the tables, and the tables' rule against brute force."""

from itertools import product

import pytest

from tests.raft.tables import Case, cases
from tidelog.raft.quorum import EVERYTHING, VoteResult, majority_reached, quorum_reached, quorum_vote

COMMIT_TABLES = ("majority_commit.txt", "joint_commit.txt")
VOTE_TABLES = ("majority_vote.txt", "joint_vote.txt")


def all_cases(files: tuple[str, ...]) -> list[object]:
    return [pytest.param(case, id=case.place) for file in files for case in cases(file)]


@pytest.mark.parametrize("case", all_cases(COMMIT_TABLES))
def test_committed_index(case: Case) -> None:
    at = {node: int(index) for node, index in case.pairs("at").items()}
    incoming, outgoing = ([at.get(node, 0) for node in case.numbers(half)] for half in ("voters", "outgoing"))
    reached = quorum_reached(incoming, outgoing)
    assert ("everything" if reached == EVERYTHING else str(reached)) == case.expected
    assert quorum_reached(outgoing, incoming) == reached, "the halves have equal rights"


@pytest.mark.parametrize("case", all_cases(VOTE_TABLES))
def test_vote(case: Case) -> None:
    votes = {node: vote == "y" for node, vote in case.pairs("votes").items()}
    incoming, outgoing = case.numbers("voters"), case.numbers("outgoing")
    assert quorum_vote(incoming, outgoing, votes).value == case.expected
    assert quorum_vote(outgoing, incoming, votes).value == case.expected, "the halves have equal rights"


@pytest.mark.parametrize("size", range(1, 7))
def test_majority_reached_is_the_largest_value_that_more_than_half_have_reached(size: int) -> None:
    for values in product(range(4), repeat=size):
        reached = majority_reached(values)
        assert 2 * sum(value >= reached for value in values) > size
        assert 2 * sum(value >= reached + 1 for value in values) <= size


@pytest.mark.parametrize("size", range(1, 7))
def test_two_candidates_never_both_win_and_a_lost_vote_cannot_be_won_any_more(size: int) -> None:
    voters = tuple(range(size))
    for choice in product((None, True, False), repeat=size):
        mine = {voter: vote for voter, vote in enumerate(choice) if vote is not None}
        rivals = {voter: not vote for voter, vote in mine.items()}
        result = quorum_vote(voters, (), mine)
        assert not (result is VoteResult.WON and quorum_vote(voters, (), rivals) is VoteResult.WON)
        best = {voter: mine.get(voter, True) for voter in voters}
        worst = {voter: mine.get(voter, False) for voter in voters}
        assert (result is VoteResult.LOST) == (quorum_vote(voters, (), best) is VoteResult.LOST)
        assert (result is VoteResult.WON) == (quorum_vote(voters, (), worst) is VoteResult.WON)
