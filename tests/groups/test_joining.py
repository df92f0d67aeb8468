"""From JoinGroup to a generation: two-step ids, the initial delay, protocols, leaders, and who is turned away."""

from typing import Any

import pytest

from tests.groups.harness import DELAY_MS, REBALANCE_MS, SESSION_MS, World, protocols
from tidelog.groups import Protocol
from tidelog.wire.errors import ErrorCode


def test_dynamic_member_is_first_told_its_id_and_then_joins_with_it():
    world = World()
    first = world.join(version=4)
    assert first.error is ErrorCode.MEMBER_ID_REQUIRED
    member_id = first.result.member_id
    assert member_id.startswith("client-")
    assert len(member_id) == len("client-") + 36
    second = world.join(member_id, version=4)
    assert second.waits
    world.advance(DELAY_MS)
    result = second.result
    assert (result.error, result.member_id, result.generation) == (ErrorCode.NONE, member_id, 1)
    assert (result.leader_id, result.protocol_type, result.protocol_name) == (member_id, "consumer", "range")
    assert [(each.member_id, each.metadata) for each in result.members] == [(member_id, protocols()[0].metadata)]
    assert not result.skip_assignment


def test_member_of_an_old_version_joins_in_one_step():
    world = World()
    box = world.join(version=3)
    assert box.waits
    world.advance(DELAY_MS)
    assert box.error is ErrorCode.NONE


def test_pending_id_lapses_with_the_session_timeout():
    world = World()
    member_id = world.join().result.member_id
    world.advance(SESSION_MS)
    assert world.join(member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_pending_id_may_not_join_as_static_member():
    world = World()
    member_id = world.join().result.member_id
    assert world.join(member_id, instance_id="one").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_waits_for_a_pending_member_until_it_lapses():
    world = World()
    a, b = world.stable_group()
    pending = world.join().result.member_id
    assert world.heartbeat(a, 1) is ErrorCode.NONE, "a pending member disturbs nobody"
    rejoin = world.join(a)
    world.join(b)
    assert rejoin.waits, "a pending member is waited for"
    world.advance(SESSION_MS)
    assert rejoin.error is ErrorCode.NONE
    assert world.join(pending).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_join_goes_on_when_the_pending_member_leaves():
    world = World()
    a, b = world.stable_group()
    pending = world.join().result.member_id
    boxes = [world.join(a), world.join(b)]
    assert world.leave(pending) is ErrorCode.NONE
    assert [box.result.generation for box in boxes] == [2, 2]


def test_pending_member_that_leaves_a_stable_group_starts_no_rebalance():
    world = World()
    a, _ = world.stable_group()
    assert world.leave(world.join().result.member_id) is ErrorCode.NONE
    assert world.state == "Stable"
    assert world.heartbeat(a, 1) is ErrorCode.NONE


def test_initial_delay_is_extended_while_members_come_up_to_the_rebalance_timeout():
    world = World()
    boxes = [world.join(version=3, rebalance_timeout_ms=8_000)]
    for _ in range(3):
        world.advance(2_000)
        boxes.append(world.join(version=3, rebalance_timeout_ms=8_000))
    world.advance(1_999)
    assert boxes[0].waits
    world.advance(1)
    assert [box.result.generation for box in boxes] == [1] * 4, "together, at the end of the rebalance timeout"


def test_initial_delay_is_not_extended_when_nobody_comes():
    world = World()
    box = world.join(version=3)
    world.advance(DELAY_MS - 1)
    assert box.waits
    world.advance(1)
    assert box.result.generation == 1


def test_group_that_became_empty_waits_again_when_it_wakes():
    world = World()
    (a,) = world.stable_group(1)
    world.leave(a)
    assert world.state == "Empty"
    box = world.join(version=3)
    assert box.waits
    world.advance(DELAY_MS)
    assert box.result.generation == 3, "the empty one was a generation too"


def test_initial_delay_knows_nothing_of_an_earlier_one():
    world = World()
    a = world.join(version=3, rebalance_timeout_ms=DELAY_MS)
    world.advance(1_000)
    b = world.join(version=3, rebalance_timeout_ms=DELAY_MS)
    world.advance(2_000)
    assert world.leave(a.result.member_id) is world.leave(b.result.member_id) is ErrorCode.NONE
    assert world.state == "Empty"
    box = world.join(version=3)
    world.advance(DELAY_MS)
    assert box.error is ErrorCode.NONE, "nobody came, so nothing was extended"


def test_version_0_has_the_session_timeout_as_rebalance_timeout():
    world = World()
    a = world.join(version=0, rebalance_timeout_ms=-1)
    world.advance(DELAY_MS)
    world.sync(a.result.member_id, 1)
    newcomer = world.join(version=0, rebalance_timeout_ms=-1)
    world.keep_alive(SESSION_MS - 1, 1, a.result.member_id)
    assert newcomer.waits
    world.advance(1)
    assert newcomer.error is ErrorCode.NONE
    assert world.member_ids() == [newcomer.result.member_id]


@pytest.mark.parametrize(
    ("votes", "chosen"),
    [
        ([("range",)], "range"),
        ([("range", "sticky"), ("sticky", "range"), ("sticky", "range")], "sticky"),
        ([("range", "sticky"), ("sticky",)], "sticky"),
        ([("a", "b", "c"), ("c", "b"), ("b", "c")], "b"),
        ([("a", "b"), ("b", "a")], "a"),
    ],
)
def test_protocol_is_chosen_by_vote_among_those_all_support(votes: list[tuple[str, ...]], chosen: str):
    world = World()
    boxes = [world.join(version=3, protocols=protocols(*vote)) for vote in votes]
    world.advance(3 * DELAY_MS)
    assert {box.result.protocol_name for box in boxes} == {chosen}


def test_first_member_leads_and_only_the_leader_learns_of_the_others():
    world = World()
    a, b = world.join(version=3), world.join(version=3)
    world.advance(3 * DELAY_MS)
    assert a.result.leader_id == b.result.leader_id == a.result.member_id
    assert [each.member_id for each in a.result.members] == [a.result.member_id, b.result.member_id]
    assert b.result.members == ()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "x" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": (Protocol("range", b"x" * 2**20),)}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": "x" * 32_767}, ErrorCode.INVALID_REQUEST),
        ({"client_id": "x" * 32_768}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_join_that_cannot_be_is_refused_and_leaves_no_group_behind(fields: dict[str, Any], error: ErrorCode):
    world = World()
    assert world.join(**fields).error is error
    assert world.coordinator.list_groups() == (ErrorCode.NONE, ())


@pytest.mark.parametrize("fields", [{"protocol_type": "connect"}, {"protocols": protocols("sticky")}])
def test_member_with_nothing_in_common_is_refused(fields: dict[str, Any]):
    world = World()
    (a,) = world.stable_group(1)
    assert world.join(version=3, **fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(a, **fields).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.heartbeat(a, 1) is ErrorCode.NONE


def test_protocol_named_twice_counts_once():
    world = World()
    box = world.join(version=3, protocols=(Protocol("range", b"first"), Protocol("range", b"second")))
    world.advance(DELAY_MS)
    assert box.result.members[0].metadata == b"first"


def test_unknown_member_of_a_known_group_is_refused():
    world = World()
    world.stable_group()
    assert world.join("stranger").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_full_group_turns_newcomers_away():
    world = World(members_max=2)
    a, _ = world.stable_group(2)
    refused = world.join(version=3)
    assert (refused.error, refused.result.member_id) == (ErrorCode.GROUP_MAX_SIZE_REACHED, "")
    assert world.heartbeat(a, 1) is ErrorCode.NONE


def test_last_to_rejoin_finds_the_group_full_when_the_limit_was_lowered():
    world = World()
    a, b, c = world.stable_group(3)
    world.settings = type(world.settings)(members_max=2)
    world.restart()
    assert world.state == "PreparingRebalance", "it is over its size, so it rebalances"
    boxes = [world.join(a), world.join(b)]
    assert world.join(c).error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [box.error for box in boxes] == [ErrorCode.NONE] * 2
    assert world.member_ids() == [a, b]


def test_ids_that_are_given_out_are_bounded():
    world = World(pending_members_max=2)
    assert [world.join().error for _ in range(3)] == [
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.MEMBER_ID_REQUIRED,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
    ]


def test_groups_are_bounded():
    world = World(groups_max=1)
    world.stable_group()
    assert world.join(group_id="another").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert world.commit_error(group_id="another") is ErrorCode.POLICY_VIOLATION


def test_new_member_whose_client_is_gone_does_not_wait_for_ever():
    world = World()
    members = world.stable_group(1, rebalance_timeout_ms=1_000_000)
    newcomer = world.join(version=3)
    world.keep_alive(300_000 - 3_000, 1, *members)
    assert newcomer.waits
    world.keep_alive(3_000, 1, *members)
    assert newcomer.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.member_ids() == members


def test_member_that_joins_twice_is_one_member_and_its_first_request_is_told_to_retry():
    world = World()
    a, b = world.stable_group()
    first = world.join(a)
    second = world.join(a)
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.waits
    world.join(b)
    assert second.error is ErrorCode.NONE
    assert world.member_ids() == [a, b]


def test_rebalance_timeout_is_the_largest_of_all_members():
    world = World()
    a, _ = world.stable_group()
    newcomer = world.join(version=3, rebalance_timeout_ms=2 * REBALANCE_MS)
    world.join(a)
    world.advance(SESSION_MS)
    assert newcomer.error is ErrorCode.NONE, "the third was silent for a session"
