"""A WAL as the source reads it: where it begins and ends, how far a micro-batch goes, and the records in between.

`FileTail` reads the files of a receiver on this machine (or on a disk that all workers share), `StreamTail` the stream
of one elsewhere. The driver's tail is kept, and remembers what it knows; each task opens its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal import WalGone, WalPoint, WalReader
from tidelog.pikiwi.wal.mark import read_mark
from tidelog.spark.kernel.wal_chunks import Chunk, read_chunks
from tidelog.spark.kernel.wal_options import StreamPlace


class Tail(Protocol):
    def first(self) -> WalPoint | None:
        """The place before the oldest record; None: there is no WAL yet."""
        ...

    def durable(self) -> WalPoint | None:
        """The place behind the last record; None: there is no WAL yet."""
        ...

    def find(self, position: Position) -> WalPoint:
        """The place behind the last record at or before a position; WalGone."""
        ...

    def settled(self, place: WalPoint) -> WalPoint:
        """The same place as the WAL has it now; WalGone when the WAL begins behind it or began anew."""
        ...

    def advance(self, start: WalPoint, durable: WalPoint, records_max: int, bytes_max: int) -> WalPoint:
        """At most so many records and about so many bytes further, a record at least if there is one. It is the same
        place or a later one when the WAL has grown meanwhile."""
        ...

    def chunks(self, start: WalPoint, end: WalPoint) -> Iterator[Chunk]: ...

    def close(self) -> None: ...


def open_tail(place: Path | StreamPlace) -> Tail:
    if isinstance(place, Path):
        return FileTail(place)
    from tidelog.spark.wal_stream_tail import StreamTail  # noqa: PLC0415 - files need no cluster

    return StreamTail(place)


class FileTail:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._reader = WalReader(folder)

    def first(self) -> WalPoint | None:
        return self._reader.first()

    def durable(self) -> WalPoint | None:
        return self._reader.durable()

    def find(self, position: Position) -> WalPoint:
        return self._reader.find(position)

    def settled(self, place: WalPoint) -> WalPoint:
        mark = read_mark(self._folder)
        if mark is not None:
            durable = mark.durable
            inside = (place.segment, place.offset) <= (durable.segment, durable.offset) and place.seq <= durable.seq
            if place.segment >= mark.first_segment and inside:
                return place
            # The end of a segment is also the beginning of the next, and the first of the two names may be gone.
            first = self.first()
            if first is not None and (first.seq, first.position) == (place.seq, place.position):
                return first
        raise WalGone(f"record {place.seq + 1} is no longer in {self._folder}: the WAL begins behind it, or began anew")

    def advance(self, start: WalPoint, durable: WalPoint, records_max: int, bytes_max: int) -> WalPoint:
        if (
            start.segment == durable.segment
            and durable.seq - start.seq <= records_max
            and durable.offset - start.offset <= bytes_max
        ):
            return durable
        return self._reader.advance(start, records_max, bytes_max)

    def chunks(self, start: WalPoint, end: WalPoint) -> Iterator[Chunk]:
        return read_chunks(self._folder, start, end)

    def close(self) -> None:
        """Nothing is held open."""
