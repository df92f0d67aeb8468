"""A full disk: the stream refuses appends, the others go on, nothing is lost, and all goes on when there is room."""

import random

import pytest

from tests.sim.disk import SimDisk
from tests.storage.world import (
    DIRECTORY,
    TINY,
    EntryKind,
    batch,
    files_of,
    new_disk,
    open_store,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import Store, StoredVote
from tidelog.storage.segment import ACTIVE_SUFFIX, LOG_SUFFIX


def _full(disk: SimDisk, left: int = 0) -> None:
    disk.space_bytes = disk.used_bytes + left


def _room(disk: SimDisk) -> None:
    disk.space_bytes = None


def _store_and_log(disk: SimDisk, stream: int = 5) -> Store:
    store = open_store(disk)
    store.create_stream(stream, b"three nodes")
    rest(store)
    return store


def test_full_in_the_middle_of_a_group_refuses_appends_and_recovers_in_order() -> None:
    for left in range(0, 5 * 4096, 4096):
        disk = new_disk()
        store = _store_and_log(disk)
        log = store.streams[5]
        _full(disk, left)
        for number in range(6):
            log.append_new(1, EntryKind.DATA, [sized_batch(2000, bytes([65 + number]))])
        expected = state_of(log)
        write(store)
        if left < 2 * 4096:
            assert log.full
            assert not log.accepting
            assert log.durable_index < log.last_index
        durable = log.durable_index
        for _ in range(3):  # trying in vain changes nothing
            write(store)
            assert log.durable_index == durable
        assert store.writer.has_held_work
        _room(disk)
        rest(store)
        assert (log.full, log.accepting, store.writer.has_held_work) == (False, True, False)
        assert log.durable_index == log.last_index
        assert state_of(log) == expected
        assert state_of(reopened(disk).streams[5]) == expected


def test_what_was_reported_before_the_disk_was_full_survives_a_power_cut() -> None:
    for seed in range(8):
        disk = new_disk(seed)
        store = _store_and_log(disk)
        log = store.streams[5]
        log.append_new(1, EntryKind.DATA, [sized_batch(3000, b"a")])
        rest(store)
        _full(disk, random.Random(seed).randrange(3) * 4096)
        log.append_new(1, EntryKind.DATA, [sized_batch(3000, b"b"), sized_batch(4000, b"c"), sized_batch(5000, b"d")])
        whole = state_of(log)
        write(store)
        durable = log.durable_index
        disk.crash()
        disk.restart()
        _room(disk)
        found = state_of(open_store(disk).streams[5])
        assert found == whole.prefix(len(found.entries))
        assert found.last_index >= durable


def test_other_streams_go_on_while_one_is_held_up() -> None:
    disk = new_disk()
    store = _store_and_log(disk, 1)
    other = store.create_stream(2, b"")
    other.append_new(1, EntryKind.DATA, [sized_batch(6000)])  # its blocks exist from here on, and its spare is made
    rest(store)
    other.truncate_from(1)
    rest(store)
    log = store.streams[1]
    _full(disk)
    log.append_new(1, EntryKind.DATA, [sized_batch(3000)])
    other.append_new(1, EntryKind.DATA, [sized_batch(3000)])
    write(store)
    assert (log.full, log.durable_index) == (True, 0)
    assert (other.full, other.durable_index) == (False, 1)
    assert other.accepting


def test_full_at_the_roll_holds_the_new_segment_back_and_keeps_the_old_one() -> None:
    disk = new_disk(direct=False)
    store = _store_and_log(disk)
    log = store.streams[5]
    log.append_new(1, EntryKind.DATA, [sized_batch(3900)])
    rest(store)
    _full(disk)
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    log.append_new(2, EntryKind.DATA, [batch(b"behind it")])
    expected = state_of(log)
    write(store)
    assert (log.full, log.durable_index) == (True, 1)
    assert state_of(log) == expected, "readable though not written"
    _room(disk)
    rest(store)
    assert log.durable_index == 3
    assert state_of(reopened(disk).streams[5]) == expected


def test_full_while_closing_a_segment_is_done_again_later() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    write(store)
    expected = state_of(log)
    _full(disk)
    while store.run_housekeeping():
        pass
    assert not store.run_housekeeping()
    assert len(store.housekeeper) > 0
    assert not files_of(disk, 5, LOG_SUFFIX)
    assert state_of(log) == expected
    _room(disk)
    rest(store)
    assert len(files_of(disk, 5, LOG_SUFFIX)) == 2
    assert state_of(reopened(disk).streams[5]) == expected


def test_full_while_saving_the_state_keeps_the_segments_that_it_no_longer_names() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    rest(store)
    _full(disk)
    log.trim(2, log.last_index)
    for _ in range(2):
        write(store)
        store.run_housekeeping()
    assert log.full
    assert len(files_of(disk, 5, LOG_SUFFIX)) == 2
    _room(disk)
    rest(store)
    assert not log.full
    assert not files_of(disk, 5, LOG_SUFFIX)
    assert reopened(disk).streams[5].first_index == 3


def test_full_while_truncating_into_an_earlier_segment_keeps_the_order() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(3000), sized_batch(3000)])
    write(store)  # and the closing still waits
    _full(disk)
    log.truncate_from(2)
    log.append_new(2, EntryKind.DATA, [sized_batch(3500, b"n")])
    expected = state_of(log)
    write(store)
    assert log.full
    assert state_of(log) == expected
    _room(disk)
    rest(store)
    assert (log.full, log.durable_index) == (False, 2)
    assert state_of(reopened(disk).streams[5]) == expected


def test_full_while_taking_over_reports_nothing_before_it_is_done() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    log.append_new(1, EntryKind.DATA, [sized_batch(3000)])
    rest(store)
    _full(disk)
    log.take_over(40, 3, log.takeover_context())
    log.append_new(3, EntryKind.DATA, [batch(b"n")])
    write(store)
    assert log.full
    assert log.durable_index < 40
    _room(disk)
    rest(store)
    assert log.durable_index == 41
    assert reopened(disk).streams[5].first_index == 41


def test_a_full_stream_can_be_deleted_and_gives_its_room_back() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    log.append_new(1, EntryKind.DATA, [sized_batch(7000)])
    rest(store)
    _full(disk)
    log.append_new(1, EntryKind.DATA, [sized_batch(7000)])
    log.append_new(1, EntryKind.DATA, [sized_batch(7000)])
    write(store)
    assert log.full
    assert store.writer.queued_bytes > 0
    store.delete_stream(5)
    rest(store)
    assert store.writer.queued_bytes == 0
    assert not store.writer.has_held_work
    assert not files_of(disk, 5)


def test_a_task_that_the_full_disk_holds_up_does_not_keep_another_stream_s_files_from_being_deleted() -> None:
    disk = new_disk()
    store = _store_and_log(disk, 1)
    log = store.streams[1]
    other = store.create_stream(2, b"")
    for _ in range(3):
        other.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    rest(store)
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    write(store)
    _full(disk)
    while store.run_housekeeping():
        pass
    assert len(store.housekeeper) == 2  # stream 1's closings need room
    store.delete_stream(2)
    rest(store)
    assert not disk.exists(f"{DIRECTORY}/streams/2")
    rest(store)
    assert len(files_of(disk, 1, LOG_SUFFIX)) == 2, "and with that room the closing was done"


def test_files_kept_for_reuse_are_given_back_to_a_full_disk() -> None:
    disk = new_disk()
    store = _store_and_log(disk, 1)
    log = store.streams[1]
    other = store.create_stream(2, b"")
    for _ in range(4):
        other.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    other.trim(2, other.last_index)
    write(store)
    _full(disk)
    log.append_new(1, EntryKind.DATA, [sized_batch(7000)])
    write(store)
    assert log.full
    rest(store)  # the trimmed segments' files go to the pool: not a byte for those who wait
    rest(store)
    assert not disk.list_directory(f"{DIRECTORY}/pool")
    assert (log.full, log.durable_index) == (False, 1)


def test_preparing_a_file_for_later_does_not_eat_the_last_room() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    write(store)
    _full(disk, TINY.shape.file_bytes // 2)
    used = disk.used_bytes
    while store.run_housekeeping():
        store.deliver()
    assert disk.used_bytes == used
    assert not disk.list_directory(f"{DIRECTORY}/pool")
    assert log.accepting
    log.append_new(1, EntryKind.DATA, [sized_batch(2000)])
    write(store)
    assert log.durable_index == 2


def test_a_spare_that_could_not_be_made_is_asked_for_again_in_the_next_segment() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    write(store)
    _full(disk)
    store.run_housekeeping()
    store.deliver()
    _room(disk)
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    rest(store)
    assert len(files_of(disk, 5, ACTIVE_SUFFIX)) == 2  # the newest segment and a spare


def test_only_one_spare_is_made_at_a_time_however_late_it_comes() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    log = store.streams[5]
    for _ in range(8):  # four segments are begun while the first spare is still being made
        log.append_new(1, EntryKind.DATA, [sized_batch(4500)])
        write(store)
    rest(store)
    assert len(files_of(disk, 5, ACTIVE_SUFFIX)) == 2
    for _ in range(8):
        log.append_new(1, EntryKind.DATA, [sized_batch(4500)])
        rest(store)
    assert len(files_of(disk, 5, ACTIVE_SUFFIX)) <= 2


def test_full_when_the_journal_of_votes_must_be_replaced_waits_and_reports_no_vote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidelog.storage.hard_states.SLOTS_MIN", 2)
    monkeypatch.setattr("tidelog.storage.hard_states.SLOTS_PER_STREAM", 2)
    disk = new_disk()
    store = _store_and_log(disk, 1)
    store.create_stream(2, b"")
    rest(store)
    for term in (1, 2):
        store.save_vote(1, StoredVote(term, 1))
        write(store)
    _full(disk)
    store.save_vote(1, StoredVote(3, 3))
    store.save_vote(2, StoredVote(4, 4))
    for _ in range(2):
        store.run_writer()
        assert store.deliver().votes == []
    assert store.vote(1) == StoredVote(2, 1)
    assert store.writer.has_held_work
    store.save_vote(1, StoredVote(5, 5))
    _room(disk)
    store.run_writer()
    assert sorted(store.deliver().votes) == [(1, StoredVote(5, 5)), (2, StoredVote(4, 4))]
    store = reopened(disk)
    assert (store.vote(1), store.vote(2)) == (StoredVote(5, 5), StoredVote(4, 4))


@pytest.mark.parametrize("left", range(0, 6 * 4096, 512))
def test_a_stream_that_finds_no_room_to_be_created_is_created_later(left: int) -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    _full(disk, left)
    log = store.create_stream(9, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    for _ in range(3):
        write(store)
    assert log.full == (log.durable_index == 0)
    assert log.full or left > 4096
    _room(disk)
    rest(store)
    assert (log.full, log.durable_index) == (False, 1)
    assert reopened(disk).streams[9].last_index == 1


def test_a_stream_that_finds_no_room_to_be_created_can_be_deleted() -> None:
    disk = new_disk()
    store = _store_and_log(disk)
    _full(disk)
    store.create_stream(9, b"").append_new(1, EntryKind.DATA, [batch()])
    write(store)
    store.delete_stream(9)
    rest(store)
    assert not store.writer.has_held_work
    assert store.deleting == set()
    _room(disk)
    assert list(reopened(disk).streams) == [5]


@pytest.mark.parametrize("seed", range(12))
def test_space_that_comes_and_goes_loses_nothing_and_keeps_the_order(seed: int) -> None:
    rng = random.Random(seed)
    disk = new_disk(seed, direct=bool(seed % 2))
    store = open_store(disk)
    logs = [store.create_stream(stream, b"") for stream in (1, 2, 3)]
    rest(store)
    for _ in range(60):
        log = rng.choice(logs)
        match rng.randrange(6):
            case 0:
                _full(disk, rng.choice([0, 4096, 20000]))
            case 1:
                _room(disk)
            case 2:
                write(store)
                store.run_housekeeping()
            case 3 if log.durable_index >= log.first_index:
                log.trim(rng.randint(log.start_offset, log.offset_after(log.durable_index)), log.durable_index)
            case 4 if log.last_index > log.durable_index:
                log.truncate_from(log.last_index)
            case _:
                if log.accepting:
                    log.append_new(
                        log.term_at(log.last_index) + 1, EntryKind.DATA, [sized_batch(rng.randrange(200, 5000))]
                    )
    _room(disk)
    for _ in range(3):
        rest(store)
    expected = [state_of(log) for log in logs]
    assert all(log.durable_index == log.last_index and log.accepting for log in logs)
    store = reopened(disk)
    assert [state_of(store.streams[stream]) for stream in (1, 2, 3)] == expected
