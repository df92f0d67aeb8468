"""The leader's side: what it sends, how far, how it finds the place where logs part, what it counts as committed."""

import pytest

from tests.raft.harness import GROUP, World
from tests.raft.lone import Lone, every, only
from tests.raft.memory_log import MemoryLog, log_of_terms
from tidelog.raft import (
    AppendRejected,
    AppendRequest,
    AppendResponse,
    Committed,
    Configuration,
    EntryKind,
    Heartbeat,
    HeartbeatResponse,
    RaftInvariantError,
    RaftSettings,
    TakeOver,
    VoteResponse,
)

LATER_MS = 10**9


def acknowledge(
    leader: Lone, source: int, match: int, *, accepting: bool = True, round_: int = 0
) -> list[AppendRequest]:
    response = AppendResponse(GROUP, source, 1, leader.group.term, match, accepting, round_)
    return every(AppendRequest, leader.hear(response))


def beat(leader: Lone) -> int:
    """A heartbeat interval passes. Returns the round that began."""
    leader.now_ms += leader.group._replica.settings.heartbeat_ms
    leader.group.tick(leader.now_ms)
    return every(Heartbeat, leader.take())[0].round


def answer_beat(
    leader: Lone, source: int, match: int, verified: int, round_: int, *, accepting: bool = True
) -> list[AppendRequest]:
    response = HeartbeatResponse(GROUP, source, 1, leader.group.term, match, verified, accepting, False, round_)
    return every(AppendRequest, leader.hear(response))


def propose(leader: Lone, *data: bytes) -> list[AppendRequest]:
    ticket = leader.group.propose(EntryKind.DATA, data, LATER_MS, leader.now_ms)
    assert isinstance(ticket, int)
    return every(AppendRequest, leader.take())


def spans(appends: list[AppendRequest], destination: int) -> list[tuple[int, int]]:
    """(previous index, last index) of the appends to one node."""
    return [
        (append.previous_index, append.previous_index + len(append.entries))
        for append in appends
        if append.destination == destination
    ]


# Sending


def test_leader_sends_before_its_own_disk_has_it_and_counts_itself_only_after() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.nodes[1].disk_works = False
    ticket = world.propose(1, b"x")
    world.cut(1, 3)
    world.settle()
    assert world.log(2).durable_index == 2
    assert not world.committed(1, ticket), "one durable copy of three"
    assert world.group(1).commit == 1
    world.sync(1)
    assert world.committed(1, ticket)


def test_leader_counts_itself_no_further_than_its_disk_has_got() -> None:
    leader = Lone(configuration=Configuration.of([1, 2]))
    leader.lead()
    leader.disk_works = False
    propose(leader, b"a", b"b", b"c")
    acknowledge(leader, 2, 4)
    assert leader.group.commit == 1
    leader.log.sync(3)
    leader.group.written(leader.now_ms)
    assert leader.group.commit == 3


def test_leader_counts_its_noop_only_when_its_disk_has_it() -> None:
    leader = Lone(configuration=Configuration.of([1, 2]))
    leader.group.campaign(leader.now_ms)
    leader.take()
    leader.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=True))
    leader.disk_works = False
    leader.hear(VoteResponse(GROUP, 2, 1, 1, granted=True, pre=False))
    acknowledge(leader, 2, 1)
    assert leader.group.commit == 0
    leader.log.sync()
    leader.group.written(leader.now_ms)
    assert leader.group.commit == 1


def test_leader_whose_disk_is_slow_commits_with_the_others() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.nodes[1].disk_works = False
    ticket = world.propose(1, b"x")
    world.settle()
    assert world.committed(1, ticket)
    assert world.log(1).durable_index < world.group(1).commit


def test_proposals_of_one_turn_leave_in_one_append_and_are_read_once() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.sent.clear()
    world.log(1).reads = 0
    for number in range(10):
        world.propose(1, b"%d" % number)
    world.settle()
    appends = [message for message in world.sent if isinstance(message, AppendRequest)]
    assert [(append.destination, len(append.entries)) for append in appends] == [(2, 10), (3, 10)]
    assert world.log(1).reads == 1
    assert len([message for message in world.sent if isinstance(message, AppendResponse)]) == 2


def test_appends_are_cut_at_their_bound_in_bytes_but_one_entry_always_goes() -> None:
    world = World([1, 2], settings=RaftSettings(append_bytes_max=10))
    world.elect(1)
    world.sent.clear()
    world.propose(1, b"1234", b"5678", b"90ab", b"x" * 100, b"c")
    world.settle()
    appends = [message for message in world.sent if isinstance(message, AppendRequest)]
    assert [[len(entry.data) for entry in append.entries] for append in appends] == [[4, 4], [4], [100], [1]]
    assert world.data(2) == world.data(1)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (RaftSettings(window_messages_max=3), 3),
        (RaftSettings(window_entries_max=4), 4),
        (RaftSettings(window_bytes_max=50), 5),
    ],
)
def test_window_bounds_what_is_on_its_way_to_a_follower(settings: RaftSettings, expected: int) -> None:
    leader = Lone(settings=settings)
    leader.lead()
    acknowledge(leader, 2, 1)
    sent = [append for _ in range(20) for append in propose(leader, b"ten bytes.")]
    assert spans(sent, 2) == [(index, index + 1) for index in range(1, 1 + expected)]
    assert len(spans(acknowledge(leader, 2, 2), 2)) == 1, "room for one: the rest of the log, cut at the bounds"


def test_window_in_entries_and_bytes_also_bounds_what_one_message_takes() -> None:
    leader = Lone(settings=RaftSettings(window_entries_max=6, window_bytes_max=45, append_bytes_max=1_000))
    leader.lead()
    acknowledge(leader, 2, 1)
    assert spans(propose(leader, *[b"ten bytes."] * 30), 2) == [(1, 5), (5, 6)], (
        "40 of 45 bytes, then the last may cross"
    )
    assert spans(acknowledge(leader, 2, 6), 2) == [(6, 10), (10, 11)]
    leader = Lone(settings=RaftSettings(window_entries_max=6))
    leader.lead()
    acknowledge(leader, 2, 1)
    assert spans(propose(leader, *[b"ten bytes."] * 30), 2) == [(1, 7)]


def test_probing_sends_one_message_until_it_is_answered() -> None:
    leader = Lone(log_of_terms(1))
    assert spans(every(AppendRequest, leader.lead()), 2) == [(1, 2)]
    assert not spans(propose(leader, b"x"), 2)
    assert not spans(propose(leader, b"y"), 2)
    assert spans(acknowledge(leader, 2, 2), 2) == [(2, 4)]


# Finding the place where logs part


def test_rejection_moves_back_past_everything_that_cannot_match_on_either_side() -> None:
    leader = Lone(log_of_terms(1, 1, 1, 4, 4, 5, 5, 6, 6, 6), term=7)
    assert spans(every(AppendRequest, leader.lead()), 2) == [(10, 11)]
    messages = leader.hear(AppendRejected(GROUP, 2, 1, leader.group.term, 10, 8, 3, 0))
    assert spans(every(AppendRequest, messages), 2) == [(3, 11)], "the last entry here of term 3 or less"


def test_rejection_that_is_out_of_date_is_ignored() -> None:
    leader = Lone(log_of_terms(1, 1, 1))
    leader.lead()
    stale = AppendRejected(GROUP, 2, 1, leader.group.term, 2, 0, 0, 0)
    assert not leader.hear(stale), "it answers a probe that is not the present one"
    acknowledge(leader, 2, 4)
    assert not leader.hear(stale), "it speaks of entries that are acknowledged since"


def test_rejection_in_the_pipeline_falls_back_to_what_is_acknowledged_at_most() -> None:
    leader = Lone(log_of_terms(1, 1, 1))
    leader.lead()
    acknowledge(leader, 2, 4)
    propose(leader, b"x")
    propose(leader, b"y")
    messages = leader.hear(AppendRejected(GROUP, 2, 1, leader.group.term, 5, 1, 1, 0))
    assert spans(every(AppendRequest, messages), 2) == [(4, 6)]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_append_that_was_lost_is_sent_again_after_a_heartbeat(lost: int) -> None:
    world = World([1, 2])
    world.elect(1)
    tickets = []
    for number in range(3):
        world.lost = (lambda message: isinstance(message, AppendRequest)) if number == lost else lambda _: False
        tickets.append(world.propose(1, b"%d" % number))
        world.settle()
    world.heal()
    world.run(2 * world.settings.heartbeat_ms)
    assert all(world.committed(1, ticket) for ticket in tickets)
    assert world.data(2) == [b"0", b"1", b"2"]


def test_acknowledgement_that_was_lost_is_made_up_for_by_a_heartbeat_without_sending_again() -> None:
    world = World([1, 2])
    world.elect(1)
    world.lost = lambda message: isinstance(message, AppendResponse)
    ticket = world.propose(1, b"x")
    world.settle()
    world.sent.clear()
    world.run(world.settings.heartbeat_ms)
    assert world.committed(1, ticket)
    assert not [message for message in world.sent if isinstance(message, AppendRequest)]


def test_slow_disk_of_a_follower_is_no_loss() -> None:
    leader = Lone()
    leader.lead()
    acknowledge(leader, 2, 1)
    assert spans(propose(leader, b"x"), 2) == [(1, 2)]
    assert not spans(answer_beat(leader, 2, 1, 2, beat(leader)), 2), "it has it, if not on disk"
    assert spans(answer_beat(leader, 2, 1, 1, beat(leader)), 2) == [(1, 2)], "it does not have it"


def test_heartbeat_sent_before_an_append_says_nothing_about_it() -> None:
    leader = Lone()
    leader.lead()
    acknowledge(leader, 2, 1)
    round_ = beat(leader)
    propose(leader, b"x")
    assert not answer_beat(leader, 2, 1, 1, round_)


def test_broken_connection_makes_the_leader_send_again() -> None:
    leader = Lone()
    leader.lead()
    acknowledge(leader, 2, 1)
    propose(leader, b"x")
    leader.group.peer_unreachable(2, leader.now_ms)
    assert spans(every(AppendRequest, leader.take()), 2) == [(1, 2)]


def test_follower_with_a_full_disk_is_sent_nothing_until_it_has_room() -> None:
    leader = Lone()
    leader.lead()
    acknowledge(leader, 2, 1)
    propose(leader, b"x")
    assert not acknowledge(leader, 2, 1, accepting=False)
    assert not spans(propose(leader, b"y"), 2)
    assert not spans(answer_beat(leader, 2, 1, 1, beat(leader), accepting=False), 2)
    assert spans(answer_beat(leader, 2, 1, 1, beat(leader)), 2) == [(1, 3)]


def test_full_disk_of_a_follower_heals_without_help() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.log(3).accepting = False
    tickets = [world.propose(1, b"%d" % number) for number in range(5)]
    world.run(1_000)
    assert all(world.committed(1, ticket) for ticket in tickets)
    assert world.data(3) == []
    world.log(3).accepting = True
    world.run(300)
    assert world.data(3) == world.data(1)


def test_take_over_is_sent_again_when_it_was_lost() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(3)
    for number in range(5):
        world.propose(1, b"%d" % number)
    world.settle()
    world.delete_before(1, 6)
    world.restart(3)
    world.lost = lambda message: isinstance(message, TakeOver)
    world.run(500)
    assert world.log(3).first_index == 1
    world.heal()
    world.run(500)
    assert world.log(3).first_index == 6
    assert world.group(3).commit == world.group(1).commit


# Committing


def test_entries_of_earlier_terms_are_not_committed_by_counting_copies() -> None:
    leader = Lone(log_of_terms(1, 2), term=3)
    leader.lead()
    acknowledge(leader, 2, 2)
    acknowledge(leader, 3, 2)
    assert leader.group.commit == 0, "both have entry 2, of term 2"
    acknowledge(leader, 2, 3)
    assert leader.group.commit == 3, "the entry of this term commits the earlier ones with it"


def test_learner_does_not_count() -> None:
    world = World([1, 2, 3], learners=[4, 5])
    world.elect(1)
    world.crash(2, 3)
    ticket = world.propose(1, b"x")
    world.settle()
    assert world.data(4) == world.data(5) == [b"x"]
    assert not world.committed(1, ticket)


def test_node_that_is_no_member_does_not_count() -> None:
    leader = Lone()
    leader.lead()
    acknowledge(leader, 9, 1)
    assert leader.group.commit == 0
    acknowledge(leader, 3, 1)
    assert leader.group.commit == 1


def test_acknowledgement_that_is_older_than_the_last_changes_nothing() -> None:
    leader = Lone()
    leader.lead()
    leader.disk_works = False
    propose(leader, b"x")
    acknowledge(leader, 2, 2)
    acknowledge(leader, 2, 1)
    acknowledge(leader, 3, 2)
    assert leader.group.commit == 2


def test_commit_beyond_the_log_is_fatal() -> None:
    leader = Lone(configuration=Configuration.of([1, 2]))
    leader.lead()
    with pytest.raises(RaftInvariantError, match="beyond the log"):
        leader.group._replica.advance_commit(2)


def test_four_voters_need_three_copies() -> None:
    world = World([1, 2, 3, 4])
    world.elect(1)
    world.crash(3, 4)
    ticket = world.propose(1, b"x")
    world.settle()
    assert not world.committed(1, ticket)
    world.restart(3)
    world.run(200)
    assert world.committed(1, ticket)


def test_answer_that_echoes_a_round_which_never_was_is_fatal() -> None:
    leader = Lone()
    leader.lead()
    with pytest.raises(RaftInvariantError, match="answers round"):
        acknowledge(leader, 2, 1, round_=1 << 60)


def test_committed_answer_names_the_last_index() -> None:
    leader = Lone(MemoryLog())
    leader.lead()
    ticket = leader.group.propose(EntryKind.DATA, [b"a", b"b", b"c"], LATER_MS, leader.now_ms)
    assert isinstance(ticket, int)
    leader.take()
    leader.group.receive(AppendResponse(GROUP, 2, 1, 1, 4, True, 0), leader.now_ms)
    effects = leader.group.take_effects()
    assert list(effects.answers) == [Committed(ticket, 4)]
    assert effects.commit == 4
    assert only(AppendRequest, propose(leader, b"d")[:1]).commit == 4
