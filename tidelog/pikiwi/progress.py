"""What a receiver tells about itself while it works: one object that it writes and others read.

The receiver calls the verbs below as things happen; the status document, the metrics and the progress line are views of
the same numbers (`status.py`, `metrics.py`, `tidelog pikiwi receive`). Everything is plain assignment on the receiver's
event loop: no locks, no I/O, no clock. The costs are per message, never per item.

How far behind the master a database is:

* **in bytes**: from what is durable here to the end of the master's binlog, as far as the master has told it. TrySync's
  answer tells it at the start of a session, every item moves it on, and a keepalive says that there is nothing more (a
  master sends one only when all it has was sent and acknowledged). Between two file numbers the length of a whole file
  is counted for each: the longest that was seen to end, or `binlog_file_bytes` before any was.
* **in seconds**: 0 when the last news was that there is nothing more, else the age of the newest durable item by the
  master's clock (its exec_time, whole seconds) against ours. None while nothing is durable yet.
"""

from dataclasses import dataclass, field
from typing import Literal

from tidelog.pikiwi.position import Position

BINLOG_FILE_BYTES = 100 << 20  # the master's default `binlog-file-size`

LinkState = Literal["starting", "connecting", "handshake", "connected", "waiting", "stopping", "stopped"]
DatabaseState = Literal["waiting", "trying", "full sync", "streaming", "paused", "stopped"]
SnapshotState = Literal["none", "saving", "fetching", "ready", "running", "done"]


@dataclass(slots=True)
class SnapshotProgress:
    """Fetching one dump. Totals are 0 while unknown: rsync2 tells names, not sizes, so `bytes_total` may stay 0."""

    state: SnapshotState = "none"
    uuid: str = ""
    position: Position | None = None  # the binlog goes on from here
    files_done: int = 0
    files_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0

    def saving(self) -> None:
        """The master was asked for a dump and works on it."""
        self.state, self.files_done, self.files_total, self.bytes_done, self.bytes_total = "saving", 0, 0, 0, 0
        self.position, self.uuid = None, ""

    def fetching(self, uuid: str, files_total: int, bytes_total: int = 0) -> None:
        """The dump's list of files is known."""
        self.state, self.uuid, self.files_total, self.bytes_total = "fetching", uuid, files_total, bytes_total
        self.files_done = self.bytes_done = 0

    def begins_at(self, position: Position) -> None:
        """The dump's `info` is here."""
        self.position = position

    def fetched(self, byte_count: int, files: int = 0) -> None:
        self.bytes_done += byte_count
        self.files_done += files

    def ready(self) -> None:
        """All of it is here and durable."""
        self.state = "ready"


@dataclass(slots=True)
class DatabaseProgress:
    """One database. Positions are ends of items; None: nothing yet."""

    name: str
    state: DatabaseState = "waiting"
    session_id: int | None = None
    master_end: Position | None = None
    received: Position | None = None
    durable: Position | None = None
    durable_seq: int = 0
    acknowledged: Position | None = None  # told to the master
    items: int = 0  # received since the start of the process
    item_bytes: int = 0
    syncs: int = 0
    sync_s: float = 0.0  # spent in syncs, since the start of the process
    keepalives: int = 0
    full_syncs: int = 0
    exec_time: int | None = None  # of the newest durable item, unix seconds by the master's clock
    caught_up: bool = False
    wal_bytes: int = 0
    wal_first: Position | None = None
    binlog_file_bytes: int = BINLOG_FILE_BYTES
    snapshot: SnapshotProgress = field(default_factory=SnapshotProgress)

    def opened(self, position: Position | None, seq: int) -> None:
        """The WAL as it was found: durable up to here; None: it was never begun."""
        self.durable = self.received = position
        self.durable_seq = seq

    def session(self, session_id: int, at: Position, master_end: Position | None) -> None:
        """TrySync was answered kOk: the flow begins at `at`."""
        self.state, self.session_id = "streaming", session_id
        self.master_end = master_end
        self.caught_up = master_end is None or at >= master_end

    def got(self, last: Position, items: int, item_bytes: int) -> None:
        """A message with items arrived; `last` is the end of its last one. Nothing of it is durable yet."""
        self.received = last
        self.items += items
        self.item_bytes += item_bytes
        self.caught_up = False
        if self.master_end is None or last > self.master_end:
            self.master_end = last

    def rolled(self, file_end_offset: int) -> None:
        """An item was the first of a new file; the file before ended at `file_end_offset`."""
        if file_end_offset > self.binlog_file_bytes or self.binlog_file_bytes == BINLOG_FILE_BYTES:
            self.binlog_file_bytes = file_end_offset

    def synced(self, position: Position, seq: int, exec_time: int, seconds: float) -> None:
        """The WAL is durable up to here; `exec_time` is that of its last item."""
        self.durable, self.durable_seq, self.exec_time = position, seq, exec_time
        self.syncs += 1
        self.sync_s += seconds

    def told_master(self, position: Position) -> None:
        """The master was told that everything up to here is durable."""
        self.acknowledged = position

    def keepalive(self) -> None:
        """The master has nothing more for us."""
        self.keepalives += 1
        self.caught_up = True
        if self.received is not None:
            self.master_end = self.received

    def wal(self, first: Position | None, size_bytes: int) -> None:
        self.wal_first, self.wal_bytes = first, size_bytes

    def full_sync(self) -> None:
        """DBSync was asked for; `snapshot` tells the rest."""
        self.state = "full sync"
        self.full_syncs += 1
        self.caught_up = False
        self.snapshot.saving()

    @property
    def lag_bytes(self) -> int | None:
        """None while the master has not told its end."""
        if self.master_end is None:
            return None
        if self.durable is None:
            return None if not self.caught_up else 0
        return distance_bytes(self.durable, self.master_end, self.binlog_file_bytes)

    def lag_s(self, now_s: float) -> float | None:
        if self.caught_up:
            return 0.0
        return None if self.exec_time is None else max(0.0, now_s - self.exec_time)


@dataclass(slots=True)
class Progress:
    """The whole receiver."""

    source_id: str
    state: LinkState = "starting"
    detail: str = ""  # why it waits, in words
    replication_id: str = ""
    connections: int = 0
    disconnects: int = 0
    databases: dict[str, DatabaseProgress] = field(default_factory=dict)

    def database(self, name: str) -> DatabaseProgress:
        """Made when it is first asked for."""
        return self.databases.setdefault(name, DatabaseProgress(name))

    def link(self, state: LinkState, detail: str = "") -> None:
        if state == "connected" and self.state != "connected":
            self.connections += 1
        self.state, self.detail = state, detail

    def lost(self, why: str) -> None:
        """The connection ended; sessions ended with it."""
        self.disconnects += 1
        self.link("waiting", why)
        for database in self.databases.values():
            database.session_id = None
            database.caught_up = False
            if database.state == "streaming":
                database.state = "waiting"


def distance_bytes(start: Position, end: Position, file_bytes: int) -> int:
    """Bytes of binlog between two positions, a whole file counted as `file_bytes`; 0 when `end` is not the later."""
    if end <= start:
        return 0
    return max(0, (end.filenum - start.filenum) * file_bytes + end.offset - start.offset)
