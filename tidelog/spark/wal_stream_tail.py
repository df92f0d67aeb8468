"""A WAL that is a stream, as the source reads it: batches come as the log's own source fetches them.

A place has the offset of the next message. Messages are almost always one a record, in order, so the record that a
place stands behind follows from its last message; where that does not fit (repetitions of a writer that lost its
connection, see `tidelog.pikiwi.wal.stream_record`), the messages in between are followed one by one.

A batch's limit is in records; how many bytes they have is known only when they are read.
"""

from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa

from tidelog.pikiwi.binlog import start_of
from tidelog.pikiwi.errors import WalError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.reader import WalGone
from tidelog.pikiwi.wal.record import BadRecord, WalPoint, WalRecord
from tidelog.pikiwi.wal.stream_messages import CorruptStream, StreamMessages
from tidelog.pikiwi.wal.stream_record import Begin, Follower, decode_message
from tidelog.spark.cluster import Cluster
from tidelog.spark.errors import DataLost, NoAnswer
from tidelog.spark.fetch import FetchOrigin
from tidelog.spark.kernel.decode import Place, decode_records
from tidelog.spark.kernel.options import FETCH_BYTES_DEFAULT, REQUEST_S_DEFAULT
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.kernel.wal_chunks import Chunk
from tidelog.spark.kernel.wal_options import StreamPlace

TAIL_MESSAGES = 10_000  # looked through to find out where a WAL ends, when nothing is known of it
CHUNK_RECORDS = 20_000

_SCHEMA = pa.schema([pa.field("value", pa.binary()), pa.field("offset", pa.int64())])


class StreamTail:
    def __init__(self, place: StreamPlace) -> None:
        self._topic = place.topic
        self._cluster = Cluster(_addresses(place.brokers), REQUEST_S_DEFAULT)
        self._messages = StreamMessages({"bootstrap.servers": place.brokers, "log_level": 2}, place.topic)
        self._known: WalPoint | None = None  # the last end that was found

    def first(self) -> WalPoint | None:
        low, high = self._ends()
        if low == high:
            return None
        found = self._message(low)
        if isinstance(found, Begin):
            return WalPoint(found.seq, found.position, 0, low + 1)
        return WalPoint(found.seq - 1, Position(*start_of(found.payload)), 0, low)

    def durable(self) -> WalPoint | None:
        try:
            low, high = self._ends()
        except NoAnswer:
            return None  # there is no such stream yet
        if low == high:
            return None
        if self._known is None or self._known.offset > high or self._known.offset < low:
            self._known = self._followed(max(low, high - TAIL_MESSAGES), high, Follower())
        elif self._known.offset < high:
            self._known = self._behind(self._known, high)
        return self._known

    def find(self, position: Position) -> WalPoint:
        low, high = self._ends()
        first = self.first()
        if first is None or position < first.position:
            raise WalGone(f"{position} is no longer in stream {self._topic}")
        offset = self._messages.search(low, high, lambda found: found.position <= position)
        found = self._message(offset)
        return first if found.position > position else WalPoint(found.seq, found.position, 0, offset + 1)

    def settled(self, place: WalPoint) -> WalPoint:
        low, high = self._ends()
        if not low <= place.offset <= high:
            raise WalGone(f"record {place.seq + 1} is no longer in stream {self._topic}, which holds {low} to {high}")
        if place.offset == low < high:  # what was before it is gone: it may have begun anew right here
            found = self._message(low)
            if isinstance(found, Begin) and (found.seq, found.position) != (place.seq, place.position):
                raise WalGone(f"stream {self._topic} began anew: record {place.seq + 1} is not in it")
        return place

    def advance(self, start: WalPoint, durable: WalPoint, records_max: int, bytes_max: int) -> WalPoint:  # noqa: ARG002
        end = start.offset + records_max
        return durable if end >= durable.offset else self._behind(start, end)

    def chunks(self, start: WalPoint, end: WalPoint) -> Iterator[Chunk]:
        follower = Follower()
        follower.seq, follower.position = start.seq, start.position
        records: list[WalRecord] = []
        for offset, value in self._values(start.offset, end.offset):
            record = self._taken(follower, offset, value)
            if record is not None:
                records.append(record)
                if len(records) >= CHUNK_RECORDS:
                    yield _chunk(records)
                    records = []
        if records:
            yield _chunk(records)
        if follower.seq != end.seq:
            raise CorruptStream(f"stream {self._topic}: record {follower.seq} is the last, {end.seq} is due")

    def close(self) -> None:
        self._cluster.close()

    # --- parts ---

    def _ends(self) -> tuple[int, int]:
        place = (self._topic, 0)
        return self._cluster.earliest([place])[place], self._cluster.latest([place])[place]

    def _behind(self, start: WalPoint, offset: int) -> WalPoint:
        """The place behind the messages before `offset`, which lies behind `start`."""
        found = self._message(offset - 1)
        if isinstance(found, WalRecord) and found.seq == start.seq + offset - start.offset:
            return WalPoint(found.seq, found.position, 0, offset)
        follower = Follower()
        follower.seq, follower.position = start.seq, start.position
        return self._followed(start.offset, offset, follower)

    def _followed(self, begin: int, end: int, follower: Follower) -> WalPoint:
        for offset, value in self._values(begin, end):
            self._taken(follower, offset, value, may_begin=True)
        assert follower.seq is not None
        assert follower.position is not None
        return WalPoint(follower.seq, follower.position, 0, end)

    def _taken(self, follower: Follower, offset: int, value: bytes, *, may_begin: bool = False) -> WalRecord | None:
        try:
            found = decode_message(value)
            if isinstance(found, Begin) and not may_begin and found != (follower.seq, follower.position):
                raise WalGone(f"stream {self._topic} began anew at offset {offset}")
            return follower.take(value)
        except BadRecord as error:
            raise CorruptStream(f"stream {self._topic}: damaged at offset {offset}: {error}") from None

    def _message(self, offset: int) -> WalRecord | Begin:
        for _, value in self._values(offset, offset + 1):
            with suppress(BadRecord):
                return decode_message(value)
            raise CorruptStream(f"stream {self._topic}: damaged at offset {offset}")
        raise WalError(f"stream {self._topic} has no message at offset {offset}")

    def _values(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        origin = FetchOrigin(self._cluster, FETCH_BYTES_DEFAULT, fail_on_data_loss=True)
        try:
            for run in origin.runs(OffsetRange(self._topic, 0, begin, end)):
                for batch in decode_records(run.data, Place(self._topic, 0, run.start, end), _SCHEMA):
                    values, offsets = batch.columns
                    yield from zip(offsets.to_pylist(), (value or b"" for value in values.to_pylist()), strict=True)
        except DataLost as lost:
            raise WalGone(f"stream {self._topic}: {lost}") from None


def _chunk(records: list[WalRecord]) -> Chunk:
    return Chunk(
        records[0].seq,
        np.array([record.epoch for record in records], dtype=np.int64),
        np.array([record.position.filenum for record in records], dtype=np.int64),
        np.array([record.position.offset for record in records], dtype=np.int64),
        pa.array([record.payload for record in records], pa.binary()),
    )


def _addresses(brokers: str) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for address in brokers.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdecimal():
            raise WalError(f"wal_stream_brokers: {address.strip()!r} is not HOST:PORT")
        found.append((host.strip("[]"), int(port)))
    return found
