"""The write-ahead log of one database: binlog items, durable here before the master is told that we have them.

`open_wal` gives the backend that the settings choose: files (`files.py`, the default) or a stream of any log that
speaks Kafka's protocol (`stream.py`), for pipelines on other machines. Both keep the same records (`record.py`) and
promises:

* records are numbered without gaps, and their positions grow;
* what `sync` returned for is there after any crash, and readers see nothing else;
* a failure to write ends the object, and what really arrived is found out at the next opening;
* one writer at a time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tidelog.pikiwi.config import Config
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.files import FileWal
from tidelog.pikiwi.wal.reader import WalGone, WalReader
from tidelog.pikiwi.wal.record import WalPoint, WalRecord

__all__ = ["FileWal", "Wal", "WalGone", "WalPoint", "WalReader", "WalRecord", "open_wal", "wal_folder"]


class Wal(Protocol):
    """Synchronous, and for one thread. See `FileWal` for the words of each promise."""

    durable: WalPoint | None

    @property
    def last_seq(self) -> int: ...
    @property
    def last_position(self) -> Position | None: ...
    @property
    def first_position(self) -> Position | None: ...
    @property
    def size_bytes(self) -> int: ...

    def append(self, epoch: int, items: Sequence[tuple[Position, bytes]]) -> None: ...
    def sync(self) -> None: ...
    def read(self, after_seq: int) -> Iterator[WalRecord]: ...
    def seek(self, position: Position) -> int: ...
    def clean(self, ack: Position) -> int: ...
    def reset(self, position: Position, after_seq: int = 0) -> None: ...
    def close(self) -> None: ...


def wal_folder(config: Config, database: str) -> Path:
    """`wal_dir` itself for a source of which one database is named, a folder a database otherwise."""
    return config.wal_dir if len(config.databases) == 1 else config.wal_dir / database


def open_wal(config: Config, database: str) -> Wal:
    if config.wal_backend == "stream":
        from tidelog.pikiwi.wal.stream import open_stream_wal  # noqa: PLC0415 - files need no client library

        return open_stream_wal(config, database)
    return FileWal(wal_folder(config, database), config.wal_segment_bytes, config.wal_retain_segments)
