"""Who reads a WAL beside the pipeline, and how far each has come: the WAL keeps what they have not read, within bounds.

A reader (a table, for example) has a small file in the folder `<checkpoint>.readers`:

    {"format": 1, "reader": "/lake/state", "replication_id": "…", "positions": {"db0": "3:1200"}}

It replaces the file after each commit of its own, so the file is never ahead of what the reader has. The receiver looks
at these files whenever it cleans, and removes nothing behind the least of AckCP and the positions of its lineage.

A reader that nobody runs any more must not hold a WAL for ever. It counts while all of this holds:

* its file was renewed during the last `wal_reader_hours_max`;
* it is at most `wal_reader_bytes_max` of binlog behind AckCP;
* the WALs are smaller than `wal_bytes_max` together: receiving comes first.

One that stops counting is named in a warning, once. It may come back as long as the WAL still has its position.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidelog.pikiwi.position import Position, PositionError
from tidelog.pikiwi.progress import distance_bytes
from tidelog.pikiwi.wal.disk import make_folder, replace_file

FORMAT = 1
RENEW_S = 60.0  # how often a reader that has nothing new says that it is there
READERS_MAX = 64  # that are looked at: the latest
FILE_BYTES_MAX = 64 << 10

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    bytes_max: int
    hours_max: int


@dataclass(frozen=True, slots=True)
class Mark:
    """What one reader's file says."""

    reader: str
    replication_id: str
    positions: Mapping[str, Position]
    renewed_s: float


def readers_folder(checkpoint: Path) -> Path:
    return checkpoint.with_name(f"{checkpoint.name}.readers")


class Reader:
    """The reader's side. `name` says who it is, to people and to itself at its next start."""

    def __init__(self, checkpoint: Path, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._path = readers_folder(checkpoint) / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
        self._clock = clock
        self._written_s = -RENEW_S
        mark = _read(self._path)
        self._replication_id = "" if mark is None else mark.replication_id
        self._positions: dict[str, Position] = {} if mark is None else dict(mark.positions)

    def has(self, replication_id: str, database: str, position: Position) -> None:
        """Everything up to here is read, for good."""
        if replication_id != self._replication_id:
            self._replication_id, self._positions = replication_id, {}
            self._written_s = -RENEW_S
        same = self._positions.get(database) == position
        if same and self._clock() - self._written_s < RENEW_S:
            return
        self._positions[database] = position
        content = {
            "format": FORMAT,
            "reader": self.name,
            "replication_id": replication_id,
            "positions": {name: str(each) for name, each in sorted(self._positions.items())},
        }
        make_folder(self._path.parent)
        replace_file(self._path, json.dumps(content).encode() + b"\n")
        self._written_s = self._clock()


class Readers:
    """The receiver's side."""

    def __init__(self, checkpoint: Path, limits: ReaderLimits, clock: Callable[[], float] = time.time) -> None:
        self._folder = readers_folder(checkpoint)
        self._limits = limits
        self._clock = clock
        self._warned: set[tuple[str, str]] = set()

    def marks(self) -> list[Mark]:
        """Of all readers that there are; a file that says nothing sensible is none."""
        try:
            paths = [Path(entry.path) for entry in os.scandir(self._folder) if entry.name.endswith(".json")]
        except FileNotFoundError:
            return []
        found = [mark for mark in map(_read, paths) if mark is not None]
        return sorted(found, key=lambda mark: mark.renewed_s, reverse=True)[:READERS_MAX]

    def clean_to(
        self,
        marks: Sequence[Mark],
        database: str,
        replication_id: str,
        ack: Position,
        *,
        wal_first: Position | None,
        file_bytes: int,
        full: bool,
    ) -> Position:
        """How far this WAL may be cleaned.

        `file_bytes`: the size of one file of the master's binlog. `full`: the WALs have reached `wal_bytes_max`.
        """
        needed = ack
        for mark in marks:
            position = mark.positions.get(database)
            if position is None or mark.replication_id != replication_id:
                continue
            why = "" if position >= ack else self._too_far(mark, position, ack, wal_first, file_bytes, full)
            self._warn(mark, database, position, why)
            if not why:
                needed = min(needed, position)
        return needed

    def _too_far(
        self, mark: Mark, position: Position, ack: Position, wal_first: Position | None, file_bytes: int, full: bool
    ) -> str:
        """Why a reader does not count; empty: it does."""
        if wal_first is not None and position < wal_first:
            return "the WAL begins behind it"
        if self._clock() - mark.renewed_s > self._limits.hours_max * 3600:
            return f"it has not come for {self._limits.hours_max} hours (wal_reader_hours_max)"
        if distance_bytes(position, ack, file_bytes) > self._limits.bytes_max:
            return f"it is more than {self._limits.bytes_max:,} bytes behind AckCP (wal_reader_bytes_max)"
        return "the WALs have reached wal_bytes_max" if full else ""

    def _warn(self, mark: Mark, database: str, position: Position, why: str) -> None:
        key = (mark.reader, database)
        if not why:
            self._warned.discard(key)
        elif key not in self._warned:
            self._warned.add(key)
            _log.warning(
                "%s: the WAL is no longer kept for %s, which stands at %s: %s. It needs a full sync if the WAL goes on "
                "without it; if it is no longer wanted, remove its file in %s",
                database, mark.reader, position, why, self._folder,
            )  # fmt: skip


def _read(path: Path) -> Mark | None:
    try:
        with open(path, "rb") as file:
            content: Any = json.loads(file.read(FILE_BYTES_MAX))
            renewed_s = os.fstat(file.fileno()).st_mtime
        if content["format"] != FORMAT:
            return None
        positions = {str(name): Position.parse(text) for name, text in content["positions"].items()}
        return Mark(str(content["reader"]), str(content["replication_id"]), positions, renewed_s)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, PositionError) as error:
        _log.warning("%s says nothing that could be understood, and holds back nothing: %s", path, error)
        return None
