"""A PikiwiDB master for tests, benchmarks and demonstrations: real TCP, real positions, real hazards.

    async with Master(folder) as master:
        master.execute("db0", b"SET", b"k", b"v")

Parts: `master_binlog.py` (positions and files), `master_replication.py` (protocol rules, no sockets), `master_dumps.py`
(BGSAVE and rsync2), this module (sockets, faults, the process). The replication port is `port` + 2000 and rsync2's is
`port` + 10001, as on a real one.

Time: a real clock by default. With a `ManualClock` nothing happens by itself: a test says how much time passes.

As a process: `python -m tests.pikiwi.master --port 9221 --folder /tmp/m` executes the commands it reads from standard
input, one a line, words separated by spaces, the first word the database; prints `ready PORT` when it serves.
"""

import argparse
import asyncio
import shlex
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import cast

from tests.pikiwi.master_binlog import Binlog
from tests.pikiwi.master_dumps import CommandLog, Dumps, Keyspace, RsyncServer
from tests.pikiwi.master_replication import MasterSettings, Replication
from tests.ports import free_port
from tidelog.pikiwi.errors import ProtocolError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.protocol import (
    REPLICATION_PORT_DISTANCE,
    RSYNC_PORT_DISTANCE,
    FrameDecoder,
    encode_frame,
    parse,
)
from tidelog.pikiwi.protocol import inner_message_pb2 as pb

HOST = "127.0.0.1"
TICK_S = 0.1
REQUEST_BYTES_MAX = 1 << 20
PORT_TRIES_MAX = 50


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class LinkFaults:
    """What goes wrong on the replication port; None: nothing. Counters count messages from now on."""

    close_after_responses: int | None = None  # the connection is closed instead of the n-th response
    cut_after_responses: int | None = None  # half of the n-th response, then closed
    raw_instead: bytes | None = None  # sent instead of every response
    swallow: Callable[[pb.InnerResponse], bool] | None = None  # responses that are lost
    rewrite: Callable[[pb.InnerResponse], pb.InnerResponse] | None = None
    deaf: bool = False  # requests are not read


class MasterConnection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, master: "Master") -> None:
        self._master = master
        self._decoder = FrameDecoder(REQUEST_BYTES_MAX)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._master.connections.add(self)
        self._master.connection_count += 1
        self._master.replication.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._master.connections.discard(self)
        self._master.replication.disconnected(self)

    def data_received(self, data: bytes) -> None:
        if self._master.faults.deaf:
            return
        self._decoder.feed(data)
        try:
            for frame in self._decoder:
                self._master.replication.handle(self, parse(pb.InnerRequest, frame))
        except ProtocolError as error:
            self._master.replication.closed.append(str(error))
            self.close()

    def send(self, response: pb.InnerResponse) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        faults = self._master.faults
        if faults.swallow is not None and faults.swallow(response):
            return
        if faults.rewrite is not None:
            response = faults.rewrite(response)
        data = encode_frame(response) if faults.raw_instead is None else faults.raw_instead
        if self._its_turn("close_after_responses"):
            self.close()
        elif self._its_turn("cut_after_responses"):
            transport.write(data[: len(data) // 2])
            self.close()
        else:
            transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _its_turn(self, name: str) -> bool:
        left = getattr(self._master.faults, name)
        if left is None:
            return False
        setattr(self._master.faults, name, None if left == 0 else left - 1)
        return left == 0


class Master:
    """Serves while it is entered. `restart` ends all connections; session ids begin at 0 again, as on a real one."""

    def __init__(
        self,
        folder: Path,
        settings: MasterSettings | None = None,
        *,
        keyspace: Keyspace | None = None,
        binlogs: dict[str, Binlog] | None = None,
        clock: Callable[[], float] = time.monotonic,
        port: int | None = None,
    ) -> None:
        self.settings = settings or MasterSettings()
        self.clock = clock
        self.port = port or _free_base_port()
        self.faults = LinkFaults()
        self.connections: set[MasterConnection] = set()
        self.connection_count = 0
        self.keyspace = keyspace or CommandLog()
        self._folder = folder
        self._dumps = Dumps(folder, self.keyspace, HOST, self.port)
        self.replication = Replication(self.settings, clock, self._dumps, binlogs)
        self.rsync = RsyncServer(self._dumps, self.settings.dbs, clock, self.replication.crash)
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    @property
    def dumps(self) -> Dumps:
        return self._dumps

    async def __aenter__(self) -> "Master":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: MasterConnection(self), HOST, self.port + REPLICATION_PORT_DISTANCE
        )
        await self.rsync.start(HOST, self.port + RSYNC_PORT_DISTANCE)
        if not isinstance(self.clock, ManualClock):
            self._ticker = asyncio.create_task(self._tick_for_ever())

    async def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        if self._server is not None:
            self._server.close()
            self.disconnect_all()
            await self._server.wait_closed()
            self._server = None
        await self.rsync.stop()

    async def restart(self, settings: MasterSettings | None = None) -> None:
        """As a real master's restart: the binlog stays; sessions and the dump in memory do not."""
        await self.stop()
        before = self.replication
        self.settings = settings or self.settings
        faults = self.rsync.faults
        self._dumps = Dumps(self._folder / f"after-{before.dumps.saves}", self.keyspace, HOST, self.port)
        self.replication = Replication(self.settings, self.clock, self._dumps, before.binlogs)
        self.replication.crashes = before.crashes
        self.rsync = RsyncServer(self._dumps, self.settings.dbs, self.clock, self.replication.crash)
        self.rsync.faults = faults
        await self.start()

    def disconnect_all(self) -> None:
        for connection in list(self.connections):
            connection.abort()

    def execute(self, db: str, *arguments: bytes) -> Position:
        """A user's command; it goes out with the next tick or acknowledgement."""
        return self.replication.execute(db, *arguments)

    def tick(self) -> None:
        self.replication.tick()

    def advance(self, seconds: float) -> None:
        """Time passes, on a manual clock; the master does what is due."""
        assert isinstance(self.clock, ManualClock)
        self.clock.now_s += seconds
        self.tick()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()


def _free_base_port() -> int:
    """One whose replication port is free too, and whose rsync2 port is below 65,536."""
    for _ in range(PORT_TRIES_MAX):
        port = free_port()
        try:
            for distance in (REPLICATION_PORT_DISTANCE, RSYNC_PORT_DISTANCE):
                with socket.socket() as probe:
                    probe.bind((HOST, port + distance))
        except OSError:
            continue
        return port
    raise RuntimeError("no free ports for a master")


async def _serve(options: argparse.Namespace) -> None:
    settings = MasterSettings(version=options.version, dbs=tuple(options.db))
    async with Master(Path(options.folder), settings, port=options.port) as master:
        print(f"ready {master.port}", flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            db, *words = shlex.split(line)
            print(master.execute(db, *(word.encode() for word in words)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.pikiwi.master")
    parser.add_argument("--port", type=int, required=True, help="of redis; replication is at +2000, rsync2 at +10001")
    parser.add_argument("--folder", required=True, help="for dumps")
    parser.add_argument("--version", choices=("3.5", "4.0"), default="4.0")
    parser.add_argument("--db", nargs="+", default=["db0"])
    asyncio.run(_serve(parser.parse_args()))
