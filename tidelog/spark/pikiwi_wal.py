"""The data source `pikiwi-wal`: a stream over the WALs that a PikiwiDB receiver writes.

    spark.readStream.format("pikiwi-wal").option("config", "source.toml").option("decode", "event").load()

One task a database and micro-batch, so rows are in the order of the WAL. Offsets are places in WALs, by database; with
`decode=order` they also say over how many partitions the *next* batch is spread, so that a batch that is sent again
is spread as it was at first, whatever became of the topic meanwhile.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.messages import Delivery
from tidelog.spark.kernel.wal_options import (
    DELIVERED,
    EARLIEST,
    LATEST,
    Places,
    WalOptions,
    delivery_in,
    from_json,
    to_json,
    wal_decode,
    wal_options,
)
from tidelog.spark.kernel.wal_rows import SCHEMAS, RowMaker, WalDecode
from tidelog.spark.orders import ORDER_SCHEMA, WalOrder, row_of
from tidelog.spark.wal_tail import Tail, open_tail


class PikiwiWalDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pikiwi-wal"

    def schema(self) -> StructType:
        decode = wal_decode(self.options)
        return from_arrow_schema(ORDER_SCHEMA if decode is WalDecode.ORDER else SCHEMAS[decode])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if schema != self.schema():
            raise BadOption("the source's schema is fixed: choose with the option decode")
        return WalStreamReader(wal_options(self.options))


@dataclass
class WalPartition(InputPartition):
    """The records of one database that one task reads."""

    db: str
    start: WalPoint
    end: WalPoint
    delivery: Delivery | None


class WalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: WalOptions) -> None:
        self._options = options
        self._tails: dict[str, Tail] = {}
        self._target: Places | None = None  # where a query with AvailableNow ends

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tails": {}}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        starting = self._options.starting
        if starting.startswith("{"):
            content = _json(starting)
            places = {name: self._tail(name).settled(place) for name, place in from_json(content).items()}
            named = {database.name for database in self._options.databases}
            if places.keys() != named:
                raise BadOption(f"startingOffsets names {', '.join(places)}; the databases are {', '.join(named)}")
            return self._offset(places, content)
        return self._offset({name: self._beginning(name, starting) for name in self._names()}, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the limits are by database, and always in force

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._durable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        starts = {name: self._tail(name).settled(place) for name, place in from_json(start).items()}
        latest = self._target or self._durable()
        ends: Places = {}
        for name, end in latest.items():
            begin = starts.get(name) or self._beginning(name, DELIVERED)
            ends[name] = begin
            if end.seq > begin.seq:
                options = self._options
                ends[name] = min(self._tail(name).advance(begin, end, options.records_max, options.bytes_max), end)
        if ends == from_json(start):
            return start
        return self._offset(ends, {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[WalPartition]:
        starts, ends = from_json(start), from_json(end)
        own = self._options.delivery
        delivery = None if own is None else delivery_in(start, own)
        parts: list[WalPartition] = []
        for name, last in sorted(ends.items()):
            begin = starts.get(name) or self._beginning(name, DELIVERED)
            parts.append(WalPartition(name, self._tail(name).settled(begin), last, delivery))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, WalPartition):  # Spark starts one task also when there is nothing to read
            return
        database = next(each for each in self._options.databases if each.name == partition.db)
        if partition.delivery is not None:
            yield row_of(WalOrder(database, partition.start, partition.end, partition.delivery))
            return
        maker = RowMaker(database.rules.builder())
        tail = open_tail(database.wal)
        try:
            for chunk in tail.chunks(partition.start, partition.end):
                yield from maker.rows(self._options.decode, chunk)
        finally:
            tail.close()

    def stop(self) -> None:
        for tail in self._tails.values():
            tail.close()

    # --- parts ---

    def _names(self) -> list[str]:
        return [database.name for database in self._options.databases]

    def _tail(self, name: str) -> Tail:
        if name not in self._tails:
            place = next((each.wal for each in self._options.databases if each.name == name), None)
            if place is None:
                raise BadOption(f"{name} is not among the databases of this query: {', '.join(self._names())}")
            self._tails[name] = open_tail(place)
        return self._tails[name]

    def _durable(self) -> Places:
        """Of the databases that have a WAL by now."""
        found = {name: self._tail(name).durable() for name in self._names()}
        return {name: place for name, place in found.items() if place is not None}

    def _beginning(self, name: str, starting: str) -> WalPoint:
        tail = self._tail(name)
        delivered = self._options.delivered.get(name)
        if starting == DELIVERED and delivered is not None:
            return tail.find(delivered)
        place = tail.durable() if starting == LATEST else tail.first()
        if starting not in {EARLIEST, LATEST, DELIVERED}:
            raise BadOption(f"startingOffsets: {starting!r}; give earliest, latest, delivered or offsets as JSON")
        if place is None:
            raise BadOption(f"{name} has no WAL yet: start its receiver first")
        return place

    def _offset(self, places: Mapping[str, WalPoint], content: Mapping[str, Any]) -> dict[str, Any]:
        own = self._options.delivery
        return to_json(places, None if own is None else delivery_in(content, own))


def _json(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadOption(f"startingOffsets: {text!r} is not JSON ({error})") from None
