"""WAL records as columns and rows, without Spark: equal to what the plain readers and builders make of them."""

import json
from pathlib import Path

import pyarrow as pa
import pytest

from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.errors import CorruptWal, RespError
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.filter import Filter
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.wal import FileWal, WalGone, WalPoint, WalReader
from tidelog.spark.kernel import messages as kernel_messages
from tidelog.spark.kernel import wal_chunks
from tidelog.spark.kernel.messages import MESSAGE_SCHEMA, Delivery, unpack
from tidelog.spark.kernel.wal_chunks import read_chunks
from tidelog.spark.kernel.wal_rows import SCHEMAS, RowMaker, WalDecode

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
    maker = maker or RowMaker(EventBuilder(SETTINGS), DELIVERY)
    batches = [batch for chunk in read_chunks(folder, *written(folder, made)) for batch in maker.rows(decode, chunk)]
    assert all(batch.schema == SCHEMAS[decode] for batch in batches)
    if decode is WalDecode.MESSAGE:
        return pa.Table.from_batches(unpack(batches), MESSAGE_SCHEMA).to_pylist()
    return pa.Table.from_batches(batches, SCHEMAS[decode]).to_pylist()


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


@pytest.mark.parametrize("at", [0, 20, 30, 41, 45, 50, 60, 200])
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
    for decode in (WalDecode.EVENT, WalDecode.TYPED, WalDecode.MESSAGE):
        with pytest.raises(RespError, match=f"db0, item that ends at {position}"):
            rows(tmp_path / decode.value, broken, decode)


def test_messages_say_topic_and_partition_and_go_everywhere_when_they_concern_all(tmp_path: Path):
    made = items([[b"SET", b"a", b"1"], [b"FLUSHDB"], [b"SET", b"b", b"2"]])
    found = rows(tmp_path, made, WalDecode.MESSAGE)
    values = [json.loads(row["value"])["op"] for row in found]  # type: ignore[arg-type]
    assert values == ["set", "flushdb", "flushdb", "flushdb", "set"]
    assert [row["partition"] for row in found[1:4]] == [0, 1, 2]
    assert {row["topic"] for row in found} == {"events"}
    assert found[0]["timestamp"].timestamp() == 1_700_000_000  # type: ignore[union-attr]


def test_of_items_that_are_all_held_back_there_is_nothing_to_send(tmp_path: Path):
    maker = RowMaker(EventBuilder(SETTINGS, Filter.parse(["key=other"])), DELIVERY)
    assert rows(tmp_path, items([[b"SET", b"a", b"1"]] * 300), WalDecode.MESSAGE, maker) == []


def test_messages_are_the_same_when_they_travel_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = items(shop(300))
    whole = rows(tmp_path / "whole", made, WalDecode.MESSAGE)
    monkeypatch.setattr(kernel_messages, "PIECE_BYTES", 1000)
    assert rows(tmp_path / "pieces", made, WalDecode.MESSAGE) == whole


def test_an_event_that_is_too_large_becomes_a_dead_letter_once(tmp_path: Path):
    made = items([[b"SET", b"a", b"1"], [b"RENAME", b"r" * 3000, b"\xff" * 3000], [b"SET", b"\xff" * 3000, b"2"]])
    maker = RowMaker(EventBuilder(SETTINGS), Delivery("events", 3, 4000))
    found = rows(tmp_path, made, WalDecode.MESSAGE, maker)
    assert [row["topic"] for row in found] == ["events", "events.dead-letter", "events.dead-letter"]
    assert [row["partition"] is None for row in found] == [False, True, True]
    for row, (position, _) in zip(found[1:], made[1:], strict=True):
        letter = json.loads(row["value"])  # type: ignore[arg-type]
        assert letter["reason"] == "event_too_large"
        assert letter["key_is_cut"]
        assert letter["position"] == f"{LINEAGE}/db0/{position.filenum}/{position.offset}"
        assert len(row["value"]) < 4000  # type: ignore[arg-type]


def test_a_batch_s_rows_do_not_depend_on_how_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = items(shop(1500))
    whole = rows(tmp_path / "whole", made, WalDecode.MESSAGE)
    monkeypatch.setattr(wal_chunks, "CHUNK_BYTES", 5000)
    assert rows(tmp_path / "pieces", made, WalDecode.MESSAGE) == whole
