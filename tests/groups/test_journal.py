"""The bytes of the journal, what it tells when read back, and snapshots."""

from random import Random

import pytest

from tests.groups.harness import DELAY_MS, GROUP, NONE, SESSION_MS, Box, World
from tidelog.groups import CommitResult, Image, JournalError, Record, is_snapshot_begin
from tidelog.groups.journal import (
    GroupImage,
    MemberImage,
    decode_group,
    decode_key,
    decode_offset,
    group_record,
    offset_record,
    snapshot_begin_record,
    snapshot_end_record,
)
from tidelog.groups.offsets import CommittedOffset
from tidelog.wire.errors import ErrorCode

OFFSET = CommittedOffset(42, 7, "note", 1_000)
MEMBER = MemberImage("m-1", "one", "client", "/host", 60_000, 10_000, b"said", b"got")
STABLE = GroupImage("g", "consumer", 3, "range", "m-1", 2_000, (MEMBER,))
EMPTY = GroupImage("g", "consumer", 4, None, None, 3_000)


def test_offset_is_written_as_kafka_writes_it():
    key, value = offset_record("g", ("t", 5), OFFSET)
    assert key.hex() == "0001" + "000167" + "000174" + "00000005"
    assert value is not None
    assert value.hex() == "0003" + "000000000000002a" + "00000007" + "00046e6f7465" + "00000000000003e8"


def test_offset_with_an_expiry_is_written_as_kafka_writes_it():
    _, value = offset_record("g", ("t", 5), CommittedOffset(42, -1, "", 1_000, 2_000))
    assert value is not None
    assert value.hex() == "0001" + "000000000000002a" + "0000" + "00000000000003e8" + "00000000000007d0"


def test_group_is_written_as_kafka_writes_it():
    key, value = group_record("g", EMPTY)
    assert key.hex() == "0002" + "000167"
    assert value is not None
    assert (
        value.hex() == "0003" + "0008" + b"consumer".hex() + "00000004" + "ffff" * 2 + "0000000000000bb8" + "00000000"
    )


@pytest.mark.parametrize("image", [STABLE, EMPTY, GroupImage("ü", "", 0, "", "", -1, (MEMBER,) * 3)])
def test_group_reads_back(image: GroupImage):
    _, value = group_record(image.group_id, image)
    assert value is not None
    assert decode_group(image.group_id, value) == image


@pytest.mark.parametrize("offset", [OFFSET, CommittedOffset(-1, -1, "é", 0, 5), CommittedOffset(2**63 - 1, 0, "", 0)])
def test_offset_reads_back(offset: CommittedOffset):
    _, value = offset_record("g", ("t", 0), offset)
    assert value is not None
    assert decode_offset(value) == offset


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ((b"", b""), "2 bytes are wanted"),
        ((b"\0\x09", b""), "unknown kind 9"),
        ((b"\0\2\0\5ab", b""), "5 bytes are wanted at byte 4, 2 are there"),
        ((b"\0\2\xff\xff", b""), "null that must not be"),
        ((b"\0\2\xff\xfe", b""), "-2 bytes are wanted"),
        ((b"\0\2\0\1a", b"\0\x09"), "unknown version 9"),
        ((b"\0\2\0\1aXX", b""), "2 bytes are left over"),
        ((b"\0\2\0\1\xff", b""), "not UTF-8"),
        ((b"\0\1\0\1a\0\1b\0\0\0\0", b"\0\4"), "offset of unknown version 4"),
        ((b"\0\1\0\1a\0\1b\0\0\0\0", b""), "2 bytes are wanted"),
        ((snapshot_begin_record(1)[0], None), "has no value"),
        ((snapshot_begin_record(1)[0], b"\0\1"), "marker of unknown version 1"),
        ((snapshot_end_record(1, 0)[0], b"\0\0"), "4 bytes are wanted"),
    ],
)
def test_garbage_is_refused_with_a_clear_word(record: Record, message: str):
    with pytest.raises(JournalError, match=message):
        Image.of([record])


def test_members_that_cannot_be_there_are_refused_before_they_are_looked_for():
    value = group_record("g", EMPTY)[1]
    assert value is not None
    with pytest.raises(JournalError, match="members cannot be in"):
        decode_group("g", value[:-4] + b"\x7f\xff\xff\xff")


def test_no_mangled_record_does_anything_but_read_or_raise():
    rng = Random(7)
    records = [offset_record("group", ("topic", 1), OFFSET), group_record("g", STABLE), snapshot_end_record(5, 3)]
    for _ in range(3_000):
        parts = [bytearray(part or b"") for part in rng.choice(records)]
        for _ in range(rng.randrange(1, 4)):
            part = rng.choice(parts)
            if part and rng.random() < 0.7:
                part[rng.randrange(len(part))] = rng.randrange(256)
            else:
                del part[rng.randrange(len(part) + 1) :]
        try:
            Image.of([(bytes(parts[0]), bytes(parts[1]))])
        except JournalError:
            continue


def test_string_that_does_not_fit_is_not_written():
    with pytest.raises(JournalError, match="does not fit"):
        group_record("x" * 40_000, None)


def test_later_records_win_and_tombstones_delete():
    image = Image.of(
        [
            group_record("g", STABLE),
            offset_record("g", ("t", 0), OFFSET),
            offset_record("g", ("t", 1), OFFSET),
            group_record("g", EMPTY),
            offset_record("g", ("t", 0), None),
            offset_record("other", ("t", 0), None),
            group_record("other", None),
        ]
    )
    assert image == Image({"g": EMPTY}, {"g": {("t", 1): OFFSET}})


# Snapshots as records


OLD = [group_record("old", STABLE), offset_record("old", ("t", 0), OFFSET)]
STATE = Image({"g": EMPTY}, {"g": {("t", 0): OFFSET, ("t", 1): OFFSET}})
SNAPSHOT = STATE.snapshot(99)


def test_snapshot_alone_tells_the_state():
    image = Image.of(SNAPSHOT)
    assert image == STATE
    assert (image.snapshots_complete, image.snapshots_incomplete) == (1, 0)
    assert is_snapshot_begin(SNAPSHOT[0][0])
    assert not any(is_snapshot_begin(key) for key, _ in SNAPSHOT[1:])


def test_complete_snapshot_replaces_what_was_before():
    assert Image.of([*OLD, *SNAPSHOT]) == STATE


@pytest.mark.parametrize("length", range(len(SNAPSHOT)))
def test_snapshot_cut_short_anywhere_loses_nothing(length: int):
    before = Image.of([*OLD, *STATE.records()])
    after = Image.of([*OLD, *STATE.records(), *SNAPSHOT[:length]])
    assert after == before
    assert after.snapshots_complete == 0


@pytest.mark.parametrize("missing", range(1, len(SNAPSHOT) - 1))
def test_snapshot_with_a_hole_is_not_believed(missing: int):
    journal = [*OLD, *STATE.records(), *SNAPSHOT[:missing], *SNAPSHOT[missing + 1 :]]
    image = Image.of(journal)
    assert image == Image.of([*OLD, *STATE.records()])
    assert (image.snapshots_complete, image.snapshots_incomplete) == (0, 1)


def test_snapshot_after_one_that_was_cut_short_is_believed():
    newer = Image({}, {"g": {("t", 9): OFFSET}}).snapshot(100)
    image = Image.of([*OLD, *SNAPSHOT[:2], *newer])
    assert image == Image({}, {"g": {("t", 9): OFFSET}})
    assert (image.snapshots_complete, image.snapshots_incomplete) == (1, 1)


def test_end_of_another_snapshot_ends_nothing():
    assert Image.of([*OLD, *SNAPSHOT[:-1], snapshot_end_record(98, 3)]).groups.keys() == {"old", "g"}
    assert Image.of([*OLD, SNAPSHOT[-1]]) == Image.of(OLD)


def test_records_after_a_snapshot_count():
    image = Image.of([*SNAPSHOT, offset_record("g", ("t", 0), None), group_record("g", STABLE)])
    assert image == Image({"g": STABLE}, {"g": {("t", 1): OFFSET}})


def test_key_is_decoded_once_more_the_same():
    for key, _ in [*OLD, *SNAPSHOT]:
        assert decode_key(key) == decode_key(bytes(key))


# Coordinators that come back


def lived_in() -> World:
    """A coordinator with a past: a stable group, one that rebalances, an empty one, a simple one, a deleted one."""
    world = World()
    for name in ("stable", "empty", "moving"):
        members = world.stable_group(group_id=name)
        world.commit(("orders", 0, 10), ("orders", 1, 11), member_id=members[0], generation=1, group_id=name)
        if name == "empty":
            for member_id in members:
                world.leave(member_id, group_id=name)
    world.commit(("orders", 0, 5), group_id="simple")
    world.commit(("orders", 0, 5), group_id="deleted")
    world.delete_group("deleted")
    world.join(version=3, group_id="moving")
    return world


def test_stable_group_is_stable_after_a_restart_with_its_members_and_their_shares():
    world = World()
    a, b = world.stable_group()
    before = world.coordinator.describe(GROUP)
    world.advance(SESSION_MS - 1)
    world.restart()
    assert world.coordinator.describe(GROUP) == before
    assert world.sync(b, 1).result.assignment == b"share of 1"
    world.advance(SESSION_MS - 1)
    assert world.heartbeat(a, 1) is NONE, "its session started anew"
    assert world.join(a).waits, "it still leads, so it wants a rebalance"
    world.advance(1)
    assert world.heartbeat(b, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_group_that_was_rebalancing_is_in_its_last_durable_generation_after_a_restart():
    world = World()
    a, b = world.stable_group()
    world.join(a)
    world.join(b)
    assert world.state == "CompletingRebalance"
    world.restart()
    assert world.state == "Stable"
    assert world.heartbeat(a, 2) is ErrorCode.ILLEGAL_GENERATION
    boxes = [world.join(a), world.join(b)]
    assert [box.result.generation for box in boxes] == [2, 2]


def test_assignment_that_was_not_durable_is_unknown_after_a_restart():
    world = World()
    box = world.join(version=3)
    world.advance(DELAY_MS)
    world.hold()
    world.sync(box.result.member_id, 1, {box.result.member_id: b"share"})
    world.restart()
    assert world.heartbeat(box.result.member_id, 1) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_and_their_age_survive_a_restart():
    world = World()
    world.commit()
    world.advance(4 * 24 * 3_600_000)
    world.restart()
    assert world.fetch() == 42
    world.advance(3 * 24 * 3_600_000 + 600_000)
    assert world.fetch() == -1


def test_memory_is_what_the_journal_tells():
    world = lived_in()
    world.check_journal()
    image = world.coordinator.image()
    world.restart()
    assert world.coordinator.image() == image


def test_snapshot_and_trimmed_journal_tell_the_same():
    world = lived_in()
    image = world.coordinator.image()
    box = Box[ErrorCode]()
    assert world.coordinator.write_snapshot(box)
    assert box.result is NONE
    length = len(world.journal)
    world.trim()
    assert len(world.journal) < length
    world.check_journal()
    world.restart()
    assert world.coordinator.image() == image
    world.commit(("orders", 0, 6), group_id="simple")
    world.restart()
    assert world.fetch(group_id="simple") == 6


def test_snapshot_records_are_there_when_nothing_is_under_way():
    world = lived_in()
    records = world.coordinator.snapshot_records()
    assert records is not None
    assert Image.of(records) == world.coordinator.image()
    world.hold()
    world.commit()
    assert world.coordinator.snapshot_records() is None


def test_snapshot_waits_for_what_is_under_way_and_what_comes_later_waits_for_it():
    world = World()
    world.commit(("orders", 0, 1))
    world.hold()
    before = world.commit(("orders", 0, 2))
    snapshot = Box[ErrorCode]()
    world.coordinator.write_snapshot(snapshot)
    after = world.commit(("orders", 0, 3))
    assert not world.coordinator.write_snapshot(Box[ErrorCode]()), "one waits already"
    assert world.held is not None
    assert len(world.held) == 1
    world.release(count=1)
    assert before.result.errors == (NONE,)
    assert len(world.held) == 2, "the snapshot and what waited for it, without a pause between"
    world.release()
    assert snapshot.result is NONE
    assert after.result.errors == (NONE,)
    world.trim()
    world.check_journal()
    assert world.fetch() == 3


@pytest.mark.parametrize("failing", range(5))
def test_large_snapshot_goes_in_parts_and_any_of_them_may_fail(failing: int):
    world = World(snapshot_append_bytes_max=100)
    for n in range(8):
        world.commit(("orders", n, n))
    world.hold()
    snapshot = Box[ErrorCode]()
    world.coordinator.write_snapshot(snapshot)
    later = world.commit(("orders", 0, 99))
    assert world.held is not None
    assert len(world.held) > 5
    world.release(count=failing)
    world.release(ErrorCode.REQUEST_TIMED_OUT, count=1)
    world.release()
    assert snapshot.result is ErrorCode.REQUEST_TIMED_OUT
    assert later.result.errors == (NONE,)
    world.check_journal()
    world.restart()
    assert world.fetch() == 99
    assert len(world.fetch_all()) == 8


def test_commit_made_in_the_answer_to_a_snapshot_follows_it():
    world = World(snapshot_append_bytes_max=1)
    world.commit(("orders", 0, 1))
    committed: list[Box[CommitResult]] = []
    world.coordinator.write_snapshot(lambda error: committed.append(world.commit(("orders", 0, 2))))
    assert committed[0].result.errors == (NONE,)
    world.trim()
    world.check_journal()
    assert world.fetch() == 2


def test_snapshot_asked_for_while_one_is_written_follows_it():
    world = World()
    world.hold()
    world.commit()
    boxes = [Box[ErrorCode](), Box[ErrorCode]()]
    world.coordinator.write_snapshot(boxes[0])
    world.release(count=1)
    held = world.commit(("orders", 1, 1))
    world.coordinator.write_snapshot(boxes[1])
    world.release()
    assert [box.result for box in boxes] == [NONE, NONE]
    assert held.result.errors == (NONE,)
    world.trim()
    world.check_journal()


def test_crash_at_any_point_of_a_snapshot_is_harmless():
    world = lived_in()
    image = world.coordinator.image()
    world.coordinator.write_snapshot(Box[ErrorCode]())
    begins = next(place for place, (key, _) in enumerate(world.journal) if is_snapshot_begin(key))
    for length in range(begins, len(world.journal) + 1):
        assert Image.of(world.journal[:length]) == image


def test_snapshot_that_waits_is_told_of_an_unload():
    world = World()
    world.hold()
    world.commit()
    box = Box[ErrorCode]()
    world.coordinator.write_snapshot(box)
    held = world.commit(("orders", 1, 1))
    world.coordinator.unload()
    assert box.result is ErrorCode.NOT_COORDINATOR
    assert held.result.errors == (ErrorCode.NOT_COORDINATOR,)


def test_journal_that_cannot_be_read_leaves_the_coordinator_loading():
    world = World()
    world.journal.append((b"\0\x63", b""))
    with pytest.raises(JournalError, match="unknown kind 99"):
        world.restart()
    assert world.join().error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
