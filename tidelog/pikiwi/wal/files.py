"""A WAL in files, the writing side.

`append` puts records into memory (and writes without a sync when `PENDING_BYTES_MAX` have gathered); `sync` writes them
with one call and one fdatasync, then moves the mark that recovery and readers go by. So a group of any size costs one
sync, and nothing counts as durable before it. A segment that the next record would bring over `segment_bytes` is
synced and a new one begun; a record larger than that gets a segment of its own.

A write or sync that fails is final: what the disk holds is then unknown, so this object refuses everything else, nobody
is acknowledged, and a new start recovers what is really there.

One process at a time: the folder has a lock that is held until `close`. All calls come from one thread; others, like
other processes, read with a `WalReader` of their own.
"""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tidelog.pikiwi.errors import WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.cleaning import removable
from tidelog.pikiwi.wal.disk import lock_folder, sync_file, sync_folder, write_all
from tidelog.pikiwi.wal.mark import MarkFile
from tidelog.pikiwi.wal.reader import WalReader
from tidelog.pikiwi.wal.record import HEADER_BYTES, WalPoint, WalRecord, encode_records
from tidelog.pikiwi.wal.recovery import create, recover, remove
from tidelog.pikiwi.wal.segments import NUMBER_MAX, Segment

PENDING_BYTES_MAX = 8 << 20

Result = TypeVar("Result")


class FileWal:
    def __init__(self, folder: Path, segment_bytes: int, retain_segments: int) -> None:
        """Opens it, repaired, or raises: CorruptWal, or WalError when another process has it or the disk fails."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._retain_segments = retain_segments
        self._failure: str | None = None
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._reader = WalReader(folder)
        self._lock = self._attempt(lambda: lock_folder(folder))
        try:
            self._attempt(self._recover)
        except BaseException:
            os.close(self._lock)
            raise

    def _recover(self) -> None:
        self._segments, generation, tail = recover(self.folder)
        self._closed_bytes = sum(segment.path.stat().st_size for segment in self._segments[:-1])
        self._file = -1
        self._tail = self.durable = tail
        self._mark = MarkFile(self.folder, generation)
        if tail is not None:
            self._open_last()
            self._mark.write(self._segments[0].number, tail, sync=True)
        sync_folder(self.folder)

    # --- what it holds ---

    durable: WalPoint | None  # behind the last record that is safe; None: `reset` was never called

    @property
    def last_seq(self) -> int:
        """Of the last record appended; 0 before the first."""
        return 0 if self._tail is None else self._tail.seq

    @property
    def last_position(self) -> Position | None:
        """Where the next item has to follow; None: `reset` was never called."""
        return None if self._tail is None else self._tail.position

    @property
    def first_position(self) -> Position | None:
        """All items between this position and the last one are here."""
        return self._segments[0].start if self._segments else None

    @property
    def size_bytes(self) -> int:
        return self._closed_bytes + (0 if self._tail is None else self._tail.offset)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    # --- writing ---

    def append(self, epoch: int, items: Sequence[tuple[Position, bytes]]) -> None:
        """Number the items and take them; nothing is durable before `sync`."""
        if not items:
            return
        tail = self._usable()
        parts, size = encode_records(epoch, tail.seq, tail.position, items)
        if tail.offset + size > self._segment_bytes:
            self._append_over_segments(epoch, items)
            return
        self._take(parts, size, tail.seq + len(items), items[-1][0])

    def _append_over_segments(self, epoch: int, items: Sequence[tuple[Position, bytes]]) -> None:
        begin = 0
        while begin < len(items):
            end, size = begin, self._usable().offset
            while end < len(items) and (size == 0 or size + HEADER_BYTES + len(items[end][1]) <= self._segment_bytes):
                size += HEADER_BYTES + len(items[end][1])
                end += 1
            if end > begin:
                tail = self._usable()
                parts, size = encode_records(epoch, tail.seq, tail.position, items[begin:end])
                self._take(parts, size, tail.seq + end - begin, items[end - 1][0])
            if end < len(items):
                self._attempt(self._rotate)
            begin = end

    def _take(self, parts: list[bytes], size: int, seq: int, position: Position) -> None:
        tail = self._usable()
        self._pending += parts
        self._pending_bytes += size
        self._tail = WalPoint(seq, position, tail.segment, tail.offset + size)
        if self._pending_bytes >= PENDING_BYTES_MAX:
            self._attempt(self._write)

    def sync(self) -> None:
        """When it returns, everything appended is durable. When it raises, nobody may be told so."""
        if self._usable() != self.durable:
            self._attempt(self._sync)

    def _write(self) -> None:
        if self._pending:
            write_all(self._file, b"".join(self._pending))
            self._pending.clear()
            self._pending_bytes = 0

    def _sync(self, *, mark_too: bool = False) -> None:
        self._write()
        sync_file(self._file)
        assert self._tail is not None
        self.durable = self._tail
        self._mark.write(self._segments[0].number, self.durable, sync=mark_too)

    def _rotate(self) -> None:
        self._sync(mark_too=True)
        tail = self._usable()
        if tail.segment == NUMBER_MAX:
            raise WalError(f"{self.folder} has had {NUMBER_MAX} segments: begin anew with another wal_dir")
        self._closed_bytes += tail.offset
        self._begin(WalPoint(tail.seq, tail.position, tail.segment + 1, 0))

    def _begin(self, place: WalPoint) -> None:
        """A new last segment."""
        self._segments.append(create(self.folder, place))
        self._tail = self.durable = place
        self._open_last()

    def _open_last(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = os.open(self._segments[-1].path, os.O_WRONLY | os.O_APPEND)

    # --- reading ---

    def read(self, after_seq: int) -> Iterator[WalRecord]:
        """What is durable now and follows record `after_seq`."""
        return self._reader.read(self._reader.after(after_seq))

    def seek(self, position: Position) -> int:
        """The number of the last durable record at or before `position`; WalGone when that was removed."""
        return self._reader.find(position).seq

    # --- its two ends ---

    def clean(self, ack: Position) -> int:
        """Remove segments that lie wholly at or before `ack`, all but the newest `retain_segments`. Gives the bytes."""
        self._usable()
        gone = list(removable(self._segments, ack, self._retain_segments))
        return self._attempt(lambda: self._drop(gone)) if gone else 0

    def _drop(self, gone: list[Segment]) -> int:
        assert self.durable is not None
        first = gone[-1].number + 1
        self._mark.write(first, self.durable, sync=True)  # before the files go: what is missing then is no damage
        self._segments = [segment for segment in self._segments if segment.number >= first]
        size = remove(gone)
        self._closed_bytes -= size
        return size

    def reset(self, position: Position, after_seq: int = 0) -> None:
        """Begin at `position`, without the records so far. Numbers go on, since a `seq` never names two records; they
        go on after `after_seq` if that is more: what a checkpoint knows of a WAL that was lost."""
        self._refuse_after_failure()
        tail = self._tail or WalPoint(0, position, 0, 0)
        place = WalPoint(max(tail.seq, after_seq), position, tail.segment + 1, 0)
        if tail == place._replace(segment=tail.segment) and len(self._segments) == 1:
            return  # this is how it begins already
        self._attempt(lambda: self._begin_anew(place))

    def _begin_anew(self, place: WalPoint) -> None:
        self._pending.clear()
        self._pending_bytes = 0
        self._mark.write(place.segment, place, sync=True)  # from here on the old segments do not count
        old = self._segments
        self._segments = []
        self._begin(place)
        remove(old)
        self._closed_bytes = 0

    def close(self) -> None:
        """With everything appended durable, unless it failed before."""
        if self._lock < 0:
            return
        try:
            if self._failure is None and self._tail is not None:
                self.sync()
        finally:
            for descriptor in (self._file, self._lock):
                if descriptor >= 0:
                    os.close(descriptor)
            self._mark.close()
            self._file = self._lock = -1
            self._failure = self._failure or "it is closed"

    # --- failures ---

    def _usable(self) -> WalPoint:
        self._refuse_after_failure()
        if self._tail is None:
            raise WalError(f"the WAL in {self.folder} has no beginning yet: say with reset() where it begins")
        return self._tail

    def _refuse_after_failure(self) -> None:
        if self._failure is not None:
            raise WalError(f"the WAL in {self.folder} cannot be used any more: {self._failure}")

    def _attempt(self, step: Callable[[], Result]) -> Result:
        """Anything that touches the disk: the first failure is the last."""
        try:
            return step()
        except OSError as error:
            self._failure = _advice(error)
            raise WalError(f"the WAL in {self.folder} failed: {self._failure}") from error
        except WalError as error:
            self._failure = str(error)
            raise


def _advice(error: OSError) -> str:
    text = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{text}. Nothing is lost: make room, then start again"
    return f"{text}. Nothing unsafe was acknowledged: look at the disk, then start again"
