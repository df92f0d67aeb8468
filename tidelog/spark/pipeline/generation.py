"""What is delivered from one beginning of a WAL on, and when that is over.

A generation begins where the WAL begins: with a dump and the binlog behind it (full sync), or with the binlog alone (a
start that was chosen). It ends when the WAL begins anew or the master makes a new dump: what was not delivered by then
is in the new dump. Each has a folder with the sink's commit record, so a batch that was cut off in the old one has
nothing to do with the new one's.

    <checkpoint>.pipeline/db0/generation.json      the present one
    <checkpoint>.pipeline/db0/3/plan.json          its dump, cut into ranges
    <checkpoint>.pipeline/db0/3/snapshot/          commit record of its snapshot
    <checkpoint>.pipeline/db0/3/binlog/            commit record of its binlog

`next_step` is the one place that decides, out of what stands in files, so a restart at any moment comes to the same.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tidelog.pikiwi.checkpoint import Checkpoint, DatabaseCheckpoint, Snapshot
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.disk import make_folder, replace_file
from tidelog.pikiwi.wal.record import WalPoint
from tidelog.spark.pipeline.errors import PipelineStateError

FORMAT = 1
FILE = "generation.json"
COMING = ("saving", "fetching")  # a dump is on its way


@dataclass(frozen=True, slots=True)
class Dump:
    """Which dump a generation begins with."""

    uuid: str
    position: Position

    @classmethod
    def of(cls, snapshot: Snapshot) -> "Dump | None":
        return None if snapshot.position is None else cls(snapshot.uuid, snapshot.position)


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    replication_id: str
    start: WalPoint
    """The binlog is delivered from here on."""
    dump: Dump | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be delivered now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Begin:
    """A new generation; with a dump, or from what is delivered already."""

    dump: Dump | None


@dataclass(frozen=True, slots=True)
class DeliverDump:
    """Of the present generation."""

    dump: Dump


@dataclass(frozen=True, slots=True)
class DeliverBinlog:
    """Of the present generation."""


Step = Wait | Begin | DeliverDump | DeliverBinlog


def next_step(
    checkpoint: Checkpoint | None, database: str, generation: Generation | None, *, place_is_there: bool
) -> Step:
    """`place_is_there`: the WAL still has the place up to which the generation has been delivered."""
    held = None if checkpoint is None else checkpoint.databases.get(database)
    if checkpoint is None or held is None:
        return Wait("the receiver has not begun yet")
    snapshot = held.snapshot
    if snapshot.state in COMING:
        return Wait("a dump is on its way")
    dump = Dump.of(snapshot)
    if snapshot.state == "ready":
        return Begin(dump)  # also if it is the one that was delivered: the master was asked for all of it again
    same = generation is not None and generation.replication_id == checkpoint.replication_id
    if snapshot.state == "running" and dump is not None:
        return DeliverDump(dump) if same and generation is not None and generation.dump == dump else Begin(dump)
    if same and place_is_there:
        return DeliverBinlog()
    if held.durable_cp is None:
        return Wait("the receiver has received nothing yet")
    return Begin(None)


def is_over(checkpoint: Checkpoint | None, database: str, generation: Generation) -> bool:
    """Whether what is being delivered has been replaced by something else."""
    held = None if checkpoint is None else checkpoint.databases.get(database)
    if checkpoint is None or held is None or checkpoint.replication_id != generation.replication_id:
        return True
    snapshot = held.snapshot
    return snapshot.state in (*COMING, "ready") or (
        snapshot.state == "running" and Dump.of(snapshot) != generation.dump
    )


def with_snapshot(checkpoint: Checkpoint, database: str, dump: Dump, snapshot: Snapshot) -> Checkpoint:
    """The checkpoint with a new state of this dump, or as it is when another one has taken its place."""
    held: DatabaseCheckpoint = checkpoint.database(database)
    if Dump.of(held.snapshot) != dump or held.snapshot.state not in ("ready", "running"):
        return checkpoint
    return checkpoint.with_database(database, replace(held, snapshot=snapshot))


# --- the files --------------------------------------------------------------------------------------------------------


class GenerationFolder:
    """Where a database's generations are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> Generation | None:
        path = self.folder / FILE
        try:
            return _decoded(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise PipelineStateError(
                f"{path} cannot be read ({error!r}): restore it; or remove {self.folder}, and what was delivered "
                "behind AckCP is delivered again"
            ) from None

    def save(self, generation: Generation) -> None:
        """It is durable when this returns; what is of others is removed."""
        make_folder(self.folder)
        replace_file(self.folder / FILE, json.dumps(_encoded(generation)).encode())
        for path in self.folder.iterdir():
            if path.is_dir() and path.name.isdecimal() and int(path.name) < generation.number:
                shutil.rmtree(path, ignore_errors=True)  # of no use to anybody, and in nobody's way

    def of(self, generation: Generation) -> Path:
        return self.folder / str(generation.number)


def _encoded(generation: Generation) -> dict[str, Any]:
    seq, position, segment, offset = generation.start
    dump = generation.dump
    return {
        "format": FORMAT,
        "number": generation.number,
        "replication_id": generation.replication_id,
        "start": {"seq": seq, **position._asdict(), "wal_segment": segment, "wal_offset": offset},
        "dump": None if dump is None else {"uuid": dump.uuid, **dump.position._asdict()},
    }


def _decoded(content: Mapping[str, Any]) -> Generation:
    if content["format"] != FORMAT:
        raise ValueError(f"it has format {content['format']}, this program reads {FORMAT}")
    start, dump = content["start"], content["dump"]
    return Generation(
        content["number"],
        content["replication_id"],
        WalPoint(start["seq"], Position(start["filenum"], start["offset"]), start["wal_segment"], start["wal_offset"]),
        None if dump is None else Dump(dump["uuid"], Position(dump["filenum"], dump["offset"])),
    )
