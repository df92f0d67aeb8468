"""From received to durable: one writer for the WALs of all databases, with group commit.

Messages wait in memory; the writer takes all that wait, appends them and syncs each WAL once, in its own thread, while
the event loop goes on receiving. When the syncs have returned, and only then, their owner is told, all messages in
the order of arrival. So a sync covers whatever arrived during the one before, and its cost is shared.

Bounds: what is received and not durable is at most `bytes_max` and `items_max`, plus what the read that crossed the
line brought (a message, or some hundred KiB of small ones); then `full` is called, and `room` when half is durable.

The WALs are only touched in the writer's thread: `run` does that for other work on them (beginning anew, cleaning).
A WAL that fails is final; `failed` gets the error, and nothing is reported durable any more.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from tidelog import faults
from tidelog.pikiwi.session import Received, Session
from tidelog.pikiwi.wal import Wal

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    bytes_max: int = 64 << 20
    items_max: int = 200_000


class Message(NamedTuple):
    """One message on its way to the WAL of its database."""

    db: str
    wal: Wal
    session: Session
    epoch: int
    received: Received
    arrived_s: float


class Owner(Protocol):
    """Called on the event loop."""

    def durable(self, messages: list[Message], sync_s: dict[str, float]) -> None:
        """All of these are durable now; `sync_s`: what the sync of each database's WAL took."""
        ...

    def full(self) -> None: ...
    def room(self) -> None: ...
    def failed(self, error: Exception) -> None: ...


class Intake:
    def __init__(self, owner: Owner, settings: IntakeSettings) -> None:
        self._owner = owner
        self._settings = settings
        self._thread = ThreadPoolExecutor(1, "pikiwi-wal")
        self._waiting: list[Message] = []
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._full = False
        self.held_bytes = 0  # received, not durable
        self.held_items = 0
        self._failure: Exception | None = None
        self._task = asyncio.create_task(self._write_for_ever())

    def add(self, message: Message) -> None:
        self._waiting.append(message)
        self.held_bytes += message.received.size_bytes
        self.held_items += len(message.received.items)
        self._idle.clear()
        self._work.set()
        if not self._full and (
            self.held_bytes > self._settings.bytes_max or self.held_items > self._settings.items_max
        ):
            self._full = True
            self._owner.full()

    async def settled(self) -> None:
        """Waits until everything received is durable; raises when it cannot become so."""
        await self.idle()
        if self._failure is not None:
            raise self._failure

    async def idle(self) -> None:
        """Waits until nothing is being written, for better or worse."""
        await self._idle.wait()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Something else that touches the WALs or blocks, in the writer's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    async def close(self) -> None:
        """After everything else."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

    async def _write_for_ever(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work.clear()
                messages, self._waiting = self._waiting, []
                sync_s = await self.run(lambda group=messages: _write(group))
                self._report(messages, sync_s)
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing more may be called durable
            self._failure = error
            self._idle.set()
            self._owner.failed(error)

    def _report(self, messages: list[Message], sync_s: dict[str, float]) -> None:
        self.held_bytes -= sum(message.received.size_bytes for message in messages)
        self.held_items -= sum(len(message.received.items) for message in messages)
        self._owner.durable(messages, sync_s)
        if not self._waiting:
            self._idle.set()
        settings = self._settings
        if self._full and self.held_bytes * 2 <= settings.bytes_max and self.held_items * 2 <= settings.items_max:
            self._full = False
            self._owner.room()


def _write(messages: list[Message]) -> dict[str, float]:
    """In the writer's thread: append all, sync each WAL once."""
    if faults.ARMED:
        faults.hit("pikiwi.before-append")
    wals: dict[str, Wal] = {}
    for message in messages:
        message.wal.append(message.epoch, message.received.items)
        wals[message.db] = message.wal
    if faults.ARMED:
        faults.hit("pikiwi.before-sync")
    sync_s: dict[str, float] = {}
    for db, wal in wals.items():
        begin_s = time.perf_counter()
        wal.sync()
        sync_s[db] = time.perf_counter() - begin_s
    if faults.ARMED:
        faults.hit("pikiwi.after-sync")
    return sync_s
