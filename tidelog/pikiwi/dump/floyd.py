"""Storage of 4.x ("Floyd"): numbered RocksDB instances, each with all types in column families of their own.

A user key is written with every 00 as 00 01, and 00 00 after it, so that encoded keys sort as the keys do and none
begins another. Row keys: strings and metas `8 × 00 | key | 16 × 00` in `default`; elements `8 × 00 | key | version u64
| element | 16 × 00` in the type's own. The first byte of a value in `default` is the type. Elements' values end in 24
reserved bytes, except streams'. All numbers are little endian but a stream's ids.

4.0.1 writes a key that goes on after a NUL cut short there, with leftovers at the row's end. It is read as it stands:
what is after the NUL is lost in the dump (the binlog has it).
"""

import struct
from pathlib import Path

from tidelog.pikiwi.dump.layout import (
    STREAM_STATE,
    Decode,
    Meta,
    RowPlace,
    after_prefix,
    stream_fields,
    stream_state,
)
from tidelog.pikiwi.dump.model import DataType

_RESERVED = bytes(8)
_TAIL = 16  # reserved bytes at the end of every row key
_SUFFIX = 24  # reserved bytes and creation time at the end of an element's value
_STRING_SUFFIX = 32  # the same and the expiry, at the end of a string
_KINDS: dict[int, DataType] = {0: "string", 1: "hash", 2: "set", 3: "list", 4: "zset", 5: "stream"}
_FAMILIES: dict[DataType, str] = {
    "string": "default",
    "hash": "hash_data_cf",
    "set": "set_data_cf",
    "list": "list_data_cf",
    "zset": "zset_data_cf",
    "stream": "stream_data_cf",
}
_META = struct.Struct("<xiQ24xQ")  # count, version, expiry
_LIST_META = struct.Struct("<xQQQ8xQ8x24xQ")  # count, version, left, right, expiry; both indexes have junk behind them
_STREAM_META = struct.Struct(f"<x{STREAM_STATE.size}sQ")
_VERSION = struct.Struct("<Q")
_ID = struct.Struct(">QQ")
_SCORE = struct.Struct("<d")

_MILLISECONDS = 1 << 63
_SECONDS_MAX = 10**11  # the year 5138 in seconds, 1973 in milliseconds
_NEVER = bytes(8)
_HYPERLOGLOG = 0x80  # the highest bit of a string's first reserved byte


class Floyd:
    name = "floyd"

    def places(self, folder: Path, data_type: DataType) -> list[RowPlace]:
        instances = sorted((int(path.name), path.name) for path in folder.iterdir() if path.name.isdecimal())
        return [RowPlace(name, _FAMILIES[data_type]) for _, name in instances]

    def shared_prefix(self, data_type: DataType, row: bytes) -> bytes:
        del data_type
        return row[: _key_end(row) or len(row)]

    def prefix_bounds(self, data_type: DataType, prefix: bytes) -> tuple[bytes, bytes | None] | None:
        del data_type
        lower = _RESERVED + _escape(prefix)
        return lower, after_prefix(lower)

    def string(self, row: bytes, value: bytes) -> tuple[bytes, bytes | None, int, bool]:
        end = row.find(b"\0\0", 8)  # written out, not `_key_end`: this runs once a string
        key = row[8:end]
        if end < 0:
            raise ValueError("a row key without the end of its user key")
        if b"\0" in key:
            key = key.replace(b"\0\1", b"\0")
        if value[:1] != b"\0":
            if not value or value[0] not in _KINDS:
                raise ValueError(f"its value begins with {value[:1]!r}, which is no type")
            return key, None, 0, False
        if len(value) <= _STRING_SUFFIX:
            raise ValueError(f"a string of {len(value)} bytes with its reserved ones")
        expiry = value[-8:]
        expire_ms = 0 if expiry == _NEVER else _milliseconds(int.from_bytes(expiry, "little"))
        return key, value[1:-_STRING_SUFFIX], expire_ms, value[-_STRING_SUFFIX] >= _HYPERLOGLOG

    def collection(self, row: bytes) -> tuple[bytes, int, int]:
        end = _required_end(row)
        if len(row) < end + 8 + _TAIL:
            raise ValueError(f"a row key of {len(row)} bytes")
        return _user_key(row, end), _VERSION.unpack_from(row, end)[0], end + 8

    def meta_key(self, key: bytes) -> bytes:
        return _RESERVED + _escape(key) + b"\0\0" + bytes(_TAIL)

    def meta(self, data_type: DataType, value: bytes) -> Meta | None:
        kind = _KINDS.get(value[0]) if value else None
        if kind is None:
            raise ValueError(f"its meta begins with {value[:1]!r}, which is no type")
        if kind != data_type:
            return None
        if kind == "list":
            _require_size(value, _LIST_META)
            count, version, left, right, expiry = _LIST_META.unpack(value)
            return Meta(count, version, _milliseconds(expiry), left, right)
        if kind == "stream":
            _require_size(value, _STREAM_META)
            state_bytes, version = _STREAM_META.unpack(value)
            state = stream_state(STREAM_STATE.unpack(state_bytes))
            return Meta(state.length, version, 0, stream=state)
        _require_size(value, _META)
        count, version, expiry = _META.unpack(value)
        return Meta(count, version, _milliseconds(expiry))

    def expired(self, expire_ms: int, now_ms: int) -> bool:
        return 0 < expire_ms < now_ms

    def decoder(self, data_type: DataType) -> Decode:
        return _DECODERS[data_type]


def _escape(key: bytes) -> bytes:
    return key.replace(b"\0", b"\0\1")


def _user_key(row: bytes, end: int) -> bytes:
    return row[len(_RESERVED) : end - 2].replace(b"\0\1", b"\0")


def _key_end(row: bytes) -> int:
    """Where the encoded user key ends, its 00 00 included; 0 when it does not end in these bytes."""
    end = row.find(b"\0\0", len(_RESERVED))
    return end + 2 if end >= 0 else 0


def _required_end(row: bytes) -> int:
    if end := _key_end(row):
        return end
    raise ValueError("a row key without the end of its user key")


def _require_size(value: bytes, form: struct.Struct) -> None:
    if len(value) != form.size:
        raise ValueError(f"its meta has {len(value)} bytes and should have {form.size}")


def _milliseconds(time: int) -> int:
    """Times with bit 63 are milliseconds; without it seconds (4.0.0), or the milliseconds of a HyperLogLog."""
    if time & _MILLISECONDS:
        return time & ~_MILLISECONDS
    return time if time > _SECONDS_MAX else time * 1000


def _hash(row: bytes, value: bytes, end: int) -> tuple[bytes, bytes]:
    return row[end:-_TAIL], value[:-_SUFFIX]


def _set(row: bytes, value: bytes, end: int) -> bytes:
    del value
    return row[end:-_TAIL]


def _list(row: bytes, value: bytes, end: int) -> tuple[int, bytes]:
    return int.from_bytes(row[end : end + 8], "little"), value[:-_SUFFIX]


def _zset(row: bytes, value: bytes, end: int) -> tuple[bytes, float]:
    return row[end:-_TAIL], _SCORE.unpack_from(value)[0]


def _stream(row: bytes, value: bytes, end: int) -> tuple[int, int, tuple[bytes, ...]]:
    return *_ID.unpack_from(row, end), stream_fields(value)


_DECODERS: dict[DataType, Decode] = {"hash": _hash, "set": _set, "list": _list, "zset": _zset, "stream": _stream}
