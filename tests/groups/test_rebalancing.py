"""Sync, heartbeats, leaving, dying: how a group moves from generation to generation."""

from typing import Any

import pytest

from tests.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, World, protocols
from tidelog.groups import JoinRequest, JoinResult, LeavingMember, SyncResult
from tidelog.wire.errors import ErrorCode


def joined(world: World, size: int) -> list[str]:
    """Members of a group whose leader has not assigned yet."""
    boxes = [world.join(version=3) for _ in range(size)]
    world.advance(3 * DELAY_MS)
    assert world.state == "CompletingRebalance"
    return [box.result.member_id for box in boxes]


def test_followers_wait_for_the_leader_and_each_gets_its_share():
    world = World()
    a, b, c = joined(world, 3)
    follower = world.sync(b, 1)
    assert follower.waits
    leader = world.sync(a, 1, {a: b"for a", b: b"for b"})
    late = world.sync(c, 1)
    assert [box.result.assignment for box in (leader, follower, late)] == [b"for a", b"for b", b""]
    assert follower.result == SyncResult(ErrorCode.NONE, "consumer", "range", b"for b")
    assert world.state == "Stable"


def test_assignment_is_durable_before_anyone_hears_of_it():
    world = World()
    a, b = joined(world, 2)
    world.hold()
    follower, leader = world.sync(b, 1), world.sync(a, 1, {b: b"share"})
    assert follower.waits
    assert leader.waits
    assert world.state == "CompletingRebalance"
    world.release()
    assert follower.result.assignment == b"share"
    assert leader.error is ErrorCode.NONE


def test_leader_that_syncs_twice_assigns_once():
    world = World()
    a, b = joined(world, 2)
    world.hold()
    follower = world.sync(b, 1)
    first, second = world.sync(a, 1, {b: b"one"}), world.sync(a, 1, {b: b"two"})
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    world.release()
    assert follower.result.assignment == b"one"
    assert second.error is ErrorCode.NONE
    world.check_journal()
    world.restart()
    assert world.sync(b, 1).result.assignment == b"one", "the journal knows of no other"


@pytest.mark.parametrize(
    ("append_error", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_when_the_assignment_cannot_be_written_all_are_told_and_join_again(append_error: ErrorCode, told: ErrorCode):
    world = World()
    a, b = joined(world, 2)
    world.hold()
    boxes = [world.sync(b, 1), world.sync(a, 1, {b: b"lost"})]
    world.release(append_error)
    assert [box.result for box in boxes] == [SyncResult(told)] * 2
    assert world.state == "PreparingRebalance"
    again = [world.join(a), world.join(b)]
    assert [box.result.generation for box in again] == [2, 2]


def test_group_too_large_for_a_record_is_told_so():
    world = World(group_record_bytes_max=1_000)
    (a,) = joined(world, 1)
    assert world.sync(a, 1, {a: b"x" * 1_000}).error is ErrorCode.UNKNOWN_SERVER_ERROR


def test_member_that_joins_while_the_assignment_is_written_starts_a_new_rebalance():
    world = World()
    a, b = joined(world, 2)
    world.hold()
    boxes = [world.sync(b, 1), world.sync(a, 1, {b: b"share"})]
    newcomer = world.join(version=3)
    assert [box.error for box in boxes] == [ErrorCode.REBALANCE_IN_PROGRESS] * 2
    world.release()
    assert world.state == "PreparingRebalance"
    world.join(a)
    world.join(b)
    assert newcomer.result.generation == 2


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol_type": "consumer", "protocol_name": "range"}, ErrorCode.NONE),
    ],
)
def test_sync_is_checked(fields: dict[str, Any], error: ErrorCode):
    world = World()
    (a,) = joined(world, 1)
    request: dict[str, Any] = {"member_id": a, "generation": 1} | fields
    assert world.sync(**request).error is error


def test_heartbeat_in_each_state():
    world = World()
    assert world.heartbeat("anyone", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat("anyone", 1, group_id="") is ErrorCode.INVALID_GROUP_ID
    a, b = joined(world, 2)
    assert world.heartbeat(a, 1) is ErrorCode.NONE, "as Kafka does since 2.8, while the leader assigns"
    world.sync(a, 1)
    assert world.heartbeat(a, 1) is ErrorCode.NONE
    assert world.heartbeat(a, 0) is ErrorCode.ILLEGAL_GENERATION
    assert world.heartbeat("stranger", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.join(version=3)
    assert world.heartbeat(b, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.sync(b, 1).error is ErrorCode.REBALANCE_IN_PROGRESS
    world.advance(SESSION_MS)
    assert world.heartbeat(a, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_newcomer_makes_a_stable_group_rebalance():
    world = World()
    a, b = world.stable_group()
    newcomer = world.join_in_two_steps()
    assert world.state == "PreparingRebalance"
    boxes = [world.join(a), world.join(b)]
    assert [box.result.generation for box in (newcomer, *boxes)] == [2] * 3
    assert boxes[0].result.leader_id == a


def test_slow_member_is_dropped_at_the_rebalance_timeout():
    world = World()
    a, b = world.stable_group()
    again = world.join(a)
    world.keep_alive(REBALANCE_MS - 1, 1, b)
    assert again.waits, "it is alive, so it is waited for"
    world.advance(1)
    assert again.result.generation == 2
    assert world.member_ids() == [a]
    assert world.heartbeat(b, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(b).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_does_not_rejoin_loses_its_place():
    world = World()
    a, b = world.stable_group()
    again = world.join(b, protocols=protocols(topics=("new",)))
    world.keep_alive(REBALANCE_MS, 1, a)
    assert again.result.leader_id == b


def test_leader_that_dies_between_join_and_sync_is_replaced():
    world = World()
    a, b = joined(world, 2)
    waiting = world.sync(b, 1)
    world.advance(SESSION_MS)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    again = world.join(b)
    assert again.result.leader_id == b
    assert world.sync(b, 2, {b: b"all"}).result.assignment == b"all"
    assert world.heartbeat(a, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_lives_but_does_not_sync_is_dropped_at_the_rebalance_timeout():
    world = World()
    a, b = joined(world, 2)
    waiting = world.sync(b, 1)
    world.keep_alive(REBALANCE_MS, 1, a)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(b).result.leader_id == b


def test_follower_that_never_syncs_is_dropped_from_a_stable_group():
    world = World()
    a, b = joined(world, 2)
    world.sync(a, 1)
    world.keep_alive(REBALANCE_MS, 1, a, b)
    assert world.heartbeat(b, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(a, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_silent_member_is_dropped_and_the_others_rebalance():
    world = World()
    a, b = world.stable_group()
    world.keep_alive(9_000, 1, a)
    assert world.heartbeat(a, 1) is ErrorCode.NONE
    world.advance(SESSION_MS - 9_000)
    assert world.heartbeat(a, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(b, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(a).result.generation == 2


def test_commit_is_a_sign_of_life():
    world = World()
    (a,) = world.stable_group(1)
    for _ in range(5):
        world.advance(SESSION_MS - 1)
        assert world.commit_error(member_id=a, generation=1) is ErrorCode.NONE


def test_session_starts_when_a_slow_append_lets_the_answer_go():
    world = World()
    (a,) = joined(world, 1)
    world.hold()
    box = world.sync(a, 1)
    world.now_ms += 5 * SESSION_MS  # nothing is due for us to notice, the disk is slow
    world.release()
    assert box.error is ErrorCode.NONE
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(a, 1) is ErrorCode.NONE


def test_session_starts_when_a_slow_append_fails():
    world = World()
    (a,) = joined(world, 1)
    world.hold()
    world.sync(a, 1)
    world.now_ms += 5 * SESSION_MS
    world.release(ErrorCode.REQUEST_TIMED_OUT)
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(a, 1) is ErrorCode.REBALANCE_IN_PROGRESS


def test_group_whose_members_all_die_becomes_empty():
    world = World()
    world.stable_group()
    world.advance(SESSION_MS + REBALANCE_MS)
    assert world.state == "Empty"
    world.check_journal()


def test_member_that_leaves_makes_the_others_rebalance():
    world = World()
    a, b = world.stable_group()
    assert world.leave(a) is ErrorCode.NONE
    assert world.heartbeat(b, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.join(b).result.leader_id == b


def test_last_member_that_leaves_empties_the_group_and_that_is_durable():
    world = World()
    (a,) = world.stable_group(1)
    assert world.leave(a) is ErrorCode.NONE
    assert world.state == "Empty"
    world.restart()
    assert world.state == "Empty"
    assert world.heartbeat(a, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_leaves_while_it_waits_is_told():
    world = World()
    a, b = world.stable_group()
    waiting = world.join(a)
    world.leave(a)
    assert waiting.result == JoinResult(ErrorCode.UNKNOWN_MEMBER_ID)
    world.join(b)
    waits_for_share = world.join_in_two_steps()
    world.join(b)
    newcomer = waits_for_share.result.member_id
    waiting_sync = world.sync(newcomer, 3)
    world.leave(newcomer)
    assert waiting_sync.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_several_members_leave_at_once_and_each_gets_its_own_error():
    world = World()
    a, b, c = world.stable_group(3)
    leaving = [LeavingMember(a), LeavingMember("stranger"), LeavingMember(b), LeavingMember("", "nobody")]
    result = world.coordinator.leave("readers", leaving, world.now_ms)
    assert [each.error for each in result.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert world.join(c).result.generation == 2, "one rebalance for both"


def test_leaving_an_unknown_group_is_an_error_of_each_member():
    world = World()
    assert world.leave("a", group_id="unknown") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.leave("a", group_id="") is ErrorCode.INVALID_GROUP_ID


def test_follower_that_rejoins_unchanged_gets_the_generation_again():
    world = World()
    a, b = world.stable_group()
    box = world.join(b)
    assert (box.result.generation, box.result.leader_id, box.result.members) == (1, a, ())
    assert world.state == "Stable"
    assert world.sync(b, 1).result.assignment == b"share of 1"


def test_leader_that_rejoins_unchanged_wants_a_rebalance():
    world = World()
    a, b = world.stable_group()
    box = world.join(a)
    assert world.state == "PreparingRebalance"
    world.join(b)
    assert len(box.result.members) == 2


def test_follower_that_rejoins_changed_makes_a_rebalance():
    world = World()
    _, b = world.stable_group()
    assert world.join(b, protocols=protocols(topics=("other",))).waits
    assert world.state == "PreparingRebalance"


def test_member_that_lost_its_answer_while_the_leader_assigns_gets_it_again():
    world = World()
    a, b = joined(world, 2)
    assert world.join(b).result.generation == 1
    assert len(world.join(a).result.members) == 2
    assert world.state == "CompletingRebalance"
    assert world.join(b, protocols=protocols(topics=("other",))).waits
    assert world.state == "PreparingRebalance"


def test_unload_answers_everyone_who_waits():
    world = World()
    a, b = joined(world, 2)
    syncing = world.sync(b, 1)
    other = world.join(group_id="other", version=3)
    world.hold()
    committing = world.commit(group_id="third")
    deleting = world.delete_group("fourth")
    world.coordinator.unload()
    assert syncing.error is ErrorCode.NOT_COORDINATOR
    assert other.error is ErrorCode.NOT_COORDINATOR
    assert committing.result.errors == (ErrorCode.NOT_COORDINATOR,)
    assert deleting.result == {"fourth": ErrorCode.GROUP_ID_NOT_FOUND}
    world.release()  # what was under way ends, and nobody is told twice
    assert world.join().error is ErrorCode.NOT_COORDINATOR
    assert world.sync(a, 1).error is ErrorCode.NOT_COORDINATOR
    assert world.heartbeat(a, 1) is ErrorCode.NOT_COORDINATOR
    assert world.leave(a) is ErrorCode.NOT_COORDINATOR
    assert world.commit_error() is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.fetch("readers").error is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.list_groups()[0] is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.describe("readers").error is ErrorCode.NOT_COORDINATOR
    assert world.delete_group().result == {"readers": ErrorCode.NOT_COORDINATOR}
    assert world.delete_offsets(("orders", 0)).error is ErrorCode.NOT_COORDINATOR
    assert world.coordinator.next_deadline_ms() is None


def test_callback_may_make_the_next_request_at_once():
    world = World()
    shares: list[bytes] = []

    def on_join(result: JoinResult) -> None:
        box = world.sync(result.member_id, result.generation, {each.member_id: b"mine" for each in result.members})
        shares.append(box.result.assignment)

    (a,) = joined(world, 1)
    world.sync(a, 1)
    world.coordinator.join(
        JoinRequest("readers", "consumer", protocols(), SESSION_MS, REBALANCE_MS, member_id=a), on_join, world.now_ms
    )
    assert shares == [b"mine"]
