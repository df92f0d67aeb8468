"""Full syncs: the dump is fetched while the binlog flows, and whatever goes wrong begins anew, within bounds.

The test master's dumps are lists of the commands so far. So `dump + WAL == everything executed` says that nothing is
missing and nothing is there twice.
"""

import asyncio
import dataclasses

from tests.pikiwi.master_world import QUICK_FETCH, World, in_world
from tidelog import faults
from tidelog.pikiwi.errors import EXIT_FILES, DumpError
from tidelog.pikiwi.link import LinkSettings
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.receiver import FULL_SYNC_TRIES_MAX
from tidelog.pikiwi.session import SessionSettings

QUICK_LINK = LinkSettings(tick_s=0.05)


def everything(world: World, db: str = "db0") -> list[tuple[bytes, ...]]:
    return world.dumped_commands(db) + world.received_commands(db)


@in_world()
async def test_the_first_start_is_a_full_sync_and_the_binlog_after_it(world: World) -> None:
    world.write(100)
    await world.begin()
    await world.dump_is_ready()
    world.write(100)
    await world.catch_up()
    await world.stop()
    snapshot = world.checkpoint().database("db0").snapshot
    assert snapshot.state == "ready"
    assert snapshot.position == world.sent()[99][0]
    assert snapshot.uuid
    assert everything(world) == world.commands.commands["db0"]


@in_world(dbs=("db0", "db1"), version="3.5")
async def test_two_databases_full_sync_at_once(world: World) -> None:
    world.write(100, "db0")
    world.write(50, "db1")
    await world.begin()
    await world.dump_is_ready("db0")
    await world.dump_is_ready("db1")
    world.write(10, "db0")
    world.write(20, "db1")
    await world.catch_up("db0")
    await world.catch_up("db1")
    await world.stop()
    for db in ("db0", "db1"):
        assert everything(world, db) == world.commands.commands[db]


@in_world()
async def test_the_binlog_flows_while_the_dump_is_copied(world: World) -> None:
    world.master.rsync.faults.files_hold = asyncio.Event()  # all but info waits
    world.write(100)
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    world.write(300)
    await world.catch_up()
    assert world.progress().snapshot.state == "fetching"
    assert len(world.received()) == 300
    world.master.rsync.faults.files_hold.set()
    await world.dump_is_ready()
    await world.stop()
    assert everything(world) == world.commands.commands["db0"]


@in_world(bgsave_s=1.8, silence_s=1.2)
async def test_pings_keep_us_registered_while_the_master_saves(world: World) -> None:
    """Without them it would forget us, and purge the binlog behind the dump."""
    world.session_settings = SessionSettings(ping_interval_s=0.1)
    world.options["link_settings"] = QUICK_LINK
    world.write(100)
    await world.begin()
    await world.dump_is_ready()
    registration = world.master.replication.registration()
    assert registration is not None
    assert registration.session_id == 0  # the one that DBSync gave
    await world.stop()
    assert everything(world) == world.commands.commands["db0"]


@in_world(bgsave_s=1000.0)
async def test_a_master_that_never_finishes_its_dump_is_waited_for_within_a_bound(world: World) -> None:
    world.session_settings = SessionSettings(dump_wait_s_max=0.1)
    world.options["link_settings"] = QUICK_LINK
    await world.begin()
    error = await world.end_of_receiver()
    assert isinstance(error, DumpError)
    assert error.exit_status == EXIT_FILES
    assert "wait_bgsave_timeout" in str(error)


@in_world()
async def test_a_dump_that_is_replaced_while_it_is_fetched_begins_anew(world: World) -> None:
    world.commands.filling_bytes = 1 << 20
    world.options["fetch_limits"] = dataclasses.replace(QUICK_FETCH, request_bytes=64 << 10)
    world.write(100)
    world.master.rsync.faults.change_uuid_after = 5
    await world.begin()
    await world.dump_is_ready()
    world.write(10)
    await world.catch_up()
    await world.stop()
    assert world.progress().full_syncs == 2
    assert world.receiver is not None
    assert world.receiver._full_sync_failures == 0  # the bound is for failures in a row
    assert everything(world) == world.commands.commands["db0"]


@in_world()
async def test_a_dump_that_cannot_be_fetched_is_given_up_after_a_bound(world: World) -> None:
    world.write(100)
    world.master.rsync.faults.error_after_files = 1  # info, and then nothing
    world.options["fetch_limits"] = dataclasses.replace(QUICK_FETCH, ready_s=0.1)
    await world.begin()
    error = await world.end_of_receiver()
    assert isinstance(error, DumpError)
    assert sum(request.type == pb.kDBSync for request in world.master.replication.requests) == FULL_SYNC_TRIES_MAX


@in_world()
async def test_files_without_an_end_are_given_up_after_a_bound(world: World) -> None:
    world.write(100)
    world.master.rsync.faults.endless = True
    world.options["fetch_limits"] = dataclasses.replace(QUICK_FETCH, file_bytes=1 << 20, request_bytes=64 << 10)
    await world.begin()
    error = await world.end_of_receiver()
    assert isinstance(error, DumpError)


@in_world()
async def test_a_lost_connection_does_not_disturb_a_dump_on_its_way(world: World) -> None:
    world.master.rsync.faults.files_hold = asyncio.Event()
    world.write(100)
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    world.write(50)
    await world.catch_up()
    world.master.disconnect_all()
    world.write(50)
    await world.catch_up()
    world.master.rsync.faults.files_hold.set()
    await world.dump_is_ready()
    await world.stop()
    assert world.progress().full_syncs == 1
    assert everything(world) == world.commands.commands["db0"]


@in_world(bgsave_s=0.3)
async def test_a_connection_lost_while_the_master_saves_begins_anew(world: World) -> None:
    world.write(100)
    await world.begin()
    await world.until(lambda: world.progress().snapshot.state == "saving")
    world.master.disconnect_all()
    await world.dump_is_ready()
    await world.stop()
    assert everything(world) == world.commands.commands["db0"]


@in_world()
async def test_a_restart_while_the_dump_is_copied_keeps_what_the_wal_has(world: World) -> None:
    world.master.rsync.faults.files_hold = asyncio.Event()
    world.write(100)
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    world.write(50)
    await world.catch_up()
    await world.stop()
    begun = len(world.received())
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    assert len(world.received()) == begun == 50
    asked = [request.try_sync for request in world.master.replication.requests if request.type == pb.kTrySync]
    assert asked[-1].binlog_offset.offset == world.end().offset  # and not the dump's position again
    world.write(50)
    world.master.rsync.faults.files_hold.set()
    await world.dump_is_ready()
    await world.catch_up()
    await world.stop()
    assert everything(world) == world.commands.commands["db0"]


@in_world()
async def test_a_restart_that_finds_another_dump_begins_the_wal_anew(world: World) -> None:
    world.master.rsync.faults.files_hold = asyncio.Event()
    world.write(100)
    await world.begin()
    await world.until(lambda: world.progress().state == "streaming")
    world.write(50)
    await world.catch_up()
    await world.stop()
    world.master.rsync.faults.files_hold = None
    await world.master.restart()  # the dump in its memory is gone
    faults.arm("pikiwi.after-reset", faults.Action("hang"))
    try:
        await world.begin()
        await world.until(lambda: faults.hits().get("pikiwi.after-reset"))
        assert world.checkpoint().database("db0").snapshot.state == "saving"  # a crash here trusts nothing of the WAL
    finally:
        faults.clear()
    await world.dump_is_ready()
    world.write(10)
    await world.catch_up()
    await world.stop()
    assert len(world.dumped_commands()) == 150
    assert everything(world) == world.commands.commands["db0"]


@in_world()
async def test_a_dump_is_ready_only_when_the_wal_has_begun_at_its_position(world: World) -> None:
    """A small dump is complete before the WAL's new start is in the checkpoint: that must not undo `ready`."""
    world.write(10)
    faults.arm("pikiwi.after-reset", faults.Action("hang"))
    try:
        await world.begin()
        await world.until(lambda: world.progress().snapshot.files_done == 3)
        await asyncio.sleep(0.05)  # the fetch has all it needs to say that it is done
        assert world.checkpoint().database("db0").snapshot.state == "saving"
    finally:
        faults.clear()
    await world.dump_is_ready()
    await world.stop()
    assert world.checkpoint().database("db0").snapshot.state == "ready"
