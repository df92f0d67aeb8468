"""WAL records as columns and rows, without Spark: equal to what the plain readers and builders make of them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.errors import CorruptWal, RespError
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.filter import Filter
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.wal import FileWal, WalGone, WalPoint, WalReader
from tidelog.pikiwi.wal.record import HEADER_BYTES
from tidelog.spark.kernel import rows as kernel_rows
from tidelog.spark.kernel import wal_chunks
from tidelog.spark.kernel.messages import MESSAGE_SCHEMA, Delivery
from tidelog.spark.kernel.wal_chunks import read_chunks
from tidelog.spark.kernel.wal_options import DatabaseSource, EventRules
from tidelog.spark.kernel.wal_rows import SCHEMAS, RowMaker, WalDecode
from tidelog.spark.orders import Delivered, WalOrder, orders_in, row_of

from .pikiwi_world import LINEAGE, START, Items, items, shop

SETTINGS = EventSettings("db0", "127.0.0.1:9221", LINEAGE)
DELIVERY = Delivery("events", 3, 1_000_000)


def written(folder: Path, made: Items, segment_bytes: int = 64 << 10) -> tuple[WalPoint, WalPoint]:
    """Places before and behind all of it."""
    wal = FileWal(folder, segment_bytes, 2)
    wal.reset(START)
    wal.append(7, made)
    wal.close()
    reader = WalReader(folder)
    first, durable = reader.first(), reader.durable()
    assert first is not None
    assert durable is not None
    return first, durable


def rows(folder: Path, made: Items, decode: WalDecode, maker: RowMaker | None = None) -> list[dict[str, object]]:
    maker = maker or RowMaker(EventBuilder(SETTINGS))
    batches = [batch for chunk in read_chunks(folder, *written(folder, made)) for batch in maker.rows(decode, chunk)]
    assert all(batch.schema == SCHEMAS[decode] for batch in batches)
    return pa.Table.from_batches(batches, SCHEMAS[decode]).to_pylist()


def sent(
    folder: Path, made: Items, delivery: Delivery = DELIVERY, filters: tuple[str, ...] = ()
) -> tuple[list[dict[str, object]], int]:
    """The messages of an order that has travelled, and how many items it left out."""
    rules = EventRules(SETTINGS, filters, ())
    order = WalOrder(DatabaseSource("db0", folder, rules), *written(folder, made), delivery)
    [arrived] = orders_in([row_of(order)])
    assert arrived == order
    delivered = Delivered([arrived])
    batches = list(delivered)
    assert all(batch.schema == MESSAGE_SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()], delivered.left_out


def test_chunks_hold_what_a_plain_reader_reads_over_all_segments_and_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wal_chunks, "CHUNK_BYTES", 10_000)
    first, durable = written(tmp_path, items([*shop(1000), [b"SET", b"large", b"x" * 30_000], *shop(10, seed=2)]))
    reader = WalReader(tmp_path)
    plain = list(reader.read(first))
    for start in (first, reader.after(500)):
        chunks = list(read_chunks(tmp_path, start, durable))
        assert len(chunks) > 5
        found = [
            (epoch, seq, (filenum, offset), payload)
            for chunk in chunks
            for epoch, seq, filenum, offset, payload in zip(
                chunk.epochs, chunk.seqs, chunk.filenums, chunk.offsets, chunk.payloads.to_pylist(), strict=True
            )
        ]
        assert found == [tuple(record) for record in plain[start.seq :]]
    part = list(read_chunks(tmp_path, reader.after(10), reader.after(20)))
    assert [seq for chunk in part for seq in chunk.seqs] == list(range(11, 21))


@pytest.mark.parametrize("at", [0, 13, 20, 30, 41, 45, 50, 60, 200])
def test_a_damaged_byte_is_found_with_file_and_place(tmp_path: Path, at: int):
    first, durable = written(tmp_path, items(shop(50)))
    place = WalReader(tmp_path).after(25)
    [path] = tmp_path.glob("wal-*.log")
    data = bytearray(path.read_bytes())
    data[place.offset + at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises(CorruptWal) as caught:
        list(read_chunks(tmp_path, first, durable))
    assert caught.value.path == path
    assert place.offset <= caught.value.offset <= place.offset + at


@given(st.lists(st.binary(min_size=44, max_size=44), min_size=1, max_size=9), st.integers(0, 44))
def test_checksums_of_headers_are_those_of_each_alone(contents: list[bytes], same: int):
    each = [contents[0][:same] + content[same:] for content in contents]
    whole = [content + bytes(HEADER_BYTES - len(content)) for content in each]
    headers = np.frombuffer(b"".join(whole), wal_chunks._HEADER)
    assert wal_chunks._header_crcs(headers).tolist() == [crc32c(header) for header in whole]


def test_what_was_removed_is_gone(tmp_path: Path):
    first, durable = written(tmp_path, items(shop(1000)))
    min(tmp_path.glob("wal-*.log")).unlink()
    with pytest.raises(WalGone, match="record 1 is no longer there"):
        list(read_chunks(tmp_path, first, durable))


def test_events_are_the_builder_s(tmp_path: Path):
    made = items(shop(2000))
    builder = EventBuilder(SETTINGS)
    found = rows(tmp_path, made, WalDecode.EVENT)
    assert [(row["key"], row["value"], row["broadcast"]) for row in found] == [
        builder.binlog_event(*item) for item in made
    ]
    assert [(row["seq"], row["filenum"], row["offset"]) for row in found] == [
        (number + 1, *position) for number, (position, _) in enumerate(made)
    ]


@pytest.mark.parametrize("filters", [(), ("key=key-1*;type=string",)])
def test_typed_rows_are_the_commands_that_pass(tmp_path: Path, filters: tuple[str, ...]):
    hostile = [[b"_internal:x", b"1"], [b"SADD", b"_internal:slotkey:4migrate:1", b"m"], [b"padding", b"x"]]
    made = items([*shop(1000), *hostile, [b"SET", b"_own", b"1"], [b"DEL", b"a", b"b"]])
    chosen = Filter.parse(filters)
    found = rows(tmp_path, made, WalDecode.TYPED, RowMaker(EventBuilder(SETTINGS, chosen)))
    expected = []
    builder = EventBuilder(SETTINGS, chosen)
    for position, payload in made:
        if builder.binlog_event(position, payload) is None:
            continue
        item = decode_item(payload)
        args = parse_command(item.content)
        if args[0] == b"pksetexat":
            args = [b"SET", args[1], args[3], b"EXAT", args[2]]
        expected.append((position, item.exec_time_s * 1000, args))
    assert [((row["filenum"], row["offset"]), row["exec_ms"], row["args"]) for row in found] == expected
    for row in found:
        args = row["args"]
        assert isinstance(args, list)
        assert (row["op"], row["key"]) == (args[0].decode().lower(), args[1] if len(args) > 1 else None)


def test_an_item_that_is_no_command_is_an_error_that_names_its_position(tmp_path: Path):
    [(position, payload)] = items([[b"SET", b"k", b"v"]])
    broken = [(position, payload.replace(b"*3", b"*4"))]
    for decode in (WalDecode.EVENT, WalDecode.TYPED):
        with pytest.raises(RespError, match=f"db0, item that ends at {position}"):
            rows(tmp_path / decode.value, broken, decode)
    with pytest.raises(RespError, match=f"db0, item that ends at {position}"):
        sent(tmp_path / "sent", broken)


def test_messages_say_topic_and_partition_and_go_everywhere_when_they_concern_all(tmp_path: Path):
    found, left_out = sent(tmp_path, items([[b"SET", b"a", b"1"], [b"FLUSHDB"], [b"SET", b"b", b"2"]]))
    ops = [(row["partition"], json.loads(row["value"])["op"]) for row in found]  # type: ignore[arg-type]
    assert ops == [(0, "flushdb"), (1, "set"), (1, "flushdb"), (1, "set"), (2, "flushdb")]
    assert {row["topic"] for row in found} == {"events"}
    assert found[1]["timestamp"].timestamp() == 1_700_000_000  # type: ignore[union-attr]
    assert left_out == 0


def test_of_items_that_are_all_held_back_there_is_nothing_to_send_but_their_number(tmp_path: Path):
    assert sent(tmp_path, items([[b"SET", b"a", b"1"]] * 300), filters=("key=other",)) == ([], 300)


def test_an_event_that_is_too_large_becomes_a_dead_letter_once(tmp_path: Path):
    made = items([[b"RENAME", b"r" * 3000, b"\xff" * 3000], [b"SET", b"a", b"1"], [b"SET", b"\xff" * 3000, b"2"]])
    found, _ = sent(tmp_path, made, Delivery("events", 3, 4000))
    assert [row["topic"] for row in found] == ["events", "events.dead-letter", "events.dead-letter"]
    assert [row["partition"] is None for row in found] == [False, True, True]
    letters = [json.loads(row["value"]) for row in found[1:]]  # type: ignore[arg-type]
    positions = {f"{LINEAGE}/db0/{made[at][0].filenum}/{made[at][0].offset}" for at in (0, 2)}
    assert {letter["position"] for letter in letters} == positions
    for row, letter in zip(found[1:], letters, strict=True):
        assert letter["reason"] == "event_too_large"
        assert letter["key_is_cut"]
        assert len(row["value"]) < 4000  # type: ignore[arg-type]


def test_what_a_partition_gets_is_in_the_order_of_the_wal_however_a_batch_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    made = items([*shop(1000), [b"FLUSHDB"], *shop(500, seed=3)])
    ends = {f"{LINEAGE}/db0/{end.filenum}/{end.offset}": number for number, (end, _) in enumerate(made)}
    whole = by_partition(sent(tmp_path / "whole", made)[0])
    found = [[ends[json.loads(value)["position"]] for value in values] for values in whole.values()]
    assert set().union(*found) == set(range(len(made)))
    for places in found:
        assert places == sorted(places)
    monkeypatch.setattr(wal_chunks, "CHUNK_BYTES", 5000)
    assert by_partition(sent(tmp_path / "pieces", made)[0]) == whole


@pytest.mark.parametrize(
    ("partitions", "way", "expected"),
    [([0, 0, 2], slice, {0: [b"1", b"2"], 2: [b"3"]}), ([2, 0, 0], pa.Array, {0: [b"2", b"3"], 2: [b"1"]})],
)
def test_rows_that_are_sorted_already_are_sliced_and_others_are_moved(
    partitions: list[int], way: type, expected: dict[int, list[bytes]]
):
    schema = pa.schema([("value", pa.binary()), ("partition", pa.int32())])
    batch = pa.RecordBatch.from_pydict({"value": [b"1", b"2", b"3"], "partition": partitions}, schema=schema)
    found = kernel_rows.by_partition(batch, kernel_rows.topics_of(batch, "t"), {"t": 3}, 0, 0)
    assert all(isinstance(indices, way) for _, indices in found)
    every = kernel_rows.rows_of(batch, 0)
    assert {number: kernel_rows.take(every, rows).values.to_pylist() for (_, number), rows in found} == expected


def by_partition(found: list[dict[str, object]]) -> dict[object, list[bytes]]:
    values: dict[object, list[bytes]] = {}
    for row in found:
        value = row["value"]
        assert isinstance(value, bytes)
        values.setdefault(row["partition"], []).append(value)
    return values
