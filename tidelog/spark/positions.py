"""Where reading begins and ends: the options' earliest, latest, offsets and times, as offsets of real partitions."""

from collections.abc import Mapping, Sequence

from tidelog.spark.cluster import Cluster
from tidelog.spark.errors import BadOption, DataLost
from tidelog.spark.kernel.offsets import EARLIEST, LATEST, Offsets, Partition
from tidelog.spark.kernel.options import Positions


def resolve(cluster: Cluster, partitions: Sequence[Partition], positions: Positions, option: str) -> Offsets:
    """The offset of each partition.

    Offsets by partition must name all of them and no other. A time that no record has reached means the latest offset,
    as with Spark's `startingOffsetsByTimestampStrategy` latest.
    """
    if positions.everywhere is not None:
        return _settled(cluster, dict.fromkeys(partitions, positions.everywhere))
    if positions.time_ms is not None:
        return _at_times(cluster, dict.fromkeys(partitions, positions.time_ms))
    named = positions.times if positions.times is not None else positions.offsets
    assert named is not None, "positions say something"
    if set(named) != set(partitions):
        there, given = _names(partitions), _names(named)
        raise BadOption(f"{option} must name exactly the partitions that are read: {there}; it names {given}")
    if positions.times is not None:
        return _at_times(cluster, positions.times)
    return _settled(cluster, named)


def check_not_gone(cluster: Cluster, starts: Mapping[Partition, int]) -> None:
    """Refuse to begin at offsets that the log does not have any more, or not yet."""
    earliest, latest = cluster.earliest(starts), cluster.latest(starts)
    for place, start in starts.items():
        if not earliest[place] <= start <= latest[place]:
            raise DataLost(
                f"{place[0]}-{place[1]}: it holds offsets {earliest[place]} to {latest[place]}, reading is to begin at "
                f"{start}. Read what is there by setting failOnDataLoss to false"
            )


def _settled(cluster: Cluster, offsets: Mapping[Partition, int]) -> Offsets:
    special = {place: offset for place, offset in offsets.items() if offset in {EARLIEST, LATEST}}
    return {**offsets, **(cluster.at_times(special) if special else {})}


def _at_times(cluster: Cluster, times: Mapping[Partition, int]) -> Offsets:
    found = cluster.at_times(times)
    younger = [place for place, offset in found.items() if offset < 0]
    return {**found, **(cluster.latest(younger) if younger else {})}


def _names(partitions: Sequence[Partition] | Mapping[Partition, int]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions)) or "none"
