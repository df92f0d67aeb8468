"""The test master's rules are those of real masters (with their numbers), and our session keeps them: no sockets, and a
clock that the test moves."""

from collections import deque
from pathlib import Path

from tests.pikiwi.master import ManualClock
from tests.pikiwi.master_dumps import CommandLog, Dumps
from tests.pikiwi.master_replication import MasterSettings, Replication
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.session import Effect, GoOn, Received, Send, Session, SessionSettings

REQUESTS = Requests(ClientNode("127.0.0.1", 21333))


class Wire:
    """A connection to the master, as both sides see it."""

    def __init__(self) -> None:
        self.responses: deque[pb.InnerResponse] = deque()
        self.is_closed = False

    def send(self, response: pb.InnerResponse) -> None:
        self.responses.append(response)

    def close(self) -> None:
        self.is_closed = True


class Pair:
    """A master and one connection of a client to it."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.clock = ManualClock()
        master_settings = MasterSettings(**settings)  # type: ignore[arg-type]
        self.master = Replication(master_settings, self.clock, Dumps(folder, CommandLog(), "127.0.0.1", 9221))
        self.wire = self.connect()

    def connect(self) -> Wire:
        wire = Wire()
        self.master.connected(wire)
        return wire

    def write(self, count: int, size: int = 10) -> None:
        for number in range(count):
            self.master.execute("db0", b"SET", b"k%d" % number, b"v" * size)

    def ask(self, request: pb.InnerRequest, wire: Wire | None = None) -> pb.InnerResponse | None:
        wire = wire or self.wire
        self.master.handle(wire, request)
        return wire.responses.popleft() if wire.responses else None

    def tell(self, request: pb.InnerRequest) -> None:
        """What comes back stays in the wire."""
        self.master.handle(self.wire, request)

    def register(self) -> int:
        """MetaSync, TrySync at the beginning, and the stream; the session."""
        self.ask(REQUESTS.meta_sync(""))
        reply = self.ask(REQUESTS.try_sync("db0", ZERO))
        assert reply is not None
        session_id = reply.try_sync.session_id
        self.tell(REQUESTS.begin_stream("db0", ZERO, session_id))
        return session_id

    def sent_items(self) -> list[Position]:
        """Ends of the items that lie in the wire, which is empty then."""
        ends: list[Position] = []
        while self.wire.responses:
            for entry in self.wire.responses.popleft().binlog_sync:
                if entry.binlog:
                    ends.append(Position(entry.binlog_offset.filenum, entry.binlog_offset.offset))  # noqa: PERF401
        return ends

    def advance(self, seconds: float, step_s: float = 0.1) -> None:
        """Time passes in the ticks of a real master."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.clock.now_s += step_s
            self.master.tick()


# --- the flow --------------------------------------------------------------------------------------------------------


def test_a_turn_is_40_messages_of_100_and_the_window_9000_items(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(12_000)
    session_id = pair.register()
    sent = pair.sent_items()
    assert len(sent) == 4_000
    pair.tell(REQUESTS.acknowledge("db0", sent[0], sent[0], session_id))
    sent += pair.sent_items()
    assert len(sent) == 8_000
    for end in sent[1:5]:
        pair.tell(REQUESTS.acknowledge("db0", end, end, session_id))
        sent += pair.sent_items()
    assert len(sent) == 9_005  # five were acknowledged


def test_one_item_that_is_not_acknowledged_stops_new_ones(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    session_id = pair.register()
    pair.write(1)
    pair.advance(0.2)
    [first] = pair.sent_items()
    pair.write(1)
    pair.advance(5.0)
    assert pair.sent_items() == []
    pair.tell(REQUESTS.acknowledge("db0", first, first, session_id))
    assert len(pair.sent_items()) == 1


def test_ranges_may_come_in_any_order_and_over_what_is_acknowledged(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(10)
    session_id = pair.register()
    ends = pair.sent_items()
    registration = pair.master.registration()
    assert registration is not None
    pair.tell(REQUESTS.acknowledge("db0", ends[3], ends[5], session_id))
    assert registration.acknowledged_to == ZERO
    pair.tell(REQUESTS.acknowledge("db0", ends[2], ends[8], session_id))
    pair.tell(REQUESTS.acknowledge("db0", ends[0], ends[1], session_id))
    assert registration.acknowledged_to == ends[8]
    assert not pair.wire.is_closed


def test_a_position_that_is_not_in_the_window_closes_the_connection(tmp_path: Path) -> None:
    for first, last in ((0, 0), (9, 10), (3, 99)):  # acknowledged before; the second one was; never sent
        pair = Pair(tmp_path)
        pair.write(12)
        session_id = pair.register()
        ends = [*pair.sent_items(), *([Position(7, 7)] * 90)]
        pair.tell(REQUESTS.acknowledge("db0", ends[0], ends[0], session_id))
        pair.tell(REQUESTS.acknowledge("db0", ends[10], ends[11], session_id))
        pair.tell(REQUESTS.acknowledge("db0", ends[1], ends[9], session_id))
        assert not pair.wire.is_closed
        pair.tell(REQUESTS.acknowledge("db0", ends[first], ends[last], session_id))
        assert pair.wire.is_closed


def test_a_wrong_session_is_ignored_without_a_word(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.write(1)
    session_id = pair.register()
    [end] = pair.sent_items()
    pair.tell(REQUESTS.acknowledge("db0", end, end, session_id + 1))
    assert not pair.wire.responses
    assert not pair.wire.is_closed


# --- signs of life ---------------------------------------------------------------------------------------------------


def test_a_quiet_master_says_so_every_2_seconds(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.register()
    pair.advance(9.0)
    assert [len(response.binlog_sync) for response in pair.wire.responses] == [1] * 4


def test_20_seconds_of_silence_and_the_session_is_gone_without_a_word(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    session_id = pair.register()
    pair.advance(19.0)
    pair.tell(REQUESTS.ping("db0", session_id))
    pair.advance(19.0)
    assert pair.master.registration() is not None
    pair.advance(2.0)
    assert pair.master.registration() is None
    assert not pair.wire.is_closed
    pair.wire.responses.clear()
    reply = pair.ask(REQUESTS.try_sync("db0", ZERO))
    assert reply is not None
    assert reply.try_sync.session_id == session_id + 1


def test_a_name_that_is_taken_is_refused_and_its_owner_is_robbed(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.register()
    thief = pair.connect()
    reply = pair.ask(REQUESTS.meta_sync(""), thief)
    assert reply is not None
    assert (reply.code, reply.reply) == (pb.kOther, "Slave AlreadyExist")
    pair.master.disconnected(thief)
    assert pair.master.registration() is None


# --- keeping ---------------------------------------------------------------------------------------------------------


def test_purging_keeps_10_files_and_what_a_slave_has_not_acknowledged(tmp_path: Path) -> None:
    pair = Pair(tmp_path, binlog_file_bytes=1000)
    session_id = pair.register()
    pair.write(28 * 15)
    assert len(pair.master.binlogs["db0"].files) > 25
    for _ in range(5):  # a client that pings and never acknowledges
        pair.tell(REQUESTS.ping("db0", session_id))
        pair.advance(15.0)
    assert pair.master.binlogs["db0"].first_filenum == 0
    pair.master.disconnected(pair.wire)
    pair.advance(5.1)
    assert len(pair.master.binlogs["db0"].files) == 10


def test_what_would_crash_a_real_master_is_noted(tmp_path: Path) -> None:
    for request in (REQUESTS.db_sync("db9", ZERO), REQUESTS.remove("db9")):
        pair = Pair(tmp_path)
        pair.ask(request)
        assert "unknown database db9" in pair.master.crashes[0]
        assert pair.wire.is_closed


# --- our session with it ---------------------------------------------------------------------------------------------


def test_an_hour_of_quiet_with_a_write_now_and_then_keeps_one_session(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    session = Session("db0", REQUESTS, SessionSettings())
    pair.ask(REQUESTS.meta_sync(""))

    def carry_out(effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                pair.master.handle(pair.wire, effect.request)

    received: list[Received] = []
    carry_out(session.begin(GoOn(ZERO), pair.clock.now_s))
    for second in range(3600):
        if second % 600 == 0:
            pair.write(1)
        pair.advance(1.0, step_s=0.5)
        while pair.wire.responses:
            response = pair.wire.responses.popleft()
            if response.type == pb.kTrySync:
                carry_out(session.try_sync_reply(response, pair.clock.now_s))
                continue
            taken, effects = session.binlog(response.binlog_sync, pair.clock.now_s)
            carry_out(effects)
            if taken is not None:
                received.append(taken)
                carry_out(session.durable(taken, pair.clock.now_s))
        carry_out(session.tick(pair.clock.now_s))
    assert len(received) == 6
    assert session.session_id == 0
    assert pair.master.registration() is not None
    assert pair.master.closed == []
