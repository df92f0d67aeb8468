"""Any stream as a Delta table: a row a record, its JSON fields as columns (`json_columns.py`).

A batch is one commit, which also says how far each partition has come, so a stopped run goes on exactly behind what is
in the table. New columns are added by a commit of their own before it: one that was added and then not used is null
everywhere, and harmless.

Cost: some microseconds a record, in Python; a batch of `ROWS_MAX` records or `BYTES_MAX` bytes in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidelog.spark.cluster import Cluster
from tidelog.spark.errors import DataLost
from tidelog.spark.fetch import FetchOrigin
from tidelog.spark.kernel.decode import RECORD_SCHEMA, Place, decode_records
from tidelog.spark.kernel.offsets import Offsets
from tidelog.spark.kernel.offsets import Partition as StreamPartition
from tidelog.spark.kernel.options import FETCH_BYTES_DEFAULT, Subscription
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.tables.delta import DeltaFolder, TableError
from tidelog.spark.tables.json_columns import META, RESCUED, columns_of

ROWS_MAX = 100_000
BYTES_MAX = 64 << 20
KIND, STREAM, TOPIC = "tidelog.kind", "stream", "tidelog.stream"

_READ = pa.schema([RECORD_SCHEMA.field(name) for name in ("partition", "offset", "timestamp", "key", "value")])


@dataclass(frozen=True, slots=True)
class Landed:
    """One commit."""

    version: int
    records: int
    new_columns: tuple[str, ...]
    rescued: int


def open_stream_table(folder: Path, topic: str) -> DeltaFolder:
    """The table in a folder, made when there is none; refused when it is another stream's."""
    if not DeltaFolder.exists(folder):
        return DeltaFolder.create(folder, META, settings={KIND: STREAM, TOPIC: topic})
    table = DeltaFolder.open(folder)
    if (table.settings.get(KIND), table.settings.get(TOPIC)) != (STREAM, topic):
        raise TableError(f"{folder} holds another table than that of {topic}; choose another folder")
    return table


def land(table: DeltaFolder, cluster: Cluster, topic: str) -> Iterator[Landed]:
    """Everything up to the stream's present end."""
    places = cluster.partitions(Subscription(topics=(topic,)))
    ends = cluster.latest(places)
    starts = _starts(table, cluster, places, ends)
    held: list[pa.RecordBatch] = []
    rows = size = 0
    behind: dict[StreamPartition, int] = {}
    for place in places:
        for batch in _records(cluster, OffsetRange(*place, starts[place], ends[place])):
            held.append(batch)
            behind[place] = batch["offset"][-1].as_py() + 1
            rows += len(batch)
            size += batch.nbytes
            if rows >= ROWS_MAX or size >= BYTES_MAX:
                yield _commit(table, held, behind)
                held, rows, size, behind = [], 0, 0, {}
        if starts[place] < ends[place]:
            behind[place] = ends[place]  # the last offsets may be no records
    if behind:
        yield _commit(table, held, behind)


def _starts(table: DeltaFolder, cluster: Cluster, places: Sequence[StreamPartition], ends: Offsets) -> Offsets:
    earliest = cluster.earliest(places)
    starts: Offsets = {}
    for place in places:
        stands = table.position(_source(place))
        starts[place] = earliest[place] if stands is None else stands
        if starts[place] > ends[place]:
            raise DataLost(
                f"{place[0]}-{place[1]} ends at {ends[place]}, {starts[place]} was read already: the stream was made "
                "anew. Land it in another folder"
            )
    return starts


def _records(cluster: Cluster, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
    origin = FetchOrigin(cluster, FETCH_BYTES_DEFAULT, fail_on_data_loss=True)
    for run in origin.runs(wanted):
        place = Place(wanted.topic, wanted.partition, run.start, wanted.end)
        for batch in decode_records(run.data, place, _READ):
            if len(batch):
                yield batch


def _commit(table: DeltaFolder, held: Sequence[pa.RecordBatch], behind: Mapping[StreamPartition, int]) -> Landed:
    records = pa.Table.from_batches(held, _READ)
    known = {field.name: field.type for field in table.schema if field.name not in META.names}
    columns, rescued = columns_of(records["value"].to_pylist(), known)
    if new := [name for name in columns.column_names if name not in known]:
        table.add_columns(pa.schema([columns.schema.field(name) for name in new]))
    meta = [records["partition"], records["offset"], records["timestamp"], records["key"], rescued]
    rows = pa.table([*meta, *columns.columns], names=[*META.names, *columns.column_names])
    files = table.write(rows.cast(pa.schema([*META, *columns.schema]))) if len(rows) else []
    version = table.commit(files, [], {_source(place): offset for place, offset in behind.items()})
    return Landed(version, len(rows), tuple(new), len(rows) - rows[RESCUED].null_count)


def _source(place: StreamPartition) -> str:
    return f"stream/{place[0]}/{place[1]}"
