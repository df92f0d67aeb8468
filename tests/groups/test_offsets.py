"""Committing, fetching, deleting and expiring offsets."""

from typing import Any

import pytest

from tests.groups.harness import DELAY_MS, NONE, Box, World
from tidelog.groups import CommitRequest, CommitResult, FetchedOffset, Protocol
from tidelog.wire.errors import ErrorCode

DAY_MS = 24 * 60 * 60 * 1000
CHECK_MS = 600_000
ORDERS = ("orders", 0)


def test_member_commits_and_fetches():
    world = World()
    (a,) = world.stable_group(1)
    box = world.commit(("orders", 0, 42, 7, "note"), ("orders", 1, 5), member_id=a, generation=1)
    assert box.result.errors == (NONE, NONE)
    assert world.fetch_all() == {
        ("orders", 0): FetchedOffset("orders", 0, 42, 7, "note"),
        ("orders", 1): FetchedOffset("orders", 1, 5, -1, ""),
    }
    asked = world.coordinator.fetch("readers", [("orders", 1), ("orders", 9)])
    assert asked.offsets == (FetchedOffset("orders", 1, 5), FetchedOffset("orders", 9))


def test_unknown_group_has_no_offsets():
    world = World()
    assert world.coordinator.fetch("nobody", [ORDERS]).offsets == (FetchedOffset("orders", 0, -1, -1, ""),)
    assert world.coordinator.fetch("nobody").offsets == ()
    assert world.coordinator.list_groups()[1] == ()


def test_commit_is_seen_only_when_it_is_durable():
    world = World()
    world.commit(("orders", 0, 1))
    world.hold()
    box = world.commit(("orders", 0, 2))
    assert box.waits
    assert world.fetch() == 1
    world.release()
    assert box.result.errors == (NONE,)
    assert world.fetch() == 2


@pytest.mark.parametrize(
    ("append_error", "told"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_commit_that_fails_changes_nothing(append_error: ErrorCode, told: ErrorCode):
    world = World()
    world.commit(("orders", 0, 1))
    world.hold()
    box = world.commit(("orders", 0, 2), ("orders", 1, 2, -1, "x" * 5_000))
    world.release(append_error)
    assert box.result.errors == (told, ErrorCode.OFFSET_METADATA_TOO_LARGE)
    assert world.fetch() == 1
    world.check_journal()


def test_commits_under_way_take_effect_in_their_order():
    world = World()
    world.hold()
    first, second, third = (world.commit(("orders", 0, offset)) for offset in (1, 2, 3))
    world.release(count=1)
    assert (world.fetch(), first.waits, second.waits) == (1, False, True)
    world.release(ErrorCode.REQUEST_TIMED_OUT, count=1)
    assert world.fetch() == 1
    world.release()
    assert (world.fetch(), third.result.errors) == (3, (NONE,))
    world.check_journal()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"generation": 1}, NONE),
        ({"generation": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "instance_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1, "group_id": "unknown"}, ErrorCode.GROUP_ID_NOT_FOUND),
        ({"generation": 1, "group_id": "unknown", "version": 8}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": -1, "member_id": "", "group_id": "unknown"}, NONE),
        ({"generation": -1, "member_id": "", "group_id": ""}, NONE),
        ({"generation": 1, "group_id": "x" * 40_000}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_commit_is_checked(fields: dict[str, Any], error: ErrorCode):
    world = World()
    (a,) = world.stable_group(1)
    assert world.commit_error(**({"member_id": a} | fields)) is error


def test_commit_while_others_join_is_taken_and_while_the_leader_assigns_is_not():
    world = World()
    a, b = world.stable_group()
    newcomer = world.join_in_two_steps()
    assert world.commit_error(member_id=a, generation=1) is NONE
    world.join(a)
    world.join(b)
    assert newcomer.result.generation == 2
    assert world.commit_error(member_id=a, generation=2) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.commit_error(member_id=a, generation=1) is ErrorCode.ILLEGAL_GENERATION


def test_anyone_may_commit_for_a_group_without_members():
    world = World()
    (a,) = world.stable_group(1)
    world.leave(a)
    assert world.commit_error() is NONE
    assert world.commit_error(member_id="whoever") is NONE
    assert world.commit_error(generation=5) is ErrorCode.UNKNOWN_MEMBER_ID


def test_metadata_is_bounded_in_bytes():
    world = World()
    box = world.commit(("orders", 0, 1, -1, "é" * 2_048), ("orders", 1, 1, -1, "é" * 2_049), ("orders", 2, 1, -1, None))
    assert box.result.errors == (NONE, ErrorCode.OFFSET_METADATA_TOO_LARGE, NONE)
    assert world.fetch_all().keys() == {("orders", 0), ("orders", 2)}


def test_topic_name_that_no_record_can_hold_is_refused():
    world = World()
    assert world.commit_error(("x" * 40_000, 0, 1)) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_offsets_of_a_group_are_bounded():
    world = World(offsets_max=2)
    box = world.commit(*(("orders", n, 1) for n in range(3)))
    assert box.result.errors == (NONE, NONE, ErrorCode.POLICY_VIOLATION)
    assert world.commit_error(("orders", 0, 2)) is NONE, "what is there may change"


def test_offsets_on_their_way_count_as_there():
    world = World(offsets_max=2)
    world.hold()
    world.commit(("orders", 0, 1), ("orders", 1, 1))
    assert world.commit_error(("orders", 2, 1)) is ErrorCode.POLICY_VIOLATION


def test_appends_under_way_are_bounded():
    world = World(appends_max=1)
    world.hold()
    first = world.commit()
    assert world.commit_error() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.release()
    assert first.result.errors == (NONE,)


def test_commit_of_nothing_is_answered():
    world, box = World(), Box[CommitResult]()
    world.coordinator.commit(CommitRequest("readers", ()), box, world.now_ms)
    assert box.result.errors == ()


# Deleting


def test_offsets_are_deleted_when_that_is_durable():
    world = World()
    world.commit(("orders", 0, 1), ("orders", 1, 1))
    world.hold()
    box = world.delete_offsets(("orders", 0), ("orders", 7))
    assert box.waits
    assert world.fetch() == 1
    world.release()
    assert box.result.errors == (NONE, NONE)
    assert world.fetch_all().keys() == {("orders", 1)}
    world.check_journal()


def test_deletion_that_fails_changes_nothing():
    world = World()
    world.commit()
    world.hold()
    box = world.delete_offsets(ORDERS)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert box.result.errors == (ErrorCode.COORDINATOR_NOT_AVAILABLE,)
    assert world.fetch() == 42


def test_offsets_of_a_subscribed_topic_are_not_deleted():
    world = World()
    (a,) = world.stable_group(1)
    world.commit(("orders", 0, 1), ("former", 0, 1), member_id=a, generation=1)
    box = world.delete_offsets(("orders", 0), ("former", 0))
    assert box.result.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, NONE)
    assert world.fetch_all().keys() == {("orders", 0)}
    world.leave(a)
    assert world.delete_offsets(("orders", 0)).result.errors == (NONE,)


@pytest.mark.parametrize(
    "metadata", [b"", b"\0", b"\0\0\x7f\xff\xff\xff", b"\0\0\0\0\0\1\0\5abc", b"\0\0\0\0\0\1\0\1\xff"]
)
def test_member_that_cannot_be_understood_may_subscribe_to_anything(metadata: bytes):
    world = World()
    (a,) = world.stable_group(1, protocols=(Protocol("range", metadata),))
    world.commit(member_id=a, generation=1)
    assert world.delete_offsets(ORDERS).result.errors == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,)


def test_offsets_of_a_group_that_is_no_consumer_are_deleted_only_without_members():
    world = World()
    (a,) = world.stable_group(1, protocol_type="connect")
    world.commit(member_id=a, generation=1)
    assert world.delete_offsets(ORDERS).error is ErrorCode.NON_EMPTY_GROUP
    world.leave(a)
    assert world.delete_offsets(ORDERS).result.errors == (NONE,)


def test_offsets_of_an_unknown_group_cannot_be_deleted():
    world = World()
    assert world.delete_offsets(ORDERS).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.delete_offsets(ORDERS, group_id="").error is ErrorCode.INVALID_GROUP_ID


def test_topic_that_is_deleted_takes_its_offsets_along_in_every_group():
    world = World()
    world.commit(("orders", 0, 1), ("other", 0, 1), group_id="one")
    world.commit(("orders", 3, 1), group_id="two")
    world.hold()
    on_its_way = world.commit(("orders", 4, 1), group_id="two")
    box = Box[ErrorCode]()
    world.coordinator.forget_topic("orders", box)
    assert world.coordinator.topics() == {"orders", "other"}
    world.release()
    assert on_its_way.result.errors == (NONE,)
    assert box.result is NONE
    assert world.coordinator.topics() == {"other"}
    world.check_journal()


def test_forgetting_a_topic_that_nobody_committed_to_is_done_at_once():
    world, box = World(), Box[ErrorCode]()
    world.coordinator.forget_topic("unheard of", box)
    assert box.result is NONE
    assert world.appended == []


# Expiry


def days(world: World, count: float) -> None:
    world.advance(int(count * DAY_MS))


def test_offsets_of_an_empty_group_expire_seven_days_after_it_became_empty():
    world = World()
    (a,) = world.stable_group(1, session_timeout_ms=1_800_000)
    world.commit(member_id=a, generation=1)
    for _ in range(10 * 24 * 4):
        world.advance(900_000)
        assert world.heartbeat(a, 1) is NONE
    assert world.fetch() == 42, "in use for ten days"
    world.leave(a)
    days(world, 6.9)
    assert world.fetch() == 42
    days(world, 0.2)
    assert world.fetch() == -1
    assert world.coordinator.list_groups()[1] == (), "the group goes with its last offset"
    world.check_journal()
    assert world.coordinator.image().groups == {}


def test_offset_that_a_group_without_members_never_had_expires_by_itself():
    world = World()
    world.commit(("orders", 0, 1))
    days(world, 4)
    world.commit(("orders", 1, 1))
    days(world, 3.1)
    assert world.fetch_all().keys() == {("orders", 1)}
    days(world, 4)
    assert world.coordinator.list_groups()[1] == ()
    world.check_journal()


def test_offset_reset_for_an_empty_group_lives_on_from_then():
    world = World()
    (a,) = world.stable_group(1)
    world.commit(("orders", 0, 1), ("orders", 1, 1), member_id=a, generation=1)
    world.leave(a)
    days(world, 6)
    world.commit(("orders", 0, 5))
    days(world, 2)
    assert world.fetch_all().keys() == {("orders", 0)}


def test_offsets_of_topics_no_longer_subscribed_expire_in_a_stable_group():
    world = World(session_timeout_ms_max=2**31 - 1)
    (a,) = world.stable_group(1, session_timeout_ms=20 * DAY_MS)
    world.commit(("orders", 0, 1), ("former", 0, 1), member_id=a, generation=1)
    days(world, 8)
    assert world.state == "Stable"
    assert world.fetch_all().keys() == {("orders", 0)}


def test_offsets_of_a_group_that_is_no_consumer_do_not_expire_while_it_has_members():
    world = World(session_timeout_ms_max=2**31 - 1)
    (a,) = world.stable_group(1, session_timeout_ms=20 * DAY_MS, protocol_type="connect")
    world.commit(member_id=a, generation=1)
    days(world, 8)
    assert world.fetch() == 42


def test_client_of_old_says_how_long_its_offsets_live():
    world = World()
    world.commit(retention_ms=3_600_000, version=2)
    world.commit(("orders", 1, 1))
    world.advance(3_600_000 + CHECK_MS)
    assert world.fetch_all().keys() == {("orders", 1)}
    assert world.commit_error(retention_ms=2**63 - 1, version=2) is NONE
    world.check_journal()


def test_offset_with_a_commit_on_its_way_does_not_expire():
    world = World()
    world.commit()
    days(world, 6.999)
    world.hold()
    box = world.commit(("orders", 0, 43))
    days(world, 1)
    world.release()
    assert box.result.errors == (NONE,)
    assert world.fetch() == 43


def test_expiry_that_fails_is_tried_again():
    world = World()
    world.commit()
    world.hold()
    days(world, 7)
    world.release(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert world.fetch() == 42
    world.advance(2 * CHECK_MS)
    world.release()
    assert world.fetch() == -1
    world.check_journal()


def test_many_groups_are_swept_some_a_tick():
    world = World(sweep_groups_max=10)
    for n in range(35):
        world.commit(group_id=f"group {n}")
    world.now_ms += 8 * DAY_MS
    sizes = []
    while world.coordinator.list_groups()[1]:
        world.coordinator.tick(world.now_ms)
        sizes.append(len(world.coordinator.list_groups()[1]))
        assert world.coordinator.next_deadline_ms() is not None
    assert sizes == [25, 15, 5, 0]


def test_group_that_was_never_written_is_forgotten_without_a_record():
    world = World()
    world.join()
    assert len(world.coordinator.list_groups()[1]) == 1
    world.advance(DELAY_MS + 2 * CHECK_MS)
    assert world.coordinator.list_groups()[1] == ()
    assert world.appended == []
