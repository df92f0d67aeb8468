"""Where a receiver begins, and what it does when the master no longer goes along."""

import dataclasses

import pytest

from tests.pikiwi.master_world import World, in_world
from tidelog.pikiwi.checkpoint import Checkpoint, DatabaseCheckpoint, Point, Snapshot
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.errors import EXIT_POSITION, EXIT_SETTINGS, ConfigError, LineageChanged, LinkError, SyncPointError
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.session import FromEnd, FullSync, GoOn
from tidelog.pikiwi.start import Held, Plan, plan_start
from tidelog.pikiwi.wal import WalPoint

TINY = {"binlog_file_bytes": 2048, "expire_logs_nums": 3, "purge_interval_s": 0.0}


def asked_positions(world: World, kind: pb.Type = pb.kTrySync) -> list[Position]:
    requests = [request for request in world.master.replication.requests if request.type == kind]
    offsets = [r.try_sync.binlog_offset if kind == pb.kTrySync else r.db_sync.binlog_offset for r in requests]
    return [Position(offset.filenum, offset.offset) for offset in offsets]


# --- settings --------------------------------------------------------------------------------------------------------


@in_world()
async def test_a_position_in_the_settings_is_where_it_begins(world: World) -> None:
    world.write(50)
    middle = world.end()
    world.write(50)
    await world.begin(filenum=middle.filenum, offset=middle.offset)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()[50:]


@in_world()
async def test_start_from_master_leaves_out_what_was_before(world: World) -> None:
    world.write(50)
    await world.begin(start_from_master=True)
    await world.until(lambda: world.progress().state == "streaming")
    world.write(30)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()[50:]


@in_world()
async def test_without_full_sync_it_begins_at_the_first_item(world: World) -> None:
    world.write(20)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world()
async def test_a_position_that_stays_in_the_settings_is_not_gone_back_to(world: World) -> None:
    world.write(50)
    for _ in range(3):
        await world.begin(filenum=0, offset=0)
        world.write(10)
        await world.catch_up()
        await world.stop()
    assert world.received() == world.sent()
    assert asked_positions(world)[1:] == [world.sent()[59][0], world.sent()[69][0]]


@in_world()
async def test_start_from_master_that_stays_in_the_settings_skips_nothing_after_a_restart(world: World) -> None:
    world.write(50)
    await world.begin(start_from_master=True)
    await world.until(lambda: world.progress().state == "streaming")
    await world.stop()
    world.write(30)
    await world.begin()
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()[50:]


@in_world()
async def test_a_position_in_the_settings_does_not_count_in_another_lineage(world: World) -> None:
    world.write(20)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.master.restart(dataclasses.replace(world.master.settings, replication_id="lineage-2".ljust(50, "0")))
    await world.dump_is_ready()
    world.write(5)
    await world.catch_up()
    await world.stop()
    assert len(world.received()) == 5


@in_world(dbs=("db0", "db1"))
async def test_one_position_cannot_be_for_two_databases(world: World) -> None:
    await world.begin(filenum=0, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, ConfigError)
    assert error.exit_status == EXIT_SETTINGS


# --- what we have ----------------------------------------------------------------------------------------------------


@in_world()
async def test_a_restart_asks_for_what_follows_the_wal_and_not_for_what_the_pipeline_has_not_delivered(
    world: World,
) -> None:
    world.write(100)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    end = world.end()
    world.write(100)
    await world.begin()
    await world.catch_up()
    await world.stop()
    assert asked_positions(world) == [ZERO, end]
    ack = world.checkpoint().database("db0").ack_cp
    assert ack is not None
    assert ack.position == ZERO  # nobody has delivered anything
    assert world.received() == world.sent()


@in_world()
async def test_a_lost_wal_is_asked_for_again_from_what_was_delivered(world: World) -> None:
    world.write(100)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    for path in world.config.wal_dir.iterdir():
        path.unlink()
    await world.begin()
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()
    assert world.records()[0].seq == 101  # a number never names two records


@in_world()
async def test_a_lost_checkpoint_is_made_again_from_the_wal(world: World) -> None:
    world.write(100)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    world.config.checkpoint_path.unlink()
    for _ in range(2):
        world.write(10)
        await world.begin()
        await world.catch_up()
        await world.stop()
    assert world.received() == world.sent()


# --- the master has purged it ----------------------------------------------------------------------------------------


async def fall_behind(world: World) -> int:
    """The receiver has something, and then misses more than the master keeps; how many commands it has."""
    world.write(20)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    world.write(200)
    world.master.replication.purge()
    assert world.master.replication.binlogs["db0"].first_filenum > 2
    return 20


@in_world(**TINY)
async def test_purged_and_full_sync_dump_and_binlog_together_are_everything(world: World) -> None:
    await fall_behind(world)
    await world.begin()
    await world.dump_is_ready()
    world.write(30)
    await world.catch_up()
    await world.stop()
    assert world.dumped_commands() + world.received_commands() == world.commands.commands["db0"]


@in_world(**TINY)
async def test_purged_and_start_from_master_keeps_what_the_wal_has_and_goes_on_at_the_end(world: World) -> None:
    had = await fall_behind(world)
    await world.begin(sync_point_purged_action="start_from_master")
    await world.until(lambda: world.progress().state == "streaming")
    world.write(30)
    await world.catch_up()
    await world.stop()
    all_commands = world.commands.commands["db0"]
    assert world.received_commands() == all_commands[:had] + all_commands[-30:]


@in_world(**TINY)
async def test_purged_and_pause_asks_once_and_waits_for_somebody(world: World) -> None:
    await fall_behind(world)
    before = len(asked_positions(world))
    receiver = await world.begin(sync_point_purged_action="pause")
    await world.until(lambda: world.progress().state == "paused")
    await world.until(lambda: receiver.progress.state == "waiting")
    assert world.master.replication.registration() is None
    await world.stop()
    assert len(asked_positions(world)) == before + 1


@in_world(dbs=("db0", "db1"), binlog_file_bytes=2048, expire_logs_nums=3)
async def test_a_paused_database_does_not_hold_up_the_others(world: World) -> None:
    for db in ("db0", "db1"):
        world.write(20, db)
    await world.begin(initial_full_sync=False)
    for db in ("db0", "db1"):
        await world.catch_up(db)
    await world.stop()
    world.write(200, "db0")
    world.master.replication.purge()
    await world.begin(sync_point_purged_action="pause")
    await world.until(lambda: world.progress("db0").state == "paused")
    world.write(20, "db1")
    await world.catch_up("db1")
    await world.stop()
    assert len(world.received("db0")) == 20
    assert world.received("db1") == world.sent("db1")


# --- the master has something else -----------------------------------------------------------------------------------


@in_world()
async def test_a_position_beyond_the_master_s_end_ends_the_receiver_at_once(world: World) -> None:
    world.write(10)
    await world.begin(filenum=5, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, SyncPointError)
    assert error.exit_status == EXIT_POSITION
    assert "5:0" in str(error)
    assert str(world.end()) in str(error)
    assert len(asked_positions(world)) == 1


@in_world()
async def test_a_position_inside_an_item_ends_the_receiver_at_once(world: World) -> None:
    world.write(10)
    await world.begin(filenum=0, offset=17)
    error = await world.end_of_receiver()
    assert isinstance(error, SyncPointError)
    assert error.exit_status == EXIT_POSITION
    assert "0:17" in str(error)
    assert len(asked_positions(world)) == 1


@in_world()
async def test_padding_of_a_promoted_slave_is_not_run_into_for_ever(world: World) -> None:
    world.may_close = ("the reader met padding",)
    world.master.replication.binlogs["db0"].files[0].begins_at = 500
    world.write(10)
    await world.begin(filenum=0, offset=0)
    assert isinstance(await world.end_of_receiver(), LinkError)


@in_world()
async def test_another_lineage_means_a_full_sync(world: World) -> None:
    world.write(20)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    await world.master.restart(dataclasses.replace(world.master.settings, replication_id="lineage-2".ljust(50, "0")))
    world.write(5)
    await world.begin()
    await world.dump_is_ready()
    world.write(5)
    await world.catch_up()
    await world.stop()
    assert world.checkpoint().replication_id.startswith("lineage-2")
    assert len(world.dumped_commands()) == 25
    assert len(world.received()) == 5


@in_world()
async def test_another_lineage_ends_the_receiver_when_the_settings_say_so(world: World) -> None:
    world.write(20)
    await world.begin(initial_full_sync=False, lineage_changed_action="stop")
    await world.catch_up()
    await world.master.restart(dataclasses.replace(world.master.settings, replication_id="lineage-2".ljust(50, "0")))
    error = await world.end_of_receiver()
    assert isinstance(error, LineageChanged)
    assert error.exit_status == EXIT_POSITION
    assert len(world.received()) == 20


# --- the choice itself -----------------------------------------------------------------------------------------------

A, B, C, D = Position(1, 10), Position(1, 20), Position(2, 5), Position(3, 0)
CONFIG = Config(master_port=9221)
EMPTY = Held(None, None)


def known(ack: Position | None = None, durable: Position | None = None, state: str = "none") -> Checkpoint:
    entry = DatabaseCheckpoint(
        None if ack is None else Point(1, ack),
        None if durable is None else WalPoint(1, durable, 1, 0),
        Snapshot(state),  # type: ignore[arg-type]
    )
    return Checkpoint("s").with_database("db0", entry)


GAP = "the WAL does not hold what follows AckCP"
CHOICES: list[tuple[str, Checkpoint | None, Held, Plan]] = [
    ("nothing at all", None, EMPTY, Plan(FullSync())),
    ("a WAL and no checkpoint", None, Held(A, B), Plan(GoOn(B))),
    ("a WAL that the checkpoint does not know", Checkpoint("s"), Held(A, B), Plan(FullSync())),
    ("a begun WAL without records", Checkpoint("s"), Held(A, A), Plan(FullSync())),
    ("delivered within the WAL", known(B), Held(A, C), Plan(GoOn(C))),
    ("delivered at the WAL's first", known(A), Held(A, C), Plan(GoOn(C))),
    ("delivered all", known(C), Held(A, C), Plan(GoOn(C))),
    ("delivered before the WAL's first", known(A), Held(B, C), Plan(GoOn(A), GAP)),
    ("delivered behind the WAL's last", known(D), Held(A, C), Plan(GoOn(D), GAP)),
    ("no WAL", known(B), EMPTY, Plan(GoOn(B), GAP)),
    ("nothing delivered yet", known(None, B), Held(A, C), Plan(GoOn(C))),
    ("nothing delivered and no WAL", known(None, B), EMPTY, Plan(GoOn(B), GAP)),
    ("a dump that was being made", known(B, B, "saving"), Held(A, C), Plan(FullSync(C))),
    ("a dump that was being fetched", known(B, B, "fetching"), Held(A, C), Plan(FullSync(C))),
    ("a dump that is here", known(B, B, "ready"), Held(B, C), Plan(GoOn(C))),
]


@pytest.mark.parametrize(("checkpoint", "held", "plan"), [c[1:] for c in CHOICES], ids=[c[0] for c in CHOICES])
def test_the_start_without_settings(checkpoint: Checkpoint | None, held: Held, plan: Plan) -> None:
    assert plan_start(CONFIG, checkpoint, "db0", held, dump_comes=False) == plan


AT = dataclasses.replace(CONFIG, filenum=7, offset=8, initial_full_sync=False)
FROM_MASTER = dataclasses.replace(CONFIG, start_from_master=True, initial_full_sync=False)


@pytest.mark.parametrize(
    ("config", "started_from", "start"),
    [
        (AT, "", GoOn(Position(7, 8))),
        (AT, "master", GoOn(Position(7, 8))),
        (AT, "7:9", GoOn(Position(7, 8))),
        (AT, "7:8", GoOn(C)),
        (FROM_MASTER, "", FromEnd()),
        (FROM_MASTER, "7:8", FromEnd()),
        (FROM_MASTER, "master", GoOn(C)),
        (CONFIG, "7:8", GoOn(C)),
    ],
)
def test_a_start_that_is_set_comes_first_and_is_applied_once(config: Config, started_from: str, start: object) -> None:
    entry = dataclasses.replace(known(B).database("db0"), started_from=started_from)
    checkpoint = Checkpoint("s").with_database("db0", entry)
    assert plan_start(config, checkpoint, "db0", Held(A, C), dump_comes=False).start == start


def test_without_a_checkpoint_a_start_that_is_set_comes_first() -> None:
    assert plan_start(AT, None, "db0", Held(A, C), dump_comes=False).start == GoOn(Position(7, 8))


def test_while_the_rest_of_a_dump_comes_the_binlog_goes_on() -> None:
    plan = plan_start(CONFIG, known(B, B, "fetching"), "db0", Held(B, C), dump_comes=True)
    assert plan == Plan(GoOn(C))
