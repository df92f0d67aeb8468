"""Prometheus metrics of a receiver: its progress as text, and a server for them on this machine only.

The server answers `GET /metrics` and `GET /healthz` (200 while the link is up, 503 otherwise), one request a
connection, heads up to `HEAD_BYTES_MAX`, `CONNECTIONS_MAX` at a time: enough for any scraper, and nothing to attack
with.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from tidelog.pikiwi.errors import ConfigError
from tidelog.pikiwi.progress import DatabaseProgress, Progress

HOST = "127.0.0.1"
HEAD_BYTES_MAX = 8 << 10
REQUEST_S_MAX = 5.0
CONNECTIONS_MAX = 16

_Value = Callable[[DatabaseProgress, float], float | int | None]

# name, kind, help, value of one database
_DATABASE: tuple[tuple[str, str, str, _Value], ...] = (
    ("items_total", "counter", "Items received.", lambda db, _: db.items),
    ("item_bytes_total", "counter", "Bytes of items received.", lambda db, _: db.item_bytes),
    ("syncs_total", "counter", "Syncs of the WAL.", lambda db, _: db.syncs),
    ("sync_seconds_total", "counter", "Time spent in syncs of the WAL.", lambda db, _: db.sync_s),
    ("keepalives_total", "counter", "Keepalives of the master.", lambda db, _: db.keepalives),
    ("full_syncs_total", "counter", "Full syncs begun.", lambda db, _: db.full_syncs),
    ("streaming", "gauge", "1 while binlog flows or could.", lambda db, _: int(db.state == "streaming")),
    ("lag_bytes", "gauge", "Binlog that the master is known to have and we have not.", lambda db, _: db.lag_bytes),
    (
        "lag_seconds",
        "gauge",
        "Age of the newest durable item; 0 when there is nothing more.",
        lambda db, now: db.lag_s(now),
    ),
    ("durable_filenum", "gauge", "File number of DurableCP.", lambda db, _: db.durable and db.durable.filenum),
    ("durable_offset", "gauge", "Offset of DurableCP.", lambda db, _: db.durable and db.durable.offset),
    ("durable_seq", "gauge", "Number of the last durable record.", lambda db, _: db.durable_seq),
    ("wal_bytes", "gauge", "Size of the WAL.", lambda db, _: db.wal_bytes),
    ("snapshot_files_done", "gauge", "Files of the dump that are here.", lambda db, _: db.snapshot.files_done),
    ("snapshot_files", "gauge", "Files of the dump.", lambda db, _: db.snapshot.files_total),
    ("snapshot_bytes_done", "gauge", "Bytes of the dump that are here.", lambda db, _: db.snapshot.bytes_done),
)


def render(progress: Progress, now_s: float) -> str:
    source = f'source="{_escaped(progress.source_id)}"'
    lines = [
        *_metric(
            "connected", "gauge", "1 while the link to the master is up.", source, int(progress.state == "connected")
        ),
        *_metric("connections_total", "counter", "Connections made.", source, progress.connections),
        *_metric("disconnects_total", "counter", "Connections lost.", source, progress.disconnects),
    ]
    for name, kind, text, value in _DATABASE:
        lines += _head(name, kind, text)
        for database in sorted(progress.databases.values(), key=lambda each: each.name):
            number = value(database, now_s)
            if number is not None:
                lines.append(f'tidelog_pikiwi_{name}{{{source},db="{_escaped(database.name)}"}} {number}')
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP tidelog_pikiwi_{name} {text}", f"# TYPE tidelog_pikiwi_{name} {kind}"]


def _metric(name: str, kind: str, text: str, labels: str, value: float) -> Iterator[str]:
    yield from _head(name, kind, text)
    yield f"tidelog_pikiwi_{name}{{{labels}}} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@asynccontextmanager
async def serving(port: int, progress: Progress) -> AsyncIterator[int | None]:
    """Serve them while the block runs; port 0: nothing is served."""
    if port == 0:
        yield None
        return
    busy = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal busy
        busy += 1
        try:
            if busy <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_S_MAX):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_answer(head, progress, time.time()))
                    await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass  # a request that never was one
        finally:
            busy -= 1
            writer.close()

    try:
        server = await asyncio.start_server(answer, HOST, port, limit=HEAD_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"cannot serve metrics on {HOST}:{port}: {error.strerror}; set another metrics_port"
        ) from None
    async with server:
        yield server.sockets[0].getsockname()[1]


def _answer(head: bytes, progress: Progress, now_s: float) -> bytes:
    method, _, rest = head.split(b"\r\n", 1)[0].partition(b" ")
    path = rest.split(b" ")[0].split(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", "only GET\n"
    elif path == b"/metrics":
        status, body = "200 OK", render(progress, now_s)
    elif path == b"/healthz":
        up = progress.state == "connected"
        status, body = (
            ("200 OK", "ok\n") if up else ("503 Service Unavailable", f"{progress.state} {progress.detail}\n")
        )
    else:
        status, body = "404 Not Found", "there are /metrics and /healthz\n"
    data = body.encode()
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if method == b"HEAD" else data)
