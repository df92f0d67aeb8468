"""Work on files that nobody waits for: closing segments, preparing files, deleting what is no longer wanted.

Tasks run one at a time, each folder's in the order they came, on a thread of their own (or as the simulator's events).
When the writer must have a folder's behind it (a truncation that reaches into a segment whose closing is still
waiting), it runs them itself with `finish`; a mutex keeps the two apart.

A full disk puts a task off, and what waits behind it in the same folder; other folders' go on, since one of them may
give room back. Any other failure is fatal for the node, like the writer's: nothing is tried again.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog import faults
from tidelog.storage.disk import Disk
from tidelog.storage.errors import WriterFailedError
from tidelog.storage.pool import FilePool
from tidelog.storage.readers import SegmentReader
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX
from tidelog.storage.small_file import rename_into_place

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

Task = Callable[[], None]


class Housekeeper:
    def __init__(self) -> None:
        self._tasks: deque[tuple[str, Task]] = deque()  # (folder, what is to be done there)
        self._changing = threading.Lock()  # guards the queue
        self._running = threading.Lock()  # held while a task runs
        self.failure: Exception | None = None  # of the writer or of a task: nothing is done after it
        self.wake: Callable[[], None] = lambda: None

    def submit(self, folder: str, task: Task) -> None:
        with self._changing:
            self._tasks.append((folder, task))
        self.wake()

    def submit_last(self, folder: str, task: Task) -> None:
        """The folder goes away: whatever else is to be done there need not be."""
        with self._changing:
            self._tasks = deque(item for item in self._tasks if item[0] != folder)
        self.submit(folder, task)

    def __len__(self) -> int:
        return len(self._tasks)

    def run_next(self) -> bool:
        """Run the oldest task that the disk has room for; false when there is none."""
        held_up: set[str] = set()
        with self._running:
            for item in self._queued():
                if item[0] in held_up:
                    continue
                try:
                    self._run(item)
                except OSError as error:
                    if error.errno not in DISK_FULL:
                        raise
                    held_up.add(item[0])
                else:
                    return True
        return False

    def finish(self, folder: str) -> None:
        """Return when nothing is left to do in `folder`; a full disk is the caller's error then."""
        with self._running:
            for item in self._queued():
                if item[0] == folder:
                    self._run(item)

    def _queued(self) -> list[tuple[str, Task]]:
        with self._changing:
            return list(self._tasks)

    def _run(self, item: tuple[str, Task]) -> None:
        if self.failure is not None:
            raise WriterFailedError(f"housekeeping has stopped: {self.failure}") from self.failure
        try:
            item[1]()
        except Exception as error:
            if not isinstance(error, OSError) or error.errno not in DISK_FULL:
                self.failure = error
            raise
        with self._changing:
            if item in self._tasks:
                self._tasks.remove(item)


def close_segment(
    disk: Disk, folder: str, active_name: str, closed_name: str, index: bytes, length: int
) -> None:  # fmt: skip
    """Turn an active file into a plain segment with its index. Every step can be repeated after a crash."""
    active = os.path.join(folder, active_name)
    log = os.path.join(folder, closed_name + LOG_SUFFIX)
    rename_into_place(disk, os.path.join(folder, closed_name + INDEX_SUFFIX), index)
    if faults.ARMED:
        faults.hit("segment.close")
    if disk.exists(active):
        disk.rename(active, log)
    disk.sync_directory(folder)
    cut_file(disk, log, length)


def cut_file(disk: Disk, path: str, length: int) -> None:
    file = disk.open_write(path)
    try:
        file.truncate(length)
        file.sync()
    finally:
        file.close()


@dataclass(frozen=True, slots=True)
class Leftover:
    """The files of a segment that is no longer part of its log, and who may still read them."""

    active_name: str
    closed_name: str
    reader: weakref.ref[SegmentReader] | None = None


def remove_leftovers(disk: Disk, pool: FilePool, folder: str, leftovers: Sequence[Leftover]) -> None:
    """Delete segments in the order given. A closed one's file goes to the pool, unless somebody still reads it."""
    for leftover in leftovers:
        log, index, active = (
            os.path.join(folder, name)
            for name in (
                leftover.closed_name + LOG_SUFFIX,
                leftover.closed_name + INDEX_SUFFIX,
                leftover.active_name,
            )
        )
        unread = leftover.reader is None or leftover.reader() is None
        if disk.exists(log) and not (unread and pool.put(log)):
            disk.remove(log)
        for path in (index, active):
            if disk.exists(path):
                disk.remove(path)
    disk.sync_directory(folder)
