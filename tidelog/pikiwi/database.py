"""What a receiver keeps of one database over all its connections: the WAL, the checkpoint's entry, a dump on its way.

The WAL begins anew in an order that any crash leaves understandable (`start.py` reads it at the next start):

    full sync       snapshot `saving` → WAL reset at the dump's position → AckCP, DurableCP there → snapshot `fetching`
                    → (the dump is complete) snapshot `ready`
    chosen start    WAL reset → AckCP, DurableCP there

Until `fetching` stands in the checkpoint, a restart asks for a dump again and trusts nothing of the WAL. From then on
the WAL is kept if the master still has the same dump.

The dump is fetched by a task of its own. Once the WAL has begun at its position, it needs no connection of ours to go
on: the binlog flows meanwhile, over this connection or a later one.
"""

import asyncio
import logging
from collections.abc import Callable

from tidelog import faults
from tidelog.pikiwi.books import Books
from tidelog.pikiwi.checkpoint import Snapshot
from tidelog.pikiwi.config import Config
from tidelog.pikiwi.dump.info import DumpInfo
from tidelog.pikiwi.dump.rsync import FetchLimits, fetch_dump
from tidelog.pikiwi.intake import Intake
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.progress import DatabaseProgress
from tidelog.pikiwi.protocol import RSYNC_PORT_DISTANCE
from tidelog.pikiwi.start import Held, Plan, plan_start, start_setting
from tidelog.pikiwi.wal import Wal, WalPoint

_log = logging.getLogger(__name__)


class Database:
    def __init__(
        self, name: str, wal: Wal, config: Config, books: Books, intake: Intake, progress: DatabaseProgress
    ) -> None:
        self.name = name
        self.wal = wal
        self.progress = progress
        progress.opened(wal.last_position, wal.last_seq)
        self._config = config
        self._books = books
        self._intake = intake
        self._fetch: asyncio.Task[None] | None = None
        self._dump_taken = asyncio.Event()  # the WAL has begun at the position of the dump being fetched

    async def plan(self) -> Plan:
        """Where to begin on a new connection."""
        return plan_start(
            self._config,
            await self._books.load(),
            self.name,
            Held(self.wal.first_position, self.wal.last_position),
            dump_comes=self._fetch is not None and self._dump_taken.is_set(),
        )

    async def leave_gap(self, position: Position, reason: str) -> None:
        """What the WAL holds is kept, and what comes next begins at `position`; between them something is missing."""
        last = self.wal.last_position
        if last is None or position < last:
            await self.begin_anew(position, reason)
        else:
            _log.warning("%s: items between %s and %s are missing: %s", self.name, last, position, reason)

    async def begin_anew(self, position: Position, reason: str) -> None:
        """The WAL goes on after `position`; what it holds does not count any more."""
        place = await self._reset(position)
        await self._restart_from(place, reason)

    # --- a full sync ---------------------------------------------------------------------------------------------

    async def expect_dump(self) -> None:
        """The master makes a dump. One that was being fetched before may be the same, so it stays in the checkpoint."""
        if (await self._snapshot()).state != "fetching":
            await self._set_snapshot(Snapshot("saving"))

    def fetch(
        self,
        limits: FetchLimits,
        on_info: Callable[[DumpInfo], None],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        """Begin to fetch. `ended` is told why there is no dump, or None when there is; not when it was given up."""
        assert self._fetch is None

        def finish(task: asyncio.Task[None]) -> None:
            if self._fetch is task:
                self._fetch = None
            if not task.cancelled():
                ended(task.exception())

        self.progress.full_sync()
        self._dump_taken.clear()
        self._fetch = asyncio.create_task(self._fetch_and_mark(limits, on_info), name=f"dump of {self.name}")
        self._fetch.add_done_callback(finish)

    async def _fetch_and_mark(self, limits: FetchLimits, on_info: Callable[[DumpInfo], None]) -> None:
        def has_info(info: DumpInfo) -> None:
            self.progress.snapshot.begins_at(info.position)
            on_info(info)

        config = self._config
        info = await fetch_dump(
            config.master_ip,
            config.master_port + RSYNC_PORT_DISTANCE,
            self.name,
            config.dump_path / self.name,
            progress=self.progress.snapshot,
            on_info=has_info,
            limits=limits,
        )
        await self._dump_taken.wait()
        if faults.ARMED:
            faults.hit("pikiwi.dump-complete")
        await self._set_snapshot(Snapshot("ready", info.position, 0, self.progress.snapshot.uuid))
        self.progress.snapshot.ready()
        _log.info("%s: the dump at %s is complete", self.name, info.position)

    async def begin_after_dump(self, position: Position) -> Position:
        """The dump holds everything up to `position`; where to go on, which is further when the WAL can be kept."""
        snapshot = await self._snapshot()
        uuid = self.progress.snapshot.uuid
        first, last = self.wal.first_position, self.wal.last_position
        if snapshot.state == "fetching":
            the_same = snapshot.position == position and snapshot.uuid == uuid
            if the_same and first is not None and last is not None and first <= position <= last:
                self._dump_taken.set()
                return last
            await self._set_snapshot(Snapshot("saving"))
        place = await self._reset(position)
        await self._restart_from(place, "full sync")
        await self._set_snapshot(Snapshot("fetching", position, 0, uuid))
        self._dump_taken.set()
        return position

    async def give_up_fetch(self) -> None:
        if self._fetch is not None:
            task, self._fetch = self._fetch, None
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    # --- small steps ---------------------------------------------------------------------------------------------

    async def _reset(self, position: Position) -> WalPoint:
        checkpoint = await self._books.load()
        known = None if checkpoint is None else checkpoint.database(self.name)
        points = [] if known is None else [point for point in (known.ack_cp, known.durable_cp) if point is not None]
        after_seq = max((point.seq for point in points), default=0)

        def reset() -> WalPoint:
            self.wal.reset(position, after_seq)
            if faults.ARMED:
                faults.hit("pikiwi.after-reset")
            assert self.wal.durable is not None
            return self.wal.durable

        place = await self._intake.run(reset)
        self.progress.opened(place.position, place.seq)
        return place

    async def _restart_from(self, place: WalPoint, reason: str) -> None:
        chosen = start_setting(self._config)
        await self._books.change(lambda file: file.restart_from(self.name, place, reason, chosen))

    async def _snapshot(self) -> Snapshot:
        checkpoint = await self._books.load()
        return Snapshot() if checkpoint is None else checkpoint.database(self.name).snapshot

    async def _set_snapshot(self, snapshot: Snapshot) -> None:
        await self._books.change(lambda file: file.set_snapshot(self.name, snapshot))
