"""What consumers and followers get: only what is committed, whole batches, within bounds, from memory or from files."""

import dataclasses
import gc

import pytest

from tests.sim.disk import SimDisk
from tests.storage.world import (
    DIRECTORY,
    TINY,
    Entry,
    EntryKind,
    batch,
    entries_of,
    files_of,
    new_disk,
    offsets_of,
    open_store,
    read_all,
    read_batches,
    read_path,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import CorruptDataError, FileRange, Store, StreamLog, chunk_bytes
from tidelog.storage.segment import LOG_SUFFIX
from tidelog.wire.batch import check_batch

CACHED = dataclasses.replace(TINY, tail_cache_bytes=1 << 20)


def _mixed_log(store: Store, entries: int = 40) -> StreamLog:
    """Records with entries of our own among them, several in a row too, over several segments."""
    log = store.create_stream(5, b"three nodes")
    for number in range(entries):
        if number % 5 in {0, 1}:
            log.append_new(1 + number // 8, EntryKind.NOOP, [b"own %d" % number])
        else:
            log.append_new(
                1 + number // 8,
                EntryKind.DATA,
                [batch(bytes(300 + 40 * number), records=1 + number % 2, timestamp=number)],
            )
        write(store)
    rest(store)
    return log


def _everywhere(entries: int = 40) -> list[tuple[str, StreamLog]]:
    """The same log, served from memory, from files, and from both."""
    cached = _mixed_log(open_store(new_disk(), CACHED), entries)
    partly = _mixed_log(open_store(new_disk()), entries)
    disk = new_disk()
    _mixed_log(open_store(disk), entries)
    from_files = reopened(disk).streams[5]
    return [("memory", cached), ("both", partly), ("files", from_files)]


def test_nothing_behind_the_commit_index_is_ever_returned() -> None:
    for where, log in _everywhere():
        for committed in range(log.last_index + 1):
            high_watermark = log.offset_after(committed)
            for offset in range(log.next_offset + 1):
                for bytes_max in (1, 5000, 1 << 20):
                    batches = read_batches(log, offset, committed, bytes_max)
                    assert all(check_batch(data).next_offset <= high_watermark for data in batches), (
                        f"{where}: offset {offset}, committed {committed}"
                    )
                    assert bool(batches) == (offset < high_watermark), f"{where}: {offset}, {committed}"


def test_an_uncommitted_tail_is_not_returned_after_a_restart_either() -> None:
    """The cache begins behind the commit index then: the distance between them must not be taken from its end."""
    disk = new_disk()
    store = open_store(disk, CACHED)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [batch() for _ in range(20)])
    rest(store)
    log = reopened(disk, CACHED).streams[5]
    log.append_new(2, EntryKind.DATA, [batch(b"uncommitted") for _ in range(60)])
    for offset in range(20, 81):
        assert list(log.read(offset, 5, 1 << 20)) == []


def test_every_offset_is_served_by_the_batch_that_holds_it() -> None:
    for where, log in _everywhere():
        for offset in range(log.next_offset):
            first = check_batch(read_batches(log, offset, log.last_index, 1)[0])
            assert first.base_offset <= offset < first.next_offset, where


def test_at_least_one_batch_is_returned_and_the_bound_is_kept_otherwise() -> None:
    for where, log in _everywhere():
        for offset in range(log.next_offset):
            for bytes_max in (0, 1, 400, 1000, 3000, 10_000):
                batches = read_batches(log, offset, log.last_index, bytes_max)
                assert batches, where
                assert sum(map(len, batches)) <= bytes_max or len(batches) == 1, where


def test_as_much_as_fits_is_returned_of_a_segment() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(500) for _ in range(10)])
    rest(store)
    log = reopened(disk).streams[5]
    for bytes_max, count in ((499, 1), (500, 1), (999, 1), (1000, 2), (1001, 2), (4999, 9), (5000, 10), (1 << 20, 10)):
        assert len(read_batches(log, 0, 10, bytes_max)) == count
    assert len(read_batches(log, 3, 7, 1 << 20)) == 4


def test_entries_of_our_own_are_never_served_to_consumers() -> None:
    for where, log in _everywhere():
        batches = read_all(log, bytes_max=7000)
        assert not any(check_batch(data).is_ours for data in batches), where
        assert b"own" not in b"".join(batches)
        assert offsets_of(batches) == sorted(set(offsets_of(batches)))


def test_every_way_of_reading_gives_the_same_bytes() -> None:
    contents = {b"".join(read_all(log, bytes_max)) for _, log in _everywhere() for bytes_max in (1, 2000, 1 << 20)}
    assert len(contents) == 1
    states = {state_of(log) for _, log in _everywhere()}
    assert len(states) == 1


def test_offsets_outside_the_log_are_refused() -> None:
    _, log = _everywhere()[1]
    log.trim(9, log.last_index)
    for offset in (-1, 8, log.next_offset + 1):
        with pytest.raises(ValueError, match="is not between 9 and"):
            log.read(offset, log.last_index, 100)
    assert list(log.read(log.next_offset, log.last_index, 100)) == []


def test_entries_come_in_order_within_bounds_and_are_never_none() -> None:
    for where, log in _everywhere():
        everything = entries_of(log)
        for first in range(1, log.last_index + 1):
            for last in (first, min(first + 3, log.last_index), log.last_index):
                for bytes_max in (0, 700, 2500, 1 << 20):
                    found = log.entries(first, last, bytes_max)
                    assert found, where
                    assert [_plain(entry) for entry in found] == [
                        _plain(entry) for entry in everything[first - 1 : first - 1 + len(found)]
                    ]
                    assert found[-1].index <= last
                    if where == "memory":
                        assert sum(len(entry.data) for entry in found) <= bytes_max or len(found) == 1


def _plain(entry: Entry) -> tuple[int, int, EntryKind, bytes]:
    return entry.index, entry.term, entry.kind, bytes(entry.data)


def test_own_entries_are_found_by_index() -> None:
    for where, log in _everywhere():
        own = [entry for entry in entries_of(log) if entry.kind is not EntryKind.DATA]
        for first, last in ((1, log.last_index), (2, 7), (6, 6), (8, 10), (3, 5)):
            found = log.own_entries(first, last)
            assert [_plain(e) for e in found] == [_plain(e) for e in own if first <= e.index <= last], where


def test_membership_entries_go_with_a_truncation_and_the_last_one_below_the_log_start_stays() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"first")
    for members in (b"second", b"third", b"fourth"):
        log.append_new(1, EntryKind.CONFIGURATION, [members])
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    log.truncate_from(5)
    assert log.configurations() == [(0, b"first"), (1, b"second"), (3, b"third")]
    log.truncate_from(3)
    log.append_new(2, EntryKind.DATA, [sized_batch(5000), sized_batch(5000)])
    rest(store)
    log.trim(2, log.last_index)
    rest(store)
    assert log.first_index == 4
    for each in (log, reopened(disk).streams[5]):
        assert each.configurations() == [(1, b"second")]
        assert each.takeover_context().endswith(b"\0\0\0\6second")


def test_a_time_is_found_behind_the_log_start_only() -> None:
    """The largest timestamp lies before the log start: what it says of later entries is not true of them."""
    for settings in (TINY, CACHED):
        store = open_store(new_disk(), settings)
        log = store.create_stream(5, b"")
        for timestamp in (10, 90, 20, 30, 80, 40):
            log.append_new(1, EntryKind.DATA, [batch(timestamp=timestamp)])
            log.append_new(1, EntryKind.NOOP, [b""])
        rest(store)
        assert [log.index_at_time(time) for time in (5, 10, 11, 90, 91)] == [1, 1, 3, 3, None]
        log.trim(2, log.last_index)
        assert [log.index_at_time(time) for time in (5, 20, 21, 30, 31, 80, 81, 90)] == [5, 5, 7, 7, 9, 9, None, None]
        log.trim(6, log.last_index)
        assert log.index_at_time(0) is None


def test_reading_what_is_not_yet_written_comes_from_memory() -> None:
    store = open_store(new_disk(), dataclasses.replace(TINY, tail_cache_bytes=1))
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(3000, bytes([65 + n])) for n in range(10)])
    assert len(read_all(log)) == 10
    assert len(entries_of(log)) == 10
    store.run_write()
    store.deliver()
    assert len(read_all(log)) == 10
    rest(store)
    assert len(read_all(log)) == 10


# ---- ranges of files


def _trimmed_under_a_reader(disk: SimDisk) -> tuple[Store, StreamLog, list[FileRange], bytes]:
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for number in range(6):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000, bytes([65 + number]))])
        rest(store)
    store = reopened(disk)
    log = store.streams[5]
    ranges = [chunk for chunk in log.read(0, log.last_index, 1 << 20) if isinstance(chunk, FileRange)]
    assert ranges
    content = read_path(disk, files_of(disk, 5, LOG_SUFFIX)[0])
    log.trim(3, log.last_index)
    rest(store)
    assert len(files_of(disk, 5, LOG_SUFFIX)) == 2
    return store, log, ranges, content


def test_a_range_of_a_file_keeps_its_content_when_the_segment_is_trimmed_and_files_are_reused() -> None:
    disk = new_disk()
    store, log, ranges, content = _trimmed_under_a_reader(disk)
    for _ in range(8):
        log.append_new(2, EntryKind.DATA, [sized_batch(5000, b"z")])
        rest(store)
    assert chunk_bytes(ranges) == content
    memory = bytearray(len(ranges[0]))
    assert ranges[0].read_into(memoryview(memory)) == len(memory)
    assert bytes(memory) == content[: len(memory)]


def test_the_file_of_a_segment_that_is_still_read_is_not_kept_for_reuse() -> None:
    disk = new_disk()
    _, _, ranges, _ = _trimmed_under_a_reader(disk)
    assert len(disk.list_directory(f"{DIRECTORY}/pool")) == 2, (
        "of three trimmed segments the one that is read is removed"
    )
    assert ranges


def test_the_file_of_a_segment_that_nobody_reads_is_reused() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for _ in range(4):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    log = (store := reopened(disk)).streams[5]
    chunks = log.read(0, log.last_index, 1 << 20)
    del chunks
    gc.collect()
    log.trim(2, log.last_index)
    rest(store)
    assert len(disk.list_directory(f"{DIRECTORY}/pool")) == 2


def test_a_range_of_the_newest_segment_stays_valid_while_that_is_closed_and_trimmed() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(3000, b"a"), sized_batch(3000, b"b")])
    rest(store)
    store = reopened(disk)
    log = store.streams[5]
    ranges = log.read(0, 2, 1 << 20)
    content = chunk_bytes(log.read(0, 2, 1 << 20))
    for _ in range(4):
        log.append_new(2, EntryKind.DATA, [sized_batch(5000, b"z")])
        rest(store)
    log.trim(4, log.last_index)
    rest(store)
    assert chunk_bytes(ranges) == content


def test_a_range_stays_valid_when_the_stream_is_deleted() -> None:
    disk = new_disk()
    store, _, ranges, content = _trimmed_under_a_reader(disk)
    store.delete_stream(5)
    rest(store)
    assert not disk.exists(f"{DIRECTORY}/streams/5")
    assert chunk_bytes(ranges) == content


def test_a_damaged_batch_is_noticed_before_it_goes_to_a_follower() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(3000), sized_batch(3000), sized_batch(3000)])
    rest(store)
    path = files_of(disk, 5, LOG_SUFFIX)[0]
    disk.flip_bit(path, 4000, 0)
    log = reopened(disk).streams[5]
    assert len(log.entries(1, 1, 1)) == 1
    with pytest.raises(CorruptDataError) as refusal:
        log.entries(1, 2, 1 << 20)
    assert (refusal.value.path, refusal.value.position) == (path, 3000)
