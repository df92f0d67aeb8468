"""The threads that work for a store: one that writes, one that syncs what is written, and the housekeeper.

A thread whose work fails reports it once and ends; the node must then stop (see `writer`).
"""

import contextlib
import queue
import threading
from collections.abc import Callable

from tidelog.storage.store import Store

FULL_DISK_RETRY_S = 1.0
WRITTEN_GROUPS_MAX = 2  # one is being synced, one waits; a third would only make the second's wait longer


class _Worker:
    """A thread that works when it is woken, and from time to time while something is held up."""

    def __init__(self, name: str, work: Callable[[], bool], failed: Callable[[BaseException], None]) -> None:
        self._work = work
        self._failed = failed
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()  # all in C, where an Event takes Python's time
        self._called = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if not self._called:  # one call is enough, however many want it
            self._called = True
            self._calls.put(None)

    def stop(self) -> None:
        """End once there is nothing left to do."""
        self._stopping = True
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                stopping = self._stopping  # before the work: what is handed in ahead of `stop` is still done
                held_up = self._work()
                if stopping:
                    return
                with contextlib.suppress(queue.Empty):  # then it is time to try again
                    self._calls.get(timeout=FULL_DISK_RETRY_S if held_up else None)
                self._called = False  # from here on a call is for what is done next
        except BaseException as error:  # noqa: BLE001 - whatever ended the thread must not go unnoticed
            self._failed(error)


class StorageThreads:
    def __init__(self, store: Store, failed: Callable[[BaseException], None]) -> None:
        """`failed` is called once, from a thread of ours, with the first failure: later ones only follow from it."""
        self._store = store
        self._failed = failed
        self._first_failure = threading.Lock()
        self._syncer = _Worker("tidelog-syncer", self._sync, self._fail)
        self._writer = _Worker("tidelog-writer", self._write, self._fail)
        self._housekeeper = _Worker("tidelog-housekeeper", self._keep_house, self._fail)
        store.writer.wake = self._writer.wake
        store.housekeeper.wake = self._housekeeper.wake
        self._writer.wake()
        self._housekeeper.wake()

    def stop(self) -> None:
        """Write what waits, tidy up, and end both threads. The store stays open."""
        self._writer.stop()
        self._syncer.stop()
        self._housekeeper.stop()

    def _fail(self, error: BaseException) -> None:
        if self._first_failure.acquire(blocking=False):
            self._failed(error)

    def _write(self) -> bool:
        writer = self._store.writer
        tried_held = False
        if not writer.has_work:
            self._store.mind_space()  # every group does, but there may be none
        while writer.has_work or (writer.has_held_work and not tried_held):
            tried_held = True
            if writer.written_groups >= WRITTEN_GROUPS_MAX:
                self._store.run_sync()
            self._store.run_write()
            if writer.has_work:
                self._syncer.wake()  # while the next group is written
            else:
                self._store.run_sync()
        return writer.has_held_work or self._store.space.short  # room may come back without our doing

    def _sync(self) -> bool:
        while self._store.writer.written_groups:
            self._store.run_sync()
        return False

    def _keep_house(self) -> bool:
        while self._store.run_housekeeping():
            pass
        return len(self._store.housekeeper) > 0
