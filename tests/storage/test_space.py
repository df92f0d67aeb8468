"""The reserve: a disk with little room left takes what must be written, but says that clients' records should stop."""

import random
import time
from pathlib import Path

import pytest

from tests.sim.disk import SimDisk
from tests.storage.world import TINY, EntryKind, batch, files_of, new_disk, open_store, rest, sized_batch, write
from tidelog.storage import RealDisk, StorageSettings, StorageThreads, Store
from tidelog.storage.space import Space

MIB = 1 << 20


class _MeasuredDisk(SimDisk):
    """Says what it is told to."""

    def __init__(self, free: int, size: int) -> None:
        super().__init__(random.Random(1))
        self.free = free
        self.size = size

    def space(self, path: str) -> tuple[int, int]:
        assert path == "/data"
        return self.free, self.size


@pytest.mark.parametrize(
    ("size", "reserve", "frees", "short"),
    [
        (10**6, 1000, (1000, 999, 1249, 1250, 1000, 999), (False, True, True, False, False, True)),
        (10_000, 1000, (500, 499, 624, 625), (False, True, True, False)),  # a twentieth of a small disk
        (10**6, 0, (0, 0), (False, False)),
    ],
)
def test_when_a_disk_is_short(size: int, reserve: int, frees: tuple[int, ...], short: tuple[bool, ...]) -> None:
    disk = _MeasuredDisk(frees[0], size)
    space = Space(disk, "/data", reserve)
    found: list[bool] = []
    for disk.free in frees:
        space.measure()
        found.append(space.short)
    assert tuple(found) == short


def test_what_is_merely_useful_does_not_touch_the_reserve() -> None:
    disk = _MeasuredDisk(5000, 10**6)
    space = Space(disk, "/data", 1000)
    assert [space.has_room_for(size) for size in (0, 4000, 4001)] == [True, True, False]
    disk.free = 999
    space.measure()
    disk.free = 1100  # more than the reserve again, but not by enough
    assert not space.has_room_for(0)


def test_a_disk_that_cannot_be_measured_is_never_short() -> None:
    log = open_store(new_disk()).create_stream(5, b"")
    assert not log.short_of_space
    assert Space(new_disk(), "/data", 10**12).has_room_for(10**12)


def test_a_short_disk_takes_entries_gives_kept_files_back_and_writes_nothing_ahead() -> None:
    disk = _MeasuredDisk(10**9, 10**10)
    store = Store(disk, "/data", TINY, random.Random(1))
    log = store.create_stream(5, b"")
    for _ in range(6):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    log.trim(5, log.last_index)
    rest(store)
    assert len(disk.list_directory("/data/pool")) == 2
    spares = len(files_of(disk, 5, ".active"))
    assert spares == 2
    assert not log.short_of_space
    disk.free = 1
    log.append_new(1, EntryKind.DATA, [batch()])
    rest(store)
    assert log.short_of_space
    assert log.accepting  # consensus goes on
    assert disk.list_directory("/data/pool") == []
    for _ in range(3):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
        assert len(files_of(disk, 5, ".active")) <= spares
        spares = 1
    assert log.durable_index == log.last_index
    disk.free = 10**9
    log.append_new(1, EntryKind.DATA, [batch()])
    write(store)
    assert not log.short_of_space


def test_a_real_disk_is_measured_and_room_that_comes_back_is_noticed_at_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    free, size = disk.space(str(tmp_path))
    assert 0 < free < size
    monkeypatch.setattr("tidelog.storage.threads.FULL_DISK_RETRY_S", 0.02)
    settings = StorageSettings(segment_bytes=MIB, rows_bytes=4096, staging_bytes=4096)
    store = Store(disk, str(tmp_path), settings, random.Random(1))
    found = [(0, size)]
    monkeypatch.setattr(disk, "space", lambda _path: found[0])
    threads = StorageThreads(store, lambda error: pytest.fail(str(error)))
    try:
        log = store.create_stream(5, b"")
        _wait_until(lambda: log.short_of_space)
        found[0] = (size, size)
        _wait_until(lambda: not log.short_of_space)
    finally:
        threads.stop()
        store.close()


def _wait_until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
