"""Keeping a state table up with its source: the dump of its last full sync, then the WAL behind it, batch by batch.

The table itself says how far it has come, by database and lineage of the source. From there:

* it stands nowhere: the dump is loaded, or, when there was none and the WAL begins with the master's first item (or
  that is wanted), it begins empty;
* the WAL has its position: the next batch is folded in;
* the WAL begins behind it (a full sync, or cleaned before the table was built): the newer dump is loaded.

Every step ends with one commit, so whatever stops a build, the next one goes on without a gap and without doing
anything twice. The dump stands for a position, and the WAL is read right from it: they meet there exactly.

Meanwhile the table is one of the WAL's readers: the receiver keeps what the table has yet to read, within bounds
(`tidelog/pikiwi/wal/readers.py`).

A table equals its source, so filters, which are the events', have no say.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidelog.pikiwi.checkpoint import Checkpoint
from tidelog.pikiwi.commands import ZeroExpiry
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.dump import DumpInfo
from tidelog.pikiwi.dump.received import require_complete
from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalGone
from tidelog.pikiwi.wal.readers import Reader
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.kernel.wal_options import (
    BYTES_MAX_DEFAULT,
    RECORDS_MAX_DEFAULT,
    databases_of,
    load_checkpoint,
    wal_place,
)
from tidelog.spark.kernel.wal_rows import TYPED_SCHEMA, RowMaker, WalDecode
from tidelog.spark.tables.delta import DeltaFolder, TableError
from tidelog.spark.tables.fold import RULES, Rules
from tidelog.spark.tables.load import Progress, dump_uuid, load
from tidelog.spark.tables.state import BUCKETS_DEFAULT, Change, StateTable
from tidelog.spark.wal_tail import Tail, open_tail

FIRST = Position(0, 0)  # where a new master's binlog begins
COLLECT_AFTER = (1_000_000, 50, 100)
"""For gc.set_threshold: a batch makes very many objects, none of them garbage before it ends. A third of its time."""


Apply = Callable[[str, str, pa.Table, Position, Position], Change]
"""As `StateTable.apply`."""


class BuildError(TableError):
    """The source has nothing that the table could be built from."""


class NotYet(BuildError):
    """It will have: the receiver is about it, or has not begun."""


@dataclass(frozen=True, slots=True)
class Step:
    """One commit."""

    db: str
    kind: str  # snapshot, empty or binlog
    position: Position
    commands: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one batch."""

    records_max: int = RECORDS_MAX_DEFAULT
    bytes_max: int = BYTES_MAX_DEFAULT


def rules_of(config: Config) -> Rules:
    """`zero_expiry=keep` is what says that a master is a 3.5 one."""
    return RULES["3.5" if ZeroExpiry(config.zero_expiry) is ZeroExpiry.KEEP else "4"]


def open_state(folder: Path, config: Config, buckets: int = BUCKETS_DEFAULT) -> StateTable:
    """The table in a folder, made when there is none; refused when it was made for another kind of master."""
    rules = rules_of(config)
    if not DeltaFolder.exists(folder):
        return StateTable.create(folder, rules, buckets)
    table = StateTable.open(folder)
    if table.rules != rules:
        raise TableError(
            f"{folder} was built for a {table.rules.name} master, the source's settings (zero_expiry) speak of a "
            f"{rules.name} one: correct them, or choose another folder"
        )
    return table


def source_name(config: Config, replication_id: str, db: str) -> str:
    """What a position is of: positions of another lineage mean nothing."""
    return f"pikiwi/{config.source}/{replication_id}/{db}"


def build(
    table: StateTable,
    config: Config,
    *,
    limits: Limits | None = None,
    without_snapshot: bool = False,
    progress: Progress = lambda _done, _all: None,
    apply: Apply | None = None,
) -> Iterator[Step]:
    """Every step up to what the source has now; what comes meanwhile is part of it.

    `apply`: what folds a batch into the table, instead of the table itself.
    """
    checkpoint = load_checkpoint(config)
    if checkpoint is None:
        raise NotYet(
            f"nothing is known of {config.source}: there is no {config.checkpoint_path}; start its receiver first"
        )
    reader = Reader(config.checkpoint_path, str(table.delta.folder))
    for db in databases_of(config, checkpoint):
        tail = open_tail(wal_place(config, db))
        try:
            yield from _Database(table, config, checkpoint, db, tail, reader, apply or table.apply).steps(
                limits or Limits(), without_snapshot, progress
            )
        finally:
            tail.close()


class _Database:
    def __init__(
        self,
        table: StateTable,
        config: Config,
        checkpoint: Checkpoint,
        db: str,
        tail: Tail,
        reader: Reader,
        apply: Apply,
    ) -> None:
        self._table = table
        self._db = db
        self._tail = tail
        self._reader = reader
        self._apply = apply
        self._replication_id = checkpoint.replication_id
        self._snapshot = checkpoint.database(db).snapshot
        self._dump = config.dump_path / db
        self._source = source_name(config, checkpoint.replication_id, db)
        settings = EventSettings(
            db, config.source, checkpoint.replication_id, zero_expiry=ZeroExpiry(config.zero_expiry)
        )
        self._maker = RowMaker(EventBuilder(settings))

    def steps(self, limits: Limits, without_snapshot: bool, progress: Progress) -> Iterator[Step]:
        place = self._place()
        if place is None:
            yield self._begin(without_snapshot, progress)
            place = self._place()
        while place is not None:
            self._reader.has(self._replication_id, self._db, place.position)
            durable = self._tail.durable()
            if durable is None or durable.seq <= place.seq:
                return
            end = min(self._tail.advance(place, durable, limits.records_max, limits.bytes_max), durable)
            yield self._fold(place, end)
            place = end

    def _place(self) -> WalPoint | None:
        """Where the WAL goes on for the table; None: it does not."""
        position = self._table.position(self._source)
        if position is None or self._tail.durable() is None:
            return None
        try:
            return self._tail.find(position)
        except WalGone:
            return None

    def _fold(self, place: WalPoint, end: WalPoint) -> Step:
        batches = [
            batch for chunk in self._tail.chunks(place, end) for batch in self._maker.rows(WalDecode.TYPED, chunk)
        ]
        commands = pa.Table.from_batches(batches, TYPED_SCHEMA)
        start = self._table.position(self._source)
        assert start is not None
        change = self._apply(self._source, self._db, commands, start, end.position)
        return Step(self._db, "binlog", end.position, change.commands, change.keys)

    def _begin(self, without_snapshot: bool, progress: Progress) -> Step:
        stands = self._table.position(self._source)
        dump = self._dump_position()
        if dump is not None and (stands is None or dump > stands):
            self._reader.has(self._replication_id, self._db, dump)  # what follows it is wanted when it is loaded
            return Step(self._db, "snapshot", load(self._table, self._source, self._db, self._dump, progress))
        if self._snapshot.state in {"saving", "fetching"}:
            raise NotYet(f"{self._db}: a full sync is on its way ({self._snapshot.state}): build when it is done")
        first = self._tail.first()
        if first is None:
            raise NotYet(f"{self._db} has neither a dump nor a WAL yet: let its receiver go on, then build again")
        if stands is None and (without_snapshot or first.position == FIRST):
            self._table.replace(self._source, self._db, [], first.position)
            return Step(self._db, "empty", first.position)
        if stands is None:
            raise BuildError(
                f"{self._db}: the WAL begins at {first.position} and there is no dump of what was before: let the "
                "receiver make a full sync, or begin with an empty table (--without-snapshot)"
            )
        raise BuildError(
            f"{self._db}: the table stands at {stands}, the WAL begins at {first.position}, and no newer dump is "
            "there: what lies between was delivered and cleaned away. Let the receiver make a full sync"
        )

    def _dump_position(self) -> Position | None:
        """Of the dump that the checkpoint speaks of; one that was left by another lineage is none."""
        snapshot = self._snapshot
        if snapshot.position is None or snapshot.state not in {"ready", "running", "done"}:
            return None
        try:
            require_complete(self._dump)
            info = DumpInfo.load(self._dump)
        except DumpError:
            return None
        same = info.position == snapshot.position and dump_uuid(self._dump) in {"", snapshot.uuid}
        return info.position if same else None
