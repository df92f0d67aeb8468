"""What the Go tool got wrong (reference, section 5.2), as far as receiving goes: here it is right.

Defects 2 and 11 are the WAL's and the checkpoint's (test_wal*.py, test_checkpoint.py), 3 to 5 the events'
(test_event*.py), 7 and 9 the dump's (test_dump*.py), 8 the pipeline's. Defect 2 has its receiver's half here.
"""

import asyncio
import dataclasses

from tests.pikiwi.master_world import World, in_world
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.errors import SyncPointError
from tidelog.pikiwi.link import LinkSettings
from tidelog.pikiwi.position import ZERO
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.session import SessionSettings

QUICK_LINK = LinkSettings(tick_s=0.05)


@in_world(keepalive_s=0.05)
async def test_defect_1_keepalives_are_answered_and_do_not_reach_the_wal(world: World) -> None:
    """The Go tool put them into the WAL, moved DurableCP to 0:0, and reconnected after every two seconds of quiet."""
    world.write(10)
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().keepalives >= 3)
    world.write(10)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()
    durable = world.checkpoint().database("db0").durable_cp
    assert durable is not None
    assert durable.position == world.end()
    assert world.master.connection_count == 1


@in_world(binlog_file_bytes=2048, expire_logs_nums=3, purge_interval_s=0.05)
async def test_defect_2_what_was_acknowledged_is_not_asked_for_again_though_the_pipeline_lags(world: World) -> None:
    """The Go tool asked from AckCP after a restart; what the master had purged on its word meant a full resync."""
    world.write(10)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    delivered = world.records()[4]
    file = CheckpointFile(world.config.checkpoint_path, world.config.source)
    file.advance_ack("db0", 0, Point(delivered.seq, delivered.position))
    written = world.write(200)
    await world.catch_up()
    await world.stop()
    world.master.replication.purge()
    assert world.master.replication.binlogs["db0"].first_filenum > delivered.position.filenum
    written += world.write(10)
    await world.begin()
    await world.catch_up()
    await world.stop()
    assert not any(request.type == pb.kDBSync for request in world.master.replication.requests)
    assert world.received_commands()[10:] == written
    ack = world.checkpoint().database("db0").ack_cp
    assert ack is not None
    assert ack.position == delivered.position


@in_world(bgsave_s=1.8, silence_s=1.2, binlog_file_bytes=2048, expire_logs_nums=3, purge_interval_s=0.05)
async def test_defect_6_pings_protect_the_binlog_behind_the_dump_while_it_is_made(world: World) -> None:
    """The Go tool was silent during a full sync: forgotten after 20 s, and the binlog purged under it."""
    world.session_settings = SessionSettings(ping_interval_s=0.1)
    world.options["link_settings"] = QUICK_LINK
    world.write(20)
    await world.begin()
    await world.until(lambda: world.progress().snapshot.state == "saving")
    await world.until(lambda: world.master.dumps.saves == 1)
    world.write(200)  # far more than the master keeps
    await world.dump_is_ready()
    await world.catch_up()
    await world.stop()
    assert world.dumped_commands() + world.received_commands() == world.commands.commands["db0"]
    assert world.master.dumps.saves == 1


@in_world(dbs=("db0", "db1"))
async def test_defect_10_one_process_takes_several_databases(world: World) -> None:
    for db in ("db0", "db1"):
        world.write(10, db)
    await world.begin(initial_full_sync=False)
    for db in ("db0", "db1"):
        await world.catch_up(db)
    await world.stop()
    assert [len(world.received(db)) for db in ("db0", "db1")] == [10, 10]


@in_world()
async def test_defect_10_the_lineage_is_in_the_checkpoint_and_is_checked(world: World) -> None:
    """The Go tool's checkpoint knew an address: after a rebuild it went on at a position that means something else."""
    world.write(10)
    await world.begin(initial_full_sync=False)
    await world.catch_up()
    await world.stop()
    assert world.checkpoint().replication_id == world.master.settings.replication_id
    await world.master.restart(dataclasses.replace(world.master.settings, replication_id="another".ljust(50, "0")))
    await world.begin()
    await world.dump_is_ready()
    await world.stop()
    assert world.checkpoint().replication_id.startswith("another")


@in_world()
async def test_defect_10_a_position_beyond_the_end_does_not_loop(world: World) -> None:
    """The Go tool asked again every second, for ever."""
    await world.begin(filenum=9, offset=9)
    assert isinstance(await world.end_of_receiver(), SyncPointError)
    assert sum(request.type == pb.kTrySync for request in world.master.replication.requests) == 1


@in_world()
async def test_the_seed_s_limitation_snapshot_and_binlog_are_received_at_the_same_time(world: World) -> None:
    world.master.rsync.faults.files_hold = asyncio.Event()
    world.write(10)
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    world.write(10)
    await world.catch_up()
    assert world.progress().snapshot.state == "fetching"
    assert world.progress().durable > ZERO
    world.master.rsync.faults.files_hold.set()
    await world.dump_is_ready()
