"""The real disk under the test's control: syncs wait, writes fail, reads seem slow.

Threads of the storage come by here, so everything that steers them is a `threading.Event` or a plain flag; and the
writes that the loop has the kernel do.
"""

import errno
import os
import threading
from collections.abc import Sequence
from typing import Any, cast

from tidelog.storage import Disk, File, RealDisk, SyncFailedError
from tidelog.storage.disk import Buffer, DurableWrites, Write


class ControlledDisk:
    def __init__(self, disk: Disk | None = None) -> None:
        self._disk: Any = disk if disk is not None else RealDisk(sync="none")
        self._may_sync = threading.Event()
        self._may_sync.set()
        self._held = ""
        self.syncs_fail = False
        self.full = False
        self.cold = False
        """No read finds its bytes in memory: a thread has to wait for the disk."""
        self.reads_waited_for = 0
        self._writes: list[ControlledWrites] = []

    def hold_syncs(self, of_paths_with: str = "") -> None:
        """From now on nothing becomes durable, so nothing that is produced is committed."""
        self._held = of_paths_with
        self._may_sync.clear()

    def release_syncs(self) -> None:
        self._may_sync.set()
        for writes in self._writes:
            writes.go_on()

    def holds(self, path: str) -> bool:
        return self._held in path and not self._may_sync.is_set()

    def wait_until_released(self) -> None:
        self._may_sync.wait()

    def before_sync(self, path: str) -> None:
        if self._held in path:
            self._may_sync.wait()
        if self.syncs_fail:
            raise SyncFailedError("the test has the sync fail")

    def before_write(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "the test has the disk full")

    # The disk's own calls

    def open_read(self, path: str) -> File:
        return cast(File, ControlledFile(self._disk.open_read(path), path, self))

    def open_write(self, path: str, *, direct: bool = False) -> File:
        return cast(File, ControlledFile(self._disk.open_write(path, direct=direct), path, self))

    def open_writes(self, folder: str) -> DurableWrites | None:
        writes = self._disk.open_writes(folder)
        if writes is None:
            return None
        self._writes.append(ControlledWrites(writes, self))
        return cast(DurableWrites, self._writes[-1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class ControlledWrites:
    """What the kernel writes by itself, under the same control."""

    def __init__(self, writes: DurableWrites, disk: ControlledDisk) -> None:
        self._writes = writes
        self._disk = disk
        self._held: list[Write] = []
        self._failed: list[tuple[int, int]] = []

    def submit(self, writes: Sequence[Write]) -> None:
        passed: list[Write] = []
        for write in writes:
            if self._disk.full or self._disk.syncs_fail:
                self._failed.append((write[0], -(errno.ENOSPC if self._disk.full else errno.EIO)))
            elif self._disk.holds(cast(ControlledFile, write[1]).path):
                self._held.append(write)
            else:
                passed.append(write)
        if passed:
            self._writes.submit(passed)
        if self._failed:
            os.eventfd_write(self._writes.fileno(), 1)

    def go_on(self) -> None:
        held, self._held = self._held, []
        if held:
            self.submit(held)

    def take_done(self) -> list[tuple[int, int]]:
        failed, self._failed = self._failed, []
        return failed + self._writes.take_done()

    def wait(self) -> list[tuple[int, int]]:
        if self._held:
            self._disk.wait_until_released()
            self.go_on()
        return self.take_done() or self._writes.wait()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writes, name)


class ControlledFile:
    def __init__(self, file: File, path: str, disk: ControlledDisk) -> None:
        self._file = file
        self.path = path
        self._disk = disk

    def sync(self) -> None:
        self._disk.before_sync(self.path)
        self._file.sync()

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._disk.before_write()
        self._file.write_at(position, buffers)

    def read_ready(self, position: int, memory: memoryview) -> int:
        return 0 if self._disk.cold else self._file.read_ready(position, memory)

    def read_into(self, position: int, memory: memoryview) -> int:
        self._disk.reads_waited_for += 1
        return self._file.read_into(position, memory)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
