"""New streams: in memory at once, their files made by the writer before anything of them is durable, many together."""

import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.world import (
    TINY,
    EntryKind,
    batch,
    folder_of,
    new_disk,
    open_store,
    power_cut,
    reopened,
    rest,
    sized_batch,
    state_of,
    write,
)
from tidelog.storage import RealDisk, StorageThreads, Store, StoredVote, SyncFailedError, WriterFailedError, whole_disk
from tidelog.storage.disk import run_together
from tidelog.storage.real_disk import TOGETHER_MIN
from tidelog.storage.whole_disk import file_system_of
from tidelog.storage.writer import CREATIONS_MAX, WHOLE_MIN


def test_a_new_stream_touches_no_file_before_the_writer_runs() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"three nodes")
    log.append_new(1, EntryKind.DATA, [batch()])
    assert not disk.exists(folder_of(5))
    power_cut(disk)
    assert open_store(disk).streams == {}


def test_nothing_of_a_new_stream_is_durable_before_the_stream_is() -> None:
    for step in range(40):
        for seed in range(4):
            disk = new_disk(100 * step + seed)
            store = open_store(disk)
            logs = [store.create_stream(stream, b"%d" % stream) for stream in (1, 2, 3)]
            for log in logs:
                log.append_new(1, EntryKind.DATA, [batch(b"%d" % log.stream)])
            disk.crash_after(step)
            try:
                write(store)
                disk.disarm()
            except SimulatedCrash:
                store.deliver()
            durable = {log.stream: log.durable_index for log in logs}
            power_cut(disk)
            store = open_store(disk)
            for stream, index in durable.items():
                if index:
                    assert store.streams[stream].last_index >= index
            for stream in (1, 2, 3):
                log = store.streams.get(stream) or store.create_stream(stream, b"%d" % stream)
                assert log.configurations() == [(0, b"%d" % stream)]
                log.append_new(2, EntryKind.DATA, [batch()])
            rest(store)
            assert all(log.durable_index == log.last_index for log in store.streams.values())


def test_a_vote_outlives_the_stream_that_was_not_made_yet() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.create_stream(5, b"three nodes")
    store.save_vote(5, StoredVote(3, 2))
    disk.crash_after(2)  # behind the write and the sync of the vote
    with pytest.raises(SimulatedCrash):
        store.run_write()
    power_cut(disk)
    store = open_store(disk)
    assert store.streams == {}
    store.create_stream(5, b"three nodes")
    assert store.vote(5) == StoredVote(3, 2)


def test_many_new_streams_are_made_in_several_groups() -> None:
    disk = new_disk()
    store = open_store(disk)
    logs = [store.create_stream(stream, b"") for stream in range(2 * CREATIONS_MAX + 1)]
    for log in logs:
        log.append_new(1, EntryKind.NOOP, [b""])
    made: list[int] = []
    while store.writer.has_work:
        write(store)
        made.append(sum(log.durable_index == 1 for log in logs))
    assert made == [CREATIONS_MAX, 2 * CREATIONS_MAX, 2 * CREATIONS_MAX + 1]
    rest(store)
    power_cut(disk)
    assert len(open_store(disk).streams) == len(logs)


def test_a_stream_that_is_deleted_before_it_is_made_never_is() -> None:
    disk = new_disk()
    store = open_store(disk)
    store.create_stream(5, b"").append_new(1, EntryKind.DATA, [sized_batch(5000)])
    store.delete_stream(5)
    rest(store)
    assert store.deleting == set()
    assert not disk.exists(folder_of(5))
    store.create_stream(5, b"again")
    rest(store)
    assert reopened(disk).streams[5].configurations() == [(0, b"again")]


def test_a_stream_that_is_half_full_before_it_is_made_gets_no_spare_and_goes_on() -> None:
    disk = new_disk()
    store = open_store(disk)
    log = store.create_stream(5, b"")
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
    while store.run_housekeeping():
        store.deliver()
    rest(store)
    expected = state_of(log)
    assert log.durable_index == 3
    assert state_of(reopened(disk).streams[5]) == expected


# Many calls at once


class _TogetherDisk(SimDisk):
    """Makes calls in another order than they were given in, and notes how many."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.together: list[int] = []

    def run_together(self, calls: Sequence[Callable[[], None]]) -> None:
        self.together.append(len(calls))
        for call in reversed(calls):
            call()


def test_syncs_and_recoveries_of_many_streams_may_come_in_any_order() -> None:
    disk = _TogetherDisk(random.Random(1))
    store = Store(disk, "/data", TINY, random.Random(1))
    logs = [store.create_stream(stream, b"%d" % stream) for stream in range(20)]
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch(b"%d" % log.stream)])
    rest(store)
    assert disk.together == [20, 41]  # made; synced, with their folders and the one that those lie in
    power_cut(disk)
    store = Store(disk, "/data", TINY, random.Random(1))
    assert disk.together == [20, 41, 20]
    assert [log.last_index for log in store.streams.values()] == [1] * 20


def test_calls_on_a_real_disk_are_all_made_and_one_that_fails_is_told() -> None:
    disk = RealDisk()
    for count in (0, 1, TOGETHER_MIN - 1, TOGETHER_MIN, 100):
        made: list[int] = []

        def call(number: int, made: list[int] = made) -> None:
            made.append(number)
            if number == 3:
                raise SyncFailedError("the third")

        calls = [lambda number=number: call(number) for number in range(count)]
        if count > 3:
            with pytest.raises(SyncFailedError, match="the third"):
                run_together(disk, calls)
        else:
            run_together(disk, calls)
        assert sorted(made) == list(range(count if count >= TOGETHER_MIN else min(count, 4)))


def test_a_sync_that_fails_among_many_is_fatal(tmp_path: Path) -> None:
    disk = RealDisk()
    store = Store(disk, str(tmp_path), TINY, random.Random(1))
    logs = [store.create_stream(stream, b"") for stream in range(20)]
    rest(store)
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch()])
    store.run_write()
    file = store.writer._written[0].files[7]  # pyright: ignore[reportPrivateUsage]
    file.close()  # its descriptor is gone: what the kernel answers is an error like any other
    with pytest.raises(WriterFailedError):
        store.run_sync()
    assert store.deliver().logs == []
    with pytest.raises(WriterFailedError):
        store.run_write()


def test_a_hundred_streams_on_a_real_disk(tmp_path: Path) -> None:
    store = Store(RealDisk(), str(tmp_path), TINY, random.Random(1))
    failures: list[BaseException] = []
    threads = StorageThreads(store, failures.append)
    logs = [store.create_stream(stream, b"%d" % stream) for stream in range(100)]
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch(b"%d" % log.stream)])
    deadline = time.monotonic() + 30
    while any(log.durable_index < 1 for log in logs):
        assert not failures
        assert time.monotonic() < deadline
        store.deliver()
        time.sleep(0.01)
    threads.stop()
    expected = {log.stream: state_of(log) for log in logs}
    store.close()
    store = Store(RealDisk(), str(tmp_path), TINY, random.Random(2))
    assert {stream: state_of(log) for stream, log in store.streams.items()} == expected
    store.close()


# The whole disk at once


class _Whole:
    def __init__(self, disk: "_WholeDisk") -> None:
        self._disk = disk

    def sync(self) -> None:
        self._disk.syncs += 1
        self._disk.sync_everything()

    def close(self) -> None:
        pass


class _WholeDisk(SimDisk):
    """Can be synced as a whole, and counts how often it was."""

    syncs = 0

    def open_whole(self, path: str) -> _Whole:
        assert path == "/data"
        return _Whole(self)


def _whole_store(disk: SimDisk) -> Store:
    return Store(disk, "/data", TINY, random.Random(1))


def test_very_many_new_streams_are_made_durable_with_two_syncs_of_the_disk() -> None:
    disk = _WholeDisk(random.Random(1))
    store = _whole_store(disk)
    logs = [store.create_stream(stream, b"%d" % stream) for stream in range(WHOLE_MIN)]
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch(b"%d" % log.stream)])
    write(store)
    assert (disk.syncs, {log.durable_index for log in logs}) == (2, {1})
    few = [store.create_stream(stream, b"few") for stream in range(100, 100 + WHOLE_MIN - 1)]
    for log in logs:
        log.append_new(1, EntryKind.DATA, [batch()])
    rest(store)
    assert disk.syncs == 2, "others' files would be waited for too"
    power_cut(disk)
    store = _whole_store(disk)
    assert len(store.streams) == len(logs) + len(few)
    assert [store.streams[log.stream].last_index for log in logs] == [2] * len(logs)


def test_a_power_cut_between_the_syncs_of_the_disk_loses_nothing_that_counts() -> None:
    streams = range(WHOLE_MIN)
    for step in range(5 * WHOLE_MIN, 14 * WHOLE_MIN, 2):  # from before the first sync to behind the last
        disk = _WholeDisk(random.Random(step))
        store = _whole_store(disk)
        logs = [store.create_stream(stream, b"%d" % stream) for stream in streams]
        for log in logs:
            log.append_new(1, EntryKind.DATA, [batch(b"%d" % log.stream)])
        disk.crash_after(step)
        try:
            write(store)
            disk.disarm()
        except SimulatedCrash:
            store.deliver()
        durable = {log.stream for log in logs if log.durable_index}
        power_cut(disk)
        store = _whole_store(disk)  # no state file without its content, or this would fail
        assert durable <= store.streams.keys()
        for stream in streams:
            log = store.streams.get(stream) or store.create_stream(stream, b"%d" % stream)
            assert log.configurations() == [(0, b"%d" % stream)]
        rest(store)


def test_a_sync_of_the_disk_that_fails_is_fatal() -> None:
    disk = _WholeDisk(random.Random(1))
    store = _whole_store(disk)
    logs = [store.create_stream(stream, b"") for stream in range(WHOLE_MIN)]
    disk.fail_next_sync()
    with pytest.raises(WriterFailedError):
        store.run_writer()
    assert store.deliver().logs == []
    assert not any(log.durable_index for log in logs)


def test_which_disks_can_be_synced_as_a_whole(tmp_path: Path) -> None:
    mounts = (
        "22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "23 22 0:21 / /dev/shm rw - tmpfs tmpfs rw\n"
        "24 22 254:16 / /far rw shared:2 master:3 - fuse.sshfs far rw\n"
    )
    devices = [os.makedev(254, 0), os.makedev(0, 21), os.makedev(254, 16), os.makedev(9, 9)]
    assert [file_system_of(device, mounts) for device in devices] == ["ext4", "tmpfs", "fuse.sshfs", ""]
    assert RealDisk("none").open_whole(str(tmp_path)) is None, "whoever wants no syncs gets none"
    whole = RealDisk().open_whole(str(tmp_path))
    if whole is not None:
        whole.sync()
        whole.close()


@pytest.mark.parametrize(("release", "believed"), [("5.7.19", False), ("5.8.0-1", True), ("6.1.0", True), ("?", False)])
def test_an_older_kernel_is_not_believed_since_it_keeps_failed_writes_to_itself(
    release: str, believed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_disk, "platform", SimpleNamespace(release=lambda: release))
    monkeypatch.setattr(whole_disk, "file_system_of", lambda *_: "ext4")
    assert whole_disk.can_sync_whole(str(tmp_path)) is believed
