"""`checkpoint.json`: how far a source has come, for the receiver and the pipeline, which are two processes.

    {"version": 1, "source_id": "10.0.0.1:9221", "replication_id": "…", "epoch": 11,
     "ack_cp": {"seq", "filenum", "offset"},
     "durable_cp": {"seq", "filenum", "offset", "wal_segment", "wal_offset"},
     "snapshot": {"state", "bgsave_end_file_num", "bgsave_end_offset", "snapshot_seq", "uuid"},
     "databases": {"db0": {"epoch", "ack_cp", "durable_cp", "snapshot", "started_from"}, …}}

The fields above `databases` are those of the source's first database: a file of the Go tool can be gone on with, and
reads here as a source of one database. Positions are ends of items, `ack_cp` too. (The Go tool wrote the start of the
last delivered item there, so a pipeline that goes on with its file delivers that one again.)

Who writes what: the receiver DurableCP, epoch, replication_id and the snapshot up to `ready`; the pipeline AckCP and
the snapshot from `running` on. Each changes the file under a lock (`<path>.lock`), starting from what it holds then, so
neither undoes the other's work. The file is replaced as a whole and synced, with its folder.

Rules, checked at every change:

* AckCP and DurableCP never go back. Only `restart_from` may move them anywhere, and wants a reason for the log;
* AckCP is contiguous: a batch is acknowledged by both its ends, and one that leaves a gap is refused;
* the file belongs to one source, and to one lineage of it: another source's is refused.

The WAL is the truth about DurableCP; what stands here may be older by the interval at which it is written.
"""

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from tidelog.pikiwi.errors import CheckpointError
from tidelog.pikiwi.position import Position, PositionError
from tidelog.pikiwi.wal.disk import make_folder, replace_file
from tidelog.pikiwi.wal.record import WalPoint

VERSION = 1
FILE_BYTES_MAX = 1 << 20
LOCK_S_MAX = 30.0
LOCK_RETRY_S = 0.005

_log = logging.getLogger(__name__)

State = Literal["none", "saving", "fetching", "ready", "running", "done"]


@dataclass(frozen=True, slots=True)
class Point:
    """All items up to record `seq` of the WAL, which ends at `position`."""

    seq: int
    position: Position


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A full sync. `state`: the master is saving, the dump is being fetched, is ready to be read, is being read by the
    pipeline (`running`), was delivered (`done`)."""

    state: State = "none"
    position: Position | None = None  # the dump holds everything up to here
    snapshot_seq: int = 0  # elements delivered so far
    uuid: str = ""  # of the dump


@dataclass(frozen=True, slots=True)
class DatabaseCheckpoint:
    ack_cp: Point | None = None
    durable_cp: WalPoint | None = None
    snapshot: Snapshot = Snapshot()
    epoch: int = 0  # the master's session id when DurableCP was written
    started_from: str = ""  # the start that was set (`filenum:offset` or `master`) and has been applied


@dataclass(frozen=True, slots=True)
class Checkpoint:
    source_id: str
    replication_id: str = ""
    databases: Mapping[str, DatabaseCheckpoint] = field(default_factory=lambda: MappingProxyType({}))

    def database(self, name: str) -> DatabaseCheckpoint:
        return self.databases.get(name, DatabaseCheckpoint())

    def with_database(self, name: str, changed: DatabaseCheckpoint) -> "Checkpoint":
        return replace(self, databases=MappingProxyType({**self.databases, name: changed}))


class CheckpointFile:
    """`first_database` says whose fields stand at the top of the file."""

    def __init__(self, path: Path, source_id: str, first_database: str = "db0") -> None:
        self.path = path
        self.source_id = source_id
        self._first = first_database
        self._lock_path = path.with_name(f"{path.name}.lock")

    def load(self) -> Checkpoint | None:
        """None when there is no file. Needs no lock: the file is replaced as a whole."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}") from None
        checkpoint = _decode(self.path, data, self._first)
        if checkpoint.source_id != self.source_id:
            raise CheckpointError(
                f"{self.path} belongs to source {checkpoint.source_id}, not to {self.source_id}: "
                "use another checkpoint_path, or set source_id if it is the same data"
            )
        return checkpoint

    def update(self, change: Callable[[Checkpoint], Checkpoint]) -> Checkpoint:
        """Replace the file by what `change` makes of it. Nothing goes back; unchanged content is not written."""
        return self._replace(change, _refuse_going_back)

    def restart_from(self, database: str, place: WalPoint, reason: str, started_from: str | None = None) -> Checkpoint:
        """Everything up to `place` counts as durable and delivered: a full sync, or a start that was chosen.

        `started_from` is the setting that has been applied with it; None: the one before still counts as applied.
        """
        _log.warning("%s %s: starts from %s: %s", self.source_id, database, place.position, reason)

        def change(checkpoint: Checkpoint) -> Checkpoint:
            held = checkpoint.database(database)
            changed = replace(
                held,
                ack_cp=Point(place.seq, place.position),
                durable_cp=place,
                started_from=held.started_from if started_from is None else started_from,
            )
            return checkpoint.with_database(database, changed)

        return self._replace(change, lambda _before, _after: None)

    def new_lineage(self, replication_id: str) -> Checkpoint:
        """The source's data begins anew: positions of before mean nothing. `restart_from` follows a database."""
        _log.warning("%s: its replication_id is now %s", self.source_id, replication_id)
        return self._replace(
            lambda checkpoint: replace(checkpoint, replication_id=replication_id, databases=MappingProxyType({})),
            lambda _before, _after: None,
        )

    # --- what the receiver writes ---

    def advance_durable(
        self, places: Mapping[str, WalPoint], epochs: Mapping[str, int], replication_id: str
    ) -> Checkpoint:
        def change(checkpoint: Checkpoint) -> Checkpoint:
            checkpoint = replace(checkpoint, replication_id=replication_id)
            for name, place in places.items():
                held = checkpoint.database(name)
                changed = replace(held, durable_cp=place, epoch=epochs.get(name, held.epoch))
                checkpoint = checkpoint.with_database(name, changed)
            return checkpoint

        return self.update(change)

    def set_snapshot(self, database: str, snapshot: Snapshot) -> Checkpoint:
        return self.update(
            lambda checkpoint: checkpoint.with_database(
                database, replace(checkpoint.database(database), snapshot=snapshot)
            )
        )

    # --- what the pipeline writes ---

    def advance_ack(self, database: str, after_seq: int, point: Point) -> Checkpoint:
        """Everything of records (after_seq, point.seq] was delivered. A batch that is repeated changes nothing."""

        def change(checkpoint: Checkpoint) -> Checkpoint:
            held = checkpoint.database(database)
            acknowledged = 0 if held.ack_cp is None else held.ack_cp.seq
            if after_seq > acknowledged:
                raise CheckpointError(
                    f"{self.path}: records {acknowledged + 1} to {after_seq} of {database} were not delivered, "
                    f"so {point.seq} cannot be acknowledged"
                )
            if point.seq <= acknowledged:
                return checkpoint
            return checkpoint.with_database(database, replace(held, ack_cp=point))

        return self.update(change)

    # --- the file ---

    def _replace(
        self, change: Callable[[Checkpoint], Checkpoint], check: Callable[[Checkpoint, Checkpoint], None]
    ) -> Checkpoint:
        with self._locked():
            before = self.load()
            start = Checkpoint(self.source_id) if before is None else before
            after = change(start)
            check(start, after)
            if after != before:
                try:
                    replace_file(self.path, _encode(after, self._first))
                except OSError as error:
                    raise CheckpointError(f"cannot write {self.path}: {error.strerror}; look at the disk") from error
            return after

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            make_folder(self.path.parent)
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise CheckpointError(f"cannot open {self._lock_path}: {error.strerror}") from error
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        """Whoever has it holds it for one small write, unless it hangs."""
        deadline = time.monotonic() + LOCK_S_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise CheckpointError(
                        f"{self._lock_path} has been held by another process for {LOCK_S_MAX:.0f} s: end that one"
                    ) from None
                time.sleep(LOCK_RETRY_S)


def _refuse_going_back(before: Checkpoint, after: Checkpoint) -> None:
    if before.replication_id and after.replication_id != before.replication_id:
        raise CheckpointError(
            f"the checkpoint of {before.source_id} is of lineage {before.replication_id}, not {after.replication_id}"
        )
    for name, held in before.databases.items():
        changed = after.databases.get(name)
        if changed is None:
            raise CheckpointError(f"the checkpoint of {before.source_id} {name} cannot be taken away")
        _refuse_lower(f"{before.source_id} {name}: AckCP", held.ack_cp, changed.ack_cp)
        _refuse_lower(f"{before.source_id} {name}: DurableCP", held.durable_cp, changed.durable_cp)


def _refuse_lower(what: str, old: Point | WalPoint | None, new: Point | WalPoint | None) -> None:
    if old is None:
        return
    if new is None or new.seq < old.seq or new.position < old.position:
        there = "nothing" if new is None else f"{new.position} (record {new.seq})"
        raise CheckpointError(f"{what} cannot go back from {old.position} (record {old.seq}) to {there}")


# --- as JSON ----------------------------------------------------------------------------------------------------------


def _encode(checkpoint: Checkpoint, first: str) -> bytes:
    top = _encode_database(checkpoint.database(first))
    content = {
        "version": VERSION,
        "source_id": checkpoint.source_id,
        "replication_id": checkpoint.replication_id,
        **top,
        "databases": {name: _encode_database(each) for name, each in sorted(checkpoint.databases.items())},
    }
    return json.dumps(content, ensure_ascii=False, indent=1).encode() + b"\n"


def _encode_database(held: DatabaseCheckpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"epoch": held.epoch}
    if held.ack_cp is not None:
        content["ack_cp"] = {"seq": held.ack_cp.seq, **held.ack_cp.position._asdict()}
    if held.durable_cp is not None:
        seq, position, segment, offset = held.durable_cp
        content["durable_cp"] = {"seq": seq, **position._asdict(), "wal_segment": segment, "wal_offset": offset}
    snapshot = held.snapshot
    content["snapshot"] = {"state": snapshot.state}
    if snapshot.position is not None:
        content["snapshot"] |= {
            "bgsave_end_file_num": snapshot.position.filenum,
            "bgsave_end_offset": snapshot.position.offset,
            "snapshot_seq": snapshot.snapshot_seq,
            "uuid": snapshot.uuid,
        }
    if held.started_from:
        content["started_from"] = held.started_from
    return content


def _decode(path: Path, data: bytes, first: str) -> Checkpoint:
    try:
        if len(data) > FILE_BYTES_MAX:
            raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
        content = json.loads(data)
        if content["version"] != VERSION:
            raise ValueError(f"it has version {content['version']}, this program reads {VERSION}")
        databases = content.get("databases", {first: content})
        return Checkpoint(
            _text(content, "source_id"),
            _text(content, "replication_id", ""),
            MappingProxyType({str(name): _decode_database(each) for name, each in databases.items()}),
        )
    except KeyError as error:
        raise CheckpointError(f"{path} is no checkpoint: it lacks {error}") from None
    except (ValueError, TypeError, AttributeError, PositionError) as error:
        raise CheckpointError(f"{path} is no checkpoint: {error}") from None


def _decode_database(content: Mapping[str, Any]) -> DatabaseCheckpoint:
    ack, durable = content.get("ack_cp"), content.get("durable_cp")
    return DatabaseCheckpoint(
        None if ack is None else Point(_number(ack, "seq"), _position(ack)),
        None
        if durable is None
        else WalPoint(
            _number(durable, "seq"),
            _position(durable),
            _number(durable, "wal_segment", 0),
            _number(durable, "wal_offset", 0),
        ),
        _decode_snapshot(content.get("snapshot") or {}),
        _number(content, "epoch", 0),
        _text(content, "started_from", ""),
    )


def _decode_snapshot(content: Mapping[str, Any]) -> Snapshot:
    state = _text(content, "state", "") or "none"
    if state not in get_args(State):
        raise ValueError(f"there is no snapshot state {state!r}")
    position = None
    if "bgsave_end_file_num" in content and state != "none":
        position = Position.checked(_number(content, "bgsave_end_file_num"), _number(content, "bgsave_end_offset"))
    return Snapshot(state, position, _number(content, "snapshot_seq", 0), _text(content, "uuid", ""))  # type: ignore[arg-type]


def _position(content: Mapping[str, Any]) -> Position:
    return Position.checked(_number(content, "filenum"), _number(content, "offset"))


def _number(content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content[name] if default is None else content.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is {value!r}, which is no number from 0 up")
    return value


def _text(content: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = content[name] if default is None else content.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, which is no text")
    return value
