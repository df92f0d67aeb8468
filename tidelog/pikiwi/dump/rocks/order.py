"""The orders that column families of a dump are sorted in, as functions from a row's key to something that sorts so.

A comparator is named in the MANIFEST; RocksDB calls it for pairs, but a merge in Python wants one sort key a row, built
once and compared in C. A sort key of a *prefix* (the part of a row's key that all rows of one user key share) sorts
right before those rows, so that ranges can be cut between user keys.
"""

import struct
from collections.abc import Callable
from typing import Any

Order = Callable[[bytes], Any]
"""A row's key, or a prefix of it → a value that sorts as the comparator does, among values of the same order."""

BYTEWISE = "leveldb.BytewiseComparator"
FLOYD_LISTS = "floyd.ListsDataKeyComparator"
BLACKWIDOW_LISTS = "blackwidow.ListsDataKeyComparator"

_RESERVED = 8
_KEY_LENGTH = struct.Struct("<I")
_VERSION_INDEX = struct.Struct("<iQ")


def bytewise(row: bytes) -> bytes:
    return row


def floyd_lists(row: bytes) -> bytes:
    """User key, then version and index as numbers: both are little endian in the row, so they are turned round."""
    end = row.find(b"\0\0", _RESERVED) + 2  # no find is 1 here; the row is then sorted as bytes
    if len(row) < end + 16 or end < _RESERVED:
        return row
    return row[:end] + row[end + 7 : end - 1 : -1] + row[end + 15 : end + 7 : -1]


def blackwidow_lists(row: bytes) -> tuple[bytes, int, int]:
    """User key (its length before it does not sort), then version (signed) and index."""
    end = _KEY_LENGTH.size + int.from_bytes(row[: _KEY_LENGTH.size], "little")
    if len(row) < end + _VERSION_INDEX.size:
        return row[_KEY_LENGTH.size : end], -(2**31) - 1, 0
    return row[_KEY_LENGTH.size : end], *_VERSION_INDEX.unpack_from(row, end)


ORDERS: dict[str, Order] = {BYTEWISE: bytewise, FLOYD_LISTS: floyd_lists, BLACKWIDOW_LISTS: blackwidow_lists}
