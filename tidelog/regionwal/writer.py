"""The one writer of a region's data topic: writes go out in order, many at a time, and each learns what became of it.

Sequence numbers are given out when a write is handed to the client, so writes of one table keep their order without
waiting for each other, and whatever waits leaves in one request. A write is *confirmed* when its records are delivered
right behind the last confirmed one (`fold` has the argument). Anything else, an error, a time-out, an unexpected
offset, makes the region *suspect*: no write is accepted until all that are under way have been reported, then

    1. an epoch record with the next epoch is written, so that what may still come late from the old one is void,
    2. the log is read up to it,

and each write is known to be in the log, or never to get there. Writes wait meanwhile; when the log cannot be reached
for this either, they fail as unknown, the region is *broken*, and the next write begins with the same two steps.

    OPEN → SUSPECT → OPEN | BROKEN | FENCED        BROKEN → SUSPECT        any → CLOSED
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from enum import Enum

from tidelog import faults
from tidelog.regionwal import formats
from tidelog.regionwal.errors import (
    Closed,
    Fenced,
    LogFailed,
    RegionWalError,
    SettingsError,
    Timeout,
    WriteFailed,
    WriteUnknown,
)
from tidelog.regionwal.fold import DataFold, Piece
from tidelog.regionwal.following import record_bytes
from tidelog.regionwal.log import Delivery, Log, Record
from tidelog.regionwal.log_errors import failure
from tidelog.regionwal.opening import FencedLongAgo, Topics, take_data
from tidelog.regionwal.settings import Settings

logger = logging.getLogger(__name__)

Batch = Mapping[int, Sequence[bytes]]


class State(Enum):
    OPEN = "open"
    SUSPECT = "suspect"
    BROKEN = "broken"
    FENCED = "fenced"
    CLOSED = "closed"


class Group:
    """One write on its way."""

    __slots__ = ("delivery", "finished", "firsts", "future", "pieces", "records", "size_bytes")

    def __init__(
        self, firsts: dict[int, int], pieces: list[Piece], size_bytes: int, done: Callable[["Group"], None]
    ) -> None:
        self.firsts = firsts  # sequence number of each table's first entry
        self.pieces = pieces
        self.records = sum(piece.count * piece.width for piece in pieces)
        self.size_bytes = size_bytes
        self.future: Future[dict[int, int]] = Future()
        self.future.set_running_or_notify_cancel()  # what is handed over cannot be taken back
        self.finished = False
        self.delivery = Delivery(self.records, lambda: done(self))

    def lasts(self) -> dict[int, int]:
        """The last sequence number of each table; where there is nothing to write, the last one before."""
        before = {table: first - 1 for table, first in self.firsts.items()}
        return before | {piece.table: piece.sequence + piece.count - 1 for piece in self.pieces}


class RegionWriter:
    """`lock` guards the fold, which it shares with the region's readers, and the state."""

    def __init__(
        self,
        log: Log,
        topics: Topics,
        fold: DataFold,
        lock: threading.Lock,
        settings: Settings,
        executor: Executor,
        confirmed: Callable[[], None],
    ) -> None:
        self._log = log
        self._topics = topics
        self._fold = fold
        self._lock = lock
        self._settings = settings
        self._executor = executor
        self._confirmed = confirmed
        self._order = threading.Lock()  # one write at a time is handed to the client; taken before `lock`
        self._changed = threading.Condition(lock)
        self._groups: deque[Group] = deque()  # handed over and not known, in the order of the log
        self._given: dict[int, int] = {}  # next sequence number, of tables with writes under way
        self._epoch = fold.epoch
        self._headers: formats.Headers = [formats.epoch_header(fold.epoch)]
        self._why: RegionWalError | None = None  # it is broken or fenced
        self.state = State.OPEN
        self.resolved = 0  # how often the region was suspect

    # --- a write's way in --------------------------------------------------------------------------------------------

    def submit(self, batch: Batch) -> "Future[dict[int, int]]":
        """Hand a write over; its future has the last sequence number of each table, or why it failed."""
        deadline = time.monotonic() + self._settings.write_timeout_s
        _check(batch, self._settings.entry_bytes_max)
        with self._order:
            if faults.ARMED:
                faults.hit("regionwal.write.before-produce")
            group = self._admit(batch, deadline)
            if group.records:
                self._log.send(self._topics.data, self._records(group, batch), group.delivery, deadline)
            else:
                group.future.set_result(group.lasts())
            if faults.ARMED:
                faults.hit("regionwal.write.after-produce")
        return group.future

    def _admit(self, batch: Batch, deadline: float) -> Group:
        while True:
            self.wait_until_open(deadline)
            with self._lock:
                if self.state is State.OPEN:
                    group = self._plan(batch)
                    if group.records:
                        self._groups.append(group)
                    return group

    def _plan(self, batch: Batch) -> Group:
        """Give out the sequence numbers."""
        pieces: list[Piece] = []
        size_bytes, limit = 0, self._settings.entry_record_bytes_max
        firsts: dict[int, int] = {}
        for table, payloads in batch.items():
            first = firsts[table] = self._given.get(table) or self._fold.meta.next_seq_num(table)
            if payloads:
                self._given[table] = first + len(payloads)
                size_bytes += sum(map(len, payloads)) + len(payloads) * record_bytes(0)
                pieces += _pieces(table, first, payloads, limit)
        return Group(firsts, pieces, size_bytes, self._finished)

    def _records(self, group: Group, batch: Batch) -> Iterator[Record]:
        region, limit, headers = self._topics.region, self._settings.entry_record_bytes_max, self._headers
        pack, prefix = formats.DATA_KEY.pack, formats.VALUE_PREFIX
        for table, payloads in batch.items():
            for sequence, payload in enumerate(payloads, group.firsts[table]):
                key = pack(formats.NAMESPACE_LOG, region, table, sequence, formats.VERSION)
                if len(payload) <= limit:
                    yield key, prefix + payload, headers
                else:
                    yield from formats.records_of(key, payload, limit, headers)

    # --- and what became of it ---------------------------------------------------------------------------------------

    def _finished(self, group: Group) -> None:
        """All its records were reported, on the log's polling thread."""
        lost = faults.ARMED and faults.hit("regionwal.write.delivered")
        with self._lock:
            if group.finished:
                return
            group.finished = True
            expected = self._fold.next_offset + group.records - 1
            confirmed = (
                self.state is State.OPEN
                and self._groups[0] is group
                and group.delivery.error is None
                and group.delivery.last_offset == expected
                and not lost
            )
            if confirmed:
                self._groups.popleft()
                self._fold.confirm(group.pieces, group.size_bytes)
                if not self._groups:
                    self._given.clear()
                    self._changed.notify_all()
            else:
                if self.state is State.OPEN:
                    self.state = State.SUSPECT
                drained = all(group.finished for group in self._groups)
        if confirmed:
            group.future.set_result(group.lasts())
            self._confirmed()
        elif drained:
            self._executor.submit(self._resolve)

    def _resolve(self) -> None:
        """Find out what became of the writes under way; none is with the client any more."""
        why: RegionWalError | None = None
        try:
            if faults.ARMED:
                faults.hit("regionwal.write.resolve")
            self._epoch += 1
            take_data(self._log, self._topics, self._fold, self._epoch, self._settings.write_timeout_s, self._lock)
        except RegionWalError as error:
            why = error
        except Exception as error:
            logger.exception("region %d: finding out what became of writes failed", self._topics.region)
            why = LogFailed(f"region {self._topics.region} cannot find out what became of writes: {error!r}")
        with self._lock:
            groups = list(self._groups)
            self._groups.clear()
            self._given.clear()
            self.resolved += 1
            if self.state is State.SUSPECT:
                self._why = why
                self.state = State.OPEN if why is None else State.FENCED if isinstance(why, Fenced) else State.BROKEN
            self._headers = [formats.epoch_header(self._epoch)]
            outcomes = [self._outcome(group, why) for group in groups]
            self._changed.notify_all()
        logger.warning(
            "region %d: %d writes were in doubt, it is now %s (%s)",
            self._topics.region,
            len(groups),
            self.state.value,
            why or "all is known",
        )
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome is None:
                group.future.set_result(group.lasts())
            else:
                group.future.set_exception(outcome)

    def _outcome(self, group: Group, why: RegionWalError | None) -> RegionWalError | None:
        """None when the whole write is in the log."""
        meta = self._fold.meta
        written = {
            piece.table: min(meta.next_seq_num(piece.table), piece.sequence + piece.count) - 1
            for piece in group.pieces
            if meta.next_seq_num(piece.table) > piece.sequence
        }
        if all(meta.next_seq_num(table) > last for table, last in group.lasts().items()):
            return None
        if why is not None and (isinstance(why, FencedLongAgo) or not isinstance(why, Fenced)):
            return WriteUnknown(
                f"region {self._topics.region}: a write may be in the log or not, and the log cannot be asked: {why}"
            )
        if why is not None:
            return Fenced(str(why), written)
        error = group.delivery.error
        what = f"write {group.records} records to {self._topics.data}"
        reason = str(failure(error, what)) if error else f"cannot {what}: others before it failed"
        got = f"; of {len(written)} tables the first entries are there" if written else "; nothing of it is there"
        return WriteFailed(reason + got, written)

    # --- state -------------------------------------------------------------------------------------------------------

    def wait_until_open(self, deadline: float) -> None:
        """Return when a write would be accepted, else raise why it would not."""
        tried = False
        while True:
            with self._changed:
                while self.state is State.SUSPECT:
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                        raise Timeout(
                            f"region {self._topics.region} is still finding out what became of earlier writes; nothing "
                            f"was written"
                        )
                if self.state is State.OPEN:
                    return
                if self.state is State.CLOSED:
                    raise Closed(f"region {self._topics.region} is closed")
                assert self._why is not None
                if self.state is State.FENCED:
                    raise Fenced(str(self._why))
                if tried:
                    if isinstance(self._why, Timeout | LogFailed):
                        raise Timeout(f"{self._why}; nothing was written") from self._why
                    raise self._why
                self.state = State.SUSPECT
            tried = True
            self._resolve()

    def fence(self, why: Fenced) -> None:
        """The meta topic says that another process has the region."""
        with self._changed:
            if self.state is not State.CLOSED:
                self.state, self._why = State.FENCED, why
            self._changed.notify_all()

    def close(self, deadline: float) -> None:
        """Accept no write any more, and wait for those under way."""
        with self._order, self._changed:
            while self._groups and time.monotonic() < deadline:
                self._changed.wait(max(0.0, deadline - time.monotonic()))
            self.state = State.CLOSED
            self._changed.notify_all()


def _pieces(table: int, first: int, payloads: Sequence[bytes], limit: int) -> list[Piece]:
    """Entries as they will lie in the log: neighbours of the same width are one piece."""
    if max(map(len, payloads)) <= limit:
        return [Piece(table, first, len(payloads), 1)]
    pieces: list[Piece] = []
    for sequence, payload in enumerate(payloads, first):
        width = max(1, -(-len(payload) // limit))
        if pieces and pieces[-1].width == width:
            last = pieces[-1]
            pieces[-1] = Piece(table, last.sequence, last.count + 1, width)
        else:
            pieces.append(Piece(table, sequence, 1, width))
    return pieces


def _check(batch: Batch, entry_bytes_max: int) -> None:
    for table, payloads in batch.items():
        check_table(table)
        for payload in payloads:
            if not isinstance(payload, bytes):
                raise SettingsError(f"an entry of table {table} is of type {type(payload).__name__}, not bytes")
            if len(payload) > entry_bytes_max:
                raise SettingsError(
                    f"an entry of table {table} has {len(payload)} bytes, at most {entry_bytes_max} are allowed"
                )


def check_table(table: int) -> None:
    if not 0 <= table <= formats.TABLE_MAX:
        raise SettingsError(f"table id {table} is not between 0 and {formats.TABLE_MAX}")
