"""A real slave and its real master, recorded byte for byte, against our decoder, our client and our test master."""

import re

import pytest

from tests.pikiwi.recordings import FIXTURES, VERSIONS, replication, rsync
from tidelog.pikiwi.binlog import decode_item
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import encode_frame, parse
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol import rsync_service_pb2 as rsync_pb
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.resp import parse_command
from tidelog.pikiwi.session import Effect, Fetch, Flows, FullSync, Rebase, Send, Session, SessionSettings

both = pytest.mark.parametrize("version", VERSIONS)
DECODED = re.compile(r"^ +[\d.]+ conn0 (C->S|S->C) len=(\d+) (type: .*)$")


def requests_of(version: str) -> list[tuple[float, pb.InnerRequest]]:
    return [(second, parse(pb.InnerRequest, frame)) for second, frame in replication(version).to_server.frames()]


def responses_of(version: str) -> list[tuple[float, pb.InnerResponse]]:
    return [(second, parse(pb.InnerResponse, frame)) for second, frame in replication(version).to_client.frames()]


# --- the decoder -----------------------------------------------------------------------------------------------------


@both
def test_every_message_is_what_the_transcript_says(version: str) -> None:
    told: dict[str, list[tuple[int, str]]] = {"C->S": [], "S->C": []}
    for line in (FIXTURES / f"real-slave-{version}-decoded.txt").read_text().splitlines():
        if found := DECODED.match(line):
            direction, length, text = found.groups()
            told[direction].append((int(length), text))
    conversation = replication(version)
    for direction, frames, kind in (
        ("C->S", conversation.to_server.frames(), pb.InnerRequest),
        ("S->C", conversation.to_client.frames(), pb.InnerResponse),
    ):
        ours = [(len(frame), str(parse(kind, frame)).replace("\n", " ")) for _, frame in frames]
        assert told[direction]
        assert ours[: len(told[direction])] == told[direction]


@both
def test_every_message_is_encoded_again_as_it_was(version: str) -> None:
    conversation = replication(version)
    for direction, kind in ((conversation.to_server, pb.InnerRequest), (conversation.to_client, pb.InnerResponse)):
        stream = b"".join(data for _, data in direction.pieces)
        assert b"".join(encode_frame(parse(kind, frame)) for _, frame in direction.frames()) == stream


@both
def test_live_writes_are_items_that_chain(version: str) -> None:
    entries = [e for _, r in responses_of(version) for e in r.binlog_sync if e.binlog]
    names: list[bytes] = []
    end: Position | None = None
    for entry in entries:
        item = decode_item(entry.binlog)
        assert end is None or item.start == end
        end = Position(entry.binlog_offset.filenum, entry.binlog_offset.offset)
        assert item.logic_id == entry.binlog_offset.index
        names.append(parse_command(item.content)[0].lower())
    assert names[-1] == b"pksetexat"
    assert len(names) == 3


@both
def test_rsync_requests_are_within_what_a_master_bears(version: str) -> None:
    requests = [parse(rsync_pb.RsyncRequest, frame) for c in rsync(version) for _, frame in c.to_server.frames()]
    assert {request.db_name for request in requests} == {"db0", "db1"}
    assert all(0 <= request.reader_index <= 3 and request.file_req.count <= 4 << 20 for request in requests)


@both
def test_rsync_replies_before_the_first_cut_are_understood(version: str) -> None:
    replies = [parse(rsync_pb.RsyncResponse, frame) for c in rsync(version) for _, frame in c.to_client.frames()]
    metas = [reply for reply in replies if reply.type == rsync_pb.kRsyncMeta and reply.code == rsync_pb.kOk]
    assert metas
    assert any("info" in meta.meta_resp.filenames for meta in metas)


# --- the client ------------------------------------------------------------------------------------------------------


class Replay:
    """Our sessions, given a real master's responses; dumps are where the real slave found them."""

    def __init__(self, version: str) -> None:
        recorded = requests_of(version)
        node = recorded[0][1].meta_sync.node
        self.requests = Requests(ClientNode(node.ip, node.port))
        self.dump_positions = {
            request.try_sync.slot.db_name: _position(request.try_sync.binlog_offset)
            for _, request in recorded
            if request.type == pb.kTrySync
        }
        self.sent: dict[str, list[pb.InnerRequest]] = {}
        self.sessions: dict[str, Session] = {}
        self.received: list[bytes] = []

    def begin(self, db: str) -> None:
        self.sent[db] = []
        self.sessions[db] = Session(db, self.requests, SessionSettings())
        self._carry_out(db, self.sessions[db].begin(FullSync(), 0.0))

    def give(self, response: pb.InnerResponse, second: float) -> None:
        match response.type:
            case pb.kMetaSync:
                for info in response.meta_sync.dbs_info:
                    self.begin(info.db_name)
            case pb.kDBSync:
                db = response.db_sync.slot.db_name
                self._carry_out(db, self.sessions[db].db_sync_reply(response, second))
            case pb.kTrySync:
                db = response.try_sync.slot.db_name
                self._carry_out(db, self.sessions[db].try_sync_reply(response, second))
            case pb.kBinlogSync:
                db = response.binlog_sync[0].slot.db_name
                received, effects = self.sessions[db].binlog(response.binlog_sync, second)
                self._carry_out(db, effects)
                if received is not None:
                    self.received += [data for _, data in received.items]
                    self._carry_out(db, self.sessions[db].durable(received, second))
            case _:
                raise AssertionError(response)

    def _carry_out(self, db: str, effects: list[Effect]) -> None:
        session = self.sessions[db]
        for effect in effects:
            match effect:
                case Send(request):
                    self.sent[db].append(request)
                case Fetch():
                    self._carry_out(db, session.dump_begins(self.dump_positions[db], 0.0))
                case Rebase("dump", position):
                    self._carry_out(db, session.rebased(position, 0.0))
                case Flows():
                    pass
                case _:
                    raise AssertionError(effect)


@both
def test_our_client_says_byte_for_byte_what_the_real_slave_said(version: str) -> None:
    """To the same responses. (A real slave also puts numbers of its own into the index of acknowledgements, which a
    master does not look at; ours are 0.)"""
    replay = Replay(version)
    for second, response in responses_of(version):
        replay.give(response, second)
    recorded: dict[str, list[pb.InnerRequest]] = {db: [] for db in replay.sent}
    for _, request in requests_of(version):
        if request.type != pb.kMetaSync:
            recorded[_db(request)].append(_without_index(request))
    last = replay.requests.meta_sync("")
    assert encode_frame(last) == encode_frame(requests_of(version)[0][1])
    for db, ours in replay.sent.items():
        said = [encode_frame(request) for request in recorded[db]]
        assert [encode_frame(request) for request in ours][: len(said)] == said
        assert len(ours) - len(said) <= 1  # the recording may end between a keepalive and its answer
    assert len(replay.received) == 3


def _db(request: pb.InnerRequest) -> str:
    match request.type:
        case pb.kDBSync:
            return request.db_sync.slot.db_name
        case pb.kTrySync:
            return request.try_sync.slot.db_name
        case _:
            return request.binlog_sync.db_name


def _without_index(request: pb.InnerRequest) -> pb.InnerRequest:
    copy = pb.InnerRequest()
    copy.CopyFrom(request)
    if copy.type == pb.kBinlogSync:
        copy.binlog_sync.ack_range_start.index = copy.binlog_sync.ack_range_end.index = 0
    return copy


def _position(offset: pb.BinlogOffset) -> Position:
    return Position(offset.filenum, offset.offset)


def test_keepalives_of_a_real_master_are_empty_items_at_zero() -> None:
    for version in VERSIONS:
        empty = [e for _, r in responses_of(version) for e in r.binlog_sync if not e.binlog]
        assert empty
        assert all(_position(entry.binlog_offset) == ZERO for entry in empty)
