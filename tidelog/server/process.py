"""One node as a process: the event loop, signals, and an orderly end.

Exit status 0 only after an orderly stop. A disk that fails ends the process at once, with a line that says what
happened: what was acknowledged is on disk, and nothing more is.
"""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable

import uvloop

from tidelog.server.broker import Broker
from tidelog.server.listener import Listener
from tidelog.server.settings import Settings
from tidelog.storage import RealDisk, StorageError

log = logging.getLogger(__name__)

COLLECT_AFTER = (50_000, 50, 100)
"""Objects made and not freed before the collector looks for cycles. The hot path makes none, and what it keeps (the
tail cache) is large: with Python's default of 700 a good part of the server's time goes into looking through that."""
LISTEN_FDS = "TIDELOG_LISTEN_FDS"
"""Environment: the numbers of two sockets that listen already, for clients and for other nodes, as `5,6`."""


class ServerFailedError(Exception):
    """The node cannot start or go on; the message says why, and what to do."""


async def serve(settings: Settings, ready: Callable[[str, int], None]) -> None:
    """Run a node until it is told to stop (SIGINT, SIGTERM). `ready` is told where it listens."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def fail(error: BaseException) -> None:
        if not ended.done():
            ended.set_exception(ServerFailedError(f"node {settings.node_id} stops: {error}"))

    def stop() -> None:
        if not ended.done():
            ended.set_result(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        broker = Broker(settings, RealDisk(settings.storage_sync), fail)  # type: ignore[arg-type]
    except (StorageError, OSError) as error:
        raise ServerFailedError(f"node {settings.node_id} cannot start: {error}") from error
    listener = Listener(broker)
    try:
        for_clients, for_peers = _inherited_sockets()
        try:
            port = await listener.open(settings.host, settings.port, for_clients)
        except OSError as error:
            raise ServerFailedError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
        host = settings.advertised_host or settings.host
        starting = loop.create_task(broker.start(host, settings.advertised_port or port, for_peers))
        await asyncio.wait((starting, ended), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():  # told to stop before the cluster was there
            starting.cancel()
            await asyncio.wait((starting,))
            ended.result()
            return
        try:
            starting.result()
        except (StorageError, OSError) as error:
            raise ServerFailedError(f"node {settings.node_id} cannot start: {error}") from error
        await listener.serve()
        gc.freeze()  # what is there now stays: the collector need not look at it again
        ready(host, port)
        await ended
    finally:
        listener.close()
        await broker.stop()


def _inherited_sockets() -> tuple[socket.socket | None, socket.socket | None]:
    """Sockets for clients and for other nodes that listen already, from whoever started this process."""
    text = os.environ.get(LISTEN_FDS)
    if not text:
        return None, None
    for_clients, for_peers = (socket.socket(fileno=int(number)) for number in text.split(","))
    return for_clients, for_peers


def _allow_many_files() -> None:
    """Every stream that is written has a file open, every client a socket; the usual soft limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(settings: Settings, ready: Callable[[str, int], None]) -> int:
    _allow_many_files()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, ready))
    except ServerFailedError as error:
        print(f"tidelog: {error}", file=sys.stderr)  # noqa: T201 - the process's last words
        return 1
    return 0
