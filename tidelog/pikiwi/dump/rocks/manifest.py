"""MANIFEST: which files make up each column family of a checkpoint.

It is a log of *version edits*, each a run of tagged fields; applied in order they give the files of every level, the
comparator, and the number of the first log whose writes are not in a file yet. An edit group marked atomic counts only
when it is whole. Tags from 2^13 on are made to be skipped by readers that do not know them; any other unknown tag is an
error. Memory: one entry a file.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tidelog.pikiwi.dump.rocks.coding import Malformed, sized, varint
from tidelog.pikiwi.dump.rocks.order import BYTEWISE
from tidelog.pikiwi.dump.rocks.records import read_records
from tidelog.pikiwi.errors import DumpError

CURRENT_BYTES_MAX = 256

_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _COMPACT_CURSOR = 1, 2, 3, 4, 5
_DELETED_FILE, _NEW_FILE, _PREVIOUS_LOG, _MIN_LOG_TO_KEEP = 6, 7, 9, 10
_NEW_FILE_2, _NEW_FILE_3, _NEW_FILE_4 = 100, 102, 103
_FAMILY, _FAMILY_ADD, _FAMILY_DROP, _MAX_FAMILY, _ATOMIC_GROUP = 200, 201, 202, 203, 300
_NUMBERS = frozenset(
    (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG, _MIN_LOG_TO_KEEP, _FAMILY, _MAX_FAMILY, _ATOMIC_GROUP)
)
_SKIPPABLE = 1 << 13
_FIELD_END, _FIELD_OLDEST_BLOB, _FIELD_PATH, _FIELD_NOT_SKIPPABLE = 1, 4, 65, 1 << 6
_SEQUENCE_BYTES = 8  # at the end of a key inside a file: sequence number and kind


@dataclass(frozen=True, slots=True)
class TableFile:
    path: Path
    level: int
    number: int
    size: int
    smallest: bytes  # keys of rows, both inclusive
    largest: bytes


@dataclass(slots=True)
class ColumnFamily:
    identity: int
    name: str
    comparator: str = BYTEWISE
    log_number: int = 0  # writes in logs before this one are in files
    files: dict[tuple[int, int], TableFile] = field(default_factory=dict)  # by level and number

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


def read_manifest(folder: Path) -> dict[str, ColumnFamily]:
    """The column families of the database in a folder, by name."""
    path = folder / _current(folder)
    families = {0: ColumnFamily(0, "default")}
    group: list[bytes] = []
    try:
        for record in read_records(path):
            remaining = _atomic_remaining(record)
            group.append(record)
            if not remaining:
                for edit in group:
                    _apply(edit, folder, families)
                group.clear()
    except Malformed as error:
        raise DumpError(f"{path}: an edit cannot be read ({error}); fetch the dump again") from error
    except FileNotFoundError as error:
        raise DumpError(f"{path} is missing; fetch the dump again") from error
    return {family.name: family for family in families.values()}


def _current(folder: Path) -> str:
    try:
        with (folder / "CURRENT").open("rb") as file:
            name = file.read(CURRENT_BYTES_MAX).decode("ascii", "replace").strip()
    except FileNotFoundError as error:
        raise DumpError(f"{folder} is no RocksDB database: it has no CURRENT; fetch the dump again") from error
    if not name.startswith("MANIFEST-") or not name.removeprefix("MANIFEST-").isdecimal():
        raise DumpError(f"{folder / 'CURRENT'} names {name!r}, which is no MANIFEST; fetch the dump again")
    return name


def _atomic_remaining(record: bytes) -> int:
    return next((value for tag, value in _fields(record) if tag == _ATOMIC_GROUP and isinstance(value, int)), 0)


def _apply(record: bytes, folder: Path, families: dict[int, ColumnFamily]) -> None:
    fields = list(_fields(record))
    numbers = {tag: value for tag, value in fields if isinstance(value, int)}
    identity = numbers.get(_FAMILY, 0)
    for tag, value in fields:
        if tag == _FAMILY_ADD and isinstance(value, bytes):
            families[identity] = ColumnFamily(identity, value.decode("utf-8", "replace"))
    if _FAMILY_DROP in numbers:
        families.pop(identity, None)
        return
    family = families.get(identity)
    if family is None:
        raise Malformed(f"an edit of column family {identity}, which does not exist")
    for tag, value in fields:
        if tag == _COMPARATOR and isinstance(value, bytes):
            family.comparator = value.decode("utf-8", "replace")
        elif tag == _LOG_NUMBER and isinstance(value, int):
            family.log_number = max(family.log_number, value)
        elif isinstance(value, _Deleted):
            family.files.pop((value.level, value.number), None)
        elif isinstance(value, _Added):
            path = folder / f"{value.number:06d}.sst"
            family.files[value.level, value.number] = TableFile(path, *value)


class _Deleted(NamedTuple):
    level: int
    number: int


class _Added(NamedTuple):
    level: int
    number: int
    size: int
    smallest: bytes
    largest: bytes


_Value = int | bytes | _Deleted | _Added


def _fields(record: bytes) -> Iterator[tuple[int, _Value]]:
    """Tag and value of each field."""
    at = 0
    while at < len(record):
        tag, at = varint(record, at)
        value: _Value
        if tag in (_COMPARATOR, _FAMILY_ADD) or tag & _SKIPPABLE:
            value, at = sized(record, at)
        elif tag == _FAMILY_DROP:
            value = 1
        elif tag == _COMPACT_CURSOR:
            _, at = varint(record, at)
            value, at = sized(record, at)
        elif tag == _DELETED_FILE:
            level, at = varint(record, at)
            number, at = varint(record, at)
            value = _Deleted(level, number)
        elif tag in (_NEW_FILE, _NEW_FILE_2, _NEW_FILE_3, _NEW_FILE_4):
            value, at = _new_file(record, at, tag)
        elif tag in _NUMBERS:
            value, at = varint(record, at)
        else:
            raise Malformed(f"a field of kind {tag}, which this reader lacks")
        yield tag, value


def _new_file(record: bytes, at: int, tag: int) -> tuple[_Added, int]:
    level, at = varint(record, at)
    number, at = varint(record, at)
    path_id = 0
    if tag == _NEW_FILE_3:
        path_id, at = varint(record, at)
    size, at = varint(record, at)
    smallest, at = sized(record, at)
    largest, at = sized(record, at)
    if tag != _NEW_FILE:
        _, at = varint(record, at)  # smallest and largest sequence number: every row has its own
        _, at = varint(record, at)
    while tag == _NEW_FILE_4:
        kind, at = varint(record, at)
        if kind == _FIELD_END:
            break
        content, at = sized(record, at)
        if kind == _FIELD_PATH:
            path_id = int.from_bytes(content, "little")
        elif kind == _FIELD_OLDEST_BLOB:
            raise Malformed(f"file {number} refers to blob files, which this reader lacks")
        elif kind & _FIELD_NOT_SKIPPABLE:
            raise Malformed(f"file {number} has a field of kind {kind}, which this reader lacks")
    if path_id:
        raise Malformed(f"file {number} lies in another folder (path {path_id})")
    return _Added(level, number, size, smallest[:-_SEQUENCE_BYTES], largest[:-_SEQUENCE_BYTES]), at
