"""What a row of `pikiwi-wal` is: chunks of WAL records as Arrow rows, one function for each value of `decode`.

| decode | a row is |
| --- | --- |
| raw | a record, its binlog item as the master sent it |
| event | an event as docs/events.md has it; filtered items have none |
| typed | a command, taken apart and not encoded: for tables |
| order | a part of the WAL; the sink asks for its `messages` (see `tidelog.spark.orders`): for the pipeline |

All of them are in the order of the WAL. `seq`, `filenum` and `offset` are those of the item (its end). Rows depend on
the items and the settings only, so a micro-batch that is built again is the same bytes.

Cost: that of `EventKernel`, which gets whole chunks; typed rows take about half of that.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidelog.pikiwi.binlog import HEADER_BYTES, decode_item
from tidelog.pikiwi.commands import PADDING, PKSETEXAT, Keys, absolute_set, command_of, keys_of
from tidelog.pikiwi.errors import RespError
from tidelog.pikiwi.event import EventBuilder, Name
from tidelog.pikiwi.event_items import Items, shapes
from tidelog.pikiwi.event_kernel import EventKernel
from tidelog.pikiwi.keys import is_internal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import parse_command
from tidelog.spark.kernel.arrays import constant_text, numbers
from tidelog.spark.kernel.messages import Delivery, Messages, Outgoing, messages
from tidelog.spark.kernel.wal_chunks import Chunk

SHAPE_MIN = 64  # items of one shape; fewer are taken apart one by one

_PLACE = [
    pa.field("db", pa.string()),
    pa.field("filenum", pa.int64()),
    pa.field("offset", pa.int64()),
    pa.field("seq", pa.int64()),
]
RAW_SCHEMA = pa.schema([*_PLACE, pa.field("epoch", pa.int64()), pa.field("payload", pa.binary())])
EVENT_SCHEMA = pa.schema(
    [pa.field("key", pa.binary()), pa.field("value", pa.binary()), pa.field("broadcast", pa.bool_()), *_PLACE]
)
ARGS = pa.list_(pa.field("element", pa.binary()))
TYPED_SCHEMA = pa.schema(
    [
        pa.field("db", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("filenum", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("exec_ms", pa.int64()),
        pa.field("op", pa.string()),
        pa.field("data_type", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("args", ARGS),
    ]
)

Ints = npt.NDArray[np.int64]


class WalDecode(Enum):
    RAW = "raw"
    EVENT = "event"
    TYPED = "typed"
    ORDER = "order"


SCHEMAS = {
    WalDecode.RAW: RAW_SCHEMA,
    WalDecode.EVENT: EVENT_SCHEMA,
    WalDecode.TYPED: TYPED_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class RowMaker:
    """Rows of one database."""

    builder: EventBuilder

    def rows(self, decode: WalDecode, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        make: dict[WalDecode, Callable[[Chunk], Iterator[pa.RecordBatch]]] = {
            WalDecode.RAW: self._raw,
            WalDecode.EVENT: self._events,
            WalDecode.TYPED: self._typed,
        }
        return make[decode](chunk)

    def _raw(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        columns = [*self._place(chunk, slice(None)), numbers(chunk.epochs), chunk.payloads]
        yield pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA)

    def _events(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        for events in EventKernel(self.builder).build(chunk.payloads, chunk.filenums, chunk.offsets):
            place = self._place(chunk, events.item.to_numpy())
            columns = [events.key, events.value, events.broadcast, *place]
            yield pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)

    def messages(self, chunk: Chunk, delivery: Delivery) -> Iterator[Messages]:
        """The events on their way to a topic."""
        times_us = _exec_times(chunk) * 1_000_000
        for events in EventKernel(self.builder).build_texts(chunk.payloads, chunk.filenums, chunk.offsets):
            times = times_us[events.item]
            yield messages(Outgoing(events.key, events.values, events.broadcast, times, events.filtered), delivery)

    def _typed(self, chunk: Chunk) -> Iterator[pa.RecordBatch]:
        parts = _Typed(self.builder, chunk).parts()
        if not parts:
            return
        item = np.concatenate([part.item for part in parts])
        order = numbers(np.argsort(item, kind="stable"))
        item = np.sort(item)
        op, data_type, key, args = (
            pa.concat_arrays([part.columns[number] for part in parts]).take(order) for number in range(4)
        )
        db, filenum, offset, seq = self._place(chunk, item)
        exec_ms = numbers(_exec_times(chunk)[item] * 1000)
        yield pa.RecordBatch.from_arrays(
            [db, seq, filenum, offset, exec_ms, op, data_type, key, args], schema=TYPED_SCHEMA
        )

    def _place(self, chunk: Chunk, rows: Any) -> list[pa.Array]:
        seqs = chunk.seqs[rows]
        db = constant_text(self.builder.settings.db, len(seqs))
        return [db, numbers(chunk.filenums[rows]), numbers(chunk.offsets[rows]), numbers(seqs)]


def _items(chunk: Chunk) -> Items:
    return Items(chunk.payloads, chunk.filenums.astype(np.uint64), chunk.offsets.astype(np.uint64))


def _exec_times(chunk: Chunk) -> Ints:
    """Seconds since 1970, of each item; what is shorter than a header is found out by whoever takes it apart."""
    items = _items(chunk)
    times = np.zeros(len(chunk), dtype=np.int64)
    whole = np.flatnonzero(items.ends - items.starts >= HEADER_BYTES)
    times[whole] = items.header_field("exec_time_s", whole)
    return times


# --- typed ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Commands of some items; columns op, data_type, key, args."""

    item: Ints
    columns: tuple[pa.Array, pa.Array, pa.Array, pa.Array]


class _Typed:
    """Items of one shape, with a command of one key, are taken apart together; the others one by one."""

    def __init__(self, builder: EventBuilder, chunk: Chunk) -> None:
        self._builder = builder
        self._chunk = chunk
        self._items = _items(chunk)

    def parts(self) -> list[_Part]:
        found: list[_Part] = []
        rest: list[Any] = []
        for shape in shapes(self._items, np.arange(len(self._chunk)), self._builder.settings.limits, rest):
            if len(shape.rows) < SHAPE_MIN or shape.count == 1:
                rest.append(shape.rows)
                continue
            encoded = self._items.slices(shape.arg_starts[:, 0], shape.arg_ends[:, 0]).dictionary_encode()
            names = [self._builder.name(word, "binlog") for word in encoded.dictionary.to_pylist()]
            code = encoded.indices.to_numpy()
            common = np.array([_has_one_key(name, shape.count) for name in names], dtype=bool)[code]
            if self._builder.filter.groups or self._builder.filter.excludes:
                common[:] = False  # a filter looks at every key anyway
            common &= self._items.data[shape.arg_starts[:, 1]] != ord("_")  # which may be a key of the master's own
            rest.append(shape.rows[~common])
            shape, code = shape.chosen(common), code[common]  # noqa: PLW2901
            if len(shape.rows):
                commands = [name.command for name in names]
                found.append(self._together(shape, code, commands))
        alone = self._one_by_one(np.sort(np.concatenate(rest)) if rest else np.zeros(0, dtype=np.int64))
        return [part for part in (*found, alone) if len(part.item)]

    def _together(self, shape: Any, code: Ints, commands: list[Any]) -> _Part:
        count = len(shape.rows)
        flat = self._items.slices(shape.arg_starts.ravel(), shape.arg_ends.ravel()).cast(pa.binary())
        bounds = pa.Array.from_buffers(
            pa.int32(), count + 1, [None, pa.py_buffer(np.arange(count + 1, dtype=np.int32) * np.int32(shape.count))]
        )
        args = pa.ListArray.from_arrays(bounds, flat, type=ARGS)
        key = self._items.slices(shape.arg_starts[:, 1], shape.arg_ends[:, 1]).cast(pa.binary())
        index = numbers(code.astype(np.int64))
        op = pa.array([command.name for command in commands], pa.string()).take(index)
        data_type = pa.array([command.data_type for command in commands], pa.string()).take(index)
        return _Part(shape.rows, (op, data_type, key, args))

    def _one_by_one(self, rows: Ints) -> _Part:
        settings = self._builder.settings
        item: list[int] = []
        ops: list[str] = []
        types: list[str] = []
        first_keys: list[bytes | None] = []
        arguments: list[list[bytes]] = []
        for row in rows.tolist():
            position = Position(int(self._items.filenums[row]), int(self._items.offsets[row]))
            try:
                args = parse_command(decode_item(self._items.payload(row)).content, settings.limits)
            except RespError as error:
                raise RespError(f"{settings.db}, item that ends at {position}: {error}") from error
            command, written = command_of(args[0]), ""
            if command.name == PKSETEXAT and (absolute := absolute_set(args, settings.zero_expiry)) is not None:
                args, command, written = absolute, command_of(b"SET"), PKSETEXAT
            keys = keys_of(command, args)
            wanted = [key for key in keys if not is_internal(key)]
            if command.name == PADDING or (keys and not wanted):
                continue
            passes = self._builder.filter.passes
            if not any(passes(key, command.data_type, command.name, written) for key in wanted or (None,)):
                continue
            item.append(row)
            ops.append(command.name)
            types.append(command.data_type)
            first_keys.append(keys[0] if keys else None)
            arguments.append(args)
        columns = (
            pa.array(ops, pa.string()),
            pa.array(types, pa.string()),
            pa.array(first_keys, pa.binary()),
            pa.array(arguments, ARGS),
        )
        return _Part(np.array(item, dtype=np.int64), columns)


def _has_one_key(name: Name, arguments: int) -> bool:
    return not name.is_pksetexat and (name.one_key or (name.command.keys is Keys.ALL and arguments == 2))
