"""A dump into the state table: rows of all its keys, written range by range, and one commit that makes them the table.

Until the commit readers see the table as it was before; with the commit everything that the database held is replaced.
What has been written so far is noted range by range in `_load/`, beside the table's files (Delta leaves names that
begin with `_` alone), so a load that was stopped goes on behind the last whole range.

No key is left out because it has expired meanwhile: items of the binlog that are still to come ran before now, perhaps
before its end, and the fold lets keys expire by their clock.

Cost: that of reading the dump, and about a microsecond a row; memory for `HELD_BYTES_MAX` of rows.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from tidelog.pikiwi.dump import DumpInfo, DumpRange, plan, read_keys
from tidelog.pikiwi.dump.layouts import layout_of
from tidelog.pikiwi.dump.received import STATE_NAME, require_complete
from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.disk import make_folder, replace_file
from tidelog.spark.tables.delta import DataFile, TableError
from tidelog.spark.tables.fold import Rules
from tidelog.spark.tables.position import pack
from tidelog.spark.tables.rows import Rows
from tidelog.spark.tables.state import StateTable

RANGES = 16  # of a dump; a stopped load repeats one at most
HELD_BYTES_MAX = 64 << 20
NOTES = "_load"
_MASTER_OF_LAYOUT = {"floyd": "4", "blackwidow": "3.5"}

Progress = Callable[[int, int], None]
"""Ranges done, and of how many."""


def load(table: StateTable, source: str, db: str, dump: Path, progress: Progress) -> Position:
    """The table's database `db` is what the dump holds; the position that the dump stands for."""
    require_complete(dump)
    info = DumpInfo.load(dump)
    _check_rules(dump, table.rules)
    uuid = dump_uuid(dump)
    notes = _Notes(table, f"{db}-{pack(info.position)}-{uuid or 'unnamed'}")
    ranges = plan(dump, now_ms=0, ranges=RANGES)
    files: list[DataFile] = []
    for number, each in enumerate(ranges):
        progress(number, len(ranges))
        written = notes.written(number)
        if written is None:
            written = list(_written(table, db, each, pack(info.position)))
            notes.note(number, written)
        files += written
    if dump_uuid(dump) != uuid or DumpInfo.load(dump) != info:
        notes.forget()
        raise DumpError(f"{dump} was replaced by another dump while it was read; start again")
    table.replace(source, db, files, info.position)
    notes.forget()
    progress(len(ranges), len(ranges))
    return info.position


def dump_uuid(dump: Path) -> str:
    """Of a dump that the receiver fetched; empty for one that came another way."""
    try:
        return str(json.loads((dump / STATE_NAME).read_bytes()).get("uuid", ""))
    except FileNotFoundError:
        return ""


def _check_rules(dump: Path, rules: Rules) -> None:
    master = _MASTER_OF_LAYOUT[layout_of(dump).name]
    if master != rules.name:
        raise TableError(
            f"{dump} is a dump of a {master} master, the table was made for {rules.name}: set zero_expiry to "
            f"{'keep' if master == '3.5' else 'none'} in the source's settings and build into another folder"
        )


def _written(table: StateTable, db: str, each: DumpRange, version: int) -> Iterator[DataFile]:
    rows: dict[int, Rows] = {}
    size = before = 0
    for part in read_keys(each):
        if not part.part:
            before = 0
        bucket = table.bucket(part.key)
        if bucket not in rows:
            rows[bucket] = Rows()
        size += rows[bucket].put_part(part, before, version)
        before += len(part.elements)
        if size >= HELD_BYTES_MAX:
            yield from table.write(db, rows)
            rows, size = {}, 0
    yield from table.write(db, rows)


class _Notes:
    """Which ranges of one load are written, and as which files."""

    def __init__(self, table: StateTable, name: str) -> None:
        self._root = table.delta.folder
        self._folder = self._root / NOTES / name
        committed = {each.path for each in table.delta.files()}
        noted = [each for path in self._folder.glob("range-*.json") for each in _decode(path)]
        if any(each.path in committed or not (self._root / each.path).exists() for each in noted):
            self.forget()  # of a load that was committed, or whose files were vacuumed
        make_folder(self._folder)

    def written(self, number: int) -> list[DataFile] | None:
        path = self._path(number)
        return _decode(path) if path.exists() else None

    def note(self, number: int, files: list[DataFile]) -> None:
        replace_file(self._path(number), json.dumps([asdict(each) for each in files]).encode())

    def forget(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder / f"range-{number:05}.json"


def _decode(path: Path) -> list[DataFile]:
    return [
        DataFile(each["path"], each["size"], each["rows"], tuple(each["partition"]))
        for each in json.loads(path.read_bytes())
    ]
