"""What the WAL's tests share: items, opening, and looking at what is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import FileWal, WalReader, WalRecord

START = Position(3, 100)
SEGMENT_BYTES = 4096


def item(number: int, size: int = 20) -> tuple[Position, bytes]:
    """The one that becomes record `number` of a WAL that began at `START`."""
    return Position(3, 100 + 50 * number), bytes([number % 251]) * size


def items(first: int, last: int, size: int = 20) -> list[tuple[Position, bytes]]:
    return [item(number, size) for number in range(first, last + 1)]


def record(number: int, size: int = 20, epoch: int = 7) -> WalRecord:
    position, payload = item(number, size)
    return WalRecord(epoch, number, position, payload)


@contextmanager
def opened(folder: Path, segment_bytes: int = SEGMENT_BYTES, retain: int = 2) -> Iterator[FileWal]:
    wal = FileWal(folder, segment_bytes, retain)
    try:
        yield wal
    finally:
        wal.close()


def make(folder: Path, last: int, size: int = 20, segment_bytes: int = SEGMENT_BYTES) -> None:
    """A WAL with records 1 to `last`, closed."""
    with opened(folder, segment_bytes) as wal:
        wal.reset(START)
        wal.append(7, items(1, last, size))


def all_records(folder: Path) -> list[WalRecord]:
    """Through a reader of another process's kind."""
    reader = WalReader(folder)
    first = reader.first()
    return [] if first is None else list(reader.read(first))


def segment_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("wal-*.log"), key=lambda path: path.name[-12:])
