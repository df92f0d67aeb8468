"""The checkpoint as the receiver writes it: one change at a time, in threads, so that no disk holds up the event loop.

DurableCP is written every `checkpoint_interval_ms` and at the end; the WAL is the truth about it. On the same occasion
the WALs let go of what AckCP, which the pipeline writes, has passed, and every other reader too (`wal/readers.py`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from tidelog import faults
from tidelog.pikiwi.checkpoint import Checkpoint, CheckpointFile, DatabaseCheckpoint, Snapshot
from tidelog.pikiwi.intake import Intake
from tidelog.pikiwi.progress import DatabaseProgress
from tidelog.pikiwi.wal import Wal
from tidelog.pikiwi.wal.readers import Readers


class Kept(Protocol):
    """A database, as far as the books go."""

    name: str
    wal: Wal
    progress: DatabaseProgress


class Books:
    def __init__(self, file: CheckpointFile, intake: Intake, readers: Readers, wal_bytes_max: int) -> None:
        self._file = file
        self._intake = intake
        self._readers = readers
        self._wal_bytes_max = wal_bytes_max
        self._lock = asyncio.Lock()
        self._replication_id: str | None = None  # None: no master was asked yet

    async def load(self) -> Checkpoint | None:
        return await asyncio.to_thread(self._file.load)

    async def change(self, change: Callable[[CheckpointFile], Checkpoint]) -> Checkpoint:
        """`change` runs when its turn comes: what it writes it must look at then."""
        async with self._lock:
            if faults.ARMED:
                faults.hit("pikiwi.before-checkpoint")
            return await asyncio.to_thread(change, self._file)

    def same_lineage(self, replication_id: str) -> None:
        """The master's, which is the checkpoint's too, or the first that it gets; empty: a master that has none."""
        self._replication_id = replication_id

    async def new_lineage(self, replication_id: str, databases: Iterable[str], started_from: str) -> None:
        """Positions of before mean nothing; every database needs a dump, also one whose start was set."""
        wanted = DatabaseCheckpoint(snapshot=Snapshot("saving"), started_from=started_from)
        entries = MappingProxyType(dict.fromkeys(databases, wanted))

        def change(file: CheckpointFile) -> Checkpoint:
            file.new_lineage(replication_id)
            self._replication_id = replication_id
            return file.update(lambda checkpoint: replace(checkpoint, databases=entries))

        await self.change(change)

    async def bring_up_to_date(self, databases: Mapping[str, Kept]) -> None:
        """DurableCP into the checkpoint; what AckCP and all readers have passed out of the WALs."""

        if not databases or self._replication_id is None or self._intake.has_failed:
            return

        def advance(file: CheckpointFile) -> Checkpoint:
            places = {name: each.wal.durable for name, each in databases.items() if each.wal.durable is not None}
            epochs = {name: each.progress.session_id or 0 for name, each in databases.items()}
            return file.advance_durable(places, epochs, self._replication_id or "")

        checkpoint = await self.change(advance)
        marks = await asyncio.to_thread(self._readers.marks)
        full = 0 < self._wal_bytes_max <= sum(database.wal.size_bytes for database in databases.values())
        for database in databases.values():
            ack = checkpoint.database(database.name).ack_cp
            if ack is not None:
                passed = self._readers.clean_to(
                    marks,
                    database.name,
                    checkpoint.replication_id,
                    ack.position,
                    wal_first=database.wal.first_position,
                    file_bytes=database.progress.binlog_file_bytes,
                    full=full,
                )
                await self._intake.run(partial(database.wal.clean, passed))
            database.progress.wal(database.wal.first_position, database.wal.size_bytes)
