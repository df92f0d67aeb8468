"""One Delta table in a folder of this machine: its files, and commits that replace some of them by others.

Data files are written here (Parquet), the log by delta-rs. A commit is atomic: it takes files out, puts files in, and
says how far its sources have come (Delta's application transactions), all or nothing. So the position is in the table
itself, and whoever goes on from it neither misses nor repeats anything.

A commit is refused when another writer was faster (`TableBusy`): what it replaces was computed from files that may no
longer be the table's. (A writer that has no such check, as Spark's MERGE, keeps the others out with `alone`.) Data
files are synced before the commit, the log's new file after it, so a power cut leaves one version or the other whole.
Files of a commit that never came are nobody's, until `vacuum` takes them away.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow makes its compute functions when it is loaded)

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tidelog.spark.errors import LogSourceError

FILE_BYTES_MAX = 256 << 20  # of rows in memory; more become several files
COMPACT_BYTES = 64 << 20  # of files that are put together
RETENTION_HOURS = 168  # files that readers of older versions may still want
LOCK_NAME = "_tidelog.lock"  # Delta leaves names that begin with `_` alone
COMPRESSION = "snappy"  # half of zstd's time, which a table that is rewritten all the time is worth

Partition = tuple[str, ...]
"""Values of the partition columns, in their order."""


Dead = Callable[[Partition, pa.Table], pa.ChunkedArray]
"""Which rows of a partition need not be kept: true or false for each."""


class TableError(LogSourceError):
    """A table that is not there, is another kind, or cannot be read."""


class TableBusy(TableError):
    """Another process has written to the table meanwhile."""


@dataclass(frozen=True, slots=True)
class DataFile:
    path: str  # below the table's folder
    size: int
    rows: int
    partition: Partition


class DeltaFolder:
    def __init__(self, folder: Path, table: DeltaTable) -> None:
        self.folder = folder
        self._table = table
        self._partition_by = tuple(table.metadata().partition_columns)
        self._alone = False

    @classmethod
    def open(cls, folder: Path) -> "DeltaFolder":
        folder = folder.absolute()
        try:
            return cls(folder, DeltaTable(str(folder)))
        except TableNotFoundError:
            raise TableError(f"{folder} holds no Delta table; build one with `tidelog table`") from None
        except DeltaError as error:
            raise TableError(f"{folder} cannot be read as a Delta table: {error}") from error

    @classmethod
    def exists(cls, folder: Path) -> bool:
        return folder.is_dir() and DeltaTable.is_deltatable(str(folder.absolute()))

    @classmethod
    def create(
        cls,
        folder: Path,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> "DeltaFolder":
        folder = folder.absolute()
        if folder.is_dir() and any(folder.iterdir()):
            raise TableError(f"{folder} is not empty and holds no Delta table: choose another folder")
        made = DeltaTable.create(
            str(folder),
            schema,
            partition_by=list(partition_by),
            configuration=dict(settings or {}),
            raise_if_key_not_exists=False,  # settings of ours are none of Delta's
        )
        found = cls(folder, made)
        found._sync_log()
        return found

    @property
    def settings(self) -> Mapping[str, str | None]:
        return self._table.metadata().configuration

    @property
    def version(self) -> int:
        return self._table.version()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    @property
    def delta(self) -> DeltaTable:
        return self._table

    def refresh(self) -> None:
        """See what others have committed."""
        self._table.update_incremental()

    def position(self, source: str) -> int | None:
        """What the last commit said of a source; None: it never said anything."""
        return self._table.transaction_version(source)

    def files(self) -> list[DataFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        partitions = [actions[f"partition.{name}"].to_pylist() for name in self._partition_by]
        values = zip(*partitions, strict=True) if partitions else ((),) * len(actions)
        return [
            DataFile(path, size, rows or 0, tuple(map(str, value)))
            for path, size, rows, value in zip(
                actions["path"].to_pylist(),
                actions["size_bytes"].to_pylist(),
                actions["num_records"].to_pylist(),
                values,
                strict=True,
            )
        ]

    def write(self, rows: pa.Table, partition: Partition = ()) -> list[DataFile]:
        """Files that are the table's only after a commit; durable when this returns."""
        names = zip(self._partition_by, partition, strict=True)
        below = "/".join(f"{name}={value}" for name, value in names)
        parts = -(-rows.nbytes // FILE_BYTES_MAX) if rows.nbytes > FILE_BYTES_MAX else 1
        share = -(-len(rows) // parts) if len(rows) else 0
        return [write_file(self.folder, rows.slice(number * share, share), below, partition) for number in range(parts)]

    def add_columns(self, schema: pa.Schema) -> None:
        """Columns at the end; null in all rows that there are. A version of its own."""
        with self._committing():
            self._table.alter.add_columns(
                DeltaSchema.from_arrow(schema).fields, commit_properties=CommitProperties(max_commit_retries=0)
            )
        self.refresh()
        self._sync_log()

    def commit(
        self,
        added: Iterable[DataFile],
        removed: Iterable[DataFile],
        positions: Mapping[str, int],
        *,
        change: bool = True,
    ) -> int:
        """One version of the table; its number. `change=False`: other files, the same rows."""
        now_ms = int(time.time() * 1000)
        actions: list[Any] = [
            RemoveAction(each.path, change, now_ms, each.size, self._values(each.partition)) for each in removed
        ]
        actions += [
            AddAction(
                each.path,
                each.size,
                self._values(each.partition),
                now_ms,
                change,
                json.dumps({"numRecords": each.rows}),
            )
            for each in added
        ]
        transactions = [Transaction(source, number) for source, number in positions.items()]
        with self.alone(), self._committing():
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._partition_by),
                commit_properties=CommitProperties(app_transactions=transactions, max_commit_retries=0),
            )
        self.refresh()
        self._sync_log()
        return self._table.version()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process of ours commits meanwhile; TableBusy when one does already."""
        if self._alone:
            yield
            return
        descriptor = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(descriptor, self.folder)
            self._alone = True
            yield
        finally:
            self._alone = False
            os.close(descriptor)  # which also unlocks

    @contextmanager
    def _committing(self) -> Iterator[None]:
        try:
            yield
        except CommitFailedError as error:
            raise TableBusy(f"{self.folder}: another process has written to the table meanwhile; try again") from error

    def _values(self, partition: Partition) -> dict[str, str | None]:
        return dict(zip(self._partition_by, partition, strict=True))

    def compact(self, dead: Dead | None = None) -> dict[str, int]:
        """One file instead of several small ones of a partition, without rows that are `dead`; one commit."""
        removed: list[DataFile] = []
        added: list[DataFile] = []
        gone = 0
        for partition, files in self._runs():
            if len(files) == 1 and dead is None:
                continue
            rows = pa.concat_tables(self.read(each) for each in files)
            left = rows if dead is None else rows.filter(pc.invert(dead(partition, rows)))
            if len(files) > 1 or len(left) < len(rows):
                gone += len(rows) - len(left)
                removed += files
                added += self.write(left, partition) if len(left) else []
        if removed:
            self.commit(added, removed, {}, change=gone > 0)
        return {"files_removed": len(removed), "files_added": len(added), "rows_dropped": gone}

    def _runs(self) -> Iterator[tuple[Partition, list[DataFile]]]:
        """Files of one partition, together of about `COMPACT_BYTES`; a larger one is alone."""
        partitions: dict[Partition, list[DataFile]] = {}
        for each in sorted(self.files(), key=lambda file: file.size):
            partitions.setdefault(each.partition, []).append(each)
        for partition, files in partitions.items():
            run: list[DataFile] = []
            size = 0
            for each in files:
                if run and size + each.size > COMPACT_BYTES:
                    yield partition, run
                    run, size = [], 0
                run.append(each)
                size += each.size
            yield partition, run

    def read(self, file: DataFile) -> pa.Table:
        """A file's rows, with nulls for columns that came later; without the partition's columns."""
        with pq.ParquetFile(self.folder / file.path) as opened:
            rows = opened.read(use_threads=False)
        fields = [field for field in self.schema if field.name not in self._partition_by]
        have = set(rows.column_names)
        columns = [rows[each.name] if each.name in have else pa.nulls(len(rows), each.type) for each in fields]
        return pa.table(columns, names=[each.name for each in fields]).cast(pa.schema(fields))

    def sync(self, files: Iterable[DataFile]) -> None:
        """Files that others have written, and the log behind them, onto stable storage."""
        for each in files:
            _sync(self.folder / each.path)
        self._sync_log()

    def vacuum(self, retention_hours: int = RETENTION_HOURS, *, dry_run: bool = False) -> list[str]:
        """Delete files that the table has not had for so long, and files of commits that never came."""
        return self._table.vacuum(retention_hours, dry_run=dry_run, enforce_retention_duration=False, full=True)

    def _sync_log(self) -> None:
        log = self.folder / "_delta_log"
        latest = log / f"{self._table.version():020}.json"
        if latest.exists():
            _sync(latest)
        _sync(log)


def write_file(folder: Path, rows: pa.Table, below: str = "", partition: Partition = ()) -> DataFile:
    """A data file, on stable storage, in a folder below the table's."""
    (folder / below).mkdir(parents=True, exist_ok=True)
    name = f"part-{uuid.uuid4()}.parquet"
    path = f"{below}/{name}" if below else name
    text = [field.name for field in rows.schema if pa.types.is_string(field.type)]
    ordered = [field.name for field in rows.schema if not pa.types.is_binary(field.type)]
    pq.write_table(
        rows,
        folder / path,
        compression=COMPRESSION,
        use_dictionary=text,  # pyright: ignore[reportArgumentType] - names are allowed
        write_statistics=ordered,  # pyright: ignore[reportArgumentType] - bounds of bytes in any order help nobody
    )
    _sync(folder / path)
    return DataFile(path, (folder / path).stat().st_size, len(rows), partition)


def _lock(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TableBusy(f"{folder}: another process is writing to the table; try again") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
