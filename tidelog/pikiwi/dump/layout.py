"""What the two storage layouts have in common: each says where rows lie and how they are decoded; `reader.py` reads.

A collection's rows lie in a *data* column family under keys that begin with the user key and a version; a *meta* row
says which version lives, how many elements it has and when it expires. Rows of other versions are leftovers of deleted
collections. So a reader goes through the data rows in order and asks for one meta row a collection, never one a row.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tidelog.pikiwi.dump.model import DataType, StreamState

INTERNAL_PREFIXES = (b"_internal:slotkey:4migrate:", b"_internal:slottag:4migrate:")  # bookkeeping of slot migration

_LENGTH = struct.Struct("<I")

Decode = Callable[[bytes, bytes, int], Any]
"""Row key, row value, where the user key and version end → an element."""


class Meta(NamedTuple):
    """A collection. `left` and `right` enclose a list's indexes, both exclusive."""

    count: int
    version: int
    expire_ms: int
    left: int = 0
    right: int = 0
    stream: StreamState | None = None


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where the rows of a type lie."""

    database: str  # folder of a RocksDB database inside the dump
    family: str


class Layout(Protocol):
    """One storage layout. Everything here is pure except `places`, which looks at folder names."""

    name: str

    def places(self, folder: Path, data_type: DataType) -> list[RowPlace]:
        """Where the rows of a type lie: of strings themselves, of collections the elements."""
        ...

    def shared_prefix(self, data_type: DataType, row: bytes) -> bytes:
        """What all rows of the row's user key begin with; the row itself when it is too short to tell."""
        ...

    def prefix_bounds(self, data_type: DataType, prefix: bytes) -> tuple[bytes, bytes | None] | None:
        """The range of rows whose user keys begin with a prefix; None when they do not lie together."""
        ...

    def string(self, row: bytes, value: bytes) -> tuple[bytes, bytes | None, int, bool]:
        """User key, string, expiry and "is a HyperLogLog" of a row among the strings; None: it is a collection's meta.

        A plain tuple, since there is one a string.
        """
        ...

    def collection(self, row: bytes) -> tuple[bytes, int, int]:
        """User key and version of an element's row, and where they end in it."""
        ...

    def meta_key(self, key: bytes) -> bytes:
        """The meta row of a user key; other rows of the user key's metas, if any, begin with it."""
        ...

    def meta(self, data_type: DataType, value: bytes) -> Meta | None:
        """A meta row of that type; None when it is another type's."""
        ...

    def expired(self, expire_ms: int, now_ms: int) -> bool: ...

    def decoder(self, data_type: DataType) -> Decode:
        """Elements of lists come as (index, value)."""
        ...


def stream_fields(value: bytes) -> tuple[bytes, ...]:
    """Fields and values of a stream's entry: length u32 and bytes, again and again."""
    at, size, fields = 0, len(value), list[bytes]()
    while at < size:
        begin = at + 4
        at = begin + _LENGTH.unpack_from(value, at)[0]
        fields.append(value[begin:at])
    if at != size:
        raise ValueError("the entry ends inside a field")
    if len(fields) % 2:
        raise ValueError("the entry has a field without a value")
    return tuple(fields)


def after_prefix(prefix: bytes) -> bytes | None:
    """The first byte string after all that begin with `prefix`; None when there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


STREAM_STATE = struct.Struct("<IQQQQQQQi")  # groups id, entries added, first id, last id, largest deleted id, length


def stream_state(fields: tuple[int, ...]) -> StreamState:
    _, added, _, _, last_ms, last_seq, deleted_ms, deleted_seq, length = fields
    return StreamState((last_ms, last_seq), (deleted_ms, deleted_seq), added, length)
