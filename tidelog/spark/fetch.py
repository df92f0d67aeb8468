"""Whole record batches of an offset range, as they lie in the log.

An `Origin` gives the batches of a range as runs of bytes; `FetchOrigin` gets them from the partition's leader through
Fetch, `tier_read` from an object store.

`FetchOrigin` asks for the next run before it hands out the present one, so that the cluster works while the caller
decodes. When the leader changes, a connection ends or a node is silent, it goes on at the offset it has come to, with
whoever leads then, for as long as `NO_PROGRESS_S_MAX` allows without any progress.

Invariants. Runs are whole batches in order; together they hold every record of the range that the log still has. A
run's first batch may begin before the run's start, its last may end behind the range. Offsets that the log has lost
(retention, a topic made anew) are DataLost, or left out with a warning when that is asked for.

Cost: two runs of at most `fetch_bytes` in memory (or one larger batch).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from tidelog.spark.cluster import RETRIABLE, Cluster, Patience, TryAgain
from tidelog.spark.errors import DataLost, NoAnswer
from tidelog.spark.kernel.options import Address
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.link import LinkFailed, error_name
from tidelog.wire.batch import HEADER_BYTES, LENGTH_END, read_frame, read_header
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponsePartition

NO_PROGRESS_S_MAX = 120.0
WAIT_MS_MAX = 500  # that a node may hold a fetch for which it has nothing yet

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """Whole batches, one after the other, of which the records with start <= offset < end count."""

    data: memoryview
    start: int
    end: int


class Origin(Protocol):
    """Where the batches of a range come from."""

    def runs(self, wanted: OffsetRange) -> Iterator[Run]: ...


def whole_batches(data: memoryview, end: int) -> tuple[memoryview, int | None]:
    """The whole batches at the beginning of `data` that begin before offset `end`, and the offset behind them."""
    position, next_offset = 0, None
    while position + HEADER_BYTES <= len(data):
        base_offset, length = read_frame(data[position : position + LENGTH_END])
        if position + LENGTH_END + length > len(data) or base_offset >= end:
            if base_offset >= end:
                next_offset = end
            break
        next_offset = read_header(data, position).next_offset
        position += LENGTH_END + length
    return data[:position], next_offset


class FetchOrigin:
    def __init__(
        self, cluster: Cluster, fetch_bytes: int, *, fail_on_data_loss: bool, no_progress_s: float = NO_PROGRESS_S_MAX
    ) -> None:
        self._cluster = cluster
        self._fetch_bytes = fetch_bytes
        self._fail_on_data_loss = fail_on_data_loss
        self._no_progress_s = no_progress_s

    def runs(self, wanted: OffsetRange) -> Iterator[Run]:
        patience = Patience(self._no_progress_s)
        offset = wanted.start
        asked: Address | None = None  # whom the request in flight went to
        try:
            while offset < wanted.end:
                try:
                    if asked is None:
                        asked = self._send(wanted, offset)
                    answered, asked = asked, None
                    start = offset
                    data, offset = self._take(wanted, start, answered)
                except (TryAgain, LinkFailed) as failure:
                    self._cluster.start_anew()
                    if not patience.wait():
                        where = f"{wanted.topic}-{wanted.partition}, offset {offset}"
                        raise NoAnswer(f"{where}: no progress in {self._no_progress_s:.0f} s: {failure}") from None
                    continue
                patience.progress()
                if offset < wanted.end:
                    asked = self._send_ahead(wanted, offset)
                if data:
                    yield Run(data, start, wanted.end)
        finally:
            if asked is not None:  # nobody waits for the answer any more
                self._cluster.drop(asked)

    def _take(self, wanted: OffsetRange, offset: int, address: Address) -> tuple[memoryview, int]:
        """The answer to the request for `offset`: whole batches, and the offset behind them."""
        where = f"{wanted.topic}-{wanted.partition}"
        answer = self._receive(address)
        if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return memoryview(b""), self._behind_gap(wanted, offset)
        if answer.error_code in RETRIABLE:
            raise TryAgain(f"{where}: {error_name(answer.error_code)}")
        if answer.error_code:
            raise NoAnswer(f"{where}: fetch answers {error_name(answer.error_code)}")
        data, next_offset = whole_batches(memoryview(answer.records or b""), wanted.end)
        if next_offset is None:
            if 0 <= answer.high_watermark < wanted.end and self._latest(wanted) < wanted.end:
                self._lose(wanted, f"the log ends at {self._latest(wanted)}, offset {wanted.end} was there before")
                return memoryview(b""), wanted.end
            raise TryAgain(f"{where}: nothing at offset {offset}")
        return data, max(next_offset, offset)

    def _latest(self, wanted: OffsetRange) -> int:
        """A new leader may fetch less for a moment; its answer to ListOffsets counts."""
        place = (wanted.topic, wanted.partition)
        return self._cluster.latest([place])[place]

    def _send_ahead(self, wanted: OffsetRange, offset: int) -> Address | None:
        """Ask for the next run while the present one is used. A failure shows when it is asked for again."""
        try:
            return self._send(wanted, offset)
        except (TryAgain, LinkFailed):
            self._cluster.start_anew()
            return None

    def _send(self, wanted: OffsetRange, offset: int) -> Address:
        address = self._cluster.leader((wanted.topic, wanted.partition))
        partition = FetchRequestPartition(
            partition=wanted.partition, fetch_offset=offset, partition_max_bytes=self._fetch_bytes
        )
        request = FetchRequest(
            max_wait_ms=WAIT_MS_MAX,
            min_bytes=1,
            max_bytes=self._fetch_bytes,
            topics=[FetchRequestTopic(topic=wanted.topic, partitions=[partition])],
        )
        self._cluster.link(address).send(request)
        return address

    def _receive(self, address: Address) -> FetchResponsePartition:
        answer = self._cluster.link(address).receive()
        if answer.error_code or not answer.responses or not answer.responses[0].partitions:
            raise TryAgain(f"fetch answers {error_name(answer.error_code)}")
        return answer.responses[0].partitions[0]

    def _behind_gap(self, wanted: OffsetRange, offset: int) -> int:
        """Where to go on when the log does not have `offset`."""
        place = (wanted.topic, wanted.partition)
        earliest = self._cluster.earliest([place])[place]
        latest = self._latest(wanted)
        if earliest <= offset <= latest:
            raise TryAgain(f"{place[0]}-{place[1]}: a node did not know offset {offset} yet")
        self._lose(wanted, f"offset {offset} is gone, the log holds {earliest} to {latest}")
        return min(earliest, wanted.end) if offset < earliest else wanted.end

    def _lose(self, wanted: OffsetRange, what: str) -> None:
        where = f"{wanted.topic}-{wanted.partition}"
        if self._fail_on_data_loss:
            raise DataLost(f"{where}: {what}. Read on without it by setting failOnDataLoss to false")
        _log.warning("data lost, reading on: %s: %s", where, what)
