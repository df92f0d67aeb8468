"""A live master and a receiver of it in one event loop, and what a follower of both would hold.

The master's clock is virtual: each command takes `STEP_MS`, so expiries come about by themselves and runs are the same
every time.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.pikiwi.live_commands import Version, clock_of, keyspace_of
from tests.pikiwi.live_master import LiveMaster
from tests.pikiwi.live_state import State, differences, state_of
from tests.pikiwi.master_replication import MasterSettings
from tests.pikiwi.master_world import World
from tests.pikiwi.workload import Shop
from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.dump import plan, read_range
from tidelog.pikiwi.keyspace import Keyspace
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.wal import WalReader

START_MS = 1_794_800_000_123
STEP_MS = 7
SETTLE_MS = 10_000  # after it, what expires soon has expired for everybody
NEVER_EXPIRED_MS = 0


class VirtualClock:
    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        self.now_ms += STEP_MS
        return self.now_ms


def snapshot_into(keys: Keyspace, folder: Path, ranges: int = 4) -> None:
    """All keys of a dump, also those that have expired since: the commands behind the dump may have known them."""
    for each in plan(folder, now_ms=NEVER_EXPIRED_MS, ranges=ranges):
        for command in read_range(each):
            keys.apply(command.args, NEVER_EXPIRED_MS)


def wal_into(keys: Keyspace, version: Version, folder: Path, after: Position) -> None:
    """The records of a WAL behind a position."""
    reader = WalReader(folder)
    first = reader.first()
    for record in reader.read(first) if first is not None else ():
        if record.position > after:
            item = decode_item(record.payload)
            keys.apply(parse_command(item.content), clock_of(version, item.exec_time_s))


class LiveWorld:
    def __init__(self, folder: Path, seed: int = 1, big_bytes: int = 64 << 10, **settings: Any) -> None:
        chosen = MasterSettings(**settings)
        self.version: Version = chosen.version
        self.clock = VirtualClock()
        self.live = LiveMaster(folder / "master", chosen, clock=self.clock, seed=seed)
        self.shop = Shop(seed, chosen.dbs, chosen.version, big_bytes=big_bytes)
        self.world = World(folder, chosen)
        self.world.master = self.live.master
        self.world.config = replace(self.world.config, master_port=self.live.port)

    async def __aenter__(self) -> "LiveWorld":
        await self.live.master.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.world.finish()

    async def work(self, count: int) -> None:
        await self.live.work(self.shop, count)

    async def catch_up(self) -> None:
        for db in self.live.dbs:
            await self.world.catch_up(db)

    async def dumps_are_ready(self) -> None:
        for db in self.live.dbs:
            await self.world.dump_is_ready(db)

    def followed(self, db: str = "db0") -> State:
        """What dump and WAL, as the receiver left them, come to."""
        keys = keyspace_of(self.version)
        snapshot = self.world.checkpoint().database(db).snapshot
        after = Position(0, 0)
        if snapshot.position is not None:
            snapshot_into(keys, self.world.config.dump_path / db)
            after = snapshot.position
        folder = self.world.config.wal_dir
        wal_into(keys, self.version, folder / db if len(self.live.dbs) > 1 else folder, after)
        return self.seen(state_of(keys, self._later))

    def differences(self) -> list[str]:
        return [
            f"{db}: {each}"
            for db in self.live.dbs
            for each in differences(self.seen(self.live.state(db, self._later)), self.followed(db))
        ]

    @property
    def _later(self) -> int:
        return self.clock.now_ms + SETTLE_MS

    def seen(self, state: State) -> State:
        """What a follower can know of it: streams are not in the dumps of 3.5."""
        if self.version != "3.5":
            return state
        return {at: held for at, held in state.items() if at[0] != "stream"}
