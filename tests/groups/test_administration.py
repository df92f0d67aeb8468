"""Listing, describing and deleting groups; loading."""

from random import Random

import pytest

from tests.groups.harness import GROUP, NONE, SESSION_MS, START_MS, Box, World, subscription
from tidelog.groups import Coordinator, DescribedGroup, DescribedMember, GroupsError, GroupSettings, ListedGroup
from tidelog.groups import GroupSettingsError as SettingsError
from tidelog.wire.errors import ErrorCode


def all_states() -> World:
    """A group in each state."""
    world = World()
    world.stable_group(group_id="stable")
    world.commit(group_id="simple")
    world.stable_group(group_id="preparing", protocol_type="connect")
    world.join(version=3, group_id="preparing", protocol_type="connect")
    box = world.join(version=3, group_id="completing")
    world.keep_alive(3_000, 1)
    assert box.result.generation == 1
    return world


@pytest.mark.parametrize(
    ("states", "types", "found"),
    [
        ((), (), {"stable", "simple", "preparing", "completing"}),
        (("Stable",), (), {"stable"}),
        (("stable", " EMPTY "), (), {"stable", "simple"}),
        (("PreparingRebalance", "CompletingRebalance"), ("Classic",), {"preparing", "completing"}),
        ((), ("classic",), {"stable", "simple", "preparing", "completing"}),
        ((), ("consumer",), set()),
        (("Dead",), (), set()),
    ],
)
def test_groups_are_listed_by_state_and_type(states: tuple[str, ...], types: tuple[str, ...], found: set[str]):
    error, groups = all_states().coordinator.list_groups(states, types)
    assert error is NONE
    assert {group.group_id for group in groups} == found


def test_listed_group_tells_its_protocol_type_state_and_type():
    _, groups = all_states().coordinator.list_groups()
    assert ListedGroup("stable", "consumer", "Stable", "classic") in groups
    assert ListedGroup("simple", "", "Empty", "classic") in groups
    assert ListedGroup("preparing", "connect", "PreparingRebalance", "classic") in groups


def test_stable_group_is_described_with_what_its_members_said_and_got():
    world = World()
    a, b = world.stable_group(client_host="/10.0.0.7")
    said = subscription("orders")
    assert world.coordinator.describe(GROUP) == DescribedGroup(
        NONE,
        GROUP,
        "Stable",
        "consumer",
        "range",
        (
            DescribedMember(a, None, "client", "/10.0.0.7", said, b"share of 0"),
            DescribedMember(b, None, "client", "/10.0.0.7", said, b"share of 1"),
        ),
    )


def test_rebalancing_group_is_described_without():
    world = World()
    a, b = world.stable_group()
    world.join(a)
    described = world.coordinator.describe(GROUP)
    assert (described.state, described.protocol_type, described.protocol_name) == ("PreparingRebalance", "consumer", "")
    assert described.members[1] == DescribedMember(b, None, "client", "", b"", b"")


def test_unknown_group_is_described_as_dead():
    described = World().coordinator.describe("nobody")
    assert described == DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, "nobody", "Dead")


def test_groups_are_deleted_with_their_offsets_if_nobody_is_in_them():
    world = all_states()
    box = Box[dict[str, ErrorCode]]()
    world.coordinator.delete_groups(["simple", "stable", "nobody", "preparing", "simple"], box)
    assert box.result == {
        "simple": NONE,
        "stable": ErrorCode.NON_EMPTY_GROUP,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
        "preparing": ErrorCode.NON_EMPTY_GROUP,
    }
    assert world.fetch(group_id="simple") == -1
    world.check_journal()


def test_group_is_dead_while_its_deletion_is_on_its_way():
    world = World()
    (a,) = world.stable_group(1)
    world.commit(member_id=a, generation=1)
    world.leave(a)
    world.hold()
    box = world.delete_group()
    assert box.waits
    assert world.join().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.commit_error() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.sync(a, 1).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.heartbeat(a, 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.leave(a) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.delete_offsets(("orders", 0)).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert world.delete_group().result == {GROUP: ErrorCode.GROUP_ID_NOT_FOUND}
    assert world.fetch() == 42, "not gone before it is durable"
    world.release()
    assert box.result == {GROUP: NONE}
    assert world.fetch() == -1
    assert world.join().error is ErrorCode.MEMBER_ID_REQUIRED
    world.check_journal()


def test_group_whose_deletion_failed_is_there_again():
    world = World()
    world.commit()
    world.hold()
    box = world.delete_group()
    world.release(ErrorCode.REQUEST_TIMED_OUT)
    assert box.result == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert world.state == "Empty"
    assert world.fetch() == 42


def test_commit_on_its_way_when_the_group_is_deleted_does_not_survive_it():
    world = World()
    world.commit()
    world.hold()
    commit, deletion = world.commit(("orders", 1, 1)), world.delete_group()
    world.release()
    assert commit.result.errors == (NONE,)
    assert deletion.result == {GROUP: NONE}
    world.check_journal()
    assert world.coordinator.image().offsets == {}


def test_unload_while_a_deletion_is_on_its_way_answers_it():
    world = World()
    world.commit()
    world.hold()
    box = world.delete_group()
    world.coordinator.unload(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert box.result == {GROUP: ErrorCode.COORDINATOR_NOT_AVAILABLE}


def test_coordinator_that_loads_says_so():
    world = World()
    world.coordinator = Coordinator(GroupSettings(), Random(0), lambda records, done: None)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.join().error is loading
    assert world.sync("a", 1).error is ErrorCode.REBALANCE_IN_PROGRESS, "old clients do not know of loading"
    assert world.heartbeat("a", 1) is NONE, "it is believed"
    assert world.leave("a") is loading
    assert world.commit_error() is loading
    assert world.coordinator.fetch(GROUP).error is loading
    assert world.coordinator.list_groups()[0] is loading
    assert world.coordinator.describe(GROUP).error is loading
    assert world.coordinator.next_deadline_ms() is None
    assert world.coordinator.snapshot_records() is None
    assert not world.coordinator.write_snapshot(Box[ErrorCode]())
    topic = Box[ErrorCode]()
    world.coordinator.forget_topic("orders", topic)
    assert topic.result is loading
    world.coordinator.tick(START_MS)
    world.coordinator.load([], START_MS)
    assert world.join().error is ErrorCode.MEMBER_ID_REQUIRED


def test_coordinator_is_loaded_once():
    with pytest.raises(GroupsError, match="loaded once"):
        World().coordinator.load([], START_MS)


def test_time_that_falls_is_not_believed():
    world = World()
    (a,) = world.stable_group(1)
    world.now_ms -= SESSION_MS
    assert world.heartbeat(a, 1) is NONE
    world.now_ms += 2 * SESSION_MS - 1
    world.coordinator.tick(world.now_ms)
    assert world.state == "Stable"


@pytest.mark.parametrize(
    "fields",
    [
        {"session_timeout_ms_min": 0},
        {"session_timeout_ms_min": 10, "session_timeout_ms_max": 9},
        {"initial_rebalance_delay_ms": -1},
        {"offset_metadata_bytes_max": 40_000},
        {"members_max": 0},
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, int]):
    with pytest.raises(SettingsError):
        GroupSettings(**fields)
