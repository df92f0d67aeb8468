"""The status document: what a running receiver says about itself, for `tidelog pikiwi status` and for machines.

The receiver writes it every `EVERY_S`, as a whole but not synced: it is about now, and worthless after a crash.
Positions are texts, `filenum:offset`; what is not known is null. Who reads it goes by `written_ms`: a document older
than `STALE_S` is of a receiver that no longer runs, or hangs.
"""

import asyncio
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from tidelog.pikiwi.checkpoint import Checkpoint
from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import DatabaseProgress, Progress, distance_bytes
from tidelog.pikiwi.wal.disk import make_folder, replace_file

FORMAT = 1
EVERY_S = 1.0
STALE_S = 10.0
FILE_BYTES_MAX = 1 << 20

_log = logging.getLogger(__name__)


class StatusError(PikiwiError):
    """There is no status to show."""


def document(progress: Progress, now_s: float) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "written_ms": int(now_s * 1000),
        "pid": os.getpid(),
        "source_id": progress.source_id,
        "state": progress.state,
        "detail": progress.detail,
        "replication_id": progress.replication_id,
        "connections": progress.connections,
        "disconnects": progress.disconnects,
        "databases": {name: _database(each, now_s) for name, each in sorted(progress.databases.items())},
    }


def _database(held: DatabaseProgress, now_s: float) -> dict[str, Any]:
    snapshot = held.snapshot
    return {
        "state": held.state,
        "session_id": held.session_id,
        "master_end": _text(held.master_end),
        "received": _text(held.received),
        "durable": _text(held.durable),
        "durable_seq": held.durable_seq,
        "acknowledged": _text(held.acknowledged),
        "lag_bytes": held.lag_bytes,
        "lag_s": held.lag_s(now_s),
        "items": held.items,
        "item_bytes": held.item_bytes,
        "syncs": held.syncs,
        "sync_s": round(held.sync_s, 6),
        "keepalives": held.keepalives,
        "full_syncs": held.full_syncs,
        "wal_bytes": held.wal_bytes,
        "wal_first": _text(held.wal_first),
        "binlog_file_bytes": held.binlog_file_bytes,
        "snapshot": {
            "state": snapshot.state,
            "uuid": snapshot.uuid,
            "position": _text(snapshot.position),
            "files_done": snapshot.files_done,
            "files_total": snapshot.files_total,
            "bytes_done": snapshot.bytes_done,
            "bytes_total": snapshot.bytes_total,
        },
    }


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


def write_status(path: Path, content: dict[str, Any]) -> None:
    make_folder(path.parent)
    replace_file(path, json.dumps(content, indent=1).encode() + b"\n", durable=False)


async def keep_writing(path: Path, progress: Progress, stop: asyncio.Event) -> None:
    """Until `stop`, and once more then. A disk that does not take it is worth a warning, not the receiver's end."""
    warned = False
    while True:
        ending = stop.is_set()
        try:
            await asyncio.to_thread(write_status, path, document(progress, time.time()))
            warned = False
        except OSError as error:
            if not warned:
                _log.warning("cannot write the status to %s: %s", path, error.strerror)
            warned = True
        if ending:
            return
        try:
            await asyncio.wait_for(stop.wait(), EVERY_S)
        except TimeoutError:
            continue


def read_status(path: Path) -> dict[str, Any] | None:
    """None when no receiver has ever written one."""
    try:
        with open(path, "rb") as file:
            content = json.loads(file.read(FILE_BYTES_MAX))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StatusError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise StatusError(f"{path} is no status document: remove it") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise StatusError(f"{path} is a status document of another version: remove it")
    return content


def report(
    status: dict[str, Any] | None, checkpoint: Checkpoint | None, source_id: str, now_s: float
) -> dict[str, Any]:
    """Everything that is known of a source: what its receiver says, and how far its pipeline has come."""
    running = status is not None and now_s - status["written_ms"] / 1000 < STALE_S and status["state"] != "stopped"
    said = {} if status is None else status["databases"]
    stored = {} if checkpoint is None else checkpoint.databases
    databases: dict[str, Any] = {}
    for name in sorted({*said, *stored}):
        one = dict(said.get(name, {}))
        held = None if checkpoint is None else checkpoint.database(name)
        if held is not None:
            durable = Position.parse(one["durable"]) if one.get("durable") else None
            if durable is None and held.durable_cp is not None:
                durable = held.durable_cp.position
            one["durable"] = _text(durable)
            one["ack"] = None if held.ack_cp is None else str(held.ack_cp.position)
            one["undelivered_bytes"] = _undelivered(held.ack_cp and held.ack_cp.position, durable, one)
            one["pipeline_snapshot"] = held.snapshot.state
        databases[name] = one
    return {
        "source_id": source_id,
        "running": running,
        "state": "not running" if not running else status["state"] if status else "",
        "detail": status["detail"] if running and status else "",
        "replication_id": (status or {}).get("replication_id")
        or ("" if checkpoint is None else checkpoint.replication_id),
        "age_s": None if status is None else round(max(0.0, now_s - status["written_ms"] / 1000), 1),
        "databases": databases,
    }


def _undelivered(ack: Position | None, durable: Position | None, one: dict[str, Any]) -> int | None:
    """Bytes of binlog that are durable here and that the pipeline has not delivered."""
    if ack is None or durable is None:
        return None
    return distance_bytes(ack, durable, one.get("binlog_file_bytes") or DatabaseProgress("").binlog_file_bytes)
