"""Every request that goes to a master's replication port, built in one place, as real slaves build it.

What a master cannot bear (a database it does not have, in DBSync or RemoveSlaveNode: it would crash) is kept away by
`session.py`, which only exists for databases out of the master's own MetaSync answer.
"""

from dataclasses import dataclass

from tidelog.pikiwi.position import ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb

SLOT_ID = 0  # slots were never released


@dataclass(frozen=True, slots=True)
class ClientNode:
    """What we claim to be: our name on the master, unique among its slaves and clients. Nothing connects to it."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.port}"


class Requests:
    """Builds requests of one client."""

    def __init__(self, node: ClientNode) -> None:
        self._node = pb.Node(ip=node.ip, port=node.port)

    def meta_sync(self, password: str) -> pb.InnerRequest:
        content = pb.InnerRequest.MetaSync(node=self._node)
        if password:
            content.auth = password
        return pb.InnerRequest(type=pb.kMetaSync, meta_sync=content)

    def try_sync(self, db: str, position: Position) -> pb.InnerRequest:
        """Go on after `position`, the end of the last item that we have."""
        content = pb.InnerRequest.TrySync(node=self._node, slot=_slot(db), binlog_offset=_short(position))
        return pb.InnerRequest(type=pb.kTrySync, try_sync=content)

    def db_sync(self, db: str, position: Position) -> pb.InnerRequest:
        """Make a dump (or serve the one there is)."""
        content = pb.InnerRequest.DBSync(node=self._node, slot=_slot(db), binlog_offset=_short(position))
        return pb.InnerRequest(type=pb.kDBSync, db_sync=content)

    def begin_stream(self, db: str, position: Position, session_id: int) -> pb.InnerRequest:
        """Begin to send after `position`; the one BinlogSync with first_send, whose two ends must be equal."""
        return self._binlog_sync(db, position, position, session_id, first_send=True)

    def acknowledge(self, db: str, first: Position, last: Position, session_id: int) -> pb.InnerRequest:
        """Everything from the item that ends at `first` to the one that ends at `last` is durable here."""
        assert ZERO < first <= last
        return self._binlog_sync(db, first, last, session_id, first_send=False)

    def ping(self, db: str, session_id: int) -> pb.InnerRequest:
        return self._binlog_sync(db, ZERO, ZERO, session_id, first_send=False)

    def remove(self, db: str) -> pb.InnerRequest:
        """Forget us for this database."""
        content = pb.InnerRequest.RemoveSlaveNode(node=self._node, slot=_slot(db))
        return pb.InnerRequest(type=pb.kRemoveSlaveNode, remove_slave_node=[content])

    def _binlog_sync(
        self, db: str, first: Position, last: Position, session_id: int, *, first_send: bool
    ) -> pb.InnerRequest:
        content = pb.InnerRequest.BinlogSync(
            node=self._node,
            db_name=db,
            slot_id=SLOT_ID,
            ack_range_start=pb.BinlogOffset(filenum=first.filenum, offset=first.offset, term=0, index=0),
            ack_range_end=pb.BinlogOffset(filenum=last.filenum, offset=last.offset, term=0, index=0),
            session_id=session_id,
            first_send=first_send,
        )
        return pb.InnerRequest(type=pb.kBinlogSync, binlog_sync=content)


def _slot(db: str) -> pb.Slot:
    return pb.Slot(db_name=db, slot_id=SLOT_ID)


def _short(position: Position) -> pb.BinlogOffset:
    return pb.BinlogOffset(filenum=position.filenum, offset=position.offset)
