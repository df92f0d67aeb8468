"""The rows of a column family: tables of all levels and the logs, merged; the newest of each key wins.

Sources are merged by (sort key, newest first): each table of level 0, each further level as one run of tables that do
not overlap, and what the logs hold. Of several rows with one key the first is the newest; a deletion hides the rest,
and a row under a younger range tombstone is dropped. That rows really come in the comparator's order is checked, so
that a wrong idea of the order is an error and never a wrong result.

Memory: a block a source. Cost: one to two microseconds a row, less from a single source.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from tidelog.pikiwi.dump.rocks.batches import DELETION, RANGE_DELETION, SINGLE_DELETION, VALUE, read_logs
from tidelog.pikiwi.dump.rocks.manifest import ColumnFamily, TableFile
from tidelog.pikiwi.dump.rocks.order import ORDERS, Order
from tidelog.pikiwi.dump.rocks.table import Table, UnknownFormat
from tidelog.pikiwi.errors import DumpError

TOMBSTONES_MAX = 100_000  # range tombstones held at once

# A row on its way through the merge: sort key, inverse of sequence number and kind (unique within a key), key, value.
_Sorted = tuple[Any, int, bytes, bytes]

_SEQUENCE_BYTES = 8
_KIND = 0xFF


@dataclass(frozen=True, slots=True)
class _Tombstone:
    begin: Any
    end: Any
    sequence: int


class ColumnFamilyRows:
    """Opens nothing until rows are asked for; `close` closes the tables. Any number of scans, one at a time."""

    def __init__(self, folder: Path, family: ColumnFamily) -> None:
        order = ORDERS.get(family.comparator)
        if order is None:
            raise DumpError(f"{folder}: {family.name} is sorted by {family.comparator}, which this reader lacks")
        self._folder = folder
        self._family = family
        self._order: Order = order
        self._tables: dict[int, Table] = {}

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        self._tables.clear()

    def scan(self, lower: bytes | None = None, upper: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values from `lower` (inclusive) to `upper` (exclusive), in the comparator's order."""
        order = self._order
        low = None if lower is None else order(lower)
        high = None if upper is None else order(upper)
        sources = [self._table_run(run, low) for run in self._runs(low, high)]
        if self._logged[0]:
            sources.append(iter(self._logged[0]))
        merged = sources[0] if len(sources) == 1 else heapq.merge(*sources)
        hides = _Hidden(self._tombstones) if self._tombstones else None
        last: Any = None
        for sort_key, inverse, key, value in merged:
            if high is not None and sort_key >= high:
                return
            if last is not None and sort_key <= last:
                if sort_key == last:
                    continue
                raise DumpError(f"{self._where}: rows are not in the order of {self._family.comparator} at {key!r}")
            last = sort_key
            if low is not None and sort_key < low:
                continue
            kind = ~inverse & _KIND
            if kind != VALUE:
                if kind in (DELETION, SINGLE_DELETION):
                    continue
                raise DumpError(f"{self._where}: row {key!r} is of kind {kind}, which this reader lacks")
            if hides is not None and hides(sort_key, ~inverse >> 8):
                continue
            yield key, value

    def boundaries(self, step: int) -> Iterator[tuple[bytes, int]]:
        """Keys at the ends of data blocks, one about every `step` bytes of a table, and the bytes since the last."""
        for file in self._family.files.values():
            if file.size <= step:
                yield file.largest, file.size
                continue
            try:
                table = Table(file.path, self._family.comparator)
            except UnknownFormat:  # whoever reads the rows may know it
                yield file.largest, file.size
                continue
            try:
                size = 0
                for entry in table.blocks():
                    size += entry.handle.size
                    if size >= step:
                        yield entry.last, size
                        size = 0
            finally:
                table.close()

    @property
    def _where(self) -> str:
        return f"{self._folder} ({self._family.name})"

    def _runs(self, low: Any, high: Any) -> list[list[TableFile]]:
        """Files that can hold rows of the range: level 0 one by one, each other level in order."""
        order = self._order
        levels: dict[int, list[TableFile]] = {}
        for file in self._family.files.values():
            if (low is None or order(file.largest) >= low) and (high is None or order(file.smallest) < high):
                levels.setdefault(file.level, []).append(file)
        runs = [[file] for file in levels.pop(0, [])]
        runs += [sorted(files, key=lambda file: order(file.smallest)) for files in levels.values()]
        return runs

    def _table_run(self, files: list[TableFile], low: Any) -> Iterator[_Sorted]:
        order = self._order
        for file in files:
            table = self._table(file)
            for block in table.row_blocks(order, low):
                for inner, value in block:
                    key = inner[:-_SEQUENCE_BYTES]
                    yield order(key), ~int.from_bytes(inner[-_SEQUENCE_BYTES:], "little"), key, value
            if len(files) > 1:
                self._drop(file)

    def _table(self, file: TableFile) -> Table:
        table = self._tables.get(file.number)
        if table is None:
            table = self._tables[file.number] = Table(file.path, self._family.comparator)
        return table

    def _drop(self, file: TableFile) -> None:
        """A table that was read to its end: a run may have thousands, and each holds a file open."""
        table = self._tables.pop(file.number, None)
        if table is not None:
            table.close()

    @cached_property
    def _logged(self) -> tuple[list[_Sorted], list[_Tombstone]]:
        """The logs' rows, sorted, and their range tombstones."""
        order = self._order
        rows: list[_Sorted] = []
        tombstones: list[_Tombstone] = []
        for sequence, kind, key, value in read_logs(self._folder, self._family):
            if kind == RANGE_DELETION:
                tombstones.append(_Tombstone(order(key), order(value), sequence))
            else:
                rows.append((order(key), ~(sequence << 8 | kind), key, value))
        rows.sort(key=itemgetter(0, 1))
        return rows, tombstones

    @cached_property
    def _tombstones(self) -> list[_Tombstone]:
        order = self._order
        found = list(self._logged[1])
        for file in self._family.files.values():
            for inner, end in self._table(file).tombstones():
                sequence = int.from_bytes(inner[-_SEQUENCE_BYTES:], "little") >> 8
                found.append(_Tombstone(order(inner[:-_SEQUENCE_BYTES]), order(end), sequence))
                if len(found) > TOMBSTONES_MAX:
                    raise DumpError(f"{self._where}: more than {TOMBSTONES_MAX:,} range tombstones")
            self._drop(file)
        return sorted(found, key=lambda tombstone: tombstone.begin)


class _Hidden:
    """Says of rows, in order, whether a younger range tombstone hides them."""

    def __init__(self, tombstones: list[_Tombstone]) -> None:
        self._waiting = tombstones
        self._next = 0
        self._active: list[_Tombstone] = []

    def __call__(self, sort_key: Any, sequence: int) -> bool:
        waiting = self._waiting
        while self._next < len(waiting) and waiting[self._next].begin <= sort_key:
            self._active.append(waiting[self._next])
            self._next += 1
        self._active = [tombstone for tombstone in self._active if sort_key < tombstone.end]
        return any(tombstone.sequence > sequence for tombstone in self._active)
