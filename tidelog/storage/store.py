"""One data directory: the logs and votes of its streams, and the writer that serves them all.

    <directory>/
      lock                    held by the process that works here
      node.json               format version, the directory's own id, whose it is (see `node_file`)
      votes                   terms and votes (see `hard_states`)
      pool/                   files waiting to be reused (see `pool`)
      streams/<number>/       one folder a stream: stream.json and its segments
      filling/<number>/       streams that are being filled from another replica (see `transfer`)

Several threads meet here, and only here. The loop owns the store and its logs; where appends can take the short way
(`open_lane`), it starts what waits there. The writer's two threads call `run_write` and `run_sync`, the
housekeeper's calls `run_housekeeping`; all leave their results in queues that the loop empties with `deliver`. A
simulator calls them in turn.

A node has one of these for each of its folders (see `folders`).
"""

import os
import random
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from tidelog.storage.append_lane import AppendLane
from tidelog.storage.disk import Disk, File, open_whole, open_writes, run_together
from tidelog.storage.errors import DirectoryLockedError, StorageError
from tidelog.storage.hard_states import HardStates, StoredVote
from tidelog.storage.housekeeping import Housekeeper
from tidelog.storage.node_file import NodeFile, read_node_file, write_node_file
from tidelog.storage.pool import POOL_TASKS, FilePool
from tidelog.storage.readers import SegmentReaders
from tidelog.storage.recovery import recover_stream
from tidelog.storage.settings import StorageSettings
from tidelog.storage.space import Space
from tidelog.storage.spare import SpareMaker
from tidelog.storage.stream_log import RecoveredLog, StreamLog, Surroundings
from tidelog.storage.stream_state import STATE_NAME, Floor, StreamState
from tidelog.storage.tail_cache import TailCache
from tidelog.storage.transfer import Filling, Manifest
from tidelog.storage.writer import GroupCommitWriter

MEASURE_BYTES = 1 << 20  # that are written between two looks at the disk's room
NO_VOTE_YET = StoredVote(0, None)


@dataclass(slots=True)
class Delivered:
    """What has become durable since the last call."""

    logs: list[StreamLog] = field(default_factory=list[StreamLog])  # their durable_index has moved
    votes: list[tuple[int, StoredVote]] = field(default_factory=list[tuple[int, StoredVote]])


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What the folders of a node have in common: memory is the node's, not a disk's."""

    cache: TailCache
    readers: SegmentReaders

    @staticmethod
    def of(disk: Disk, settings: StorageSettings) -> "SharedMemory":
        return SharedMemory(TailCache(settings.tail_cache_bytes), SegmentReaders(disk, settings.readers_max))


class Store:
    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: StorageSettings,
        rng: random.Random,
        memory: SharedMemory | None = None,
        first: str = "",
    ) -> None:
        """Open the directory, making it when it is empty, and recover what it holds.

        `first` is the id of the node's first folder, if this is another one that may have to be made.
        """
        self._disk = disk
        self.directory = directory
        self._memory = memory or SharedMemory.of(disk, settings)
        self._first = first
        self._rng = rng
        self._callbacks: deque[Callable[[], None]] = deque()
        disk.make_directory(directory)
        self._lock = _lock(disk, directory)
        try:
            self._open(settings)
        except BaseException:
            self._lock.close()
            raise

    def _open(self, settings: StorageSettings) -> None:
        disk, directory = self._disk, self.directory
        found = read_node_file(disk, directory)
        self._hard_states = HardStates(disk, directory, new=found is None)
        self.node_file = self._identified(found)
        self._votes = self._hard_states.states()
        self.housekeeper = Housekeeper()
        whole = open_whole(disk, directory)
        self.writer = GroupCommitWriter(disk, self._hard_states, self.housekeeper, settings.staging_bytes, whole)
        self.on_report: Callable[[], None] = lambda: (
            None
        )  # called by other threads when `deliver` has something to take
        self._pool = FilePool(disk, os.path.join(directory, "pool"), settings.pool_files_max)
        self.space = Space(disk, directory, settings.reserve_bytes)
        self._unmeasured_bytes = 0  # written since the disk's room was looked at
        self._pool_wanted = False  # its files are about to be given back to the full disk
        self._around = Surroundings(
            disk=disk,
            writer=self.writer,
            housekeeper=self.housekeeper,
            pool=self._pool,
            readers=self._memory.readers,
            cache=self._memory.cache,
            spares=SpareMaker(disk, self._pool, self.housekeeper, self.space, settings.shape, self._run_on_loop),
            shape=settings.shape,
            space=self.space,
            queue_bytes_max=settings.queue_bytes_max,
            rng=self._rng,
            on_loop=self._run_on_loop,
        )
        self.streams: dict[int, StreamLog] = {}
        self.deleting: set[int] = set()  # streams whose files are not all gone yet
        self._streams_folder = os.path.join(directory, "streams")
        self._filling_folder = os.path.join(directory, "filling")
        disk.make_directory(self._streams_folder)
        disk.make_directory(self._filling_folder)
        disk.sync_directory(directory)  # what is found may have been named by a killed process that never synced it
        disk.sync_directory(self._streams_folder)
        self._recover_streams()

    def _recover_streams(self) -> None:
        names = [name for name in self._disk.list_directory(self._streams_folder) if name.isdecimal()]  # else not ours
        found: dict[str, RecoveredLog] = {}

        def recover(name: str) -> None:
            folder = os.path.join(self._streams_folder, name)
            if self._disk.exists(os.path.join(folder, STATE_NAME)):
                found[name] = recover_stream(self._disk, folder, self._around.shape)
            else:  # creating or deleting it did not finish
                _remove_folder(self._disk, folder)

        run_together(self._disk, [partial(recover, name) for name in names])
        for name, recovered in sorted(found.items()):
            folder = os.path.join(self._streams_folder, name)
            if recovered.state.stream != int(name):
                raise StorageError(f"{folder} holds stream {recovered.state.stream}: give it that name again")
            self.streams[int(name)] = StreamLog(folder, recovered, self._around)

    # The loop's side.

    @property
    def directory_id(self) -> str:
        return self.node_file.directory

    @property
    def cluster_id(self) -> str:
        return self.node_file.cluster

    def remember_cluster(self, cluster_id: str) -> None:
        """The cluster that this directory belongs to, from now on and for ever."""
        self.remember(replace(self.node_file, cluster=cluster_id))

    def remember(self, node_file: NodeFile) -> None:
        write_node_file(self._disk, self.directory, node_file)
        self.node_file = node_file

    def _identified(self, found: NodeFile | None) -> NodeFile:
        """The directory's id is drawn when it is made: another one is another disk."""
        if found is not None and found.directory:
            return found
        drawn = NodeFile(f"{self._rng.getrandbits(128):032x}", first=self._first)
        write_node_file(self._disk, self.directory, drawn)
        return drawn

    def create_stream(
        self, stream: int, configuration: bytes, start_offset: int = 0, configuration_index: int = 0
    ) -> StreamLog:
        """A new, empty log whose first record gets `start_offset`. The writer makes its files before all else.

        `configuration` is the membership that its first entries are replicated under. A crash before its files are
        durable leaves no stream; nothing of it was reported durable then but perhaps a vote, which is kept elsewhere
        and counts again when the stream is created again.
        """
        self._check_absent(stream)
        state = StreamState(
            stream=stream,
            uuid=self._draw_uuid(),
            era=0,
            floor=Floor(0, 0, start_offset),
            start_offset=start_offset,
            configuration_index=configuration_index,
            configuration=configuration,
        )
        log = StreamLog(self.path_of(stream), RecoveredLog(state, [], None, 0, [], 0, None), self._around, new=True)
        self.streams[stream] = log
        return log

    @property
    def fillings(self) -> list[int]:
        """Streams of which something was filled and not adopted, perhaps by an earlier process."""
        return sorted(int(name) for name in self._disk.list_directory(self._filling_folder) if name.isdecimal())

    def has_left(self, stream: int) -> bool:
        """Whether a part of a stream that is not here is: begun to be filled, or filled and not adopted."""
        folders = (os.path.join(self._filling_folder, str(stream)), self.path_of(stream))
        return stream not in self.streams and any(map(self._disk.exists, folders))

    def fill_stream(self, manifest: Manifest) -> Filling:
        """A filling of this stream, which goes on with what is there of it. Its calls belong in another thread."""
        self._check_absent(manifest.stream)
        if self._disk.exists(self.path_of(manifest.stream)):  # it was filled and finished once, but not wanted then
            self.deleting.add(manifest.stream)
            self._remove_later(manifest.stream)
            self._check_absent(manifest.stream)
        folder = os.path.join(self._filling_folder, str(manifest.stream))
        target, shape = self.path_of(manifest.stream), self._around.shape
        return Filling(self._disk, folder, target, manifest, shape, self._draw_uuid())

    def adopt_stream(self, filling: Filling) -> StreamLog:
        """The log of a stream that was filled and finished."""
        self._check_absent(filling.stream)
        if filling.recovered is None:
            raise StorageError(f"stream {filling.stream} is not filled yet")
        log = StreamLog(self.path_of(filling.stream), filling.recovered, self._around)
        self.streams[filling.stream] = log
        return log

    def abandon_filling(self, stream: int) -> None:
        """Remove what was filled; nobody may work on it any more."""
        folder = os.path.join(self._filling_folder, str(stream))
        if self._disk.exists(folder):
            self.housekeeper.submit(folder, lambda: _remove_folder(self._disk, folder))

    def _check_absent(self, stream: int) -> None:
        if stream in self.streams:
            raise StorageError(f"stream {stream} is there already")
        if stream in self.deleting:
            raise StorageError(f"stream {stream} is still being deleted: wait until `deleting` names it no more")

    def _draw_uuid(self) -> bytes:
        return uuid.UUID(int=self._rng.getrandbits(128)).bytes

    def delete_stream(self, stream: int) -> None:
        def forget() -> None:
            self._hard_states.forget(stream)
            self._remove_later(stream)

        self.deleting.add(stream)
        self.streams.pop(stream).remove(forget)
        self._votes.pop(stream, None)

    def _remove_later(self, stream: int) -> None:
        folder = self.path_of(stream)

        def remove() -> None:
            _remove_folder(self._disk, folder)
            self._run_on_loop(lambda: self.deleting.discard(stream))

        self.housekeeper.submit_last(folder, remove)

    def vote(self, stream: int) -> StoredVote:
        """Term and vote as they were durable when the store was opened or last reported."""
        return self._votes.get(stream, NO_VOTE_YET)

    def save_vote(self, stream: int, vote: StoredVote) -> None:
        self.writer.submit_vote(stream, vote)

    def open_lane(self) -> AppendLane | None:
        """Let appends take the short way to the disk, where there is one. Before the writer's threads begin."""
        writes = open_writes(self._disk, self.directory)
        return None if writes is None else self.writer.use_lane(writes)

    def deliver(self) -> Delivered:
        """Take in what the disk and the other threads have done."""
        delivered = Delivered()
        if not self.writer.has_reports and not self._callbacks:
            return delivered
        for completion in self.writer.take_reports():
            self._unmeasured_bytes += completion.data_bytes
            log = self.streams.get(completion.stream)
            if log is None:
                continue  # deleted meanwhile
            if completion.vote is not None:
                self._votes[completion.stream] = completion.vote
                delivered.votes.append((completion.stream, completion.vote))
            if log.deliver(completion):
                delivered.logs.append(log)
        while self._callbacks:
            self._callbacks.popleft()()
        if self._unmeasured_bytes > MEASURE_BYTES:
            self._unmeasured_bytes = 0
            self.mind_space()
            if self.space.short:
                self.writer.wake()  # its thread looks from time to time whether there is room again
        return delivered

    def close(self) -> None:
        """Let go of the directory. What waits to be written is not: run the writer first for a clean stop."""
        self._memory.readers.clear()
        self.writer.close()
        self._lock.close()

    # The other threads' side.

    def run_write(self) -> None:
        """Write everything that waits."""
        self.writer.write()
        self.mind_space()
        if self.writer.has_reports:  # votes, which are durable already; the sync that follows reports the rest
            self.on_report()

    def run_sync(self) -> None:
        """Make everything written durable."""
        self.writer.sync()
        self.on_report()

    def run_writer(self) -> None:
        """One whole group commit."""
        self.run_write()
        self.run_sync()

    def run_housekeeping(self) -> bool:
        """One task; false when there is none, or none that the full disk has room for."""
        return self.housekeeper.run_next()

    def mind_space(self) -> None:
        """See how full the disk is, and give files that are kept for reuse back when room is wanted."""
        self.space.measure()
        if (self.writer.has_held_work or self.space.short) and len(self._pool) and not self._pool_wanted:
            self._pool_wanted = True
            self.housekeeper.submit(POOL_TASKS, self._empty_pool)

    def _empty_pool(self) -> None:
        self._pool_wanted = False
        self._pool.clear()

    def _run_on_loop(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)
        self.on_report()

    def path_of(self, stream: int) -> str:
        return os.path.join(self._streams_folder, str(stream))


def _lock(disk: Disk, directory: str) -> File:
    try:
        return disk.lock(os.path.join(directory, "lock"))
    except BlockingIOError:
        raise DirectoryLockedError(f"{directory} is in use by another process: stop that one first") from None


def _remove_folder(disk: Disk, folder: str) -> None:
    """Remove a stream's folder, its state file first: without that one the rest is known to be a leftover."""
    if not disk.exists(folder):
        return  # it was removed before it was made
    names = disk.list_directory(folder)
    for name in sorted(names, key=lambda name: name != STATE_NAME):
        disk.remove(os.path.join(folder, name))
        if name == STATE_NAME:
            disk.sync_directory(folder)
    disk.remove_directory(folder)
    disk.sync_directory(os.path.dirname(folder))
