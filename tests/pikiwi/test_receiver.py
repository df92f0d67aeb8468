"""The receiver against a master that behaves as real ones do: streaming, stopping, reconnecting, refusing.

That no acknowledgement is wrong, early or sent twice needs no test of its own: the master closes the connection then,
and every test fails in which it did.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.pikiwi.master_replication import MasterSettings
from tests.pikiwi.master_world import QUICK, World, in_world
from tidelog import faults
from tidelog.pikiwi.books import Books
from tidelog.pikiwi.checkpoint import CheckpointFile, Point
from tidelog.pikiwi.errors import EXIT_PASSING, EXIT_SOURCE, CheckpointError, LinkError, SourceError, WalError
from tidelog.pikiwi.intake import IntakeSettings
from tidelog.pikiwi.link import AlreadyRegistered, Link, LinkSettings
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import REPLICATION_PORT_DISTANCE
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.session import Effect, Received, Session, SessionSettings

ROLLING = {"binlog_file_bytes": 4096, "expire_logs_nums": 100}
QUICK_LIFE = {"keepalive_s": 0.05, "silence_s": 1.2}
QUICK_SESSION = SessionSettings(ping_interval_s=0.1, silence_s_max=1.2)
QUICK_LINK = LinkSettings(tick_s=0.05)


# --- the stream ------------------------------------------------------------------------------------------------------


@in_world()
async def test_everything_that_was_written_is_received_once_and_in_order(world: World) -> None:
    world.write(3_000)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    world.write(500)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world(version="3.5", dbs=("db0", "db1", "db2"))
async def test_several_databases_flow_over_one_connection(world: World) -> None:
    for db in world.master.settings.dbs:
        world.write(700, db)
    await world.begin(initial_full_sync=False)
    for db in world.master.settings.dbs:
        await world.catch_up(db)
    await world.stop()
    for db in world.master.settings.dbs:
        assert world.received(db) == world.sent(db)
    assert world.master.connection_count == 1


@in_world(dbs=("db0", "db1"))
async def test_all_databases_of_the_master_are_taken_when_none_is_named(world: World) -> None:
    world.write(10, "db0")
    world.write(20, "db1")
    await world.begin(db_name="all", initial_full_sync=False)
    await world.catch_up("db0")
    await world.catch_up("db1")
    assert sorted(world.checkpoint().databases) == ["db0", "db1"]


@in_world(**ROLLING)
async def test_items_chain_over_rolls_of_the_binlog(world: World) -> None:
    world.write(400)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    assert world.end().filenum > 5
    assert world.received() == world.sent()


@in_world()
async def test_items_larger_than_a_block_of_the_binlog_are_received(world: World) -> None:
    world.write(3, size=200_000)
    world.write(50)
    world.write(2, size=65_000)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world()
async def test_records_carry_the_session_they_came_over(world: World) -> None:
    world.write(10)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    world.write(10)
    await world.begin(filenum=None, offset=None)
    await world.catch_up()
    await world.stop()
    assert [record.epoch for record in world.records()] == [0] * 10 + [1] * 10


@in_world()
async def test_what_is_received_and_not_durable_is_bounded(world: World) -> None:
    limits = IntakeSettings(bytes_max=100_000, items_max=1_000_000)
    world.options["intake_settings"] = limits
    receiver = await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    faults.arm("pikiwi.before-append", faults.Action("hang"))
    try:
        world.write(300, size=5_000)
        link = receiver._link
        assert link is not None
        await world.until(lambda: not link.reading)
        held = receiver._intake.held_bytes
        assert limits.bytes_max < held <= limits.bytes_max + 100 * 5_100  # one message over the line
    finally:
        faults.clear()
    await world.catch_up()
    assert link.reading
    await world.stop()
    assert world.received() == world.sent()


# --- staying registered ----------------------------------------------------------------------------------------------


@in_world(**QUICK_LIFE)
async def test_a_quiet_master_hears_from_us_and_keeps_us(world: World) -> None:
    world.session_settings, world.options["link_settings"] = QUICK_SESSION, QUICK_LINK
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().keepalives >= 20)  # longer than the master bears silence
    registration = world.master.replication.registration()
    assert registration is not None
    assert registration.session_id == 0
    assert world.master.connection_count == 1


@in_world(silence_s=1.2, keepalive_s=1000.0)
async def test_pings_go_out_without_any_keepalive(world: World) -> None:
    world.session_settings = SessionSettings(ping_interval_s=0.1, silence_s_max=1000.0)
    world.options["link_settings"] = QUICK_LINK
    await world.begin(filenum=0, offset=0)
    pings = lambda: sum(_is_ping(request) for request in world.master.replication.requests)  # noqa: E731
    await world.until(lambda: pings() >= 16)
    assert world.master.replication.registration() is not None
    assert world.master.connection_count == 1


@in_world(keepalive_s=0.05)
async def test_a_master_that_falls_silent_is_left_and_connected_to_anew(world: World) -> None:
    world.session_settings, world.options["link_settings"] = QUICK_SESSION, QUICK_LINK
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().keepalives >= 1)
    world.master.faults.swallow = lambda response: True
    await world.until(lambda: world.receiver and world.receiver.progress.disconnects >= 1)
    world.master.faults.swallow = None
    world.write(10)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world()
async def test_stopping_takes_back_the_registration_and_acknowledges_what_is_durable(world: World) -> None:
    world.write(250)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    assert world.master.replication.requests[-1].type == pb.kRemoveSlaveNode
    assert world.master.replication.registration() is None
    durable = world.checkpoint().database("db0").durable_cp
    assert durable is not None
    assert durable.position == world.end()


@in_world()
async def test_stopping_waits_until_what_was_received_is_durable_and_acknowledged(world: World) -> None:
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    faults.arm("pikiwi.before-sync", faults.Action("hang"))
    try:
        world.write(50)
        await world.until(lambda: faults.hits().get("pikiwi.before-sync"))
        assert world.receiver is not None
        world.receiver.stop()
        await asyncio.sleep(0.02)
    finally:
        faults.clear()
    await world.stop()
    assert [last for _, _, last in world.master.replication.acknowledgements] == [world.end()]


@in_world()
async def test_what_the_pipeline_has_delivered_leaves_the_wal(world: World) -> None:
    world.write(500)
    await world.begin(filenum=0, offset=0, wal_segment_bytes=4096, wal_retain_segments=1)
    await world.catch_up()
    last = world.records()[-1]
    CheckpointFile(world.config.checkpoint_path, world.config.source).advance_ack(
        "db0", 0, Point(last.seq, last.position)
    )
    await world.until(lambda: (world.progress().wal_first or ZERO) > ZERO)
    assert len(world.records()) < 100


@in_world()
async def test_a_wal_that_the_pipeline_does_not_empty_is_bounded(world: World) -> None:
    limit = 512 << 10
    receiver = await world.begin(
        filenum=0, offset=0, wal_segment_bytes=4096, wal_retain_segments=1, wal_bytes_max=limit
    )
    await world.until(lambda: world.progress().state == "streaming")
    link = receiver._link
    assert link is not None
    while link.reading:
        world.write(20, size=1_000)
        await world.until(lambda: not link.reading or len(world.records()) == len(world.sent()))
    world.write(500, size=1_000)
    await world.until(lambda: world.progress().wal_bytes > limit)
    last = world.records()[-1]
    assert len(world.records()) < len(world.sent())
    CheckpointFile(world.config.checkpoint_path, world.config.source).advance_ack(
        "db0", 0, Point(last.seq, last.position)
    )
    await world.until(lambda: link.reading)
    await world.until(lambda: world.records()[-1].seq > last.seq)


@in_world()
async def test_the_lineage_is_in_the_checkpoint_before_the_first_item(world: World) -> None:
    receiver = await world.begin(filenum=0, offset=0, checkpoint_interval_ms=1_000_000)
    await world.until(lambda: receiver.progress.state == "connected")
    assert world.checkpoint().replication_id == world.master.settings.replication_id


# --- connections that end --------------------------------------------------------------------------------------------


@in_world()
async def test_a_disk_that_hangs_does_not_hide_that_the_master_is_gone(world: World) -> None:
    begun, released = asyncio.Event(), asyncio.Event()
    write = Books.bring_up_to_date

    async def hang(*_: object) -> None:
        begun.set()
        await released.wait()

    Books.bring_up_to_date = hang  # type: ignore[assignment,method-assign]
    try:
        receiver = await world.begin(filenum=0, offset=0, checkpoint_interval_ms=1_000_000)
        await world.until(begun.is_set)
        world.master.disconnect_all()
        await world.until(lambda: receiver.progress.disconnects == 1)
    finally:
        Books.bring_up_to_date = write  # type: ignore[method-assign]
        released.set()
    await world.stop()


@in_world(keepalive_s=0.02)
async def test_a_lost_connection_loses_and_repeats_nothing(world: World) -> None:
    world.write(2_000)
    await world.begin(filenum=0, offset=0)
    for lost in (1, 7, 3, 12):
        world.master.faults.close_after_responses = lost
        world.write(500)
        await world.until(lambda: world.master.faults.close_after_responses is None)
        await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world()
async def test_a_message_cut_in_half_is_asked_for_again(world: World) -> None:
    world.write(1_000)
    world.master.faults.cut_after_responses = 5
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    assert world.master.connection_count == 2
    assert world.received() == world.sent()


@in_world()
async def test_a_message_that_went_missing_is_noticed_and_asked_for_again(world: World) -> None:
    lost: list[pb.InnerResponse] = []

    def loses_the_third(response: pb.InnerResponse) -> bool:
        if response.type == pb.kBinlogSync:
            lost.append(response)
        return len(lost) == 3

    world.write(1_000)
    world.master.faults.swallow = loses_the_third
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.stop()
    assert world.master.connection_count >= 2
    assert world.received() == world.sent()


@in_world()
async def test_a_new_connection_waits_until_what_was_received_is_durable(world: World) -> None:
    """It would ask for the same again otherwise."""
    receiver = await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    await world.until(lambda: receiver.progress.state == "connected")  # it has no more to ask of the WAL's thread
    faults.arm("pikiwi.before-append", faults.Action("hang"))
    try:
        world.write(50)
        await world.until(lambda: faults.hits().get("pikiwi.before-append"))
        world.master.disconnect_all()
        await world.until(lambda: world.master.connection_count >= 2)
        await asyncio.sleep(0.05)
    finally:
        faults.clear()
    world.write(50)
    await world.catch_up()
    await world.stop()
    assert sum(request.type == pb.kTrySync for request in world.master.replication.requests) == 2
    assert world.received() == world.sent()


@in_world()
async def test_a_checkpoint_that_breaks_while_there_is_no_connection_ends_the_receiver(world: World) -> None:
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    await world.master.stop()
    ended = asyncio.ensure_future(world.end_of_receiver())
    while not ended.done():  # again and again: one that was just being written would replace ours
        world.config.checkpoint_path.write_text("nonsense")
        await asyncio.sleep(0.01)
    assert isinstance(await ended, CheckpointError)


@in_world()
async def test_a_master_that_restarts_is_gone_on_with(world: World) -> None:
    world.write(100)
    await world.begin(filenum=0, offset=0)
    await world.catch_up()
    await world.master.restart()
    world.write(100)
    await world.catch_up()
    await world.stop()
    assert world.received() == world.sent()


@in_world()
async def test_a_master_that_cannot_be_reached_is_given_up_after_a_bound(world: World) -> None:
    await world.master.stop()
    await world.begin(filenum=0, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, LinkError)
    assert error.exit_status == EXIT_PASSING
    assert f"after {QUICK.unreached_max} tries" in str(error)


@in_world()
async def test_a_master_that_closes_every_time_is_not_asked_for_ever(world: World) -> None:
    """A window it does not agree about, padding it stumbles over: connecting again finds the same."""
    world.write(10)
    world.master.faults.rewrite = _closing_on_items(world)
    await world.begin(filenum=0, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, LinkError)
    assert world.master.connection_count == QUICK.fruitless_max


def _closing_on_items(world: World) -> Callable[[pb.InnerResponse], pb.InnerResponse]:
    def rewrite(response: pb.InnerResponse) -> pb.InnerResponse:
        if response.type == pb.kBinlogSync:
            asyncio.get_running_loop().call_soon(world.master.disconnect_all)
            return pb.InnerResponse(type=pb.kBinlogSync, code=pb.kOk)
        return response

    return rewrite


# --- refusals --------------------------------------------------------------------------------------------------------


@in_world(password="secret")
async def test_the_password_is_given(world: World) -> None:
    world.write(5)
    await world.begin(filenum=0, offset=0, passwd="secret")
    await world.catch_up()


@in_world(password="secret")
async def test_a_wrong_password_ends_the_receiver(world: World) -> None:
    await world.begin(filenum=0, offset=0, passwd="guess")
    error = await world.end_of_receiver()
    assert isinstance(error, SourceError)
    assert error.exit_status == EXIT_SOURCE
    assert "Invalid masterauth" in str(error)
    assert world.master.connection_count == 1


@in_world()
async def test_a_database_that_the_master_does_not_have_is_never_asked_about(world: World) -> None:
    await world.begin(db_name="db3")
    error = await world.end_of_receiver()
    assert isinstance(error, SourceError)
    assert "has no db3; it has db0" in str(error)
    assert {request.type for request in world.master.replication.requests} == {pb.kMetaSync}


@in_world()
async def test_a_name_that_is_taken_for_a_while_is_waited_for(world: World) -> None:
    other = await _registered_client(world)
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.master.connection_count >= 3)
    await other.leave()
    world.master.replication._owner.clear()  # a real master forgets the dead one in 20 s
    world.write(5)
    await world.catch_up()


@in_world()
async def test_a_name_that_stays_taken_ends_the_receiver(world: World) -> None:
    await _registered_client(world)
    world.master.replication.disconnected = lambda connection: None  # the other one's place is never freed
    await world.begin(filenum=0, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, AlreadyRegistered)
    assert error.exit_status == EXIT_SOURCE
    assert world.master.connection_count == 1 + QUICK.name_taken_max


async def _registered_client(world: World) -> Link:
    """Another client under the receiver's name."""

    class Nobody:
        def received(self, session: Session, received: Received) -> None: ...
        def keepalive(self, session: Session) -> None: ...
        def effect(self, session: Session, effect: Effect) -> None: ...

    link = await Link.open(
        "127.0.0.1",
        world.master.port + REPLICATION_PORT_DISTANCE,
        Nobody(),
        Requests(ClientNode("127.0.0.1", world.config.registered_port)),
        LinkSettings(),
        asyncio.get_running_loop().time,
    )
    await link.meta_sync("")
    return link


@in_world()
async def test_a_wal_that_fails_ends_the_receiver_and_acknowledges_nothing_more(world: World) -> None:
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    faults.arm("pikiwi.before-sync", faults.Action("error"))
    try:
        world.write(100)
        error = await world.end_of_receiver()
    finally:
        faults.clear()
    assert "before-sync" in str(error)
    assert world.master.replication.acknowledgements == []


@in_world()
async def test_two_receivers_do_not_share_a_wal(world: World) -> None:
    await world.begin(filenum=0, offset=0)
    await world.until(lambda: world.progress().state == "streaming")
    first, running = world.receiver, world._running
    await world.begin(local_port=30_000)
    error = await world.end_of_receiver()
    assert isinstance(error, WalError)
    world.receiver, world._running = first, running


# --- words -----------------------------------------------------------------------------------------------------------


def _is_ping(request: pb.InnerRequest) -> bool:
    sync = request.binlog_sync
    if request.type != pb.kBinlogSync or sync.first_send:
        return False
    return Position(sync.ack_range_start.filenum, sync.ack_range_start.offset) == ZERO


def test_the_master_of_these_tests_has_the_numbers_of_a_real_one() -> None:
    settings = MasterSettings()
    assert replace(settings, window_items=9000, keepalive_s=2, silence_s=20, items_per_message=100) == settings
