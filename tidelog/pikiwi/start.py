"""Where a database's stream begins, out of settings, checkpoint and WAL: one pure function.

In this order:

| what there is | begin |
| --- | --- |
| `filenum` and `offset`, not yet applied | there; the WAL begins anew |
| `start_from_master`, not yet applied | at the master's end; the WAL begins anew |
| a full sync that has not got its dump | with a full sync; if the master still has the same dump, the WAL is kept |
| AckCP, and the WAL holds all that follows it | at the end of the WAL |
| AckCP (or, while there is none, DurableCP), and the WAL does not | there; the WAL begins anew |
| a WAL with records, and no checkpoint file | at the end of the WAL |
| a WAL with records, and a checkpoint without this database | with a full sync: the records are of another lineage |
| nothing, `initial_full_sync` | with a full sync |
| nothing | at the first item of the master's life |

The end of the WAL is what the master was told we have, so it is never asked for that again.

A start that is set is applied once: the checkpoint remembers which one was (`started_from`), so a restart with the same
settings goes on instead of going back.
"""

from dataclasses import dataclass

from tidelog.pikiwi.checkpoint import Checkpoint, DatabaseCheckpoint
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.session import FromEnd, FullSync, GoOn, Start


@dataclass(frozen=True, slots=True)
class Held:
    """What the WAL of a database holds: all items behind `first` up to `last`. None: it was never begun."""

    first: Position | None
    last: Position | None

    @property
    def has_records(self) -> bool:
        return self.first != self.last


@dataclass(frozen=True, slots=True)
class Plan:
    start: Start
    reset_reason: str = ""  # not empty: the WAL begins anew where `start` goes on


def start_setting(config: Config) -> str:
    """The start that the settings choose, as the checkpoint remembers it; empty: none."""
    if config.start_position is not None:
        return str(config.start_position)
    return "master" if config.start_from_master else ""


def plan_start(config: Config, checkpoint: Checkpoint | None, db: str, held: Held, *, dump_comes: bool) -> Plan:
    """`dump_comes`: the WAL goes on at the position of a dump, which is still being fetched."""
    known = None if checkpoint is None else checkpoint.databases.get(db)
    chosen = start_setting(config)
    if chosen and (known is None or known.started_from != chosen):
        if config.start_position is None:
            return Plan(FromEnd())
        return Plan(GoOn(config.start_position), "filenum and offset are set")
    if known is not None and known.snapshot.state in ("saving", "fetching") and not dump_comes:
        return Plan(FullSync(held.last or ZERO))
    if known is not None and (known.ack_cp is not None or known.durable_cp is not None):
        return _after_checkpoint(known, held)
    if held.last is not None and held.has_records:
        return Plan(GoOn(held.last)) if checkpoint is None else Plan(FullSync())
    if config.initial_full_sync:
        return Plan(FullSync())
    return Plan(GoOn(ZERO), "there is no checkpoint, and initial_full_sync is off")


def _after_checkpoint(known: DatabaseCheckpoint, held: Held) -> Plan:
    if held.first is not None and held.last is not None:
        needed = held.first if known.ack_cp is None else known.ack_cp.position
        if held.first <= needed <= held.last:
            return Plan(GoOn(held.last))
    point = known.ack_cp or known.durable_cp
    assert point is not None
    return Plan(GoOn(point.position), "the WAL does not hold what follows AckCP")
