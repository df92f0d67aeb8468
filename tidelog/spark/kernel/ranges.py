"""Which offsets a micro-batch takes, and how they are split into Spark's partitions. Pure functions.

`limit` follows Spark's Kafka source: a limit is shared out in proportion to what waits in each partition, and a
partition with anything waiting gets at least one offset, so none starves. `split` cuts ranges so that about
`parts_min` parts of equal size come out; a range is never joined with another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from tidelog.spark.kernel.offsets import Offsets, Partition


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """start <= offset < end of one partition. Some may be missing (compacted): a range may hold fewer records."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.start, 0)


def ranges_between(start: Mapping[Partition, int], end: Mapping[Partition, int]) -> list[OffsetRange]:
    """What lies between, without the empty ones. Both must know the same partitions."""
    assert start.keys() == end.keys(), "every partition has a start and an end"
    found = [OffsetRange(topic, partition, start[topic, partition], end[topic, partition]) for topic, partition in end]
    return sorted(found_range for found_range in found if found_range.size)


def limit(start: Mapping[Partition, int], latest: Mapping[Partition, int], rows_max: int) -> Offsets:
    """Where a micro-batch of at most about `rows_max` offsets ends."""
    waiting = {place: max(latest[place] - start[place], 0) for place in latest}
    total = sum(waiting.values())
    if total <= rows_max:
        return dict(latest)
    ends: Offsets = {}
    for place, count in waiting.items():
        share = count * rows_max / total
        taken = min(max(int(share), 1), count) if count else 0
        ends[place] = start[place] + taken if count else latest[place]
    return ends


def split(ranges: list[OffsetRange], parts_min: int | None) -> list[OffsetRange]:
    """The ranges in at least about `parts_min` parts (fewer only when there are fewer offsets)."""
    if parts_min is None or len(ranges) >= parts_min:
        return ranges
    total = sum(one.size for one in ranges)
    parts: list[OffsetRange] = []
    for one in ranges:
        count = min(max(round(one.size / total * parts_min), 1), one.size)
        bounds = [one.start + one.size * number // count for number in range(count + 1)]
        parts += [OffsetRange(one.topic, one.partition, begin, end) for begin, end in pairwise(bounds)]
    return parts
