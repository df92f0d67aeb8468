"""What tiering counts and how far it is behind, in plain numbers that anybody can read and serve.

Counts only grow, by topic and for the whole node; a rate is their growth over time, which whoever asks twice can work
out. Lags are of this moment, computed from both tiers when somebody asks. Names are those of Kafka's metrics (KIP-405,
KIP-963) without `PerSec`.

Cost: two additions a count; lags walk the segments of one stream.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, fields

from tidelog.storage import SegmentView
from tidelog.tier.cache import CacheCounts
from tidelog.tier.metadata import RemoteLog, SegmentState


@dataclass(slots=True)
class Counts:
    fetch_requests: int = 0
    fetch_bytes: int = 0
    fetch_errors: int = 0
    fetch_throttled: int = 0  # left out of an answer, because the quota was used up
    fetch_expires: int = 0  # partitions that were empty in an answer, because the store took too long
    list_offsets_expires: int = 0  # partitions of which no offset was found in time
    copy_requests: int = 0
    copy_bytes: int = 0
    copy_errors: int = 0
    copy_throttled: int = 0  # pieces that waited, because of the quota
    copy_throttle_ms: int = 0  # how long, all together
    delete_requests: int = 0
    delete_bytes: int = 0
    delete_errors: int = 0

    def named(self) -> dict[str, int]:
        return {f"Remote{_camel(name)}": value for name, value in asdict(self).items()}


_NAMES = frozenset(field.name for field in fields(Counts))


@dataclass(frozen=True, slots=True)
class Sample:
    """One number for a page of metrics. Of a topic, a stream, or with neither of the node."""

    name: str
    value: int
    topic: str = ""
    partition: int = -1


class TierMetrics:
    """The counts of one node."""

    def __init__(self) -> None:
        self.node = Counts()
        self._topics: dict[str, Counts] = {}

    def count(self, topic: str, **more: int) -> None:
        """Add to the counts of a topic and of the node, by their names in `Counts`."""
        assert more.keys() <= _NAMES, more
        counts = self._topics.setdefault(topic, Counts())
        for name, value in more.items():
            setattr(counts, name, getattr(counts, name) + value)
            setattr(self.node, name, getattr(self.node, name) + value)

    def topic(self, name: str) -> Counts:
        return self._topics.get(name) or Counts()

    def keep(self, topics: Collection[str]) -> None:
        """Forget all other topics: they are deleted, or not here any more. What the node did it did all the same."""
        for name in self._topics.keys() - set(topics):
            del self._topics[name]

    def samples(self, caches: Iterable[tuple[str, CacheCounts]]) -> list[Sample]:
        """Everything counted; `caches` are the node's, with their names."""
        found = [Sample(name, value) for name, value in self.node.named().items()]
        for topic, counts in self._topics.items():
            found += [Sample(name, value, topic) for name, value in counts.named().items()]
        for cache, counts in caches:
            found += [Sample(f"Remote{cache}Cache{_camel(name)}", value) for name, value in asdict(counts).items()]
        return found


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@dataclass(frozen=True, slots=True)
class Lags:
    """What is to be done for one stream."""

    copy_bytes: int
    copy_segments: int
    delete_bytes: int
    delete_segments: int

    def named(self) -> dict[str, int]:
        return {
            "RemoteCopyLagBytes": self.copy_bytes,
            "RemoteCopyLagSegments": self.copy_segments,
            "RemoteDeleteLagBytes": self.delete_bytes,
            "RemoteDeleteLagSegments": self.delete_segments,
        }


def lags_of(local: Sequence[SegmentView], remote: RemoteLog, start_offset: int) -> Lags:
    """Closed segments that are not in the store; and what is in the store, or half in it, and is to go."""
    to_copy = [each for each in local[:-1] if each.next_offset > max(remote.copied_until, each.base_offset)]
    to_delete = [each for each in remote.segments() if each.state is SegmentState.DELETE_STARTED]
    to_delete += [] if remote.mirrored else [each for each in remote.readable() if each.next_offset <= start_offset]
    return Lags(
        sum(each.length for each in to_copy), len(to_copy), sum(each.size for each in to_delete), len(to_delete)
    )
