"""The test master's side of the replication protocol, without sockets: what a real 3.5 or 4.x master does.

`Replication` is given requests of connections and the passing of time (`tick`), and writes to connections. Sessions,
window and acknowledgements, keepalives, the 20 s rule, purging and the ways to make a real master crash are all here;
numbers are those of a real master, in `MasterSettings`. A request that would have crashed the master is noted in
`crashes` and ends every connection; fixtures fail the test then.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from tests.pikiwi.master_binlog import Binlog, resp
from tests.pikiwi.master_dumps import Dumps
from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb

_Reply = pb.InnerResponse.TrySync.ReplyCode


@dataclass(frozen=True)
class MasterSettings:
    version: Literal["3.5", "4.0"] = "4.0"
    dbs: tuple[str, ...] = ("db0",)
    password: str = ""
    replication_id: str = "lineage-1".ljust(50, "0")
    window_items: int = 9000
    unacknowledged_bytes_max: int = 1 << 30
    items_per_message: int = 100
    messages_per_turn: int = 40
    keepalive_s: float = 2.0
    silence_s: float = 20.0
    purge_interval_s: float = 5.0
    expire_logs_nums: int = 10
    binlog_file_bytes: int = 100 << 20
    bgsave_s: float = 0.0
    exec_time_s: int = 1_794_770_500


class Connection(Protocol):
    def send(self, response: pb.InnerResponse) -> None: ...
    def close(self) -> None: ...


Slave = tuple[str, int]


@dataclass
class Registration:
    """One slave's session for one database."""

    session_id: int
    connection: Connection
    heard_s: float
    sent_s: float
    state: Literal["tried", "dumping", "streaming"] = "tried"
    reader: Position = ZERO
    window: deque[tuple[Position, int]] = field(default_factory=deque)  # sent, not yet settled: end, bytes
    acknowledged: set[Position] = field(default_factory=set)  # of the window
    acknowledged_to: Position = ZERO
    window_bytes: int = 0


class Replication:
    def __init__(
        self,
        settings: MasterSettings,
        clock: Callable[[], float],
        dumps: Dumps,
        binlogs: dict[str, Binlog] | None = None,
    ) -> None:
        self.settings = settings
        self.dumps = dumps
        self.binlogs = binlogs or {db: Binlog(settings.binlog_file_bytes) for db in settings.dbs}
        self.crashes: list[str] = []
        self.closed: list[str] = []  # why connections were closed by the master
        self.acknowledgements: list[tuple[str, Position, Position]] = []
        self.requests: list[pb.InnerRequest] = []
        self._clock = clock
        self._connections: set[Connection] = set()
        self._owner: dict[Slave, Connection] = {}  # by MetaSync
        self._registrations: dict[tuple[Slave, str], Registration] = {}
        self._next_session_id = dict.fromkeys(settings.dbs, 0)
        self._purged_s = clock()

    # --- writes --------------------------------------------------------------------------------------------------

    def execute(self, db: str, *arguments: bytes) -> Position:
        """A write command of a user."""
        self.dumps.keyspace.apply(db, arguments)
        return self.binlogs[db].append(resp(*arguments), self.settings.exec_time_s)

    # --- connections ---------------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        self._connections.add(connection)

    def disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        for slave in [slave for slave, owner in self._owner.items() if owner is connection]:
            del self._owner[slave]
            for db in self.settings.dbs:
                self._registrations.pop((slave, db), None)

    def registration(self, db: str = "db0") -> Registration | None:
        """The only one of that database."""
        return next((r for (_, name), r in self._registrations.items() if name == db), None)

    def handle(self, connection: Connection, request: pb.InnerRequest) -> None:
        self.requests.append(request)
        match request.type:
            case pb.kMetaSync:
                self._meta_sync(connection, request.meta_sync)
            case pb.kTrySync:
                self._try_sync(connection, request.try_sync)
            case pb.kDBSync:
                self._db_sync(connection, request.db_sync)
            case pb.kBinlogSync:
                self._binlog_sync(connection, request.binlog_sync)
            case pb.kRemoveSlaveNode:
                self._remove(connection, request.remove_slave_node[0])
            case _:
                self._close(connection, f"request of type {request.type}")

    def crash(self, why: str) -> None:
        """A real master would be gone."""
        self.crashes.append(why)
        for connection in list(self._connections):
            self._close(connection, f"crash: {why}")

    # --- requests ------------------------------------------------------------------------------------------------

    def _meta_sync(self, connection: Connection, request: pb.InnerRequest.MetaSync) -> None:
        slave = (request.node.ip, request.node.port)
        response = pb.InnerResponse(type=pb.kMetaSync, code=pb.kOk)
        if self.settings.password and request.auth != self.settings.password:
            response.code = pb.kError
            response.reply = "Auth with master error, Invalid masterauth"
        elif slave in self._owner:
            self._owner[slave] = connection  # real: the newcomer is refused and takes the connection's place
            response.code = pb.kOther
            response.reply = "Slave AlreadyExist"
        else:
            self._owner[slave] = connection
            meta = response.meta_sync
            meta.classic_mode = True
            meta.run_id = "r" * 40
            meta.replication_id = self.settings.replication_id
            for db in self.settings.dbs:
                info = meta.dbs_info.add(db_name=db, slot_num=1)
                if self.settings.version != "3.5":
                    info.db_instance_num = 3
        connection.send(response)

    def _try_sync(self, connection: Connection, request: pb.InnerRequest.TrySync) -> None:
        db = request.slot.db_name
        response = pb.InnerResponse(type=pb.kTrySync, code=pb.kOk)
        reply = response.try_sync
        reply.slot.CopyFrom(request.slot)
        binlog = self.binlogs.get(db)
        if binlog is None:
            response.code = pb.kError
            response.reply = "DB not found"
            reply.reply_code = _Reply.kError
            connection.send(response)
            return
        asked = _position(request.binlog_offset)
        reply.binlog_offset.CopyFrom(_offset(binlog.end))
        if asked > binlog.end and asked != Position(binlog.end.filenum + 1, 0):
            reply.reply_code = _Reply.kSyncPointLarger
        elif asked.filenum not in binlog.files and asked.filenum <= binlog.end.filenum:
            reply.reply_code = _Reply.kSyncPointBePurged
        elif asked.filenum in binlog.files and not binlog.is_boundary(asked):
            reply.reply_code = _Reply.kError
        else:
            registration = self._register(connection, request.node, db)
            reply.reply_code = _Reply.kOk
            reply.session_id = registration.session_id
        connection.send(response)

    def _db_sync(self, connection: Connection, request: pb.InnerRequest.DBSync) -> None:
        db = request.slot.db_name
        if db not in self.binlogs:
            self.crash(f"DBSync for the unknown database {db}")
            return
        registration = self._register(connection, request.node, db)
        registration.state = "dumping"
        binlog = self.binlogs[db]
        if not self.dumps.usable(db, _position(request.binlog_offset), binlog.first_filenum):
            self.dumps.save(db, binlog.end, self._clock() + self.settings.bgsave_s)
        response = pb.InnerResponse(type=pb.kDBSync, code=pb.kOk)
        response.db_sync.slot.CopyFrom(request.slot)
        response.db_sync.session_id = registration.session_id
        connection.send(response)

    def _binlog_sync(self, connection: Connection, request: pb.InnerRequest.BinlogSync) -> None:
        registration = self._registrations.get(((request.node.ip, request.node.port), request.db_name))
        if registration is None or registration.session_id != request.session_id:
            return  # logged by a real master, and nothing else
        registration.heard_s = self._clock()
        first, last = _position(request.ack_range_start), _position(request.ack_range_end)
        if request.first_send:
            if first != last:
                self._close(connection, "first_send with two positions")
                return
            registration.state = "streaming"
            registration.reader = registration.acknowledged_to = first
            registration.window.clear()
            registration.acknowledged.clear()
            registration.window_bytes = 0
        elif (first, last) == (ZERO, ZERO):
            return
        elif not self._acknowledge(registration, first, last):
            self._close(connection, f"{first}..{last} not found in binlog controller window")
            return
        else:
            self.acknowledgements.append((request.db_name, first, last))
        self._send_more(request.db_name, registration)

    def _remove(self, connection: Connection, request: pb.InnerRequest.RemoveSlaveNode) -> None:
        db = request.slot.db_name
        if db not in self.binlogs:
            self.crash(f"RemoveSlaveNode for the unknown database {db}")
            return
        self._registrations.pop(((request.node.ip, request.node.port), db), None)
        response = pb.InnerResponse(type=pb.kRemoveSlaveNode, code=pb.kOk)
        response.remove_slave_node.add(node=pb.Node(ip="127.0.0.1", port=9221), slot=request.slot)
        connection.send(response)

    def _register(self, connection: Connection, node: pb.Node, db: str) -> Registration:
        """The same session while the registration lives."""
        key = ((node.ip, node.port), db)
        registration = self._registrations.get(key)
        now_s = self._clock()
        if registration is None:
            registration = Registration(self._next_session_id[db], connection, now_s, now_s)
            self._next_session_id[db] += 1
            self._registrations[key] = registration
        registration.connection = connection
        registration.heard_s = now_s
        return registration

    # --- the flow ------------------------------------------------------------------------------------------------

    def _acknowledge(self, registration: Registration, first: Position, last: Position) -> bool:
        window = registration.window
        ends = [end for end, _ in window]
        if first not in ends or last not in ends:
            return False
        registration.acknowledged.update(ends[ends.index(first) : ends.index(last) + 1])
        while window and window[0][0] in registration.acknowledged:
            end, size = window.popleft()
            registration.acknowledged.discard(end)
            registration.acknowledged_to = end
            registration.window_bytes -= size
        return True

    def _send_more(self, db: str, registration: Registration) -> None:
        settings = self.settings
        for _ in range(settings.messages_per_turn):
            room = settings.window_items - len(registration.window)
            if room <= 0 or registration.window_bytes >= settings.unacknowledged_bytes_max:
                return
            binlog = self.binlogs[db]
            if registration.reader.filenum in binlog.files and binlog.meets_padding(registration.reader):
                self._close(registration.connection, "the reader met padding")
                return
            items = binlog.after(registration.reader, min(room, settings.items_per_message))
            if not items:
                return
            self._send_items(db, registration, items)

    def _send_items(self, db: str, registration: Registration, items: list[tuple[Position, bytes]]) -> None:
        response = pb.InnerResponse(type=pb.kBinlogSync, code=pb.kOk)
        slot = pb.Slot(db_name=db, slot_id=0)
        for end, data in items:
            offset = pb.BinlogOffset(filenum=end.filenum, offset=end.offset, term=0, index=0)
            response.binlog_sync.add(
                slot=slot, binlog_offset=offset, binlog=data, session_id=registration.session_id
            )  # fmt: skip
            registration.window.append((end, len(data)))
            registration.window_bytes += len(data)
        registration.reader = items[-1][0]
        registration.sent_s = self._clock()
        registration.connection.send(response)

    def tick(self) -> None:
        """Every 100 ms on a real master."""
        now_s = self._clock()
        for (slave, db), registration in list(self._registrations.items()):
            if now_s - registration.heard_s > self.settings.silence_s:
                del self._registrations[slave, db]  # without a word
                continue
            if registration.state != "streaming" or registration.window:
                continue
            self._send_more(db, registration)
            if now_s - registration.sent_s >= self.settings.keepalive_s:
                registration.sent_s = now_s
                response = pb.InnerResponse(type=pb.kBinlogSync, code=pb.kOk)
                response.binlog_sync.add(
                    slot=pb.Slot(db_name=db, slot_id=0),
                    binlog_offset=pb.BinlogOffset(filenum=0, offset=0, term=0, index=0),
                    binlog=b"",
                    session_id=registration.session_id,
                )
                registration.connection.send(response)
        if now_s - self._purged_s >= self.settings.purge_interval_s:
            self.purge()

    def purge(self) -> None:
        self._purged_s = self._clock()
        for db, binlog in self.binlogs.items():
            pins = [
                0 if registration.state == "dumping" else registration.acknowledged_to.filenum
                for (_, name), registration in self._registrations.items()
                if name == db and registration.state != "tried"
            ]
            binlog.purge(self.settings.expire_logs_nums, min(pins, default=None))

    def _close(self, connection: Connection, why: str) -> None:
        self.closed.append(why)
        self.disconnected(connection)
        connection.close()


def _position(offset: pb.BinlogOffset) -> Position:
    return Position(offset.filenum, offset.offset)


def _offset(position: Position) -> pb.BinlogOffset:
    return pb.BinlogOffset(filenum=position.filenum, offset=position.offset)
