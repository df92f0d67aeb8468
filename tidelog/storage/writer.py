"""The group-commit writer: everything that waits, for all streams of the node, in one go.

The loop hands in operations and goes on; each stream's are carried out in the order they came. `write` takes everything
that waits, writes the votes and syncs them, and writes all streams' operations: that is a group. `sync` syncs each file
that groups have written to, once, and only then reports what has become durable. The two run in threads of their own,
so the next group is written while the last one is synced; what arrives meanwhile makes the group after it. Anything
but an append waits until the groups before it are durable.

Faults:
* a full disk holds the stream's remaining operations back, in order; every later cycle tries them again. Other streams
  go on. Nothing is lost and nothing is reported durable.
* any other failed write, and any failed sync, ends the writer for good: `WriterFailedError`, and the node must stop. A
  sync that failed is never tried again, since the kernel may have dropped the very pages it could not write.

Cost: a copy of the data into aligned memory, two writes and one sync a dirty stream and group. A new stream: one sync
of its state, then one of its folder beside that of its first entries; and one of the folder that holds all streams.
When WHOLE_MIN streams and more are new, two syncs of the whole disk stand for all of these, where the disk can do that.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from tidelog import faults
from tidelog.storage.append_lane import AppendLane
from tidelog.storage.disk import Disk, DurableWrites, Whole, run_together
from tidelog.storage.errors import StorageError, SyncFailedError, WriterFailedError
from tidelog.storage.hard_states import HardStates, StoredVote
from tidelog.storage.housekeeping import DISK_FULL, Housekeeper, cut_file
from tidelog.storage.operations import (
    Append,
    Begin,
    Close,
    Completion,
    Create,
    DropSuffix,
    Durable,
    Operation,
    SaveState,
    Settle,
    WipeRows,
)
from tidelog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, Segment
from tidelog.storage.segment_file import SegmentFile, create_segment_file, open_segment_file
from tidelog.storage.small_file import rename_temporary, replace_file, write_temporary
from tidelog.storage.staging import Staging
from tidelog.storage.stream_state import STATE_NAME

# Of one stream in one group. A larger one is hardly cheaper, and while it is written nothing is reported.
GROUP_BYTES_MAX = 4 << 20

# Streams that are made in one group: several syncs each, or two for all, and the votes of all others wait behind them.
CREATIONS_MAX = 128

# New streams from which on the whole disk is synced. Other programs' files are then waited for too, so not for a few.
WHOLE_MIN = 16


@dataclass(frozen=True, slots=True)
class _Group:
    """What was written in one go and is not yet synced."""

    files: Sequence[SegmentFile]
    completions: Sequence[Completion]
    folders: Sequence[str]  # with the names of new streams and of their files


@dataclass(slots=True)
class _Channel:
    """One stream as the writer sees it."""

    stream: int
    folder: str
    held: deque[Operation] = field(default_factory=deque[Operation])
    segment: Segment | None = None
    file: SegmentFile | None = None
    dirty: bool = False
    full: bool = False

    @property
    def is_new(self) -> bool:
        """Its files are yet to be made, and still wanted."""
        return isinstance(self.held[0], Create) and not isinstance(self.held[-1], Close)


def _creation(channel: _Channel) -> Create:
    """The first operation of a stream that is new."""
    create = channel.held[0]
    assert isinstance(create, Create)
    return create


class _FatalErrors:
    """After a failure nothing is written, synced or reported any more."""

    def __init__(self, housekeeper: Housekeeper) -> None:
        self._housekeeper = housekeeper

    def __enter__(self) -> None:
        failure = self._housekeeper.failure
        if failure is not None:
            raise WriterFailedError(f"the writer has stopped: {failure}") from failure

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # Whatever it was: operations that were taken are lost with it.
        if isinstance(error, Exception) and not isinstance(error, WriterFailedError):
            self._housekeeper.failure = error
            raise WriterFailedError(f"a write or sync failed, what the disk holds is unknown: {error}") from error


class GroupCommitWriter:
    def __init__(
        self,
        disk: Disk,
        hard_states: HardStates,
        housekeeper: Housekeeper,
        staging_bytes: int,
        whole: Whole | None = None,
    ) -> None:
        """`whole` is the disk that all streams' folders lie on, if it can be synced as one."""
        self._disk = disk
        self._whole = whole
        self._hard_states = hard_states
        self._housekeeper = housekeeper
        self._fatal_errors = _FatalErrors(housekeeper)
        self._staging = Staging(staging_bytes)
        self._channels: dict[int, _Channel] = {}
        self._holding: dict[int, _Channel] = {}  # those with operations that a full disk keeps waiting
        self._backlog: dict[int, _Channel] = {}  # those whose last group was large enough without the rest
        self._waiting: dict[int, list[Operation]] = {}
        self._waiting_votes: dict[int, StoredVote] = {}
        self._held_votes: dict[int, StoredVote] = {}  # those that a full disk keeps waiting
        self._lock = threading.Lock()  # guards what waits
        self._syncing = threading.Lock()  # held from taking written groups to reporting them
        self._written: deque[_Group] = deque()
        self._reports: deque[Completion] = deque()
        self.queued_bytes = 0  # the loop's count: handed in and not yet reported back
        self._lane: AppendLane | None = None
        self.wake: Callable[[], None] = lambda: None
        """Called when the writer's thread has something to do."""
        self.on_waiting: Callable[[], None] = lambda: None
        """Called when the lane should be started before long."""

    # What the loop calls.

    def add_stream(self, stream: int, folder: str, active: Segment | None) -> None:
        """`active` is the segment that recovery found to go on with."""
        self._channels[stream] = _Channel(stream, folder, segment=active)

    def use_lane(self, writes: DurableWrites) -> AppendLane:
        """From now on appends take the short way where they can. Before the writer's threads begin."""
        self._lane = AppendLane(self, writes, {stream: len(waiting) for stream, waiting in self._waiting.items()})
        return self._lane

    def submit(self, stream: int, operation: Operation) -> None:
        if isinstance(operation, Append):
            self.queued_bytes += operation.data_bytes
        if self._lane is not None:
            self._lane.submit(stream, operation)
            self.on_waiting()
        else:
            self.hand_in(stream, [operation])

    def hand_in(self, stream: int, operations: list[Operation]) -> None:
        """For the writer's thread."""
        with self._lock:
            first = not self._waiting and not self._waiting_votes
            self._waiting.setdefault(stream, []).extend(operations)
        if first:
            self.wake()

    def file_of(self, stream: int) -> SegmentFile | None:
        return self._channels[stream].file

    def report(self, completion: Completion) -> None:
        self._reports.append(completion)

    def fail(self, error: OSError) -> None:
        with self._fatal_errors:
            raise error

    def submit_vote(self, stream: int, vote: StoredVote) -> None:
        with self._lock:
            first = not self._waiting and not self._waiting_votes
            self._waiting_votes[stream] = vote
        if first:
            self.wake()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._waiting_votes or self._backlog)

    @property
    def has_held_work(self) -> bool:
        """A full disk keeps operations waiting: cycles should go on from time to time."""
        return bool(self._holding or self._held_votes)

    @property
    def has_reports(self) -> bool:
        return bool(self._reports)

    def take_reports(self) -> list[Completion]:
        """What has become durable, or has changed otherwise, since the last call; oldest first."""
        reports: list[Completion] = []
        while self._reports:
            report = self._reports.popleft()
            reports.append(report)
            self.queued_bytes -= report.data_bytes
            if report.operations and self._lane is not None:
                self._lane.reported(report.stream, report.operations)
        return reports

    # What the writer's threads call.

    @property
    def written_groups(self) -> int:
        """How many groups wait for their sync."""
        return len(self._written)

    def write(self) -> None:
        """Carry out everything that waits; `sync` makes it durable."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
            votes, self._waiting_votes = self._waiting_votes, {}
        with self._fatal_errors:
            if faults.ARMED:
                faults.hit("writer.before-write")
            self._write_votes(votes)
            group = self._write_streams(waiting)
        if group.completions:
            self._written.append(group)

    def sync(self) -> None:
        """Make everything that has been written durable, and report it."""
        with self._syncing, self._fatal_errors:
            groups = [self._written.popleft() for _ in range(len(self._written))]
            if faults.ARMED:
                faults.hit("writer.before-sync")
            folders = dict.fromkeys(folder for group in groups for folder in group.folders)
            if self._whole is not None and len(folders) > WHOLE_MIN:
                self._whole.sync()
            else:
                calls = [file.sync for file in dict.fromkeys(f for group in groups for f in group.files)]
                run_together(self._disk, [*calls, *(partial(self._disk.sync_directory, folder) for folder in folders)])
            if faults.ARMED:
                faults.hit("writer.after-sync")
            for group in groups:
                self._reports.extend(group.completions)

    def close(self) -> None:
        for channel in self._channels.values():
            if channel.file is not None:
                channel.file.close()
                channel.file = None
        self._hard_states.close()
        if self._lane is not None:
            self._lane.close()
        if self._whole is not None:
            self._whole.close()

    def _write_votes(self, votes: dict[int, StoredVote]) -> None:
        self._held_votes.update(votes)
        if not self._held_votes:
            return
        try:
            self._hard_states.write(self._held_votes)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            return  # not durable, so not reported; the next group tries again
        self._reports.extend(Completion(stream, vote=vote) for stream, vote in self._held_votes.items())
        self._held_votes = {}

    def _write_streams(self, waiting: dict[int, list[Operation]]) -> _Group:
        busy = {**self._holding, **self._backlog}
        self._backlog = {}
        for stream, operations in waiting.items():
            busy[stream] = self._channels[stream]
            busy[stream].held.extend(operations)
        folders = self._create_streams(busy)
        done = [(channel, *self._write_stream(channel)) for channel in busy.values()]
        files: list[SegmentFile] = []
        for channel in busy.values():
            if channel.dirty and channel.file is not None:
                files.append(channel.file)
            channel.dirty = False
        return _Group(
            files,
            [
                Completion(channel.stream, durable=durable, full=full, data_bytes=data_bytes, operations=operations)
                for channel, durable, full, data_bytes, operations in done
            ],
            folders,
        )

    def _create_streams(self, busy: dict[int, _Channel]) -> list[str]:
        """Make the files of new streams, many at a time; those that are too many stay for the next group.

        Gives the folders that must be synced before anything of those streams is reported.
        """
        new = [channel for channel in busy.values() if channel.is_new]
        for channel in new[CREATIONS_MAX:]:
            self._backlog[channel.stream] = busy.pop(channel.stream)
        del new[CREATIONS_MAX:]
        if self._whole is not None and len(new) >= WHOLE_MIN:
            for channel in new:
                self._create(channel, self._make_files)
            self._whole.sync()
            for channel in new:
                if not _creation(channel).error:
                    self._create(channel, self._name_state)
        else:
            run_together(self._disk, [partial(self._create, channel, self._make_and_name) for channel in new])
        made = [channel.folder for channel in new if not _creation(channel).error]
        return [*made, *dict.fromkeys(map(os.path.dirname, made))]

    def _create(self, channel: _Channel, step: Callable[[_Channel], None]) -> None:
        """Every step can be repeated. Until the state file has its name, a restart takes the folder for a leftover.

        The names become durable with the group, in any order, and nothing of the stream counts before.
        """
        create = _creation(channel)
        create.error = None
        try:
            step(channel)
        except OSError as error:
            create.error = error

    def _make_and_name(self, channel: _Channel) -> None:
        self._make_files(channel, durable=True)
        self._name_state(channel)

    def _make_files(self, channel: _Channel, *, durable: bool = False) -> None:
        create = _creation(channel)
        self._disk.make_directory(channel.folder, durable=False)
        file = self._disk.open_write(os.path.join(channel.folder, create.active_name))
        try:
            file.truncate(create.shape.file_bytes)  # durable with the header that the group will write
        finally:
            file.close()
        write_temporary(self._disk, os.path.join(channel.folder, STATE_NAME), create.content, durable=durable)

    def _name_state(self, channel: _Channel) -> None:
        """Its content must be durable: a name without it could not be told from damage."""
        rename_temporary(self._disk, os.path.join(channel.folder, STATE_NAME))

    def _write_stream(self, channel: _Channel) -> tuple[Durable | None, bool | None, int, int]:
        """Carry out the channel's operations until none is left, the group is large enough, or the disk is full.

        Gives what is durable with the group, whether the disk is full, if that is news, and how many bytes and
        operations it was; of a stream that is gone none, since the next with its number is another one.
        """
        durable: Durable | None = None
        data_bytes = self._drop_before_close(channel)
        was_full, held = channel.full, len(channel.held)
        try:
            while channel.held and data_bytes < GROUP_BYTES_MAX:
                operation = channel.held[0]
                if isinstance(operation, Append):
                    run = self._take_run(channel, operation, GROUP_BYTES_MAX - data_bytes)
                    self._append(channel, run)
                    durable = Durable(run[-1].generation, run[-1].last_index)
                    data_bytes += sum(append.data_bytes for append in run)
                    for _ in run:
                        channel.held.popleft()
                else:
                    self.sync()
                    durable = self._carry_out(channel, operation) or durable
                    channel.held.popleft()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            channel.full = True
            self._holding[channel.stream] = channel
        else:
            channel.full = False
            self._holding.pop(channel.stream, None)
            if channel.held:
                self._backlog[channel.stream] = channel
        operations = held - len(channel.held) if channel.stream in self._channels else 0
        return durable, channel.full if channel.full != was_full else None, data_bytes, operations

    def _drop_before_close(self, channel: _Channel) -> int:
        """A stream that is removed need not be written first, least of all to a full disk; returns the bytes spared."""
        close = channel.held[-1]
        if not isinstance(close, Close):
            return 0
        dropped = list(channel.held)
        channel.held.clear()
        channel.held.append(close)
        return sum(operation.data_bytes for operation in dropped if isinstance(operation, Append))

    def _take_run(self, channel: _Channel, first: Append, bytes_max: int) -> list[Append]:
        """The appends that follow each other in one segment: they become one write, of `bytes_max` if it can be."""
        run = [first]
        position, rows_position = first.position + first.data_bytes, first.rows_position + len(first.rows)
        for operation in islice(channel.held, 1, None):
            if not isinstance(operation, Append) or operation.segment is not first.segment:
                break
            if position - first.position + operation.data_bytes > bytes_max:
                break
            if operation.position != position or operation.rows_position != rows_position:
                break  # a truncation lies between them
            run.append(operation)
            position += operation.data_bytes
            rows_position += len(operation.rows)
        return run

    def _append(self, channel: _Channel, run: list[Append]) -> None:
        file = self._open_file(channel, run[0].segment)
        channel.dirty = True
        file.write_run(
            run[0].position,
            [buffer for append in run for buffer in append.data],
            run[0].rows_position,
            [append.rows for append in run],
            self._staging,
        )

    def _carry_out(self, channel: _Channel, operation: Operation) -> Durable | None:
        match operation:
            case Create(error=None):
                pass  # see `_create_streams`
            case Create(error=error):
                assert error is not None
                raise error
            case Begin(segment, then):
                self._begin(channel, segment)
                then()
            case Close(then):
                self._close(channel)
                then()
            case Settle(segment, count, chain):
                self._settle(channel, segment, count, chain)
            case WipeRows(segment, first, end, durable):
                self._wipe_rows(channel, segment, first, end)
                return durable
            case DropSuffix():
                self._drop_suffix(channel, operation)
                return operation.durable
            case SaveState(content, then, durable):
                self._sync(channel)  # the state must not know more of the log than the disk does
                if faults.ARMED:
                    faults.hit("state.before-replace")
                replace_file(self._disk, os.path.join(channel.folder, STATE_NAME), content)
                if faults.ARMED:
                    faults.hit("state.after-replace")
                then()
                return durable
            case Append():
                raise AssertionError("appends are carried out in runs")
        return None

    def _begin(self, channel: _Channel, segment: Segment) -> None:
        # A new segment's header says that the one before is complete, so that one goes to disk first.
        self._sync(channel)
        if faults.ARMED:
            faults.hit("segment.begin")
        file = create_segment_file(self._disk, channel.folder, segment, self._staging)
        if channel.file is not None:
            channel.file.close()
        channel.segment, channel.file, channel.dirty = segment, file, True

    def _settle(self, channel: _Channel, segment: Segment, count: int, chain: int) -> None:
        self._open_file(channel, segment).write_settled_mark(count, chain, self._staging)
        channel.dirty = True

    def _wipe_rows(self, channel: _Channel, segment: Segment, first: int, end: int) -> None:
        """A sync after each step: the mark must not outlive the rows it vouches for, nor the rows their batches."""
        file = self._open_file(channel, segment)
        file.take_settled_mark_back(self._staging)
        channel.dirty = True
        self._sync(channel)
        if faults.ARMED:
            faults.hit("segment.wipe-rows")
        file.wipe_rows(first, end, self._staging)
        channel.dirty = True
        self._sync(channel)

    def _drop_suffix(self, channel: _Channel, operation: DropSuffix) -> None:
        """Each step leaves a prefix of the old log, so a crash between two steps is one before the truncation."""
        self._housekeeper.finish(channel.folder)
        if channel.file is not None:
            self._sync(channel)
            channel.file.close()
            channel.file = channel.segment = None
        for segment in operation.removed:
            for name in (segment.active_name, segment.closed_name + LOG_SUFFIX, segment.closed_name + INDEX_SUFFIX):
                path = os.path.join(channel.folder, name)
                if self._disk.exists(path):
                    self._disk.remove(path)
            self._disk.sync_directory(channel.folder)
            if faults.ARMED:
                faults.hit("segment.drop-suffix")
        if operation.kept is not None:
            name = os.path.join(channel.folder, operation.kept.closed_name)
            replace_file(self._disk, name + INDEX_SUFFIX, operation.kept_index)
            cut_file(self._disk, name + LOG_SUFFIX, operation.kept_length)

    def _open_file(self, channel: _Channel, segment: Segment) -> SegmentFile:
        if channel.file is None:
            channel.file = open_segment_file(self._disk, channel.folder, segment)
            channel.segment = segment
        if channel.segment is not segment:
            raise StorageError(f"stream {channel.stream}: a write to {segment.active_name}, which is not the newest")
        return channel.file

    def _sync(self, channel: _Channel) -> None:
        if channel.dirty and channel.file is not None:
            try:
                channel.file.sync()
            except OSError as error:
                raise SyncFailedError(f"sync of stream {channel.stream}: {error}") from error
        channel.dirty = False

    def _close(self, channel: _Channel) -> None:
        if channel.file is not None:
            channel.file.close()
            channel.file = None
        del self._channels[channel.stream]
