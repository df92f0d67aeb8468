"""Masters that send nonsense: the receiver ends with a clear error, within bounds, and keeps its WAL clean."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pikiwi.master_world import World, in_world
from tidelog.pikiwi.errors import EXIT_SOURCE, LinkError, PikiwiError, ProtocolError, SourceError
from tidelog.pikiwi.link import LinkSettings
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.session import SessionSettings

Rewrite = Callable[[pb.InnerResponse], pb.InnerResponse]


async def fate(world: World) -> PikiwiError:
    """How a receiver of this master ends; its WAL holds nothing that the master's binlog does not."""
    world.write(20)
    await world.begin(filenum=0, offset=0)
    error = await world.end_of_receiver()
    assert isinstance(error, PikiwiError)
    assert [item for item in world.received() if item not in world.sent()] == []
    return error


# --- bytes -----------------------------------------------------------------------------------------------------------

GARBAGE = {
    "another server's text": (b"-ERR unknown command 'x'\r\n", "announced"),
    "a length without end": (struct.pack(">I", 2**32 - 1), "announced"),
    "bytes that are no protobuf": (struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff", "InnerResponse"),
    "an empty message": (struct.pack(">I", 0), "required"),
    "a type that does not exist": (struct.pack(">I", 4) + b"\x08\x63\x10\x01", "required"),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_bytes_that_are_no_message(name: str, tmp_path: Path) -> None:
    data, words = GARBAGE[name]

    @in_world()
    async def run(world: World) -> None:
        world.master.faults.raw_instead = data
        error = await fate(world)
        assert isinstance(error, ProtocolError)
        assert error.exit_status == EXIT_SOURCE
        assert words in str(error)
        assert world.master.connection_count == 1

    run(tmp_path)


@in_world()
async def test_a_master_that_announces_a_message_and_sends_it_drop_by_drop_is_left_in_time(world: World) -> None:
    world.master.faults.raw_instead = struct.pack(">I", 1 << 20)
    world.options["link_settings"] = LinkSettings(reply_s_max=0.05)
    error = await fate(world)
    assert isinstance(error, LinkError)
    assert "MetaSync" in str(error)


@in_world()
async def test_a_master_that_never_answers_is_left_in_time(world: World) -> None:
    world.master.faults.deaf = True
    world.options["link_settings"] = LinkSettings(reply_s_max=0.02)
    error = await fate(world)
    assert isinstance(error, LinkError)


@in_world()
async def test_a_master_that_does_not_answer_try_sync_is_left_in_time(world: World) -> None:
    world.master.faults.swallow = lambda response: response.type == pb.kTrySync
    world.session_settings = SessionSettings(reply_s_max=0.05)
    world.options["link_settings"] = LinkSettings(tick_s=0.02)
    error = await fate(world)
    assert isinstance(error, LinkError)
    assert "no reply" in str(error)


@in_world()
async def test_a_message_larger_than_the_limit_is_not_taken(world: World) -> None:
    world.options["link_settings"] = LinkSettings(message_bytes_max=1000)
    error = await fate(world)
    assert isinstance(error, ProtocolError)
    assert "at most 1,000" in str(error)


# --- messages --------------------------------------------------------------------------------------------------------


def _other_database(response: pb.InnerResponse) -> pb.InnerResponse:
    for entry in response.binlog_sync:
        entry.slot.db_name = "db7"
    return response


def _no_header(response: pb.InnerResponse) -> pb.InnerResponse:
    for entry in response.binlog_sync:
        entry.binlog = entry.binlog[:20]
    return response


def _wrong_length(response: pb.InnerResponse) -> pb.InnerResponse:
    for entry in response.binlog_sync:
        entry.binlog += b"more"
    return response


def _refused(response: pb.InnerResponse) -> pb.InnerResponse:
    if response.type == pb.kBinlogSync:
        response.code, response.reply = pb.kError, "no more"
    return response


def _unasked(response: pb.InnerResponse) -> pb.InnerResponse:
    if response.type != pb.kBinlogSync:
        return response
    unasked = pb.InnerResponse(type=pb.kDBSync, code=pb.kOk)
    unasked.db_sync.slot.db_name, unasked.db_sync.slot.slot_id, unasked.db_sync.session_id = "db0", 0, 1
    return unasked


def _heartbeat(response: pb.InnerResponse) -> pb.InnerResponse:
    return pb.InnerResponse(type=pb.kHeatBeat, code=pb.kOk) if response.type == pb.kTrySync else response


def _no_databases(response: pb.InnerResponse) -> pb.InnerResponse:
    del response.meta_sync.dbs_info[:]
    return response


def _a_path(response: pb.InnerResponse) -> pb.InnerResponse:
    for info in response.meta_sync.dbs_info:
        info.db_name = "../../elsewhere"
    return response


def _twice(response: pb.InnerResponse) -> pb.InnerResponse:
    if response.type == pb.kMetaSync:
        response.meta_sync.dbs_info.add(db_name="db0", slot_num=1)
    return response


def _not_classic(response: pb.InnerResponse) -> pb.InnerResponse:
    if response.type == pb.kMetaSync:
        response.meta_sync.classic_mode = False
    return response


def _empty_meta(response: pb.InnerResponse) -> pb.InnerResponse:
    if response.type == pb.kMetaSync:
        response.ClearField("meta_sync")
    return response


LIES: dict[str, tuple[Rewrite, type[PikiwiError], str]] = {
    "items of a database nobody asked about": (_other_database, ProtocolError, "db7"),
    "items without a header": (_no_header, ProtocolError, "shorter than its header"),
    "items of another length": (_wrong_length, ProtocolError, "content"),
    "a binlog that is refused": (_refused, SourceError, "no more"),
    "an answer that nobody asked for": (_unasked, ProtocolError, "DBSync"),
    "a message that nobody sends": (_heartbeat, ProtocolError, "type 5"),
    "no databases": (_no_databases, SourceError, "no database"),
    "a database that is a path": (_a_path, ProtocolError, "elsewhere"),
    "a database twice": (_twice, ProtocolError, "'db0'"),
    "a sharded master": (_not_classic, SourceError, "classic"),
    "an empty answer to MetaSync": (_empty_meta, ProtocolError, "says nothing"),
}


@pytest.mark.parametrize("name", LIES)
def test_messages_that_make_no_sense(name: str, tmp_path: Path) -> None:
    rewrite, kind, words = LIES[name]

    @in_world()
    async def run(world: World) -> None:
        world.master.faults.rewrite = rewrite
        error = await fate(world)
        assert type(error) is kind
        assert words in str(error)
        assert world.master.connection_count == 1

    run(tmp_path)


@in_world()
async def test_positions_that_jump_are_not_believed_and_not_asked_about_for_ever(world: World) -> None:
    def jumps(response: pb.InnerResponse) -> pb.InnerResponse:
        for entry in response.binlog_sync:
            entry.binlog_offset.filenum += 1
        return response

    world.master.faults.rewrite = jumps
    error = await fate(world)
    assert isinstance(error, LinkError)
    assert "does not go on" in str(error)
    assert world.received() == []


@in_world()
async def test_a_changed_session_gets_no_item_into_the_wal(world: World) -> None:
    def renumbers(response: pb.InnerResponse) -> pb.InnerResponse:
        for entry in response.binlog_sync:
            entry.session_id += 1
        return response

    world.master.faults.rewrite = renumbers
    world.session_settings = SessionSettings(silence_s_max=0.05)
    world.options["link_settings"] = LinkSettings(tick_s=0.02)
    error = await fate(world)
    assert isinstance(error, LinkError)
    assert world.received() == []
