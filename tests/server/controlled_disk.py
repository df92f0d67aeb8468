"""The real disk under the test's control: syncs wait, writes fail, reads seem slow.

Threads of the storage come by here, so everything that steers them is a `threading.Event` or a plain flag.
"""

import errno
import threading
from collections.abc import Sequence
from typing import Any, cast

from tidelog.storage import Disk, File, RealDisk, SyncFailedError
from tidelog.storage.disk import Buffer


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

    def hold_syncs(self, of_paths_with: str = "") -> None:
        """From now on nothing becomes durable, so nothing that is produced is committed."""
        self._held = of_paths_with
        self._may_sync.clear()

    def release_syncs(self) -> None:
        self._may_sync.set()

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

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


class ControlledFile:
    def __init__(self, file: File, path: str, disk: ControlledDisk) -> None:
        self._file = file
        self._path = path
        self._disk = disk

    def sync(self) -> None:
        self._disk.before_sync(self._path)
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
