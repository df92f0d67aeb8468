"""The data source `pikiwi-snapshot`: a dump of a PikiwiDB master, read by as many tasks as it has ranges.

    spark.read.format("pikiwi-snapshot").option("config", "source.toml").option("db", "db0").load()

A batch query plans the dump itself. A streaming query reads a plan that was written down (`plan`), `width` ranges a
micro-batch, so that it can be stopped and gone on with: this is how the pipeline delivers a dump. Its offset is the
number of ranges that are done.
"""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidelog.pikiwi.config import Config
from tidelog.pikiwi.dump import DATA_TYPES, DumpInfo, DumpRange, plan
from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.filter import Filter, read_specs
from tidelog.pikiwi.position import Position
from tidelog.spark.errors import BadOption
from tidelog.spark.kernel.messages import Delivery
from tidelog.spark.kernel.snapshot_rows import SCHEMAS, SnapshotDecode, SnapshotPlan, SnapshotRowMaker, load_plan
from tidelog.spark.kernel.wal_options import (
    DELIVERY,
    SOURCE_OPTIONS,
    EventRules,
    Given,
    databases_of,
    delivery_in,
    event_rules,
    load_checkpoint,
    source_config,
)
from tidelog.spark.orders import ORDER_SCHEMA, DumpOrder, row_of

RANGE_BYTES = 32 << 20  # of tables: what one task of a micro-batch reads
RANGES_DEFAULT_MAX = 10_000
_OPTIONS = (
    *SOURCE_OPTIONS,
    "path",
    "decode",
    "ranges",
    "plan",
    "startingOffsets",
    "topic",
    "partitions",
    "eventBytesMax",
)
DONE = "ranges_done"


class PikiwiSnapshotDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "pikiwi-snapshot"

    def schema(self) -> StructType:
        decode = _decode(self.options)
        return from_arrow_schema(ORDER_SCHEMA if decode is SnapshotDecode.ORDER else SCHEMAS[decode])

    def reader(self, schema: StructType) -> DataSourceReader:
        self._check(schema)
        return SnapshotReader(_snapshot_options(self.options), Given(self.options, _OPTIONS, _WHAT).number("ranges", 0))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        self._check(schema)
        options = Given(self.options, _OPTIONS, _WHAT)
        if not options.text("plan"):
            raise BadOption("a streaming query reads a plan that was written down: name its file with plan")
        start = json.loads(options.text("startingOffsets") or "{}")
        return SnapshotStreamReader(_snapshot_options(self.options), load_plan(Path(options.text("plan"))), start)

    def _check(self, schema: StructType) -> None:
        if schema != self.schema():
            raise BadOption("the source's schema is fixed: choose with the option decode")


_WHAT = "the pikiwi-snapshot source"


@dataclass(frozen=True, slots=True)
class _Options:
    folder: Path
    rules: EventRules
    decode: SnapshotDecode
    config: Config
    delivery: Delivery | None


def _decode(given: Mapping[str, str]) -> SnapshotDecode:
    text = {name.lower(): value for name, value in dict(given).items()}.get("decode", SnapshotDecode.EVENT.value)
    try:
        return SnapshotDecode(text.strip().lower())
    except ValueError:
        raise BadOption(f"decode: {text!r}; there are {', '.join(way.value for way in SnapshotDecode)}") from None


def _snapshot_options(given: Mapping[str, str]) -> _Options:
    options = Given(given, _OPTIONS, _WHAT)
    config = source_config(options)
    checkpoint = load_checkpoint(config)
    names = databases_of(config, checkpoint, options.text("db"))
    if len(names) != 1:
        raise BadOption(f"a dump is of one database: say with db which of {', '.join(names)}")
    folder = Path(options.text("path") or config.dump_path / names[0]).absolute()
    replication_id = options.text("replicationId") or ("" if checkpoint is None else checkpoint.replication_id)
    decode = _decode(given)
    delivery = None
    if decode is SnapshotDecode.ORDER:
        if not options.text("topic"):
            raise BadOption("decode is order: say with topic where the messages go")
        limit = options.number("eventBytesMax", config.kafka_message_max_bytes)
        delivery = Delivery(options.text("topic"), options.number("partitions", 1), limit)
    return _Options(folder, event_rules(config, names[0], replication_id), decode, config, delivery)


def plan_dump(folder: Path, config: Config, now_ms: int, ranges: int = 0, width: int = 1) -> SnapshotPlan:
    """The dump in ranges, of as much as settings and filter want; `ranges` 0: by its size."""
    chosen = Filter.parse(read_specs(config.filter), config.exclude)
    types, prefixes = config.snapshot_reader_types, config.snapshot_reader_prefixes
    wanted = chosen.types() if types == "auto" else [name.strip() for name in types.split(",") if name.strip()]
    begins = chosen.prefixes() if prefixes == "auto" else [name.encode() for name in prefixes.split(",") if name]
    if not ranges:
        size = sum(path.stat().st_size for path in folder.rglob("*.sst"))
        ranges = min(max(1, size // RANGE_BYTES), RANGES_DEFAULT_MAX)
    made = plan(
        folder,
        now_ms=now_ms,
        types=[name for name in wanted if name in DATA_TYPES],
        prefixes=begins,
        list_tail_n=config.snapshot_list_tail_n,
        ranges=ranges,
        mode=config.snapshot_reader_mode,
        batch_num=config.snapshot_batch_num,
    )
    return SnapshotPlan(DumpInfo.load(folder).position, now_ms, width, tuple(made))


@dataclass
class RangePartition(InputPartition):
    """A range of the dump, read by one task."""

    dump_range: DumpRange
    position: tuple[int, int]
    ts_ms: int
    delivery: Delivery | None


def _partition(made: SnapshotPlan, one: DumpRange, delivery: Delivery | None) -> RangePartition:
    return RangePartition(one, made.position, made.ts_ms, delivery)


def _read(options: _Options, part: InputPartition | None) -> Iterator[pa.RecordBatch]:
    if not isinstance(part, RangePartition):  # Spark starts one task also when there is nothing to read
        return
    position = Position(*part.position)
    if part.delivery is not None:
        yield row_of(DumpOrder(options.rules, part.dump_range, position, part.ts_ms, part.delivery))
        return
    maker = SnapshotRowMaker(options.rules.builder(), position, part.ts_ms)
    yield from maker.rows(options.decode, part.dump_range)


class SnapshotReader(DataSourceReader):
    def __init__(self, options: _Options, ranges: int) -> None:
        self._options = options
        self._ranges = ranges

    def partitions(self) -> list[RangePartition]:
        try:
            made = plan_dump(self._options.folder, self._options.config, time.time_ns() // 1_000_000, self._ranges)
        except PikiwiError as error:
            raise BadOption(str(error)) from None
        return [_partition(made, one, self._options.delivery) for one in made.ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class SnapshotStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: _Options, made: SnapshotPlan, start: dict[str, Any]) -> None:
        self._options = options
        self._plan = made
        self._start = start

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._offset(int(self._start.get(DONE, 0)), self._start)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()  # the plan says how much

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """All there is, is there from the beginning."""

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        done = int(start[DONE])
        end = min(done + self._plan.width, len(self._plan.ranges))
        return start if end == done else self._offset(end, {})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[RangePartition]:
        own = self._options.delivery
        delivery = None if own is None else delivery_in(start, own)
        return [_partition(self._plan, one, delivery) for one in self._plan.ranges[int(start[DONE]) : int(end[DONE])]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def _offset(self, done: int, content: Mapping[str, Any]) -> dict[str, Any]:
        own = self._options.delivery
        offset: dict[str, Any] = {DONE: done}
        if own is not None:
            held = delivery_in(content, own)
            offset[DELIVERY] = {"partitions": held.partitions, "event_bytes_max": held.event_bytes_max}
        return offset
