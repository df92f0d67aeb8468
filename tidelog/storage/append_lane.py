"""The short way to the disk: appends that the loop itself submits, and the disk does while nobody waits for it.

The loop hands every operation in here first. Appends to a direct file are laid out in aligned memory at the end of a
turn and given to the disk as two writes, of the batches and of their rows, which are durable when they are done
(`DurableWrites`). Everything else goes to the writer's thread (see `writer`): other operations, files that are not
direct yet or cannot be, batches too large for the memory here, and what a full disk did not take.

    waiting ──▶ under way ──▶ reported
        └─────▶ with the writer's thread ──▶ reported

A stream is in one place at a time, so its operations are carried out in their order. Its file belongs to whoever has
it. Of each stream one run of appends is under way; those that come meanwhile are the next one. (A second one could
overtake the first in the block that both have a part of.) While the thread has operations of a stream, appends wait
until it has reported all of them; anything else follows to the thread at once, with what waits before it.

Bounds: the memory of runs that are under way; what waits is bounded by whoever submits (`queued_bytes`).

Cost: a copy, and two system calls for all streams' runs of a turn.
"""

import errno
import os
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from tidelog import faults
from tidelog.storage.disk import DurableWrites, Write
from tidelog.storage.housekeeping import DISK_FULL
from tidelog.storage.operations import Append, Close, Completion, Durable, Operation
from tidelog.storage.segment import BLOCK_BYTES
from tidelog.storage.segment_file import SegmentFile
from tidelog.storage.staging import Staging, several

SMALL_BYTES = 128 << 10
SMALL_MAX = 64  # runs
LARGE_BYTES = (4 << 20) + SMALL_BYTES
LARGE_MAX = 2
WRITES_A_RUN = 2
EDGES_BYTES = 4 * BLOCK_BYTES  # a run's batches and rows begin and end in the middle of a block


class Writer(Protocol):
    """What the lane needs of the writer that does the rest."""

    def hand_in(self, stream: int, operations: list[Operation]) -> None: ...

    def file_of(self, stream: int) -> SegmentFile | None:
        """The stream's newest file, if it is open. Only while the writer has no operation of the stream."""
        ...

    def report(self, completion: Completion) -> None: ...

    def fail(self, error: OSError) -> None:
        """End the writer for good. Raises WriterFailedError."""
        ...


@dataclass(slots=True)
class _Stream:
    number: int
    waiting: deque[Operation] = field(default_factory=deque[Operation])
    others: int = 0  # among those waiting, that are no appends
    handed: int = 0  # operations that the thread has
    run: "_Run | None" = None


@dataclass(slots=True)
class _Run:
    """Appends that are under way."""

    stream: _Stream
    appends: list[Append]
    data_bytes: int
    staging: Staging
    left: int = WRITES_A_RUN
    error: int = 0


class AppendLane:
    def __init__(self, writer: Writer, writes: DurableWrites, handed: dict[int, int]) -> None:
        """`handed`: how many operations of each stream the writer's thread has already."""
        self._writer = writer
        self._writes = writes
        self._streams = {stream: _Stream(stream, handed=count) for stream, count in handed.items()}
        self._ready: dict[int, _Stream] = {}
        self._under_way: dict[int, tuple[_Run, int]] = {}  # a write's number -> whose it is, and its bytes
        self._next_number = 0
        self._small = several(SMALL_MAX, SMALL_BYTES)
        self._large = several(LARGE_MAX, LARGE_BYTES)

    def fileno(self) -> int:
        """Becomes readable when `collect` has something to take."""
        return self._writes.fileno()

    @property
    def has_waiting(self) -> bool:
        """`start` may have something to begin."""
        return bool(self._ready)

    def submit(self, stream: int, operation: Operation) -> None:
        state = self._streams.get(stream)
        if state is None:
            state = self._streams[stream] = _Stream(stream)
        state.waiting.append(operation)
        if not isinstance(operation, Append):
            state.others += 1
        self._ready[stream] = state

    def reported(self, stream: int, operations: int) -> None:
        """The thread has carried out so many operations of a stream, and they are durable."""
        state = self._streams.get(stream)
        if state is not None:
            state.handed -= operations
            if state.waiting:
                self._ready[stream] = state

    def start(self) -> None:
        """Begin with what waits, as far as it can be."""
        if not self._ready:
            return
        ready, self._ready = self._ready, {}
        writes: list[Write] = []
        for stream, state in ready.items():
            if state.run is not None:
                continue  # it is looked at again when that is done
            if state.others:
                self._hand_over(state)
            elif not state.handed:
                file = self._writer.file_of(stream)
                by_thread = faults.ARMED and not faults.armed("lane.")  # most fault points lie on the thread's way
                if file is None or not file.direct or by_thread:
                    self._hand_over(state)
                else:
                    self._begin(state, file, writes)
        if writes:
            if faults.ARMED:
                faults.hit("lane.submit")
            if faults.ARMED and faults.hit("lane.between-data-and-rows"):
                self._end_without_rows(writes)
            self._writes.submit(writes)

    def _end_without_rows(self, writes: list[Write]) -> None:
        """Tests only."""
        self._writes.submit(writes[::WRITES_A_RUN])
        self._writes.wait()
        faults.crash()

    def collect(self) -> bool:
        """Report what the disk has done; false when that is nothing whole. Raises WriterFailedError."""
        done = self._writes.take_done()
        try:
            if faults.ARMED and done:
                faults.hit("lane.collect")
        except OSError as error:
            done = [(number, -(error.errno or errno.EIO)) for number, _ in done]
        return self._take(done)

    def finish(self) -> None:
        """Wait for what is under way, and hand the rest to the writer's thread."""
        while self._under_way:
            self._take(self._writes.wait())
        for state in self._streams.copy().values():
            if state.waiting:
                self._hand_over(state)

    def close(self) -> None:
        self._writes.close()

    def _hand_over(self, state: _Stream) -> None:
        operations = list(state.waiting)
        state.waiting.clear()
        state.others = 0
        state.handed += len(operations)
        if isinstance(operations[-1], Close):
            del self._streams[state.number]
        self._writer.hand_in(state.number, operations)

    def _begin(self, state: _Stream, file: SegmentFile, writes: list[Write]) -> None:
        """Lay out the stream's next run, if there is memory for it."""
        appends, data_bytes, room = _next_run(state.waiting)
        if room > LARGE_BYTES:
            self._hand_over(state)
            return
        memory = self._small if room <= SMALL_BYTES else self._large
        if not memory:
            self._ready[state.number] = state
            return
        staging = memory.pop()
        staged = file.stage_run(
            self._next_number,
            appends[0].position,
            [buffer for append in appends for buffer in append.data],
            appends[0].rows_position,
            [append.rows for append in appends],
            staging,
        )
        for _ in appends:
            state.waiting.popleft()
        run = _Run(state, appends, data_bytes, staging)
        state.run = run
        for write in staged:
            self._under_way[write[0]] = (run, write[-1])
        self._next_number += WRITES_A_RUN
        writes += staged

    def _take(self, done: list[tuple[int, int]]) -> bool:
        finished = False
        for number, result in done:
            run, size = self._under_way.pop(number)
            run.left -= 1
            if result != size and (not run.error or run.error in DISK_FULL):  # want of room hides no other error
                run.error = -result if result < 0 else errno.ENOSPC  # cut short: it had no room for more
            if not run.left:
                self._finish(run)
                finished = True
        return finished

    def _finish(self, run: _Run) -> None:
        state = run.stream
        state.run = None
        (self._small if run.staging.size == SMALL_BYTES else self._large).append(run.staging)
        if run.error in DISK_FULL:  # the thread tries it again, and goes on trying
            state.waiting.extendleft(reversed(run.appends))
            self._hand_over(state)
        elif run.error:
            self._writer.fail(OSError(run.error, os.strerror(run.error)))
        else:
            last = run.appends[-1]
            durable = Durable(last.generation, last.last_index)
            self._writer.report(Completion(state.number, durable, data_bytes=run.data_bytes))
        if state.waiting:
            self._ready[state.number] = state


def _next_run(waiting: deque[Operation]) -> tuple[list[Append], int, int]:
    """The appends that are written together, the bytes of their batches, and the memory that they take.

    They follow each other in one segment: between two that do not, there is an operation of another kind.
    """
    appends: list[Append] = []
    data_bytes, room = 0, EDGES_BYTES
    for append in waiting:
        assert isinstance(append, Append)
        room += append.data_bytes + len(append.rows)
        if appends and room > LARGE_BYTES:
            room -= append.data_bytes + len(append.rows)
            break
        appends.append(append)
        data_bytes += append.data_bytes
    return appends, data_bytes, room
