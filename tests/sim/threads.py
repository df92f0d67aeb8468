"""Storage's threads as events: what `tidelog.storage.StorageThreads` does, one step at a time.

A write, a sync, a task of the housekeeper and what the disk does by itself are an event each, at random distances in
time. So death may come between
any two of them, and in the middle of each. What is not simulated: two threads at work in the very same moment.
"""

from collections.abc import Callable
from random import Random

from tidelog.storage import AppendLane, Store
from tidelog.storage.threads import WRITTEN_GROUPS_MAX

from .disk import SimDisk
from .scheduler import MILLISECOND
from .writes import SimWrites

DISK_DELAY = WRITE_DELAY = SYNC_DELAY = MILLISECOND // 3  # mean
HOUSE_DELAY = 2 * MILLISECOND
FULL_DISK_RETRY = 50 * MILLISECOND

Later = Callable[[int, Callable[[], None], str], object]


class SimThreads:
    def __init__(self, store: Store, disk: SimDisk, rng: Random, later: Later, *, lane: bool) -> None:
        """`later(delay, step, what)` lets a step happen after a while, if the node still lives then.

        `lane`: appends may take the short way to the disk.
        """
        self._store = store
        self._disk = disk
        self._rng = rng
        self._later = later
        self._writing = self._syncing = self._keeping_house = False
        self._lane: AppendLane | None = None
        if lane:
            self._writes = SimWrites(disk, rng, self._perform_later)
            self._lane = store.writer.use_lane(self._writes)
        store.writer.wake = self._write_later
        store.housekeeper.wake = self._keep_house_later
        if store.writer.has_work:
            self._write_later()
        if len(store.housekeeper):
            self._keep_house_later()

    def delay(self, mean: int) -> int:
        return int(self._rng.expovariate(1.0) * mean * self._disk.slowness)

    def start_writes(self) -> None:
        if self._lane is not None:
            self._lane.start()

    def _perform_later(self, number: int) -> None:
        self._later(self.delay(DISK_DELAY), lambda: self._perform(number), "has written")

    def _perform(self, number: int) -> None:
        assert self._lane is not None
        self._writes.perform(number)
        self._lane.collect()
        self._store.on_report()

    def _write_later(self, pause: int = 0) -> None:
        if not self._writing:
            self._writing = True
            self._later(pause + self.delay(WRITE_DELAY), self._write, "writes")

    def _write(self) -> None:
        self._writing = False
        writer = self._store.writer
        if writer.written_groups >= WRITTEN_GROUPS_MAX:
            self._store.run_sync()
        self._store.run_write()
        if writer.written_groups and not self._syncing:
            self._syncing = True
            self._later(self.delay(SYNC_DELAY), self._sync, "syncs")
        if writer.has_work:
            self._write_later()
        elif writer.has_held_work:
            self._write_later(FULL_DISK_RETRY)

    def _sync(self) -> None:
        self._syncing = False
        self._store.run_sync()

    def _keep_house_later(self, pause: int = 0) -> None:
        if not self._keeping_house:
            self._keeping_house = True
            self._later(pause + self.delay(HOUSE_DELAY), self._keep_house, "keeps house")

    def _keep_house(self) -> None:
        self._keeping_house = False
        done = self._store.run_housekeeping()
        if len(self._store.housekeeper):
            self._keep_house_later(0 if done else FULL_DISK_RETRY)
