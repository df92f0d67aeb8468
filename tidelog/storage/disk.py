"""The operations on files that storage is built from: few enough to be simulated.

Two rules that a simulated disk enforces and a real one merely punishes: nothing is durable before `File.sync`
returned, and no name (created, renamed, removed) is durable before `Disk.sync_directory` of its folder returned.
A failed sync leaves the file's state unknown; it must never be retried (the kernel may have dropped the pages).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tidelog.storage.staging import Staging

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    @property
    def alignment(self) -> int:
        """1 for ordinary files. Otherwise (O_DIRECT) position, length and memory of a write must be multiples of it."""
        ...

    def size(self) -> int: ...

    def read_at(self, position: int, length: int) -> bytes:
        """Exactly `length` bytes, fewer only at the end of the file."""
        ...

    def read_into(self, position: int, memory: memoryview) -> int:
        """Fill `memory` from `position` on; returns the bytes read, fewer than asked only at the end of the file."""
        ...

    def read_ready(self, position: int, memory: memoryview) -> int:
        """Like `read_into`, but only what can be had without waiting for the disk; 0 when nothing can."""
        ...

    def written_until(self, start: int, end: int) -> int:
        """Where in start..end the file system knows of nothing but zeros up to `end`; `end` when it cannot tell."""
        ...

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        """All of `buffers`, one after the other. On an error any part may have been written."""
        ...

    def sync(self) -> None:
        """Returns when everything written to the file so far is on stable storage."""
        ...

    def truncate(self, length: int) -> None:
        """Cut or extend (with a hole that reads as zeros) to `length`; durable with the next sync."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    def make_directory(self, path: str, *, durable: bool = True) -> None:
        """Create `path` and missing parents; no error when it is there. Syncs the parents itself.

        Unless it is not `durable`: then the caller syncs the folder that `path` lies in.
        """
        ...

    def list_directory(self, path: str) -> list[str]:
        """Names in `path`, sorted; empty when there is no such folder."""
        ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""
        ...

    def exists(self, path: str) -> bool: ...

    def open_read(self, path: str) -> File: ...

    def open_write(self, path: str, *, direct: bool = False) -> File:
        """Open for reading and writing, created empty when missing. `direct` asks for O_DIRECT; see File.alignment."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces `new` when it is there."""
        ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None: ...

    def lock(self, path: str) -> File:
        """Hold an exclusive lock on the file `path` until it is closed. Raises BlockingIOError when another has it."""
        ...


@runtime_checkable
class ParallelDisk(Protocol):
    """A disk that has more to gain from many callers at once than from one after the other."""

    def run_together(self, calls: Sequence[Callable[[], None]]) -> None:
        """Make all calls, in any order and in several threads. Returns when all are done; raises what one did."""
        ...


class Whole(Protocol):
    """All that lies on one disk."""

    def sync(self) -> None:
        """Returns when everything written to any file since this was opened, and every name, is on stable storage."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WholeDisk(Protocol):
    """A disk that can be synced as a whole, which is cheaper when very many files are new."""

    def open_whole(self, path: str) -> Whole | None:
        """The disk on which `path` lies; None when its word could not be relied on."""
        ...


WRITES_MAX = 256

Write = tuple[int, File, int, Staging, int, int]
"""A number by which it is known, the direct file and the position in it, memory, the start in that, and the bytes."""


class DurableWrites(Protocol):
    """Writes to direct files that the disk does by itself; each is durable when it is done.

    Two that are under way at the same time must not touch the same block. At most WRITES_MAX may be.
    """

    def submit(self, writes: Sequence[Write]) -> None:
        """Begin to write; the memory is the disk's until each is done."""
        ...

    def take_done(self) -> list[tuple[int, int]]:
        """(number, bytes written or negative errno) of those that are done since the last call, in any order."""
        ...

    def wait(self) -> list[tuple[int, int]]:
        """The same, but at least one of those under way."""
        ...

    def fileno(self) -> int:
        """Becomes readable when one is done."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class WritingDisk(Protocol):
    """A disk that can write while nobody waits for it."""

    def open_writes(self, folder: str) -> DurableWrites | None:
        """For direct files under `folder`; None when it cannot be done there."""
        ...


@runtime_checkable
class MeasuredDisk(Protocol):
    """A disk that knows how full it is."""

    def space(self, path: str) -> tuple[int, int]:
        """(bytes that can still be written, bytes in all) where `path` lies."""
        ...


def open_writes(disk: Disk, folder: str) -> DurableWrites | None:
    return disk.open_writes(folder) if isinstance(disk, WritingDisk) else None


def open_whole(disk: Disk, path: str) -> Whole | None:
    return disk.open_whole(path) if isinstance(disk, WholeDisk) else None


def run_together(disk: Disk, calls: Sequence[Callable[[], None]]) -> None:
    """Calls that do not depend on each other: at the same time where the disk can, else one by one."""
    if len(calls) > 1 and isinstance(disk, ParallelDisk):
        disk.run_together(calls)
    else:
        for call in calls:
            call()
