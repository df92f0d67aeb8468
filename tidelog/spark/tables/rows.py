"""A key as rows of the state table, and back.

| type | rows | field | index | value | score |
| --- | --- | --- | --- | --- | --- |
| string | one | | | the string | |
| hash | one a field | field | | value | |
| set | one a member | member | | | |
| zset | one a member | member | | | score |
| list | one an element | | from 0 | element | |
| stream | one, and one an entry | | | last id, largest deleted id, entries added | |
| | | id (`ms-seq`) | from 0 | fields and values in turn, each behind its length (u32, little endian) | |

All rows of a key have its `expire_at` (unix time in milliseconds; null: never) and its `version`: the binlog position
of the last command that named it (`position.py`). What is empty in the table above is null. A collection without
elements has no rows, since it does not exist; a stream without entries has its first row.

Both ways are exact: what `entries` makes of `Rows` is what was put in. They cost about a microsecond a row.
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from tidelog.pikiwi.dump.layout import stream_fields
from tidelog.pikiwi.dump.model import DumpKey, StreamState
from tidelog.pikiwi.keyspace import Entry, Stream

PARTITION_FIELDS = (pa.field("db", pa.string()), pa.field("bucket", pa.int32()))
FILE_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("type", pa.string()),
        pa.field("field", pa.binary()),
        pa.field("index", pa.int64()),
        pa.field("value", pa.binary()),
        pa.field("score", pa.float64()),
        pa.field("expire_at", pa.int64()),
        pa.field("version", pa.int64()),
    ]
)
STATE_SCHEMA = pa.schema([*PARTITION_FIELDS, *FILE_SCHEMA])

_length = struct.Struct("<I").pack

Key = tuple[str, bytes]
"""Type and name."""


class Rows:
    """Rows of some keys."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []  # as the columns of FILE_SCHEMA

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, data_type: str, key: bytes, entry: Entry, version: int) -> None:
        """Everything that a key holds."""
        held = entry.value
        expire_ms = entry.expire_ms or None
        if data_type == "string":
            self._rows.append((key, data_type, None, None, held, None, expire_ms, version))
        elif data_type == "stream":
            state = _stream_state(held.last_id, held.max_deleted_id, held.entries_added)
            self._rows.append((key, data_type, None, None, state, None, expire_ms, version))
            listed = ((ms, sequence, fields) for (ms, sequence), fields in held.entries.items())
            self._elements(data_type, key, listed, 0, expire_ms, version)
        else:
            pairs = held.items() if data_type in {"hash", "zset"} else held
            self._elements(data_type, key, pairs, 0, expire_ms, version)

    def put_part(self, part: DumpKey, first_index: int, version: int) -> int:
        """One part of a key of a dump, of which `first_index` elements came before; its bytes."""
        data_type, key, expire_ms = part.data_type, part.key, part.expire_ms or None
        begin = len(self._rows)
        if data_type == "string":
            self._rows.append((key, data_type, None, None, part.elements[0], None, expire_ms, version))
        else:
            if data_type == "stream" and part.last:
                self._rows.append((key, data_type, None, None, _dump_state(part), None, expire_ms, version))
            self._elements(data_type, key, part.elements, first_index, expire_ms, version)
        return sum(len(key) + len(row[2] or b"") + len(row[4] or b"") for row in self._rows[begin:])

    def _elements(
        self, data_type: str, key: bytes, elements: Iterable[Any], first: int, expire_ms: int | None, version: int
    ) -> None:
        """Elements as a dump gives them (`DumpKey`)."""
        add = self._rows.append
        match data_type:
            case "hash":
                for field, value in elements:
                    add((key, data_type, field, None, value, None, expire_ms, version))
            case "set":
                for member in elements:
                    add((key, data_type, member, None, None, None, expire_ms, version))
            case "zset":
                for member, score in elements:
                    add((key, data_type, member, None, None, score, expire_ms, version))
            case "list":
                for index, element in enumerate(elements, first):
                    add((key, data_type, None, index, element, None, expire_ms, version))
            case "stream":
                for index, (ms, sequence, fields) in enumerate(elements, first):
                    value = b"".join([piece for field in fields for piece in (_length(len(field)), field)])
                    add((key, data_type, b"%d-%d" % (ms, sequence), index, value, None, expire_ms, version))
            case _:
                raise AssertionError(data_type)

    def table(self) -> pa.Table:
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(FILE_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, FILE_SCHEMA, strict=True)]
        return pa.table(arrays, schema=FILE_SCHEMA)


def entries(rows: pa.Table) -> Iterator[tuple[str, bytes, Entry]]:
    """The keys whose rows these are, whole and in any order."""
    collections: dict[Key, list[tuple[bytes | None, int | None, bytes | None, float | None, int | None]]] = {}
    columns = [rows[name].to_pylist() for name in ("key", "type", "field", "index", "value", "score", "expire_at")]
    for key, data_type, field, index, value, score, expire_ms in zip(*columns, strict=True):
        if data_type == "string":
            yield data_type, key, Entry(value, expire_ms or 0)
        else:
            collections.setdefault((data_type, key), []).append((field, index, value, score, expire_ms))
    for (data_type, key), elements in collections.items():
        yield data_type, key, Entry(_collection(data_type, elements), elements[0][4] or 0)


def _collection(data_type: str, elements: list[Any]) -> Any:
    match data_type:
        case "hash":
            return {field: value for field, _, value, _, _ in elements}
        case "set":
            return {field for field, *_ in elements}
        case "zset":
            return {field: score for field, _, _, score, _ in elements}
        case "list":
            elements.sort(key=_index)
            return deque(value for _, _, value, _, _ in elements)
        case "stream":
            return _stream(elements)
    raise AssertionError(data_type)


def _index(element: Any) -> int:
    return element[1]


def _stream(elements: list[Any]) -> Stream:
    state = next(value for _, index, value, _, _ in elements if index is None)
    last_id, deleted_id, added = state.split(b" ")
    listed = sorted((element for element in elements if element[1] is not None), key=_index)
    held = {_stream_id(field): stream_fields(value) for field, _, value, _, _ in listed}
    return Stream(held, _stream_id(last_id), _stream_id(deleted_id), int(added))


def _stream_id(text: bytes) -> tuple[int, int]:
    ms, _, sequence = text.partition(b"-")
    return int(ms), int(sequence)


def _stream_state(last_id: tuple[int, int], deleted_id: tuple[int, int], added: int) -> bytes:
    return b"%d-%d %d-%d %d" % (*last_id, *deleted_id, added)


def _dump_state(part: DumpKey) -> bytes:
    state = part.stream
    assert isinstance(state, StreamState), "a stream's last part has its state"
    return _stream_state(state.last_id, state.max_deleted_id, state.entries_added)
