"""What the object store holds of partitions, as the driver sees it before it plans.

A partition's folder is found by its topic's id, which the cluster tells: what was left by a topic of the same name is
another folder. Of the folder the manifest counts, which names finished segments only. It may be older than the stream's
own state: segments that it does not name yet are the brokers' part, and those that are gone meanwhile are read from the
brokers too (`tier_read`), or are lost for them as well.

A manifest is read again only when a query has come to its end, and when nothing new is there then, the partition has
caught up: from then on its records come from the brokers, for the life of this object.

Bounds: CALLS_MAX calls at a time; of the segments that a query has passed, nothing is kept.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from uuid import UUID

from tidelog.spark.cluster import Cluster
from tidelog.spark.kernel.offsets import Partition
from tidelog.spark.kernel.options import TierOptions
from tidelog.spark.kernel.ranges import OffsetRange
from tidelog.spark.tier_plan import Holding, Stored
from tidelog.spark.tier_store import HistoryFailed, key_ring, opened
from tidelog.tier.errors import ObjectDamagedError, ObjectMissingError, TierError
from tidelog.tier.layout import INDEXES, PackedIndex, StreamManifest, StreamPlace, id_text
from tidelog.tier.metadata import RemoteSegment
from tidelog.tier.sealing import Seal
from tidelog.tier.store import ObjectStore

CALLS_MAX = 16

_log = logging.getLogger(__name__)


class History:
    def __init__(self, tier: TierOptions) -> None:
        self._store: ObjectStore = opened(tier)
        self._ring = key_ring(tier)
        self._manifests: dict[StreamPlace, tuple[RemoteSegment, ...]] = {}
        self._opened: dict[UUID, Stored] = {}
        self._caught_up: set[StreamPlace] = set()

    def holdings(self, cluster: Cluster, ranges: Sequence[OffsetRange]) -> dict[Partition, Holding]:
        """What the store has of the partitions of these ranges; without those of which it has nothing."""
        if not ranges:
            return {}
        cluster_id, topic_ids = cluster.identities(dict.fromkeys(each.topic for each in ranges))
        wanted = {
            StreamPlace(each.topic, topic_ids[each.topic], each.partition): each
            for each in ranges
            if topic_ids[each.topic].int  # a cluster that knows no ids has no tiers that we know
        }
        behind = {place: each for place, each in wanted.items() if place not in self._caught_up}
        if not behind:
            return {}
        try:
            found = asyncio.run(self._look(behind, cluster_id))
        except TierError as error:
            raise HistoryFailed(f"{error}. To read from the brokers alone, leave tier.path out") from None
        earliest = cluster.earliest((place.topic, place.partition) for place in found)
        return {
            (place.topic, place.partition): Holding(earliest[place.topic, place.partition], segments)
            for place, segments in found.items()
        }

    async def _look(
        self, wanted: Mapping[StreamPlace, OffsetRange], cluster_id: str | None
    ) -> dict[StreamPlace, list[Stored]]:
        room = asyncio.Semaphore(CALLS_MAX)
        described = await asyncio.gather(
            *(self._described(place, each.start, cluster_id, room) for place, each in wanted.items())
        )
        chosen = [
            (place, segment)
            for (place, each), segments in zip(wanted.items(), described, strict=True)
            for segment in segments
            if segment.base_offset < each.end and segment.next_offset > each.start
        ]
        indexed = await asyncio.gather(*(self._indexed(place, segment, room) for place, segment in chosen))
        self._opened = {stored.segment: stored for stored in indexed if stored is not None}
        found: dict[StreamPlace, list[Stored]] = {}
        for (place, _), stored in zip(chosen, indexed, strict=True):
            if stored is not None:
                found.setdefault(place, []).append(stored)
        return found

    async def _described(
        self, place: StreamPlace, start: int, cluster_id: str | None, room: asyncio.Semaphore
    ) -> tuple[RemoteSegment, ...]:
        """The finished segments of a partition, of which some may be deleted meanwhile."""
        known = self._manifests.get(place, ())
        if not known or known[-1].next_offset <= start:
            async with room:
                known = self._manifests[place] = await self._manifest(place, cluster_id)
            if not known or known[-1].next_offset <= start:
                self._caught_up.add(place)
        return known

    async def _manifest(self, place: StreamPlace, cluster_id: str | None) -> tuple[RemoteSegment, ...]:
        try:
            manifest = StreamManifest.decode(await self._store.read_all(place.manifest))
        except ObjectMissingError:
            _log.info("the store has nothing of %s", place.folder)
            return ()
        if manifest.place != place:
            raise ObjectDamagedError(f"{place.manifest} describes {manifest.place.folder}")
        if manifest.cluster_id != cluster_id:
            _log.warning("%s belongs to cluster %s: it is not read", place.folder, manifest.cluster_id)
            return ()
        return tuple(sorted(manifest.segments, key=lambda each: each.base_offset))

    async def _indexed(self, place: StreamPlace, segment: RemoteSegment, room: asyncio.Semaphore) -> Stored | None:
        """None when the segment is deleted meanwhile."""
        known = self._opened.get(segment.id)
        if known is not None:
            return known
        name = place.object_name(segment, INDEXES)
        try:
            async with room:
                index = PackedIndex.decode(await self._store.read_all(name))
        except ObjectMissingError:
            return None
        if index.base_offset != segment.base_offset or index.about.get("segment_id") != id_text(segment.id):
            raise ObjectDamagedError(f"{name} is the index of another segment")
        Seal.open(segment.id, index.seal, self._ring)  # a key that is lacking shows here and not in a task
        return Stored.of(place, segment, index)
