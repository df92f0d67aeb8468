"""The real disk: direct and buffered files hold the same bytes, short writes are finished, syncs and locks work."""

import dataclasses
import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.storage.world import TINY, EntryKind, read_all, rest, settled, sized_batch, state_of
from tidelog.storage import DirectoryLockedError, FileRange, RealDisk, Store, SyncFailedError, SyncMode, chunk_bytes
from tidelog.storage.disk import Buffer
from tidelog.storage.real_disk import DIRECT_ALIGNMENT, RealFile
from tidelog.storage.staging import Staging
from tidelog.wire.batch import split_batches

MEMORY_FOLDER = Path("/dev/shm")


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on the disk, and one on a file system in memory, where O_DIRECT may not exist."""
    if request.param == "disk":
        yield tmp_path
        return
    if not os.access(MEMORY_FOLDER, os.W_OK):
        pytest.skip("there is no file system in memory")
    path = Path(tempfile.mkdtemp(prefix="tidelog-test-", dir=MEMORY_FOLDER))
    yield path
    shutil.rmtree(path)


def _store(folder: Path, disk: RealDisk) -> Store:
    return Store(disk, str(folder), TINY, random.Random(7))


def _fill(store: Store, seed: int = 3, entries: int = 60) -> None:
    """The same appends, groups, truncations and rolls for every kind of disk."""
    rng = random.Random(seed)
    log = store.streams.get(1) or store.create_stream(1, b"three nodes")
    for number in range(entries):
        term = log.term_at(log.last_index) + (number % 7 == 0)
        log.append_new(term, EntryKind.DATA, [sized_batch(rng.randrange(80, 190) + 100 * rng.randrange(3, 25))])
        if rng.random() < 0.5:
            store.run_writer()
            store.deliver()
        if rng.random() < 0.1:
            log.truncate_from(max(1, log.last_index - rng.randrange(6)))
    settled(store)


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_direct_and_buffered_files_hold_the_same_log(folder: Path) -> None:
    contents: list[dict[str, bytes]] = []
    states: list[object] = []
    for kind in ("direct", "buffered"):
        (folder / kind).mkdir()
        store = _store(folder / kind, RealDisk(direct=kind == "direct"))
        _fill(store)
        states.append(state_of(store.streams[1]))
        store.close()
        contents.append(_files(folder / kind))
        store = _store(folder / kind, RealDisk(direct=kind == "direct"))
        assert state_of(store.streams[1]) == states[-1]
        read_all(store.streams[1])
        store.close()
    direct, buffered = contents
    assert states[0] == states[1]
    assert direct.keys() == buffered.keys()
    closed = [name for name in direct if name.endswith((".log", ".index", ".json"))]
    assert len(closed) > 4
    for name in closed:
        assert direct[name] == buffered[name], name


def test_a_segment_without_entries_of_our_own_is_byte_for_byte_its_batches(folder: Path) -> None:
    store = _store(folder, RealDisk())
    _fill(store)
    log = store.streams[1]
    batches = [bytes(data) for data in read_all(log)]
    closed = sorted((folder / "streams" / "1").glob("*.log"))
    content = b"".join(path.read_bytes() for path in closed)
    assert len(closed) > 2
    assert content == b"".join(batches)[: len(content)]
    assert sum(size for path in closed for _, size in split_batches(path.read_bytes())) == len(content)
    store.close()


@pytest.mark.parametrize("mode", ["fdatasync", "range", "none"])
def test_every_sync_mode_works(folder: Path, mode: SyncMode) -> None:
    store = _store(folder, RealDisk(mode))
    _fill(store, entries=15)
    before = state_of(store.streams[1])
    store.close()
    store = _store(folder, RealDisk(mode))
    assert state_of(store.streams[1]) == before
    store.close()


def test_going_on_after_a_restart_keeps_what_shares_a_block_with_the_new_bytes(folder: Path) -> None:
    """The last block of a direct file is partly old and partly new then."""
    disk = RealDisk()
    for life in range(6):
        store = _store(folder, disk)
        before = state_of(store.streams[1]) if life else None
        log = store.streams.get(1) or store.create_stream(1, b"")
        if before is not None:
            log.truncate_from(log.last_index)
        log.append_new(life + 1, EntryKind.DATA, [sized_batch(700 + life), sized_batch(90 + life)])
        rest(store)
        expected = state_of(log)
        store.close()
        store = _store(folder, disk)
        assert state_of(store.streams[1]) == expected
        store.close()


def test_ranges_are_served_from_the_file_and_outlive_its_segment(tmp_path: Path) -> None:
    store = _store(tmp_path, RealDisk())
    _fill(store)
    store.close()
    store = _store(tmp_path, RealDisk())
    log = store.streams[1]
    ranges = log.read(0, log.last_index, 1 << 20)
    assert all(isinstance(chunk, FileRange) for chunk in ranges)
    content = chunk_bytes(ranges)
    log.trim(log.next_offset, log.last_index)
    rest(store)
    for _ in range(6):
        log.append_new(99, EntryKind.DATA, [sized_batch(5000, b"z")])
        rest(store)
    assert chunk_bytes(ranges) == content
    store.close()


def _open_segments(folder: Path) -> int:
    """Closed segments below `folder` that this process has open."""
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sum(target.startswith(str(folder)) and target.endswith(".log") for target in targets)


def test_open_readers_are_bounded(tmp_path: Path) -> None:
    store = _store(tmp_path, RealDisk())
    log = store.create_stream(1, b"")
    for _ in range(9):
        log.append_new(1, EntryKind.DATA, [sized_batch(5000)])
        rest(store)
    store.close()
    store = _store(tmp_path, RealDisk())
    log = store.streams[1]
    for offset in [*range(9), *random.Random(1).choices(range(9), k=30)]:
        assert log.read(offset, log.last_index, 1 << 20)
        assert _open_segments(tmp_path) <= TINY.readers_max
    held = [log.read(offset, log.last_index, 1 << 20) for offset in range(8)]
    assert _open_segments(tmp_path) == 8, "what is being read stays open beyond the bound"
    assert b"".join(map(chunk_bytes, held)) == b"".join(read_all(log))[: 8 * 5000]
    del held
    assert _open_segments(tmp_path) <= TINY.readers_max
    store.close()
    assert _open_segments(tmp_path) == 0


# ---- short writes and failing calls


def _short(limit: int) -> tuple[Callable[..., int], Callable[..., int], list[int]]:
    """pwritev and pwrite that take at most `limit` bytes a call, and the sizes they took."""
    taken: list[int] = []
    pwrite = os.pwrite

    def short_pwritev(descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        return short_pwrite(descriptor, buffers[0], position)

    def short_pwrite(descriptor: int, buffer: Buffer, position: int) -> int:
        taken.append(pwrite(descriptor, memoryview(buffer)[:limit], position))
        return taken[-1]

    return short_pwritev, short_pwrite, taken


@pytest.mark.parametrize("direct", [True, False])
def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    """A direct write is cut short by a disk that runs full: that must show as such, and not as a broken disk."""
    file = RealDisk().open_write(str(tmp_path / "file"), direct=direct)
    if direct and file.alignment == 1:
        pytest.skip("no O_DIRECT here")
    staging = Staging(4 * DIRECT_ALIGNMENT)
    staging.view[:] = random.Random(1).randbytes(staging.size)
    pwritev, pwrite, taken = _short(DIRECT_ALIGNMENT if direct else 1000)
    monkeypatch.setattr(os, "pwritev", pwritev)
    monkeypatch.setattr(os, "pwrite", pwrite)
    file.write_at(0, [staging.view] if direct else [b"a" * 1500, b"", b"b" * 2500, staging.view])
    assert len(taken) >= 4
    written = (tmp_path / "file").read_bytes()
    assert written == (b"" if direct else b"a" * 1500 + b"b" * 2500) + bytes(staging.view)
    file.close()


def test_a_short_write_that_ends_in_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealDisk(direct=False).open_write(str(tmp_path / "file"))

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", lambda *_: 10)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left") as refusal:
        file.write_at(0, [b"x" * 100])
    assert refusal.value.errno == errno.ENOSPC
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        file.write_at(0, [b"x" * 100])


def test_more_buffers_than_one_call_takes_are_written_in_several(tmp_path: Path) -> None:
    file = RealDisk(direct=False).open_write(str(tmp_path / "file"))
    buffers = [b"%05d" % number for number in range(3000)]
    file.write_at(3, buffers)
    assert (tmp_path / "file").read_bytes() == bytes(3) + b"".join(buffers)
    assert file.read_at(3, 15000) == b"".join(buffers)
    file.close()


def test_reads_stop_at_the_end_of_the_file_and_only_there(tmp_path: Path) -> None:
    content = random.Random(2).randbytes(3 * DIRECT_ALIGNMENT)
    (tmp_path / "file").write_bytes(content)
    for direct in (True, False):
        file = RealDisk().open_write(str(tmp_path / "file"), direct=direct)
        for position, length in ((0, 10), (5000, 3000), (4096, 8192), (12000, 5000), (12288, 10)):
            assert file.read_at(position, length) == content[position : position + length]
        file.close()
    file = RealDisk().open_read(str(tmp_path / "file"))
    memory = memoryview(bytearray(5000))
    assert file.read_into(10_000, memory) == 2288
    assert memory[:2288] == content[10_000:]
    file.close()


def test_a_failed_sync_is_never_mistaken_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Space that was promised and is not there shows at the sync (thin provisioning, NFS): no room, but no retry."""

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = RealFile(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT), 1, no_room)
    with pytest.raises(SyncFailedError):
        file.sync()
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(SyncFailedError, match=str(tmp_path)):
        RealDisk().sync_directory(str(tmp_path))
    file.close()


@pytest.mark.parametrize(("mode", "syncs"), [("fdatasync", True), ("range", True), ("none", False)])
def test_a_sync_reaches_the_kernel(mode: SyncMode, syncs: bool) -> None:
    """Which refuses it for a file that cannot be synced."""
    file = RealDisk(mode).open_write("/dev/null")
    if syncs:
        with pytest.raises(SyncFailedError):
            file.sync()
    else:
        file.sync()
    file.close()


# ---- folders and locks


def test_a_new_folder_is_durable_with_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    disk = RealDisk()
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    disk.make_directory(str(tmp_path / "a" / "b" / "c"))
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


HOLD_THE_LOCK = """
import random, sys
from tidelog.storage import RealDisk, StorageSettings, Store
store = Store(RealDisk(), sys.argv[1], StorageSettings(segment_bytes=8192, rows_bytes=4096), random.Random())
print("holding", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_one_is_gone(tmp_path: Path) -> None:
    data = tmp_path / "data"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(data)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        before = _files(data)
        with pytest.raises(DirectoryLockedError, match="in use by another process: stop that one first"):
            _store(data, RealDisk())
        assert _files(data) == before, "the second process changed something"
    finally:
        holder.kill()  # the kernel gives a dead process's lock back
        holder.communicate()
    _store(data, RealDisk()).close()


def test_a_store_that_is_closed_lets_the_next_one_in(tmp_path: Path) -> None:
    store = _store(tmp_path, RealDisk())
    with pytest.raises(DirectoryLockedError):
        _store(tmp_path, RealDisk())
    store.close()
    _store(tmp_path, RealDisk()).close()


def test_settings_that_cannot_work_are_refused() -> None:
    for change in ({"staging_bytes": 1000}, {"staging_bytes": 0}, {"tail_cache_bytes": 0}, {"readers_max": 0}):
        with pytest.raises(ValueError, match="must be"):
            dataclasses.replace(TINY, **change)


def test_the_empty_end_of_a_file_need_not_be_read(folder: Path) -> None:
    file = RealDisk().open_write(str(folder / "sparse"))
    file.truncate(8 << 20)
    assert file.written_until(4 << 20, 8 << 20) in (4 << 20, 8 << 20)
    file.write_at(5 << 20, [b"x" * 100])
    until = file.written_until(4 << 20, 8 << 20)
    assert (5 << 20) + 100 <= until <= 8 << 20
    assert file.read_at(until, 8 << 20).rstrip(b"\0") == b""
    assert file.written_until(0, 5 << 20) <= 5 << 20
    file.write_at((8 << 20) - 1, [b"y"])
    assert file.written_until(4 << 20, 8 << 20) == 8 << 20
    file.close()
