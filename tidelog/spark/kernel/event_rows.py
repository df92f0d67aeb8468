"""Records of a topic of events (docs/events.md) as rows: the columns of `pikiwi-wal`, and where the record lies.

| decode | a row is |
| --- | --- |
| event | the message, key and value as they are, with the position that its event tells |
| typed | its command, taken apart: words and keys are bytes again, whatever their encoding |

`filenum` and `offset` are those of the item in the master's binlog (its end), so that a job reads from a topic what it
has read from a WAL; where the record lies in the log is `topic`, `partition` and `recordOffset`. The number in the WAL
is not in an event: `seq` is null, and 0 in a snapshot, as in `pikiwi-snapshot`. What was sent to every partition has a
row for each of them.

Values are parsed by Arrow, many at a time, and base64 is undone with numpy. A record that is no such event is an error
that names it, since rows that are silently left out would be worse.

Cost: under ten microseconds an event of 700 bytes, most of it Arrow's reading of JSON.
"""

# pyarrow makes the functions of `compute` when it is imported: they are not in its stubs.
# pyright: reportAttributeAccessIssue=false

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from tidelog.pikiwi.commands import Keys, command_of, keys_of
from tidelog.pikiwi.wal.record import MAGIC as WAL_RECORD
from tidelog.spark.errors import LogSourceError
from tidelog.spark.kernel.arrays import constant_text, numbers
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_records, gather
from tidelog.spark.kernel.wal_rows import ARGS
from tidelog.spark.kernel.wal_rows import EVENT_SCHEMA as WAL_EVENT_SCHEMA
from tidelog.spark.kernel.wal_rows import TYPED_SCHEMA as WAL_TYPED_SCHEMA

_PLACE = [pa.field("topic", pa.string()), pa.field("partition", pa.int32()), pa.field("recordOffset", pa.int64())]
EVENT_SCHEMA = pa.schema([*WAL_EVENT_SCHEMA, *_PLACE])
TYPED_SCHEMA = pa.schema([*WAL_TYPED_SCHEMA, *_PLACE])

_RECORDS = pa.schema([RECORD_SCHEMA.field(name) for name in ("key", "value", "offset")])
_TEXTS = ("event_type", "op", "data_type", "db", "key", "key_encoding", "args_encoding", "position")
_FIELDS = pa.schema(
    [*(pa.field(name, pa.string()) for name in _TEXTS), pa.field("args", pa.list_(pa.string())), ("ts_ms", pa.int64())]
)
_SNAPSHOT_SEQ, _NO_SEQ = pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64())
_NO_CODE = 255
_PAD = ord("=")
_CODES = np.full(256, _NO_CODE, dtype=np.uint8)
_CODES[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
_CODES[_PAD] = 0


class NotAnEvent(LogSourceError):
    """A record of the topic is no event of the pipeline's."""


def decode_events(run: bytearray | memoryview | bytes, place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of `EVENT_SCHEMA`, or some of its columns."""
    for records, events in _events(run, place):
        yield _batch(records, events, place, schema, {"key": records["key"], "value": records["value"]})


def decode_typed(run: bytearray | memoryview | bytes, place: Place, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of `TYPED_SCHEMA`, or some of its columns."""
    for records, events in _events(run, place):
        try:
            args = _words(events)
            key = _keys(events)
        except ValueError:
            _explain(records, place)
        yield _batch(records, events, place, schema, {"key": key, "args": args})


def _events(run: bytearray | memoryview | bytes, place: Place) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
    """Records with key, value and offset, and the fields of their events."""
    for records in decode_records(run, place, _RECORDS):
        if records.num_rows:
            yield records, _parsed(records, place)


def _parsed(records: pa.RecordBatch, place: Place) -> pa.RecordBatch:
    values = records["value"]
    if values.null_count or not _are_objects(values):
        _explain(records, place)
    lines = pc.binary_join(pa.ListArray.from_arrays([0, len(values)], values), b"\n")[0].as_buffer()
    reading = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
    parsing = arrow_json.ParseOptions(explicit_schema=_FIELDS, unexpected_field_behavior="ignore")
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), reading, parsing)
    except pa.ArrowInvalid:
        _explain(records, place)
    if table.num_rows != len(values) or any(column.null_count for column in table.columns):
        _explain(records, place)
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=table.schema)


def _are_objects(values: pa.Array) -> bool:
    """Whether each is one line, from a brace to a brace: then as many objects as lines are one each."""
    texts = pc.and_(pc.starts_with(values, "{"), pc.ends_with(values, "}"))
    return pc.all(texts).as_py() and not pc.any(pc.match_substring(values, "\n")).as_py()


def _batch(
    records: pa.RecordBatch, events: pa.RecordBatch, place: Place, schema: pa.Schema, own: dict[str, pa.Array]
) -> pa.RecordBatch:
    count = records.num_rows
    make: dict[str, Callable[[], pa.Array]] = {
        "exec_ms": lambda: events["ts_ms"],
        "filenum": lambda: _position(events, records, place, 1),
        "offset": lambda: _position(events, records, place, 2),
        "seq": lambda: pc.if_else(pc.equal(events["event_type"], "snapshot"), _SNAPSHOT_SEQ, _NO_SEQ),
        "broadcast": lambda: _broadcast(events),
        "topic": lambda: constant_text(place.topic, count),
        "partition": lambda: numbers(np.full(count, place.partition, dtype=np.int32)),
        "recordOffset": lambda: records["offset"],
    }

    def column(name: str) -> pa.Array:
        if name in own:
            return own[name]
        return make[name]() if name in make else events[name]

    return pa.RecordBatch.from_arrays([column(field.name) for field in schema], schema=schema)


def _position(events: pa.RecordBatch, records: pa.RecordBatch, place: Place, number: int) -> pa.Array:
    """`replication id/db/filenum/offset`: its last two parts are numbers."""
    parts = pc.split_pattern(events["position"], "/", max_splits=2, reverse=True)
    try:
        return pc.list_element(parts, number).cast(pa.int64())
    except pa.ArrowInvalid:
        _explain(records, place)


# --- keys and words ---------------------------------------------------------------------------------------------------


def _words(events: pa.RecordBatch) -> pa.Array:
    args, encoded = events["args"], pc.equal(events["args_encoding"], "base64")
    flat = args.flatten()
    if flat.null_count or pc.min(pc.list_value_length(args)).as_py() == 0:
        raise ValueError("a command without a name, or with a word that is null")
    each = encoded.take(pc.list_parent_indices(args))
    words = pa.ListArray.from_arrays(args.offsets, _decoded(flat, each), type=ARGS)
    assert len(words) == len(args)
    return words


def _keys(events: pa.RecordBatch) -> pa.Array:
    """Null for a command that has none: its event has an empty one, as has a command whose key is empty."""
    keys = _decoded(events["key"], pc.equal(events["key_encoding"], "base64"))
    empty = np.flatnonzero(pc.equal(pc.binary_length(keys), 0).to_numpy(zero_copy_only=False))
    if not empty.size:
        return keys
    without = np.zeros(len(keys), dtype=bool)
    without[empty] = [not _keys_of(events, int(row)) for row in empty]
    return pc.if_else(pa.array(without), pa.scalar(None, pa.binary()), keys)


def _broadcast(events: pa.RecordBatch) -> pa.Array:
    """Whether the command concerns not just one key, and so went to every partition. A snapshot's never does."""
    encoded = events["op"].dictionary_encode()
    several = [command_of(op.encode()).keys not in (Keys.FIRST, Keys.SECOND) for op in encoded.dictionary.to_pylist()]
    doubtful = np.array(several, dtype=bool)[encoded.indices.to_numpy()]
    doubtful |= pc.equal(pc.binary_length(events["key"]), 0).to_numpy(zero_copy_only=False)
    found = np.zeros(len(doubtful), dtype=bool)
    for row in np.flatnonzero(doubtful).tolist():
        found[row] = len(_keys_of(events, row)) != 1 and events["event_type"][row].as_py() == "binlog"
    return pa.array(found)


def _keys_of(events: pa.RecordBatch, row: int) -> Any:
    """As many keys as the command has; which they are does not matter here, so words may stay encoded."""
    return keys_of(command_of(events["op"][row].as_py().encode()), events["args"][row].as_py())


def _decoded(texts: pa.Array, encoded: pa.Array) -> pa.Array:
    """Texts as bytes, those that are `encoded` from base64."""
    if not pc.any(encoded).as_py():
        return texts.cast(pa.binary())
    if pc.all(encoded).as_py():
        return from_base64(texts)
    plain = pc.if_else(encoded, "", texts).cast(pa.binary())
    return pc.if_else(encoded, from_base64(pc.if_else(encoded, texts, "")), plain)


def from_base64(texts: pa.Array) -> pa.Array:
    """Without nulls. ValueError when one of them is not base64 with its padding."""
    _, bounds_buffer, data_buffer = texts.buffers()
    if not len(texts) or data_buffer is None:
        return texts.cast(pa.binary())
    bounds = np.frombuffer(bounds_buffer, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, dtype=np.uint8)[bounds[0] : bounds[-1]]
    sizes = np.diff(bounds)
    if (sizes & 3).any():
        raise ValueError("a text whose length is no multiple of 4")
    starts, ends = bounds[:-1] - bounds[0], bounds[1:] - bounds[0]
    pads = np.zeros(len(sizes), dtype=np.int64)
    filled = sizes > 0
    pads[filled] = (data[ends[filled] - 1] == _PAD) * (1 + (data[ends[filled] - 2] == _PAD))
    codes = _CODES[data]
    if (codes == _NO_CODE).any() or int((data == _PAD).sum()) != int(pads.sum()):
        raise ValueError("a character that is not of base64")
    quads = codes.reshape(-1, 4)
    out = np.empty((len(quads), 3), dtype=np.uint8)
    out[:, 0] = (quads[:, 0] << 2) | (quads[:, 1] >> 4)
    out[:, 1] = (quads[:, 1] << 4) | (quads[:, 2] >> 2)
    out[:, 2] = (quads[:, 2] << 6) | quads[:, 3]
    return gather(pa.py_buffer(out.tobytes()), starts // 4 * 3, sizes // 4 * 3 - pads)


# --- what is none -----------------------------------------------------------------------------------------------------


def _explain(records: pa.RecordBatch, place: Place) -> Any:
    """Say which record is no event, and why."""
    where = f"{place.topic}-{place.partition}, offset"
    values, offsets = records["value"].to_pylist(), records["offset"].to_pylist()
    for value, offset in zip(values, offsets, strict=True):
        fault = _fault(value)
        if fault:
            raise NotAnEvent(
                f"{where} {offset}: {fault}. decode=event and decode=typed are for topics of the pipeline's events "
                "(docs/events.md); read others with decode=record"
            )
    raise NotAnEvent(f"{where}s {offsets[0]} to {offsets[-1]}: a record is no event of the pipeline's (docs/events.md)")


def _fault(value: bytes | None) -> str:
    if value is None:
        return "the record has no value"
    if value.startswith(WAL_RECORD):
        return "it is a record of a WAL, which is read with the format pikiwi-wal"
    try:
        event = json.loads(value)
    except ValueError as error:
        return f"it is no JSON ({error})"
    if not isinstance(event, dict) or b"\n" in value or not (value.startswith(b"{") and value.endswith(b"}")):
        return "it is not one JSON object on one line"
    if lacking := [field.name for field in _FIELDS if event.get(field.name) is None]:
        return f"its event lacks {', '.join(lacking)}"
    words = event["args"]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return "its args are not a list of words"
    return ""
