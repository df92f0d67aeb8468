"""Records of JSON as columns of a table whose schema grows with them. Pure.

A field of the record's object is a column of that name:

| JSON | column |
| --- | --- |
| true, false | BOOLEAN |
| whole number | BIGINT |
| other number | DOUBLE; also for a new column that has both kinds in its first batch |
| text | STRING |
| object, array | STRING, as JSON |
| null, or no such field | null |

A column's type is that of its first value and stays. Whatever does not fit goes into the column `_rescued` of its
record, as a JSON object of these fields, so nothing is lost and nothing stops: a value of another type, a number too
large for its column, a name that no column can have (see `_BAD`), one that differs from a column's only in upper and
lower case, fields beyond `COLUMNS_MAX`. A record that is no JSON object is in `_rescued` as a whole.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

COLUMNS_MAX = 1_000
RESCUED = "_rescued"
META = pa.schema(
    [
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("_key", pa.binary()),
        pa.field(RESCUED, pa.string()),
    ]
)
_BAD = frozenset(" ,;{}()\n\t=")  # what Delta allows in no column's name
_WHOLE = range(-(1 << 63), 1 << 63)
_EXACT = 1 << 53  # whole numbers up to this are doubles too

_BOOLEAN, _LONG, _DOUBLE, _TEXT = pa.bool_(), pa.int64(), pa.float64(), pa.string()


def columns_of(values: Iterable[bytes | None], known: Mapping[str, pa.DataType]) -> tuple[pa.Table, pa.Array]:
    """The fields of these records, in the columns that the table has and in new ones behind them; and `_rescued`."""
    records = [_parsed(value) for value in values]
    types = dict(known)
    _widen(records, types)
    columns: dict[str, list[Any]] = {name: [None] * len(records) for name in types}
    rescued: list[str | None] = []
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            rescued.append(record)
            continue
        unfit: dict[str, Any] = {}
        for name, value in record.items():
            if value is None:
                continue
            fits, stored = _stored(value, types.get(name))
            if fits:
                columns[name][number] = stored
            else:
                unfit[name] = value
        rescued.append(json.dumps(unfit) if unfit else None)
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in types.items()})
    return table, pa.array(rescued, _TEXT)


def _parsed(value: bytes | None) -> dict[str, Any] | str | None:
    """The record's object; its text when it is none; None for a record without a value."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(value).decode()})
    try:
        parsed = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text
    return parsed if isinstance(parsed, dict) else text


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _widen(records: list[Any], types: dict[str, pa.DataType]) -> None:
    """Columns for fields that have none yet, as far as their names and number allow."""
    taken = {name.lower() for name in (*types, *META.names)}
    new: set[str] = set()
    for record in records:
        if not isinstance(record, dict):
            continue
        for name, value in record.items():
            if value is None:
                continue
            kind = _kind(value)
            if name in new:
                if {types[name], kind} == {_LONG, _DOUBLE}:
                    types[name] = _DOUBLE
            elif name.lower() not in taken and _can_be_named(name) and kind is not None and len(types) < COLUMNS_MAX:
                types[name] = kind
                taken.add(name.lower())
                new.add(name)


def _can_be_named(name: str) -> bool:
    return bool(name) and not _BAD.intersection(name) and _is_text(name)


def _kind(value: Any) -> pa.DataType | None:
    if isinstance(value, bool):
        return _BOOLEAN
    if isinstance(value, int):
        return _LONG if value in _WHOLE else None
    return _DOUBLE if isinstance(value, float) else _TEXT


def _stored(value: Any, kind: pa.DataType | None) -> tuple[bool, Any]:
    """Whether a value goes into a column of this type, and as what."""
    own = _kind(value)
    if own is None or kind is None:
        return False, None
    if kind == _DOUBLE and own == _LONG:
        return abs(value) <= _EXACT, float(value) if abs(value) <= _EXACT else None
    if own != kind:
        return False, None
    if kind != _TEXT:
        return True, value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return _is_text(text), text


def _is_text(text: str) -> bool:
    """JSON can write halves of surrogate pairs, which are no text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
