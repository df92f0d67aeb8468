"""When each of many groups wants its next tick, without a timer for each.

Deadlines fall into buckets of BUCKET_MS, and a heap holds the buckets' numbers. A group is in at most one bucket.
Re-arming is lazy: a deadline that moves later, as every heartbeat does to every follower, leaves the group where it is,
and is put right when that bucket comes up. A tick is at most BUCKET_MS late, never early.

Cost: arming O(1) amortised when it has to do anything; a group without deadline costs nothing at all.
"""

from heapq import heappop, heappush

from tidelog.raft.settings import NEVER_MS

BUCKET_MS = 10


class Timers:
    __slots__ = ("_bucket_of", "_buckets", "_heap")

    def __init__(self) -> None:
        self._bucket_of: dict[int, int] = {}
        """Group -> the one bucket it is in."""

        self._buckets: dict[int, dict[int, None]] = {}
        """Bucket -> its groups, in a dict for its order: the same events must give the same ticks."""

        self._heap: list[int] = []
        """Every bucket that exists, once."""

    def __len__(self) -> int:
        """Groups that are armed."""
        return len(self._bucket_of)

    def arm(self, group: int, deadline_ms: int) -> None:
        """Have the group in `due` no later than its bucket; earlier is possible, so it has to be asked again."""
        bucket = -(-deadline_ms // BUCKET_MS)
        armed = self._bucket_of.get(group)
        if armed is not None:
            if armed <= bucket:
                return
            del self._buckets[armed][group]
        self._bucket_of[group] = bucket
        groups = self._buckets.get(bucket)
        if groups is None:
            groups = self._buckets[bucket] = {}
            heappush(self._heap, bucket)
        groups[group] = None

    def disarm(self, group: int) -> None:
        bucket = self._bucket_of.pop(group, None)
        if bucket is not None:
            del self._buckets[bucket][group]

    def due(self, now_ms: int) -> list[int]:
        """Take the groups whose bucket has come."""
        groups: list[int] = []
        while self._heap and self._heap[0] * BUCKET_MS <= now_ms:
            groups.extend(self._buckets.pop(heappop(self._heap)))
        for group in groups:
            del self._bucket_of[group]
        return groups

    def next_ms(self) -> int:
        """When to ask `due` again."""
        while self._heap and not self._buckets[self._heap[0]]:
            del self._buckets[heappop(self._heap)]
        return self._heap[0] * BUCKET_MS if self._heap else NEVER_MS
