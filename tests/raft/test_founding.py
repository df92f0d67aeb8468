"""A group's first leader where it is agreed upon beforehand: it needs no election, and leads that term once."""

import pytest

from tests.raft.harness import GROUP
from tests.raft.lone import ELECTION_MS, Lone, append, every, heartbeat, only, vote_request
from tests.raft.memory_log import log_of_terms
from tidelog.raft import (
    FOUNDED,
    AppendRequest,
    AppendResponse,
    Configuration,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    RaftInvariantError,
    RaftSettings,
    Role,
    VoteRequest,
    VoteResponse,
)


def member() -> Lone:
    """Of a founded group, and not its founder."""
    return Lone(term=FOUNDED.term, vote=FOUNDED.vote)


def test_a_founder_leads_the_first_term_and_asks_nobody() -> None:
    node = Lone()
    node.group.found(node.now_ms)
    said = node.take()
    assert (node.group.role, node.group.term) == (Role.LEADER, 1)
    assert [(message.destination, len(message.entries)) for message in every(AppendRequest, said)] == [(2, 1), (3, 1)]
    assert len(said) == 2, "its first entry says it all"


def test_a_founder_says_nothing_before_its_vote_for_itself_is_durable() -> None:
    node = Lone()
    node.disk_works = False
    node.group.found(node.now_ms)
    assert not node.take()
    assert node.effects.hard_state == HardState(1, 1)
    assert node.group.role is Role.CANDIDATE
    node.group.hard_state_written(HardState(1, 1), node.now_ms)
    assert every(AppendRequest, node.take())
    assert node.group.role is Role.LEADER


@pytest.mark.parametrize(
    "node",
    [
        Lone(term=1, vote=1),
        member(),
        Lone(log_of_terms(1), term=0),
        Lone(configuration=Configuration((1, 2, 3), outgoing=(1, 2))),
    ],
    ids=["it led before", "it is a member like any", "there is an entry", "its members are changing"],
)
def test_only_a_new_group_can_be_founded(node: Lone) -> None:
    with pytest.raises(RaftInvariantError, match="nobody can found it"):
        node.group.found(node.now_ms)


def test_a_founder_that_restarts_does_not_lead_its_term_again() -> None:
    """It may have sent entries that its own disk lost: others at the same places would be taken for those."""
    node = Lone(term=1, vote=1)
    node.now_ms += 2 * ELECTION_MS
    node.group.tick(node.now_ms)
    assert {request.term for request in every(VoteRequest, node.take())} == {2}
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=False))
    assert node.group.role is Role.PRE_CANDIDATE


def test_a_member_neither_votes_in_the_founders_term_nor_asks_for_votes_in_it() -> None:
    node = member()
    for pre in (True, False):
        assert not only(VoteResponse, node.hear(vote_request(1, (0, 0), pre=pre))).granted
    node.now_ms += 2 * ELECTION_MS
    node.group.tick(node.now_ms)
    assert {request.term for request in every(VoteRequest, node.take())} == {2}


def test_a_member_follows_the_founder_and_need_not_remember_its_term() -> None:
    node = member()
    answer = only(AppendResponse, node.hear(append(1, (0, 0), 1)))
    assert (answer.term, answer.match, node.group.leader) == (1, 1, 2)
    assert node.effects.hard_state is None


def test_members_whose_founder_never_comes_elect_another_in_the_next_term() -> None:
    node = member()
    node.now_ms += 2 * ELECTION_MS
    node.group.tick(node.now_ms)
    node.take()
    node.hear(VoteResponse(GROUP, 3, 1, 2, granted=True, pre=True))
    node.hear(VoteResponse(GROUP, 3, 1, 2, granted=True, pre=False))
    assert (node.group.role, node.group.term) == (Role.LEADER, 2)
    late = member()
    late.hear(heartbeat(2, source=3))
    answer = only(HeartbeatResponse, late.hear(append(1, (0, 0), 1)))
    assert answer.term == 2, "a founder that comes late is told"


def test_a_founder_whose_disk_is_full_does_not_lead() -> None:
    node = Lone()
    node.log.accepting = False
    node.group.found(node.now_ms)
    assert not node.take()
    assert node.group.role is Role.FOLLOWER


def test_members_of_a_new_group_hear_at_once_that_it_serves_and_may_sleep() -> None:
    node = Lone(alive=frozenset((2, 3)), settings=RaftSettings(sleep_after_ms=60_000))
    node.group.found(node.now_ms)
    node.take()
    first, second = (AppendResponse(GROUP, source, 1, 1, 1, True, 0) for source in (2, 3))
    node.group.receive(first, node.now_ms)
    told = every(Heartbeat, node.hear(second))
    assert [(beat.destination, beat.commit, beat.sleep) for beat in told] == [(2, 1, True), (3, 1, True)]
    node.hear(*(HeartbeatResponse(GROUP, beat.destination, 1, 1, 1, 1, True, True, beat.round) for beat in told))
    assert node.group.asleep


def test_a_leader_announces_what_is_committed_when_it_is_asked_to() -> None:
    node = Lone()
    node.lead()
    node.hear(AppendResponse(GROUP, 2, 1, 1, 1, True, 0))
    assert not node.take()
    node.group.announce(node.now_ms)
    assert {beat.commit for beat in every(Heartbeat, node.take())} == {1}
    assert not node.take(), "once"
    member().group.announce(0)  # who does not lead has nothing to say
