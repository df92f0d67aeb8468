"""Rows become the very bytes that the scalar encoder makes, and go where Kafka's Java client sends them."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.spark.errors import BadOption, RowRefused
from tidelog.spark.kernel.decode import HEADERS, TIMESTAMP
from tidelog.spark.kernel.encode import Rows, cut, encode_batch
from tidelog.spark.kernel.partitioner import KEYLESS_RUN, choose_partitions, murmur2
from tidelog.spark.kernel.rows import by_partition, check_columns, join, rows_of, take, topics_of
from tidelog.wire.compression import Codec
from tidelog.wire.records import Record, build_batch

CONTENT = st.none() | st.binary(max_size=200)
PAIRS = st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=20)), max_size=3).map(tuple)
RECORDS = st.lists(
    st.builds(Record, value=CONTENT, key=CONTENT, timestamp=st.integers(0, 10**14), headers=PAIRS),
    min_size=1,
    max_size=30,
)


def as_rows(records: list[Record]) -> Rows:
    headers = [[{"key": name, "value": value} for name, value in record.headers] or None for record in records]
    return Rows(
        pa.array([record.key for record in records], pa.binary()),
        pa.array([record.value for record in records], pa.binary()),
        np.array([record.timestamp for record in records], dtype=np.int64),
        pa.array(headers, HEADERS),
    )


@given(RECORDS, st.sampled_from(Codec), st.integers(0, 10))
def test_a_batch_has_the_bytes_of_the_scalar_encoder(records, codec, begin):
    begin = min(begin, len(records) - 1)
    rows, records = as_rows(records).slice(begin), records[begin:]
    made = encode_batch(rows, producer_id=7, producer_epoch=0, base_sequence=9, codec=codec)
    assert made == build_batch(records, codec=codec, producer_id=7, producer_epoch=0, base_sequence=9)


@given(RECORDS)
def test_no_record_is_larger_than_its_estimate(records):
    rows = as_rows(records)
    for number, record in enumerate(records):
        assert len(build_batch([record])) - 61 <= rows.sizes()[number]


@given(RECORDS, RECORDS)
def test_joined_rows_are_both_parts_one_after_the_other(first, second):
    both = join([as_rows(first), as_rows(second)])
    made = encode_batch(both, producer_id=1, producer_epoch=0, base_sequence=0)
    assert made == build_batch(first + second, producer_id=1, producer_epoch=0, base_sequence=0)


@pytest.mark.parametrize(
    ("sizes", "ends"),
    [
        ([], []),
        ([5], [1]),
        ([5, 5], [2]),
        ([5, 6], [1, 2]),
        ([99], [1]),
        ([1, 99, 1], [1, 2, 3]),
        ([3, 3, 3, 3], [3, 4]),
    ],
)
def test_runs_are_cut_at_the_limit(sizes, ends):
    assert cut(np.array(sizes, dtype=np.int64), 10) == ends


def scalar_murmur2(data: bytes) -> int:
    """From the definition of the hash, a byte at a time."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * m & mask
        word = (word ^ word >> 24) * m & mask
        value = value * m & mask ^ word
    if data[whole:]:
        value = (value ^ int.from_bytes(data[whole:], "little")) * m & mask
    value = (value ^ value >> 13) * m & mask
    return value ^ value >> 15


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=30), st.integers(0, 3))
def test_hashes_are_murmur2(keys, begin):
    hashes = murmur2(pa.array(keys, pa.binary()).slice(begin))
    assert hashes.tolist() == [scalar_murmur2(key) for key in keys[begin:]]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_that_kafkas_own_tests_expect(key, expected):
    assert murmur2(pa.array([key], pa.binary())).astype(np.int32).tolist() == [expected]


def test_rows_without_a_key_take_turns_that_a_retry_takes_as_well():
    keys = pa.nulls(2 * KEYLESS_RUN, pa.binary())
    whole = choose_partitions(keys, 3, task=2, first_row=0)
    assert set(whole[:KEYLESS_RUN].tolist()) == {2}
    assert set(whole[KEYLESS_RUN:].tolist()) == {0}
    parts = [choose_partitions(keys.slice(begin, 700), 3, 2, begin) for begin in range(0, 2 * KEYLESS_RUN, 700)]
    assert np.concatenate(parts).tolist() == whole.tolist()


def frame(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def test_rows_are_sorted_by_topic_and_partition_and_keep_their_order():
    batch = frame(
        value=pa.array(["a", "b", "c", "d", "e"]),
        topic=pa.array(["x", "y", "x", "x", "y"]),
        partition=pa.array([1, 0, 0, 1, 0], pa.int32()),
    )
    rows = rows_of(batch, now_ms=5)
    parts = by_partition(batch, topics_of(batch, None), {"x": 2, "y": 1}, 0, 0)
    found = {place: take(rows, indices).values.to_pylist() for place, indices in parts}
    assert found == {("x", 0): [b"c"], ("x", 1): [b"a", b"d"], ("y", 0): [b"b", b"e"]}
    assert rows.times_ms.tolist() == [5] * 5


def test_a_row_without_a_partition_goes_where_its_key_says():
    keys = [b"21", b"foobar", b"abc", b"abc"]
    values = pa.array([b"0", b"1", b"2", b"3"])
    batch = frame(key=pa.array(keys), value=values, partition=pa.array([None, None, None, 2], pa.int32()))
    parts = by_partition(batch, topics_of(batch, "t"), {"t": 5}, 0, 0)
    found = {place[1]: take(rows_of(batch, now_ms=0), indices).values.to_pylist() for place, indices in parts}
    chosen = {(scalar_murmur2(key) & 0x7FFFFFFF) % 5 for key in keys[:3]}
    assert found.keys() == chosen | {2}
    assert b"3" in found[2]


def test_times_are_the_rows_own_in_milliseconds():
    batch = frame(value=pa.array(["a", "b"]), timestamp=pa.array([1_234_567, None], TIMESTAMP))
    assert rows_of(batch, now_ms=99).times_ms.tolist() == [1234, 99]


@pytest.mark.parametrize(
    ("fields", "topic", "message"),
    [
        ({"key": pa.binary()}, "t", "needs a column value"),
        ({"value": pa.binary()}, None, "needs the option topic"),
        ({"value": pa.int64()}, "t", "column value is int64"),
        ({"value": pa.binary(), "key": pa.int32()}, "t", "column key is int32"),
        ({"value": pa.binary(), "topic": pa.binary()}, None, "column topic is binary"),
        ({"value": pa.binary(), "partition": pa.int64()}, "t", "column partition is int64"),
        ({"value": pa.binary(), "timestamp": pa.int64()}, "t", "column timestamp is int64"),
        ({"value": pa.binary(), "headers": pa.string()}, "t", "column headers is string"),
    ],
)
def test_a_frame_that_cannot_become_records_is_refused(fields, topic, message):
    with pytest.raises(BadOption, match=message):
        check_columns(pa.schema(list(fields.items())), topic)


def test_a_null_topic_is_refused():
    with pytest.raises(RowRefused, match="null topic"):
        topics_of(frame(value=pa.array(["a"]), topic=pa.array([None], pa.string())), None)


def test_a_negative_partition_is_refused():
    batch = frame(value=pa.array(["a"]), partition=pa.array([-1], pa.int32()))
    with pytest.raises(RowRefused, match="partition -1"):
        by_partition(batch, topics_of(batch, "t"), {"t": 1}, 0, 0)
