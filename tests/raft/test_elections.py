"""Terms, votes, patience: who may lead, and who helps whom to."""

from collections.abc import Callable
from random import Random

import pytest

from tests.raft.harness import GROUP, World
from tests.raft.lone import ELECTION_MS, Lone, append, every, heartbeat, only, timeout_now, vote_request
from tests.raft.memory_log import MemoryLog, log_of_terms
from tidelog.raft import (
    TERM_MAX,
    AppendResponse,
    Configuration,
    ConfigurationError,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    RaftInvariantError,
    RaftSettings,
    Reason,
    Refusal,
    Role,
    VoteRequest,
    VoteResponse,
)
from tidelog.raft.elections import Patience
from tidelog.raft.outbox import HELD_MAX


def granted(node: Lone, request: VoteRequest) -> bool:
    return only(VoteResponse, node.hear(request)).granted


# Winning


def test_first_leader_is_elected_when_the_timeout_has_passed_and_appends_a_noop() -> None:
    world = World([1, 2, 3])
    world.run(2 * ELECTION_MS + 100)
    assert len(world.leaders) == 1
    assert world.group(world.leader).ready
    assert [entry.kind for entry in world.log(world.leader).stored] == [EntryKind.NOOP]
    assert {world.group(node).leader for node in (1, 2, 3)} == {world.leader}


def test_timeouts_are_spread_over_one_to_two_election_timeouts() -> None:
    deadlines = [World([1, 2, 3], seed=seed).group(1).next_deadline_ms for seed in range(200)]
    waits = [deadline - 1_000 for deadline in deadlines if deadline is not None]
    assert ELECTION_MS <= min(waits) < 1.1 * ELECTION_MS
    assert 1.9 * ELECTION_MS < max(waits) < 2 * ELECTION_MS


def test_candidate_needs_a_majority_of_even_sizes_too() -> None:
    world = World([1, 2, 3, 4])
    world.crash(3, 4)
    world.run(5_000)
    assert not world.leaders
    world.restart(3)
    world.run(5_000)
    assert len(world.leaders) == 1


def test_candidate_that_learns_of_an_elected_leader_follows_it() -> None:
    node = Lone()
    node.group.campaign(node.now_ms)
    node.take()
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=True))
    assert node.group.role is Role.CANDIDATE
    node.hear(heartbeat(1, source=3))
    assert (node.group.role, node.group.leader, node.group.term) == (Role.FOLLOWER, 3, 1)


def test_votes_for_an_earlier_candidacy_do_not_count() -> None:
    node = Lone()
    for _ in range(2):
        node.group.campaign(node.now_ms)
        node.take()
        node.hear(VoteResponse(GROUP, 2, 1, node.group.term + 1, granted=True, pre=True))
        node.now_ms += 2 * ELECTION_MS
    assert (node.group.role, node.group.term) == (Role.CANDIDATE, 2)
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=False))
    assert node.group.role is Role.CANDIDATE, "the vote was for term 1"
    node.hear(VoteResponse(GROUP, 2, 1, 3, granted=True, pre=True))
    assert node.group.role is Role.CANDIDATE, "a pre-vote is no vote"


def test_pre_vote_that_arrives_late_is_no_vote_though_it_is_for_the_same_term() -> None:
    """Whoever gave it is free to vote for another in that term."""
    node = Lone()
    node.group.campaign(node.now_ms)
    node.take()
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=True))
    assert (node.group.role, node.group.term) == (Role.CANDIDATE, 1)
    node.hear(VoteResponse(GROUP, 3, 1, 1, granted=True, pre=True))
    assert node.group.role is Role.CANDIDATE


def test_pre_vote_for_an_earlier_term_does_not_count() -> None:
    node = Lone(term=4)
    node.group.campaign(node.now_ms)
    node.take()
    node.hear(VoteResponse(GROUP, 2, 1, 4, granted=True, pre=True))
    assert (node.group.role, node.group.term) == (Role.PRE_CANDIDATE, 4)


def test_candidacy_that_a_majority_refuses_ends_at_once() -> None:
    node = Lone()
    node.group.campaign(node.now_ms)
    node.take()
    node.hear(*(VoteResponse(GROUP, rival, 1, 0, granted=False, pre=True) for rival in (2, 3)))
    assert node.group.role is Role.FOLLOWER


def test_two_leaders_of_one_term_are_fatal() -> None:
    node = Lone(term=1)
    node.lead()
    with pytest.raises(RaftInvariantError, match="both lead term 2"):
        node.hear(heartbeat(2))
    follower = Lone(term=1)
    follower.hear(heartbeat(1, source=2))
    with pytest.raises(RaftInvariantError, match="both lead term 1"):
        follower.hear(heartbeat(1, source=3))


def test_node_whose_disk_is_full_does_not_campaign_as_it_could_not_append_its_noop() -> None:
    world = World([1, 2, 3])
    world.log(1).accepting = False
    world.group(1).campaign(world.now_ms)
    world.settle()
    assert not world.sent
    world.run(3_000)
    assert world.leader != 1
    node = Lone(term=1)
    node.log.accepting = False
    assert not node.hear(timeout_now(1)), "not even if its leader asks it to"


def test_candidate_whose_disk_fills_up_before_it_wins_does_not_lead() -> None:
    node = Lone()
    node.group.campaign(node.now_ms)
    node.take()
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=True))
    node.log.accepting = False
    node.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=False))
    assert node.group.role is Role.FOLLOWER


# Voting


def test_one_vote_a_term() -> None:
    node = Lone(term=1)
    assert granted(node, vote_request(2, (0, 0), source=2))
    assert not granted(node, vote_request(2, (0, 0), source=3))
    assert granted(node, vote_request(2, (0, 0), source=2)), "the answer may have been lost; the vote stands"
    assert granted(node, vote_request(3, (0, 0), source=3)), "a new term, a new vote"


def test_vote_survives_a_restart() -> None:
    node = Lone(term=2, vote=3)
    assert not granted(node, vote_request(2, (9, 2), source=2))
    assert granted(node, vote_request(2, (9, 2), source=3))


def test_no_vote_in_an_earlier_term() -> None:
    node = Lone(term=5)
    answer = only(VoteResponse, node.hear(vote_request(4, (9, 4))))
    assert (answer.granted, answer.term) == (False, 5)
    assert node.group.term == 5


@pytest.mark.parametrize(
    ("last", "expected"),
    [((3, 2), True), ((4, 2), True), ((1, 3), True), ((2, 2), False), ((9, 1), False), ((0, 0), False)],
)
@pytest.mark.parametrize("pre", [True, False])
def test_votes_go_only_to_logs_that_are_at_least_as_up_to_date(
    last: tuple[int, int], expected: bool, pre: bool
) -> None:
    node = Lone(log_of_terms(1, 2, 2))
    assert granted(node, vote_request(4, last, pre=pre)) is expected


def test_no_vote_for_a_rival_of_the_known_leader_in_the_same_term() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2, source=2))
    node.now_ms += 2 * ELECTION_MS
    assert not granted(node, vote_request(2, (0, 0), source=3))


def test_learner_votes_since_its_own_configuration_may_be_old_but_never_campaigns() -> None:
    node = Lone(configuration=Configuration.of([2, 3], learners=[1]))
    assert granted(node, vote_request(1, (0, 0)))
    node.group.campaign(node.now_ms)
    for _ in range(20):
        node.now_ms += ELECTION_MS
        node.group.tick(node.now_ms)
        assert not node.take()
    assert node.group.role is Role.FOLLOWER


def test_voting_puts_off_the_voters_own_candidacy() -> None:
    node = Lone()
    before = node.group.next_deadline_ms
    assert before is not None
    assert granted(node, vote_request(1, (0, 0)))
    after = node.group.next_deadline_ms
    assert after is not None
    assert after >= node.now_ms + ELECTION_MS


def test_terms_beyond_the_last_one_are_not_learned() -> None:
    node = Lone(term=3)
    node.hear(heartbeat(TERM_MAX + 1), vote_request(TERM_MAX + 1, (0, 0)))
    assert node.group.term == 3


# Durability of term and vote


def test_vote_not_persisted_is_not_given() -> None:
    node = Lone(term=1)
    node.disk_works = False
    assert not node.hear(vote_request(2, (0, 0)))
    assert node.effects.hard_state == HardState(2, 2)
    node.group.hard_state_written(HardState(2, None), node.now_ms)
    assert not node.take(), "an earlier hard state became durable, not the one with the vote"
    node.group.hard_state_written(HardState(2, 2), node.now_ms)
    assert only(VoteResponse, node.take()).granted


def test_hard_state_is_handed_out_once_and_only_the_newest() -> None:
    node = Lone(term=1)
    node.group.receive(heartbeat(2), node.now_ms)
    node.group.receive(heartbeat(4), node.now_ms)
    assert node.group.take_effects().hard_state == HardState(4, None)
    assert node.group.take_effects().hard_state is None


def test_nothing_is_said_in_a_term_that_is_not_durable() -> None:
    node = Lone(log_of_terms(1))
    node.disk_works = False
    assert not node.hear(append(2, (1, 1), commit=1), heartbeat(2))
    node.group.hard_state_written(HardState(2), node.now_ms)
    answers = node.take()
    assert {answer.term for answer in answers} == {2}
    assert {type(answer) for answer in answers} == {HeartbeatResponse, AppendResponse}


def test_what_was_said_before_the_hard_state_changed_may_leave() -> None:
    node = Lone(term=1)
    node.disk_works = False
    node.group.receive(heartbeat(1), node.now_ms)
    node.group.receive(heartbeat(2), node.now_ms)
    assert [message.term for message in node.take()] == [1]


def test_messages_held_back_are_bounded_and_none_is_of_an_earlier_term() -> None:
    node = Lone(term=1)
    node.disk_works = False
    for round_ in range(2 * HELD_MAX):
        node.hear(heartbeat(2, round_=round_))
    node.group.hard_state_written(HardState(2), node.now_ms)
    answers = every(HeartbeatResponse, node.take())
    assert [answer.round for answer in answers] == list(range(HELD_MAX, 2 * HELD_MAX))
    node.hear(heartbeat(3), heartbeat(4))
    node.group.hard_state_written(HardState(4), node.now_ms)
    assert {answer.term for answer in node.take()} == {4}


def test_own_vote_counts_only_when_it_is_durable() -> None:
    world = World([1, 2, 3])
    world.nodes[1].disk_works = False
    world.group(1).campaign(world.now_ms)
    world.settle()
    assert world.group(1).role is Role.CANDIDATE
    assert not [message for message in world.sent if isinstance(message, VoteRequest) and not message.pre]
    world.nodes[1].disk_works = True
    world.settle()
    assert world.group(1).role is Role.LEADER


def test_single_voter_leads_only_when_its_vote_is_durable() -> None:
    world = World([1])
    world.nodes[1].disk_works = False
    world.run(5_000)
    assert not world.leaders
    world.sync(1)
    assert world.leaders == [1]


def test_single_voter_does_not_wait_for_anyone_after_a_restart() -> None:
    world = World([1])
    world.run(1)
    assert world.leader == 1
    world.crash(1)
    world.restart(1)
    world.run(1)
    assert world.leader == 1


# PreVote, CheckQuorum, patience


def test_node_that_comes_back_from_isolation_raises_nobodys_term() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.isolate(3)
    world.run(10_000)
    term = world.group(1).term
    assert world.group(3).term == term
    world.heal()
    world.run(3_000)
    assert world.leader == 1
    assert world.group(1).term == term


def test_pre_vote_changes_nothing_at_the_voter() -> None:
    node = Lone(term=1)
    before = node.group.next_deadline_ms
    answer = only(VoteResponse, node.hear(vote_request(2, (0, 0), pre=True)))
    assert (answer.granted, answer.term) == (True, 2)
    assert (node.group.term, node.group.next_deadline_ms) == (1, before)
    assert granted(node, vote_request(2, (0, 0), source=3)), "the vote of term 2 is still there"


def test_pre_vote_is_refused_in_a_term_that_the_voter_already_has() -> None:
    node = Lone(term=2)
    answer = only(VoteResponse, node.hear(vote_request(2, (9, 1), pre=True)))
    assert (answer.granted, answer.term) == (False, 2), "so the candidate learns the term, and asks for the next"


@pytest.mark.parametrize("pre", [True, False])
def test_follower_that_hears_from_its_leader_takes_no_part_in_elections(pre: bool) -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2, source=2))
    node.now_ms += ELECTION_MS - 1
    assert not any(
        answer.granted for answer in every(VoteResponse, node.hear(vote_request(3, (9, 2), source=3, pre=pre)))
    )
    assert (node.group.term, node.group.leader) == (2, 2)
    node.now_ms += 1
    assert granted(node, vote_request(3, (9, 2), source=3, pre=pre))


@pytest.mark.parametrize("pre", [True, False])
def test_node_that_restarts_keeps_the_promise_it_may_have_forgotten(pre: bool) -> None:
    node = Lone(term=2)
    node.now_ms = ELECTION_MS - 1
    assert not any(answer.granted for answer in every(VoteResponse, node.hear(vote_request(3, (9, 2), pre=pre))))
    assert node.group.term == 2
    node.now_ms = ELECTION_MS
    assert granted(node, vote_request(3, (9, 2), pre=pre))


def test_promise_is_never_shortened() -> None:
    patience = Patience(ELECTION_MS, Random(0), 0)
    patience.heard(5_000)
    patience.promise(4_000)
    assert patience.promised_until_ms == 5_000 + ELECTION_MS
    patience.promise(6_000)
    assert patience.promised_until_ms == 6_000 + ELECTION_MS <= patience.deadline_ms


def test_node_that_never_had_a_term_promised_nothing() -> None:
    node = Lone(term=0)
    node.now_ms = 0
    assert granted(node, vote_request(1, (0, 0)))


def test_leader_takes_no_part_in_elections() -> None:
    node = Lone()
    node.lead()
    node.hear(vote_request(9, (9, 8), source=3))
    assert (node.group.role, node.group.term) == (Role.LEADER, 1)


def test_leader_that_asks_for_votes_leads_no_more_so_nothing_promised_to_it_binds() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2, source=2))
    assert granted(node, vote_request(3, (0, 0), source=2, pre=True))
    assert node.group.leader is None
    assert granted(node, vote_request(3, (0, 0), source=3))


def test_late_vote_request_of_the_present_leader_does_not_end_the_promise_to_it() -> None:
    node = Lone(term=1)
    node.hear(heartbeat(2, source=2))
    node.hear(vote_request(2, (0, 0), source=2), vote_request(2, (0, 0), source=2, pre=True))
    assert node.group.leader == 2
    assert not any(answer.granted for answer in every(VoteResponse, node.hear(vote_request(3, (9, 2), source=3))))
    assert node.group.term == 2


def test_vote_request_that_the_leader_asked_for_overrides_the_promise() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2, source=2))
    assert granted(node, vote_request(3, (0, 0), source=3, forced=True))


def test_leader_without_word_from_a_quorum_steps_down() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.isolate(1)
    world.run(ELECTION_MS - 1)
    assert world.leaders == [1]
    world.run(2 * world.settings.heartbeat_ms)
    assert world.group(1).role is not Role.LEADER
    assert world.group(1).leader is None


def test_leader_that_hears_half_of_four_steps_down() -> None:
    world = World([1, 2, 3, 4])
    world.elect(1)
    world.isolate(1, 2)
    world.run(2 * ELECTION_MS)
    assert 1 not in world.leaders


def test_leader_of_an_earlier_term_is_told_so() -> None:
    node = Lone(term=5)
    answer = only(HeartbeatResponse, node.hear(append(3, (0, 0), 3)))
    assert answer.term == 5
    assert node.log.last_index == 0
    leader = Lone(term=1)
    leader.lead()
    leader.hear(HeartbeatResponse(GROUP, 2, 1, 5, 0, 0, accepting=True, sleeping=False, round=0))
    assert (leader.group.role, leader.group.term) == (Role.FOLLOWER, 5)


def test_node_with_a_higher_term_and_a_shorter_log_is_led_again_by_the_others() -> None:
    logs = {1: log_of_terms(1, 1), 2: log_of_terms(1, 1), 3: log_of_terms(1)}
    world = World([1, 2, 3], logs=logs, hard_states={3: HardState(7)})
    world.run(10_000)
    assert world.leader in (1, 2)
    assert world.group(3).term == world.group(world.leader).term > 7
    assert world.terms(3) == world.terms(world.leader)


def test_asymmetric_partition_follower_that_cannot_hear_its_leader_does_not_disturb_the_rest() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    term = world.group(1).term
    world.cut(1, 3)
    for _ in range(10):
        ticket = world.propose(1, b"x")
        world.run(1_000)
        assert world.committed(1, ticket)
    assert world.leaders == [1]
    assert world.group(1).term == term
    world.heal()
    world.run(500)
    assert world.data(3, committed=True) == [b"x"] * 10


def test_asymmetric_partition_leader_that_nobody_can_answer_steps_down_and_another_leads() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.cut(2, 1)
    world.cut(3, 1)
    ticket = world.propose(1, b"x")
    world.run(6_000)
    assert world.refused(1, ticket) is Reason.LEADERSHIP_LOST
    assert world.leader in (2, 3)


def test_no_leader_is_followed_whose_term_is_over() -> None:
    node = Lone(log_of_terms(1), term=3)
    node.hear(append(2, (1, 1), 2, 2, commit=3), heartbeat(2, commit=1))
    assert node.group.leader is None
    assert (node.log.last_index, node.group.commit) == (1, 0)


def test_timeout_now_of_an_earlier_term_is_ignored() -> None:
    node = Lone(term=3)
    assert not node.hear(timeout_now(2))
    assert node.group.role is Role.FOLLOWER


def test_clock_that_leapt_renews_the_followers_promise() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2, source=2))
    node.now_ms += 10 * ELECTION_MS
    node.group.clock_leapt(node.now_ms)
    assert not any(answer.granted for answer in every(VoteResponse, node.hear(vote_request(3, (9, 2), source=3))))
    deadline = node.group.next_deadline_ms
    assert deadline is not None
    assert deadline >= node.now_ms + ELECTION_MS, "and it does not campaign itself, as its leader may well be alive"


def test_campaigning_by_request_keeps_the_promise_to_a_leader() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2))
    node.group.campaign(node.now_ms)
    assert not node.take()
    assert node.group.leader == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: RaftSettings(heartbeat_ms=600),
        lambda: RaftSettings(heartbeat_ms=0),
        lambda: RaftSettings(clock_drift_max=1.0),
        lambda: RaftSettings(window_bytes_max=0),
        lambda: RaftSettings(reads_max=0),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], RaftSettings]) -> None:
    with pytest.raises(ConfigurationError, match="must be"):
        make()


def test_refusal_names_the_leader() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    for refusal in (world.propose(2, b"x"), world.read(2), world.change(2), world.transfer(2, 3)):
        assert refusal == Refusal(Reason.NOT_LEADER, 1)


def test_leadership_is_reported_when_it_changes() -> None:
    node = Lone(MemoryLog())
    node.group.receive(heartbeat(3), node.now_ms)
    leadership = node.group.take_effects().leadership
    assert leadership is not None
    assert (leadership.role, leadership.term, leadership.leader) == (Role.FOLLOWER, 3, 2)
    node.group.receive(heartbeat(3), node.now_ms)
    assert node.group.take_effects().leadership is None


def test_heartbeats_go_to_every_member_and_carry_the_commit_index() -> None:
    world = World([1, 2, 3], learners=[4])
    world.elect(1)
    world.sent.clear()
    world.run(world.settings.heartbeat_ms)
    beats = [message for message in world.sent if isinstance(message, Heartbeat)]
    assert {beat.destination for beat in beats} == {2, 3, 4}
    assert {beat.commit for beat in beats} == {1}
    assert {world.group(node).commit for node in (1, 2, 3, 4)} == {1}
