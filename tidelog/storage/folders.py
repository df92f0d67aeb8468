"""The folders of one node, a disk each: every stream lies whole in one of them, with its votes.

Each folder is a `Store` of its own, with its own writer, syncer and housekeeper: group commit is a matter of one disk,
and a slow or full one holds up its own streams only. What is bounded for the node (tail cache, open files, bytes that
wait to be written) is shared, or divided.

* A new stream goes where it has the largest share of the free room: free bytes / (streams there + 1), full disks last.
  It stays there.
* The first folder is the node: its id is the one the cluster knows (docs/decisions/0014), and it lists the others by
  their ids. A folder that is missing, empty, or another node's keeps the node from starting: with it acknowledged
  records and votes would be forgotten. A node of which a disk is lost must lose all its folders; see decision 23.
* A folder that is added is made with the first one's id in it, then listed, and only then used.
* A stream in two folders is an error: nobody can say which one holds what was acknowledged.

A vote is kept where its stream is, or was to be made: of what several folders know of a stream, the newest counts.
"""

import os
import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace

from tidelog.storage.append_lane import AppendLane
from tidelog.storage.disk import Disk
from tidelog.storage.errors import StorageError
from tidelog.storage.hard_states import StoredVote
from tidelog.storage.node_file import NodeFile, read_node_file
from tidelog.storage.settings import StorageSettings
from tidelog.storage.store import Delivered, SharedMemory, Store
from tidelog.storage.stream_log import StreamLog
from tidelog.storage.transfer import Filling, Manifest

START_ANEW = "if its disk is lost, empty all folders of the node: it is filled again from the other nodes"


@dataclass(frozen=True, slots=True)
class Folder:
    """One of the node's folders, as it is now."""

    path: str
    streams: Set[int]


class Folders:
    def __init__(
        self, disk: Disk, directories: Sequence[str], settings: StorageSettings, rng: random.Random
    ) -> None:  # fmt: skip
        """Open all folders, making those that are new, and recover what they hold."""
        problems = folder_problems(directories, [read_node_file(disk, directory) for directory in directories])
        if problems:
            raise StorageError(problems[0])
        memory = SharedMemory.of(disk, settings)
        share = replace(settings, queue_bytes_max=max(1, settings.queue_bytes_max // len(directories)))
        self.stores: list[Store] = []
        try:
            for directory in directories:
                first = self.stores[0].directory_id if self.stores else ""
                self.stores.append(Store(disk, directory, share, rng, memory, first))
            self._list_folders()
            self._place_of = self._placed()
        except BaseException:
            self.close()
            raise
        self.streams: dict[int, StreamLog] = {
            stream: log for store in self.stores for stream, log in store.streams.items()
        }

    def _list_folders(self) -> None:
        """What is new is listed in the first folder, durably, before anything is put there."""
        first, *others = self.stores
        listed = {store.directory_id: store.directory for store in others}
        for store in others:
            if store.directory_id not in first.node_file.folders and store.streams:
                raise StorageError(
                    f"{store.directory} holds streams, and {first.directory} does not know of it: {first.directory} is "
                    f"an old copy, perhaps. Bring the newest one back; {START_ANEW}"
                )
        if listed != first.node_file.folders:
            first.remember(replace(first.node_file, folders=listed))

    def _placed(self) -> dict[int, Store]:
        placed: dict[int, Store] = {}
        for store in self.stores:
            for stream in store.streams:
                if stream in placed:
                    raise StorageError(two_places(stream, placed[stream].directory, store.directory))
                placed[stream] = store
        return placed

    # What the node is

    @property
    def directory_id(self) -> str:
        return self.stores[0].directory_id

    @property
    def cluster_id(self) -> str:
        return self.stores[0].cluster_id

    def remember_cluster(self, cluster_id: str) -> None:
        self.stores[0].remember_cluster(cluster_id)

    def set_on_report(self, on_report: Callable[[], None]) -> None:
        """Called by other threads when `deliver` has something to take."""
        for store in self.stores:
            store.on_report = on_report

    @property
    def folders(self) -> list[Folder]:
        return [Folder(store.directory, store.streams.keys()) for store in self.stores]

    # Streams: see `Store`

    def create_stream(
        self, stream: int, configuration: bytes, start_offset: int = 0, configuration_index: int = 0
    ) -> StreamLog:
        self._check_absent(stream)
        store = self._roomiest()
        log = store.create_stream(stream, configuration, start_offset, configuration_index)
        return self._added(store, log)

    @property
    def deleting(self) -> Set[int]:
        return set[int]().union(*(store.deleting for store in self.stores))

    @property
    def fillings(self) -> list[int]:
        return sorted({stream for store in self.stores for stream in store.fillings})

    def fill_stream(self, manifest: Manifest) -> Filling:
        """Goes on where it was begun."""
        self._check_absent(manifest.stream)
        begun = [store for store in self.stores if store.has_left(manifest.stream)]
        return (begun[0] if begun else self._roomiest()).fill_stream(manifest)

    def adopt_stream(self, filling: Filling) -> StreamLog:
        self._check_absent(filling.stream)
        store = next(store for store in self.stores if store.path_of(filling.stream) == filling.target)
        return self._added(store, store.adopt_stream(filling))

    def abandon_filling(self, stream: int) -> None:
        for store in self.stores:
            store.abandon_filling(stream)

    def delete_stream(self, stream: int) -> None:
        del self.streams[stream]
        self._place_of.pop(stream).delete_stream(stream)

    def vote(self, stream: int) -> StoredVote:
        """The newest that any folder knows: one that was cast before the stream's files were made may lie elsewhere."""
        return max((store.vote(stream) for store in self.stores), key=lambda vote: (vote.term, vote.vote is not None))

    def save_vote(self, stream: int, vote: StoredVote) -> None:
        self._place_of[stream].save_vote(stream, vote)

    @property
    def writing(self) -> bool:
        """Something was handed in and is not yet reported durable."""
        return any(store.writer.queued_bytes for store in self.stores)

    def open_lanes(self) -> list[AppendLane]:
        lanes = (store.open_lane() for store in self.stores)
        return [lane for lane in lanes if lane is not None]

    def set_on_waiting(self, on_waiting: Callable[[], None]) -> None:
        """Called when a lane should be started before long."""
        for store in self.stores:
            store.writer.on_waiting = on_waiting

    def deliver(self) -> Delivered:
        if len(self.stores) == 1:
            return self.stores[0].deliver()
        delivered = Delivered()
        for store in self.stores:
            found = store.deliver()
            delivered.logs += found.logs
            delivered.votes += found.votes
        return delivered

    def close(self) -> None:
        for store in self.stores:
            store.close()

    def _added(self, store: Store, log: StreamLog) -> StreamLog:
        self.streams[log.stream] = log
        self._place_of[log.stream] = store
        return log

    def _check_absent(self, stream: int) -> None:
        if stream in self.streams:
            raise StorageError(f"stream {stream} is there already")
        if stream in self.deleting:
            raise StorageError(f"stream {stream} is still being deleted: wait until `deleting` names it no more")

    def _roomiest(self) -> Store:
        return max(self.stores, key=lambda s: (not s.space.short, s.space.free_bytes / (len(s.streams) + 1)))


def two_places(stream: int, one: str, other: str) -> str:
    return (
        f"stream {stream} lies in {one}/streams and in {other}/streams: one of them is a copy. Move the copy away, or, "
        "if nobody knows which one it is, empty all folders of the node: it is filled again from the other nodes"
    )


def folder_problems(directories: Sequence[str], found: Sequence[NodeFile | None]) -> list[str]:
    """Why these cannot be the folders of one node, the first of them first; None: one that is yet to be made."""
    real = [os.path.realpath(directory) for directory in directories]
    if len(set(real)) != len(real):
        return [f"{', '.join(directories)}: a folder is named twice"]
    (first_path, *paths), (first, *others) = directories, found
    made = [(path, file) for path, file in zip(paths, others, strict=True) if file is not None]
    if first is None:
        return [
            f"{first_path} is empty, and {path} is a folder of a node: bring its first folder back, and name it first; "
            f"{START_ANEW}"
            for path, _ in made
        ]
    if first.first:
        named = [path for path, file in made if file.directory == first.first]
        told = named[0] if named else f"the one with the id {first.first}"
        return [f"{first_path} is not the first folder of its node: name {told} first"]
    problems: list[str] = []
    for path, file in made:
        if file.first != first.directory:
            problems.append(f"{path} is another node's, or a node of its own: take it off the list, or empty it")
    here = {file.directory for _, file in made}
    for folder, path in first.folders.items():
        if folder not in here:
            problems.append(
                f"the folder {path} (id {folder}) of this node is not there, or empty: mount it, and name it; "
                f"{START_ANEW}"
            )
    return problems
