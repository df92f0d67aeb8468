"""One database's session with a master, as a state machine: what to send, and what the answers mean.

Everything that decides is in this file; nothing here opens a socket or a file, or reads a clock. A session lives as
long as its connection and only goes forward; after a disconnect a new one begins. It is made for a database of the
master's own list, because a master crashes on DBSync for one it does not know.

A method takes what happened and the time, and returns effects, in order. A driver carries them out:

| effect | the driver |
| --- | --- |
| Send | sends the request |
| Rebase | makes the WAL go on at another position, then calls `rebased` |
| Fetch | fetches the dump, calls `dump_begins` when its position is known |
| Flows | shows it: the stream was asked for |
| Pause | shows why; nothing more will come from this session |

Phases, and what leads from one to the next (anything else is a ProtocolError):

| phase | event | next | effects |
| --- | --- | --- | --- |
| NEW | begin(GoOn p) | TRYING p | TrySync p |
| | begin(FromEnd) | PROBING | TrySync beyond any end: the answer tells the end and registers nothing |
| | begin(FullSync p) | SAVING | DBSync p |
| PROBING | Larger, end e | REBASING | Rebase e |
| TRYING p | Ok, session | STREAMING | BinlogSync first_send p..p; Flows |
| | BePurged | by setting | full_sync: SAVING, DBSync p; start_from_master: REBASING, Rebase e; pause: PAUSED |
| | Larger, Error | | raises SyncPointError: asking again would find the same |
| SAVING | Ok, session | DUMPING | Fetch |
| DUMPING | dump_begins(d) | REBASING | Rebase d |
| REBASING | rebased(p) | TRYING p | TrySync p |
| STREAMING | items | STREAMING | (a `Received`; the driver makes it durable) |
| | durable(received) | STREAMING | BinlogSync first..last of that message |
| any | keepalive | same | ping |

From the moment a session id is known (DBSync or TrySync), a ping goes out whenever nothing else did for
`ping_interval_s`: a master forgets who is silent for 20 s, without a word, and then purges what we still need.

Acknowledgements. A master keeps a window of the items it sent and closes the connection when either end of a range is
not in it. So ranges are exactly those of received messages, first item's end to last item's end; each is sent once,
after it is durable, and only on the connection that it came from. A master sends more only after an acknowledgement.

Items must chain: each header names its start, which is the end of the item before. A hole, a repetition or a step back
ends the connection (BinlogGap) before anything of the message is kept; the next connection asks again from what is
durable.

Silence. A master that has nothing to send says so every 2 s, unless it waits for an acknowledgement. So silence counts
from the last word of either side, while nothing is unacknowledged and the connection is being read.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from tidelog.pikiwi.binlog import is_roll, start_of
from tidelog.pikiwi.errors import DumpError, LinkError, ProtocolError, SourceError, SyncPointError
from tidelog.pikiwi.position import FILENUM_MAX, ZERO, Position
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import Requests

BEYOND = Position(FILENUM_MAX, 0)  # past the end of any master

PurgedAction = Literal["full_sync", "start_from_master", "pause"]

_Reply = pb.InnerResponse.TrySync.ReplyCode
_new_position = tuple.__new__  # half the cost of calling the class; for the one loop that is hot


class BinlogGap(LinkError):
    """Items that do not go on where the last one ended."""


# --- what a session is told to begin with --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GoOn:
    """From the end of the last item that is durable here."""

    position: Position


@dataclass(frozen=True, slots=True)
class FromEnd:
    """From the master's end, whatever we have."""


@dataclass(frozen=True, slots=True)
class FullSync:
    """From a dump."""

    position: Position = ZERO  # what we have, for the master's choice of a dump


Start = GoOn | FromEnd | FullSync


# --- what a session wants done -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    request: pb.InnerRequest


@dataclass(frozen=True, slots=True)
class Rebase:
    """What comes next goes on at `position`, and not at the end of the WAL.

    `dump`: a dump stands for everything before it; `chosen`: a setting says so; `gap`: what is between is lost on the
    master, and what the WAL holds is still to be delivered.
    """

    kind: Literal["dump", "chosen", "gap"]
    position: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """The master makes a dump, or has one."""


@dataclass(frozen=True, slots=True)
class Flows:
    session_id: int
    position: Position
    master_end: Position | None


@dataclass(frozen=True, slots=True)
class Pause:
    reason: str


Effect = Send | Rebase | Fetch | Flows | Pause


class Received(NamedTuple):
    """The items of one message, in order, none durable yet."""

    items: list[tuple[Position, bytes]]  # end of the item, its bytes
    size_bytes: int

    @property
    def first(self) -> Position:
        return self.items[0][0]

    @property
    def last(self) -> Position:
        return self.items[-1][0]


@dataclass(frozen=True, slots=True)
class SessionSettings:
    purged_action: PurgedAction = "full_sync"
    ping_interval_s: float = 2.0  # a master forgets after 20 s; never above 5
    reply_s_max: float = 10.0
    silence_s_max: float = 20.0
    dump_wait_s_max: float = 1800.0

    def __post_init__(self) -> None:
        assert 0 < self.ping_interval_s <= 5


class Phase(Enum):
    NEW = "new"
    PROBING = "probing"
    TRYING = "trying"
    SAVING = "saving"
    DUMPING = "dumping"
    REBASING = "rebasing"
    STREAMING = "streaming"
    PAUSED = "paused"
    CLOSED = "closed"


class Session:
    """`end`: of the last item received, or where the flow begins. Items are accepted only while STREAMING."""

    def __init__(self, db: str, requests: Requests, settings: SessionSettings) -> None:
        self.db = db
        self.phase = Phase.NEW
        self.session_id: int | None = None
        self.end = ZERO
        self.master_end: Position | None = None
        self.unacknowledged = 0  # messages received and not acknowledged
        self.stale_items = 0  # of other sessions, left out
        self._requests = requests
        self._settings = settings
        self._phase_since_s = 0.0
        self._spoke_s = 0.0  # when we last sent what counts as a sign of life
        self._heard_s = 0.0  # last word of either side that a master answers
        self._full_sync = False

    # --- the way to the stream -----------------------------------------------------------------------------------

    def begin(self, start: Start, now_s: float) -> list[Effect]:
        self._expect(Phase.NEW, "begin")
        match start:
            case GoOn(position):
                return self._try(position, now_s)
            case FromEnd():
                self._enter(Phase.PROBING, now_s)
                return [Send(self._requests.try_sync(self.db, BEYOND))]
            case FullSync(position):
                return self._save(position, now_s)

    def try_sync_reply(self, response: pb.InnerResponse, now_s: float) -> list[Effect]:
        if self.phase not in (Phase.PROBING, Phase.TRYING):
            raise ProtocolError(f"{self.db}: a TrySync reply that nobody waits for ({self.phase.value})")
        reply = response.try_sync
        if response.code != pb.kOk:
            raise SourceError(f"{self.db}: the master refuses to synchronise: {response.reply or 'no reason given'}")
        if reply.HasField("binlog_offset"):
            self.master_end = _position(reply.binlog_offset)
        if self.phase is Phase.PROBING:
            return self._probed(reply, now_s)
        match reply.reply_code:
            case _Reply.kOk:
                return self._stream(reply, now_s)
            case _Reply.kSyncPointBePurged:
                return self._purged(now_s)
            case _Reply.kSyncPointLarger:
                raise SyncPointError(
                    f"{self.db}: our position {self.end} is beyond the master's end {self.master_end}: it was rebuilt "
                    "or lost data. Take a full sync (remove the checkpoint and the WAL) or set filenum and offset"
                )
            case _:
                raise SyncPointError(
                    f"{self.db}: our position {self.end} is no boundary of an item on this master (its end is "
                    f"{self.master_end}): it is a promoted slave or another lineage. Take a full sync (remove the "
                    "checkpoint and the WAL) or set filenum and offset"
                )

    def db_sync_reply(self, response: pb.InnerResponse, now_s: float) -> list[Effect]:
        self._expect(Phase.SAVING, "a DBSync reply")
        if response.code != pb.kOk:
            raise SourceError(f"{self.db}: the master refuses a full sync: {response.reply or 'no reason given'}")
        self.session_id = response.db_sync.session_id
        self._enter(Phase.DUMPING, now_s)
        return [Fetch()]

    def dump_begins(self, position: Position, now_s: float) -> list[Effect]:
        """The dump's own position is known; the rest of it is still being copied."""
        self._expect(Phase.DUMPING, "the dump's position")
        self._enter(Phase.REBASING, now_s)
        return [Rebase("dump", position, "full sync")]

    def rebased(self, position: Position, now_s: float) -> list[Effect]:
        """The WAL is ready to go on after `position`."""
        self._expect(Phase.REBASING, "a new start of the WAL")
        return self._try(position, now_s)

    # --- the stream ----------------------------------------------------------------------------------------------

    def binlog(
        self, entries: Iterable[pb.InnerResponse.BinlogSync], now_s: float
    ) -> tuple[Received | None, list[Effect]]:
        """One message's entries: its items, if any, and a ping when it was a keepalive. About 1.5 µs an item."""
        if self.phase in (Phase.PAUSED, Phase.CLOSED):
            return None, []
        self._heard_s = now_s
        items: list[tuple[Position, bytes]] = []
        size_bytes = 0
        keepalive = False
        session_id = self.session_id
        end = self.end
        for entry in entries:
            if entry.session_id != session_id:
                self.stale_items += 1
                continue
            data = entry.binlog
            at = entry.binlog_offset
            position = _new_position(Position, (at.filenum, at.offset))
            if not data:
                if position != ZERO:
                    raise ProtocolError(f"{self.db}: an item without content at {position}")
                keepalive = True
                continue
            start = start_of(data)
            if (start != end and not is_roll(end, start)) or position <= end:
                raise BinlogGap(
                    f"{self.db}: an item from {Position(*start)} to {position} does not go on at {end}; "
                    "asking again from what is durable"
                )
            items.append((position, data))
            size_bytes += len(data)
            end = position
        effects: list[Effect] = [self._ping(now_s)] if keepalive else []
        if not items:
            return None, effects
        if self.phase is not Phase.STREAMING:
            raise ProtocolError(f"{self.db}: items up to {end} before they were asked for ({self.phase.value})")
        self.end = end
        self.unacknowledged += 1
        return Received(items, size_bytes), effects

    def durable(self, received: Received, now_s: float) -> list[Effect]:
        """That message's items are on stable storage; called once for each, in order."""
        if self.phase is not Phase.STREAMING:
            return []
        assert self.session_id is not None
        self.unacknowledged -= 1
        assert self.unacknowledged >= 0
        self._spoke_s = self._heard_s = now_s
        return [Send(self._requests.acknowledge(self.db, received.first, received.last, self.session_id))]

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now_s: float, *, reading: bool = True) -> list[Effect]:
        """Called every second or more often. `reading`: false while the driver does not read from the connection."""
        if self.phase in (Phase.PAUSED, Phase.CLOSED):
            return []
        if not reading:
            self._heard_s = now_s
        self._check_waits(now_s)
        if self.session_id is not None and now_s - self._spoke_s >= self._settings.ping_interval_s:
            return [self._ping(now_s)]
        return []

    def _check_waits(self, now_s: float) -> None:
        waited_s = now_s - self._phase_since_s
        match self.phase:
            case Phase.PROBING | Phase.TRYING | Phase.SAVING:
                if min(waited_s, now_s - self._heard_s) > self._settings.reply_s_max:
                    raise LinkError(f"{self.db}: no reply from the master for {waited_s:.0f} s ({self.phase.value})")
            case Phase.DUMPING:
                if waited_s > self._settings.dump_wait_s_max:
                    raise DumpError(
                        f"{self.db}: the master has not made a dump in {waited_s:.0f} s (wait_bgsave_timeout); look at "
                        "its BGSAVE, or allow more time"
                    )
            case Phase.STREAMING:
                silent_s = now_s - self._heard_s
                if silent_s > self._settings.silence_s_max and not self.unacknowledged:
                    raise LinkError(f"{self.db}: the master has been silent for {silent_s:.0f} s")
            case _:
                pass

    def close(self) -> list[Effect]:
        """We leave: what was registered is taken back. Nothing that comes later counts."""
        registered = self.session_id is not None and self.phase is not Phase.CLOSED
        self.phase = Phase.CLOSED
        return [Send(self._requests.remove(self.db))] if registered else []

    # --- steps ---------------------------------------------------------------------------------------------------

    def _try(self, position: Position, now_s: float) -> list[Effect]:
        self.end = position
        self._enter(Phase.TRYING, now_s)
        return [Send(self._requests.try_sync(self.db, position))]

    def _save(self, position: Position, now_s: float) -> list[Effect]:
        self._full_sync = True
        self._enter(Phase.SAVING, now_s)
        return [Send(self._requests.db_sync(self.db, position))]

    def _probed(self, reply: pb.InnerResponse.TrySync, now_s: float) -> list[Effect]:
        if reply.reply_code != _Reply.kSyncPointLarger or self.master_end is None:
            raise ProtocolError(f"{self.db}: the master does not tell its end when asked beyond it")
        self._enter(Phase.REBASING, now_s)
        return [Rebase("chosen", self.master_end, "start_from_master is set")]

    def _stream(self, reply: pb.InnerResponse.TrySync, now_s: float) -> list[Effect]:
        if not reply.HasField("session_id"):
            raise ProtocolError(f"{self.db}: TrySync was accepted without a session")
        self.session_id = reply.session_id
        self._enter(Phase.STREAMING, now_s)
        self._spoke_s = now_s
        request = self._requests.begin_stream(self.db, self.end, self.session_id)
        return [Send(request), Flows(self.session_id, self.end, self.master_end)]

    def _purged(self, now_s: float) -> list[Effect]:
        why = f"{self.db}: the master has purged its binlog at {self.end} (its end is {self.master_end})"
        if self._full_sync:
            raise DumpError(f"{why}, where its own dump says to go on; its expire-logs-nums is too small")
        match self._settings.purged_action:
            case "full_sync":
                return self._save(self.end, now_s)
            case "start_from_master":
                if self.master_end is None:
                    raise ProtocolError(f"{why} and does not say where it ends")
                self._enter(Phase.REBASING, now_s)
                return [Rebase("gap", self.master_end, f"{why}; sync_point_purged_action=start_from_master")]
            case "pause":
                self._enter(Phase.PAUSED, now_s)
                return [Pause(f"{why}. Set sync_point_purged_action, or filenum and offset, and start again")]

    def _ping(self, now_s: float) -> Send:
        assert self.session_id is not None
        self._spoke_s = now_s
        return Send(self._requests.ping(self.db, self.session_id))

    def _enter(self, phase: Phase, now_s: float) -> None:
        self.phase = phase
        self._phase_since_s = self._heard_s = now_s

    def _expect(self, phase: Phase, what: str) -> None:
        if self.phase is not phase:
            raise ProtocolError(f"{self.db}: {what} while {self.phase.value}; expected only while {phase.value}")


def _position(offset: pb.BinlogOffset) -> Position:
    return Position(offset.filenum, offset.offset)
