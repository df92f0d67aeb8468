"""What a restart finds after a crash left this or that: each scenario with its name, built byte by byte."""

import dataclasses
import random

import pytest

from tests.sim.disk import SimDisk
from tests.storage.machine import State
from tests.storage.world import (
    DIRECTORY,
    TINY,
    EntryKind,
    batch,
    damage_found_by,
    entries_of,
    files_of,
    folder_of,
    killed,
    new_disk,
    open_store,
    overwrite,
    power_cut,
    read_all,
    read_path,
    remove,
    reopened,
    replace,
    rest,
    settled,
    sized_batch,
    state_of,
    write,
)
from tidelog import faults
from tidelog.storage import CorruptDataError, Store, StreamLog, WriterFailedError
from tidelog.storage.rows import ROW_BYTES, row_at
from tidelog.storage.segment import ACTIVE_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, SETTLED_AT
from tidelog.wire.batch import read_stamp, split_batches, stamp

ROWS_AT = TINY.segment_bytes
TRAILER_AT = TINY.segment_bytes + TINY.rows_bytes
STREAM = 5


def _store_with(disk: SimDisk, *sizes: int, groups: bool = True) -> tuple[Store, StreamLog]:
    """A stream of batches with these sizes, each written as a group of its own unless told otherwise."""
    store = open_store(disk)
    log = store.create_stream(STREAM, b"three nodes")
    for number, size in enumerate(sizes):
        log.append_new(1, EntryKind.DATA, [sized_batch(size, bytes([65 + number % 26]))])
        if groups:
            write(store)
    rest(store)
    return store, log


def _active(disk: SimDisk) -> str:
    return files_of(disk, STREAM, ACTIVE_SUFFIX)[-1]


def _recovered(disk: SimDisk) -> State:
    return _recovered_stream(disk, STREAM)


def _recovered_stream(disk: SimDisk, stream: int) -> State:
    log = reopened(disk).streams[stream]
    assert log.durable_index == log.last_index
    read_all(log)
    return state_of(log)


# ---- the end of the active segment


@pytest.mark.parametrize("missing", [2, 10, 60, 299, 300])
def test_torn_last_record(missing: int) -> None:
    """VDL's breakpoint "last record short by 10 bytes"."""
    disk = new_disk()
    _, log = _store_with(disk, 200, 300)
    before = state_of(log)
    overwrite(disk, _active(disk), 500 - missing, bytes(missing))
    assert _recovered(disk) == before.prefix(1)


@pytest.mark.parametrize("missing", [1, 4, 20, 31, 32])
def test_torn_index_row_of_an_unfinished_write(missing: int) -> None:
    """VDL's breakpoint "last index entry short by 20 bytes": the batch is there, the row that vouches for it is not."""
    disk = new_disk()
    _, log = _store_with(disk, 200, 300)
    before = state_of(log)
    overwrite(disk, _active(disk), ROWS_AT + 2 * ROW_BYTES - missing, bytes(missing))
    found = _recovered(disk)
    assert found == before.prefix(1)


@pytest.mark.parametrize("row", [0, 1, 2])
def test_torn_index_row_before_intact_ones_is_made_again(row: int) -> None:
    disk = new_disk()
    _, log = _store_with(disk, 200, 300, 250, 100)
    before = state_of(log)
    path = _active(disk)
    rows = read_path(disk, path)[ROWS_AT : ROWS_AT + 4 * ROW_BYTES]
    overwrite(disk, path, ROWS_AT + row * ROW_BYTES, bytes(20))
    assert _recovered(disk) == before
    made_again = read_path(disk, path)[ROWS_AT : ROWS_AT + 4 * ROW_BYTES]
    for number in range(4):
        assert row_at(made_again, number)._replace(synced=0) == row_at(rows, number)._replace(synced=0)


def test_zeroed_tail() -> None:
    """A file system that lost the last blocks' content: what was never known to be durable is gone, cleanly."""
    disk = new_disk()
    _, log = _store_with(disk, 200, 300, 250, groups=False)
    before = state_of(log)
    overwrite(disk, _active(disk), 200, bytes(TINY.segment_bytes - 200))
    assert _recovered(disk) == before.prefix(1)
    assert _recovered(disk) == before.prefix(1)


def test_zeroed_tail_of_what_was_known_to_be_durable_is_refused() -> None:
    disk = new_disk()
    _store_with(disk, 200, 300, 250)
    path = _active(disk)
    overwrite(disk, path, 200, bytes(TINY.segment_bytes - 200))
    killed(disk)
    with pytest.raises(CorruptDataError) as refusal:
        open_store(disk)
    assert (refusal.value.path, refusal.value.position) == (path, 200)


def test_rows_without_their_batches_do_not_stay_behind_to_be_chained_to() -> None:
    disk = new_disk()
    _store_with(disk, 200, 300, 250, groups=False)
    overwrite(disk, _active(disk), 200, bytes(300))
    store = reopened(disk)
    assert read_path(disk, _active(disk))[ROWS_AT + ROW_BYTES : TRAILER_AT] == bytes(TINY.rows_bytes - ROW_BYTES)
    log = store.streams[STREAM]
    log.append_new(1, EntryKind.DATA, [sized_batch(300, b"B")])  # the very batch that was lost
    rest(store)
    assert _recovered(disk).last_index == 2


def test_the_log_goes_on_where_recovery_left_it() -> None:
    disk = new_disk()
    _, log = _store_with(disk, 200, 300)
    overwrite(disk, _active(disk), 450, bytes(50))
    store = reopened(disk)
    log = store.streams[STREAM]
    log.append_new(3, EntryKind.DATA, [batch(b"new", records=2)])
    rest(store)
    expected = state_of(log)
    assert [entry.term for entry in expected.entries] == [1, 3]
    assert _recovered(disk) == expected


# ---- stale records


def test_stale_records_behind_a_truncated_tail() -> None:
    """Same sizes, so that the old batches stand exactly where a walk over the file would look for the next ones."""
    for written in range(3):
        for new_batches in range(1, 4):
            disk = new_disk(direct=False)  # a direct file would zero the rest of the block
            store, log = _store_with(disk, 200, 200, 200, 200)
            log.truncate_from(2)
            if written:
                write(store)
            log.append_new(2, EntryKind.DATA, [sized_batch(200, b"n") for _ in range(new_batches)])
            write(store)
            expected = state_of(log)
            assert _recovered(disk) == expected
            assert expected.last_index == 1 + new_batches


def test_stale_records_behind_a_truncated_tail_even_of_a_higher_term_than_what_follows() -> None:
    disk = new_disk(direct=False)
    store, log = _store_with(disk, 200)
    log.append_new(9, EntryKind.DATA, [sized_batch(200, b"s") for _ in range(3)])
    rest(store)
    log.truncate_from(2)
    log.append_new(3, EntryKind.DATA, [sized_batch(200, b"n")])  # an older leader's entry, of a lower term
    rest(store)
    expected = state_of(log)
    assert [entry.term for entry in expected.entries] == [1, 3]
    assert _recovered(disk) == expected


@pytest.mark.parametrize("reported", [True, False])
def test_an_entry_that_returns_after_a_truncation_does_not_bring_its_old_followers_back(reported: bool) -> None:
    """Entries A B C; B and C are truncated, B alone comes again, byte for byte, from the leader of then."""
    disk = new_disk(direct=False)
    store, log = _store_with(disk, 200)
    log.append_new(2, EntryKind.DATA, [sized_batch(200, b"B"), sized_batch(200, b"C")])
    (store.run_writer if not reported else lambda: rest(store))()
    again = entries_of(log)[1]
    log.truncate_from(2)
    log.append_received([again])
    store.run_writer()
    assert _recovered(disk).last_index == 2


def test_stale_batches_of_another_stream_in_a_recycled_file() -> None:
    """Checksum, position, offset and epoch fit; only this stream's rows do not name them."""
    disk = new_disk(direct=False)
    store = open_store(disk)
    first, second = store.create_stream(1, b""), store.create_stream(2, b"")
    per_segment = TINY.segment_bytes // 512
    for _ in range(3 * per_segment):
        first.append_new(1, EntryKind.DATA, [sized_batch(512, b"a")])
    rest(store)
    first.trim(2 * per_segment, first.last_index)
    rest(store)
    pool = f"{DIRECTORY}/pool"
    recycled = [read_path(disk, f"{pool}/{name}") for name in disk.list_directory(pool)]
    assert len(recycled) == 2
    assert all(b"a" * 400 in content for content in recycled)

    for _ in range(per_segment):
        second.append_new(1, EntryKind.DATA, [sized_batch(512, b"b")])
    rest(store)  # half full, so that a file for the next segment was taken from the pool
    spare = files_of(disk, 2, ACTIVE_SUFFIX)[-1]
    stale = read_path(disk, spare)
    assert b"a" * 400 in stale
    second.append_new(1, EntryKind.DATA, [sized_batch(512, b"b")])
    rest(store)
    expected = state_of(second)
    # The stale batches get the places that would fit: offsets, epochs and positions of what would follow here.
    crafted = bytearray(read_path(disk, spare))
    for number in range(1, per_segment):
        fake = sized_batch(512, b"a")
        fake[0:8] = (per_segment + number).to_bytes(8, "big")
        fake[12:16] = (1).to_bytes(4, "big")
        crafted[number * 512 : (number + 1) * 512] = fake
    overwrite(disk, spare, 0, crafted[: TINY.segment_bytes])
    assert state_of(reopened(disk).streams[2]) == expected


def test_rows_and_batches_of_another_use_of_the_file_do_not_come_back_even_behind_the_very_same_entry() -> None:
    """A file that was recycled whole, with a twin's rows in it: only the salt tells its chain from this use's."""
    disk = new_disk(direct=False)
    store = open_store(disk)
    twin, log = store.create_stream(1, b""), store.create_stream(2, b"")
    for each in (twin, log):
        each.append_new(1, EntryKind.DATA, [sized_batch(5000, b"a")])
    twin.append_new(1, EntryKind.DATA, [sized_batch(5000, b"b"), sized_batch(500, b"c"), sized_batch(500, b"d")])
    rest(store)
    contents = {path: read_path(disk, path) for stream in (1, 2) for path in files_of(disk, stream, ACTIVE_SUFFIX)}
    [twin_file] = [content for content in contents.values() if b"d" * 400 in content]
    [spare] = [path for path in files_of(disk, 2, ACTIVE_SUFFIX) if not any(contents[path][TRAILER_AT:])]
    overwrite(disk, spare, 0, twin_file[:TRAILER_AT])
    log = (store := reopened(disk)).streams[2]
    log.append_new(1, EntryKind.DATA, [sized_batch(5000, b"b")])
    rest(store)
    assert b"d" * 400 in read_path(disk, spare)
    assert any(read_path(disk, spare)[TRAILER_AT:]), "the spare is in use"
    assert _recovered_stream(disk, 2).last_index == 2


def test_an_unsynced_group_in_a_recycled_file_is_lost_whole_or_in_part_but_never_replaced_by_old_bytes() -> None:
    for seed in range(12):
        disk = new_disk(seed)
        store = open_store(disk)
        first, second = store.create_stream(1, b""), store.create_stream(2, b"")
        per_segment = TINY.segment_bytes // 512
        for log, fill in ((first, b"a"), (second, b"b")):
            for _ in range(2 * per_segment if log is first else per_segment):
                log.append_new(1, EntryKind.DATA, [sized_batch(512, fill)])
                write(store)
            rest(store)
            if log is first:
                first.trim(per_segment, first.last_index)
                rest(store)
        expected = state_of(second)
        second.append_new(1, EntryKind.DATA, [sized_batch(512, b"c") for _ in range(8)])
        whole = state_of(second)
        store.run_write()  # and the power fails before the sync
        power_cut(disk)
        found = state_of(open_store(disk).streams[2])
        assert found == whole.prefix(len(found.entries))
        assert len(found.entries) >= len(expected.entries)


# ---- what a killed process leaves


def test_what_a_killed_process_wrote_but_did_not_sync_is_made_durable_before_it_counts() -> None:
    for seed in range(10):
        disk = new_disk(seed)
        store, log = _store_with(disk, 200)
        log.append_new(1, EntryKind.DATA, [sized_batch(300), sized_batch(400)])
        store.run_write()
        found = _recovered(disk)
        power_cut(disk)
        assert state_of(open_store(disk).streams[STREAM]) == found


def test_what_a_failed_sync_left_in_memory_is_written_again_before_it_counts() -> None:
    """After a failed sync the kernel shows pages that no later sync will write (as with PostgreSQL's fsync bug)."""
    for seed in range(20):
        disk = new_disk(seed)
        store, log = _store_with(disk, 200)
        log.append_new(1, EntryKind.DATA, [sized_batch(300), sized_batch(400)])
        store.run_write()
        disk.fail_next_sync()
        with pytest.raises(Exception, match="sync failed"):
            store.run_sync()
        found = _recovered(disk)
        power_cut(disk)
        assert state_of(open_store(disk).streams[STREAM]) == found


def test_a_new_segment_whose_header_was_never_synced_is_made_durable_before_it_counts() -> None:
    for seed in range(20):
        disk = new_disk(seed)
        store, log = _store_with(disk, 4000)
        log.append_new(1, EntryKind.DATA, [sized_batch(6000)])
        store.run_write()
        disk.fail_next_sync()
        with pytest.raises(Exception, match="sync failed"):
            store.run_sync()
        found = _recovered(disk)
        power_cut(disk)
        assert state_of(open_store(disk).streams[STREAM]) == found


# ---- closed segments and their indexes


def _closed_segments(disk: SimDisk) -> tuple[Store, State]:
    """Three closed segments and an active one, with entries of our own at their edges."""
    store = open_store(disk)
    log = store.create_stream(STREAM, b"three nodes")
    for number in range(8):
        log.append_new(1 + number // 3, EntryKind.CONFIGURATION, [b"members %d" % number])
        log.append_new(1 + number // 3, EntryKind.DATA, [sized_batch(3000, bytes([65 + number]), timestamp=number)])
        write(store)
    rest(store)
    assert len(files_of(disk, STREAM, LOG_SUFFIX)) == 3
    return store, state_of(log)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("damage", ["missing", "torn", "empty", "flipped"])
def test_lost_index_of_a_closed_segment_is_made_again(number: int, damage: str) -> None:
    disk = new_disk()
    store, before = _closed_segments(disk)
    configurations = store.streams[STREAM].configurations()
    path = files_of(disk, STREAM, INDEX_SUFFIX)[number]
    content = read_path(disk, path)
    match damage:
        case "missing":
            remove(disk, path)
        case "torn":
            replace(disk, path, content[: len(content) - 20])
        case "empty":
            replace(disk, path, b"")
        case _:
            overwrite(disk, path, 100, bytes([content[100] ^ 1]))
    log = reopened(disk).streams[STREAM]
    assert state_of(log) == before
    assert log.configurations() == configurations
    assert [log.index_at_time(time) for time in range(8)] == [2 * time + 2 for time in range(8)]
    assert _recovered(disk) == before


def test_a_rebuilt_index_that_the_next_segment_does_not_follow_is_refused() -> None:
    disk = new_disk()
    _closed_segments(disk)
    index, log = files_of(disk, STREAM, INDEX_SUFFIX)[1], files_of(disk, STREAM, LOG_SUFFIX)[1]
    remove(disk, index)
    content = read_path(disk, log)
    position = next(p for p, size in split_batches(content) if size == 3000)
    other = sized_batch(3000, b"Z")
    stamp(other, *read_stamp(content[position:]))
    overwrite(disk, log, position, other)  # intact, and it fits; but it is not what was written here
    killed(disk)
    with pytest.raises(CorruptDataError, match="the next one follows"):
        open_store(disk)


def test_a_closed_segment_whose_index_was_made_again_can_be_trimmed_without_harm_to_the_newest_one() -> None:
    """The rebuilt segment's number must not be that of another file: trimming it would delete that one."""
    disk = new_disk()
    store, log = _store_with(disk, 5000, 5000)
    log.truncate_from(2)
    store.run_writer()  # the active file is removed, and the next one begun
    killed(disk)
    for path in files_of(disk, STREAM, ACTIVE_SUFFIX) + files_of(disk, STREAM, INDEX_SUFFIX):
        remove(disk, path)
    store = open_store(disk)
    log = store.streams[STREAM]
    log.append_new(2, EntryKind.DATA, [sized_batch(5000, b"n")])
    rest(store)
    log.trim(1, log.last_index)
    rest(store)
    assert log.first_index == 2
    expected = state_of(log)
    assert _recovered(disk) == expected
    assert expected.last_index == 2


@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_hole_where_a_segment_is_missing_is_refused(lost: int) -> None:
    disk = new_disk()
    _closed_segments(disk)
    segments = files_of(disk, STREAM, LOG_SUFFIX)
    if lost < len(segments):
        remove(disk, segments[lost])
        killed(disk)
        with pytest.raises(CorruptDataError, match=r"a hole in the log|the next one follows"):
            open_store(disk)
    else:
        remove(disk, segments[2])
        remove(disk, segments[1])
        killed(disk)
        with pytest.raises(CorruptDataError, match=r"a hole in the log|the next one follows"):
            open_store(disk)


@pytest.mark.parametrize(("taken", "given"), [(0, 1), (1, 0), (2, 1)])
def test_index_of_the_wrong_segment_is_refused(taken: int, given: int) -> None:
    disk = new_disk()
    _closed_segments(disk)
    indexes = files_of(disk, STREAM, INDEX_SUFFIX)
    replace(disk, indexes[given], read_path(disk, indexes[taken]))
    killed(disk)
    with pytest.raises(CorruptDataError):
        open_store(disk)


def test_index_of_another_stream_is_refused() -> None:
    disk = new_disk()
    store = open_store(disk)
    for stream in (1, 2):
        log = store.create_stream(stream, b"")
        for _ in range(2):
            log.append_new(1, EntryKind.DATA, [sized_batch(5000, b"%d" % stream)])
        rest(store)
    for stream in (1, 2):  # nothing behind them whose link could tell
        store.streams[stream].truncate_from(2)
    store.run_writer()
    killed(disk)
    for stream in (1, 2):
        remove(disk, files_of(disk, stream, ACTIVE_SUFFIX)[-1])
    replace(disk, files_of(disk, 2, INDEX_SUFFIX)[-1], read_path(disk, files_of(disk, 1, INDEX_SUFFIX)[-1]))
    with pytest.raises(CorruptDataError, match="another stream"):
        open_store(disk)


def test_closed_segment_that_lost_its_end_is_refused() -> None:
    disk = new_disk()
    _closed_segments(disk)
    path = files_of(disk, STREAM, LOG_SUFFIX)[1]
    content = read_path(disk, path)
    replace(disk, path, content[:-1])
    killed(disk)
    with pytest.raises(CorruptDataError) as refusal:
        open_store(disk)
    assert (refusal.value.path, refusal.value.position) == (path, len(content) - 1)


def test_closed_segment_that_was_not_cut_yet_is_cut() -> None:
    """The power failed between the renaming and the cutting: rows and trailer still stand behind the batches."""
    disk = new_disk()
    _, before = _closed_segments(disk)
    path = files_of(disk, STREAM, LOG_SUFFIX)[1]
    content = read_path(disk, path)
    replace(disk, path, content + b"rows and trailer" * 100)
    assert _recovered(disk) == before
    assert read_path(disk, path) == content


def test_damaged_membership_entry_of_a_closed_segment_is_refused_and_named() -> None:
    disk = new_disk()
    _closed_segments(disk)
    path = files_of(disk, STREAM, LOG_SUFFIX)[0]
    disk.flip_bit(path, read_path(disk, path).index(b"members 0"), 0)
    killed(disk)
    with pytest.raises(CorruptDataError, match="membership") as refusal:
        open_store(disk)
    assert refusal.value.path == path


def test_a_flipped_bit_in_a_closed_segment_never_reaches_another_replica() -> None:
    disk = new_disk()
    _closed_segments(disk)
    path = files_of(disk, STREAM, LOG_SUFFIX)[0]
    disk.flip_bit(path, 1000, 3)
    log = reopened(disk).streams[STREAM]
    with pytest.raises(CorruptDataError, match="checksum"):
        log.entries(1, 2, 1 << 20)


@pytest.mark.parametrize("field", ["offset", "epoch"])
def test_a_stamp_that_changed_in_a_closed_segment_never_reaches_another_replica(field: str) -> None:
    """Neither is covered by the batch's checksum."""
    disk = new_disk()
    _closed_segments(disk)
    path = files_of(disk, STREAM, LOG_SUFFIX)[1]
    log = reopened(disk).streams[STREAM]
    index = next(i for i in range(1, 20) if bytes(log.entries(i, i, 1)[0].data[:8]) == (2).to_bytes(8, "big"))
    disk.flip_bit(path, read_path(disk, path).index((2).to_bytes(8, "big")) + {"offset": 7, "epoch": 15}[field], 0)
    log = reopened(disk).streams[STREAM]
    with pytest.raises(CorruptDataError):
        log.entries(index, index, 1)


def test_an_index_that_is_damaged_while_the_node_runs_is_noticed_when_it_is_loaded() -> None:
    disk = new_disk()
    _closed_segments(disk)
    log = reopened(disk).streams[STREAM]
    disk.flip_bit(files_of(disk, STREAM, INDEX_SUFFIX)[0], 130, 0)
    with pytest.raises(CorruptDataError, match="index"):
        log.read(0, log.last_index, 1 << 20)


# ---- leftovers


def test_leftovers_are_removed() -> None:
    disk = new_disk()
    _, before = _closed_segments(disk)
    folder = folder_of(STREAM)
    strays = [
        f"{folder}/stream.json.tmp",
        f"{folder}/{1:020d}-{0:020d}.index.tmp",
        f"{folder}/{999:020d}-{500:020d}.index",
        f"{folder}/{77:016d}.active",  # begun, but its header never became durable
    ]
    for path in strays:
        replace(disk, path, b"torn")
    assert _recovered(disk) == before
    assert not any(disk.exists(path) for path in strays)


def test_of_several_prepared_files_one_is_kept_as_the_spare() -> None:
    disk = new_disk()
    _, before = _closed_segments(disk)
    for sequence in (50, 51, 52):
        replace(disk, f"{folder_of(STREAM)}/{sequence:016d}.active", bytes(TINY.shape.file_bytes))
    store = reopened(disk)
    log = store.streams[STREAM]
    assert state_of(log) == before
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) == 2
    for _ in range(4):
        log.append_new(9, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    assert len(files_of(disk, STREAM, ACTIVE_SUFFIX)) <= 2
    expected = state_of(log)
    assert _recovered(disk) == expected


def test_segments_below_the_floor_and_of_an_older_era_are_leftovers() -> None:
    disk = new_disk()
    store, _ = _closed_segments(disk)
    copies = {path: read_path(disk, path) for path in files_of(disk, STREAM)}
    log = store.streams[STREAM]
    log.take_over(4, 9, log.takeover_context())  # behind the beginning of old segments, so their index is no reason
    log.append_new(9, EntryKind.DATA, [batch(b"new")])
    rest(store)
    expected = state_of(log)
    for path, content in copies.items():
        if not path.endswith("stream.json") and not disk.exists(path):
            replace(disk, path, content)
    assert _recovered(disk) == expected
    assert not any(path.endswith(LOG_SUFFIX) for path in files_of(disk, STREAM))


# ---- bit flips


def _regions_of_the_active_segment(log: StreamLog, content: bytes) -> list[tuple[str, int]]:
    """(what, byte) for each field that could be hit, of each batch and row, of both headers and of the mark."""
    regions: list[tuple[str, int]] = []
    position = 0
    for number in range(log.last_index):
        size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        fields = {"offset": 7, "length": 11, "epoch": 15, "magic": 16, "crc": 17, "delta": 26, "time": 40}
        for what, at in {**fields, "first payload": 61, "payload": size // 2, "last byte": size - 1}.items():
            regions.append((f"{what} of batch {number}", position + at))
        row_at_byte = ROWS_AT + number * ROW_BYTES
        regions += [(f"byte {at} of row {number}", row_at_byte + at) for at in range(ROW_BYTES)]
        position += size
    regions += [("behind the data", position), ("behind the rows", ROWS_AT + log.last_index * ROW_BYTES)]
    regions += [(f"header byte {at}", TRAILER_AT + at) for at in range(100)]
    regions += [(f"mark byte {at}", TRAILER_AT + SETTLED_AT + at) for at in range(20)]
    return regions


def _settled_log(disk: SimDisk) -> StreamLog:
    store = open_store(disk)
    log = store.create_stream(STREAM, b"three nodes")
    log.append_new(1, EntryKind.NOOP, [b""])
    write(store)
    for number in range(3):
        log.append_new(1 + number, EntryKind.DATA, [sized_batch(150 + number, b"d", timestamp=number)])
        write(store)
    settled(store)
    return log


def test_bit_flip_in_the_middle_is_refused_or_healed_and_never_changes_the_log() -> None:
    """Loop over every field: after the data was durable and settled, the log is the same one or the node stops."""
    disk = new_disk()
    log = _settled_log(disk)
    before, path = state_of(log), _active(disk)
    original = read_path(disk, path)
    refused: list[str] = []
    for what, position in _regions_of_the_active_segment(log, original):
        bit = position % 8
        disk.flip_bit(path, position, bit)
        killed(disk)
        found: list[State] = []
        damage = damage_found_by(lambda: found.append(state_of(open_store(disk).streams[STREAM])))  # noqa: B023
        if damage is None:
            assert found == [before], f"{what} at {position} changed the log"
        else:
            assert damage.path == path
            refused.append(what)
        killed(disk)
        replace(disk, path, original)
    assert {what.rpartition(" ")[0] for what in refused if "batch" in what} == {
        f"{field} of batch"
        for field in (
            "offset",
            "length",
            "epoch",
            "magic",
            "crc",
            "delta",
            "time",
            "first payload",
            "payload",
            "last byte",
        )
    }
    assert not any("header" in what or "mark" in what for what in refused)


def test_the_refusal_names_the_file_and_the_byte() -> None:
    disk = new_disk()
    _settled_log(disk)
    path = _active(disk)
    second_batch = 12 + int.from_bytes(read_path(disk, path)[8:12], "big")
    disk.flip_bit(path, second_batch + 100, 0)
    killed(disk)
    with pytest.raises(CorruptDataError, match="checksum") as refusal:
        open_store(disk)
    assert (refusal.value.path, refusal.value.position) == (path, second_batch)
    assert path in str(refusal.value)
    assert f"byte {second_batch}" in str(refusal.value)
    assert "start the node with an empty data folder" in str(refusal.value)


def test_a_node_that_refused_to_start_lets_go_of_its_directory() -> None:
    disk = new_disk()
    _settled_log(disk)
    disk.flip_bit(_active(disk), 100, 0)
    killed(disk)
    for _ in range(2):  # the second one is refused for the same reason, not because the first one holds the lock
        with pytest.raises(CorruptDataError):
            open_store(disk)


def test_flip_in_the_last_group_is_refused_once_the_stream_was_at_rest() -> None:
    for at_rest in (False, True):
        disk = new_disk()
        store, log = _store_with(disk, 200, 300)
        before = state_of(log)
        if at_rest:
            settled(store)
        disk.flip_bit(_active(disk), 400, 0)
        killed(disk)
        if at_rest:
            with pytest.raises(CorruptDataError):
                open_store(disk)
        else:
            assert _recovered(disk) == before.prefix(1)


def test_flip_below_what_a_later_row_knows_to_be_durable_is_refused() -> None:
    disk = new_disk()
    _store_with(disk, 200, 300, 100)  # each a group of its own: the third row says that two are durable
    disk.flip_bit(_active(disk), 400, 0)
    killed(disk)
    with pytest.raises(CorruptDataError) as refusal:
        open_store(disk)
    assert refusal.value.position == 200


def test_unfinished_group_after_a_crash_is_dropped_though_the_groups_before_were_settled() -> None:
    disk = new_disk()
    store, log = _store_with(disk, 200, 300)
    settled(store)
    expected = state_of(log)
    log.append_new(1, EntryKind.DATA, [sized_batch(400), sized_batch(500)])
    store.run_writer()
    overwrite(disk, _active(disk), 600, bytes(100))
    assert _recovered(disk) == expected


def test_settled_entries_may_be_truncated() -> None:
    """The mark is taken back first, so that the truncation does not look like damage."""
    for seed in range(6):
        disk = new_disk(seed, direct=bool(seed % 2))
        store, log = _store_with(disk, 200, 300, 250)
        settled(store)
        log.truncate_from(2)
        log.append_new(2, EntryKind.DATA, [sized_batch(random.Random(seed).choice([120, 300, 500]))])
        rest(store)
        expected = state_of(log)
        power_cut(disk)
        assert state_of(open_store(disk).streams[STREAM]) == expected


# ---- settings that changed


@pytest.mark.parametrize("entries_before", [0, 1])
def test_segments_may_be_made_larger(entries_before: int) -> None:
    larger = dataclasses.replace(TINY, segment_bytes=4 * TINY.segment_bytes)
    disk = new_disk()
    store, log = _store_with(disk, *[200] * entries_before)
    store = reopened(disk, larger)
    log = store.streams[STREAM]
    for _ in range(3):
        log.append_new(2, EntryKind.DATA, [sized_batch(3 * TINY.segment_bytes)])
        rest(store)
    expected = state_of(log)
    assert state_of(reopened(disk, larger).streams[STREAM]) == expected
    assert state_of(reopened(disk, TINY).streams[STREAM]) == expected


@pytest.mark.parametrize("removed", [1, 2])
def test_a_crash_while_a_truncation_removes_segments_leaves_a_shorter_log(removed: int) -> None:
    disk = new_disk()
    store, log = _store_with(disk, *[TINY.segment_bytes // 2] * 7)  # two in each segment
    before, held = state_of(log), len(files_of(disk, STREAM, LOG_SUFFIX))
    faults.arm("segment.drop-suffix", faults.Action("error", skip=removed - 1, count=1))
    try:
        log.truncate_from(2)
        with pytest.raises(WriterFailedError):
            store.run_writer()
    finally:
        faults.clear()
    power_cut(disk)
    store = open_store(disk)
    log = store.streams[STREAM]
    found = state_of(log)
    assert found == before.prefix(len(found.entries))
    assert held - len(files_of(disk, STREAM, LOG_SUFFIX)) == removed - 1  # and the one that was being written to
    log.truncate_from(2)
    log.append_new(2, EntryKind.DATA, [batch()])
    rest(store)
    assert [entry.term for entry in entries_of(reopened(disk).streams[STREAM])] == [1, 2]
