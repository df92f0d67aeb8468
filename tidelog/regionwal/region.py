"""One open region: its metadata in memory, and everything that can be done with it.

Three locks, always taken in this order: the snapshot lock (a snapshot is taken, written and followed by its deletions
before the next), the writer's order lock, and `_lock`, which guards the fold and is never held while the log is asked.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

from tidelog import faults
from tidelog.regionwal.errors import Fenced, ReadOnly, RegionWalError
from tidelog.regionwal.fold import EPOCH_SHIFT, DataFold
from tidelog.regionwal.log import Log
from tidelog.regionwal.meta import DROPPED, RegionMeta
from tidelog.regionwal.opening import Opened, Topics
from tidelog.regionwal.reading import SKIP_BYTES_MIN, Bound, Chunk, Cursor, Reader, ranges
from tidelog.regionwal.settings import Settings
from tidelog.regionwal.snapshot_format import Snapshot
from tidelog.regionwal.snapshots import SnapshotLog
from tidelog.regionwal.statistics import CleanResult, Counters, RegionStatistics, TableStatistics
from tidelog.regionwal.writer import Batch, RegionWriter, State, check_table

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """What the last snapshot in the meta topic says, as far as it matters here."""

    serial: int
    data_high_watermark: int
    total_bytes: int
    safe_delete_offset: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Saved":
        safe = RegionMeta(snapshot.tables).safe_delete_offset()
        return cls(snapshot.serial, snapshot.data_high_watermark, snapshot.total_bytes, safe)


class Region:
    def __init__(self, log: Log, topics: Topics, opened: Opened, settings: Settings, executor: Executor) -> None:
        self.topics = topics
        self._log = log
        self._settings = settings
        self._executor = executor
        self._lock = threading.Lock()
        self._fold = opened.fold
        self._opened = opened
        self._earliest = opened.earliest
        self._snapshots = SnapshotLog(log, topics.region, topics.meta, opened.meta_fold)
        self._saved = Saved.of(opened.meta_fold.snapshot or Snapshot())
        self._marks_saved = True  # no mark was made since the last snapshot
        self._saving = False  # a snapshot is asked for, because of what was written since the last
        self._counters = Counters()
        self._writer = RegionWriter(log, topics, opened.fold, self._lock, settings, executor, self._confirmed)

    # --- writing -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._writer.state

    def submit(self, batch: Batch) -> "Future[dict[int, int]]":
        self._refuse_when_read_only("written")
        future = self._writer.submit(batch)
        with self._lock:
            counted = self._counters
            self._counters = replace(
                counted,
                writes=counted.writes + 1,
                entries_written=counted.entries_written + sum(map(len, batch.values())),
                bytes_written=counted.bytes_written + sum(sum(map(len, payloads)) for payloads in batch.values()),
            )
        return future

    def _confirmed(self) -> None:
        """A write was confirmed: time for a snapshot?"""
        fold, saved = self._fold, self._saved
        due = (
            fold.next_offset - saved.data_high_watermark >= self._settings.snapshot_records
            or fold.meter.total_bytes - saved.total_bytes >= self._settings.snapshot_bytes
        )
        if due and not self._saving:
            self._saving = True
            with contextlib.suppress(RuntimeError):  # it is being closed, which writes a snapshot too
                self._executor.submit(self._save_because_due)

    def _save_because_due(self) -> None:
        try:
            self.save()
        except RegionWalError as error:
            logger.warning("region %d: no snapshot, it is tried again after more writes: %s", self.topics.region, error)
        finally:
            self._saving = False

    def sequence_num(self, table: int) -> int:
        """The last one given to an entry that is in the log; 0 when there is none."""
        if not self._settings.read_only:
            self._writer.wait_until_open(self._log.read_deadline())
        with self._lock:
            return self._fold.meta.next_seq_num(table) - 1

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, table: int, start: Bound, end: Bound) -> Iterator[Chunk]:
        """The live entries of one table between two sequence numbers, in chunks."""
        with self._lock:
            meta = self._fold.meta.table_metas.get(table)
            runs = [] if meta is None else list(meta.seq_offset_mapping.runs(start.as_start(), end.as_end()))
            skip = self._skip_records_min()
        reader = self._reader({table: Cursor(runs)})
        for low, high in ranges(runs, skip):
            yield from self._count(reader.read(low, high))

    def scan(self) -> Iterator[Chunk]:
        """All live entries, in the log's order, in chunks."""
        with self._lock:
            runs = {
                table: list(meta.seq_offset_mapping.runs())
                for table, meta in self._fold.meta.table_metas.items()
                if meta.seq_offset_mapping
            }
            end = self._fold.next_offset
        if runs:
            start = min(first[0].offset for first in runs.values())
            reader = self._reader({table: Cursor(those) for table, those in runs.items()})
            yield from self._count(reader.read(start, end))

    def _reader(self, cursors: dict[int, Cursor]) -> Reader:
        return Reader(self._log, self.topics.data, self.topics.region, cursors, self._marked)

    def _marked(self, table: int) -> int:
        with self._lock:
            meta = self._fold.meta.table_metas.get(table)
            return 0 if meta is None else meta.latest_marked_deleted

    def _skip_records_min(self) -> int:
        """Records that take about as long to read as a jump over them would."""
        fold = self._fold
        record_bytes = max(1, fold.meter.bytes_from(self._earliest) // max(1, fold.next_offset - self._earliest))
        return max(1, SKIP_BYTES_MIN // record_bytes)

    def _count(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            entries = sum(map(len, chunk))
            with self._lock:
                self._counters = replace(self._counters, entries_read=self._counters.entries_read + entries)
            yield chunk

    # --- deleting ----------------------------------------------------------------------------------------------------

    def mark_delete(self, table: int, up_to: int) -> None:
        self._refuse_when_read_only("marked")
        check_table(table)
        self._writer.wait_until_open(self._log.read_deadline())
        if faults.ARMED:
            faults.hit("regionwal.mark.before")
        with self._lock:
            changed = self._fold.meta.mark(table, up_to)
            if changed:
                self._marks_saved = False
                self._counters = replace(self._counters, marks=self._counters.marks + 1)
        if faults.ARMED:
            faults.hit("regionwal.mark.after")
        if changed and up_to == DROPPED:
            self.save()

    def save(self) -> bool:
        """Write a snapshot, if anything changed since the last one."""
        self._refuse_when_read_only("snapshotted")
        with self._snapshots.lock:
            return self._save()

    def _save(self) -> bool:
        with self._lock:
            if self._marks_saved and self._saved.data_high_watermark == self._fold.next_offset:
                return False
            snapshot = self._snapshot()
            self._marks_saved = True
        try:
            self._snapshots.write(snapshot)
        except BaseException as error:
            with self._lock:
                self._marks_saved = False
            if isinstance(error, Fenced):
                self._writer.fence(error)
            raise
        with self._lock:
            self._saved = Saved.of(snapshot)
            self._counters = replace(self._counters, snapshots=self._counters.snapshots + 1)
        try:
            self._snapshots.trim()
        except RegionWalError as error:
            logger.warning("region %d: old snapshots stay until the next one: %s", self.topics.region, error)
        return True

    def _snapshot(self) -> Snapshot:
        fold = self._fold
        return Snapshot(
            serial=self._snapshots.serial + 1,
            data_epoch=fold.epoch,
            data_high_watermark=fold.next_offset,
            tables=fold.meta.copy().table_metas,
            total_bytes=fold.meter.total_bytes,
            byte_marks=tuple(fold.meter.marks),
        )

    def clean(self) -> CleanResult:
        """Snapshot first, delete second: so nothing is deleted that a recovery would look for."""
        self._refuse_when_read_only("cleaned")
        self._writer.wait_until_open(self._log.read_deadline())
        with self._snapshots.lock:
            written = self._save()
            # As the last written snapshot says: marks made since then must not count yet.
            safe = self._saved.safe_delete_offset
            deleted = safe - self._earliest
            if deleted > 0:
                if faults.ARMED:
                    faults.hit("regionwal.clean.before-delete")
                self._log.delete_before(self.topics.data, safe)
                if faults.ARMED:
                    faults.hit("regionwal.clean.after-delete")
                with self._lock:
                    self._earliest = safe
                    self._fold.meter.drop_below(safe)
        asked = self._ask_to_flush()
        with self._lock:
            self._counters = replace(self._counters, cleans=self._counters.cleans + 1)
            pinned = self._fold.meter.bytes_from(self._fold.meta.safe_delete_offset())
        return CleanResult(self.topics.region, safe, max(0, deleted), written, pinned, asked)

    def _ask_to_flush(self) -> tuple[int, ...]:
        callback, limit = self._settings.on_pinned, self._settings.pinned_bytes_max
        with self._lock:
            tables = pinning_tables(self._fold, limit)
        if not tables or callback is None:
            return ()
        logger.warning("region %d: more than %d bytes are pinned by %d tables", self.topics.region, limit, len(tables))
        try:
            callback(self.topics.region, tables)
        except Exception:
            logger.exception("region %d: on_pinned failed", self.topics.region)
        return tuple(tables)

    # --- the rest ----------------------------------------------------------------------------------------------------

    def statistics(self) -> RegionStatistics:
        with self._lock:
            fold, saved = self._fold, self._saved
            safe = fold.meta.safe_delete_offset()
            oldest = fold.meta.tables_below(safe + 1)
            pinned = fold.next_offset - safe if oldest else 0
            return RegionStatistics(
                region_id=self.topics.region,
                state="read-only" if self._settings.read_only else self._writer.state.value,
                epoch=fold.epoch >> EPOCH_SHIFT,
                data_topic=self.topics.data,
                meta_topic=self.topics.meta,
                earliest_offset=self._earliest,
                next_offset=fold.next_offset,
                safe_delete_offset=safe,
                pinned_records=pinned,
                pinned_bytes=fold.meter.bytes_from(safe) if oldest else 0,
                pinned_by=oldest[0] if oldest else None,
                map_bytes=sum(meta.seq_offset_mapping.memory_bytes for meta in fold.meta.table_metas.values()),
                snapshot_serial=saved.serial,
                snapshot_high_watermark=saved.data_high_watermark,
                records_after_snapshot=fold.next_offset - saved.data_high_watermark,
                recovery_records_read=self._opened.records_read,
                recovery_bytes_read=self._opened.bytes_read,
                void_records=fold.void_records,
                writes_resolved=self._writer.resolved,
                tables=tuple(_table_statistics(fold, table) for table in sorted(fold.meta.table_metas)),
            )

    @property
    def counters(self) -> Counters:
        return self._counters

    def close(self) -> None:
        """Wait for writes under way, and write a snapshot: opening the region again then reads next to nothing."""
        if self._settings.read_only:
            return
        try:
            self._writer.wait_until_open(time.monotonic() + self._settings.write_timeout_s)
            usable = True
        except RegionWalError:  # broken or fenced: the log knows better than we do
            usable = False
        self._writer.close(time.monotonic() + 2 * self._settings.write_timeout_s)
        if usable:
            if faults.ARMED:
                faults.hit("regionwal.close.before-snapshot")
            try:
                self.save()
            except RegionWalError as error:
                logger.warning("region %d is closed without a snapshot: %s", self.topics.region, error)

    def _refuse_when_read_only(self, what: str) -> None:
        if self._settings.read_only:
            raise ReadOnly(f"region {self.topics.region} cannot be {what}: the WAL was opened to read only")


def pinning_tables(fold: DataFold, limit_bytes: int) -> list[int]:
    """The tables to flush so that at most so many bytes stay pinned, the oldest first."""
    tables = fold.meta.tables_below(fold.next_offset)
    needed: list[int] = []
    for table in tables:
        first = fold.meta.table_metas[table].safe_delete_offset
        assert first is not None
        if fold.meter.bytes_from(first) <= limit_bytes:
            break
        needed.append(table)
    return needed


def _table_statistics(fold: DataFold, table: int) -> TableStatistics:
    meta = fold.meta.table_metas[table]
    return TableStatistics(
        table_id=table,
        next_sequence=meta.next_seq_num,
        marked_deleted=meta.latest_marked_deleted,
        live_entries=len(meta.seq_offset_mapping),
        first_live_offset=meta.safe_delete_offset,
        high_watermark=meta.current_high_watermark,
        map_runs=meta.seq_offset_mapping.run_count,
    )
