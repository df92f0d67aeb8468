"""A lane: one task of the sink writes its rows, each exactly once, however often the task is tried.

The rows of a lane for a partition have positions 0, 1, 2, … over the whole life of the query. The lane is an
idempotent producer whose sequence numbers *are* these positions, and whose producer id follows from the sink's identity
and the lane's number. So the log itself says how far a lane has come (the header of its last batch), and a broker takes
a batch only if it begins where the lane's last one ended: the append is a compare-and-swap. From this follows all:

* A first attempt just writes, from the position that the commit record has.
* A retry (of the task, of the batch, after a restart) does the same. If an earlier attempt has written something, the
  broker answers that the sequence is not the next one, or with an offset that was there before the retry began. Then
  the retry looks up the lane's last batch in the log, compares its last record with its own row at that position, and
  goes on behind it.
* A first attempt that still writes while the retry runs does no harm: both have the same rows at the same positions,
  and each position can be written once.
* Rows of a lane keep their order, for a batch that arrives too early is refused.

A broker forgets producers that were idle for long (a day, usually), and takes anything from a producer that it does not
know. So when the last commit is older than `TRUST_MS`, the lane first reads what the partition has got since then.

What it relies on: a retry brings the same rows in the same order (Spark's contract for a replayed batch, when what is
before the sink is deterministic). What was checked and is different is `RowsDiffer`.

Bounds: `BUFFER_BYTES` of rows wait, and as many are in flight at most, at most `IN_FLIGHT_MAX` requests a node.
Every failure that may pass is tried again until nothing has moved for `delivery_s`.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.spark.cluster import RETRIABLE, Cluster, Patience, TryAgain
from tidelog.spark.commit_record import Written
from tidelog.spark.errors import DeliveryFailed, RowRefused, RowsDiffer
from tidelog.spark.kernel import rows as kernel
from tidelog.spark.kernel.encode import Rows, cut, encode_batch
from tidelog.spark.kernel.offsets import Partition
from tidelog.spark.kernel.options import Address, WriteOptions
from tidelog.spark.link import LinkFailed, error_name
from tidelog.spark.tail import LastWritten, find_last_written
from tidelog.wire.batch import HEADER_BYTES
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import ProduceRequest, ProduceRequestPartition, ProduceRequestTopic

BUFFER_BYTES = 16 << 20
REQUEST_BYTES = 4 << 20  # of all batches in one request; a single batch may be larger
IN_FLIGHT_MAX = 4  # a broker knows a producer's last five batches again
TRUST_MS = 3_600_000  # brokers remember a producer for at least this long
SEQUENCES = 1 << 31

_WRITTEN_BEFORE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class LaneStart:
    """What a lane must know before it writes."""

    identity: str
    number: int
    written: Mapping[Partition, Written] = field(default_factory=dict)
    partition_counts: Mapping[str, int] = field(default_factory=dict)
    is_doubtful: bool = False
    """The brokers may have forgotten this producer."""

    @property
    def producer_id(self) -> int:
        """Far above all that a cluster gives out itself: those count up from 0."""
        name = f"{self.identity}/{self.number}".encode()
        return 1 << 62 | int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 2


@dataclass(slots=True)
class _Item:
    """Rows that make up one batch."""

    position: int
    rows: Rows
    size: int
    batch: bytearray | None = None

    @property
    def end(self) -> int:
        return self.position + len(self.rows)


class _Target:
    """A partition that the lane writes to."""

    def __init__(self, place: Partition, start: Written, log_end: int) -> None:
        self.place = place
        self.start = start
        self.log_end = log_end  # when this attempt began: what is acknowledged before it, an earlier one wrote
        self.acknowledged = start.rows
        self.end_offset = start.end_offset
        self.queued_end = start.rows  # position behind the last row that has become an item
        self.items: deque[_Item] = deque()
        self.in_flight: deque[_Item] = deque()
        self.pending: list[Rows] = []
        self.pending_bytes = 0
        self.unwritten_bytes = 0  # of all rows that are pending, items or in flight
        self.earlier: LastWritten | None = None  # how far an earlier attempt has come

    def __str__(self) -> str:
        return f"{self.place[0]}-{self.place[1]}"

    def add(self, rows: Rows) -> None:
        size = int(rows.sizes().sum())
        self.pending.append(rows)
        self.pending_bytes += size
        self.unwritten_bytes += size

    def close_pending(self, batch_bytes: int) -> None:
        """Make items of the rows that have gathered."""
        if not self.pending:
            return
        rows = kernel.join(self.pending)
        self.pending, self.pending_bytes = [], 0
        sizes = rows.sizes()
        begin = 0
        for end in cut(sizes, batch_bytes - HEADER_BYTES):
            self.items.append(_Item(self.queued_end, rows.slice(begin, end - begin), int(sizes[begin:end].sum())))
            self.queued_end += end - begin
            begin = end
        self.leave_out_written()

    def leave_out_written(self) -> None:
        """Drop the rows that an earlier attempt has written, after a look at the last of them."""
        earlier = self.earlier
        if earlier is None:
            return
        while self.items and self.items[0].position < earlier.rows:
            item = self.items[0]
            if item.position <= earlier.rows - 1 < item.end and not kernel.same_content(
                item.rows, earlier.rows - 1 - item.position, earlier.key, earlier.value
            ):
                raise RowsDiffer(
                    f"{self}: an earlier attempt has written another row at position {earlier.rows - 1} (offset "
                    f"{earlier.offset}): rows must come in the same order when a task is tried again; sort them "
                    "(sortWithinPartitions) before the sink"
                )
            self.unwritten_bytes -= item.size
            if item.end <= earlier.rows:
                self.items.popleft()
            else:
                rows = item.rows.slice(earlier.rows - item.position)
                self.items[0] = _Item(earlier.rows, rows, int(rows.sizes().sum()))
                self.unwritten_bytes += self.items[0].size
        self.acknowledged = max(self.acknowledged, min(earlier.rows, self.queued_end))
        self.end_offset = max(self.end_offset, earlier.offset + 1)

    def take_back(self) -> None:
        """What was sent has an unknown end: it is sent again, as it was."""
        self.items.extendleft(reversed(self.in_flight))
        self.in_flight.clear()


class _WrittenBefore(Exception):
    """The broker's answer shows that an earlier attempt has written to this partition."""

    def __init__(self, target: _Target, position: int, code: int) -> None:
        super().__init__(str(target))
        self.target = target
        self.position = position
        self.code = code


class LaneWriter:
    def __init__(self, cluster: Cluster, options: WriteOptions, start: LaneStart, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._options = options
        self._start = start
        self._now_ms = now_ms
        self._producer_id = start.producer_id
        self._targets: dict[Partition, _Target] = {}
        self._counts: dict[str, int] = {}  # by topic, as the cluster has them now
        self._requests: dict[Address, deque[list[_Target]]] = {}
        self._patience = Patience(options.delivery_s)
        self._rows = 0

    @property
    def partition_counts(self) -> Mapping[str, int]:
        return self._counts

    def write(self, batches: Iterable[pa.RecordBatch]) -> dict[Partition, Written]:
        """Write all rows: when it returns they are in the log, once each. Returns what the lane has written by now."""
        for batch in batches:
            if batch.num_rows:
                self._accept(batch)
                self._settle(BUFFER_BYTES)
        for target in self._targets.values():
            target.close_pending(self._options.batch_bytes)
        self._settle(0)
        for target in self._targets.values():
            if target.earlier is not None and target.earlier.rows > target.queued_end:
                raise RowsDiffer(
                    f"{target}: an earlier attempt has written {target.earlier.rows - target.queued_end} rows more: "
                    "what is before the sink must give the same rows when a task is tried again"
                )
        return {place: Written(target.acknowledged, target.end_offset) for place, target in self._targets.items()}

    # --- rows in ---

    def _accept(self, batch: pa.RecordBatch) -> None:
        topics = kernel.topics_of(batch, self._options.topic)
        for topic in topics.dictionary.to_pylist():
            if topic not in self._counts:
                self._counts |= self._cluster.topics([topic])
        counts = self._counts | dict(self._start.partition_counts)
        parts = kernel.by_partition(batch, topics, counts, self._start.number, self._rows)
        self._open([place for place, _ in parts])
        rows = kernel.rows_of(batch, self._now_ms())
        self._check(rows, batch)
        for place, indices in parts:
            target = self._targets[place]
            target.add(kernel.take(rows, indices))
            if target.pending_bytes >= self._options.batch_bytes:
                target.close_pending(self._options.batch_bytes)
        self._rows += batch.num_rows

    def _check(self, rows: Rows, batch: pa.RecordBatch) -> None:
        sizes = rows.sizes() + HEADER_BYTES
        largest = int(np.argmax(sizes))
        if sizes[largest] > self._options.record_bytes_max:
            topic = kernel.topics_of(batch, self._options.topic)[largest]
            key = (rows.keys[largest].as_py() or b"")[:64]
            raise RowRefused(
                f"row {self._rows + largest} of task {self._start.number} (topic {topic}, key {key!r}) has about "
                f"{int(sizes[largest])} bytes as a record, kafka.max.request.size allows "
                f"{self._options.record_bytes_max}: raise it (and the topic's max.message.bytes), or shorten the row"
            )
        if kernel.has_nameless_headers(rows):
            raise RowRefused(
                f"a row of task {self._start.number} has a header without a name: give it one, or leave it"
            )

    def _open(self, places: Iterable[Partition]) -> None:
        """Begin to write to partitions that this attempt has not written to yet."""
        new = [place for place in places if place not in self._targets]
        if not new:
            return
        for topic, partition in new:
            if partition >= self._counts[topic]:
                raise RowRefused(
                    f"a row is for partition {partition} of topic {topic}, which has {self._counts[topic]}"
                )
        ends = self._cluster.latest(new)
        for place in new:
            start = self._start.written.get(place, Written(0, 0))
            target = self._targets[place] = _Target(place, start, ends[place])
            if self._start.is_doubtful:
                self._look_up_earlier(target, start.end_offset)

    # --- batches out ---

    def _settle(self, bytes_max: int) -> None:
        """Send until at most `bytes_max` wait or are in flight."""
        while True:
            try:
                self._send_what_may_go()
                if sum(target.unwritten_bytes for target in self._targets.values()) <= bytes_max:
                    return
                if not any(self._requests.values()):  # all of it is still pending
                    for target in self._targets.values():
                        target.close_pending(self._options.batch_bytes)
                    continue
                self._receive_one()
            except (TryAgain, LinkFailed) as failure:
                self._start_anew(failure)
            except _WrittenBefore as sign:
                self._go_on_behind(sign)

    def _go_on_behind(self, sign: "_WrittenBefore") -> None:
        target = sign.target
        self._take_back()
        self._look_up_earlier(target, 0)
        if target.earlier is None or target.earlier.rows <= sign.position:
            what = f"{target}: {error_name(sign.code)} at position {sign.position}, but the log has nothing behind it"
            self._start_anew(TryAgain(what))  # a leader that does not know all of its log yet

    def _send_what_may_go(self) -> None:
        by_leader: dict[Address, list[_Target]] = {}
        for target in self._targets.values():
            if target.items:
                by_leader.setdefault(self._cluster.leader(target.place), []).append(target)
        for address, targets in by_leader.items():
            requests = self._requests.setdefault(address, deque())
            while len(requests) < IN_FLIGHT_MAX:
                chosen = self._choose([target for target in targets if target.items])
                if not chosen:
                    break
                self._send(address, chosen)
                requests.append(chosen)

    @staticmethod
    def _choose(targets: list[_Target]) -> list[_Target]:
        """Those whose next batch goes into one request."""
        chosen: list[_Target] = []
        size = 0
        for target in targets:
            size += target.items[0].size
            if chosen and size > REQUEST_BYTES:
                break
            chosen.append(target)
        return chosen

    def _send(self, address: Address, targets: list[_Target]) -> None:
        topics: dict[str, list[ProduceRequestPartition]] = {}
        for target in targets:
            item = target.items[0]
            if item.batch is None:
                item.batch = encode_batch(
                    item.rows,
                    producer_id=self._producer_id,
                    producer_epoch=0,
                    base_sequence=item.position % SEQUENCES,
                    codec=self._options.codec,
                )
            topic, partition = target.place
            topics.setdefault(topic, []).append(ProduceRequestPartition(index=partition, records=item.batch))
        request = ProduceRequest(
            acks=-1,
            timeout_ms=int(self._options.request_s * 1000),
            topic_data=[ProduceRequestTopic(name=name, partition_data=parts) for name, parts in topics.items()],
        )
        self._cluster.link(address).send(request)
        for target in targets:
            target.in_flight.append(target.items.popleft())

    def _receive_one(self) -> None:
        address = next(address for address, requests in self._requests.items() if requests)
        answer = self._cluster.link(address).receive()
        self._requests[address].popleft()
        for topic in answer.responses:
            for partition in topic.partition_responses:
                self._settle_one(self._targets[topic.name, partition.index], partition)

    def _settle_one(self, target: _Target, answer: Any) -> None:
        item = target.in_flight[0]
        code = answer.error_code
        if code == ErrorCode.NONE and answer.base_offset >= target.log_end:
            target.in_flight.popleft()
            target.unwritten_bytes -= item.size
            target.acknowledged = item.end
            target.end_offset = answer.base_offset + len(item.rows)
            self._patience.progress()
        elif code == ErrorCode.NONE or code in _WRITTEN_BEFORE:
            raise _WrittenBefore(target, item.position, code)
        elif code in RETRIABLE:
            raise TryAgain(f"{target}: {error_name(code)}")
        elif code in _TOO_LARGE:
            raise RowRefused(
                f"{target}: the cluster refuses a batch of {len(item.batch or b'')} bytes ({error_name(code)}), rows "
                f"{item.position} to {item.end}: set kafka.batch.size below the topic's max.message.bytes, or raise it"
            )
        else:
            raise DeliveryFailed(
                f"{target}: the cluster refuses the rows at positions {item.position} to {item.end}: {error_name(code)}"
            )

    def _look_up_earlier(self, target: _Target, from_offset: int) -> None:
        """Learn how far an earlier attempt has come, and leave out what it has written."""
        found = find_last_written(self._cluster, target.place, self._producer_id, from_offset, target.start.rows)
        if found is None:
            if from_offset or self._start.is_doubtful:
                return
            raise DeliveryFailed(
                f"{target}: the cluster says that this lane has written there, but the log has no batch of it any more "
                f"(position {target.start.rows}): retention has removed it, or the log was lost"
            )
        if found.rows < target.acknowledged:
            raise DeliveryFailed(
                f"{target}: {target.acknowledged} rows were acknowledged, the log has {found.rows} (up to offset "
                f"{found.offset}): it has lost acknowledged rows"
            )
        if found.rows > target.acknowledged:
            self._patience.progress()
        target.earlier = found
        target.log_end = max(target.log_end, found.offset + 1)
        target.leave_out_written()

    def _take_back(self) -> None:
        """Close the links: what is in flight is sent again when it is known what the log has."""
        self._cluster.start_anew()
        self._requests.clear()
        for target in self._targets.values():
            target.take_back()

    def _start_anew(self, failure: Exception) -> None:
        self._take_back()
        if not self._patience.wait():
            stuck = [f"{target} at position {target.acknowledged}" for target in self._targets.values() if target.items]
            raise DeliveryFailed(
                f"nothing could be written for {self._options.delivery_s:.0f} s, to {', '.join(stuck)}: {failure}"
            ) from None
