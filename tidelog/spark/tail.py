"""How far a producer has come in a partition: its last batch in the log, found from the end backwards.

What is looked for is almost always near the end, so windows of growing size are read, the last one first. Only headers
are looked at, and the records of the one batch that is found.

Cost: one window of `WINDOW_FIRST` offsets, in the usual case; the whole stretch when the producer is not in it.
"""

from dataclasses import dataclass

from tidelog.spark.cluster import Cluster
from tidelog.spark.fetch import FetchOrigin
from tidelog.spark.kernel.offsets import Partition
from tidelog.spark.kernel.options import FETCH_BYTES_DEFAULT
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.wire.batch import read_header, split_batches
from tidelog.wire.records import read_records

WINDOW_FIRST = 20_000  # offsets
SEQUENCES = 1 << 31


@dataclass(frozen=True, slots=True)
class LastWritten:
    """Of the last record: how many rows were written with it, where it lies, and what it says."""

    rows: int
    offset: int
    key: bytes | None
    value: bytes | None


def find_last_written(
    cluster: Cluster, place: Partition, producer_id: int, from_offset: int, rows_before: int
) -> LastWritten | None:
    """The last record of a producer, not before `from_offset`; `rows_before` it had written for certain.

    Sequence numbers begin again at 0 after 2³¹, so the position is the one that is nearest to what is certain.
    """
    with cluster.sibling() as reading:  # the caller may have requests in flight
        batch = _search(reading, place, producer_id, max(reading.earliest([place])[place], from_offset))
    if batch is None:
        return None
    header = read_header(batch)
    last = read_records(batch)[-1]
    behind = header.base_sequence + header.last_offset_delta + 1
    ahead = (behind - rows_before + SEQUENCES // 2) % SEQUENCES - SEQUENCES // 2
    return LastWritten(rows_before + ahead, last.offset, last.key, last.value)


def _search(cluster: Cluster, place: Partition, producer_id: int, earliest: int) -> bytes | None:
    origin = FetchOrigin(cluster, FETCH_BYTES_DEFAULT, fail_on_data_loss=False)
    end = cluster.latest([place])[place]
    window = WINDOW_FIRST
    while end > earliest:
        begin = max(earliest, end - window)
        found = _last_batch(origin, OffsetRange(*place, begin, end), producer_id)
        if found is not None:
            return found
        end = begin
        window *= 2
    return None


def _last_batch(origin: FetchOrigin, stretch: OffsetRange, producer_id: int) -> bytes | None:
    found = None
    for run in origin.runs(stretch):
        for position, size in split_batches(run.data):
            header = read_header(run.data, position)
            if header.producer_id == producer_id and header.record_count and not header.is_ours:
                found = bytes(run.data[position : position + size])
    return found
