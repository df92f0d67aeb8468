"""The group-commit writer: what one group holds, what is synced before what, and what a report may claim."""

import dataclasses
import os
import random
from contextlib import suppress

import pytest

from tests.sim.disk import SimDisk, SimFile, SimulatedCrash
from tests.storage.world import (
    DIRECTORY,
    TINY,
    EntryKind,
    RecordingDisk,
    batch,
    entries_of,
    files_of,
    folder_of,
    killed,
    new_disk,
    open_store,
    power_cut,
    read_path,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import LogMismatchError, StorageError, Store, StoredVote, StreamLog, WriterFailedError
from tidelog.storage.operations import Append
from tidelog.storage.segment import ACTIVE_SUFFIX
from tidelog.storage.segment_file import buffered_bytes_max
from tidelog.wire.batch import read_stamp, stamp

VOTES = f"{DIRECTORY}/votes"


def _recorded(streams: int = 1) -> tuple[RecordingDisk, Store, list[StreamLog]]:
    disk = RecordingDisk(new_disk())
    store = open_store(disk)
    logs = [store.create_stream(stream, b"") for stream in range(1, streams + 1)]
    rest(store)
    disk.clear()
    return disk, store, logs


def _keep_house(store: Store) -> None:
    while store.run_housekeeping():
        pass


def _active(stream: int, sequence: int = 0) -> str:
    return f"{folder_of(stream)}/{sequence:016d}{ACTIVE_SUFFIX}"


# ---- groups


def test_everything_that_waits_becomes_one_group_with_one_sync_a_file() -> None:
    disk, store, logs = _recorded(streams=3)
    for _ in range(5):
        for log in logs:
            log.append_new(1, EntryKind.DATA, [sized_batch(200)])
    write(store)
    assert [log.durable_index for log in logs] == [5, 5, 5]
    assert [path for what, path in disk.operations if what == "sync"] == [_active(1), _active(2), _active(3)]


def test_appends_that_follow_each_other_become_one_write_of_data_and_one_of_rows() -> None:
    disk, store, (log,) = _recorded()
    for _ in range(7):
        log.append_new(1, EntryKind.DATA, [sized_batch(100), sized_batch(150)])
    write(store)
    assert [what for what, _ in disk.operations] == ["write", "write", "sync"]
    (_, data_at, _), (_, rows_at, _) = disk.writes
    assert (data_at, rows_at) == (0, TINY.segment_bytes)


def test_appends_are_not_merged_over_a_truncation_between_them() -> None:
    disk = new_disk(direct=False)
    store = open_store(disk)
    log = store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(200, b"a"), sized_batch(200, b"b")])
    log.truncate_from(2)
    log.append_new(2, EntryKind.DATA, [sized_batch(200, b"c"), sized_batch(200, b"d")])
    expected = state_of(log)
    rest(store)
    assert log.durable_index == 3
    assert state_of(reopened(disk).streams[1]) == expected


def test_only_appends_that_touch_become_one_write() -> None:
    disk, store, (log,) = _recorded()
    segment = log._segments.last  # pyright: ignore[reportPrivateUsage]
    for position, row in ((0, 0), (512, 1), (4096, 2), (4608, 5)):
        store.writer.submit(1, Append(segment, position, [b"x" * 512], 512, 32 * row, b"r" * 32, 0, 0))
    store.run_writer()
    content = read_path(disk, _active(1))
    assert content[:1024] == content[4096:5120] == b"x" * 1024
    assert content[1024:4096] == bytes(3072)
    rows = content[TINY.segment_bytes :]
    assert (rows[:96], rows[96:160], rows[160:192]) == (b"r" * 96, bytes(64), b"r" * 32)


def test_a_stream_that_did_nothing_costs_no_write_and_no_sync() -> None:
    disk, store, logs = _recorded(streams=4)
    logs[2].append_new(1, EntryKind.DATA, [batch()])
    write(store)
    assert {path for _, path in disk.operations} == {_active(3)}
    disk.clear()
    write(store)
    assert disk.operations == []


def test_the_next_group_may_be_written_while_the_last_one_waits_for_its_sync() -> None:
    disk, store, (log,) = _recorded()
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(200)])
        store.run_write()
    assert store.writer.written_groups == 3
    assert store.deliver().logs == []
    assert log.durable_index == 0
    store.run_sync()
    assert [what for what, _ in disk.operations].count("sync") == 1
    assert store.deliver().logs == [log] * 3
    assert log.durable_index == 3


# ---- nothing is reported before it is durable


def test_nothing_is_reported_before_the_sync() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [batch(b"precious")])
    assert store.deliver().logs == []
    store.run_write()
    assert store.deliver().logs == []
    assert log.durable_index == 0
    assert not disk.durable_contains(b"precious")
    store.run_sync()
    assert disk.durable_contains(b"precious")
    assert store.deliver().logs == [log]
    assert log.durable_index == 1


def test_a_vote_is_reported_only_when_it_is_durable() -> None:
    for seed in range(6):
        disk = new_disk(seed)
        store = open_store(disk)
        store.create_stream(1, b"")
        rest(store)
        store.save_vote(1, StoredVote(4, 2))
        assert store.deliver().votes == []
        assert store.vote(1) == StoredVote(0, None)
        store.run_write()
        if store.deliver().votes:
            power_cut(disk)
            assert open_store(disk).vote(1) == StoredVote(4, 2)


def test_votes_are_synced_before_the_group_s_entries_are_written() -> None:
    disk, store, (log,) = _recorded()
    log.append_new(1, EntryKind.DATA, [batch()])
    store.save_vote(1, StoredVote(1, 1))
    write(store)
    assert disk.operations.index(("sync", VOTES)) < disk.operations.index(("write", _active(1)))


def test_one_sync_serves_the_votes_of_all_streams() -> None:
    disk, store, _ = _recorded(streams=5)
    for stream in range(1, 6):
        store.save_vote(stream, StoredVote(3, stream))
    store.run_writer()
    assert sorted(store.deliver().votes) == [(stream, StoredVote(3, stream)) for stream in range(1, 6)]
    assert [operation for operation in disk.operations if operation[1] == VOTES] == [("write", VOTES), ("sync", VOTES)]


def test_of_two_votes_in_one_group_the_later_one_counts() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.create_stream(1, b"")
    store.save_vote(1, StoredVote(3, 1))
    store.save_vote(1, StoredVote(4, 2))
    store.run_writer()
    assert store.deliver().votes == [(1, StoredVote(4, 2))]
    assert reopened(disk).vote(1) == StoredVote(4, 2)


# ---- reports and truncations


def test_a_report_from_before_a_truncation_does_not_count_for_what_came_after_it() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [batch(b"old one"), batch(b"old two")])
    store.run_writer()  # durable, and not yet reported
    log.truncate_from(1)
    log.append_new(2, EntryKind.DATA, [batch(b"new one"), batch(b"new two")])
    store.deliver()
    assert log.durable_index == 0, "the report was about other entries at the same indexes"
    assert not disk.durable_contains(b"new one")
    write(store)
    assert log.durable_index == 2
    assert disk.durable_contains(b"new one")


def test_a_report_of_a_group_that_was_written_before_a_truncation_does_not_count_when_it_is_synced_after_it() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [batch(b"old")])
    store.run_write()
    log.truncate_from(1)
    log.append_new(2, EntryKind.DATA, [batch(b"new")])
    store.run_sync()
    store.deliver()
    assert log.durable_index == 0


def test_what_a_truncation_left_is_reported_though_its_own_report_came_too_late() -> None:
    for crossing in (False, True):
        store = open_store(new_disk())
        log = store.create_stream(1, b"")
        rest(store)
        log.append_new(1, EntryKind.DATA, [sized_batch(3000), sized_batch(3000)])
        if crossing:
            log.append_new(1, EntryKind.DATA, [sized_batch(3000), sized_batch(3000)])
        log.truncate_from(2)
        write(store)
        assert (log.last_index, log.durable_index) == (1, 1)


def test_a_report_from_before_a_take_over_does_not_count_after_it() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [batch(), batch(), batch()])
    store.run_writer()
    log.take_over(1, 5, log.takeover_context())
    log.append_new(5, EntryKind.DATA, [batch()])
    store.deliver()
    assert log.durable_index == 0
    write(store)
    assert log.durable_index == 2


# ---- rolling


def test_at_a_roll_the_old_segment_is_durable_before_the_new_one_s_header_is_written() -> None:
    disk, store, (log,) = _recorded()
    log.append_new(1, EntryKind.DATA, [sized_batch(5000), sized_batch(5000)])
    write(store)
    old, new = _active(1, 0), files_of(disk, 1, ACTIVE_SUFFIX)[-1]
    assert new != old
    order = [operation for operation in disk.operations if operation in {("write", old), ("sync", old), ("write", new)}]
    assert order.index(("sync", old)) > max(n for n, what in enumerate(order) if what == ("write", old))
    assert order.index(("write", new)) > order.index(("sync", old))


def test_at_a_roll_a_group_that_still_waits_for_its_sync_is_durable_first() -> None:
    disk, store, (log,) = _recorded()
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    store.run_write()
    assert ("sync", _active(1, 0)) not in disk.operations
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    store.run_write()
    new = files_of(disk, 1, ACTIVE_SUFFIX)[-1]
    assert disk.operations.index(("sync", _active(1, 0))) < disk.operations.index(("write", new))
    store.run_sync()
    store.deliver()
    assert log.durable_index == 2


def test_a_new_segment_s_name_is_durable_before_anything_in_it_is_reported() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [batch(b"first"), sized_batch(5000), sized_batch(5000), batch(b"last")])
    write(store)
    assert log.durable_index == 4
    assert disk.durable_contains(b"first")
    assert disk.durable_contains(b"last")


def test_a_segment_is_closed_only_when_it_is_complete_on_disk() -> None:
    disk, store, (log,) = _recorded()
    log.append_new(1, EntryKind.DATA, [sized_batch(5000), sized_batch(5000)])
    assert len(store.housekeeper) <= 1  # the spare; nothing can be closed yet
    store.run_write()
    closing_from = len(disk.operations)
    _keep_house(store)
    assert ("sync", _active(1, 0)) in disk.operations[:closing_from]


def test_a_spare_file_s_name_is_durable_in_its_folder_before_it_is_used() -> None:
    disk, store, (log,) = _recorded()
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    rest(store)
    renamed = disk.operations.index(("rename", files_of(disk, 1, ACTIVE_SUFFIX)[-1]))
    assert ("sync_directory", folder_of(1)) in disk.operations[renamed:]


def test_the_segment_that_a_truncation_ends_in_is_cut_to_its_batches() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(3000), sized_batch(3500)])
        rest(store)
    log.truncate_from(4)
    rest(store)
    assert [len(read_path(disk, path)) for path in files_of(disk, 1, ".log")] == [6500, 3000]


# ---- bounds


def test_a_long_queue_makes_every_log_refuse_until_it_is_written() -> None:
    settings = dataclasses.replace(TINY, queue_bytes_max=10_000)
    store = open_store(new_disk(), settings)
    log, other = store.create_stream(1, b""), store.create_stream(2, b"")
    while log.accepting:
        log.append_new(1, EntryKind.DATA, [sized_batch(1500)])
    assert store.writer.queued_bytes == 10_500
    assert not other.accepting
    store.run_write()
    assert not log.accepting, "written is not durable"
    store.run_sync()
    assert not log.accepting, "not reported yet"
    store.deliver()
    assert log.accepting
    assert other.accepting
    assert store.writer.queued_bytes == 0


def test_queued_bytes_are_given_back_when_the_stream_is_deleted() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    rest(store)
    log.append_new(1, EntryKind.DATA, [sized_batch(1500)])
    store.run_writer()
    log.append_new(1, EntryKind.DATA, [sized_batch(1500)])
    store.delete_stream(1)
    rest(store)
    assert store.writer.queued_bytes == 0
    store.create_stream(2, b"").append_new(1, EntryKind.DATA, [batch()])
    rest(store)
    assert store.streams[2].durable_index == 1


def test_the_writer_is_woken_once_for_what_waits() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    rest(store)
    woken: list[str] = []
    store.writer.wake = lambda: woken.append("wake")
    log.append_new(1, EntryKind.DATA, [batch()])
    log.append_new(1, EntryKind.DATA, [batch()])
    store.save_vote(1, StoredVote(1, 1))
    assert woken == ["wake"]
    store.run_writer()
    store.save_vote(1, StoredVote(2, 1))
    assert woken == ["wake", "wake"]


# ---- failures


def _failing_store(seed: int = 0) -> tuple[SimDisk, Store, StreamLog]:
    disk = new_disk(seed)
    store = open_store(disk)
    log = store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [batch(b"before")])
    rest(store)
    return disk, store, log


def test_a_failed_sync_is_fatal_reports_nothing_and_is_not_tried_again() -> None:
    for seed in range(5):
        disk, store, log = _failing_store(seed)
        log.append_new(1, EntryKind.DATA, [batch(b"lost")])
        disk.fail_next_sync()
        with pytest.raises(WriterFailedError, match="what the disk holds is unknown"):
            store.run_writer()
        assert store.deliver().logs == []
        for action in (store.run_writer, store.run_write, store.run_sync):
            with pytest.raises(WriterFailedError, match="the writer has stopped"):
                action()
        log.append_new(1, EntryKind.DATA, [batch(b"later")])
        with pytest.raises(WriterFailedError):
            store.run_writer()
        assert store.deliver().logs == []
        assert log.durable_index == 1


def test_after_a_failed_sync_nobody_syncs_again() -> None:
    disk = new_disk()
    recording = RecordingDisk(disk)
    store = open_store(recording)
    logs = [store.create_stream(stream, b"") for stream in (1, 2)]
    rest(store)
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch()])
    recording.clear()
    disk.fail_next_sync()
    for _ in range(3):
        with pytest.raises(WriterFailedError):
            store.run_writer()
    assert [what for what, _ in recording.operations].count("sync") == 1
    assert [log.durable_index for log in logs] == [0, 0]


def test_a_failed_sync_of_the_votes_is_fatal_and_reports_no_vote() -> None:
    disk, store, log = _failing_store()
    store.save_vote(1, StoredVote(7, 7))
    log.append_new(1, EntryKind.DATA, [batch()])
    disk.fail_next_sync()
    with pytest.raises(WriterFailedError):
        store.run_writer()
    delivered = store.deliver()
    assert (delivered.votes, delivered.logs) == ([], [])
    assert store.vote(1) == StoredVote(0, None)


def _fail_sync_number(disk: SimDisk, recording: RecordingDisk, number: int) -> None:
    """Make the sync after `number` further ones fail, of a file or of a folder."""
    seen = 0

    class Operations(list[tuple[str, str]]):
        def append(self, operation: tuple[str, str]) -> None:
            nonlocal seen
            if operation[0] in {"sync", "sync_directory"}:
                if seen == number:
                    disk.fail_next_sync()
                seen += 1
            super().append(operation)

    recording.operations = Operations()


def test_every_sync_on_the_writer_s_way_is_fatal_when_it_fails_also_those_of_folders() -> None:
    """A roll, a trim, a crossing truncation and a take-over sync files and folders: none may be ignored or repeated."""

    def scenario(store: Store) -> None:
        log = store.streams[1]
        store.save_vote(1, StoredVote(2, 1))
        log.append_new(1, EntryKind.DATA, [sized_batch(5000), sized_batch(5000), sized_batch(5000)])
        rest(store)
        log.trim(1, log.last_index)
        rest(store)
        log.settle()
        write(store)
        log.truncate_from(3)
        log.append_new(2, EntryKind.DATA, [sized_batch(1000)])
        rest(store)
        log.truncate_from(3)
        rest(store)
        log.take_over(50, 9, log.takeover_context())
        rest(store)
        store.delete_stream(1)
        rest(store)

    failures = 0
    for number in range(200):
        disk = new_disk(number)
        recording = RecordingDisk(disk)
        store = open_store(recording)
        store.create_stream(1, b"")
        rest(store)
        _fail_sync_number(disk, recording, number)
        try:
            scenario(store)
        except (StorageError, OSError):
            failures += 1
        else:
            assert not disk.sync_has_failed, f"sync {number} failed, and nobody noticed"
            assert failures > 25
            return
        syncs = [operation for operation in recording.operations if "sync" in operation[0]]
        if 1 in store.streams:
            store.streams[1].append_new(99, EntryKind.DATA, [batch()])
        for action in (store.run_writer, store.run_housekeeping):
            with suppress(StorageError, OSError):
                action()
        after = [operation for operation in recording.operations if "sync" in operation[0]]
        assert syncs[-1] not in after[len(syncs) :], f"{syncs[-1]} was tried again"
    pytest.fail("the scenario has too many syncs")


def test_a_failed_sync_while_keeping_house_is_fatal_and_is_not_tried_again() -> None:
    disk, store, log = _failing_store()
    log.append_new(1, EntryKind.DATA, [sized_batch(5000), sized_batch(5000)])
    write(store)
    disk.fail_next_sync()
    with pytest.raises(OSError, match="Input/output error"):
        _keep_house(store)
    with pytest.raises(WriterFailedError, match="housekeeping has stopped"):
        store.run_housekeeping()
    log.truncate_from(2)  # which wants the closing behind it
    with pytest.raises(WriterFailedError):
        store.run_writer()
    assert state_of(reopened(disk).streams[1]).last_index >= 1


def test_an_unexpected_error_stops_the_writer_too_since_its_operations_are_lost() -> None:
    _, store, log = _failing_store()
    log.append_new(1, EntryKind.DATA, [batch()])
    store.writer._channels.clear()  # pyright: ignore[reportPrivateUsage]
    for _ in range(2):
        with pytest.raises(WriterFailedError):
            store.run_writer()


# ---- what the log refuses


def test_an_entry_that_does_not_follow_is_refused_whole() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    log.append_new(3, EntryKind.DATA, [batch(b"one"), batch(b"two", records=2)])
    before = state_of(log)
    source = open_store(new_disk()).create_stream(1, b"")
    source.append_new(3, EntryKind.DATA, [batch(b"one"), batch(b"two", records=2), batch(b"three"), batch(b"four")])
    good, next_one = entries_of(source)[2:]
    of_lower_term = bytearray(next_one.data)
    stamp(of_lower_term, read_stamp(of_lower_term)[0], 2)
    for bad in (
        dataclasses.replace(next_one, index=9),
        dataclasses.replace(next_one, term=2),
        dataclasses.replace(next_one, data=bytes(next_one.data)[:-1]),
        dataclasses.replace(next_one, term=2, data=of_lower_term),
    ):
        with pytest.raises(LogMismatchError):
            log.append_received([good, bad])
        assert state_of(log) == before
    log.append_received([good, next_one])
    assert log.last_index == 4


def test_a_lower_term_is_refused_also_without_assertions() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    log.append_new(3, EntryKind.DATA, [batch()])
    for kind, data in ((EntryKind.DATA, batch()), (EntryKind.NOOP, b"")):
        with pytest.raises(LogMismatchError, match="term 2"):
            log.append_new(2, kind, [data])
    assert log.last_index == 1


def test_a_batch_without_records_is_refused_as_data() -> None:
    """It would take no offset, and look like an entry of our own when the log is recovered."""
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    ours = open_store(new_disk()).create_stream(1, b"")
    ours.append_new(1, EntryKind.NOOP, [b"x"])
    rest_batch = bytearray(batch())
    rest_batch[23:27] = (-1).to_bytes(4, "big", signed=True)
    with pytest.raises(LogMismatchError, match="takes no offset"):
        log.append_new(1, EntryKind.DATA, [batch(), rest_batch])
    assert log.last_index == 0


@pytest.mark.parametrize("kind", [EntryKind.DATA, EntryKind.CONFIGURATION])
def test_a_batch_that_no_segment_holds_is_refused_whole(kind: EntryKind) -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    small, large = (batch(), sized_batch(TINY.segment_bytes + 1)) if kind is EntryKind.DATA else (b"", bytes(9000))
    with pytest.raises(StorageError, match=f"a segment holds {TINY.segment_bytes}"):
        log.append_new(1, kind, [large])
    assert log.last_index == 0
    log.append_new(1, kind, [small])
    exact = sized_batch(TINY.segment_bytes) if kind is EntryKind.DATA else bytes(TINY.segment_bytes - 62)
    log.append_new(1, kind, [exact])
    rest(store)
    assert log.durable_index == 2


def test_a_truncation_below_the_log_is_refused() -> None:
    store = open_store(new_disk())
    log = store.create_stream(1, b"")
    log.take_over(10, 2, log.takeover_context())
    with pytest.raises(LogMismatchError, match="the log begins at 11"):
        log.truncate_from(10)


# ---- deleting and creating


def test_a_stream_that_is_still_being_deleted_cannot_be_created_again() -> None:
    """Its folder is about to be removed, and its last reports are still on their way."""
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [batch(b"old")] * 3)
    store.delete_stream(1)
    for step in (store.run_writer, store.run_housekeeping):
        assert store.deleting == {1}
        with pytest.raises(StorageError, match="still being deleted"):
            store.create_stream(1, b"")
        step()
    store.deliver()
    assert store.deleting == set()
    again = store.create_stream(1, b"new")
    again.append_new(1, EntryKind.DATA, [batch(b"new")])
    rest(store)
    assert (again.last_index, again.durable_index) == (1, 1)
    store = reopened(disk)
    assert state_of(store.streams[1]).last_index == 1


def test_a_stream_is_created_once() -> None:
    store = open_store(new_disk())
    store.create_stream(1, b"")
    with pytest.raises(StorageError, match="there already"):
        store.create_stream(1, b"")


def test_the_state_of_a_stream_never_knows_more_than_its_segments() -> None:
    """The log start moves to the end of entries that wait in the same group; a power cut takes both or neither."""
    for seed in range(30):
        disk = new_disk(seed)
        store = open_store(disk)
        log = store.create_stream(1, b"")
        rest(store)
        log.append_new(1, EntryKind.DATA, [batch(), batch()])
        log.trim(2, log.last_index)
        disk.crash_after(seed % 10)
        with suppress(SimulatedCrash):
            write(store)
        power_cut(disk)
        log = open_store(disk).streams[1]
        assert log.start_offset <= log.next_offset


def test_files_are_closed_when_the_store_is() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [batch()])
    rest(store)
    store.close()
    assert open_store(disk).streams[1].last_index == 1
    killed(disk)
    assert os.path.basename(files_of(disk, 1)[0]) == f"{0:016d}.active"


# ---- the page cache first, direct writes later


class _OpeningDisk(SimDisk):
    """Notes how active segments are opened to be written."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.opened: list[str] = []

    def open_write(self, path: str, *, direct: bool = False) -> SimFile:
        if path.endswith(ACTIVE_SUFFIX):
            self.opened.append("direct" if direct else "buffered")
        return super().open_write(path, direct=direct)


def test_a_new_segment_is_written_through_the_page_cache_until_it_holds_much() -> None:
    disk = _OpeningDisk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    small = buffered_bytes_max(TINY.shape)
    log.append_new(1, EntryKind.DATA, [sized_batch(small)])
    rest(store)
    assert disk.opened == ["buffered", "buffered"]  # made, and begun
    log.append_new(1, EntryKind.DATA, [sized_batch(100)])
    rest(store)
    log.append_new(1, EntryKind.DATA, [sized_batch(100)])
    rest(store)
    assert disk.opened == ["buffered", "buffered", "direct"]
    expected = state_of(log)
    power_cut(disk)
    assert state_of(open_store(disk).streams[1]) == expected


@pytest.mark.parametrize(("size", "opened"), [(100, "buffered"), (buffered_bytes_max(TINY.shape) + 100, "direct")])
def test_a_segment_that_is_found_again_goes_on_by_how_much_it_holds(size: int, opened: str) -> None:
    disk = _OpeningDisk()
    store = open_store(disk)
    store.create_stream(1, b"").append_new(1, EntryKind.DATA, [sized_batch(size)])
    rest(store)
    power_cut(disk)
    store = open_store(disk)
    disk.opened.clear()
    log = store.streams[1]
    log.append_new(1, EntryKind.DATA, [sized_batch(100, b"y")])
    rest(store)
    assert disk.opened == [opened]
    expected = state_of(log)
    power_cut(disk)
    assert state_of(open_store(disk).streams[1]) == expected


def test_a_file_whose_blocks_are_there_is_written_directly_from_the_start() -> None:
    disk = _OpeningDisk()
    store = open_store(disk)
    log = store.create_stream(1, b"")
    for _ in range(8):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    log.trim(7, log.last_index)
    rest(store)
    assert disk.list_directory(f"{DIRECTORY}/pool")
    log.append_new(1, EntryKind.DATA, [sized_batch(5000)])  # half full: the next file is prepared, from the pool
    rest(store)
    disk.opened.clear()
    log.roll()
    log.append_new(1, EntryKind.DATA, [sized_batch(100)])
    rest(store)
    assert disk.opened == ["buffered", "direct"]  # looked at, then opened as what it is
