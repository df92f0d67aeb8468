"""The state table: what every key of a PikiwiDB source holds, as a Delta table that a batch of commands is folded into.

Rows lie in partitions of (database, bucket), a bucket being a hash of the key, so that a batch rewrites the files that
hold keys it names and no others, and a FLUSHDB reads nothing at all. A batch is one commit, which also has the position
it ends at; batches are given in order, and one that begins elsewhere than the table stands is refused.

Steps of a batch: find the named keys' rows (threads, one a bucket), fold (`fold.py`), write what stays of these files
together with the new rows (threads), commit. Whatever ends the process before the commit has changed nothing.

Cost: reading and writing the touched buckets, in Arrow; Python only for commands and the keys they name. When changes
are spread over all keys, that is the whole table: about half a CPU-second for a million small rows.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow makes its compute functions when it is loaded)

import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidelog.pikiwi.keyspace import Entry
from tidelog.pikiwi.position import Position
from tidelog.spark.tables.delta import FILE_BYTES_MAX, DataFile, DeltaFolder, Partition, TableBusy, TableError
from tidelog.spark.tables.fold import RULES, Command, Folded, FoldError, Rules, fold, touched
from tidelog.spark.tables.position import OFFSET_BITS, pack, unpack
from tidelog.spark.tables.rows import FILE_SCHEMA, PARTITION_FIELDS, STATE_SCHEMA, Rows, entries

BUCKETS_DEFAULT = 32
BUCKETS_MAX = 4096
THREADS = 4
HELD_BYTES_MAX = 512 << 20  # of untouched rows kept in memory between finding and writing; others are read again
CLOCK_BACK_MS_MAX = 10_000  # how far the time of a command may lie before that of the one before it
FILES_MAX = 8  # small files that a bucket may have before a batch puts them together

KIND, BUCKETS, MASTER = "tidelog.kind", "tidelog.buckets", "tidelog.master"
STATE = "state"


@dataclass(frozen=True, slots=True)
class Change:
    """What a batch did."""

    version: int
    commands: int
    keys: int
    rows: int


class StateTable:
    def __init__(self, delta: DeltaFolder) -> None:
        settings = delta.settings
        if settings.get(KIND) != STATE:
            raise TableError(f"{delta.folder} holds another table than a state table; choose another folder")
        self.delta = delta
        self.buckets = int(settings[BUCKETS] or 0)
        self.rules: Rules = RULES[settings[MASTER] or ""]

    @classmethod
    def open(cls, folder: Path) -> "StateTable":
        return cls(DeltaFolder.open(folder))

    @classmethod
    def create(cls, folder: Path, rules: Rules, buckets: int = BUCKETS_DEFAULT) -> "StateTable":
        if not 0 < buckets <= BUCKETS_MAX:
            raise TableError(f"{buckets} buckets; a table has 1 to {BUCKETS_MAX:,}")
        settings = {KIND: STATE, BUCKETS: str(buckets), MASTER: rules.name}
        names = [field.name for field in PARTITION_FIELDS]
        return cls(DeltaFolder.create(folder, STATE_SCHEMA, names, settings))

    # --- positions ---

    def position(self, source: str) -> Position | None:
        number = self.delta.position(source)
        return None if number is None else unpack(number)

    def clock_ms(self, db: str) -> int:
        """The time of the last command that was folded in since the last full sync; 0: none was."""
        return self.delta.position(_clock(db)) or 0

    def held(self, db: str, now_ms: int) -> Iterator[tuple[str, bytes, Entry]]:
        """Every key of a database that has not expired by then, with its type: for comparing, bucket by bucket."""
        for files in self._files(db).values():
            rows = pa.concat_tables(self.delta.read(each) for each in files)
            for data_type, key, entry in entries(rows):
                if not 0 < entry.expire_ms < now_ms:
                    yield data_type, key, entry

    # --- changes ---

    def apply(self, source: str, db: str, commands: pa.Table, start: Position, end: Position) -> Change:
        """Fold in the typed rows of one database between two positions, the first of which is the table's."""
        batch = self.batch(source, commands, start, end)
        named = self.by_bucket(touched(batch))
        files = self._files(db)
        with ThreadPoolExecutor(THREADS, "state-table") as threads:
            memory = _Memory()
            found: list[_Found] = []

            def state() -> Iterator[tuple[str, bytes, Entry]]:
                """Rows become entries here while the threads read the next ones."""
                for each in threads.map(lambda b: _find(self.delta.folder, files.get(b, ()), named[b], memory), named):
                    found.append(each)
                    yield from entries(each.rows)

            folded = self.fold(db, state(), batch, start)
            rows = self.rows(folded)
            if folded.flushed:
                removed = list(chain.from_iterable(files.values()))
                kept: dict[int, list[_Stay]] = {}
            else:
                kept = {bucket: each.stay for bucket, each in zip(named, found, strict=True)}
                removed = [stay.file for stays in kept.values() for stay in stays]
            due = sorted(bucket for bucket in rows.keys() | kept.keys() if bucket in rows or kept[bucket])
            added = list(threads.map(lambda b: self._write(db, b, kept.get(b, ()), rows.get(b)), due))
        positions = {source: pack(end), **self._clock_after(db, batch)}
        version = self.delta.commit(chain.from_iterable(added), removed, positions)
        return Change(version, len(batch), len(folded.touched), sum(map(len, rows.values())))

    def replace(self, source: str, db: str, files: Iterable[DataFile], position: Position) -> int:
        """These files instead of everything that the database holds: a full sync."""
        removed = [each for each in self.delta.files() if each.partition[0] == db]
        return self.delta.commit(files, removed, {source: pack(position), _clock(db): 0})

    def write(self, db: str, rows: Mapping[int, Rows]) -> list[DataFile]:
        """Rows of some buckets as files for `replace`."""
        with ThreadPoolExecutor(THREADS, "state-table") as threads:
            written = threads.map(lambda bucket: self._write(db, bucket, (), rows[bucket]), rows)
            return list(chain.from_iterable(written))

    def compact(self) -> dict[str, int]:
        """One file a bucket where there are several, without keys that had expired when the last command ran.

        The table's own clock decides, not today's: commands that are still to come may have run before. It may go
        back a little where another master takes over.
        """

        def expired(partition: Partition, rows: pa.Table) -> pa.ChunkedArray:
            return pc.fill_null(pc.less(rows["expire_at"], self.clock_ms(partition[0]) - CLOCK_BACK_MS_MAX), False)

        return self.delta.compact(expired)

    # --- parts of a batch, for any engine ---

    def batch(self, source: str, commands: pa.Table, start: Position, end: Position) -> list[Command]:
        """The typed rows as commands; TableBusy when the table does not stand where they begin."""
        if self.position(source) != start:
            raise TableBusy(f"{self.delta.folder} stands at {self.position(source)}, not at {start}: open it again")
        batch = _commands(commands)
        if batch:
            assert pack(start) < batch[0].version <= batch[-1].version <= pack(end), "rows of another batch"
        return batch

    def fold(
        self, db: str, state: Iterable[tuple[str, bytes, Entry]], batch: Sequence[Command], start: Position
    ) -> Folded:
        try:
            return fold(state, batch, self.rules)
        except FoldError as error:
            raise FoldError(
                f"{db}, {error}. The table stands at {start} and stays there; it can be built anew from a full sync"
            ) from error

    def note_clock(self, db: str, batch: Sequence[Command]) -> None:
        """The batch's time, for an engine that cannot commit it with the rows."""
        positions = self._clock_after(db, batch)
        if positions:
            self.delta.commit([], [], positions)

    def _clock_after(self, db: str, batch: Sequence[Command]) -> dict[str, int]:
        clock_ms = max((command.exec_ms for command in batch), default=0)
        return {_clock(db): clock_ms} if clock_ms > self.clock_ms(db) else {}

    def bucket(self, key: bytes) -> int:
        return zlib.crc32(key) % self.buckets

    def by_bucket(self, keys: Iterable[bytes]) -> dict[int, list[bytes]]:
        found: dict[int, list[bytes]] = {}
        for key in keys:
            found.setdefault(self.bucket(key), []).append(key)
        return found

    def _files(self, db: str) -> dict[int, list[DataFile]]:
        found: dict[int, list[DataFile]] = {}
        for each in self.delta.files():
            if each.partition[0] == db:
                found.setdefault(int(each.partition[1]), []).append(each)
        return found

    def rows(self, folded: Folded) -> dict[int, Rows]:
        """What stands in the place of the touched keys' rows."""
        rows: dict[int, Rows] = {}
        for data_type, key, entry, version in folded.held:
            bucket = self.bucket(key)
            held = rows.get(bucket)
            if held is None:
                held = rows[bucket] = Rows()
            held.put(data_type, key, entry, version)
        return rows

    def _write(self, db: str, bucket: int, kept: Sequence["_Stay"], rows: Rows | None) -> list[DataFile]:
        parts = [stay.rows if stay.rows is not None else stay.read(self.delta) for stay in kept]
        if rows is not None:
            parts.append(rows.table())
        whole = pa.concat_tables(parts)
        return self.delta.write(whole, (db, str(bucket))) if len(whole) else []


def _clock(db: str) -> str:
    return f"clock/{db}"


def _commands(rows: pa.Table) -> list[Command]:
    """Typed rows (`tidelog.spark.kernel.wal_rows`) in the binlog's order."""
    filenums, offsets, ops, arguments, times = (
        rows[name].to_pylist() for name in ("filenum", "offset", "op", "args", "exec_ms")
    )
    if filenums:
        pack(Position(max(filenums), max(offsets)))  # so that what follows cannot overflow
    versions = [filenum << OFFSET_BITS | offset for filenum, offset in zip(filenums, offsets, strict=True)]
    return list(map(Command, ops, arguments, times, versions))


# --- finding rows -----------------------------------------------------------------------------------------------------


class _Memory:
    """How much of what was read is kept, over all threads."""

    def __init__(self) -> None:
        self._left = HELD_BYTES_MAX
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True


@dataclass(frozen=True, slots=True)
class _Stay:
    """A file that is rewritten, and the rows of it that stay."""

    file: DataFile
    mask: pa.ChunkedArray
    rows: pa.Table | None  # None: there was no room

    def read(self, delta: DeltaFolder) -> pa.Table:
        return delta.read(self.file).filter(self.mask)


@dataclass(frozen=True, slots=True)
class _Found:
    rows: pa.Table
    stay: list[_Stay]


def _find(folder: Path, files: Sequence[DataFile], keys: Sequence[bytes], memory: _Memory) -> _Found:
    """The rows of these keys, and the files that hold them (and small ones, when there are too many)."""
    wanted = pa.array(keys, pa.binary())
    found = [FILE_SCHEMA.empty_table()]
    stay: list[_Stay] = []
    small = {each.path for each in files if each.size * 4 < FILE_BYTES_MAX}
    together = small if len(small) > FILES_MAX else set()
    for each in files:
        with pq.ParquetFile(folder / each.path) as file:
            column = file.read(["key"], use_threads=False)["key"]
            hit = pc.is_in(column, value_set=wanted)
            if not pc.any(hit).as_py() and each.path not in together:
                continue
            others = file.read([name for name in FILE_SCHEMA.names if name != "key"], use_threads=False)
        rows = others.add_column(0, FILE_SCHEMA.field("key"), column).cast(FILE_SCHEMA)
        found.append(rows.filter(hit))
        mask = pc.invert(hit)
        kept = rows.filter(mask)
        stay.append(_Stay(each, mask, kept if memory.take(kept.nbytes) else None))
    return _Found(pa.concat_tables(found), stay)
