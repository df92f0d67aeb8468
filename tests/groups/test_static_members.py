"""Members with a group.instance.id: they come back without a rebalance, and fence whoever they were before."""

from typing import Any

import pytest

from tests.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, World, protocols
from tidelog.groups import LeavingMember
from tidelog.wire.errors import ErrorCode

FENCED = ErrorCode.FENCED_INSTANCE_ID


def static_group(world: World, *instances: str, **fields: Any) -> list[str]:
    """Static members of a Stable group, the leader first."""
    boxes = [world.join(instance_id=instance, **fields) for instance in instances]
    world.advance(3 * DELAY_MS)
    ids = [box.result.member_id for box in boxes]
    for member_id in ids[1:]:
        world.sync(member_id, 1)
    world.sync(ids[0], 1, {member_id: f"share of {n}".encode() for n, member_id in enumerate(ids)})
    return ids


def test_static_member_joins_in_one_step_and_its_id_tells_its_instance():
    world = World()
    box = world.join(instance_id="one")
    world.advance(DELAY_MS)
    assert box.error is ErrorCode.NONE
    assert box.result.member_id.startswith("one-")
    assert box.result.members[0].instance_id == "one"


def test_static_follower_comes_back_without_a_rebalance_and_keeps_its_share():
    world = World()
    a, b = static_group(world, "one", "two")
    box = world.join(instance_id="two")
    new = box.result.member_id
    assert (box.error, box.result.generation, box.result.leader_id, box.result.members) == (ErrorCode.NONE, 1, a, ())
    assert new != b
    assert world.state == "Stable"
    assert world.sync(new, 1, instance_id="two").result.assignment == b"share of 1"
    assert world.heartbeat(a, 1, "one") is ErrorCode.NONE
    world.check_journal()
    world.restart()
    assert world.member_ids() == [a, new], "the new id is durable"


def test_former_id_of_a_static_member_is_fenced_everywhere():
    world = World()
    _, old = static_group(world, "one", "two")
    world.join(instance_id="two")
    assert world.heartbeat(old, 1, "two") is FENCED
    assert world.sync(old, 1, instance_id="two").error is FENCED
    assert world.join(old, instance_id="two").error is FENCED
    assert world.leave(old, "two") is FENCED
    assert world.commit_error(member_id=old, generation=1, instance_id="two") is FENCED
    assert world.heartbeat(old, 1) is ErrorCode.UNKNOWN_MEMBER_ID, "without its instance id it is nobody"


def test_static_leader_that_comes_back_is_told_to_skip_the_assignment():
    world = World()
    static_group(world, "one", "two")
    result = world.join(instance_id="one", version=9).result
    assert result.skip_assignment
    assert result.leader_id == result.member_id
    assert len(result.members) == 2


def test_static_leader_of_an_old_version_is_told_that_its_former_self_leads():
    world = World()
    old, _ = static_group(world, "one", "two")
    result = world.join(instance_id="one", version=8).result
    assert result.leader_id == old
    assert result.members == ()
    assert not result.skip_assignment
    assert world.state == "Stable"


def test_new_id_of_a_static_member_is_durable_before_it_hears_of_it():
    world = World()
    static_group(world, "one", "two")
    world.hold()
    box = world.join(instance_id="two")
    assert box.waits
    world.release()
    assert box.error is ErrorCode.NONE


def test_when_the_new_id_cannot_be_written_it_is_told_and_the_group_rebalances():
    world = World()
    a, b = static_group(world, "one", "two")
    world.hold()
    box = world.join(instance_id="two")
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert box.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(b, 1, "two") is FENCED
    boxes = [world.join(a, instance_id="one"), world.join(instance_id="two")]
    assert [each.result.generation for each in boxes] == [2, 2]
    assert len(world.member_ids()) == 2


def test_new_id_that_was_not_written_but_came_along_with_another_is_what_the_journal_has():
    # A storm found this: taken back in memory, it lived on in the record of the second one.
    world = World()
    static_group(world, "one", "two")
    world.hold()
    first, second = world.join(instance_id="one"), world.join(instance_id="two")
    world.release(ErrorCode.REQUEST_TIMED_OUT, count=1)
    world.release()
    assert first.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert second.waits, "for the rebalance"
    again = world.join(instance_id="one")
    assert [box.result.generation for box in (again, second)] == [2, 2]


def test_two_processes_of_one_instance_fence_each_other():
    world = World()
    static_group(world, "one", "two")
    world.hold()
    first, second = world.join(instance_id="two"), world.join(instance_id="two")
    assert first.error is FENCED
    world.release()
    assert second.error is ErrorCode.NONE
    world.check_journal()


def test_rebalance_that_begins_before_the_new_id_is_written_answers_it():
    world = World()
    a, _ = static_group(world, "one", "two")
    world.hold()
    box = world.join(instance_id="two")
    world.join(a, instance_id="one")
    assert box.result.generation == 2
    world.release()


def test_static_member_that_changes_the_chosen_protocol_makes_a_rebalance():
    world = World()
    a, _ = static_group(world, "one", "two", protocols=protocols("range", "sticky"))
    box = world.join(instance_id="two", protocols=protocols("sticky"))
    assert box.waits
    assert world.state == "PreparingRebalance"
    world.join(a, instance_id="one", protocols=protocols("range", "sticky"))
    assert box.result.protocol_name == "sticky"


def test_static_member_that_comes_back_while_the_leader_assigns_makes_a_rebalance():
    world = World()
    boxes = [world.join(instance_id=each) for each in ("one", "two")]
    world.advance(3 * DELAY_MS)
    a, b = (box.result.member_id for box in boxes)
    waiting = world.sync(b, 1, instance_id="two")
    box = world.join(instance_id="two")
    assert waiting.error is FENCED
    assert world.state == "PreparingRebalance"
    world.join(a, instance_id="one")
    assert box.result.generation == 2


def test_static_member_that_comes_back_while_others_join_takes_its_own_place():
    world = World()
    a, _ = static_group(world, "one", "two")
    first = world.join(a, instance_id="one")
    second = world.join(instance_id="two")
    assert [box.result.generation for box in (first, second)] == [2, 2]
    assert len(world.member_ids()) == 2


def test_waiting_join_of_a_static_member_is_fenced_by_its_successor():
    world = World()
    first = world.join(instance_id="one")
    second = world.join(instance_id="one")
    assert first.error is FENCED
    world.advance(DELAY_MS)
    assert second.result.generation == 1


def test_static_member_survives_a_rebalance_it_missed_until_its_session_ends():
    world = World()
    a, b = static_group(world, "one", "two", session_timeout_ms=REBALANCE_MS + 5_000)
    box = world.join(a, instance_id="one")
    world.advance(REBALANCE_MS)
    assert box.result.generation == 2
    assert world.member_ids() == [a, b]


def test_rebalance_that_no_static_member_joined_waits_for_their_sessions():
    world = World()
    static_group(world, "one", "two", session_timeout_ms=5 * REBALANCE_MS)
    world.leave(instance_id="two")
    world.advance(4 * REBALANCE_MS)
    assert world.state == "PreparingRebalance"
    world.advance(REBALANCE_MS)
    assert world.state == "Empty"


def test_silent_static_member_is_dropped_after_its_session():
    world = World()
    a, b = static_group(world, "one", "two")
    world.keep_alive(9_000, 1, a)
    world.advance(SESSION_MS - 9_000)
    assert world.heartbeat(b, 1, "two") is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.heartbeat(a, 1, "one") is ErrorCode.REBALANCE_IN_PROGRESS


def test_static_member_is_removed_by_its_instance_id_alone():
    world = World()
    a, b = static_group(world, "one", "two")
    result = world.coordinator.leave(
        "readers", [LeavingMember("", "two"), LeavingMember("", "two"), LeavingMember(b, "one")], world.now_ms
    )
    assert [each.error for each in result.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, FENCED]
    assert world.member_ids() == [a]
    assert world.leave("", None) is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_member_finds_room_in_a_full_group():
    world = World(members_max=2)
    static_group(world, "one", "two")
    assert world.join(instance_id="two").error is ErrorCode.NONE
    assert world.join(instance_id="three").error is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("after_restart", [False, True])
def test_static_member_with_the_right_id_is_itself(after_restart: bool):
    world = World()
    a, b = static_group(world, "one", "two")
    if after_restart:
        world.restart()
    assert world.heartbeat(b, 1, "two") is ErrorCode.NONE
    assert world.heartbeat(b, 1) is ErrorCode.NONE
    assert world.sync(a, 1, instance_id="one").result.assignment == b"share of 0"
    assert world.join(instance_id="two").result.generation == 1
