"""A topic that shows another cluster's, straight from the store: read, never written, never deleted from.

The owner's manifest says what there is. The leader reads it every `remote.log.manager.task.interval.ms` and writes what
is new into the stream's own Raft group, so all replicas know the same segments at the same index, and neither the first
nor the last offset goes back when another one leads. Nothing else is known of the owner, and nothing is kept on disk:
whatever a crash interrupts, the next look at the manifest does again.

Objects may be gone before the manifest says so, since owners delete while others read. Who meets that looks at the
manifest again (`Tiering.hurry`).
"""

from typing import TYPE_CHECKING

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

    @property
    def replica(self) -> Replica:
        return self._replica

    async def visit(self) -> None:
        """Take up what the owner's manifest says by now. Raises TierError when it cannot be read."""
        if not self._replica.ready:
            raise NotLeaderError(f"stream {self._replica.stream} is not led here any more")
        manifest = await self._manifest()
        if manifest is None:
            return
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

    async def _manifest(self) -> StreamManifest | None:
        try:
            manifest = StreamManifest.decode(await self._tiering.store.read_all(self._place.manifest))
        except ObjectMissingError:
            if self._metadata.log.mirrored:
                raise TierError(f"{self._place.folder} is gone from the store: its owner has deleted it") from None
            return None  # nothing of this partition was ever copied
        if manifest.place != self._place:
            raise LayoutError(f"the manifest in {self._place.folder} is that of {manifest.place.folder}")
        if manifest.deleted:
            raise TierError(f"{self._place.topic} is deleted by its owner; nothing more can be read")
        return manifest
