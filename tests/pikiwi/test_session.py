"""The session's rules, one by one, without a socket: events in, effects out, time as a number."""

from typing import Any

import pytest

from tests.pikiwi.master_binlog import Binlog, resp
from tidelog.pikiwi.errors import DumpError, LinkError, ProtocolError, SourceError, SyncPointError
from tidelog.pikiwi.position import FILENUM_MAX, ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.session import (
    BinlogGap,
    Effect,
    Fetch,
    Flows,
    FromEnd,
    FullSync,
    GoOn,
    Pause,
    Phase,
    Rebase,
    Received,
    Send,
    Session,
    SessionSettings,
)

REQUESTS = Requests(ClientNode("127.0.0.1", 21333))
Reply = pb.InnerResponse.TrySync.ReplyCode
HERE = Position(3, 4711)
END = Position(9, 99)


def session(**settings: Any) -> Session:
    return Session("db0", REQUESTS, SessionSettings(**settings))


def try_reply(code: Reply, *, end: Position | None = END, session_id: int | None = None) -> pb.InnerResponse:
    response = pb.InnerResponse(type=pb.kTrySync, code=pb.kOk)
    reply = response.try_sync
    reply.reply_code = code
    reply.slot.CopyFrom(pb.Slot(db_name="db0", slot_id=0))
    if end is not None:
        reply.binlog_offset.CopyFrom(pb.BinlogOffset(filenum=end.filenum, offset=end.offset))
    if session_id is not None:
        reply.session_id = session_id
    return response


def db_reply(session_id: int) -> pb.InnerResponse:
    response = pb.InnerResponse(type=pb.kDBSync, code=pb.kOk)
    response.db_sync.slot.CopyFrom(pb.Slot(db_name="db0", slot_id=0))
    response.db_sync.session_id = session_id
    return response


def refused(kind: pb.Type, why: str) -> pb.InnerResponse:
    return pb.InnerResponse(type=kind, code=pb.kError, reply=why)


def entry(end: Position, data: bytes, session_id: int = 7) -> pb.InnerResponse.BinlogSync:
    return pb.InnerResponse.BinlogSync(
        slot=pb.Slot(db_name="db0", slot_id=0),
        binlog_offset=pb.BinlogOffset(filenum=end.filenum, offset=end.offset, term=0, index=0),
        binlog=data,
        session_id=session_id,
    )


def keepalive(session_id: int = 7) -> list[pb.InnerResponse.BinlogSync]:
    return [entry(ZERO, b"", session_id)]


def streaming(position: Position = ZERO, **settings: Any) -> Session:
    """Since second 0, as session 7."""
    new = session(**settings)
    new.begin(GoOn(position), 0.0)
    new.try_sync_reply(try_reply(Reply.kOk, session_id=7), 0.0)
    return new


def items(count: int, binlog: Binlog | None = None) -> list[pb.InnerResponse.BinlogSync]:
    """The next items of a binlog, from its end on."""
    binlog = binlog or Binlog()
    before = binlog.end
    for number in range(count):
        binlog.append(resp(b"SET", b"k%d" % number, b"v"), 0)
    return [entry(end, data) for end, data in binlog.after(before, count)]


def sent(effects: list[Effect]) -> list[pb.InnerRequest]:
    return [effect.request for effect in effects if isinstance(effect, Send)]


def got(received: Received | None) -> Received:
    assert received is not None
    return received


# --- the way to the stream -------------------------------------------------------------------------------------------


def test_going_on_is_try_sync_and_then_the_stream_from_the_same_position() -> None:
    new = session()
    assert new.begin(GoOn(HERE), 0.0) == [Send(REQUESTS.try_sync("db0", HERE))]
    effects = new.try_sync_reply(try_reply(Reply.kOk, session_id=4), 0.1)
    assert effects == [Send(REQUESTS.begin_stream("db0", HERE, 4)), Flows(4, HERE, END)]
    assert new.phase is Phase.STREAMING


def test_the_stream_is_asked_for_with_two_equal_ends() -> None:
    request = REQUESTS.begin_stream("db0", HERE, 4).binlog_sync
    assert request.first_send
    assert request.ack_range_start == request.ack_range_end


def test_the_master_s_end_is_learned_by_asking_beyond_it() -> None:
    new = session()
    assert new.begin(FromEnd(), 0.0) == [Send(REQUESTS.try_sync("db0", Position(FILENUM_MAX, 0)))]
    [rebase] = new.try_sync_reply(try_reply(Reply.kSyncPointLarger), 0.1)
    assert rebase == Rebase("chosen", END, "start_from_master is set")
    assert new.rebased(END, 0.2) == [Send(REQUESTS.try_sync("db0", END))]


def test_a_full_sync_takes_the_dump_s_position_before_the_dump_is_copied() -> None:
    new = session()
    assert new.begin(FullSync(HERE), 0.0) == [Send(REQUESTS.db_sync("db0", HERE))]
    assert new.db_sync_reply(db_reply(7), 0.1) == [Fetch()]
    assert new.dump_begins(END, 5.0) == [Rebase("dump", END, "full sync")]
    assert new.rebased(END, 5.1) == [Send(REQUESTS.try_sync("db0", END))]
    assert new.try_sync_reply(try_reply(Reply.kOk, session_id=7), 5.2)[0] == Send(REQUESTS.begin_stream("db0", END, 7))


@pytest.mark.parametrize(
    ("action", "effects", "phase"),
    [
        ("full_sync", [Send(REQUESTS.db_sync("db0", HERE))], Phase.SAVING),
        ("start_from_master", [Rebase], Phase.REBASING),
        ("pause", [Pause], Phase.PAUSED),
    ],
)
def test_a_purged_position_is_handled_as_the_settings_say(action: Any, effects: list[Any], phase: Phase) -> None:
    new = session(purged_action=action)
    new.begin(GoOn(HERE), 0.0)
    [effect] = new.try_sync_reply(try_reply(Reply.kSyncPointBePurged), 0.1)
    assert effect == effects[0] or type(effect) is effects[0]
    assert new.phase is phase


def test_a_gap_is_left_at_the_master_s_end() -> None:
    new = session(purged_action="start_from_master")
    new.begin(GoOn(HERE), 0.0)
    [rebase] = new.try_sync_reply(try_reply(Reply.kSyncPointBePurged), 0.1)
    assert isinstance(rebase, Rebase)
    assert (rebase.kind, rebase.position) == ("gap", END)


@pytest.mark.parametrize(("code", "words"), [(Reply.kSyncPointLarger, "beyond"), (Reply.kError, "boundary")])
def test_what_asking_again_cannot_cure_says_both_positions(code: Reply, words: str) -> None:
    new = session()
    new.begin(GoOn(HERE), 0.0)
    with pytest.raises(SyncPointError, match=words) as caught:
        new.try_sync_reply(try_reply(code), 0.1)
    assert str(HERE) in str(caught.value)
    assert str(END) in str(caught.value)


def test_a_dump_s_own_position_that_is_purged_calls_for_another_dump() -> None:
    new = session()
    new.begin(FullSync(), 0.0)
    new.db_sync_reply(db_reply(7), 0.1)
    new.dump_begins(HERE, 0.2)
    new.rebased(HERE, 0.3)
    with pytest.raises(DumpError, match="expire-logs-nums"):
        new.try_sync_reply(try_reply(Reply.kSyncPointBePurged), 0.4)


def test_refusals_give_the_master_s_reason() -> None:
    new = session()
    new.begin(GoOn(HERE), 0.0)
    with pytest.raises(SourceError, match="DB not found"):
        new.try_sync_reply(refused(pb.kTrySync, "DB not found"), 0.1)
    new = session()
    new.begin(FullSync(), 0.0)
    with pytest.raises(SourceError, match="disk full"):
        new.db_sync_reply(refused(pb.kDBSync, "disk full"), 0.1)


# --- what a master must not do ---------------------------------------------------------------------------------------


def test_answers_that_nobody_asked_for_are_refused() -> None:
    with pytest.raises(ProtocolError):
        session().try_sync_reply(try_reply(Reply.kOk, session_id=1), 0.0)
    with pytest.raises(ProtocolError):
        streaming().db_sync_reply(db_reply(1), 0.0)
    with pytest.raises(ProtocolError):
        streaming().try_sync_reply(try_reply(Reply.kOk, session_id=1), 0.0)
    with pytest.raises(ProtocolError):
        streaming().dump_begins(HERE, 0.0)


def test_a_session_without_an_id_is_refused() -> None:
    new = session()
    new.begin(GoOn(HERE), 0.0)
    with pytest.raises(ProtocolError, match="without a session"):
        new.try_sync_reply(try_reply(Reply.kOk), 0.0)


def test_a_probe_must_tell_the_end() -> None:
    for reply in (try_reply(Reply.kOk, session_id=1), try_reply(Reply.kSyncPointLarger, end=None)):
        new = session()
        new.begin(FromEnd(), 0.0)
        with pytest.raises(ProtocolError, match="does not tell its end"):
            new.try_sync_reply(reply, 0.0)


def test_items_before_they_were_asked_for_are_refused() -> None:
    new = session()
    new.begin(FullSync(), 0.0)
    new.db_sync_reply(db_reply(7), 0.1)
    with pytest.raises(ProtocolError, match="before they were asked for"):
        new.binlog(items(1), 0.2)


# --- items -----------------------------------------------------------------------------------------------------------


def test_items_are_taken_with_their_ends() -> None:
    new = streaming()
    entries = items(3)
    received, effects = new.binlog(entries, 1.0)
    assert got(received).items == [(Position(0, e.binlog_offset.offset), e.binlog) for e in entries]
    assert got(received).size_bytes == sum(len(e.binlog) for e in entries)
    assert effects == []
    assert new.end == got(received).last


def test_items_chain_from_either_name_of_a_roll() -> None:
    """(1, 0) is also the end of file 0, which is what the first item of file 1 names as its start."""
    binlog = Binlog(file_bytes=10)
    items(1, binlog)
    end_of_file_0 = binlog.end
    [first_of_file_1] = items(1, binlog)
    for name in (end_of_file_0, Position(1, 0)):
        received, _ = streaming(name).binlog([first_of_file_1], 1.0)
        assert got(received).last.filenum == 1


@pytest.mark.parametrize("broken", [[0, 2], [1], [0, 0], [0, 1, 1], [1, 0]], ids=str)
def test_a_hole_a_repetition_or_a_step_back_is_noticed_and_nothing_of_the_message_is_kept(broken: list[int]) -> None:
    new = streaming()
    entries = items(3)
    with pytest.raises(BinlogGap):
        new.binlog([entries[i] for i in broken], 1.0)
    assert new.end == ZERO


def test_an_end_that_is_not_behind_its_start_is_noticed() -> None:
    new = streaming()
    [one] = items(1)
    one.binlog_offset.offset = 0
    with pytest.raises(BinlogGap):
        new.binlog([one], 1.0)


def test_items_of_another_session_are_left_out() -> None:
    new = streaming()
    entries = items(2)
    stale = entry(Position(5, 5), entries[0].binlog, session_id=6)
    received, _ = new.binlog([stale, *entries], 1.0)
    assert len(got(received).items) == 2
    assert new.stale_items == 1


@pytest.mark.parametrize("data", [b"short", b"\x02\x00" + bytes(32), b"\x01\x00" + bytes(28) + b"\x05\x00\x00\x00"])
def test_what_is_no_item_does_not_reach_the_wal(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        streaming().binlog([entry(Position(0, 50), data)], 1.0)


def test_an_empty_item_somewhere_is_no_keepalive() -> None:
    with pytest.raises(ProtocolError, match="without content"):
        streaming().binlog([entry(Position(0, 50), b"")], 1.0)


# --- acknowledgements ------------------------------------------------------------------------------------------------


def test_each_message_is_acknowledged_once_from_its_first_end_to_its_last() -> None:
    new = streaming()
    entries = items(5)
    first, _ = new.binlog(entries[:3], 1.0)
    second, _ = new.binlog(entries[3:], 1.1)
    ends = [Position(0, e.binlog_offset.offset) for e in entries]
    assert new.durable(got(first), 1.2) == [Send(REQUESTS.acknowledge("db0", ends[0], ends[2], 7))]
    assert new.durable(got(second), 1.2) == [Send(REQUESTS.acknowledge("db0", ends[3], ends[4], 7))]
    with pytest.raises(AssertionError):
        new.durable(got(second), 1.3)


def test_nothing_is_acknowledged_before_it_is_durable() -> None:
    new = streaming()
    _, effects = new.binlog(items(5), 1.0)
    assert effects + new.tick(1.1) == []


def test_what_becomes_durable_after_the_connection_ended_is_not_acknowledged() -> None:
    new = streaming()
    received, _ = new.binlog(items(5), 1.0)
    new.close()
    assert new.durable(got(received), 1.2) == []


# --- signs of life ---------------------------------------------------------------------------------------------------

PING = [Send(REQUESTS.ping("db0", 7))]


def test_a_keepalive_is_answered_and_is_no_item() -> None:
    new = streaming()
    assert new.binlog(keepalive(), 1.0) == (None, PING)
    assert new.end == ZERO


def test_a_ping_goes_out_when_nothing_else_did() -> None:
    new = streaming(ping_interval_s=2.0)
    assert [new.tick(second) for second in (0.5, 1.5, 2.0, 3.0, 4.0)] == [[], [], PING, [], PING]


def test_acknowledgements_are_signs_of_life_too() -> None:
    new = streaming(ping_interval_s=2.0)
    received, _ = new.binlog(items(1), 1.0)
    new.durable(got(received), 1.5)
    assert new.tick(3.0) == []
    assert new.tick(3.5) == PING


def test_pings_go_on_in_every_phase_of_a_full_sync() -> None:
    new = session(ping_interval_s=2.0)
    new.begin(FullSync(), 0.0)
    assert new.tick(2.0) == []  # no session yet
    new.db_sync_reply(db_reply(7), 3.0)
    assert new.tick(5.0) == PING
    new.dump_begins(HERE, 6.0)
    assert new.tick(7.0) == PING
    new.rebased(HERE, 8.0)
    assert new.tick(9.0) == PING


def test_pings_are_never_more_than_five_seconds_apart() -> None:
    with pytest.raises(AssertionError):
        SessionSettings(ping_interval_s=5.1)


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_a_reply_that_does_not_come_ends_the_connection() -> None:
    for start in (GoOn(HERE), FromEnd(), FullSync()):
        new = session(reply_s_max=10.0)
        new.begin(start, 0.0)
        assert new.tick(9.9) == []
        with pytest.raises(LinkError, match="no reply"):
            new.tick(10.1)


def test_a_silent_master_is_left() -> None:
    new = streaming(silence_s_max=20.0)
    new.binlog(keepalive(), 5.0)
    new.tick(24.9)
    with pytest.raises(LinkError, match="silent for 20"):
        new.tick(25.1)


def test_a_master_that_waits_for_our_acknowledgement_is_not_silent() -> None:
    new = streaming(silence_s_max=20.0)
    received, _ = new.binlog(items(1), 5.0)
    new.tick(60.0)
    new.durable(got(received), 61.0)
    new.tick(80.0)
    with pytest.raises(LinkError):
        new.tick(81.1)


def test_silence_does_not_count_while_we_do_not_read() -> None:
    new = streaming(silence_s_max=20.0)
    new.tick(30.0, reading=False)
    new.tick(49.0)
    with pytest.raises(LinkError):
        new.tick(50.1)


def test_a_dump_is_waited_for_within_its_bound() -> None:
    new = session(dump_wait_s_max=1800.0)
    new.begin(FullSync(), 0.0)
    new.db_sync_reply(db_reply(7), 10.0)
    new.tick(1810.0)
    with pytest.raises(DumpError, match="wait_bgsave_timeout"):
        new.tick(1810.1)


# --- the end ---------------------------------------------------------------------------------------------------------


def test_leaving_takes_back_what_was_registered_once() -> None:
    new = streaming()
    assert new.close() == [Send(REQUESTS.remove("db0"))]
    assert new.close() == []
    assert session().close() == []


def test_a_paused_session_says_nothing_more() -> None:
    new = session(purged_action="pause")
    new.begin(GoOn(HERE), 0.0)
    new.try_sync_reply(try_reply(Reply.kSyncPointBePurged), 0.1)
    assert new.tick(1000.0) == []
    assert new.binlog(keepalive(), 1001.0) == (None, [])
