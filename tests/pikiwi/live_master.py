"""A PikiwiDB master with a live key space: it executes what users send, logs what a real one logs, saves real dumps.

    async with LiveMaster(folder) as master:
        master.execute("db0", b"INCR", b"counter")          # logs pksetexat counter 0 1
        ...
        master.state("db0")                                 # what a follower must end up with

Sockets and protocol are those of `Master`; here is what is behind them. As a process,

    python -m tests.pikiwi.live_master --folder F [--port P] [--version 3.5] [--db db0 db1] [--seed N]

prints `ready PORT` and obeys one order a line on standard input, answering each with one line: `ok …`, or `error …`:

    shop N          N commands of the scripted shop (`workload.py`); answers how many were logged
    state FILE      what all keys hold now, to compare with (`live_state.py`); answers the number of keys
    items FILE      the binlog, a line of JSON an item: database, filenum and offset of its end, whether it concerns
                    keys of more than one name; answers the number of items
    where           the end of each database's binlog, `db0=3:4711`
    caught-up       whether a follower has acknowledged all there is: `ok yes`, or `ok no`
    purge           old binlog files go now (a follower that is connected keeps what it has not got)
    restart         as a crash and a start: sessions end, keys and binlog stay
    lineage ID      a restart with another replication_id
    quit

Everything is in memory; dumps are written under F.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tests.pikiwi.live_commands import Command, LiveDatabase, Version
from tests.pikiwi.live_dump import write_dump
from tests.pikiwi.live_state import State, state_of, write_state
from tests.pikiwi.master import Master
from tests.pikiwi.master_binlog import resp
from tests.pikiwi.master_replication import MasterSettings
from tests.pikiwi.workload import Shop
from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.commands import command_of, keys_of
from tidelog.pikiwi.keyspace import KeyspaceError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import parse_command

EMPTIED_MAX = 1_000  # names of emptied collections that dumps remember
COLLECTIONS = frozenset(("hash", "set", "list", "zset"))
SLICE = 200  # commands between two looks at the sockets


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class LiveKeys:
    """All databases; what the master's BGSAVE writes."""

    def __init__(self, version: Version, dbs: tuple[str, ...], seed: int) -> None:
        self._version: Version = version
        self.databases = {db: LiveDatabase(version, random.Random(f"{seed} {db}")) for db in dbs}
        self._emptied: dict[str, dict[bytes, None]] = {db: {} for db in dbs}  # in the order they came

    def execute(self, db: str, args: Command, now: int) -> list[Command]:
        logged = self.databases[db].execute(args, now)
        for command in logged:
            if command_of(command[0]).data_type in COLLECTIONS:
                self._remember(db, command[1], now)
        return logged

    def apply(self, db: str, arguments: tuple[bytes, ...]) -> None:
        raise AssertionError("commands of a live master go through LiveMaster.execute, which rewrites them")

    def write_dump(self, db: str, folder: Path) -> None:
        write_dump(self._version, self.databases[db].keys, self._emptied[db], folder)

    def _remember(self, db: str, key: bytes, now: int) -> None:
        emptied = self._emptied[db]
        if self.databases[db].keys.get(key, now) is None:
            emptied[key] = None
            if len(emptied) > EMPTIED_MAX:
                del emptied[next(iter(emptied))]


class LiveMaster:
    """`clock` tells unix milliseconds; it is the clock of keys and binlog, not that of the sockets."""

    def __init__(
        self,
        folder: Path,
        settings: MasterSettings | None = None,
        *,
        clock: Callable[[], int] = now_ms,
        seed: int = 1,
        port: int | None = None,
    ) -> None:
        settings = settings or MasterSettings()
        self.clock = clock
        self.keys = LiveKeys(settings.version, settings.dbs, seed)
        self.master = Master(folder, settings, keyspace=self.keys, port=port)
        self.failures = 0  # commands that were answered with an error

    async def __aenter__(self) -> "LiveMaster":
        await self.master.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.master.stop()

    @property
    def port(self) -> int:
        return self.master.port

    @property
    def dbs(self) -> tuple[str, ...]:
        return self.master.settings.dbs

    def execute(self, db: str, *args: bytes) -> list[Command]:
        """A user's command; what was logged for it. KeyspaceError is the error that the user gets."""
        if args[0].lower() == b"flushall":
            return [each for name in self.dbs for each in self.execute(name, b"flushdb")]
        now = self.clock()
        logged = self.keys.execute(db, args, now)
        binlog = self.master.replication.binlogs[db]
        for command in logged:
            binlog.append(resp(*command), now // 1000)
        return logged

    def try_execute(self, db: str, *args: bytes) -> int:
        """The same for users who do not mind an error; how many commands were logged."""
        try:
            return len(self.execute(db, *args))
        except KeyspaceError:
            self.failures += 1
            return 0

    async def work(self, shop: Shop, count: int) -> int:
        """A shop's next commands, while the sockets are served; how many were logged."""
        logged = 0
        for number, (db, args) in enumerate(shop.steps(count, self.clock)):
            logged += self.try_execute(db, *args)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return logged

    def state(self, db: str = "db0", now: int | None = None) -> State:
        return state_of(self.keys.databases[db].keys, self.clock() if now is None else now)

    def end(self, db: str = "db0") -> Position:
        return self.master.replication.binlogs[db].end

    def items(self) -> Iterator[tuple[str, int, int, bool]]:
        """What binlogs hold: database, end of the item, whether it concerns keys of more than one name, or all."""
        for db in self.dbs:
            for end, data in self.master.replication.binlogs[db].all_items():
                args = parse_command(decode_item(data).content)
                yield db, end.filenum, end.offset, len(keys_of(command_of(args[0]), args)) != 1

    @property
    def caught_up(self) -> bool:
        """A follower of every database has acknowledged everything."""
        registrations = ((db, self.master.replication.registration(db)) for db in self.dbs)
        return all(each is not None and each.acknowledged_to == self.end(db) for db, each in registrations)

    def purge(self) -> None:
        self.master.replication.purge()

    async def restart(self, replication_id: str | None = None) -> None:
        settings = self.master.settings
        if replication_id is not None:
            settings = replace(settings, replication_id=replication_id.ljust(50, "0"))
        await self.master.restart(settings)


class Orders:
    """What the process is told on standard input."""

    def __init__(self, master: LiveMaster, shop: Shop) -> None:
        self._master = master
        self._shop = shop

    async def obey(self, line: str) -> str:
        order, *words = line.split()
        match order, words:
            case "shop", [count]:
                return f"{await self._master.work(self._shop, int(count))} logged"
            case "state", [path]:
                states = {db: self._master.state(db) for db in self._master.dbs}
                write_state(Path(path), states)
                return f"{sum(map(len, states.values()))} keys"
            case "items", [path]:
                return f"{_write_items(Path(path), self._master.items())} items"
            case "where", []:
                return " ".join(f"{db}={self._master.end(db)}" for db in self._master.dbs)
            case "caught-up", []:
                return "yes" if self._master.caught_up else "no"
            case "purge", []:
                self._master.purge()
                return "purged"
            case "restart", []:
                await self._master.restart()
                return "restarted"
            case "lineage", [replication_id]:
                await self._master.restart(replication_id)
                return "restarted"
            case _:
                raise ValueError(f"{line.strip()!r} is no order")


def _write_items(path: Path, items: Iterable[tuple[str, int, int, bool]]) -> int:
    with path.open("w", encoding="ascii") as file:
        return sum(file.write(json.dumps(row) + "\n") > 0 for row in items)


async def _serve(options: argparse.Namespace) -> None:
    settings = MasterSettings(
        version=options.version,
        dbs=tuple(options.db),
        binlog_file_bytes=options.binlog_file_bytes,
        expire_logs_nums=options.expire_logs_nums,
    )
    async with LiveMaster(Path(options.folder), settings, seed=options.seed, port=options.port) as master:
        orders = Orders(master, Shop(options.seed, settings.dbs, settings.version))
        print(f"ready {master.port}", flush=True)
        loop = asyncio.get_running_loop()
        while (line := await loop.run_in_executor(None, sys.stdin.readline)) and line.strip() != "quit":
            try:
                print(f"ok {await orders.obey(line)}", flush=True)
            except (ValueError, OSError) as error:
                print(f"error {error}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.pikiwi.live_master")
    parser.add_argument("--folder", required=True, help="for dumps")
    parser.add_argument("--port", type=int, help="of redis; replication is at +2000, rsync2 at +10001 (default: free)")
    parser.add_argument("--version", choices=("3.5", "4.0"), default="4.0")
    parser.add_argument("--db", nargs="+", default=["db0"])
    parser.add_argument("--seed", type=int, default=1, help="of the shop")
    parser.add_argument("--binlog-file-bytes", type=int, default=100 << 20)
    parser.add_argument("--expire-logs-nums", type=int, default=10)
    return parser


if __name__ == "__main__":
    asyncio.run(_serve(_parser().parse_args()))
