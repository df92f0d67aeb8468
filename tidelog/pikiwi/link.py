"""One connection to a master's replication port, with the sessions of all databases on it.

The link moves bytes and time: frames in and out, MetaSync, each response to the session that it is for, each effect to
whoever carries it out, a tick now and then (`tick_s`). What to say is decided in `session.py`.

    link = await Link.open(…)          connected
    meta = await link.meta_sync(…)     registered, under our name
    link.begin(session, start)         for each database
    await link.ended()                 raises what ended it

Whatever goes wrong ends the link once, with one error: the master closed, fell silent or does not read, or sent what a
session does not accept. Bounds: one message of `message_bytes_max` being received; `unsent_bytes_max` of requests that
the master has not taken; reading stops while `pause_reading` is in force, so what is not durable is bounded by its
owner.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from tidelog.pikiwi.errors import LinkError, PikiwiError, ProtocolError, SourceError
from tidelog.pikiwi.protocol import FrameDecoder, check_complete, encode_frame, parse_unchecked
from tidelog.pikiwi.protocol import inner_message_pb2 as pb
from tidelog.pikiwi.protocol.requests import Requests
from tidelog.pikiwi.session import Effect, Received, Send, Session, Start

DATABASE_NAME = re.compile(r"db\d{1,3}")


class AlreadyRegistered(SourceError):
    """Our name is taken on the master: by our own last connection, for some seconds, or by somebody else."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    connect_s_max: float = 5.0
    reply_s_max: float = 10.0
    goodbye_s_max: float = 1.0
    tick_s: float = 0.5
    message_bytes_max: int = 512 << 20  # the largest `max-conn-rbuf-size` that a master can be given
    unsent_bytes_max: int = 4 << 20


@dataclass(frozen=True, slots=True)
class Meta:
    """What a master says about itself."""

    databases: tuple[str, ...]
    run_id: str
    replication_id: str  # empty: 3.5.0, which has none


class Owner(Protocol):
    """Who uses a link. Called on the event loop, must not block; what it raises ends the link."""

    def received(self, session: Session, received: Received) -> None: ...
    def keepalive(self, session: Session) -> None: ...
    def effect(self, session: Session, effect: Effect) -> None:
        """All but `Send`."""
        ...


class Link(asyncio.Protocol):
    def __init__(self, owner: Owner, requests: Requests, settings: LinkSettings, clock: Callable[[], float]) -> None:
        self._owner = owner
        self._requests = requests
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(settings.message_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._sessions: dict[str, Session] = {}
        self._meta: asyncio.Future[pb.InnerResponse] = self._loop.create_future()
        self._ended: asyncio.Future[PikiwiError] = self._loop.create_future()
        self._removals = 0  # RemoveSlaveNode without a reply yet
        self._removed = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self.reading = True

    # --- its life ------------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls, host: str, port: int, owner: Owner, requests: Requests, settings: LinkSettings, clock: Callable[[], float]
    ) -> "Link":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(settings.connect_s_max):
                _, link = await loop.create_connection(lambda: cls(owner, requests, settings, clock), host, port)
        except TimeoutError:
            raise LinkError(f"cannot connect to {host}:{port} within {settings.connect_s_max:g} s") from None
        except OSError as error:
            raise LinkError(f"cannot connect to {host}:{port}: {error.strerror or error}") from None
        return link

    async def meta_sync(self, password: str) -> Meta:
        """Register under our name; what the master is."""
        self._send([self._requests.meta_sync(password)])
        try:
            async with asyncio.timeout(self._settings.reply_s_max):
                await asyncio.wait((self._meta, self._ended), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise LinkError(f"no reply to MetaSync within {self._settings.reply_s_max:g} s") from None
        if not self._meta.done():
            raise self._ended.result()
        return _meta(self._meta.result())

    def begin(self, session: Session, start: Start) -> None:
        assert session.db not in self._sessions
        self._sessions[session.db] = session
        self.carry_out(session, session.begin(start, self._clock()))

    async def ended(self) -> None:
        """Waits for the end, and raises what it was."""
        raise await asyncio.shield(self._ended)

    async def leave(self) -> None:
        """Tell the master that we go, wait shortly for its word, and close."""
        effects = [effect for session in self._sessions.values() for effect in session.close()]
        farewells = [effect.request for effect in effects if isinstance(effect, Send)]
        if farewells and not self._ended.done():
            self._removals = len(farewells)
            self._send(farewells)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.goodbye_s_max):
                    await self._removed.wait()
        self.close()

    def close(self) -> None:
        """At once; nothing that arrives later counts. Ends `ended` too."""
        self.fail(LinkError("closed by us"))

    def fail(self, error: PikiwiError) -> None:
        """The first error is the one."""
        if self._ended.done():
            return
        self._ended.set_result(error)
        self._removed.set()
        if self._ticker is not None:
            self._ticker.cancel()
        for session in self._sessions.values():
            session.close()
        if self._transport is not None:
            self._transport.abort()

    # --- reading -------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        if self.reading and self._transport is not None and not self._ended.done():
            self.reading = False
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.reading and self._transport is not None and not self._ended.done():
            self.reading = True
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._ticker = self._loop.call_later(self._settings.tick_s, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(LinkError(f"the connection to the master ended{f': {exc}' if exc else ''}"))

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        self._decoder.feed(data)
        try:
            for frame in self._decoder:
                response = parse_unchecked(pb.InnerResponse, frame)
                if response.type != pb.kBinlogSync:  # looking through every item would cost; the session does it better
                    check_complete(response, len(frame))
                self._dispatch(response)
                if self._ended.done():
                    return
        except PikiwiError as error:
            self.fail(error)

    def _dispatch(self, response: pb.InnerResponse) -> None:
        match response.type:
            case pb.kBinlogSync:
                self._binlog(response)
            case pb.kMetaSync:
                if self._meta.done():
                    raise ProtocolError("a second reply to MetaSync")
                self._meta.set_result(response)
            case pb.kTrySync:
                session = self._session(response, "TrySync", response.try_sync.slot.db_name)
                self.carry_out(session, session.try_sync_reply(response, self._clock()))
            case pb.kDBSync:
                session = self._session(response, "DBSync", response.db_sync.slot.db_name)
                self.carry_out(session, session.db_sync_reply(response, self._clock()))
            case pb.kRemoveSlaveNode:
                self._removals -= 1
                if self._removals <= 0:
                    self._removed.set()
            case _:
                raise ProtocolError(f"a response of type {response.type}, which nobody asked for")

    def _binlog(self, response: pb.InnerResponse) -> None:
        if response.code != pb.kOk:
            raise SourceError(f"the master refuses to send its binlog: {response.reply or 'no reason given'}")
        entries = response.binlog_sync
        if not entries:
            return
        # A master puts the items of one database into a message. One of another database would not chain.
        session = self._session(response, "BinlogSync", entries[0].slot.db_name)
        received, effects = session.binlog(entries, self._clock())
        if effects:
            self._owner.keepalive(session)
            self.carry_out(session, effects)
        if received is not None:
            self._owner.received(session, received)

    def _session(self, response: pb.InnerResponse, what: str, db: str) -> Session:
        session = self._sessions.get(db)
        if session is None:
            reason = f": {response.reply}" if response.reply else ""
            raise ProtocolError(f"{what} for database {db!r}, which we did not ask about{reason}")
        return session

    # --- writing -------------------------------------------------------------------------------------------------

    def carry_out(self, session: Session, effects: Sequence[Effect]) -> None:
        """Send what is to be sent, together; hand on the rest, in order."""
        if self._ended.done():
            return
        self._send([effect.request for effect in effects if isinstance(effect, Send)])
        for effect in effects:
            if not isinstance(effect, Send):
                self._owner.effect(session, effect)

    def _send(self, requests: Sequence[pb.InnerRequest]) -> None:
        if not requests or self._ended.done():
            return
        assert self._transport is not None
        self._transport.write(b"".join(map(encode_frame, requests)))
        if self._transport.get_write_buffer_size() > self._settings.unsent_bytes_max:
            self.fail(LinkError("the master does not read what we send"))

    # --- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(self._settings.tick_s, self._tick)
        now_s = self._clock()
        try:
            for session in self._sessions.values():
                self.carry_out(session, session.tick(now_s, reading=self.reading))
        except PikiwiError as error:
            self.fail(error)


def _meta(response: pb.InnerResponse) -> Meta:
    if response.code == pb.kOther:
        raise AlreadyRegistered(
            f"the master has a slave of our name already ({response.reply or 'no reason given'}): it forgets our own "
            "last connection within 20 s; if it does not, another client uses the same local_ip and local_port"
        )
    if response.code != pb.kOk:
        raise SourceError(f"the master refuses us: {response.reply or 'no reason given'}")
    if not response.HasField("meta_sync"):
        raise ProtocolError("a reply to MetaSync that says nothing")
    meta = response.meta_sync
    if not meta.classic_mode:
        raise SourceError("the master is not in classic mode; sharded masters are not supported")
    names = [info.db_name for info in meta.dbs_info]
    for name in names:  # they become names of folders
        if not DATABASE_NAME.fullmatch(name) or names.count(name) > 1:
            raise ProtocolError(f"the master has a database {name[:50]!r}; databases are called db0, db1 and so on")
    return Meta(tuple(names), meta.run_id, meta.replication_id)
