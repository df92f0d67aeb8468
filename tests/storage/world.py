"""What storage tests build their world from: batches, a store over a simulated disk, what one can do to its files."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.sim.disk import SimDisk, SimulatedCrash
from tests.storage.machine import TINY, entries_of, read_all, state_of
from tidelog.raft.log import Entry, EntryKind
from tidelog.storage import CorruptDataError, StorageSettings, Store, StreamLog, chunk_bytes
from tidelog.storage.disk import Buffer, Disk, File
from tidelog.wire.batch import HEADER_BYTES, check_batch, split_batches
from tidelog.wire.records import Record, build_batch

DIRECTORY = "/data"
STEPS_MAX = 400

World = TypeVar("World")


def batch(content: bytes = b"x", *, records: int = 1, timestamp: int = 1) -> bytearray:
    return build_batch([Record(content, timestamp=timestamp) for _ in range(records)])


def sized_batch(size: int, fill: bytes = b"x", *, timestamp: int = 1) -> bytearray:
    """A batch of one record that has exactly `size` bytes. (Some few sizes do not exist: varints jump.)"""
    payload = size - HEADER_BYTES - 7
    while len(made := batch(fill * payload, timestamp=timestamp)) > size:
        payload -= 1
    assert len(made) == size, f"no batch has {size} bytes"
    return made


def new_disk(seed: int = 0, *, direct: bool = True, space_bytes: int | None = None) -> SimDisk:
    return SimDisk(random.Random(seed), direct=direct, space_bytes=space_bytes)


def open_store(disk: Disk, settings: StorageSettings = TINY, seed: int = 1) -> Store:
    return Store(disk, DIRECTORY, settings, random.Random(seed))


def write(store: Store) -> None:
    """One group commit, reported."""
    store.run_writer()
    store.deliver()


def rest(store: Store) -> None:
    """Write, tidy up and report until nothing is left to do."""
    write(store)
    while store.run_housekeeping():
        store.deliver()
    write(store)


def settled(store: Store) -> None:
    """At rest, and every stream marked as such on disk."""
    rest(store)
    for log in store.streams.values():
        log.settle()
    write(store)


def power_cut(disk: SimDisk) -> None:
    if not disk.down:
        disk.crash()
    disk.restart()


def killed(disk: SimDisk) -> None:
    """The process dies, the machine does not."""
    if not disk.down:
        disk.kill()
    disk.restart()


def after_a_power_cut(disk: SimDisk, settings: StorageSettings = TINY) -> Store:
    power_cut(disk)
    return open_store(disk, settings)


def reopened(disk: SimDisk, settings: StorageSettings = TINY) -> Store:
    killed(disk)
    return open_store(disk, settings)


def folder_of(stream: int) -> str:
    return f"{DIRECTORY}/streams/{stream}"


def files_of(disk: Disk, stream: int, suffix: str = "") -> list[str]:
    """Paths in the stream's folder, sorted."""
    folder = folder_of(stream)
    return [f"{folder}/{name}" for name in disk.list_directory(folder) if name.endswith(suffix)]


def read_path(disk: Disk, path: str) -> bytes:
    file = disk.open_read(path)
    content = file.read_at(0, file.size())
    file.close()
    return content


def overwrite(disk: Disk, path: str, position: int, data: Buffer) -> None:
    """Change a file where it lies, durably: what a crash or a bad disk left behind."""
    file = disk.open_write(path)
    file.write_at(position, [data])
    file.sync()
    file.close()


def replace(disk: Disk, path: str, content: Buffer) -> None:
    file = disk.open_write(path)
    file.truncate(0)
    file.write_at(0, [content])
    file.sync()
    file.close()
    disk.sync_directory(path.rpartition("/")[0])


def remove(disk: Disk, path: str) -> None:
    disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


def read_batches(log: StreamLog, offset: int, committed_index: int, bytes_max: int) -> list[bytes]:
    data = chunk_bytes(log.read(offset, committed_index, bytes_max))
    return [data[position : position + size] for position, size in split_batches(data)]


def offsets_of(batches: Sequence[bytes]) -> list[int]:
    return [check_batch(data).base_offset for data in batches]


class RecordingDisk:
    """A disk that notes what is done to it: (operation, path[, position, data])."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.operations: list[tuple[str, str]] = []
        self.writes: list[tuple[str, int, bytes]] = []

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        self._disk.make_directory(path, durable=durable)

    def list_directory(self, path: str) -> list[str]:
        return self._disk.list_directory(path)

    def remove_directory(self, path: str) -> None:
        self._disk.remove_directory(path)

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def open_read(self, path: str) -> File:
        return self._disk.open_read(path)

    def open_write(self, path: str, *, direct: bool = False) -> File:
        return _RecordingFile(self, path, self._disk.open_write(path, direct=direct))

    def rename(self, old: str, new: str) -> None:
        self.operations.append(("rename", new))
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self.operations.append(("remove", path))
        self._disk.remove(path)

    def sync_directory(self, path: str) -> None:
        self.operations.append(("sync_directory", path))
        self._disk.sync_directory(path)

    def lock(self, path: str) -> File:
        return self._disk.lock(path)

    def clear(self) -> None:
        self.operations.clear()
        self.writes.clear()


class _RecordingFile:
    def __init__(self, disk: RecordingDisk, path: str, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    @property
    def alignment(self) -> int:
        return self._file.alignment

    def size(self) -> int:
        return self._file.size()

    def read_at(self, position: int, length: int) -> bytes:
        return self._file.read_at(position, length)

    def read_into(self, position: int, memory: memoryview) -> int:
        return self._file.read_into(position, memory)

    def written_until(self, start: int, end: int) -> int:
        return self._file.written_until(start, end)

    def read_ready(self, position: int, memory: memoryview) -> int:
        return self._file.read_ready(position, memory)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._disk.operations.append(("write", self._path))
        self._disk.writes.append((self._path, position, b"".join(buffers)))
        self._file.write_at(position, buffers)

    def sync(self) -> None:
        self._disk.operations.append(("sync", self._path))
        self._file.sync()

    def truncate(self, length: int) -> None:
        self._disk.operations.append(("truncate", self._path))
        self._file.truncate(length)

    def close(self) -> None:
        self._file.close()


def damage_found_by(action: Callable[[], object]) -> CorruptDataError | None:
    """What `action` refused to go on with; None when it found nothing wrong."""
    try:
        action()
    except CorruptDataError as error:
        return error
    return None


def power_cut_at_every_step(
    world: Callable[[SimDisk], World],
    scenario: Callable[[World], None],
    check: Callable[[Store], None],
    *,
    seeds: int = 3,
) -> int:
    """Cut the power in the scenario's first operation on the disk, its second, and so on, at last behind its end.

    `world` is what the scenario begins with, made alike on a fresh disk each time; `check` looks at what recovery makes
    of the rest. Returns the number of operations that the scenario has.
    """
    for step in range(STEPS_MAX):
        died = False
        for seed in range(seeds):
            disk = new_disk(1000 * step + seed)
            begun = world(disk)
            disk.crash_after(step)
            try:
                scenario(begun)
            except SimulatedCrash:
                died = True
            power_cut(disk)
            check(open_store(disk))
        if not died:
            return step
    raise AssertionError(f"the scenario has more than {STEPS_MAX} steps")


__all__ = [
    "DIRECTORY",
    "TINY",
    "Entry",
    "EntryKind",
    "RecordingDisk",
    "after_a_power_cut",
    "batch",
    "damage_found_by",
    "entries_of",
    "files_of",
    "folder_of",
    "killed",
    "new_disk",
    "offsets_of",
    "open_store",
    "overwrite",
    "power_cut",
    "power_cut_at_every_step",
    "read_all",
    "read_batches",
    "read_path",
    "remove",
    "reopened",
    "replace",
    "rest",
    "settled",
    "sized_batch",
    "state_of",
    "write",
]
