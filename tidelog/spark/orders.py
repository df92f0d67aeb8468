"""Orders: what a task of the pipeline delivers, told rather than carried.

Between source and sink Spark passes every row through its JVM: two sockets, and four copies of each event. So the
pipeline's sources give out orders, one a task: which part of a WAL or of a dump it is, and how its events are made. The
sink, which runs in the same task, reads that part itself: what is read becomes record batches within one process.

An order names everything that its messages depend on, so one that is carried out again gives the same messages.
"""

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidelog.pikiwi.dump import DumpRange
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.kernel.messages import Delivery, Messages
from tidelog.spark.kernel.snapshot_rows import SnapshotRowMaker
from tidelog.spark.kernel.wal_options import DatabaseSource, EventRules
from tidelog.spark.kernel.wal_rows import RowMaker
from tidelog.spark.wal_tail import open_tail

ORDER_SCHEMA = pa.schema([pa.field("order", pa.binary())])


class Order(Protocol):
    def messages(self) -> Iterator[Messages]: ...


@dataclass(frozen=True, slots=True)
class WalOrder:
    """The records of a database's WAL between two places."""

    database: DatabaseSource
    start: WalPoint
    end: WalPoint
    delivery: Delivery

    def messages(self) -> Iterator[Messages]:
        maker = RowMaker(self.database.rules.builder())
        tail = open_tail(self.database.wal)
        try:
            for chunk in tail.chunks(self.start, self.end):
                yield from maker.messages(chunk, self.delivery)
        finally:
            tail.close()


@dataclass(frozen=True, slots=True)
class DumpOrder:
    """A range of a dump."""

    rules: EventRules
    dump_range: DumpRange
    position: Position
    ts_ms: int
    delivery: Delivery

    def messages(self) -> Iterator[Messages]:
        maker = SnapshotRowMaker(self.rules.builder(), self.position, self.ts_ms)
        return maker.messages(self.dump_range, self.delivery)


def row_of(order: Order) -> pa.RecordBatch:
    """As it travels: between processes of one installation, like the rest of a task."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(order)], pa.binary())], schema=ORDER_SCHEMA)


def orders_in(batches: Iterable[pa.RecordBatch]) -> Iterator[Order]:
    for batch in batches:
        for text in batch.column(0).to_pylist():
            yield pickle.loads(text)  # written by `row_of`, in this task


class Delivered:
    """The messages of some orders, for the sink; counts what they have left out as they are read."""

    def __init__(self, orders: Iterable[Order]) -> None:
        self._orders = orders
        self.left_out = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for order in self._orders:
            for part in order.messages():
                self.left_out += part.left_out
                if part.rows.num_rows:
                    yield part.rows
