"""The rows that a task of the sink is handed, sorted by the partition they go to."""

import itertools

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.spark.errors import BadOption, RowRefused
from tidelog.spark.kernel.encode import Rows
from tidelog.spark.kernel.offsets import Partition
from tidelog.spark.kernel.partitioner import choose_partitions

Indices = pa.Array | slice | None
"""Which rows of a batch: these, a run of them, or all."""

_TEXT = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Refuse a DataFrame that cannot become records. Columns of other names are left out, as in Spark's Kafka sink."""
    kinds = {field.name: field.type for field in schema}
    if "value" not in kinds:
        raise BadOption("the sink needs a column value; there are " + ", ".join(kinds))
    if topic is None and "topic" not in kinds:
        raise BadOption("the sink needs the option topic, or a column topic")
    for name in ("key", "value"):
        if name in kinds and not any(is_text(kinds[name]) for is_text in _TEXT):
            raise BadOption(f"column {name} is {kinds[name]}; it must be string or binary")
    if "topic" in kinds and not pa.types.is_string(kinds["topic"]):
        raise BadOption(f"column topic is {kinds['topic']}; it must be string")
    if "partition" in kinds and not pa.types.is_int32(kinds["partition"]):
        raise BadOption(f"column partition is {kinds['partition']}; it must be int")
    if "timestamp" in kinds and not pa.types.is_timestamp(kinds["timestamp"]):
        raise BadOption(f"column timestamp is {kinds['timestamp']}; it must be timestamp")
    if "headers" in kinds and not _are_headers(kinds["headers"]):
        raise BadOption(f"column headers is {kinds['headers']}; it must be array<struct<key: string, value: binary>>")


def _are_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = list(kind.value_type)
    return [field.name for field in fields] == ["key", "value"] and all(
        any(is_text(field.type) for is_text in _TEXT) for field in fields
    )


def topics_of(batch: pa.RecordBatch, topic: str | None) -> pa.DictionaryArray:
    """The topic of each row."""
    if topic is not None:
        indices = pa.array(np.zeros(batch.num_rows, dtype=np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array([topic]))
    topics = batch.column("topic")
    if topics.null_count:
        raise RowRefused("a row has a null topic: give every row one, or set the option topic")
    return topics.dictionary_encode()


def rows_of(batch: pa.RecordBatch, now_ms: int) -> Rows:
    count = batch.num_rows
    names = batch.schema.names
    keys = batch.column("key").cast(pa.binary()) if "key" in names else pa.nulls(count, pa.binary())
    values = batch.column("value").cast(pa.binary())
    times = np.full(count, now_ms, dtype=np.int64)
    if "timestamp" in names:
        given = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        here = ~given.is_null().to_numpy(zero_copy_only=False)
        times[here] = given.drop_null().to_numpy() // 1000
    headers = batch.column("headers") if "headers" in names else None
    return Rows(keys, values, times, headers)


def by_partition(
    batch: pa.RecordBatch, topics: pa.DictionaryArray, counts: dict[str, int], task: int, first_row: int
) -> list[tuple[Partition, Indices]]:
    """Which rows go where: each partition with its rows, in order.

    `counts` says how many partitions a topic has, for rows that do not name theirs.
    """
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    partitions = np.empty(batch.num_rows, dtype=np.int64)
    given = batch.column("partition") if "partition" in batch.schema.names else pa.nulls(batch.num_rows, pa.int32())
    if given.null_count:
        has_key = "key" in batch.schema.names
        keys = batch.column("key").cast(pa.binary()) if has_key else pa.nulls(batch.num_rows, pa.binary())
        for code, name in enumerate(names):
            chosen = choose_partitions(keys, counts[name], task, first_row)
            partitions = chosen if len(names) == 1 else np.where(codes == code, chosen, partitions)
    here = ~given.is_null().to_numpy(zero_copy_only=False)
    partitions[here] = given.drop_null().to_numpy()
    if (partitions < 0).any():
        raise RowRefused(f"a row names partition {int(partitions.min())}: partitions count from 0")
    return _grouped(names, codes, partitions)


def _grouped(
    names: list[str], codes: npt.NDArray[np.int64], partitions: npt.NDArray[np.int64]
) -> list[tuple[Partition, Indices]]:
    width = int(partitions.max()) + 1
    groups = codes * width + partitions
    if (groups == groups[0]).all():
        return [((names[int(codes[0])], int(partitions[0])), None)]
    steps = np.diff(groups)
    if (steps >= 0).all():  # sorted by whoever made them: nothing has to be moved
        bounds = [0, *(np.flatnonzero(steps) + 1).tolist(), len(groups)]
        return [
            ((names[int(codes[begin])], int(partitions[begin])), slice(begin, end))
            for begin, end in itertools.pairwise(bounds)
        ]
    order = np.argsort(groups, kind="stable")
    found, begins = np.unique(groups[order], return_index=True)
    parts = np.split(order, begins[1:])
    return [
        ((names[int(group) // width], int(group) % width), pa.array(part))
        for group, part in zip(found, parts, strict=True)
    ]


def take(rows: Rows, indices: Indices) -> Rows:
    if indices is None:
        return rows
    if isinstance(indices, slice):
        return rows.slice(indices.start, indices.stop - indices.start)
    return Rows(
        rows.keys.take(indices),
        rows.values.take(indices),
        rows.times_ms[indices.to_numpy()],
        None if rows.headers is None else rows.headers.take(indices),
    )


def join(parts: list[Rows]) -> Rows:
    """The rows of all parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    headers = None
    if parts[0].headers is not None:  # all parts come from one DataFrame
        headers = pa.concat_arrays([part.headers for part in parts])
    return Rows(
        pa.concat_arrays([part.keys for part in parts]),
        pa.concat_arrays([part.values for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        headers,
    )


def same_content(rows: Rows, at: int, key: bytes | None, value: bytes | None) -> bool:
    return rows.keys[at].as_py() == key and rows.values[at].as_py() == value


def has_nameless_headers(rows: Rows) -> bool:
    """Whether a header has no name: a record cannot say so."""
    if rows.headers is None:
        return False
    entries = rows.headers.flatten()
    return bool(entries.null_count or entries.field(0).null_count)
