"""The scripted shop of the sample master, with all that is hostile in it: the table holds what the master holds."""

import random
from pathlib import Path

import pytest

from tests.pikiwi.live_commands import LiveDatabase, Version
from tests.pikiwi.live_dump import write_dump
from tests.pikiwi.live_state import differences, state_from, state_of
from tests.pikiwi.workload import Shop
from tests.spark.pikiwi_world import Source
from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.checkpoint import Snapshot
from tidelog.pikiwi.keyspace import KeyspaceError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import encode_command
from tidelog.spark.tables.build import Limits, build, open_state

STEPS = 4_000
COMMAND_MS = 37  # of the master's clock, from one command to the next
BEGIN_MS = 1_790_000_000_123


class Shopping:
    """A master without sockets: what its users do lands in the WAL as its receiver would write it."""

    def __init__(self, folder: Path, version: Version) -> None:
        self.source = Source(folder, zero_expiry="keep" if version == "3.5" else "none")
        self.version: Version = version
        self.database = LiveDatabase(version, random.Random(7))
        self.shop = Shop(11, version=version)
        self.now_ms = BEGIN_MS
        self.dump = folder / "dump" / "db0"
        self.table = folder / "table"

    def work(self, count: int) -> None:
        wal = self.source.wals["db0"]
        assert wal.last_position is not None
        end, items = wal.last_position.offset, []
        for _, args in self.shop.steps(count, lambda: self.now_ms):
            self.now_ms += COMMAND_MS
            user = (b"flushdb",) if args[0].lower() == b"flushall" else args
            try:
                logged = self.database.execute(user, self.now_ms)
            except KeyspaceError:
                continue  # the user gets an error, and nothing is logged
            for command in logged:
                start, content = end, encode_command(command)
                end += 42 + len(content)
                item = BinlogItem(self.now_ms // 1000, 0, len(items), Position(0, start), content)
                items.append((Position(0, end), encode_item(item)))
        wal.append(7, items)
        wal.sync()
        self.source.book()

    def full_sync(self) -> None:
        at = self.source.wals["db0"].last_position
        assert at is not None
        write_dump(self.version, self.database.keys, [], self.dump)
        (self.dump / "info").write_text(f"0s\n127.0.0.1\n9221\n{at.filenum}\n{at.offset}\n")
        self.source.begin(at)
        self.source.book()
        self.source.file.set_snapshot("db0", Snapshot("ready", at))

    def build(self, records_max: int) -> None:
        config = self.source.config
        for _ in build(open_state(self.table, config, 8), config, limits=Limits(records_max=records_max)):
            pass

    def differences(self) -> list[str]:
        table = open_state(self.table, self.source.config)
        mine = state_of(self.database.keys, self.now_ms)
        return differences(mine, state_from(table.held("db0", self.now_ms)))


@pytest.mark.parametrize("version", ["4.0", "3.5"])
def test_the_table_holds_what_the_master_holds_after_every_build(tmp_path: Path, version: Version):
    world = Shopping(tmp_path, version)
    world.source.begin(Position(0, 0))
    world.source.book()
    for records_max in (333, 2_000):
        world.work(STEPS // 4)
        world.build(records_max)
        assert world.differences() == []
    world.work(STEPS // 4)
    if version == "4.0":  # a 3.5 dump has no streams
        world.full_sync()
    world.work(STEPS // 4)
    world.build(2_000)
    assert world.differences() == []
    assert len(state_of(world.database.keys, world.now_ms)) > 100
    world.source.close()
