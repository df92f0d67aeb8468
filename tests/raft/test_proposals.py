"""Every proposal is answered exactly once: committed, or refused with a reason. (That none is answered twice, the world
checks everywhere.)"""

import pytest

from tests.raft.harness import World
from tests.raft.lone import ELECTION_MS
from tidelog.raft import Committed, EntryKind, HardState, RaftSettings, Reason, Refusal, Refused
from tidelog.raft.proposals import Proposals
from tidelog.raft.settings import NEVER_MS


def test_committed_proposals_are_answered_in_order() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    tickets = [world.propose(1, b"%d" % number) for number in range(5)]
    world.settle()
    assert [world.answer(1, ticket) for ticket in tickets] == [
        Committed(ticket, index) for index, ticket in enumerate(tickets, 2) if isinstance(ticket, int)
    ]


def test_proposals_are_refused_when_leadership_is_lost() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.isolate(1)
    tickets = [world.propose(1, b"%d" % number) for number in range(3)]
    world.run(3_000)
    assert {world.refused(1, ticket) for ticket in tickets} == {Reason.LEADERSHIP_LOST}


def test_proposals_refused_by_a_new_leaders_message_name_it() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.cut(1, 2, 3)
    ticket = world.propose(1, b"x")
    world.settle()
    world.now_ms += 2 * ELECTION_MS
    world.elect(2)
    answer = world.answer(1, ticket)
    assert isinstance(answer, Refused)
    assert answer.refusal == Refusal(Reason.LEADERSHIP_LOST, 2)


def test_proposal_is_refused_at_its_deadline_and_may_yet_be_committed() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(2, 3)
    late = world.propose(1, b"late", within_ms=50)
    patient = world.propose(1, b"patient", within_ms=900)
    later = world.propose(1, b"later", within_ms=70)
    world.run(49)
    assert world.answer(1, late) is None
    world.run(1)
    assert world.refused(1, late) is Reason.TIMED_OUT
    assert world.answer(1, later) is None
    world.run(20)
    assert world.refused(1, later) is Reason.TIMED_OUT
    world.restart(2, 3)
    world.run(500)
    assert world.committed(1, patient)
    assert world.data(2, committed=True) == [b"late", b"patient", b"later"]


def test_proposals_are_bounded_in_number() -> None:
    world = World([1, 2, 3], settings=RaftSettings(proposals_max=3))
    world.elect(1)
    world.crash(2, 3)
    outcomes = [world.propose(1, b"x") for _ in range(4)]
    assert outcomes[3] == Refusal(Reason.BUSY, 1)
    assert world.log(1).last_index == 4, "what was refused is not in the log"
    world.restart(2)
    world.run(200)
    assert isinstance(world.propose(1, b"x"), int)


def test_proposals_are_bounded_in_bytes_but_one_is_always_taken() -> None:
    world = World([1, 2, 3], settings=RaftSettings(proposals_bytes_max=10))
    world.elect(1)
    world.crash(2, 3)
    assert isinstance(world.propose(1, b"x" * 50), int)
    assert world.propose(1, b"y") == Refusal(Reason.BUSY, 1)
    world.restart(2)
    world.run(200)
    assert isinstance(world.propose(1, b"1234", b"5678"), int)
    assert world.propose(1, b"abc") == Refusal(Reason.BUSY, 1)
    assert isinstance(world.propose(1, b"ab"), int)


def test_proposals_are_refused_while_the_leaders_disk_is_full() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.log(1).accepting = False
    assert world.propose(1, b"x") == Refusal(Reason.STORAGE_FULL, 1)
    world.run(2_000)
    assert world.leader == 1, "it still leads and serves reads"
    world.log(1).accepting = True
    assert isinstance(world.propose(1, b"x"), int)


def test_only_clients_entries_can_be_proposed() -> None:
    world = World([1])
    world.elect(1)
    for kind in (EntryKind.NOOP, EntryKind.CONFIGURATION):
        with pytest.raises(ValueError, match="cannot propose"):
            world.group(1).propose(kind, [b"x"], NEVER_MS, world.now_ms)
    with pytest.raises(ValueError, match="cannot propose"):
        world.propose(1)
    ticket = world.group(1).propose(EntryKind.LOG_START, [b"offset 9"], NEVER_MS, world.now_ms)
    world.settle()
    assert world.committed(1, ticket)


def test_group_that_is_let_go_of_refuses_what_is_unanswered() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(2, 3)
    ticket = world.propose(1, b"x")
    answers = world.group(1).close().answers
    assert [(answer.ticket, answer.refusal.reason) for answer in answers if isinstance(answer, Refused)] == [
        (ticket, Reason.LEADERSHIP_LOST)
    ]


def test_single_voter_commits_when_its_own_disk_has_it() -> None:
    world = World([1], hard_states={1: HardState(4)})
    world.elect(1)
    world.nodes[1].disk_works = False
    ticket = world.propose(1, b"x")
    world.settle()
    assert not world.committed(1, ticket)
    world.sync(1)
    assert world.committed(1, ticket)


def test_deadline_of_the_queue_is_never_later_than_the_earliest_of_its_proposals() -> None:
    proposals = Proposals(count_max=10, bytes_max=100)
    for ticket, (index, deadline) in enumerate([(1, 50), (2, 20), (3, 80)]):
        proposals.add(ticket, index, 5, deadline)
    assert proposals.deadline_ms == 20
    assert proposals.expired(19) == []
    assert proposals.expired(20) == [1]
    assert proposals.deadline_ms == 50
    assert proposals.committed(1) == [(0, 1)]
    assert proposals.expired(50) == []
    assert proposals.deadline_ms == 80
    assert proposals.abandoned() == [2]
    assert (len(proposals), proposals.deadline_ms) == (0, NEVER_MS)
