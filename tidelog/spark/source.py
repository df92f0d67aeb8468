"""The data source `tidelog`: thin adapters between Spark's interface and the modules that do the work.

Spark pickles these objects to its workers, so they hold options and nothing that lives; connections are made where
they are used. The stream reader's driver side keeps one cluster for the life of the query.

With `tier.path` a part also says which of its offsets lie in the object store, and where. A batch query is cut along
what lies there. A stream is not: its parts depend on offsets and options alone, so that a micro-batch that is run again
has the same ones, wherever its records lie by then; the sink's "exactly once" rests on that.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.spark.cluster import Cluster
from tidelog.spark.decoders import decoder_of, schema_of
from tidelog.spark.errors import BadOption, DataLost
from tidelog.spark.fetch import FetchOrigin, Origin
from tidelog.spark.kernel.decode import Place
from tidelog.spark.kernel.offsets import EARLIEST, LATEST, Offsets, Partition, from_tree, to_tree
from tidelog.spark.kernel.options import Positions, ReadOptions, read_options
from tidelog.spark.kernel.ranges import OffsetRange, limit, ranges_between, split
from tidelog.spark.positions import check_not_gone, resolve
from tidelog.spark.sink import LogStreamWriter, LogWriter

if TYPE_CHECKING:
    from tidelog.spark.tier_history import History
    from tidelog.spark.tier_plan import StoredRun

PARTITIONS_S_MAX = 1.0  # how long a stream goes on without looking for new partitions


class TidelogDataSource(DataSource):
    """Batch and stream, source and sink; the options are those of Spark's Kafka source."""

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        return from_arrow_schema(schema_of(read_options(self.options, streaming=None)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogReader(self._read_options(schema, streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return LogStreamReader(self._read_options(schema, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return LogWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return LogStreamWriter(self.options, schema, overwrite)

    def _read_options(self, schema: StructType, *, streaming: bool) -> ReadOptions:
        options = read_options(self.options, streaming=streaming)
        if schema != from_arrow_schema(schema_of(options)):
            raise BadOption("the source's schema is fixed: choose its columns with the option columns")
        return options


@dataclass
class RangePartition(InputPartition):
    """The offsets that one task reads."""

    topic: str
    partition: int
    start: int
    end: int
    stored: "tuple[StoredRun, ...]" = ()


def _history(options: ReadOptions) -> "History | None":
    if options.tier is None:
        return None
    if find_spec("obstore") is None or find_spec("cryptography") is None:
        raise BadOption('tier.path: what reads object stores is not installed: pip install "tidelog[tier]"')
    from tidelog.spark.tier_history import History  # noqa: PLC0415 - with what it needs, only where it is wanted

    return History(options.tier)


def _planned(
    cluster: Cluster, ranges: list[OffsetRange], options: ReadOptions, history: "History | None", *, along_store: bool
) -> list[RangePartition]:
    """The parts of ranges, with what the store has of each."""
    if history is None or options.tier is None:
        parts = split(ranges, options.partitions_min)
        return [RangePartition(one.topic, one.partition, one.start, one.end) for one in parts]
    from tidelog.spark.tier_plan import Holding, cut, runs_of  # noqa: PLC0415

    holdings, nothing = history.holdings(cluster, ranges), Holding(0, ())

    def held(one: OffsetRange) -> Holding:
        return holdings.get((one.topic, one.partition), nothing)

    if along_store:
        ranges = [part for one in ranges for part in cut(one, held(one), options.tier.range_bytes)]
    return [
        RangePartition(one.topic, one.partition, one.start, one.end, runs_of(one, held(one)))
        for one in split(ranges, options.partitions_min)
    ]


def _read(options: ReadOptions, part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, RangePartition):  # Spark starts one task also when there is nothing to read
        return
    decoder, schema = decoder_of(options), schema_of(options)
    with Cluster(options.bootstrap, options.request_s, security=options.security) as cluster:
        for run in _origin(cluster, options, part).runs(OffsetRange(part.topic, part.partition, part.start, part.end)):
            yield from decoder.rows(run.data, Place(part.topic, part.partition, run.start, run.end), schema)


def _origin(cluster: Cluster, options: ReadOptions, part: RangePartition) -> Origin:
    brokers = FetchOrigin(cluster, options.fetch_bytes, fail_on_data_loss=options.fail_on_data_loss)
    if not part.stored or options.tier is None:
        return brokers
    from tidelog.spark.tier_read import TierOrigin  # noqa: PLC0415
    from tidelog.spark.tier_store import key_ring, opened  # noqa: PLC0415

    return TierOrigin(opened(options.tier), key_ring(options.tier), part.stored, brokers)


class LogReader(DataSourceReader):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[RangePartition]:
        options = self._options
        with Cluster(options.bootstrap, options.request_s, security=options.security) as cluster:
            places = cluster.partitions(options.subscription)
            starting = options.starting or Positions(everywhere=EARLIEST)
            starts = resolve(cluster, places, starting, "startingOffsets")
            ends = resolve(cluster, places, options.ending, "endingOffsets")
            if options.fail_on_data_loss:
                check_not_gone(cluster, starts)
            return _planned(cluster, ranges_between(starts, ends), options, _history(options), along_store=True)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._cluster: Cluster | None = None
        self._history: History | None = None
        self._places: list[Partition] = []
        self._places_until = 0.0  # when the partitions are asked for again
        self._target: Offsets | None = None  # where a query with AvailableNow ends
        self._latest: Offsets | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cluster": None, "_history": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        starting = self._options.starting or Positions(everywhere=LATEST)
        starts = resolve(self._connected(), self._current_places(), starting, "startingOffsets")
        if self._options.fail_on_data_loss:
            check_not_gone(self._connected(), starts)
        return to_tree(starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        rows_max = self._options.rows_per_trigger_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        ends = self._latest = self._target or self._ends()
        starts = self._complete(from_tree(start), ends)
        for (topic, partition), begin in starts.items():
            if ends[topic, partition] < begin:
                self._lose(f"{topic}-{partition} ends at {ends[topic, partition]}, {begin} was read already")
        return to_tree(_limited(starts, ends, limit))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_tree(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        ends = from_tree(end)
        ranges = ranges_between(self._complete(from_tree(start), ends), ends)
        if self._history is None:
            self._history = _history(self._options)
        return _planned(self._connected(), ranges, self._options, self._history, along_store=False)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()

    # --- parts ---

    def _connected(self) -> Cluster:
        if self._cluster is None:
            options = self._options
            self._cluster = Cluster(options.bootstrap, options.request_s, security=options.security)
        return self._cluster

    def _current_places(self) -> list[Partition]:
        now = time.monotonic()
        if now >= self._places_until:
            self._places = self._connected().partitions(self._options.subscription)
            self._places_until = now + PARTITIONS_S_MAX
        return self._places

    def _ends(self) -> Offsets:
        return self._connected().latest(self._current_places())

    def _complete(self, starts: Offsets, ends: Offsets) -> Offsets:
        """Where to begin in each partition that has an end: a new one at its beginning, a vanished one not at all."""
        if gone := [f"{topic}-{partition}" for topic, partition in starts.keys() - ends.keys()]:
            self._lose(f"{', '.join(sorted(gone))}: no longer there")
        new = ends.keys() - starts.keys()
        beginnings = self._connected().earliest(sorted(new)) if new else {}
        return {place: starts[place] if place in starts else min(beginnings[place], ends[place]) for place in ends}

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}: the topic was deleted or made anew. Go on by setting failOnDataLoss to false")


def _limited(starts: Offsets, ends: Offsets, read_limit: ReadLimit) -> Offsets:
    return limit(starts, ends, read_limit.max_rows) if isinstance(read_limit, ReadMaxRows) else ends
