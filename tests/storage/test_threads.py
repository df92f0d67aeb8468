"""The real threads over a real disk: what is appended becomes durable, a stop writes what waits, a failure is told."""

import dataclasses
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.world import TINY, EntryKind, batch, sized_batch, state_of
from tidelog.storage import RealDisk, StorageThreads, Store, StoredVote, SyncFailedError, WriterFailedError
from tidelog.storage.threads import _Worker  # pyright: ignore[reportPrivateUsage]

PATIENCE_S = 30.0


class _Loop:
    """A store with its threads, and the part of an event loop that hears of their reports."""

    def __init__(self, folder: Path, disk: RealDisk | None = None) -> None:
        self.failures: list[BaseException] = []
        self.reported = threading.Semaphore(0)
        settings = dataclasses.replace(TINY, queue_bytes_max=1 << 16)
        self.store = Store(disk or RealDisk("none"), str(folder), settings, random.Random(5))
        self.store.on_report = self.reported.release
        self.threads = StorageThreads(self.store, self._failed)

    def _failed(self, error: BaseException) -> None:
        self.failures.append(error)
        self.reported.release()

    def wait_until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self.reported.acquire(timeout=PATIENCE_S), "nothing was reported"
            self.store.deliver()

    def close(self) -> None:
        self.threads.stop()
        self.store.deliver()
        self.store.close()


def test_appends_and_votes_become_durable(tmp_path: Path) -> None:
    loop = _Loop(tmp_path, RealDisk())
    logs = [loop.store.create_stream(stream, b"") for stream in (1, 2, 3)]
    for number in range(60):
        for log in logs:
            loop.wait_until(lambda log=log: log.accepting)
            log.append_new(1 + number // 20, EntryKind.DATA, [sized_batch(1200, bytes([65 + number % 26]))])
        if number == 30:
            loop.store.save_vote(2, StoredVote(9, 1))
    loop.wait_until(lambda: all(log.durable_index == 60 for log in logs) and loop.store.vote(2) == StoredVote(9, 1))
    expected = [state_of(log) for log in logs]
    loop.close()
    assert loop.failures == []
    again = _Loop(tmp_path)
    assert [state_of(again.store.streams[stream]) for stream in (1, 2, 3)] == expected
    assert again.store.vote(2) == StoredVote(9, 1)
    again.close()


def test_reading_trimming_and_truncating_go_on_beside_the_threads(tmp_path: Path) -> None:
    loop = _Loop(tmp_path)
    log = loop.store.create_stream(1, b"")
    rng = random.Random(8)
    for number in range(300):
        loop.wait_until(lambda: log.accepting)
        log.append_new(1 + number // 50, EntryKind.DATA, [sized_batch(300 + 10 * rng.randrange(90), timestamp=number)])
        loop.store.deliver()
        match rng.randrange(12):
            case 0:
                log.trim(rng.randint(log.start_offset, log.offset_after(log.durable_index)), log.durable_index)
            case 1 if log.last_index > log.durable_index + 2:
                log.truncate_from(log.last_index - 1)
            case 2:
                log.settle()
            case _:
                first = rng.randint(log.first_index, log.last_index)
                assert log.entries(first, log.last_index, 5000)[0].index == first
                assert log.read(log.start_offset, log.last_index, 3000) or log.start_offset == log.next_offset
    loop.wait_until(lambda: log.durable_index == log.last_index)
    expected = state_of(log)
    loop.close()
    assert loop.failures == []
    again = _Loop(tmp_path)
    assert state_of(again.store.streams[1]) == expected
    again.close()


def test_a_clean_stop_writes_what_waits(tmp_path: Path) -> None:
    for life in range(10):
        loop = _Loop(tmp_path)
        log = loop.store.streams.get(1) or loop.store.create_stream(1, b"")
        for _ in range(3):
            log.append_new(life + 1, EntryKind.DATA, [batch()])
        loop.store.save_vote(1, StoredVote(life + 1, None))
        loop.threads.stop()
        loop.store.deliver()
        assert log.durable_index == log.last_index == 3 * (life + 1)
        assert loop.store.vote(1) == StoredVote(life + 1, None)
        loop.store.close()


def test_work_that_is_handed_in_just_before_the_stop_is_done() -> None:
    """The worker found nothing to do and is about to look whether it should stop: work and stop arrive just then."""
    waiting: list[str] = []
    done: list[str] = []
    looked, handed_in = threading.Event(), threading.Event()

    def work() -> bool:
        done.extend(waiting)
        waiting.clear()
        if not looked.is_set():
            looked.set()
            assert handed_in.wait(PATIENCE_S)
        return False

    failures: list[BaseException] = []
    worker = _Worker("worker", work, failures.append)
    assert looked.wait(PATIENCE_S)
    waiting.append("the last one")
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    worker._calls.get(timeout=PATIENCE_S)  # pyright: ignore[reportPrivateUsage] - the stop's own: it is under way
    worker._calls.put(None)  # pyright: ignore[reportPrivateUsage]
    handed_in.set()
    stopping.join(PATIENCE_S)
    assert done == ["the last one"]
    assert failures == []


def test_a_failing_disk_is_told_once_and_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _Loop(tmp_path, RealDisk())
    log = loop.store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [batch()])
    loop.wait_until(lambda: log.durable_index == 1)

    def failing(self: object) -> None:
        raise SyncFailedError("the disk is gone")

    monkeypatch.setattr("tidelog.storage.real_disk.RealFile.sync", failing)
    for _ in range(5):
        log.append_new(1, EntryKind.DATA, [batch()])
        loop.store.save_vote(1, StoredVote(3, 3))
    loop.wait_until(lambda: bool(loop.failures))
    loop.close()
    assert len(loop.failures) == 1
    assert isinstance(loop.failures[0], WriterFailedError)
    assert log.durable_index == 1
    assert loop.store.vote(1) == StoredVote(0, None)


def test_a_housekeeper_that_fails_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = _Loop(tmp_path)

    def failing(self: object, old: str, new: str) -> None:
        if new.endswith(".log"):
            raise OSError(5, "Input/output error")
        os.rename(old, new)

    monkeypatch.setattr(RealDisk, "rename", failing)
    log = loop.store.create_stream(1, b"")
    log.append_new(1, EntryKind.DATA, [sized_batch(5000), sized_batch(5000)])
    loop.wait_until(lambda: bool(loop.failures))
    loop.close()
    assert [str(failure) for failure in loop.failures] == ["[Errno 5] Input/output error"]
