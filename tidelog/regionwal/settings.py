"""How a region WAL behaves: where its log is, times, and the bound of everything that can grow."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tidelog.regionwal.errors import SettingsError

KIB = 1024
MIB = 1024 * KIB

PinnedCallback = Callable[[int, Sequence[int]], None]
"""Called with a region and the tables whose oldest entries hold up its cleaning, the worst first."""


@dataclass(frozen=True, slots=True)
class Settings:
    bootstrap: str
    """Where the log is: HOST:PORT, several separated by commas."""

    namespace: str = "wal"
    """First part of the topics' names; one cluster can serve several databases."""

    read_only: bool = False
    """Look at regions without opening them for writing: nothing is written and no other process is fenced."""

    replication_factor: int = 3
    """Of topics that are created; fewer when the cluster has fewer nodes."""

    write_timeout_s: float = 30.0
    """How long a write may take before it fails; what became of it is then found out by reading the log's tail."""

    read_timeout_s: float = 30.0
    """How long a read may wait for the log without getting anything."""

    open_timeout_s: float = 60.0
    """How long one step of opening a region (creating topics, writing an epoch record) may take."""

    entry_record_bytes_max: int = 900 * KIB
    """A longer entry is split into several records. Must be below the log's largest message (1 MiB unless changed)."""

    entry_bytes_max: int = 256 * MIB
    """A longer entry is refused."""

    write_queue_bytes_max: int = 64 * MIB
    """Entries that may wait for the log, over all regions; a write that would pass it waits for room."""

    clean_period_s: float = 60.0
    """How often the background cleaner looks at each open region; 0: never, `clean_region` is called by hand."""

    snapshot_records: int = 200_000
    """A snapshot is written when so many records came since the last one: the most that recovery has to read."""

    snapshot_bytes: int = 256 * MIB
    """The same, in bytes."""

    pinned_bytes_max: int = 1024 * MIB
    """When unflushed tables keep more than this in the log, `on_pinned` is told which."""

    on_pinned: PinnedCallback | None = None
    """Asked by the cleaner to flush tables; runs on the cleaner's thread, and should only start the flush."""

    replay_batch_entries: int = 500
    """Entries a replay handler gets at once, at most."""

    replay_queue_bytes_max: int = 64 * MIB
    """Entries that a replay may have read and not handed over yet."""

    threads: int = 4
    """Threads for what happens beside the callers: snapshots, resolving failed writes, and the async API's calls."""

    client: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """More options for every client of the log (librdkafka's names): security and the like."""

    def __post_init__(self) -> None:
        if not self.namespace or not all(c.isalnum() or c in "._-" for c in self.namespace):
            raise SettingsError(f"namespace={self.namespace!r} must be letters, digits, '.', '_' and '-' only")
        for name in ("write_timeout_s", "read_timeout_s", "open_timeout_s"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name}={getattr(self, name)} must be positive")
        for name in ("replication_factor", "threads", "snapshot_records", "snapshot_bytes", "replay_batch_entries"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name}={getattr(self, name)} must be at least 1")
        if not 1 <= self.entry_record_bytes_max <= self.entry_bytes_max:
            raise SettingsError(
                f"entry_record_bytes_max={self.entry_record_bytes_max} must be at least 1 and at most "
                f"entry_bytes_max={self.entry_bytes_max}"
            )
        if self.clean_period_s < 0:
            raise SettingsError(f"clean_period_s={self.clean_period_s} must be 0 (never) or more")
