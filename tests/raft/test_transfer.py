"""Handing leadership over."""

from tests.raft.harness import World
from tests.raft.lone import Lone, append, every, heartbeat, timeout_now
from tidelog.raft import Action, AppendRequest, Change, Configuration, Reason, Refusal, Role, TimeoutNow, VoteRequest


def test_leader_transfer_under_load() -> None:
    """Proposals before it are committed, those during it are refused at once, those after it go to the new leader."""
    world = World([1, 2, 3])
    world.elect(1)
    before = [world.propose(1, b"%d" % number) for number in range(20)]
    assert world.transfer(1, 3) is None
    during = world.propose(1, b"during")
    assert during == Refusal(Reason.TRANSFERRING, 1)
    assert world.change(1, Change(Action.REMOVE, 2)) == Refusal(Reason.TRANSFERRING, 1)
    world.settle()
    assert world.leader == 3
    assert all(world.committed(1, ticket) for ticket in before)
    after = world.propose(3, b"after")
    world.settle()
    assert world.committed(3, after)
    assert world.data(1)[-2:] == [b"19", b"after"]


def test_leader_transfer_to_a_lagging_node_waits_until_it_has_caught_up() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.cut(1, 3)
    for number in range(20):
        world.propose(1, b"%d" % number)
    world.settle()
    assert world.transfer(1, 3) is None
    world.settle()
    assert world.leader == 1
    world.heal()
    world.run(300)
    assert world.leader == 3
    assert world.data(3) == [b"%d" % number for number in range(20)]


def test_transfer_to_a_dead_node_is_given_up_after_an_election_timeout() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(3)
    world.propose(1, b"x")
    world.settle()
    world.transfer(1, 3)
    world.run(world.settings.election_timeout_ms - 1)
    assert world.propose(1, b"y") == Refusal(Reason.TRANSFERRING, 1)
    world.run(1)
    assert isinstance(world.propose(1, b"y"), int)
    assert world.group(1).lease_index(world.now_ms) is not None, "nobody was told to campaign"


def test_transfer_that_was_lost_on_the_way_is_repeated() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.lost = lambda message: isinstance(message, TimeoutNow)
    world.transfer(1, 2)
    world.run(150)
    world.heal()
    world.run(150)
    assert world.leader == 2


def test_transfer_only_to_another_voter() -> None:
    world = World([1, 2, 3], learners=[4])
    world.elect(1)
    for target in (1, 4, 9):
        refusal = world.transfer(1, target)
        assert isinstance(refusal, Refusal)
        assert refusal.reason is Reason.INVALID


def test_told_to_campaign_a_node_asks_for_votes_without_asking_whether_it_would_win() -> None:
    node = Lone(term=1)
    node.hear(append(1, (0, 0), 1))
    requests = every(VoteRequest, node.hear(timeout_now(1)))
    assert {(request.pre, request.forced, request.term) for request in requests} == {(False, True, 2)}


def test_told_to_campaign_by_someone_else_than_its_leader_a_node_does_not() -> None:
    node = Lone(term=1)
    node.hear(heartbeat(1, source=2))
    assert not node.hear(timeout_now(1, source=3))
    assert node.group.role is Role.FOLLOWER


def test_told_to_campaign_a_learner_does_not() -> None:
    node = Lone(term=1, configuration=Configuration.of([2, 3], learners=[1]))
    assert not node.hear(timeout_now(1))


def test_target_that_has_not_the_whole_log_is_not_told_to_campaign() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.lost = lambda message: isinstance(message, AppendRequest) and message.destination == 2
    world.propose(1, b"x")
    world.settle()
    world.transfer(1, 2)
    world.run(500)
    assert not [message for message in world.sent if isinstance(message, TimeoutNow)]


def test_transfer_to_a_node_that_is_silent_is_refused_and_does_not_keep_it_from_being_removed() -> None:
    world = World([1, 2, 3])
    world.elect(1)
    world.crash(3)
    world.run(world.settings.election_timeout_ms + 100)
    refusal = world.transfer(1, 3)
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.INVALID
    assert "not heard" in refusal.detail
    removal = world.change(1, Change(Action.REMOVE, 3))
    assert isinstance(removal, int)
    world.run(300)
    assert world.committed(1, removal)
    assert world.transfer(1, 2) is None
    world.settle()
    assert world.leader == 2
