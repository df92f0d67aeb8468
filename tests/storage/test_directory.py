"""A node's data directory: one process, a known format, nothing missing, and streams that follow their own lives."""

import pytest
from crc32c import crc32c

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.world import (
    DIRECTORY,
    EntryKind,
    after_a_power_cut,
    batch,
    files_of,
    folder_of,
    killed,
    new_disk,
    offsets_of,
    open_store,
    power_cut,
    read_batches,
    read_path,
    remove,
    reopened,
    replace,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import CorruptDataError, DirectoryLockedError, FormatVersionError, StorageError, StoredVote
from tidelog.storage.segment import ACTIVE_SUFFIX
from tidelog.storage.small_file import encode_json


def _node(disk: SimDisk) -> None:
    store = open_store(disk)
    store.create_stream(5, b"three nodes").append_new(1, EntryKind.DATA, [batch()])
    store.save_vote(5, StoredVote(1, 1))
    rest(store)


def test_a_second_process_is_refused_by_the_lock() -> None:
    disk = new_disk()
    store = open_store(disk)
    with pytest.raises(DirectoryLockedError, match="/data is in use by another process: stop that one first"):
        open_store(disk)
    store.close()
    open_store(disk)


def test_an_unknown_format_version_is_refused_before_anything_is_touched() -> None:
    disk = new_disk()
    _node(disk)
    line = b'{"format": 3}'
    replace(disk, f"{DIRECTORY}/node.json", b"%s\n%08x\n" % (line, crc32c(line)))
    before = {path: read_path(disk, path) for path in [*files_of(disk, 5), f"{DIRECTORY}/votes"]}
    killed(disk)
    with pytest.raises(FormatVersionError, match="/data has format 3; this version reads 1 and 2"):
        open_store(disk)
    assert {path: read_path(disk, path) for path in [*files_of(disk, 5), f"{DIRECTORY}/votes"]} == before


def test_a_journal_of_votes_that_is_missing_is_refused_and_not_begun_anew() -> None:
    disk = new_disk()
    _node(disk)
    remove(disk, f"{DIRECTORY}/votes")
    killed(disk)
    with pytest.raises(CorruptDataError, match="votes is missing"):
        open_store(disk)


def test_a_stream_s_folder_under_another_number_is_refused() -> None:
    disk = new_disk()
    _node(disk)
    disk.make_directory(folder_of(6))
    for path in files_of(disk, 5):
        replace(disk, path.replace("/streams/5/", "/streams/6/"), read_path(disk, path))
    killed(disk)
    with pytest.raises(StorageError, match="streams/6 holds stream 5"):
        open_store(disk)


def test_what_is_not_ours_among_the_streams_is_left_alone() -> None:
    disk = new_disk()
    _node(disk)
    disk.make_directory(f"{DIRECTORY}/streams/lost+found")
    replace(disk, f"{DIRECTORY}/streams/lost+found/keep", b"me")
    assert list(reopened(disk).streams) == [5]
    assert read_path(disk, f"{DIRECTORY}/streams/lost+found/keep") == b"me"


def test_a_folder_whose_state_is_gone_is_what_a_deletion_left() -> None:
    disk = new_disk()
    _node(disk)
    remove(disk, f"{folder_of(5)}/stream.json")
    store = reopened(disk)
    assert store.streams == {}
    assert not disk.exists(folder_of(5))


def test_streams_do_not_disturb_each_other() -> None:
    disk = new_disk()
    store = open_store(disk)
    logs = {stream: store.create_stream(stream, b"%d" % stream) for stream in (1, 2, 10)}
    for number in range(12):
        for stream, log in logs.items():
            log.append_new(1 + stream, EntryKind.DATA, [sized_batch(500 + 100 * stream, bytes([65 + number]))])
        write(store)
    logs[2].trim(5, logs[2].last_index)
    logs[10].truncate_from(6)
    rest(store)
    expected = {stream: state_of(log) for stream, log in logs.items()}
    store.delete_stream(1)
    rest(store)
    store = reopened(disk)
    assert {stream: state_of(log) for stream, log in store.streams.items()} == {2: expected[2], 10: expected[10]}
    assert [log.configurations()[0][1] for log in store.streams.values()] == [b"10", b"2"]


def test_a_deleted_stream_is_gone_after_a_power_cut_and_so_is_its_vote_once_the_journal_is_replaced() -> None:
    disk = new_disk()
    _node(disk)
    store = reopened(disk)
    assert store.vote(5) == StoredVote(1, 1)
    store.delete_stream(5)
    assert store.vote(5) == StoredVote(0, None)
    rest(store)
    power_cut(disk)
    store = open_store(disk)
    assert store.streams == {}
    assert not disk.exists(folder_of(5))


def test_a_recycled_file_is_wiped_where_a_header_could_be_found() -> None:
    """Pool files of other shapes too: the place of the new trailer may lie in the old one's data."""
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    rest(store)
    for name, size in (("00000003.free", 100), ("00000004.free", 50_000), ("00000005.free", 9000)):
        replace(disk, f"{DIRECTORY}/pool/{name}", b"\xff" * size)
    store = reopened(disk)
    log = store.streams[5]
    for _ in range(8):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
        spare = read_path(disk, files_of(disk, 5, ACTIVE_SUFFIX)[-1])
        assert len(spare) == 8192 + 4096 + 4096
        assert spare[-4096:] == bytes(4096)
    expected = state_of(log)
    assert state_of(reopened(disk).streams[5]) == expected


def test_files_kept_for_reuse_are_bounded() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for _ in range(9):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    rest(store)
    log.trim(8, log.last_index)
    rest(store)
    assert len(disk.list_directory(f"{DIRECTORY}/pool")) == 2
    assert len(files_of(disk, 5, ".log")) == 0


def test_trimming_keeps_what_is_not_committed_or_not_durable() -> None:
    for committed, durable, first_index in ((9, True, 10), (4, True, 5), (0, True, 1), (9, False, 1)):
        store = open_store(new_disk())
        log = store.create_stream(5, b"")
        for _ in range(10):
            log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        if durable:
            write(store)
        log.trim(9, committed)
        assert (log.start_offset, log.first_index) == (9, first_index)


def test_the_log_start_never_moves_back_and_never_behind_the_end() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [batch() for _ in range(10)])
    rest(store)
    log.trim(7, log.last_index)
    log.trim(3, log.last_index)
    assert log.start_offset == 7
    with pytest.raises(StorageError, match="log start 11 behind the end 10"):
        log.trim(11, log.last_index)
    rest(store)
    power_cut(disk)
    assert open_store(disk).streams[5].start_offset == 7


# The directory's own id


def test_the_directory_keeps_its_id_and_another_one_has_another() -> None:
    disk = new_disk()
    drawn = open_store(disk).directory_id
    assert len(bytes.fromhex(drawn)) == 16
    power_cut(disk)
    assert open_store(disk, seed=99).directory_id == drawn
    assert open_store(new_disk(), seed=2).directory_id != drawn


def test_a_directory_without_an_id_gets_one_that_lasts() -> None:
    for step in range(20):
        disk = new_disk(step)
        _node(disk)
        replace(disk, f"{DIRECTORY}/node.json", encode_json({"format": 1}))
        killed(disk)
        disk.crash_after(step)
        told: list[str] = []
        try:
            told.append(open_store(disk, seed=7).directory_id)
            disk.disarm()
        except SimulatedCrash:
            pass
        power_cut(disk)
        store = open_store(disk, seed=8)
        assert store.directory_id
        assert told in ([], [store.directory_id])
        assert list(store.streams) == [5]


# Streams that begin elsewhere than at 0


def test_a_restored_stream_begins_at_its_offset() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"three nodes", start_offset=1000)
    assert (log.start_offset, log.next_offset, log.first_index, log.offset_after(0)) == (1000, 1000, 1, 1000)
    write(store)
    power_cut(disk)
    store = open_store(disk)
    log = store.streams[5]
    assert (log.start_offset, log.next_offset) == (1000, 1000)
    log.append_new(1, EntryKind.NOOP, [b""])
    log.append_new(1, EntryKind.DATA, [batch(records=3), batch()])
    rest(store)
    for each in (log, reopened(disk).streams[5]):
        assert (each.start_offset, each.next_offset, each.last_index) == (1000, 1004, 3)
        assert offsets_of(read_batches(each, 1000, 3, 10**6)) == [1000, 1003]
        assert each.end_of_term(1) == (1, 1004)
        assert each.end_of_term(0) == (0, 1000)


# What a replica learns when it begins anew behind another's floor


def test_a_take_over_brings_the_saved_application_with_it() -> None:
    source_store = open_store(new_disk(3))
    source = source_store.create_stream(5, b"base")
    source.append_new(1, EntryKind.CONFIGURATION, [b"second"])
    source.append_new(2, EntryKind.DATA, [batch() for _ in range(4)])
    source.roll()
    source.append_new(2, EntryKind.DATA, [batch() for _ in range(4)])
    rest(source_store)
    source.save_application(9, b"producers up to 9")
    source.trim(4, 9)
    rest(source_store)
    assert source.first_index == 6

    for seed in range(4):
        disk = new_disk(seed)
        store = open_store(disk)
        log = store.create_stream(5, b"base")
        log.save_application(0, b"what was known before")
        rest(store)
        log.take_over(5, 2, source.takeover_context())
        assert log.application == (9, b"producers up to 9")
        write(store)
        store = after_a_power_cut(disk)
        log = store.streams[5]
        assert log.application == (9, b"producers up to 9")
        assert log.configurations() == [(1, b"second")]
        assert (log.last_index, log.next_offset, log.start_offset) == (5, 4, 4)
        log.append_received(source.entries(6, 9, 10**6))
        rest(store)
        assert state_of(reopened(disk).streams[5]) == state_of(source)


def test_a_context_of_another_version_is_refused() -> None:
    log = open_store(new_disk()).create_stream(5, b"base")
    with pytest.raises(FormatVersionError, match="context has version 2; this one reads 1"):
        log.take_over(5, 2, b"\2" + log.takeover_context()[1:])
    assert log.last_index == 0
