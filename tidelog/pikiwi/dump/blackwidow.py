"""Storage of 3.5 ("Blackwidow"): one RocksDB database a type.

Strings and metas lie in `default` under the user key as it is. Elements' row keys are `key length u32 | key | version
i32 | element`, so they lie by key length first, except lists, whose own order goes by key. Times are whole seconds. All
numbers are little endian but a stream's ids.

There is no strong typing: one key may exist as several types at once, and comes out as each. A HyperLogLog cannot be
told from a string. `streams` is on a master's disk only, its full sync does not deliver it.
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

PLACES: dict[DataType, RowPlace] = {
    "string": RowPlace("strings", "default"),
    "hash": RowPlace("hashes", "data_cf"),
    "set": RowPlace("sets", "member_cf"),
    "list": RowPlace("lists", "data_cf"),
    "zset": RowPlace("zsets", "data_cf"),
    "stream": RowPlace("streams", "data_cf"),
}
_META = struct.Struct("<iii")  # count, version, expiry
_LIST_META = struct.Struct("<QiiQQ")  # count, version, expiry, left, right
_STREAM_META = struct.Struct(STREAM_STATE.format + "i")
_KEY_LENGTH = struct.Struct("<I")
_VERSION = struct.Struct("<i")
_ID = struct.Struct(">QQ")
_SCORE = struct.Struct("<d")


class Blackwidow:
    name = "blackwidow"

    def places(self, folder: Path, data_type: DataType) -> list[RowPlace]:
        place = PLACES[data_type]
        return [place] if (folder / place.database).is_dir() else []

    def shared_prefix(self, data_type: DataType, row: bytes) -> bytes:
        if data_type == "string" or len(row) < _KEY_LENGTH.size:
            return row
        return row[: _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(row)[0]]

    def prefix_bounds(self, data_type: DataType, prefix: bytes) -> tuple[bytes, bytes | None] | None:
        return (prefix, after_prefix(prefix)) if data_type == "string" else None

    def string(self, row: bytes, value: bytes) -> tuple[bytes, bytes | None, int, bool]:
        if len(value) < 4:
            raise ValueError(f"a string of {len(value)} bytes with its expiry")
        return row, value[:-4], _milliseconds(int.from_bytes(value[-4:], "little", signed=True)), False

    def collection(self, row: bytes) -> tuple[bytes, int, int]:
        if len(row) < _KEY_LENGTH.size:
            raise ValueError(f"a row key of {len(row)} bytes")
        end = _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(row)[0]
        if len(row) < end + _VERSION.size:
            raise ValueError(f"a row key of {len(row)} bytes whose user key ends at {end}")
        return row[_KEY_LENGTH.size : end], _VERSION.unpack_from(row, end)[0], end + _VERSION.size

    def meta_key(self, key: bytes) -> bytes:
        return key

    def meta(self, data_type: DataType, value: bytes) -> Meta | None:
        form = {"list": _LIST_META, "stream": _STREAM_META}.get(data_type, _META)
        if len(value) != form.size:
            raise ValueError(f"its meta has {len(value)} bytes and should have {form.size}")
        fields = form.unpack(value)
        if data_type == "list":
            count, version, expiry, left, right = fields
            return Meta(count, version, _milliseconds(expiry), left, right)
        if data_type == "stream":
            state = stream_state(fields[:-1])
            return Meta(state.length, fields[-1], 0, stream=state)
        count, version, expiry = fields
        return Meta(count, version, _milliseconds(expiry))

    def expired(self, expire_ms: int, now_ms: int) -> bool:
        """As the server says: in whole seconds, and a time that overflowed (2038) is past."""
        return expire_ms != 0 and expire_ms < now_ms // 1000 * 1000

    def decoder(self, data_type: DataType) -> Decode:
        return _DECODERS[data_type]


def _milliseconds(seconds: int) -> int:
    return seconds * 1000


def _hash(row: bytes, value: bytes, end: int) -> tuple[bytes, bytes]:
    return row[end:], value


def _set(row: bytes, value: bytes, end: int) -> bytes:
    del value
    return row[end:]


def _list(row: bytes, value: bytes, end: int) -> tuple[int, bytes]:
    return int.from_bytes(row[end : end + 8], "little"), value


def _zset(row: bytes, value: bytes, end: int) -> tuple[bytes, float]:
    return row[end:], _SCORE.unpack_from(value)[0]


def _stream(row: bytes, value: bytes, end: int) -> tuple[int, int, tuple[bytes, ...]]:
    return *_ID.unpack_from(row, end), stream_fields(value)


_DECODERS: dict[DataType, Decode] = {"hash": _hash, "set": _set, "list": _list, "zset": _zset, "stream": _stream}
