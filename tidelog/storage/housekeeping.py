"""Work on files that nobody waits for: closing segments, preparing files, deleting what is no longer wanted.

Tasks run one at a time, in the order they came, on a thread of their own (or as the simulator's events). When the
writer must have them behind it (a truncation that reaches into a segment whose closing is still waiting), it runs
them itself with `finish`; a mutex keeps the two apart.

A full disk puts a task off until the next run; any other failure is fatal for the node, like the writer's.
"""

import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.storage.disk import Disk
from tidelog.storage.pool import FilePool
from tidelog.storage.readers import SegmentReader
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, SegmentShape
from tidelog.storage.segment_file import Staging
from tidelog.storage.small_file import replace_file

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

Task = Callable[[], None]


class Housekeeper:
    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._running = threading.Lock()
        self.wake: Callable[[], None] = lambda: None

    def submit(self, task: Task) -> None:
        self._tasks.append(task)
        self.wake()

    def __len__(self) -> int:
        return len(self._tasks)

    def run_next(self) -> bool:
        """Run the oldest task; false when there is none. A task that finds the disk full stays the oldest."""
        with self._running:
            if not self._tasks:
                return False
            self._tasks[0]()
            self._tasks.popleft()
            return True

    def finish(self) -> None:
        """Return when nothing is left to do."""
        while self.run_next():
            pass


def close_segment(
    disk: Disk, folder: str, active_name: str, closed_name: str, index: bytes, length: int
) -> None:  # fmt: skip
    """Turn an active file into a plain segment with its index. Every step can be repeated after a crash."""
    active = os.path.join(folder, active_name)
    log = os.path.join(folder, closed_name + LOG_SUFFIX)
    replace_file(disk, os.path.join(folder, closed_name + INDEX_SUFFIX), index)
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


def prepare_spare(pool: FilePool, path: str, shape: SegmentShape, staging: Staging, ready: Callable[[], None]) -> None:
    """Have the next segment's file at hand. Not having it only costs time, so a full disk is no error here."""
    try:
        pool.prepare(path, shape, staging)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
    else:
        ready()
