"""Replaying a region: its log is read once, and every table gets its entries in order, several tables at a time.

The reader (the calling thread) deals entries out to their tables; a table whose handler is not running and which has
entries waiting is *ready*, and the next free thread runs its handler with what waits. So one table's entries never
overtake each other, and a slow table holds up nobody until `queue_bytes_max` wait in all; then the reader pauses.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidelog.regionwal.reading import Chunk, Entry

logger = logging.getLogger(__name__)

Handler = Callable[[Sequence[Entry]], None]
Handlers = Mapping[int, Handler] | Callable[[int], Handler | None]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    entries: int
    """Handed to handlers that did not fail."""
    tables: int
    skipped: dict[int, int]
    """Entries of tables without a handler."""
    failed: dict[int, Exception]
    """What a table's handler raised. It got nothing after that."""

    @property
    def complete(self) -> bool:
        return not self.failed


class _Table:
    __slots__ = ("done", "error", "handler", "running", "waiting")

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting: list[Entry] = []
        self.running = False
        self.error: Exception | None = None
        self.done = 0

    def run(self, entries: Sequence[Entry], batch_max: int) -> None:
        try:
            for start in range(0, len(entries), batch_max):
                batch = entries[start : start + batch_max]
                self.handler(batch)
                self.done += len(batch)
        except Exception as error:  # noqa: BLE001 - the handler is the caller's code; its table fails, the others go on
            self.error = error


class Replay:
    def __init__(self, handlers: Handlers, parallel: int, batch_max: int, queue_bytes_max: int) -> None:
        self._find = handlers if callable(handlers) else handlers.get
        self._parallel = parallel
        self._batch_max = batch_max
        self._queue_bytes_max = queue_bytes_max
        self._tables: dict[int, _Table | None] = {}
        self._skipped: dict[int, int] = {}
        self._changed = threading.Condition()
        self._ready: deque[_Table] = deque()
        self._queued_bytes = 0
        self._ended = False

    def run(self, chunks: Iterable[Chunk]) -> ReplayResult:
        threads = [
            threading.Thread(target=self._work, name=f"regionwal-replay-{number}", daemon=True)
            for number in range(self._parallel if self._parallel > 1 else 0)
        ]
        for thread in threads:
            thread.start()
        try:
            for chunk in chunks:
                self._deal(chunk, inline=not threads)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            for thread in threads:
                thread.join()
        known = {number: table for number, table in self._tables.items() if table is not None}
        failed = {number: table.error for number, table in known.items() if table.error is not None}
        done = sum(table.done for table in known.values() if table.error is None)
        for number, error in failed.items():
            logger.warning("replay of table %d failed: %r", number, error)
        return ReplayResult(done, len(known), self._skipped, failed)

    def _deal(self, chunk: Chunk, inline: bool) -> None:
        parts: dict[int, list[Entry]] = {}
        for stretch in chunk:
            number = stretch[0].table_id
            if number in parts:
                parts[number] += stretch
            else:
                parts[number] = stretch
        for number, entries in parts.items():
            table = self._table(number)
            if table is None:
                self._skipped[number] = self._skipped.get(number, 0) + len(entries)
            elif table.error is not None:
                continue
            elif inline:
                table.run(entries, self._batch_max)
            else:
                self._enqueue(table, entries)

    def _table(self, number: int) -> _Table | None:
        if number not in self._tables:
            handler = self._find(number)
            self._tables[number] = None if handler is None else _Table(handler)
        return self._tables[number]

    def _enqueue(self, table: _Table, entries: list[Entry]) -> None:
        size_bytes = sum(len(entry.payload) for entry in entries)
        with self._changed:
            while self._queued_bytes > self._queue_bytes_max:
                self._changed.wait()
            self._queued_bytes += size_bytes
            if not table.waiting and not table.running:
                self._ready.append(table)
                self._changed.notify()
            table.waiting += entries

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._ready:
                    if self._ended:
                        return
                    self._changed.wait()
                table = self._ready.popleft()
                entries, table.waiting = table.waiting, []
                table.running = True
            if table.error is None:
                table.run(entries, self._batch_max)
            with self._changed:
                self._queued_bytes -= sum(len(entry.payload) for entry in entries)
                table.running = False
                if table.waiting:
                    self._ready.append(table)
                self._changed.notify_all()
