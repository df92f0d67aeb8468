"""What a region WAL says about itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TableStatistics:
    table_id: int
    next_sequence: int
    marked_deleted: int
    """Every smaller sequence number may be deleted."""
    live_entries: int
    first_live_offset: int | None
    high_watermark: int
    map_runs: int


@dataclass(frozen=True, slots=True)
class RegionStatistics:
    region_id: int
    state: str
    epoch: int
    data_topic: str
    meta_topic: str
    earliest_offset: int
    next_offset: int
    safe_delete_offset: int
    pinned_records: int
    """Records that may not be deleted, with those of other tables that lie between them."""
    pinned_bytes: int
    pinned_by: int | None
    """The table with the oldest live entry: flushing it lets the log be cleaned."""
    map_bytes: int
    snapshot_serial: int
    snapshot_high_watermark: int
    records_after_snapshot: int
    """What a recovery would have to read now."""
    recovery_records_read: int
    recovery_bytes_read: int
    void_records: int
    writes_resolved: int
    """How often writes failed, or landed at an unexpected offset, and the log had to be read to know what became."""
    tables: tuple[TableStatistics, ...]


@dataclass(frozen=True, slots=True)
class Counters:
    writes: int = 0
    entries_written: int = 0
    bytes_written: int = 0
    entries_read: int = 0
    marks: int = 0
    snapshots: int = 0
    cleans: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    namespace: str
    regions: tuple[RegionStatistics, ...]
    counters: Counters


@dataclass(frozen=True, slots=True)
class CleanResult:
    region_id: int
    safe_delete_offset: int
    deleted_records: int
    snapshot_written: bool
    pinned_bytes: int
    asked_to_flush: tuple[int, ...]
    """The tables `on_pinned` was called with."""
