"""A topic that shows another cluster's, straight from the store: read, never written, never deleted from.

The owner's manifest says what there is. The leader reads it every `remote.log.manager.task.interval.ms` and writes what
is new into the stream's own Raft group, so all replicas know the same segments at the same index, and neither the first
nor the last offset goes back when another one leads. Nothing else is known of the owner, and nothing is kept on disk:
whatever a crash interrupts, the next look at the manifest does again.

A manifest also says how many partitions its topic has: those that the owner adds are added here too, by whichever
leader sees it first. What another one asks for meanwhile comes too late, and changes nothing.

Objects may be gone before the manifest says so, since owners delete while others read. Who meets that looks at the
manifest again (`Tiering.hurry`).

Cost: one GET a visit. A manifest that is the same as the last time is not looked into; one that is not is decoded in a
thread, since that of ten thousand segments takes 100 ms.
"""

from typing import TYPE_CHECKING

from tidelog import faults
from tidelog.server.replica import Replica
from tidelog.server.tier_metadata import NotLeaderError, RaftMetadata
from tidelog.tier.errors import LayoutError, ObjectMissingError, TierError
from tidelog.tier.layout import StreamManifest, StreamPlace
from tidelog.tier.metadata import SegmentsMirrored

if TYPE_CHECKING:
    from tidelog.server.tiering import Tiering

SEGMENTS_AN_ENTRY = 500  # some 40 KB


class MirroredStream:
    """One attached stream that this node leads."""

    def __init__(self, tiering: "Tiering", replica: Replica, place: StreamPlace) -> None:
        """`place` is the owner's."""
        self._tiering = tiering
        self._replica = replica
        self._metadata = RaftMetadata(replica)
        self._place = place
        self._followed = b""
        """The manifest that there is nothing more to take from, as long as this node leads."""

    @property
    def replica(self) -> Replica:
        return self._replica

    async def visit(self) -> None:
        """Take up what the owner's manifest says by now. Raises TierError when it cannot be read."""
        self._check_leading()
        content = await self._content()
        if content is None or content == self._followed:
            return
        manifest = await self._decoded(content)
        if faults.ARMED:
            faults.hit("tier.mirror.manifest-read")
        await self._take_up(manifest)
        if await self._has_partitions(manifest.partitions):
            self._followed = content

    def _check_leading(self) -> None:
        if not self._replica.ready:
            raise NotLeaderError(f"stream {self._replica.stream} is not led here any more")

    async def _content(self) -> bytes | None:
        try:
            return await self._tiering.store.read_all(self._place.manifest)
        except ObjectMissingError:
            if self._metadata.log.mirrored:
                raise TierError(f"{self._place.folder} is gone from the store: its owner has deleted it") from None
            return None  # nothing of this partition was ever copied

    async def _decoded(self, content: bytes) -> StreamManifest:
        manifest = await self._tiering.in_thread(StreamManifest.decode, content)
        if manifest.place != self._place:
            raise LayoutError(f"the manifest in {self._place.folder} is that of {manifest.place.folder}")
        if manifest.deleted:
            raise TierError(f"{self._place.topic} is deleted by its owner; nothing more can be read")
        return manifest

    async def _take_up(self, manifest: StreamManifest) -> None:
        known = self._metadata.log
        new = [each for each in manifest.segments if each.base_offset >= known.copied_until]
        if known.mirrored and not new and manifest.start_offset <= known.start_offset:
            return
        for segment in known.readable():
            if segment.next_offset <= manifest.start_offset:
                self._tiering.reads.forget(segment)
        for first in range(0, max(1, len(new)), SEGMENTS_AN_ENTRY):
            part = tuple(new[first : first + SEGMENTS_AN_ENTRY])
            await self._metadata.record(SegmentsMirrored(manifest.start_offset, part))
            if faults.ARMED:
                faults.hit("tier.mirror.recorded")

    async def _has_partitions(self, count: int) -> bool:
        """Whether the topic has as many as its owner's; those that are missing are asked for."""
        topic = self._tiering.topic_of(self._replica)
        if topic is None or len(topic.partitions) >= count:
            return True
        await self._tiering.add_partitions(topic, count)
        return False  # to be seen at the next visit
