"""Reading entries back: the map says where each one lies, so only what is asked for is read, and only what counts.

A `Cursor` walks along one table's runs and knows the offset and the sequence number of the entry it waits for. Records
at other offsets are other tables', void, or deleted; a record at the right offset with another key cannot be, because
an offset never changes its content, so it is an error. Every byte is read once, whatever the number of tables.

Cost: one table's read fetches its own runs, and what lies between two of them only where skipping it would take longer
than reading it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

from confluent_kafka import Message

from tidelog.regionwal import formats
from tidelog.regionwal.errors import LogLost
from tidelog.regionwal.following import unreadable
from tidelog.regionwal.formats import FormatError
from tidelog.regionwal.log import Log, offset_of
from tidelog.regionwal.log_errors import OutOfRange
from tidelog.regionwal.sequence_map import Run
from tidelog.regionwal.settings import KIB

SKIP_BYTES_MIN = 256 * KIB  # a gap that is shorter is read through
BULK_RECORDS_MIN = 2_000
RECLEANED_MAX = 100  # times that one read may find its place deleted under it


class Entry(NamedTuple):
    table_id: int
    sequence: int
    payload: bytes
    offset: int


Chunk = list[list[Entry]]
"""Entries in the log's order, in stretches of one table."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One end of a range of sequence numbers."""

    kind: str
    sequence: int = 0

    @classmethod
    def min(cls) -> "Bound":
        return cls("min")

    @classmethod
    def max(cls) -> "Bound":
        return cls("max")

    @classmethod
    def included(cls, sequence: int) -> "Bound":
        return cls("included", sequence)

    @classmethod
    def excluded(cls, sequence: int) -> "Bound":
        return cls("excluded", sequence)

    def as_start(self) -> int:
        """The first sequence number of a range that starts here."""
        return {"min": 0, "max": formats.U64_MAX, "included": self.sequence}.get(self.kind, self.sequence + 1)

    def as_end(self) -> int:
        """The one after the last of a range that ends here."""
        return {"min": 0, "max": formats.U64_MAX, "excluded": self.sequence}.get(self.kind, self.sequence + 1)


class Cursor:
    """The place of one table's next live entry; `offset` is beyond every log when there is none left."""

    __slots__ = ("_left", "_runs", "_stride", "offset", "parts", "sequence", "width")

    END = 2**64

    def __init__(self, runs: Iterable[Run]) -> None:
        self._runs = iter(runs)
        self._left = 0
        self._stride = 0
        self.offset = self.sequence = 0
        self.width = 1
        self.parts: list[bytes] = []  # of a split entry, so far
        self.advance()

    @property
    def adjacent(self) -> int:
        """How many entries, this one included, lie one directly behind the other, each in one record."""
        return self._left if self._stride == self.width == 1 else 1

    def advance(self, count: int = 1) -> None:
        """To the entry behind this one, or behind so many of this run."""
        if self._left > count:
            self._left -= count
            self.sequence += count
            self.offset += count * self._stride
            return
        run = next(self._runs, None)
        if run is None:
            self.offset = self.END
            return
        self.sequence, self.offset, self._left, self._stride, self.width = run

    def skip_below(self, offset: int) -> tuple[int, int] | None:
        """Past the entries below an offset; their first and last sequence numbers, if there are any."""
        if self.offset >= offset:
            return None
        first = last = self.sequence
        while self.offset < offset:
            last = self.sequence
            self.advance()
        self.parts = []
        return first, last


class Reader:
    """One pass over a region's data topic. `cursors` say what is wanted; `marked` asks a table's mark of now."""

    def __init__(
        self, log: Log, topic: str, region: int, cursors: Mapping[int, Cursor], marked: Callable[[int], int]
    ) -> None:
        self._log = log
        self._topic = topic
        self._region = region
        self._cursors = cursors
        self._marked = marked

    def read(self, start: int, end: int) -> Iterator[Chunk]:
        """The wanted entries that begin between two offsets, in the log's order."""
        bulk = end - start >= BULK_RECORDS_MIN
        for _ in range(RECLEANED_MAX):
            try:
                for messages in self._log.read(self._topic, start, end, bulk):
                    chunk = self._take(messages)
                    start = offset_of(messages[-1]) + 1
                    if chunk:
                        yield chunk
            except OutOfRange:
                # Marked and cleaned while we read: those entries need not be read. Anything else is a loss.
                start = self._skip_deleted(start)
                if start < end:
                    continue
            break
        self._check_complete(end)

    def _take(self, messages: list[Message]) -> Chunk:
        """What is wanted of these records. The cost is per stretch where tables write in batches, else per record."""
        cursors, chunk = self._cursors, []
        index, total = 0, len(messages)
        while index < total:
            message = messages[index]
            offset = offset_of(message)
            table, sequence = self._parse(message, offset)
            cursor = cursors.get(table)
            count = 1
            if cursor is not None and offset >= cursor.offset:
                if offset != cursor.offset + len(cursor.parts) or sequence != cursor.sequence:
                    self._complain(cursor, table, sequence, offset)
                # Offsets only grow, so when the last one is where it should be, all between are.
                count = min(cursor.adjacent, total - index)
                if offset_of(messages[index + count - 1]) != offset + count - 1:
                    count = 1
                entries = self._stretch(cursor, table, offset, messages[index : index + count])
                if chunk and entries and chunk[-1][0].table_id == table:
                    chunk[-1] += entries
                elif entries:
                    chunk.append(entries)
            index += count
        return chunk

    def _stretch(self, cursor: Cursor, table: int, offset: int, messages: list[Message]) -> list[Entry]:
        """The entries that the cursor waits for, from records one behind the other."""
        payloads = self._payloads(messages, offset)
        first = cursor.sequence
        if cursor.width > 1:
            cursor.parts += payloads
            if len(cursor.parts) < cursor.width:
                return []
            offset, payloads, cursor.parts = cursor.offset, [b"".join(cursor.parts)], []
        elif self._parse(messages[-1], offset + len(messages) - 1) != (table, first + len(messages) - 1):
            self._complain(cursor, table, first + len(messages) - 1, offset + len(messages) - 1)
        count = len(payloads)
        cursor.advance(count)
        rows = zip(repeat(table), range(first, first + count), payloads, range(offset, offset + count), strict=False)
        return list(map(tuple.__new__, repeat(Entry), rows))  # as Entry._make, but without a Python call for each

    def _payloads(self, messages: list[Message], offset: int) -> list[bytes]:
        values: list[Any] = list(map(Message.value, messages))
        if not all(values) or any(map(itemgetter(0), values)):  # an empty one, or one with another version than 0
            for number, value in enumerate(values):
                try:
                    formats.payload_of(value)
                except FormatError as error:
                    raise unreadable(self._topic, offset + number, error) from error
        return [value[1:] for value in values]

    def _parse(self, message: Message, offset: int) -> tuple[int, int]:
        try:
            return formats.parse_data_key(message.key(), self._region)
        except FormatError as error:
            raise unreadable(self._topic, offset, error) from error

    def _complain(self, cursor: Cursor, table: int, sequence: int, offset: int) -> None:
        raise LogLost(
            f"{self._topic}: sequence {cursor.sequence} of table {table} lies at offset {cursor.offset}, and the log "
            f"gave sequence {sequence} at offset {offset}"
        )

    def _skip_deleted(self, start: int) -> int:
        earliest, _ = self._log.watermarks(self._topic, self._log.read_deadline())
        if earliest <= start:
            return start
        for table, cursor in self._cursors.items():
            skipped = cursor.skip_below(earliest)
            if skipped is not None and skipped[1] >= self._marked(table):
                raise LogLost(
                    f"{self._topic} begins at offset {earliest} now: entries {skipped[0]} to {skipped[1]} of table "
                    f"{table} are lost, and were not marked as deleted"
                )
        return earliest

    def _check_complete(self, end: int) -> None:
        for table, cursor in self._cursors.items():
            if cursor.offset < end:
                raise LogLost(
                    f"{self._topic}: table {table} has sequence {cursor.sequence} at offset {cursor.offset}, "
                    f"and the log has no such record"
                )


def ranges(runs: Iterable[Run], skip_records_min: int) -> Iterator[tuple[int, int]]:
    """What of the log to read for these runs: offsets from, to before. Short gaps are read through."""
    start = end = None
    for run in runs:
        sparse = run.count > 1 and run.stride - run.width >= skip_records_min
        spans = ((run.offset + i * run.stride, run.offset + i * run.stride + run.width) for i in range(run.count))
        for low, high in spans if sparse else [(run.offset, run.end_offset)]:
            if end is None or start is None:
                start, end = low, high
            elif low - end < skip_records_min:
                end = max(end, high)
            else:
                yield start, end
                start, end = low, high
    if start is not None and end is not None:
        yield start, end
