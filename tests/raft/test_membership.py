"""Changing members: joint consensus, learners, leaders that remove themselves, nodes that do not know they are gone."""

import pytest

from tests.raft.harness import GROUP, World
from tests.raft.lone import ELECTION_MS, Lone, append, only, vote_request
from tests.raft.memory_log import floor_context, log_of_terms
from tidelog.raft import (
    Action,
    AppendRequest,
    Change,
    Committed,
    Configuration,
    ConfigurationError,
    Entry,
    EntryKind,
    HeartbeatResponse,
    Reason,
    Refusal,
    Role,
    TakeOver,
    TimeoutNow,
    VoteResponse,
)
from tidelog.raft.membership import Membership


def add(node: int) -> Change:
    return Change(Action.ADD_VOTER, node)


def learn(node: int) -> Change:
    return Change(Action.ADD_LEARNER, node)


def remove(node: int) -> Change:
    return Change(Action.REMOVE, node)


def admit(world: World, leader: int, *nodes: int) -> None:
    """Make learners, which may then become voters."""
    ticket = world.change(leader, *map(learn, nodes))
    world.run(300)
    assert world.committed(leader, ticket)


def configurations(world: World, node: int) -> list[str]:
    return [
        str(Configuration.decode(entry.data))
        for entry in world.log(node).stored
        if entry.kind is EntryKind.CONFIGURATION
    ]


def test_voter_is_added_through_a_joint_configuration_that_ends_by_itself() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    admit(world, 1, 4)
    ticket = world.change(1, add(4))
    world.run(300)
    assert configurations(world, 4)[1:] == ["voters=(1 2 3 4) outgoing=(1 2 3)", "voters=(1 2 3 4)"]
    assert world.answer(1, ticket) == Committed(ticket, 4) if isinstance(ticket, int) else False
    assert {str(world.group(node).configuration) for node in (1, 2, 3, 4)} == {"voters=(1 2 3 4)"}


def test_learner_is_added_in_one_step_and_is_sent_the_log() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    world.propose(1, b"x")
    ticket = world.change(1, learn(4))
    world.run(300)
    assert world.committed(1, ticket)
    assert configurations(world, 4) == ["voters=(1 2 3) learners=(4)"]
    assert world.data(4, committed=True) == [b"x"]


def test_change_that_is_already_so_is_answered_at_once() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    ticket = world.change(1, add(2))
    world.settle()
    assert world.committed(1, ticket)
    assert configurations(world, 1) == []


def test_configuration_is_in_force_as_soon_as_it_is_in_the_log() -> None:
    node = Lone(log_of_terms(1))
    new = Configuration((1, 2, 4), outgoing=(1, 2, 3))
    entry = Entry(2, 1, EntryKind.CONFIGURATION, new.encode())
    node.group.receive(AppendRequest(GROUP, 2, 1, 1, 1, 1, [entry], 0, 0), node.now_ms)
    assert node.group.take_effects().configuration == (2, new)
    assert node.group.configuration == new


def test_configuration_reverts_when_its_entry_is_truncated() -> None:
    node = Lone(log_of_terms(1))
    old = node.group.configuration
    new = Configuration((1, 2, 4), outgoing=(1, 2, 3))
    entry = Entry(2, 1, EntryKind.CONFIGURATION, new.encode())
    node.hear(AppendRequest(GROUP, 2, 1, 1, 1, 1, [entry], 0, 0))
    node.group.receive(append(2, (1, 1), 2, source=3), node.now_ms)
    assert node.group.configuration == old
    assert node.group.take_effects().configuration == (0, old)


@pytest.mark.parametrize("dead", [(4, 5, 6), (2, 3)], ids=["the old majority alone", "the new majority alone"])
def test_joint_configuration_needs_both_majorities_to_commit(dead: tuple[int, ...]) -> None:
    world = World([1, 2, 3], extra=[4, 5, 6])
    world.elect(1)
    admit(world, 1, 4, 5, 6)
    world.crash(*dead)
    ticket = world.change(1, *map(add, (4, 5, 6)), *map(remove, (2, 3)))
    world.run(300)
    assert world.group(1).commit == 2
    assert world.answer(1, ticket) is None
    world.restart(*dead)
    world.run(500)
    assert world.committed(1, ticket)


def test_joint_configuration_needs_both_majorities_to_elect() -> None:
    joint = Configuration((1, 4, 5), outgoing=(1, 2, 3))
    world = World([1, 2, 3], extra=[4, 5])
    for node in world.nodes:
        world.log(node).append_received([Entry(1, 1, EntryKind.CONFIGURATION, joint.encode())])
        world.log(node).sync()
    world.crash(*world.nodes)
    world.restart(1, 4, 5)
    world.run(5_000)
    assert not world.elected, "all of the new voters, one of the old"
    world.crash(4, 5)
    world.restart(2, 3)
    world.run(5_000)
    assert not world.elected, "all of the old voters, one of the new"
    world.restart(4)
    world.run(5_000)
    assert len(world.leaders) == 1
    world.run(1_000)
    assert not world.group(world.leader).configuration.joint, "whoever leads ends the change"


def test_one_change_at_a_time() -> None:
    world = World([1, 2, 3], extra=[4, 5])
    world.elect(1)
    admit(world, 1, 4, 5)
    world.crash(2)
    world.lost = lambda message: message.source in (3, 4)
    first = world.change(1, add(4))
    for change in (add(5), learn(5), remove(3)):
        refusal = world.change(1, change)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.CHANGE_PENDING
    world.heal()
    world.run(500)
    assert world.committed(1, first)
    assert isinstance(world.change(1, add(5)), int)


def test_uncommitted_change_of_learners_is_pending_too() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    world.isolate(1)
    assert isinstance(world.change(1, learn(4)), int)
    refusal = world.change(1, add(4))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.CHANGE_PENDING


def test_no_change_before_an_entry_of_the_own_term_is_committed() -> None:
    """Else two leaders' changes that do not know of each other could make majorities that do not meet."""
    world = World([1, 2, 3])
    world.lost = lambda message: isinstance(message, AppendRequest)
    world.elect(1)
    assert world.change(1, remove(3)) == Refusal(Reason.NOT_READY, 1)


def test_invalid_change_is_refused_with_the_reason() -> None:
    world = World([1])
    world.elect(1)
    refusal = world.change(1, remove(1))
    assert refusal == Refusal(Reason.INVALID, 1, "a group must keep at least one voter")


def test_change_is_refused_at_its_deadline_or_when_leadership_is_lost() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    admit(world, 1, 4)
    world.isolate(1)
    ticket = world.change(1, add(4), within_ms=50)
    world.run(60)
    assert world.refused(1, ticket) is Reason.TIMED_OUT
    world.run(5_000)
    world.heal()
    world.run(5_000)
    leader = world.leader
    world.isolate(leader)
    ticket = world.change(leader, remove(4))
    world.run(3_000)
    assert world.refused(leader, ticket) is Reason.LEADERSHIP_LOST


def test_membership_1_2_3_4_3_2_1() -> None:
    world = World([1], extra=[2, 3, 4])
    world.elect(1)
    admit(world, 1, 2, 3, 4)
    for step, change in enumerate((add(2), add(3), add(4), remove(4), remove(3), remove(2))):
        ticket = world.change(1, change)
        write = world.propose(1, b"%d" % step)
        world.run(500)
        assert world.committed(1, ticket), change
        assert world.committed(1, write), change
    assert world.group(1).configuration == Configuration.of([1])
    world.crash(2, 3, 4)
    ticket = world.propose(1, b"alone")
    world.settle()
    assert world.committed(1, ticket)
    assert world.data(1) == [b"0", b"1", b"2", b"3", b"4", b"5", b"alone"]


def test_remove_leader_leads_until_the_change_is_committed_then_steps_down_and_names_a_successor() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    term = world.group(1).term
    ticket = world.change(1, remove(1))
    world.settle()
    assert world.committed(1, ticket)
    assert world.group(1).role is Role.FOLLOWER
    assert [message for message in world.sent if isinstance(message, TimeoutNow)]
    assert world.leader in (2, 3), "without waiting for a timeout"
    assert world.group(world.leader).term == term + 1
    world.run(10_000)
    assert world.group(1).role is not Role.LEADER
    assert world.group(world.leader).term == term + 1


def test_leader_that_is_not_among_the_new_voters_does_not_count_itself() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(3)
    ticket = world.change(1, remove(1))
    world.run(300)
    assert world.group(1).configuration == Configuration((2, 3), outgoing=(1, 2, 3))
    assert not world.committed(1, ticket), "node 2 alone is no majority of 2 and 3"
    world.restart(3)
    world.run(500)
    assert world.committed(1, ticket)


def test_leader_demoted_to_learner_steps_down_and_follows() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    ticket = world.change(1, learn(1))
    world.run(500)
    assert world.committed(1, ticket)
    leader = world.leader
    assert leader != 1
    write = world.propose(leader, b"x")
    world.run(300)
    assert world.committed(leader, write)
    assert world.data(1, committed=True) == [b"x"]


def test_removed_node_campaigning_with_pre_vote_disturbs_nobody() -> None:
    world = World([1, 2, 3, 4])
    world.elect(1)
    term = world.group(1).term
    world.isolate(4)
    assert isinstance(world.change(1, remove(4)), int)
    world.run(5_000)
    world.heal()
    for number in range(10):
        ticket = world.propose(1, b"%d" % number)
        world.run(1_000)
        assert world.committed(1, ticket)
    assert world.leader == 1
    assert world.group(1).term == term


def test_removed_node_with_a_higher_term_cannot_depose_the_leader() -> None:
    leader = Lone()
    leader.lead()
    leader.hear(HeartbeatResponse(GROUP, 9, 1, 8, 0, 0, accepting=True, sleeping=False, round=0))
    assert (leader.group.role, leader.group.term) == (Role.LEADER, 1)
    leader.hear(HeartbeatResponse(GROUP, 3, 1, 8, 0, 0, accepting=True, sleeping=False, round=0))
    assert leader.group.term == 8, "a member can"


def test_node_left_out_by_the_newest_configuration_still_leads_until_that_is_committed() -> None:
    """Only 2 and 3, which are to be learners, have the entry that says so. Were they not to campaign, nobody could win:
    node 1's log is too short. Found by a storm."""
    joint = Configuration((1,), outgoing=(1, 2, 3), learners=(2, 3))
    final = Configuration.of([1], learners=[2, 3])
    world = World([1, 2, 3])
    for node in (1, 2, 3):
        entries = [Entry(1, 1, EntryKind.CONFIGURATION, joint.encode())]
        if node != 1:
            entries.append(Entry(2, 1, EntryKind.CONFIGURATION, final.encode()))
        world.log(node).append_received(entries)
        world.log(node).sync()
    world.crash(1, 2, 3)
    world.restart(1, 2, 3)
    world.run(10_000)
    assert world.leader == 1
    assert {world.group(node).configuration for node in (1, 2, 3)} == {final}


def test_learner_promoted_after_it_caught_up_keeps_the_group_available() -> None:
    world = World([1, 2], extra=[3])
    world.elect(1)
    for number in range(20):
        world.propose(1, b"%d" % number)
    world.change(1, learn(3))
    world.run(500)
    world.crash(2)
    blocked = world.change(1, add(3))
    world.run(ELECTION_MS - 100)
    assert world.answer(1, blocked) is None, "the old voters need node 2"
    world.restart(2)
    world.run(500)
    assert world.committed(1, blocked)
    world.crash(2)
    ticket = world.propose(1, b"x")
    world.run(100)
    assert world.committed(1, ticket)


def test_leader_with_a_full_disk_ends_a_joint_configuration_when_it_has_room() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    admit(world, 1, 4)
    ticket = world.change(1, add(4))
    world.collect(1)
    world.log(1).accepting = False
    world.run(500)
    assert world.group(1).configuration.joint
    pending = world.change(1, learn(5))
    assert isinstance(pending, Refusal)
    assert pending.reason is Reason.CHANGE_PENDING
    world.log(1).accepting = True
    world.run(500)
    assert world.committed(1, ticket)


def test_new_node_that_hears_of_the_group_only_by_a_take_over_knows_its_members() -> None:
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    for number in range(5):
        world.propose(1, b"%d" % number)
    world.settle()
    world.delete_before(1, 5)
    world.change(1, learn(4))
    world.run(500)
    assert world.log(4).first_index == 5
    assert world.group(4).configuration == Configuration.of([1, 2, 3], learners=[4])
    world.crash(4)
    world.restart(4)
    assert world.group(4).configuration == Configuration.of([1, 2, 3], learners=[4])


def test_history_of_configurations_keeps_the_last_committed_one_and_all_after_it() -> None:
    first, second, third = (Configuration.of([node]) for node in (1, 2, 3))
    membership = Membership([(0, first)])
    membership.appended(4, second)
    membership.appended(7, third)
    membership.appended(7, first)
    assert (membership.in_force_index, membership.in_force) == (7, third), "an entry it has is not news"
    membership.truncated_from(5)
    assert membership.in_force == second
    membership.appended(6, third)
    membership.committed(5)
    assert membership.base == (4, second)
    membership.truncated_from(1)
    assert membership.in_force == second, "what is committed stays"
    with pytest.raises(ConfigurationError, match="to begin with"):
        Membership([])
    told = Membership([(5, second), (4, first), (5, first), (9, third)])
    assert told.base == (5, second), "what its log says before it is history"
    told.truncated_from(9)
    assert told.in_force == second


# Newcomers


def test_newcomer_grants_no_vote_until_its_log_names_it() -> None:
    for pre in (True, False):
        for forced in (True, False):
            node = Lone(configuration=Configuration.of([2, 3]))
            request = vote_request(5, (9, 4), pre=pre, forced=forced)
            assert not only(VoteResponse, node.hear(request)).granted
            named = Configuration.of([2, 3], learners=[1])
            entry = Entry(1, 1, EntryKind.CONFIGURATION, named.encode())
            node.hear(AppendRequest(GROUP, 2, 1, 1, 0, 0, [entry], 0, 0))
            node.now_ms += ELECTION_MS
            assert only(VoteResponse, node.hear(request)).granted


def test_named_by_history_before_what_it_was_told_is_still_a_newcomer() -> None:
    """Node 1 was a voter once, and removed by the configuration at index 6. Blank again, it reads its own past."""
    past = Entry(1, 1, EntryKind.CONFIGURATION, Configuration.of([1, 2, 3]).encode())
    node = Lone(configuration=Configuration.of([2, 3]), configuration_index=6)
    node.hear(AppendRequest(GROUP, 2, 1, 1, 0, 0, [past], 1, 0))
    node.now_ms += ELECTION_MS
    assert not only(VoteResponse, node.hear(vote_request(5, (9, 4)))).granted


def test_newcomer_that_takes_over_votes_only_when_its_log_reaches_what_names_it() -> None:
    named = Configuration.of([2, 3], learners=[1])
    node = Lone(configuration=Configuration.of([2, 3]))
    node.hear(TakeOver(GROUP, 2, 1, 4, 5, 3, 7, named, floor_context(7, named), 0))
    node.now_ms += ELECTION_MS
    assert not only(VoteResponse, node.hear(vote_request(5, (6, 3)))).granted
    node.hear(append(5, (5, 3), 3, 4))
    node.now_ms += ELECTION_MS
    assert only(VoteResponse, node.hear(vote_request(6, (7, 4)))).granted


def test_voter_that_takes_over_keeps_its_vote() -> None:
    """Else a follower that lags would have to be brought up to date before anyone could be elected."""
    node = Lone(log_of_terms(1))
    node.hear(
        TakeOver(GROUP, 2, 1, 4, 5, 3, 7, Configuration.of([1, 2]), floor_context(7, Configuration.of([1, 2])), 0)
    )
    node.now_ms += ELECTION_MS
    assert only(VoteResponse, node.hear(vote_request(5, (9, 4)))).granted


def test_removal_that_is_not_committed_leaves_a_node_its_vote() -> None:
    removed = Configuration.of([2, 3])
    node = Lone(log_of_terms(1))
    entry = Entry(2, 1, EntryKind.CONFIGURATION, removed.encode())
    node.hear(AppendRequest(GROUP, 2, 1, 1, 1, 1, [entry], 1, 0))
    node.now_ms += ELECTION_MS
    assert only(VoteResponse, node.hear(vote_request(2, (2, 1)))).granted
    node.hear(AppendRequest(GROUP, 2, 1, 2, 2, 1, [], 2, 0))
    node.now_ms += ELECTION_MS
    assert not only(VoteResponse, node.hear(vote_request(3, (2, 1), source=3))).granted, (
        "it is committed, and it is gone"
    )


def test_wiped_node_that_begins_again_blank_cannot_elect_one_that_missed_its_removal() -> None:
    """Voters 1, 2, 3; 4 takes the place of 3, while 2 lags; then 3 loses its log and begins again.

    Node 2 still believes in 1, 2, 3. With the vote of 3 it would lead, and undo what 1, 3 and 4 have committed.
    """
    world = World([1, 2, 3], extra=[4])
    world.elect(1)
    admit(world, 1, 4)
    world.isolate(2)
    exchange = world.change(1, add(4), remove(3))
    kept = world.propose(1, b"kept")
    world.run(300)
    assert world.committed(1, exchange)
    assert world.committed(1, kept)
    world.wipe(3, *world.group(1).committed_configuration)
    world.crash(1, 4)
    world.heal()
    world.run(20 * ELECTION_MS)
    assert not world.leaders
    world.restart(1, 4)
    world.run(5 * ELECTION_MS)
    assert world.data(world.leader, committed=True) == [b"kept"]


@pytest.mark.parametrize("heard", [False, True], ids=["not a member", "a learner that has heard nothing yet"])
def test_newcomer_is_not_made_a_voter(heard: bool) -> None:
    """Its vote could be needed for the next election, in which it would hear of itself for the first time."""
    world = World([1], extra=[2])
    world.elect(1)
    if heard:
        world.isolate(2)
        world.change(1, learn(2))
        world.run(100)
    refusal = world.change(1, add(2))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, refusal.detail) == (Reason.NOT_LEARNED, "nodes [2]")
    if heard:
        world.heal()
        world.run(300)
        assert isinstance(world.change(1, add(2)), int)


def test_removed_follower_does_not_hear_from_the_leader_any_more() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.change(1, remove(3))
    world.run(300)
    world.sent.clear()
    world.run(ELECTION_MS)
    assert not [message for message in world.sent if message.source == 1 and message.destination == 3]
