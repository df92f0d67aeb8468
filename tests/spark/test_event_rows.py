"""Topics of events as rows: what a read of the WAL itself gives, from the messages alone."""

import base64
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.keys import Encoding
from tidelog.pikiwi.wal import FileWal, WalReader
from tidelog.pikiwi.wal.record import encode_records
from tidelog.spark.decoders import decoder_of, schema_of
from tidelog.spark.kernel.decode import Place
from tidelog.spark.kernel.event_rows import (
    EVENT_SCHEMA,
    TYPED_SCHEMA,
    NotAnEvent,
    decode_events,
    decode_typed,
    from_base64,
)
from tidelog.spark.kernel.options import read_options
from tidelog.spark.kernel.wal_chunks import read_chunks
from tidelog.spark.kernel.wal_rows import RowMaker, WalDecode
from tidelog.wire.records import Record, build_batch

from .pikiwi_world import LINEAGE, START, Items, items, shop

HOSTILE = [
    [b"SET", b"", b""],
    [b"DEL", b"a", b"b"],
    [b"SET", b"\xff", b"\xfe"],
    [b"FLUSHDB"],
    [b"LPOP", "schön\n".encode()],
]


def place(end: int) -> Place:
    return Place("events", 2, 0, end)


def topic_of(builder: EventBuilder, made: Items) -> bytearray:
    events = [builder.binlog_event(position, payload) for position, payload in made]
    return build_batch([Record(event.value, event.key) for event in events if event is not None])


def from_wal(folder: Path, builder: EventBuilder, made: Items, decode: WalDecode) -> list[dict[str, object]]:
    wal = FileWal(folder, 1 << 20, 2)
    wal.reset(START)
    wal.append(7, made)
    wal.close()
    first, durable = WalReader(folder).first(), WalReader(folder).durable()
    assert first is not None
    assert durable is not None
    maker = RowMaker(builder)
    made_of = [rows for chunk in read_chunks(folder, first, durable) for rows in maker.rows(decode, chunk)]
    return [row for rows in made_of for row in rows.to_pylist()]


@pytest.mark.parametrize("encoding", list(Encoding))
@pytest.mark.parametrize(("decode", "decoded"), [(WalDecode.EVENT, decode_events), (WalDecode.TYPED, decode_typed)])
def test_rows_are_those_of_the_wal(tmp_path: Path, decode, decoded, encoding: Encoding):
    builder = EventBuilder(EventSettings("db0", "127.0.0.1:9221", LINEAGE, args_encoding=encoding))
    made = items([*shop(500), *HOSTILE])
    schema = EVENT_SCHEMA if decode is WalDecode.EVENT else TYPED_SCHEMA
    run = topic_of(builder, made)
    found = [row for rows in decoded(run, place(1000), schema) for row in rows.to_pylist()]
    expected = from_wal(tmp_path, builder, made, decode)
    assert [row.pop("recordOffset") for row in found] == list(range(len(expected)))
    assert {(row.pop("topic"), row.pop("partition")) for row in found} == {("events", 2)}
    assert found == [{**row, "seq": None} for row in expected]


@given(st.lists(st.binary(max_size=9)), st.integers(0, 3))
def test_base64_is_undone(values: list[bytes], skipped: int):
    texts = pa.array([base64.b64encode(value).decode() for value in values], pa.string())[skipped:]
    assert from_base64(texts).to_pylist() == values[skipped:]


@pytest.mark.parametrize("text", ["abc", "ab=c", "a\u00e4bc", "====", "ab!="])
def test_what_is_no_base64_is_refused(text: str):
    with pytest.raises(ValueError, match=r"base64|multiple of 4"):
        from_base64(pa.array(["aaaa", text]))


def event(**changed: str) -> bytes:
    fields = {
        "event_type": '"binlog"', "op": '"set"', "data_type": '"string"', "db": '"db0"', "key": '"k"',
        "key_encoding": '"none"', "args": '["U0VU","aw=="]', "args_encoding": '"base64"', "ts_ms": "1",
        "position": '"r/db0/1/2"',
    } | changed  # fmt: skip
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items() if value) + "}").encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "the record has no value"),
        (b"text", "it is no JSON"),
        (b"[1]", "not one JSON object"),
        (event() + b"\n" + event(), "it is no JSON"),
        (event(key='"a\\u000ab"').replace(b",", b",\n", 1), "on one line"),
        (event() + event(), "it is no JSON"),
        (event(position=""), "lacks position"),
        (event(key_encoding="null"), "lacks key_encoding"),
        (event(args="[]"), "not a list of words"),
        (event(args='["U0VU",null]'), "not a list of words"),
        (event(ts_ms='"soon"'), "no event of the pipeline's"),
        (event(args='["???"]'), "no event of the pipeline's"),
        (event(position='"nowhere"'), "no event of the pipeline's"),
        (b"".join(encode_records(7, 0, START, items([[b"SET", b"k", b"v"]]))[0]), "a record of a WAL.*pikiwi-wal"),
    ],
)
def test_a_record_that_is_no_event_is_named(value: bytes | None, message: str):
    run = build_batch([Record(event(), b"k"), Record(value, b"k")])
    with pytest.raises(NotAnEvent, match=message):
        list(decode_typed(run, place(2), TYPED_SCHEMA))
    if "no event" not in message:
        with pytest.raises(NotAnEvent, match=f"events-2, offset 1: .*{message}"):
            list(decode_typed(run, place(2), TYPED_SCHEMA))


def test_columns_and_snapshots():
    run = build_batch([Record(event(event_type='"snapshot"', op='"flushdb"'), b"m")])
    chosen = {"decode": "event", "columns": "seq,broadcast,key,recordOffset"}
    options = read_options({"kafka.bootstrap.servers": "h:1", "subscribe": "t", **chosen}, streaming=False)
    [rows] = decoder_of(options).rows(memoryview(run), place(1), schema_of(options))
    assert rows.to_pylist() == [{"seq": 0, "broadcast": False, "key": b"m", "recordOffset": 0}]
