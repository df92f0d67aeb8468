"""The receiver: keeps a connection to the master, the WALs behind it, and the books.

    Receiver.run ── connect, MetaSync, lineage ──▶ a session a database ──▶ Intake ──▶ WAL, then acknowledgement
         ▲                                          │
         └───── again, with back-off ◀──────────────┘ whatever ends the connection

Invariants:

* an acknowledgement leaves after the sync of what it covers has returned, never before;
* before a new connection begins, everything received is durable, so it goes on exactly there;
* an error that trying again cannot cure ends `run`, with a message and an exit status; what may pass is tried again,
  within the bounds of `reconnect.py`, and a failed full sync `FULL_SYNC_TRIES_MAX` times.

Everything here runs on one event loop and decides little: what to say to the master is in `session.py`, where to begin
in `start.py`, when to try again in `reconnect.py`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from itertools import groupby
from typing import Any

from tidelog import faults
from tidelog.pikiwi.binlog import exec_time_of, start_of
from tidelog.pikiwi.books import Books
from tidelog.pikiwi.checkpoint import CheckpointFile
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.database import Database
from tidelog.pikiwi.dump.info import DumpInfo
from tidelog.pikiwi.dump.rsync import FetchLimits
from tidelog.pikiwi.errors import (
    ConfigError,
    DumpError,
    LineageChanged,
    LinkError,
    PikiwiError,
    SourceError,
)
from tidelog.pikiwi.intake import Intake, IntakeSettings, Message
from tidelog.pikiwi.link import Link, LinkSettings, Meta
from tidelog.pikiwi.progress import Progress
from tidelog.pikiwi.protocol import REPLICATION_PORT_DISTANCE
from tidelog.pikiwi.protocol.requests import ClientNode, Requests
from tidelog.pikiwi.reconnect import Reconnects, ReconnectSettings
from tidelog.pikiwi.session import (
    Effect,
    Fetch,
    Flows,
    GoOn,
    Pause,
    Phase,
    Rebase,
    Received,
    Send,
    Session,
    SessionSettings,
)
from tidelog.pikiwi.start import start_setting
from tidelog.pikiwi.wal import open_wal
from tidelog.pikiwi.wal.readers import ReaderLimits, Readers

FULL_SYNC_TRIES_MAX = 3
COLLECT_AFTER = (50_000, 20, 100)
"""Thresholds of Python's collector for a process that receives: every item makes tuples, none of them in a cycle, and
at the usual thresholds looking through them takes a quarter of all CPU time."""
WARN_INTERVAL_S = 60.0

_log = logging.getLogger(__name__)


class Receiver:
    def __init__(
        self,
        config: Config,
        *,
        progress: Progress | None = None,
        clock: Callable[[], float] = time.monotonic,
        link_settings: LinkSettings | None = None,
        session_settings: SessionSettings | None = None,
        intake_settings: IntakeSettings | None = None,
        reconnect_settings: ReconnectSettings | None = None,
        fetch_limits: FetchLimits | None = None,
    ) -> None:
        self.config = config
        self.progress = progress or Progress(config.source)
        self.databases: dict[str, Database] = {}
        self._fetch_limits = fetch_limits or FetchLimits(ready_s=config.wait_bgsave_timeout)
        self._clock = clock
        self._link_settings = link_settings or LinkSettings()
        self._session_settings = session_settings or SessionSettings(
            purged_action=config.sync_point_purged_action,
            silence_s_max=config.pb_idle_timeout,
            dump_wait_s_max=config.wait_bgsave_timeout,
        )
        self._intake_settings = intake_settings or IntakeSettings()
        self._reconnects = Reconnects(reconnect_settings or ReconnectSettings())
        self._requests = Requests(ClientNode(config.local_ip, config.registered_port))
        self._stopping = asyncio.Event()
        self._link: Link | None = None
        self._intake: Intake
        self._books: Books
        self._full_sync_failures = 0
        self._durable_count = 0  # messages, since the start
        self._steps: set[asyncio.Task[None]] = set()
        self._failure: PikiwiError | None = None  # of something beside the link while there was none
        self._paused = asyncio.Event()
        self._closing = asyncio.Event()
        self._warned_s = -WARN_INTERVAL_S
        self._intake_full = False
        self._wal_full = False  # `wal_bytes_max` is reached

    def stop(self) -> None:
        """`run` acknowledges what is durable, says goodbye to the master, and returns."""
        self._stopping.set()

    # --- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until `stop`; raises a PikiwiError when it cannot go on."""
        first = self.config.databases[0] if self.config.databases else "db0"
        self._intake = Intake(self, self._intake_settings)
        config = self.config
        readers = Readers(
            config.checkpoint_path, ReaderLimits(config.wal_reader_bytes_max, config.wal_reader_hours_max)
        )
        checkpoint = CheckpointFile(config.checkpoint_path, config.source, first)
        self._books = Books(checkpoint, self._intake, readers, config.wal_bytes_max)
        keeper = asyncio.create_task(self._keep_books())
        keeper.add_done_callback(self._keeper_ended)
        try:
            while not self._stopping.is_set():
                delay_s = await self._one_connection()
                if keeper.done():  # its failure may have come when the link had ended already
                    raise _as_pikiwi_error(keeper.exception())
                await self._wait(self._stopping, delay_s)
        finally:
            self.progress.link("stopping")
            self._closing.set()
            await asyncio.gather(keeper, return_exceptions=True)
            await self._close()
            self.progress.link("stopped")

    async def _one_connection(self) -> float:
        """Connects and stays until it ends; seconds to wait before the next time."""
        begin_s = self._clock()
        before = self._durable_count
        try:
            await self._connect_and_stay()
        except PikiwiError as error:
            reached = self._link is not None
            self.progress.lost(str(error))  # first: hanging up waits for the disk
            await self._hang_up()
            cause = self._dump_failed(error) if isinstance(error, DumpError) else error
            delay_s = self._reconnects.after(
                cause, reached=reached, fruitful=self._durable_count > before, lasted_s=self._clock() - begin_s
            )
            _log.warning("%s: %s; next try in %.1f s", self.config.source, error, delay_s)
            return delay_s
        finally:
            await self._hang_up()
        return 0.0

    async def _connect_and_stay(self) -> None:
        config = self.config
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        self._paused.clear()
        self.progress.link("connecting")
        port = config.master_port + REPLICATION_PORT_DISTANCE
        link = await Link.open(config.master_ip, port, self, self._requests, self._link_settings, self._clock)
        try:
            self.progress.link("handshake")
            meta = await link.meta_sync(config.passwd)
            self._link = link
            await self._open_databases(meta)
            await self._check_lineage(meta)
            await self._intake.settled()
            for database in self.databases.values():
                await self._begin(link, database)
            await self._unless_it_ends(link, self._step(self._write_books()))
            self.progress.link("connected")
            self._govern_reading()
            await self._stay(link)
        finally:
            link.close()

    async def _stay(self, link: Link) -> None:
        """Until the link ends (raises) or the receiver is told to stop."""
        ended = asyncio.ensure_future(link.ended())
        stopping = asyncio.ensure_future(self._stopping.wait())
        paused = asyncio.ensure_future(self._paused.wait())
        try:
            await asyncio.wait((ended, stopping, paused), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
            link.pause_reading()
            await self._intake.settled()  # and so acknowledged
            link.resume_reading()
            await link.leave()
            if paused.done():
                self.progress.link("waiting", "all databases are paused")
            await self._stopping.wait()
        finally:
            for task in (ended, stopping, paused):
                task.cancel()
            await asyncio.gather(ended, stopping, paused, return_exceptions=True)

    @staticmethod
    async def _unless_it_ends(link: Link, step: asyncio.Task[None]) -> None:
        """Wait for a step, or for the link's end (raises): a disk that hangs must not hide that the master is gone."""
        ended = asyncio.ensure_future(link.ended())
        try:
            await asyncio.wait((ended, step), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            ended.cancel()
            await asyncio.gather(ended, return_exceptions=True)

    async def _hang_up(self) -> None:
        """Nothing of the last connection goes on, except a dump on its way: it does not need it."""
        self._link = None
        await asyncio.gather(*self._steps, return_exceptions=True)  # they are short, and must not be left half done

    async def _close(self) -> None:
        for database in self.databases.values():
            await database.give_up_fetch()
        await self._intake.idle()
        try:
            await self._write_books()
        finally:
            for database in self.databases.values():
                await self._intake.run(database.wal.close)
            await self._intake.close()

    @staticmethod
    async def _wait(event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    # --- the beginning of a connection -----------------------------------------------------------------------------

    async def _open_databases(self, meta: Meta) -> None:
        names = self.config.databases or meta.databases
        for name in names:
            if name not in meta.databases:
                raise SourceError(f"the master has no {name}; it has {', '.join(meta.databases) or 'no database'}")
        if self.config.start_position is not None and len(names) > 1:
            raise ConfigError("filenum and offset are of one database, and several are asked for: set one db_name")
        for name in names:
            if name not in self.databases:
                wal = await self._intake.run(partial(open_wal, self.config, name))
                self.databases[name] = Database(
                    name, wal, self.config, self._books, self._intake, self.progress.database(name)
                )

    async def _check_lineage(self, meta: Meta) -> None:
        """Positions belong to a lineage. A master that names none (3.5.0) cannot be checked."""
        self.progress.replication_id = meta.replication_id
        checkpoint = await self._books.load()
        known = "" if checkpoint is None else checkpoint.replication_id
        if not known or not meta.replication_id or known == meta.replication_id:
            self._books.same_lineage(known or meta.replication_id)
            return
        if self.config.lineage_changed_action == "stop":
            raise LineageChanged(
                f"the master's replication_id is {meta.replication_id} and our checkpoint is of {known}: its data was "
                "replaced. Look whether it is the right master; then set lineage_changed_action to full_sync, or begin "
                "with an empty checkpoint and WAL"
            )
        for database in self.databases.values():
            await database.give_up_fetch()
        await self._books.new_lineage(meta.replication_id, self.databases, start_setting(self.config))

    async def _begin(self, link: Link, database: Database) -> None:
        plan = await database.plan()
        if plan.reset_reason:
            assert isinstance(plan.start, GoOn)
            await database.begin_anew(plan.start.position, plan.reset_reason)
        session = Session(database.name, self._requests, self._session_settings)
        database.progress.state = "trying"
        _log.info("%s %s: begins with %s", self.config.source, database.name, plan.start)
        link.begin(session, plan.start)

    # --- what the link tells -----------------------------------------------------------------------------------------

    def received(self, session: Session, received: Received) -> None:
        if faults.ARMED:
            faults.hit("pikiwi.received")
        database = self.databases[session.db]
        progress = database.progress
        if progress.received is not None and received.last.filenum != progress.received.filenum:
            for end, data in received.items:
                start_filenum, start_offset = start_of(data)
                if end.filenum != start_filenum:
                    progress.rolled(start_offset)
        progress.got(received.last, len(received.items), received.size_bytes)
        assert session.session_id is not None
        self._intake.add(Message(session.db, database.wal, session, session.session_id, received, self._clock()))

    def keepalive(self, session: Session) -> None:
        self.databases[session.db].progress.keepalive()

    def effect(self, session: Session, effect: Effect) -> None:
        database = self.databases[session.db]
        match effect:
            case Rebase():
                self._step(self._rebase(database, session, effect))
            case Fetch():
                self._step(self._full_sync(database, session))
            case Flows(session_id, position, master_end):
                database.progress.session(session_id, position, master_end)
            case Pause(reason):
                database.progress.state = "paused"
                _log.error("%s %s", self.config.source, reason)
                if all(each.progress.state == "paused" for each in self.databases.values()):
                    self._paused.set()
            case Send():
                raise AssertionError("the link sends by itself")

    # --- what the intake tells ---------------------------------------------------------------------------------------

    def durable(self, messages: list[Message], sync_s: dict[str, float]) -> None:
        self._durable_count += len(messages)
        now_s = self._clock()
        if faults.ARMED and faults.hit("pikiwi.before-acknowledge"):
            return
        for db, group in groupby(sorted(messages, key=lambda message: message.db), key=lambda message: message.db):
            own = list(group)
            progress = self.databases[db].progress
            last = own[-1].received
            progress.synced(last.last, own[-1].wal.last_seq, exec_time_of(last.items[-1][1]), sync_s[db])
            session = own[-1].session
            effects = [e for message in own for e in message.session.durable(message.received, now_s)]
            if effects and self._link is not None:
                self._link.carry_out(session, effects)
                progress.told_master(last.last)
        self._warn_if_late(messages, now_s)

    def full(self) -> None:
        self._intake_full = True
        self._govern_reading()

    def room(self) -> None:
        self._intake_full = False
        self._govern_reading()

    def _govern_reading(self) -> None:
        """A master that is not read waits, and keeps its binlog for us as long as we ping."""
        if self._link is None:
            return
        if self._intake_full or self._wal_full:
            self._link.pause_reading()
        else:
            self._link.resume_reading()

    def failed(self, error: Exception) -> None:
        self._fail(error)

    def _warn_if_late(self, messages: list[Message], now_s: float) -> None:
        late_s = now_s - messages[0].arrived_s
        limit_s = self.config.pb_ack_delay_warn
        if limit_s and late_s > limit_s and now_s - self._warned_s > WARN_INTERVAL_S:
            self._warned_s = now_s
            _log.warning("%s: %.1f s from receiving to acknowledging: is the disk slow?", self.config.source, late_s)

    # --- what sessions want ------------------------------------------------------------------------------------------

    def _step(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Short work for the present link; what it raises ends the link."""
        task = asyncio.create_task(work)
        self._steps.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._steps.discard(task)
            self._fail(task.exception())

        task.add_done_callback(done)
        return task

    def _fail(self, error: BaseException | None) -> None:
        """Whatever ended beside the link ends the link, or the next one before it begins."""
        if error is None:
            return
        known = _as_pikiwi_error(error)
        if self._link is not None:
            self._link.fail(known)
        else:
            self._failure = known

    async def _rebase(self, database: Database, session: Session, wanted: Rebase) -> None:
        position = wanted.position
        match wanted.kind:
            case "dump":
                position = await database.begin_after_dump(position)
            case "chosen":
                await database.begin_anew(position, wanted.reason)
            case "gap":
                await database.leave_gap(position, wanted.reason)
        if self._link is not None and session.phase is Phase.REBASING:
            self._link.carry_out(session, session.rebased(position, self._clock()))

    async def _full_sync(self, database: Database, session: Session) -> None:
        await database.give_up_fetch()
        await database.expect_dump()

        def dump_begins(info: DumpInfo) -> None:
            if self._link is not None and session.phase is Phase.DUMPING:
                self._link.carry_out(session, session.dump_begins(info.position, self._clock()))

        def ended(error: BaseException | None) -> None:
            if error is None:
                self._full_sync_failures = 0
            self._fail(error)

        if session.phase is Phase.DUMPING:
            database.fetch(self._fetch_limits, dump_begins, ended)

    def _dump_failed(self, error: DumpError) -> PikiwiError:
        self._full_sync_failures += 1
        if self._full_sync_failures >= FULL_SYNC_TRIES_MAX:
            return error
        return LinkError(f"full sync failed, beginning anew: {error}")

    # --- the books ---------------------------------------------------------------------------------------------------

    async def _keep_books(self) -> None:
        while not self._closing.is_set():
            await self._wait(self._closing, self.config.checkpoint_interval_ms / 1000)
            await self._write_books()

    def _keeper_ended(self, keeper: asyncio.Task[None]) -> None:
        self._fail(None if keeper.cancelled() else keeper.exception())

    async def _write_books(self) -> None:
        await self._books.bring_up_to_date(self.databases)
        limit = self.config.wal_bytes_max
        size = sum(database.wal.size_bytes for database in self.databases.values())
        full = 0 < limit < size
        if full != self._wal_full:
            self._wal_full = full
            _log.warning(
                "%s: the WAL has %d bytes, wal_bytes_max is %d: %s", self.config.source, size, limit,
                "nothing is received until the pipeline has delivered more" if full else "receiving again",
            )  # fmt: skip
            self._govern_reading()


def _as_pikiwi_error(error: BaseException | None) -> PikiwiError:
    return error if isinstance(error, PikiwiError) else PikiwiError(f"a step failed: {error!r}")
