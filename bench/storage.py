"""The storage engine against bare loops: appends through group commit, sequential reads, recovery."""

import os
import random
import threading
import time

from bench.floor_disk import FloorFile, read_files
from bench.rounds import Comparison, Line, compare
from bench.scratch import scratch
from tidelog.raft.log import EntryKind
from tidelog.storage import FileRange, RealDisk, StorageSettings, StorageThreads, Store, StreamLog
from tidelog.wire.batch import HEADER_BYTES
from tidelog.wire.records import Record, build_batch

KIB, MIB = 1 << 10, 1 << 20
BATCH_BYTES = 64 * KIB
IN_FLIGHT = 160  # batches handed in and not yet durable: what a busy stream has
BATCHES_PER_APPEND = 32
ROUND_BYTES = 64 * MIB  # short turns: disks of virtual machines are fast until their allowance is used up
READ_BYTES = 768 * MIB
RETAINED_BYTES = 256 * MIB
ROUNDS = 7
APPEND_ROUNDS = 30


def _batch(size: int, seed: int = 0) -> bytearray:
    value = random.Random(seed).randbytes(size - HEADER_BYTES - 11)
    return build_batch([Record(value, timestamp=1_700_000_000_000)])


class _Appender:
    """A store with its threads, and a loop that keeps a window of batches in flight."""

    def __init__(self, directory: str, retained_bytes: int = RETAINED_BYTES) -> None:
        self.store = Store(RealDisk(), directory, StorageSettings(), random.Random(1))
        self._reported = threading.Event()
        self.failure: BaseException | None = None
        self.store.on_report = self._reported.set
        self._threads = StorageThreads(self.store, self._fail)
        self.log: StreamLog = self.store.create_stream(1, b"")
        self.batches = [_batch(BATCH_BYTES, seed) for seed in range(2 * IN_FLIGHT)]
        self._retained = retained_bytes // BATCH_BYTES
        self.groups: list[int] = []

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._reported.set()

    def append(self, total_bytes: int) -> float:
        """Append until `total_bytes` are durable; returns seconds and leaves the sizes of the groups."""
        log, store = self.log, self.store
        self.groups = []
        count = total_bytes // BATCH_BYTES
        first = log.last_index
        begun = time.perf_counter()
        while log.durable_index < first + count:
            last = min(first + count, log.durable_index + IN_FLIGHT)
            if last > log.last_index:
                self._append_upto(last)
            self._reported.wait()
            self._reported.clear()
            if self.failure is not None:
                raise self.failure
            before = log.durable_index
            store.deliver()
            if log.durable_index > before:
                self.groups.append(log.durable_index - before)
            if log.next_offset - log.start_offset > 2 * self._retained:
                log.trim(log.next_offset - self._retained, log.durable_index)
        while len(store.housekeeper):  # what it does now would be done at the floor's expense
            self._reported.wait(0.001)
            self._reported.clear()
            store.deliver()
        return time.perf_counter() - begun

    def _append_upto(self, last: int) -> None:
        """Hand batches in as requests bring them: some at a time."""
        log, batches = self.log, self.batches
        while log.last_index < last:
            numbers = range(log.last_index, min(last, log.last_index + BATCHES_PER_APPEND))
            log.append_new(1, EntryKind.DATA, [batches[number % len(batches)] for number in numbers])

    def close(self) -> None:
        self._threads.stop()
        self.store.deliver()
        self.store.close()


def appends() -> Line:
    with scratch() as folder:
        floor = FloorFile(os.path.join(folder, "floor"), StorageSettings().segment_bytes)
        appender = _Appender(os.path.join(folder, "data"))
        try:
            comparison = compare(
                lambda: appender.append(ROUND_BYTES),
                lambda: floor.append_groups(appender.groups, appender.batches),
                APPEND_ROUNDS,
                warm_up=16,
            )
            group_bytes = ROUND_BYTES / len(appender.groups)
        finally:
            appender.close()
            floor.close()
    rate = ROUND_BYTES / MIB / min(comparison.ours)
    note = f"up to {rate:.0f} MiB/s, {group_bytes / KIB:.0f} KiB a group"
    return _ratio_line("append 64 KiB batches, each group synced", comparison, note)


def _fill(directory: str, total_bytes: int) -> None:
    """A stream of this size, closed cleanly."""
    appender = _Appender(directory, retained_bytes=total_bytes)
    appender.append(total_bytes)
    appender.log.settle()
    appender.close()


def _closed_segments(directory: str) -> list[str]:
    folder = os.path.join(directory, "streams", "1")
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".log")]


def _read_log(log: StreamLog, last_index: int, chunk_bytes: int) -> float:
    buffer = memoryview(bytearray(chunk_bytes))
    offset = log.start_offset
    begun = time.perf_counter()
    while offset < last_index:  # one record a batch, no entries of our own: index = offset + 1
        for chunk in log.read(offset, last_index, chunk_bytes):
            assert isinstance(chunk, FileRange)
            offset += chunk.read_into(buffer) // BATCH_BYTES
    return time.perf_counter() - begun


def reads() -> Line:
    with scratch() as folder:
        directory = os.path.join(folder, "data")
        _fill(directory, READ_BYTES)
        files = _closed_segments(directory)
        last_index = sum(map(os.path.getsize, files)) // BATCH_BYTES
        store = Store(RealDisk(), directory, StorageSettings(), random.Random(1))
        log = store.streams[1]
        comparison = compare(lambda: _read_log(log, last_index, MIB), lambda: read_files(files, MIB), ROUNDS, warm_up=1)
        store.close()
    rate = last_index * BATCH_BYTES / MIB / min(comparison.ours)
    return _ratio_line("read in order, 1 MiB at a time", comparison, f"up to {rate:.0f} MiB/s, page cache warm")


def recovery() -> Line:
    with scratch() as folder:
        directory = os.path.join(folder, "data")
        _fill(directory, 1024 * MIB)
        seconds: list[float] = []
        for _ in range(5):
            begun = time.perf_counter()
            store = Store(RealDisk(), directory, StorageSettings(), random.Random(1))
            seconds.append(time.perf_counter() - begun)
            store.close()
    slowest = max(seconds)
    return Line("recover a stream of 1 GiB", f"{slowest:.2f} s", "< 1 s", slowest < 1, f"fastest {min(seconds):.2f} s")


def _ratio_line(name: str, comparison: Comparison, note: str) -> Line:
    spread = f"{min(comparison.ratios):.2f} to {max(comparison.ratios):.2f}"
    return Line(name, f"{comparison.ratio:.2f} of floor", ">= 0.8", comparison.ratio >= 0.8, f"{spread}; {note}")
