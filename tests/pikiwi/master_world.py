"""A test master and a receiver of it, in one event loop.

    @in_world()
    async def test_something(world: World) -> None:
        world.write(100)
        await world.begin(filenum=0, offset=0)
        await world.catch_up()

At the end of every test: the master would not have crashed, and every connection that it closed was closed for a
reason that the test names (`world.may_close`).
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pikiwi.master import Master
from tests.pikiwi.master_dumps import CommandLog
from tests.pikiwi.master_replication import MasterSettings
from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.checkpoint import Checkpoint, CheckpointFile
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.dump.rsync import FetchLimits
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.receiver import Receiver
from tidelog.pikiwi.reconnect import ReconnectSettings
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.session import SessionSettings
from tidelog.pikiwi.wal import WalReader, WalRecord, wal_folder

WAIT_S_MAX = 30.0
POLL_S = 0.002
QUICK = ReconnectSettings(
    delay_s_first=0.005, delay_s_max=0.02, unreached_max=30, fruitless_max=5, name_taken_delay_s=0.02, name_taken_max=4
)
QUICK_FETCH = FetchLimits(poll_s=0.01, retry_s=0.01, failures=3)


class World:
    def __init__(self, folder: Path, settings: MasterSettings) -> None:
        self.folder = folder
        self.commands = CommandLog()
        self.master = Master(folder / "master", settings, keyspace=self.commands)
        self.config = Config(
            master_port=self.master.port,
            db_name=",".join(settings.dbs),
            wal_dir=folder / "wal",
            dump_path=folder / "dump",
            checkpoint_path=folder / "checkpoint.json",
            checkpoint_interval_ms=20,
        )
        self.receiver: Receiver | None = None
        self.may_close: tuple[str, ...] = ()  # beginnings of reasons
        self.session_settings: SessionSettings | None = None
        self.options: dict[str, Any] = {}
        self._running: asyncio.Task[None] | None = None
        self._written = 0

    # --- the master's side ---

    def write(self, count: int, db: str = "db0", size: int = 60) -> list[tuple[bytes, ...]]:
        """So many commands, no two alike."""
        commands = [(b"SET", b"key-%d" % (self._written + i), b"v" * size) for i in range(count)]
        self._written += count
        for command in commands:
            self.master.execute(db, *command)
        return commands

    def sent(self, db: str = "db0") -> list[tuple[Position, bytes]]:
        """Everything the master's binlog still has."""
        return self.master.replication.binlogs[db].all_items()

    def end(self, db: str = "db0") -> Position:
        return self.master.replication.binlogs[db].end

    def start_settings(self, **changes: Any) -> None:
        """Settings of the receiver from its next start on."""
        if not changes.keys().isdisjoint(("filenum", "start_from_master")):
            changes.setdefault("initial_full_sync", False)
        self.config = replace(self.config, **changes)

    # --- the receiver's side ---

    async def begin(self, **changes: Any) -> Receiver:
        """A receiver starts, as a new process would."""
        self.start_settings(**changes)
        self.receiver = Receiver(
            self.config,
            session_settings=self.session_settings,
            reconnect_settings=self.options.get("reconnect_settings", QUICK),
            fetch_limits=self.options.get("fetch_limits", QUICK_FETCH),
            **{k: v for k, v in self.options.items() if k not in ("reconnect_settings", "fetch_limits")},
        )
        self._running = asyncio.create_task(self.receiver.run())
        return self.receiver

    async def until(self, condition: Callable[[], object], what: str = "") -> None:
        """Until it is true; a receiver that ended meanwhile raises what it ended with."""
        async with asyncio.timeout(WAIT_S_MAX):
            while not condition():
                if self._running is not None and self._running.done():
                    self._running.result()
                    raise AssertionError(f"the receiver has ended before {what or 'that'}")
                await asyncio.sleep(POLL_S)

    async def catch_up(self, db: str = "db0") -> None:
        """Until all that the master has is durable and acknowledged."""
        await self.until(lambda: self.progress(db).acknowledged == self.end(db), f"it caught up with {db}")

    async def dump_is_ready(self, db: str = "db0") -> None:
        await self.until(lambda: self.progress(db).snapshot.state == "ready", "its dump was complete")

    async def stop(self) -> None:
        assert self.receiver is not None
        assert self._running is not None
        self.receiver.stop()
        await self._running

    async def end_of_receiver(self) -> BaseException:
        """It ends by itself; the error it ends with."""
        assert self._running is not None
        async with asyncio.timeout(WAIT_S_MAX):
            await asyncio.wait((self._running,))
        error = self._running.exception()
        assert error is not None, "it ended without an error"
        return error

    def progress(self, db: str = "db0") -> Any:
        assert self.receiver is not None
        return self.receiver.progress.database(db)

    def records(self, db: str = "db0") -> list[WalRecord]:
        """What any reader finds in the WAL."""
        reader = WalReader(wal_folder(self.config, db))
        first = reader.first()
        return [] if first is None else list(reader.read(first))

    def received(self, db: str = "db0") -> list[tuple[Position, bytes]]:
        return [(record.position, record.payload) for record in self.records(db)]

    def received_commands(self, db: str = "db0") -> list[tuple[bytes, ...]]:
        return [tuple(parse_command(decode_item(record.payload).content)) for record in self.records(db)]

    def dumped_commands(self, db: str = "db0") -> list[tuple[bytes, ...]]:
        """What the fetched dump holds."""
        content = (self.config.dump_path / db / "0" / "commands.resp").read_bytes()
        return [tuple(parse_command(b"*" + part)) for part in content.split(b"*")[1:]]

    def checkpoint(self) -> Checkpoint:
        found = CheckpointFile(self.config.checkpoint_path, self.config.source).load()
        assert found is not None
        return found

    async def finish(self) -> None:
        if self._running is not None and not self._running.done():
            await self.stop()
        await self.master.stop()
        assert self.master.replication.crashes == []
        unexpected = [why for why in self.master.replication.closed if not why.startswith(self.may_close or ("\0",))]
        assert unexpected == []


Test = Callable[[World], Awaitable[None]]


def in_world(**master: Any) -> Callable[[Test], Callable[[Path], None]]:
    """Runs the test in a world of its own; `master`: settings of the master."""

    def decorate(test: Test) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def scenario() -> None:
                world = World(tmp_path, MasterSettings(**master))
                await world.master.start()
                try:
                    await test(world)
                finally:
                    await world.finish()

            asyncio.run(scenario())

        functools.update_wrapper(run, test, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        del run.__wrapped__  # pytest must see tmp_path, not world
        return run

    return decorate
