"""`build`: from a source's dump and WAL to a table that equals it, over restarts, full syncs and cleaning."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.pikiwi.live_dump import write_dump
from tests.pikiwi.recorded_commands import VERSIONS, recorded
from tests.spark.pikiwi_world import LINEAGE, Source
from tests.spark.tables.commands import contents, script, shown
from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.checkpoint import Point, Snapshot
from tidelog.pikiwi.dump.plan import plan
from tidelog.pikiwi.dump.reader import read_range
from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.keyspace import Keyspace, KeyspaceError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.wal.readers import ReaderLimits, Readers
from tidelog.spark.tables import load as load_module
from tidelog.spark.tables.build import FIRST, BuildError, Limits, Step, build, open_state, source_name
from tidelog.spark.tables.delta import DeltaFolder, TableError
from tidelog.spark.tables.fold import RULES
from tidelog.spark.tables.state import StateTable

V4 = RULES["4"]
SMALL = Limits(records_max=100)
FIXTURES = Path(__file__).parents[2] / "pikiwi" / "fixtures"
LATER = Position(9, 0)


class World:
    """A source, the key space that its master has, and the table that is built from it."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.source = Source(folder, **settings)
        self.model = Keyspace()
        self.now_ms = 0
        self.table_folder = folder / "table"
        self.dump = folder / "dump" / "db0"

    def write(self, count: int, seed: int) -> None:
        """Commands that work, one after the other."""
        fine: list[list[bytes]] = []
        probe = Keyspace()
        for data_type, key, entry in self.model.all(0):
            probe._space.tables[data_type][key] = deepcopy(entry)
        at_ms = 1_700_000_000_000 + V4.clock_ms
        for args in script(count, seed):
            try:
                probe.apply(args, at_ms)
            except KeyspaceError:
                continue
            fine.append(args)
        self.run(fine)

    def run(self, commands: list[list[bytes]]) -> None:
        for _, payload in self.source.write(commands):
            item = decode_item(payload)
            self.now_ms = item.exec_time_s * 1000 + V4.clock_ms
            self.model.apply(parse_command(item.content), self.now_ms)

    def full_sync(self, position: Position | None, uuid: str = "") -> None:
        """A dump of the master as it is, and a WAL that begins at its position."""
        wal = self.source.wals["db0"]
        at = position or wal.last_position
        assert at is not None
        if self.dump.exists():
            for path in sorted(self.dump.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
        write_dump("4.0", self.model, [b"emptied"], self.dump)
        (self.dump / "info").write_text(f"0s\n127.0.0.1\n9221\n{at.filenum}\n{at.offset}\n")
        self.source.begin(at)
        self.source.book()
        self.source.file.set_snapshot("db0", Snapshot("ready", at, 0, uuid))

    def open(self) -> StateTable:
        return open_state(self.table_folder, self.source.config, buckets=4)

    def build(self, *, without_snapshot: bool = False) -> list[Step]:
        return list(build(self.open(), self.source.config, limits=SMALL, without_snapshot=without_snapshot))

    def assert_equal(self) -> None:
        held = {
            (data_type, key): (shown(data_type, entry), entry.expire_ms)
            for data_type, key, entry in self.open().held("db0", self.now_ms)
        }
        assert held == contents(self.model, self.now_ms)

    @property
    def position(self) -> Position | None:
        return self.open().position(source_name(self.source.config, LINEAGE, "db0"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.source.close()


def begin(world: World, position: Position = FIRST) -> None:
    world.source.begin(position)
    world.source.book()


# What a dump of the test writer can hold: no stream without entries, none that expires.
KEPT: list[list[bytes]] = [
    [b"SET", b"text", b"\r\n\x00"], [b"SET", b"counter", b"41"], [b"SET", b"\xff\x00", b""],
    [b"SET", b"ends", b"7", b"PXAT", b"4102444800123"], [b"RPUSH", b"list", *(b"%d" % each for each in range(700))],
    [b"HSET", b"hash", b"f", b"v", b"", b""], [b"SADD", b"set", b"", b"m\r\n"],
    [b"PEXPIREAT", b"set", b"4102444800000"],
    [b"ZADD", b"zset", b"inf", b"a", b"-1.5", b""], [b"XADD", b"stream", b"5-1", b"f", b"v"],
    [b"XADD", b"stream", b"6-0", b"f", b"", b"g", b"\x00"], [b"XDEL", b"stream", b"5-1"],
]  # fmt: skip


def test_a_binlog_from_its_beginning_makes_the_table_batch_by_batch(world: World):
    begin(world)
    world.write(900, seed=1)
    steps = world.build()
    assert steps[0].kind == "empty"
    assert len(steps) > 5
    assert all(step.commands <= 100 for step in steps[1:])
    world.assert_equal()
    world.run([[b"INCR", b"n"], [b"LPUSH", b"l", b"1"]])
    assert [(step.kind, step.commands) for step in world.build()] == [("binlog", 2)]
    world.assert_equal()
    assert world.build() == []


def test_dump_and_binlog_meet_without_gap_and_overlap(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    world.run([[b"DECR", b"counter"], [b"RPUSH", b"list", b"end"], [b"LPOP", b"list"], [b"HSET", b"hash", b"g", b"w"]])
    world.run([[b"APPEND", b"text", b"!"], [b"XADD", b"stream", b"7-0", b"f", b"v"], [b"RENAME", b"zset", b"z2"]])
    steps = world.build()
    assert [step.kind for step in steps] == ["snapshot", "binlog"]
    world.assert_equal()
    assert world.position == world.source.wals["db0"].last_position


def test_a_key_that_lived_at_the_dump_is_loaded_though_it_has_expired_by_today(world: World):
    begin(world)
    world.run([[b"SET", b"k", b"5", b"PXAT", b"1700000000900"], [b"SET", b"other", b"1"]])
    world.full_sync(None)
    world.run([[b"PEXPIREAT", b"other", b"4102444800000"]])
    world.build()
    rows = {key: entry.expire_ms for _, key, entry in world.open().held("db0", 0)}
    assert rows == {b"k": 1_700_000_000_900, b"other": 4_102_444_800_000}


def test_a_load_that_was_stopped_goes_on_behind_the_last_whole_range(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    read: list[object] = []
    real = load_module.read_keys

    def counting(each):
        if len(read) == 3:
            raise KeyboardInterrupt
        read.append(each)
        return real(each)

    with patch.object(load_module, "read_keys", counting), pytest.raises(KeyboardInterrupt):
        world.build()
    assert world.position is None
    assert len(read) == 3
    with patch.object(load_module, "read_keys", lambda each: read.append(each) or real(each)):
        world.build()
    assert len(read) == len(plan(world.dump, now_ms=0, ranges=load_module.RANGES))
    world.assert_equal()
    assert not any((world.table_folder / load_module.NOTES).iterdir())


def test_a_dump_that_is_replaced_while_it_is_read_is_not_taken(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    with (
        patch.object(load_module, "dump_uuid", side_effect=["", "another"]),
        pytest.raises(DumpError, match="replaced"),
    ):
        world.build()
    assert world.position is None
    world.build()
    world.assert_equal()


@pytest.mark.parametrize("what", ["vacuumed", "committed"])
def test_notes_of_a_load_are_not_trusted_when_its_files_are_gone_or_in_the_table(world: World, what: str):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    table = world.open()
    stop = {"vacuumed": (DeltaFolder, "commit"), "committed": (load_module._Notes, "forget")}[what]
    with patch.object(*stop, side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        load_module.load(table, "s", "db0", world.dump, lambda *_: None)
    if what == "vacuumed":
        for path in world.table_folder.glob("db=*/*/*.parquet"):
            path.unlink()
    load_module.load(world.open(), "s", "db0", world.dump, lambda *_: None)
    world.assert_equal()


def test_a_dump_other_than_the_checkpoint_speaks_of_is_not_loaded(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(LATER, uuid="this one")
    (world.dump / "fetch.json").write_text('{"uuid": "an older one", "complete": true, "files": []}')
    with pytest.raises(BuildError, match="no dump of what was before"):
        world.build()
    (world.dump / "fetch.json").write_text('{"uuid": "this one", "complete": true, "files": []}')
    assert [step.kind for step in world.build()] == ["snapshot"]


def test_a_crash_at_any_commit_repeats_and_loses_nothing(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    for _ in range(5):
        world.run([[b"INCR", b"counter"], [b"RPUSH", b"list", b"x"], [b"HINCRBY", b"visits", b"f", b"1"]] * 20)
    real = DeltaFolder.commit
    crashes = 0
    for after in (False, True) * 4:

        def dying(self, *given, _after=after, **more):
            if _after:
                real(self, *given, **more)
            raise KeyboardInterrupt

        with patch.object(DeltaFolder, "commit", dying):
            try:
                world.build()
            except KeyboardInterrupt:
                crashes += 1
    assert crashes == 8
    world.build()
    world.assert_equal()


def test_a_full_sync_replaces_the_table_and_the_wal_goes_on_behind_it(world: World):
    begin(world)
    world.run(KEPT)
    world.build()
    world.run([[b"DEL", b"list"], [b"SET", b"missed", b"1"]])  # never folded: the WAL begins anew behind it
    world.full_sync(LATER, "second")
    world.run([[b"INCR", b"counter"]])
    steps = world.build()
    assert [step.kind for step in steps] == ["snapshot", "binlog"]
    world.assert_equal()


def test_readers_see_the_old_table_until_a_full_sync_is_whole(world: World):
    begin(world)
    world.run(KEPT)
    world.build()
    before = {key for _, key, _ in world.open().held("db0", 0)}
    world.run([[b"FLUSHDB"], [b"SET", b"new", b"1"]])
    world.full_sync(LATER)
    with patch.object(DeltaFolder, "commit", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        world.build()
    assert {key for _, key, _ in world.open().held("db0", 0)} == before
    world.build()
    assert {key for _, key, _ in world.open().held("db0", 0)} == {b"new"}


def test_another_lineage_begins_from_its_own_dump(world: World):
    begin(world)
    world.run(KEPT)
    world.build()
    world.source.file.new_lineage("another")
    world.source.begin(LATER)
    with pytest.raises(BuildError, match="no dump of what was before"):
        world.build()
    assert len({key for _, key, _ in world.open().held("db0", 0)}) > 5


def test_a_wal_that_was_cleaned_before_the_table_read_it_is_said_so(world: World):
    begin(world)
    world.run(KEPT)
    world.build()
    world.source.begin(LATER)
    with pytest.raises(BuildError, match=r"stands at 0:\d+, the WAL begins at 9:0.*full sync"):
        world.build()


def cleanable_to(world: World, ack: Position) -> Position:
    """How far a receiver would clean the WAL."""
    readers = Readers(world.source.config.checkpoint_path, ReaderLimits(1 << 30, 168))
    return readers.clean_to(readers.marks(), "db0", LINEAGE, ack, wal_first=FIRST, file_bytes=1 << 20, full=False)


def test_the_wal_is_kept_from_where_the_table_stands(world: World):
    begin(world)
    world.run(KEPT)
    world.build()
    stands = world.position
    assert stands is not None
    world.run([[b"INCR", b"counter"]])
    assert cleanable_to(world, LATER) == stands
    world.build()
    now = world.position
    assert cleanable_to(world, LATER) == now
    assert now is not None
    assert now > stands


def test_the_wal_behind_a_dump_is_kept_while_the_dump_is_loaded(world: World):
    begin(world)
    world.run(KEPT)
    world.full_sync(None)
    with patch.object(load_module, "read_keys", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        world.build()
    assert cleanable_to(world, LATER) == world.source.wals["db0"].first_position


def test_a_binlog_from_the_middle_needs_a_dump_or_consent(world: World):
    begin(world, LATER)
    world.run(KEPT)
    with pytest.raises(BuildError, match="--without-snapshot"):
        world.build()
    assert [step.kind for step in world.build(without_snapshot=True)] == ["empty", "binlog"]
    world.assert_equal()


@pytest.mark.parametrize("state", ["saving", "fetching"])
def test_a_full_sync_on_its_way_is_waited_for(world: World, state):
    begin(world, LATER)
    world.source.file.set_snapshot("db0", Snapshot(state, LATER))
    with pytest.raises(BuildError, match="on its way"):
        world.build()


def test_a_source_that_nobody_knows_is_refused(world: World):
    with pytest.raises(BuildError, match="start its receiver"):
        world.build()


def test_filters_of_events_have_no_say(tmp_path: Path):
    world = World(tmp_path, filter=("key=nothing",), exclude=("c*",))
    begin(world)
    world.run(KEPT)
    world.build()
    world.assert_equal()
    world.source.close()


def test_delivery_to_topics_may_be_ahead_of_the_table(world: World):
    begin(world)
    world.run(KEPT)
    durable = world.source.wals["db0"].durable
    assert durable is not None
    world.source.file.advance_ack("db0", 0, Point(durable.seq, durable.position))
    world.build()
    world.assert_equal()


def test_a_dump_of_the_other_kind_of_master_is_refused(world: World):
    begin(world)
    world.run(KEPT[:3])
    world.full_sync(None)
    table = StateTable.create(world.table_folder, RULES["3.5"])
    with pytest.raises(TableError, match="zero_expiry"):
        load_module.load(table, "s", "db0", world.dump, lambda *_: None)
    with pytest.raises(TableError, match=r"built for a 3\.5 master"):
        world.build()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_dump_of_a_real_master_is_what_its_commands_say(tmp_path: Path, version: str):
    rules = RULES["3.5" if version.startswith("3") else "4"]
    folder = FIXTURES / f"dump-{version}"
    table = StateTable.create(tmp_path / "t", rules, buckets=4)
    load_module.load(table, "s", "db0", folder, lambda *_: None)
    model = Keyspace(types_apart=rules.types_apart, zero_expiry=rules.zero_expiry)
    for each in plan(folder, now_ms=0):
        for command in read_range(each):
            model.apply(command.args, 0)
    held = {
        (data_type, key): (shown(data_type, entry), entry.expire_ms) for data_type, key, entry in table.held("db0", 0)
    }
    assert held == contents(model, 0)
    assert len(held) > 15


@pytest.mark.parametrize("version", VERSIONS)
def test_a_recorded_binlog_of_a_real_master_leaves_what_the_key_space_holds(tmp_path: Path, version: str):
    rules = RULES["3.5" if version.startswith("3") else "4"]
    world = World(tmp_path, zero_expiry="keep" if version.startswith("3") else "none")
    items = [(each.end, each.payload) for each in recorded(version)]
    first = items[0][0]
    begin(world, Position(first.filenum, 0))
    world.source.wals["db0"].append(7, items)
    world.source.wals["db0"].sync()
    world.source.book()
    list(build(world.open(), world.source.config, limits=Limits(records_max=7), without_snapshot=True))
    model = Keyspace(types_apart=rules.types_apart, zero_expiry=rules.zero_expiry)
    now_ms = 0
    for each in recorded(version):
        now_ms = each.item.exec_time_s * 1000 + rules.clock_ms
        model.apply(parse_command(each.item.content), now_ms)
    held = {
        (data_type, key): (shown(data_type, entry), entry.expire_ms)
        for data_type, key, entry in world.open().held("db0", now_ms)
    }
    assert held == contents(model, now_ms)
    world.source.close()
