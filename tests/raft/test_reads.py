"""Reads that must see everything acknowledged before them: by a quorum's word, or by a lease."""

from tests.raft.harness import GROUP, World
from tests.raft.lone import ELECTION_MS, Lone, every, heartbeat
from tests.raft.memory_log import log_of_terms
from tidelog.raft import (
    Heartbeat,
    HeartbeatResponse,
    RaftSettings,
    Readable,
    Reason,
    Refusal,
    Refused,
    TimeoutNow,
    VoteRequest,
)
from tidelog.raft.reads import ROUND_SHIFT

LEASE_MS = RaftSettings().lease_ms


def no_lease(world: World) -> None:
    """Have the leader's lease run out without a heartbeat in between."""
    world.now_ms += LEASE_MS


def test_read_waits_for_a_quorum_to_confirm_that_the_leader_leads() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.propose(1, b"x")
    world.settle()
    no_lease(world)
    world.lost = lambda message: isinstance(message, HeartbeatResponse)
    ticket = world.read(1)
    world.settle()
    assert world.answer(1, ticket) is None
    world.heal()
    world.run(100)
    assert world.readable(1, ticket) == 2


def test_round_that_began_before_the_read_does_not_confirm_it() -> None:
    node = Lone()
    node.lead()
    node.hear(HeartbeatResponse(GROUP, 2, 1, 1, 1, 1, accepting=True, sleeping=False, round=0))
    node.now_ms += LEASE_MS
    node.group.tick(node.now_ms)
    earlier = every(Heartbeat, node.take())[0].round
    ticket = node.group.read(10**9, node.now_ms)
    assert isinstance(ticket, int)
    assert not every(Heartbeat, node.take()), "a round is under way; the next one serves all who came meanwhile"
    node.group.receive(HeartbeatResponse(GROUP, 2, 1, 1, 1, 1, True, False, earlier), node.now_ms)
    effects = node.group.take_effects()
    assert not effects.answers
    later = every(Heartbeat, effects.messages)[0].round
    assert later > earlier
    node.group.receive(HeartbeatResponse(GROUP, 3, 1, 1, 1, 1, True, False, later), node.now_ms)
    assert list(node.group.take_effects().answers) == [Readable(ticket, 1)]


def test_many_reads_share_a_round() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    no_lease(world)
    world.sent.clear()
    tickets = [world.read(1) for _ in range(50)]
    world.settle()
    assert all(world.readable(1, ticket) == 1 for ticket in tickets)
    assert len([message for message in world.sent if isinstance(message, Heartbeat)]) == 2


def test_no_read_before_an_entry_of_the_own_term_is_committed() -> None:
    world = World([1, 2, 3], logs={node: log_of_terms(1, 1) for node in (1, 2, 3)})
    world.nodes[2].disk_works = world.nodes[3].disk_works = True
    world.lost = lambda message: type(message).__name__ == "AppendRequest"
    world.elect(1)
    world.run(150)
    assert world.group(1).commit == 0, "the new leader cannot know that 2 is committed"
    assert not world.group(1).ready
    assert world.read(1) == Refusal(Reason.NOT_READY, 1)
    assert world.group(1).lease_index(world.now_ms) is None
    world.heal()
    world.run(200)
    assert world.group(1).lease_index(world.now_ms) == 3


def test_deposed_leader_does_not_answer_a_read() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.isolate(1)
    no_lease(world)
    world.elect(2)
    newer = world.propose(2, b"newer")
    world.settle()
    assert world.committed(2, newer)
    assert 1 in world.leaders, "it does not know yet"
    ticket = world.read(1)
    world.settle()
    assert world.answer(1, ticket) is None
    world.run(3_000)
    assert world.refused(1, ticket) is Reason.LEADERSHIP_LOST


def test_read_is_refused_at_its_deadline() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(2, 3)
    no_lease(world)
    ticket = world.read(1, within_ms=30)
    world.run(29)
    assert world.answer(1, ticket) is None
    world.run(1)
    assert world.refused(1, ticket) is Reason.TIMED_OUT


def test_waiting_reads_are_bounded() -> None:
    world = World([1, 2, 3], settings=RaftSettings(reads_max=3))
    world.elect(1)
    world.crash(2, 3)
    no_lease(world)
    assert [type(world.read(1)) for _ in range(3)] == [int] * 3
    assert world.read(1) == Refusal(Reason.BUSY, 1)


def test_single_voter_reads_at_once() -> None:
    world = World([1])
    world.elect(1)
    world.run(5_000)
    ticket = world.read(1)
    world.settle()
    assert world.readable(1, ticket) == 1


def test_joint_configuration_needs_both_majorities_word_for_a_read() -> None:
    world = World([1], extra=[2, 3])
    world.elect(1)
    leader = world.group(1)._leading
    assert leader is not None
    world.group(1)._replica.membership.appended(2, type(world.configuration)((2, 3), outgoing=(1,)))
    leader.replication.reconfigure(world.now_ms)
    no_lease(world)
    world.isolate(1)
    ticket = world.read(1)
    world.settle()
    assert world.answer(1, ticket) is None


# The lease


def test_lease_lasts_from_the_rounds_beginning_and_ends_before_the_followers_patience() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.run(250)
    began_ms = [message for message in world.sent if isinstance(message, Heartbeat)][-1].round >> ROUND_SHIFT
    assert world.now_ms - 100 <= began_ms < world.now_ms
    group = world.group(1)
    assert group.lease_index(began_ms + LEASE_MS - 1) == 1
    assert group.lease_index(began_ms + LEASE_MS) is None
    assert LEASE_MS == ELECTION_MS * 0.9, "the clocks' drift is taken off"


def test_lease_counts_from_when_the_round_began_not_from_when_it_was_answered() -> None:
    node = Lone()
    node.lead()
    node.hear(HeartbeatResponse(GROUP, 2, 1, 1, 1, 1, True, False, 0))
    node.group.tick(node.now_ms)
    began_ms = node.now_ms
    round_ = every(Heartbeat, node.take())[0].round
    node.now_ms += 500
    node.hear(HeartbeatResponse(GROUP, 2, 1, 1, 1, 1, True, False, round_))
    assert node.group.lease_index(began_ms + LEASE_MS - 1) == 1
    assert node.group.lease_index(began_ms + LEASE_MS) is None


def test_lease_needs_a_quorum() -> None:
    world = World([1, 2, 3, 4, 5])
    world.elect(1)
    world.crash(3, 4, 5)
    world.run(ELECTION_MS - 100)
    assert world.group(1).lease_index(world.now_ms) is None, "node 2 alone answers"


def test_follower_grants_no_vote_while_the_lease_may_last() -> None:
    """What the lease rests on: the last moment of a lease is before the first vote for another."""
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    world.isolate(1)
    while world.group(1).lease_index(world.now_ms) is not None:
        assert not [leader for leader in world.leaders if leader != 1]
        world.run(1)
    world.run(3_000)
    assert world.leader != 1


def test_clock_jump_vs_lease_leader_whose_clock_leapt_has_no_lease_until_it_has_asked_again() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    assert world.group(1).lease_index(world.now_ms) is not None
    world.group(1).clock_leapt(world.now_ms)
    assert world.group(1).lease_index(world.now_ms) is None
    world.run(10)
    assert world.group(1).lease_index(world.now_ms) is not None


def test_clock_jump_vs_lease_follower_whose_clock_leapt_ahead_does_not_betray_the_leader() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    rival = world.group(2)
    rival.clock_leapt(world.now_ms + 60_000)
    rival.receive(VoteRequest(GROUP, 3, 2, 9, 99, 8, pre=False, forced=False), world.now_ms + 60_000)
    assert rival.term < 9
    rival.tick(world.now_ms + 60_001)
    assert rival.leader == 1


def test_leader_that_told_another_to_campaign_has_no_lease_for_the_rest_of_the_term() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.run(200)
    assert world.group(1).lease_index(world.now_ms) is not None
    world.lost = lambda message: isinstance(message, TimeoutNow)
    world.transfer(1, 2)
    world.run(3_000)
    assert world.leader == 1, "the word was lost, and the transfer given up"
    assert world.group(1).lease_index(world.now_ms) is None, "it may still arrive"
    ticket = world.read(1)
    world.settle()
    assert world.readable(1, ticket) is not None, "a quorum's word is as good as ever"
    late = next(message for message in world.sent if isinstance(message, TimeoutNow))
    world.heal()
    world.deliver(late)
    world.settle()
    assert world.leader == 2


def test_follower_answers_no_read() -> None:
    node = Lone(term=2)
    node.hear(heartbeat(2))
    assert node.group.read(10**9, node.now_ms) == Refusal(Reason.NOT_LEADER, 2)
    assert node.group.lease_index(node.now_ms) is None


def test_reads_are_refused_when_leadership_is_lost() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    no_lease(world)
    world.isolate(1)
    ticket = world.read(1)
    world.settle()
    world.deliver(HeartbeatResponse(GROUP, 2, 1, 9, 0, 0, accepting=True, sleeping=False, round=0))
    answer = world.answer(1, ticket)
    assert isinstance(answer, Refused)
    assert answer.refusal.reason is Reason.LEADERSHIP_LOST
