"""The vectorised decoder gives what the scalar one gives, for any batch, and refuses what it refuses."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.kernel import decode as kernel
from tidelog.spark.kernel.decode import RAW_SCHEMA, RECORD_SCHEMA, Place, decode_raw, decode_records
from tidelog.spark.kernel.varints import put_varints, take_varints
from tidelog.wire.batch import ATTRIBUTE_CONTROL, CorruptBatchError, assemble, build_own_batch, seal
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, build_batch, read_records

EVERYTHING = (0, 1 << 62)
TIMES = st.integers(-(10**15), 10**15)
CONTENT = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=80)), max_size=4).map(tuple)
RECORDS = st.builds(Record, value=CONTENT, key=CONTENT, timestamp=TIMES, headers=HEADERS)
BATCHES = st.lists(
    st.tuples(
        st.lists(RECORDS, min_size=1, max_size=12), st.sampled_from(Codec), st.none() | st.integers(0, 10**13),
        st.integers(0, 5),
    ),
    min_size=1, max_size=5,
)  # fmt: skip


@pytest.fixture(autouse=True)
def batches_of_any_size_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "ALIKE_MIN", 1)


def place(start: int = 0, end: int = 1 << 62) -> Place:
    return Place("orders", 7, start, end)


def run_of(batches: list[tuple[list[Record], Codec, int | None, int]]) -> tuple[bytearray, list[bytearray]]:
    """The batches one after the other, with gaps between their offsets."""
    offset, made = 0, []
    for records, codec, append_time_ms, gap in batches:
        offset += gap
        made.append(build_batch(records, offset, codec=codec, append_time_ms=append_time_ms))
        offset += len(records)
    return bytearray(b"".join(made)), made


def expected_rows(batches: list[bytearray], start: int, end: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in batches:
        appended = int.from_bytes(batch[21:23], "big") & 0x08
        rows.extend(
            {
                "key": record.key, "value": record.value, "topic": "orders", "partition": 7, "offset": record.offset,
                "timestamp": record.timestamp * 1000, "timestampType": 1 if appended else 0,
                "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
            }
            for record in read_records(batch) if start <= record.offset < end
        )  # fmt: skip
    return rows


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for batch in batches:
        batch.validate(full=True)
        if "timestamp" in batch.schema.names:
            at = batch.schema.names.index("timestamp")
            batch = batch.set_column(at, "timestamp", batch.column(at).cast(pa.int64()))  # noqa: PLW2901
        rows += batch.to_pylist()
    return rows


@given(BATCHES, st.integers(0, 40), st.integers(0, 60))
def test_rows_are_those_of_the_scalar_decoder(batches, start, length):
    run, made = run_of(batches)
    decoded = list(decode_records(run, place(start, start + length), RECORD_SCHEMA))
    assert rows_of(decoded) == expected_rows(made, start, start + length)


@given(BATCHES)
def test_columns_may_be_any_of_them_in_any_order(batches):
    run, made = run_of(batches)
    schema = pa.schema([RECORD_SCHEMA.field("offset"), RECORD_SCHEMA.field("value")])
    decoded = list(decode_records(run, place(), schema))
    assert all(batch.schema == schema for batch in decoded)
    assert rows_of(decoded) == [{"offset": r["offset"], "value": r["value"]} for r in expected_rows(made, *EVERYTHING)]


@given(BATCHES, st.integers(0, 40), st.integers(1, 60), st.integers(1, 10))
def test_raw_rows_hold_the_same_records_as_they_lie(batches, start, length, group):
    run, made = run_of(batches)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "GROUP_RECORDS", group)
        raw = decode_raw(run, place(start, start + length)).to_pylist()
    again = [
        decode_records(
            row["payload"], Place(row["topic"], row["partition"], row["offset"], row["endOffset"]), RECORD_SCHEMA
        )
        for row in raw
    ]
    assert rows_of([batch for part in again for batch in part]) == expected_rows(made, start, start + length)
    assert b"".join(row["payload"] for row in raw) in bytes(run)


@given(BATCHES, st.data())
def test_damage_is_refused_or_changes_nothing(batches, data):
    """With a right checksum around wrong records: never another exception, and never other rows than the scalar's."""
    _, made = run_of(batches[:1])
    batch = made[0]
    at = data.draw(st.integers(61, len(batch) - 1))
    batch[at] = data.draw(st.integers(0, 255))
    seal(batch)
    try:
        expected = expected_rows([batch], *EVERYTHING)
    except CorruptBatchError:
        with pytest.raises(CorruptBatchError):
            rows_of(list(decode_records(batch, place(), RECORD_SCHEMA)))
        return
    if all(
        abs(int(str(row["timestamp"]))) < 1 << 63 for row in expected
    ):  # Spark's timestamps are narrower than Kafka's
        assert rows_of(list(decode_records(batch, place(), RECORD_SCHEMA))) == expected


def test_a_wrong_checksum_is_refused():
    batch = build_batch([Record(b"v")])
    batch[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="checksum"):
        list(decode_records(batch, place(), RECORD_SCHEMA))


def test_an_error_names_topic_partition_and_offsets():
    batch = build_batch([Record(b"value")], 41)
    batch[61] += 2  # the record claims one byte more
    seal(batch)
    with pytest.raises(CorruptBatchError, match=r"orders-7, offsets 41 to 42: "):
        list(decode_records(batch, place(), RECORD_SCHEMA))


def test_control_batches_are_left_out():
    marker = assemble(
        bytes(build_batch([Record(b"\0\0\0\0\0\0", b"\0\0\0\1")])[61:]), attributes=ATTRIBUTE_CONTROL,
        last_offset_delta=0, base_timestamp=0, max_timestamp=0, record_count=1, base_offset=1, leader_epoch=0,
    )  # fmt: skip
    ours = build_own_batch(1, b"term", 2, 3)
    run = bytearray(build_batch([Record(b"a")], 0) + marker + ours + build_batch([Record(b"b")], 2))
    assert [row["value"] for row in rows_of(list(decode_records(run, place(), RECORD_SCHEMA)))] == [b"a", b"b"]
    assert [(row["offset"], row["endOffset"]) for row in decode_raw(run, place()).to_pylist()] == [(0, 1), (2, 3)]


def test_groups_have_about_as_many_rows_as_they_should():
    records = [Record(b"v%d" % number) for number in range(7)]
    run, _ = run_of([(records, Codec.NONE, None, 0)] * 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "GROUP_RECORDS", 20)
        assert [batch.num_rows for batch in decode_records(run, place(), RECORD_SCHEMA)] == [20, 1, 20, 1, 20, 1]
        assert decode_raw(run, place()).num_rows == 3


def test_a_raw_row_has_about_as_many_bytes_as_it_should_and_is_not_copied():
    batch_bytes = len(build_batch([Record(b"v")]))
    run, _ = run_of([([Record(b"v")], Codec.NONE, None, 0)] * 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel, "RAW_BYTES", 2 * batch_bytes)
        payload = decode_raw(run, place()).column("payload")
    assert [len(row.as_py()) for row in payload] == [2 * batch_bytes, 2 * batch_bytes, batch_bytes]
    assert payload.buffers()[2].address == pa.py_buffer(run).address


def laid_out(*sizes: int) -> list[Record]:
    return [Record(value=b"%c" % (65 + number) * size, timestamp=number) for number, size in enumerate(sizes)]


def test_records_that_lie_as_in_the_batch_before_are_not_walked_over(monkeypatch):
    walk, walked = kernel._record_starts, []
    monkeypatch.setattr(kernel, "_record_starts", lambda *given: walked.append(given[1]) or walk(*given))
    run, batches = run_of([(laid_out(9, 100, 70), Codec.NONE, None, 1)] * 5)
    assert rows_of(list(decode_records(run, place(), RECORD_SCHEMA))) == expected_rows(batches, *EVERYTHING)
    assert len(walked) == 1


@pytest.mark.parametrize("sizes", [(70, 9, 100), (9, 70, 100), (100, 9, 70), (9, 100, 70)])
@pytest.mark.parametrize("large", [0, 9_000])
def test_records_that_lie_otherwise_in_as_many_bytes_come_out_right(sizes, large):
    first = laid_out(9, 100, 70, large)
    run, batches = run_of([(records, Codec.NONE, None, 0) for records in (first, laid_out(*sizes, large), first)])
    assert len({len(batch) for batch in batches}) == 1
    assert rows_of(list(decode_records(run, place(), RECORD_SCHEMA))) == expected_rows(batches, *EVERYTHING)


def test_small_batches_between_large_ones_keep_their_place(monkeypatch):
    monkeypatch.setattr(kernel, "ALIKE_MIN", 3)
    sizes = [(5,), (9, 100, 70), (6, 7), (9, 100, 70), (8,), (8,)]
    run, batches = run_of([(laid_out(*each), Codec.NONE, None, 0) for each in sizes])
    assert rows_of(list(decode_records(run, place(), RECORD_SCHEMA))) == expected_rows(batches, *EVERYTHING)


def test_nothing_to_decode_is_no_row():
    assert list(decode_records(b"", place(), RECORD_SCHEMA)) == []
    empty = decode_raw(b"", place())
    assert (empty.num_rows, empty.schema) == (0, RAW_SCHEMA)


@given(st.lists(st.integers(-(2**62), 2**62 - 1) | st.integers(-300, 300), min_size=1, max_size=20))
def test_varints_come_back(values):
    matrix, counts, sizes = put_varints(np.array(values, dtype=np.int64))
    data = matrix[counts]
    at = np.cumsum(sizes) - sizes
    read, ends = take_varints(data, at)
    assert read.tolist() == values
    assert ends.tolist() == np.cumsum(sizes).tolist()


def test_a_varint_of_more_than_64_bits_is_refused():
    with pytest.raises(CorruptBatchError):
        take_varints(np.array([0xFF] * 9 + [0x7F], dtype=np.uint8), np.array([0]))


def test_what_becomes_large_when_it_is_decompressed_comes_in_parts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kernel, "GROUP_BYTES", 50_000)
    records = [Record(b"%d" % number * 10_000) for number in range(10)]
    run, made = run_of([([record], Codec.ZSTD, None, 0) for record in records])
    assert len(run) < 50_000, "as it lies it is one group"
    parts = list(decode_records(run, place(), RECORD_SCHEMA))
    assert [part.num_rows for part in parts] == [5, 5]
    assert rows_of(parts) == expected_rows(made, *EVERYTHING)
