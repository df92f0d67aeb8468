"""Rows of a dump: commands that build its keys, as events, typed, or as commands; and the same on the way to a topic.

A range is read from its first key to its last, so a key's rows come together and in order. All rows carry the dump's
position and one time for all of it, so a range that is read again gives the same bytes.

Cost: the dump's reading (one to three microseconds an element) and about 5 µs a command; a command holds up to
`snapshot_batch_num` elements. Memory: `ROWS_MAX` rows or about `BYTES_MAX`.
"""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.pikiwi.dump import DumpRange, Piece, SnapshotCommand, read_range
from tidelog.pikiwi.event import EventBuilder
from tidelog.pikiwi.keys import is_internal
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.disk import make_folder, replace_file
from tidelog.spark.kernel.arrays import constant_text
from tidelog.spark.kernel.messages import Delivery, Messages, Outgoing, messages, out_of
from tidelog.spark.kernel.wal_rows import ARGS, EVENT_SCHEMA, TYPED_SCHEMA

ROWS_MAX = 10_000
BYTES_MAX = 8 << 20

COMMAND_SCHEMA = pa.schema(
    [
        pa.field("db", pa.string()),
        pa.field("data_type", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("batch", pa.int64()),
        pa.field("args", ARGS),
    ]
)


class SnapshotDecode(Enum):
    EVENT = "event"
    TYPED = "typed"
    COMMAND = "command"
    ORDER = "order"


SCHEMAS = {
    SnapshotDecode.EVENT: EVENT_SCHEMA,
    SnapshotDecode.TYPED: TYPED_SCHEMA,
    SnapshotDecode.COMMAND: COMMAND_SCHEMA,
}


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A dump cut into ranges, `width` of which are read in one micro-batch. Written down before the first is read, as
    all attempts at a batch must read the same."""

    position: Position
    ts_ms: int
    width: int
    ranges: tuple[DumpRange, ...]


@dataclass(frozen=True, slots=True)
class SnapshotRowMaker:
    builder: EventBuilder
    position: Position
    ts_ms: int

    def rows(self, decode: SnapshotDecode, dump_range: DumpRange) -> Iterator[pa.RecordBatch]:
        make: dict[SnapshotDecode, Callable[[list[SnapshotCommand]], pa.RecordBatch]] = {
            SnapshotDecode.EVENT: self._events,
            SnapshotDecode.TYPED: self._typed,
            SnapshotDecode.COMMAND: self._commands,
        }
        for commands in _groups(read_range(dump_range)):
            chosen = self._chosen(commands)
            if chosen:
                yield make[decode](chosen)

    def _built(self, commands: list[SnapshotCommand]) -> tuple[pa.Array, pa.Array]:
        build, position, ts_ms = self.builder.snapshot_event, self.position, self.ts_ms
        events = [event for command in commands if (event := build(command, position, ts_ms)) is not None]
        keys = pa.array([event.key for event in events], pa.binary())
        return keys, pa.array([event.value for event in events], pa.binary())

    def _events(self, commands: list[SnapshotCommand]) -> pa.RecordBatch:
        keys, values = self._built(commands)
        count = len(keys)
        columns = [keys, values, pa.array([False] * count, pa.bool_()), *self._place(count)]
        return pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA)

    def messages(self, dump_range: DumpRange, delivery: Delivery) -> Iterator[Messages]:
        """The events on their way to a topic."""
        for commands in _groups(read_range(dump_range)):
            keys, values = self._built(commands)
            count = len(keys)
            times_us = np.full(count, self.ts_ms * 1000, dtype=np.int64)
            nowhere_else = np.zeros(count, dtype=bool)
            left_out = len(commands) - count
            yield messages(Outgoing(keys, out_of(values), nowhere_else, times_us, left_out), delivery)

    def _typed(self, commands: list[SnapshotCommand]) -> pa.RecordBatch:
        db, filenum, offset, seq = self._place(len(commands))
        columns = [
            db,
            seq,
            filenum,
            offset,
            pa.array([self.ts_ms] * len(commands), pa.int64()),
            pa.array([command.args[0].decode().lower() for command in commands], pa.string()),
            pa.array([command.data_type for command in commands], pa.string()),
            pa.array([command.key for command in commands], pa.binary()),
            pa.array([list(command.args) for command in commands], ARGS),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=TYPED_SCHEMA)

    def _commands(self, commands: list[SnapshotCommand]) -> pa.RecordBatch:
        columns = [
            constant_text(self.builder.settings.db, len(commands)),
            pa.array([command.data_type for command in commands], pa.string()),
            pa.array([command.key for command in commands], pa.binary()),
            pa.array([command.batch for command in commands], pa.int64()),
            pa.array([list(command.args) for command in commands], ARGS),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=COMMAND_SCHEMA)

    def _chosen(self, commands: list[SnapshotCommand]) -> list[SnapshotCommand]:
        passes = self.builder.filter.passes
        return [
            command
            for command in commands
            if not is_internal(command.key) and passes(command.key, command.data_type, command.args[0].decode().lower())
        ]

    def _place(self, count: int) -> list[pa.Array]:
        """db, filenum, offset, seq: what the whole dump stands for."""
        filenum, offset = self.position
        constants = (pa.array([number] * count, pa.int64()) for number in (filenum, offset, 0))
        return [constant_text(self.builder.settings.db, count), *constants]


def _groups(commands: Iterator[SnapshotCommand]) -> Iterator[list[SnapshotCommand]]:
    group: list[SnapshotCommand] = []
    held = 0
    for command in commands:
        group.append(command)
        held += sum(map(len, command.args))
        if len(group) >= ROWS_MAX or held >= BYTES_MAX:
            yield group
            group, held = [], 0
    if group:
        yield group


# --- the plan as a file -----------------------------------------------------------------------------------------------


def save_plan(path: Path, plan: SnapshotPlan) -> None:
    """Durable when it returns."""
    make_folder(path.parent)
    content = {
        "position": list(plan.position),
        "ts_ms": plan.ts_ms,
        "width": plan.width,
        "ranges": [asdict(one) for one in plan.ranges],
    }
    replace_file(path, json.dumps(content, default=_encoded).encode())


def load_plan(path: Path) -> SnapshotPlan:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return SnapshotPlan(
        Position(*content["position"]),
        content["ts_ms"],
        content["width"],
        tuple(_range(one) for one in content["ranges"]),
    )


def _range(content: dict[str, Any]) -> DumpRange:
    pieces = tuple(
        Piece(**{**piece, "lower": _decoded(piece["lower"]), "upper": _decoded(piece["upper"])})
        for piece in content["pieces"]
    )
    prefixes = tuple(base64.b64decode(prefix) for prefix in content["prefixes"])
    return DumpRange(**{**content, "pieces": pieces, "prefixes": prefixes})


def _encoded(value: Any) -> str:
    assert isinstance(value, bytes)
    return base64.b64encode(value).decode()


def _decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
