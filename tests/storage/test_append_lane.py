"""Appends on the short way: what the loop submits itself, in which order, and what a failing disk makes of it."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sim.disk import SimDisk
from tests.sim.writes import SimWrites
from tests.storage.world import (
    TINY,
    EntryKind,
    after_a_power_cut,
    batch,
    entries_of,
    new_disk,
    open_store,
    power_cut,
    reopened,
    sized_batch,
    state_of,
)
from tidelog import faults
from tidelog.storage import AppendLane, RealDisk, StorageSettings, Store, StreamLog, WriterFailedError, real_disk
from tidelog.storage.append_lane import LARGE_BYTES, SMALL_MAX
from tidelog.storage.disk import File
from tidelog.storage.kernel_writes import KernelWrites
from tidelog.storage.staging import Staging

ROOMY = StorageSettings(segment_bytes=16 << 20, rows_bytes=64 << 10, staging_bytes=64 << 10, queue_bytes_max=64 << 20)


class World:
    """A store whose disk writes by itself, one write whenever the test says so."""

    def __init__(self, settings: StorageSettings = TINY, disk: SimDisk | None = None) -> None:
        self.disk = disk or new_disk()
        self.store = open_store(self.disk, settings)
        self.under_way: list[int] = []
        self.writes = SimWrites(self.disk, random.Random(3), self.under_way.append)
        self.lane = self.store.writer.use_lane(self.writes)

    def stream(self, number: int = 1, size: int | None = None) -> StreamLog:
        """A stream whose file is a direct one already."""
        log = self.store.create_stream(number, b"")
        self.append(log, size or TINY.segment_bytes // 4)
        self.turn()
        self.threads()
        assert log.durable_index == log.last_index
        return log

    def append(self, log: StreamLog, size: int = 300, fill: bytes = b"x") -> None:
        log.append_new(1, EntryKind.DATA, [sized_batch(size, fill)])

    def turn(self) -> None:
        self.store.deliver()
        self.lane.start()

    def threads(self) -> None:
        """What the writer's threads have to do."""
        self.store.run_writer()
        self.turn()

    def perform(self, count: int | None = None, *, newest: bool = False) -> None:
        """The disk does so many writes, or all; then the loop hears of it."""
        for _ in range(len(self.under_way) if count is None else count):
            self.writes.perform(self.under_way.pop(-1 if newest else 0))
        self.lane.collect()
        self.turn()

    def settle_all(self) -> None:
        while self.under_way or self.store.writer.has_work:
            self.perform()
            self.threads()


@pytest.fixture
def world() -> World:
    return World()


def test_an_append_to_a_direct_file_needs_no_thread(world: World) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    assert len(world.under_way) == 2, "the batches, and their rows"
    assert not world.store.writer.has_work
    assert log.durable_index == 1
    world.perform()
    assert log.durable_index == 2
    assert world.store.writer.queued_bytes == 0
    before = state_of(log)
    assert state_of(after_a_power_cut(world.disk).streams[1]) == before


@pytest.mark.parametrize("newest", [False, True])
def test_nothing_is_reported_before_both_writes_are_done(world: World, newest: bool) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    world.perform(1, newest=newest)
    assert log.durable_index == 1
    world.perform()
    assert log.durable_index == 2


def test_what_comes_while_a_run_is_under_way_is_the_next_one(world: World) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    world.append(log)
    world.append(log)
    world.turn()
    assert len(world.under_way) == 2, "they share a block with the run before"
    world.perform()
    assert log.durable_index == 2
    assert len(world.under_way) == 2, "both in one"
    world.perform()
    assert log.durable_index == 4


@pytest.fixture
def fault() -> Iterator[Callable[[str, str], None]]:
    yield lambda point, action: faults.arm(point, faults.parse_action(action))
    faults.clear()


def test_with_fault_points_armed_the_short_way_is_taken_only_if_one_lies_there(
    world: World, fault: Callable[[str, str], None]
) -> None:
    log = world.stream()
    fault("disk.write", "delay:0")
    world.append(log)
    world.turn()
    assert not world.under_way
    assert world.store.writer.has_work
    world.threads()
    fault("lane.submit", "delay:0")
    world.append(log)
    world.turn()
    assert len(world.under_way) == 2
    world.perform()
    assert log.durable_index == 3
    assert faults.hits()["lane.submit"] == 1


def test_the_short_way_meets_the_errors_that_are_armed_there(world: World, fault: Callable[[str, str], None]) -> None:
    log = world.stream()
    fault("lane.collect", "error:ENOSPC,count:1")
    world.append(log)
    world.turn()
    world.perform()
    assert log.durable_index == 1
    world.settle_all()  # the thread tries it again
    assert log.durable_index == 2
    fault("lane.collect", "error:EIO,count:1")
    world.append(log)
    world.turn()
    with pytest.raises(WriterFailedError):
        world.perform()


def test_streams_do_not_wait_for_each_other(world: World) -> None:
    one, other = world.stream(1), world.stream(2)
    world.append(one)
    world.append(other)
    world.turn()
    assert len(world.under_way) == 4
    world.perform(2)
    assert (one.durable_index, other.durable_index) == (2, 1)


def test_other_operations_wait_for_the_run_and_appends_for_them(world: World) -> None:
    log = world.stream()
    world.append(log, fill=b"a")
    world.turn()
    log.truncate_from(2)
    world.append(log, fill=b"b")
    world.turn()
    assert not world.store.writer.has_work, "the file is the disk's"
    world.perform()
    assert world.store.writer.has_work
    assert log.durable_index == 1, "what was reported is no longer in the log"
    world.append(log, fill=b"c")
    world.turn()
    assert not world.under_way, "the file is the thread's"
    world.threads()
    world.perform()
    assert log.durable_index == log.last_index == 3
    again = after_a_power_cut(world.disk).streams[1]
    assert state_of(again) == state_of(log)


def test_an_append_before_the_file_is_direct_is_the_thread_s(world: World) -> None:
    log = world.store.create_stream(1, b"")
    world.append(log, 100)
    world.turn()
    assert world.store.writer.has_work
    world.threads()
    assert log.durable_index == 1
    world.append(log, 100)
    world.turn()
    assert world.store.writer.has_work, "a segment with little in it is an ordinary file"


def test_a_new_segment_is_begun_by_the_thread_and_then_the_short_way_goes_on(world: World) -> None:
    log = world.stream()
    for _ in range(60):
        world.append(log, 600)
        world.turn()
        world.settle_all()
    world.append(log, 600)
    world.turn()
    assert log.durable_index == 61
    world.settle_all()
    assert state_of(reopened(world.disk).streams[1]) == state_of(log)


def test_a_batch_that_is_too_large_for_the_memory_goes_to_the_thread() -> None:
    world = World(ROOMY)
    log = world.stream(size=256 << 10)
    world.append(log, LARGE_BYTES)
    world.turn()
    assert not world.under_way
    assert world.store.writer.has_work
    world.threads()
    assert log.durable_index == 2


def test_many_streams_take_turns_with_the_memory() -> None:
    world = World(replace(ROOMY, segment_bytes=128 << 10))
    logs = [world.stream(number, 20 << 10) for number in range(1, SMALL_MAX + 4)]
    for log in logs:
        world.append(log)
    world.turn()
    assert len(world.under_way) == 2 * SMALL_MAX
    world.perform(2)
    assert len(world.under_way) == 2 * SMALL_MAX
    world.settle_all()
    assert [log.durable_index for log in logs] == [2] * len(logs)


def test_a_run_is_cut_where_its_memory_ends() -> None:
    world = World(ROOMY)
    log = world.stream(size=256 << 10)
    for _ in range(6):
        world.append(log, 1 << 20)
    world.turn()
    world.perform()
    assert log.durable_index == 5
    world.perform()
    assert log.durable_index == 7


def test_a_full_disk_hands_the_run_to_the_thread_which_keeps_it(world: World) -> None:
    log = world.stream()
    world.append(log, 4200)
    world.turn()
    world.disk.space_bytes = world.disk.used_bytes
    world.perform()
    world.threads()
    assert log.full
    assert log.durable_index == 1
    world.disk.space_bytes = None
    world.threads()
    assert log.durable_index == 2
    assert not log.full
    world.append(log)
    world.turn()
    assert world.under_way, "the short way is open again"
    world.perform()
    assert state_of(after_a_power_cut(world.disk).streams[1]) == state_of(log)


def test_a_failed_write_ends_the_writer_and_is_not_reported(world: World) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    world.disk.fail_next_sync()
    with pytest.raises(WriterFailedError, match="what the disk holds is unknown"):
        world.perform()
    world.store.deliver()
    assert log.durable_index == 1
    with pytest.raises(WriterFailedError):
        world.store.run_write()


@pytest.mark.parametrize("results", [(-errno.EIO, -errno.ENOSPC), (-errno.ENOSPC, -errno.EIO)])
def test_want_of_room_hides_no_other_error(
    world: World, monkeypatch: pytest.MonkeyPatch, results: tuple[int, int]
) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    done = list(zip(world.under_way, results, strict=True))
    monkeypatch.setattr(world.writes, "take_done", lambda: done)
    with pytest.raises(WriterFailedError):
        world.lane.collect()
    assert not world.store.writer.has_work, "nothing is tried again"


def test_a_stream_that_is_deleted_waits_for_its_run_only(world: World) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    world.append(log)
    world.store.delete_stream(1)
    world.turn()
    assert not world.store.writer.has_work
    world.perform()
    world.threads()
    while world.store.run_housekeeping():
        world.turn()
    assert 1 not in world.store.deleting
    assert world.store.writer.queued_bytes == 0
    again = world.stream(1)
    world.append(again)
    world.turn()
    world.perform()
    assert again.durable_index == 2, "the number's next stream takes the short way as well"


def test_at_the_end_everything_that_waits_is_written(world: World) -> None:
    log = world.stream()
    world.append(log)
    world.turn()
    world.append(log)
    world.lane.finish()
    world.store.run_writer()
    world.store.deliver()
    assert log.durable_index == 3


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_power_cut_loses_nothing_that_was_reported(done: int) -> None:
    for seed in range(60):
        world = World(disk=new_disk(seed))
        log = world.stream()
        for number in range(4):
            world.append(log, 500 + 700 * number, bytes([97 + number]))
            world.turn()
        world.perform(min(done, len(world.under_way)), newest=seed % 2 == 0)
        reported, entries = log.durable_index, entries_of(log)
        power_cut(world.disk)
        found = open_store(world.disk).streams[1]
        assert reported <= found.last_index
        assert entries_of(found) == entries[: found.last_index]


# The kernel's writes, on a real disk


@contextmanager
def direct_file(folder: Path) -> Iterator[File]:
    file = RealDisk().open_write(str(folder / "file"), direct=True)
    try:
        if file.alignment == 1:
            pytest.skip("the file system of the temporary folder has no direct files")
        yield file
    finally:
        file.close()


def kernel_writes(folder: Path) -> KernelWrites:
    writes = RealDisk().open_writes(str(folder))
    if writes is None:
        pytest.skip("this kernel, or this container, has no asynchronous writes")
    return writes


def all_of(writes: KernelWrites, count: int) -> list[tuple[int, int]]:
    done: list[tuple[int, int]] = []
    while len(done) < count:
        done += writes.wait()
    return sorted(done)


def test_the_kernel_writes_where_it_is_told(tmp_path: Path) -> None:
    writes = kernel_writes(tmp_path)
    staging = Staging(8192)
    staging.view[:] = b"a" * 4096 + b"b" * 4096
    with direct_file(tmp_path) as file:
        writes.submit([(7, file, 8192, staging, 0, 4096), (8, file, 0, staging, 4096, 4096)])
        assert all_of(writes, 2) == [(7, 4096), (8, 4096)]
    writes.close()
    assert (tmp_path / "file").read_bytes() == b"b" * 4096 + bytes(4096) + b"a" * 4096
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "the trial left nothing behind"


def test_the_kernel_says_why_a_write_failed(tmp_path: Path) -> None:
    writes = kernel_writes(tmp_path)
    staging = Staging(4096)
    with direct_file(tmp_path) as file:
        writes.submit([(1, file, 100, staging, 0, 4096), (2, file, 0, staging, 0, 4096)])
        assert all_of(writes, 2) == [(1, -errno.EINVAL), (2, 4096)]
    writes.close()


def test_no_lane_where_a_write_cannot_carry_its_sync(tmp_path: Path) -> None:
    assert RealDisk("range").open_writes(str(tmp_path)) is None
    assert RealDisk(direct=False).open_writes(str(tmp_path)) is None


def test_a_write_of_the_kernel_is_durable_when_it_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(real_disk, "KernelWrites", lambda flags: asked.append(flags) or KernelWrites(flags))
    for sync in ("fdatasync", "none"):
        writes = RealDisk(sync).open_writes(str(tmp_path))
        if writes is not None:
            writes.close()
    assert asked == [os.RWF_DSYNC, 0]


def test_a_lane_over_a_real_disk(tmp_path: Path) -> None:
    def run(store: Store, lane: AppendLane, done: Callable[[], bool]) -> None:
        while not done():
            lane.start()
            lane.finish()
            store.run_writer()
            store.deliver()

    store = Store(RealDisk(), str(tmp_path), TINY, random.Random(1))
    lane = store.open_lane()
    if lane is None:
        pytest.skip("this kernel, or this container, has no asynchronous writes")
    log = store.create_stream(1, b"")
    for number in range(100):
        log.append_new(1, EntryKind.DATA, [batch(bytes([97 + number % 26]) * (50 * number))])
        lane.start()
        if number % 7 == 0:
            run(store, lane, lambda: log.durable_index == log.last_index)
    run(store, lane, lambda: log.durable_index == log.last_index)
    before = state_of(log)
    store.close()
    again = Store(RealDisk(), str(tmp_path), TINY, random.Random(1))
    assert state_of(again.streams[1]) == before
    again.close()
