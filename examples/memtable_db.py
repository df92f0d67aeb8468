"""A database in one file: tables in memory, flushed to Parquet, made durable by a region WAL.

    python examples/memtable_db.py FOLDER --bootstrap 127.0.0.1:9092
    > create metrics
    ok
    > put metrics cpu 42
    ok 1
    > flush metrics
    ok 1 rows

The three rules that every database on such a log follows:

1. *Log first.* A row is in the WAL, on a majority of disks, before it is in memory and before the caller hears `ok`.
2. *Flush, then forget.* When a table's rows are safe in a file, and only then, their entries are marked as deletable.
3. *Replay what is younger than the files.* After a crash memory is the files' rows plus the log's entries after them.

Everything that is on disk is found by its name: table 3, called metrics, is the folder `3-metrics`, and the file
`17.parquet` in it holds what the table was up to entry 17 of its log. A file gets this name only when it is complete,
so there is no list of files that a crash could leave out of step with them. Values are text, `None` is a deleted row.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.regionwal import Entry, RegionWal, RegionWalError, Settings

REGION = 1  # one database, one region: all its tables share a log
REPLAY_TABLES_AT_ONCE = 4
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])

Rows = Mapping[str, str | None]


class Table:
    """Rows by key: the young ones in memory, the old ones in Parquet files, the youngest file first."""

    def __init__(self, folder: Path) -> None:
        number, self.name = folder.name.split("-", 1)
        self.id = int(number)
        self._folder = folder
        self._memory: dict[str, str | None] = {}
        self._files = sorted(folder.glob("*.parquet"), key=lambda path: int(path.stem), reverse=True)
        for leftover in folder.glob("*.tmp"):  # of a flush that did not come to its end
            leftover.unlink()

    @property
    def flushed(self) -> int:
        """The last entry of the log that the files hold; 0: none."""
        return int(self._files[0].stem) if self._files else 0

    def apply(self, rows: Rows) -> None:
        self._memory.update(rows)

    def replay(self, entries: Sequence[Entry]) -> None:
        """What the WAL still has, in order. Some of it may be in a file too: a mark is a permission, no command."""
        for entry in entries:
            if entry.sequence > self.flushed:
                self.apply(json.loads(entry.payload))

    def get(self, key: str) -> str | None:
        if key in self._memory:
            return self._memory[key]
        for path in self._files:
            if found := pq.read_table(path, filters=[("key", "=", key)]).to_pylist():
                return found[0]["value"]
        return None

    def rows(self) -> Iterator[tuple[str, str]]:
        """By key; the youngest word on a key counts."""
        found: dict[str, str | None] = {}
        for path in reversed(self._files):
            found.update((row["key"], row["value"]) for row in pq.read_table(path).to_pylist())
        found.update(self._memory)
        yield from sorted((key, value) for key, value in found.items() if value is not None)

    def flush(self, up_to: int) -> int:
        """Memory becomes the file that holds everything up to that entry; gives its number of rows."""
        rows = [{"key": key, "value": value} for key, value in sorted(self._memory.items())]
        unfinished, path = self._folder / f"{up_to}.tmp", self._folder / f"{up_to}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), unfinished)
        sync(unfinished)
        unfinished.rename(path)
        sync(self._folder)
        self._files.insert(0, path)
        self._memory.clear()
        return len(rows)


class Database:
    """Not for several threads at once; a second process that opens it takes it over from the first."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._tables = {table.name: table for table in map(Table, folder.glob("*-*"))}
        self._wal = RegionWal(settings)
        self._wal.open_region(REGION)
        handlers = {table.id: table.replay for table in self._tables.values()}
        outcome = self._wal.replay(REGION, handlers, parallel=REPLAY_TABLES_AT_ONCE)
        if outcome.failed:
            raise RuntimeError(f"tables {sorted(outcome.failed)} could not be replayed: {outcome.failed}")

    def create(self, name: str) -> None:
        if name in self._tables:
            return
        folder = self._folder / f"{1 + max((table.id for table in self._tables.values()), default=0)}-{name}"
        folder.mkdir()
        sync(self._folder)
        self._tables[name] = Table(folder)

    def put(self, name: str, rows: Rows) -> int:
        """All of them or none; durable when it returns. Gives the entry's sequence number."""
        table = self._tables[name]
        sequence = self._wal.write(REGION, table.id, [json.dumps(rows).encode()])
        table.apply(rows)
        return sequence

    def delete(self, name: str, key: str) -> int:
        return self.put(name, {key: None})

    def get(self, name: str, key: str) -> str | None:
        return self._tables[name].get(key)

    def rows(self, name: str) -> list[tuple[str, str]]:
        return list(self._tables[name].rows())

    def flush(self, name: str) -> int:
        """Rule 2. The file first: a crash in between costs a replay that changes nothing."""
        table = self._tables[name]
        up_to = self._wal.sequence_num(REGION, table.id)
        if up_to == table.flushed:
            return 0
        count = table.flush(up_to)
        self._wal.mark_delete(REGION, table.id, up_to)
        return count

    def clean(self) -> None:
        """What the WAL does by itself now and then: cut off the log's beginning that no table needs."""
        self._wal.clean_region(REGION)

    def close(self) -> None:
        self._wal.close()


def sync(path: Path) -> None:
    """Of a file its content, of a folder its names: they outlive a crash of the machine from here on."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- the prompt ------------------------------------------------------------------------------------------------------


def answer(database: Database, words: Sequence[str]) -> str:
    """What a line of input is answered with."""
    match words:
        case ["create", table]:
            database.create(table)
            return "ok"
        case ["put", table, *pairs] if pairs and len(pairs) % 2 == 0:
            return f"ok {database.put(table, dict(zip(pairs[::2], pairs[1::2], strict=True)))}"
        case ["delete", table, key]:
            return f"ok {database.delete(table, key)}"
        case ["get", table, key]:
            return str(database.get(table, key))
        case ["rows", table]:
            return json.dumps(database.rows(table))
        case ["flush", table]:
            return f"ok {database.flush(table)} rows"
        case ["clean"]:
            database.clean()
            return "ok"
        case _:
            return "create T | put T K V [K V …] | delete T K | get T K | rows T | flush T | clean"


def main() -> int:
    parser = argparse.ArgumentParser(description="A database on a region WAL; commands on stdin, answers on stdout.")
    parser.add_argument("folder", type=Path, help="where its Parquet files are")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092", help="a Tidelog or Kafka cluster")
    parser.add_argument("--namespace", default="memtable-db")
    options = parser.parse_args()
    try:
        database = Database(options.folder, Settings(bootstrap=options.bootstrap, namespace=options.namespace))
        print("ready", flush=True)
        for line in sys.stdin:
            try:
                print(answer(database, line.split()), flush=True)
            except KeyError as error:
                print(f"there is no table {error}: create it first", flush=True)
        database.close()
    except RegionWalError as error:
        print(f"memtable_db: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
