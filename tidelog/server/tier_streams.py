"""What a leader does about its stream's remote segments: clean up, expire, delete, copy, describe.

One visit (`TierStream.visit`) does all that there is to do, in this order:

0. A stream that begins behind 0, tiered, and without remote segments, is one that is made again from the store: what
   its manifest there names is adopted, by one entry, with its idempotent producers.
1. Segments whose copy or deletion nobody is at work on are deleted: left by a leader that failed, or lost its office.
2. The log start moves past what total retention gives up, by an entry; then what lies before it is deleted.
3. The stream's manifest in the store is written anew if anything has changed. Every tiered stream has one, whether
   anything of it was copied or not: it says whose the folder is.
4. Closed segments below the commit index are copied, in order, each under a fresh id: STARTED is committed before the
   first byte is sent, FINISHED when both objects are there. A copy that fails is deleted again. The manifest follows.

Whoever is not the leader any more cannot commit, and stops where it is; the next leader begins with 1.
"""

import logging
import struct
import uuid
from itertools import islice
from typing import TYPE_CHECKING

from tidelog import faults
from tidelog.server.clock import wall_ms
from tidelog.server.replica import Replica
from tidelog.server.tier_metadata import NotLeaderError, RaftMetadata
from tidelog.server.tier_producers import ProducersFollowed
from tidelog.storage.disk import File
from tidelog.storage.readers import SegmentReader
from tidelog.storage.segment import Segment
from tidelog.tier.copying import SegmentCopy, copy_segment, delete_segment
from tidelog.tier.errors import ObjectMissingError, TierError
from tidelog.tier.image import SegmentImage, image_of
from tidelog.tier.layout import StreamManifest, StreamPlace, segment_text
from tidelog.tier.metadata import (
    Outcome,
    RemoteSegment,
    SegmentAdded,
    SegmentMoved,
    SegmentsAdopted,
    SegmentState,
)
from tidelog.tier.recovery import producers_of, recoverable
from tidelog.tier.retention import Retention, log_start, next_to_copy
from tidelog.tier.sealing import Seal
from tidelog.wire.batch import ATTRIBUTE_COMPRESSION, HEADER_BYTES, read_facts

if TYPE_CHECKING:
    from tidelog.server.tiering import Tiering

log = logging.getLogger(__name__)

COPIES_A_VISIT = 16  # others wait for their turn
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_AT = 21


class TierStream:
    """One stream that this node leads."""

    def __init__(self, tiering: "Tiering", replica: Replica, place: StreamPlace) -> None:
        self._tiering = tiering
        self._replica = replica
        self._metadata = RaftMetadata(replica)
        self._place = place
        self._copying: uuid.UUID | None = None
        self._described: StreamManifest | None = None
        """As this node has last put it."""
        self._texts: dict[uuid.UUID, str] = {}
        """Readable segments as the manifest names them: to write all of a long history anew would hold up the loop."""
        self._producers = (-1, b"")
        """As of the end of the last segment copied here, with that end."""

    @property
    def replica(self) -> Replica:
        return self._replica

    async def visit(self) -> None:
        """Raises TierError when something could not be done; the next visit tries again."""
        self._check_leading()
        await self._adopt()
        await self._clean_up()
        await self._expire()
        await self._describe()  # whose the objects are must be known before there are any
        for _ in range(COPIES_A_VISIT):
            segment = self._next_to_copy()
            if segment is None:
                break
            await self._copy(segment)
            await self._expire()
            await self._describe()

    def _check_leading(self) -> None:
        if not self._replica.ready:
            raise NotLeaderError(f"stream {self._replica.stream} is not led here any more")

    async def _adopt(self) -> None:
        found = self._tiering.partition_of(self._replica)
        if not self._metadata.log.is_blank or found is None or not found.start_offset:
            return
        try:
            adopted = await recoverable(self._tiering.store, self._place)
        except ObjectMissingError:  # restored from a backup: nothing of it was ever in the store
            self._replica.nothing_stored = True
            return
        if adopted.is_blank:
            self._replica.nothing_stored = True
            return
        if adopted.end_offset != found.start_offset:
            raise TierError(
                f"{self._place.folder} ends at {adopted.end_offset}, the stream begins at {found.start_offset}"
            )
        snapshot, producers = adopted.encode(), await producers_of(self._tiering.store, self._place, adopted)
        if len(snapshot) + len(producers) > self._tiering.entry_bytes_max:
            raise TierError(
                f"{self._place.folder} has {len(adopted)} segments, more than one entry can name: use larger "
                "local segments (storage.segment.bytes)"
            )
        await self._metadata.record(SegmentsAdopted(snapshot, producers))

    # Deleting

    async def _clean_up(self) -> None:
        for segment in self._metadata.log.segments():
            left = segment.state is SegmentState.COPY_STARTED and segment.id != self._copying
            if left or segment.state is SegmentState.DELETE_STARTED:
                await self._delete(segment)

    async def _expire(self) -> None:
        replica, remote = self._replica, self._metadata.log
        start = self._wanted_start()
        if start is not None and start > replica.start_offset:
            await self._metadata.move_start(start)  # so that nobody is sent to what is not there
        expired = [each for each in remote.readable() if each.next_offset <= replica.start_offset]
        if expired:
            await self._describe()  # those who read by the manifest must not be sent to what is not there
        for segment in expired:
            await self._delete(segment)

    def _wanted_start(self) -> int | None:
        replica, config = self._replica, self._replica.config
        if not config.remote:  # tiering was taken back: what is in the store goes (KIP-950)
            return replica.log.start_offset if config.remote_delete_on_disable else None
        return log_start(
            self._metadata.log.readable(),
            replica.log.segments_view(),
            self._metadata.log.copied_until,
            bounds_of(replica),
            wall_ms(),
        )

    async def _delete(self, segment: RemoteSegment) -> None:
        if segment.state is not SegmentState.DELETE_STARTED:
            outcome = await self._move(segment, SegmentState.DELETE_STARTED)
            if outcome is Outcome.REFUSED and self._metadata.log.segment(segment.id) is not None:
                return  # it is finished after all: what said otherwise came too late
        if faults.ARMED:
            faults.hit("tier.delete.started")
        self._tiering.reads.forget(segment)
        self._texts.pop(segment.id, None)
        metrics, topic = self._tiering.metrics, self._place.topic
        metrics.count(topic, delete_requests=1)
        try:
            await delete_segment(self._tiering.store, self._place, segment)
        except TierError:
            metrics.count(topic, delete_errors=1)
            raise
        metrics.count(topic, delete_bytes=segment.size)
        if faults.ARMED:
            faults.hit("tier.delete.objects-gone")
        await self._move(segment, SegmentState.DELETE_FINISHED)

    async def _move(self, segment: RemoteSegment, state: SegmentState) -> Outcome:
        return await self._metadata.record(SegmentMoved(segment.id, state, wall_ms()))

    # Copying

    def _next_to_copy(self) -> Segment | None:
        self._check_leading()
        replica = self._replica
        if not (replica.config.remote and replica.config.remote_copy):  # it may change between two copies
            return None
        done_until = max(self._metadata.log.copied_until, replica.start_offset)
        committed = min(replica.group.commit, replica.log.durable_index)
        views = replica.log.segments_view()
        number = next_to_copy(views, done_until, committed, bounds_of(replica), wall_ms())
        return None if number is None else next(islice(replica.log.closed_segments(), number, None), None)

    async def _copy(self, local: Segment) -> None:
        replica, tiering = self._replica, self._tiering
        reader = replica.log.reader_of(local)
        image = await tiering.in_thread(_image, local, reader, self._metadata.log.copied_until)
        if image is None:
            return
        newest, compressed = await tiering.in_thread(_looked_through, image, reader.file, local)
        segment = RemoteSegment(
            uuid.uuid4(), image.base_offset, image.next_offset - 1, image.size, newest, image.epochs,
            tiering.node, wall_ms(),
        )  # fmt: skip
        compress = tiering.compress and not compressed
        before, expiration_ms = await self._producers_before(image), tiering.producer_expiration_ms
        copy = SegmentCopy(
            self._place, segment, image, reader.file.read_at, lambda: ProducersFollowed(before, expiration_ms),
            Seal.new(segment.id, compress=compress, ring=tiering.ring),
        )  # fmt: skip
        self._copying = segment.id
        try:
            if await self._metadata.record(SegmentAdded(segment, replica.start_offset)) is Outcome.REFUSED:
                raise TierError(f"segment {segment.id} was refused")
            await self._upload(copy)
        finally:
            self._copying = None

    async def _upload(self, copy: SegmentCopy) -> None:
        tiering, segment = self._tiering, copy.segment
        tiering.metrics.count(self._place.topic, copy_requests=1)
        try:
            if faults.ARMED:
                faults.hit("tier.copy.started")
            index = await copy_segment(tiering.store, copy, self._pause, tiering.executor)
            if faults.ARMED:
                faults.hit("tier.copy.indexes-put")
            outcome = await self._move(segment, SegmentState.COPY_FINISHED)
        except NotLeaderError:
            if tiering.topic_of(self._replica) is None:  # deleted meanwhile: nobody else may find these objects
                await delete_segment(tiering.store, copy.place, segment)
            raise
        except (TierError, OSError) as error:
            tiering.metrics.count(self._place.topic, copy_errors=1)
            log.warning("stream %d: segment %s was not copied: %s", self._replica.stream, segment.id, error)
            await self._delete(segment)
            raise TierError(str(error)) from None
        if faults.ARMED:
            faults.hit("tier.copy.finished")
        if outcome is Outcome.REFUSED:
            await self._delete(segment)
        else:
            self._producers = (segment.next_offset, index.producers)
            tiering.metrics.count(self._place.topic, copy_bytes=segment.size)

    async def _pause(self, size: int) -> None:
        waited_ms = await self._tiering.pause_copy(size)
        if waited_ms:
            self._tiering.metrics.count(self._place.topic, copy_throttled=1, copy_throttle_ms=waited_ms)

    async def _producers_before(self, image: SegmentImage) -> bytes:
        """The idempotent producers as of the image's beginning: as the segment before it ended, if there is one."""
        end, producers = self._producers
        if end == image.base_offset:
            return producers
        stored = self._metadata.log
        if stored.copied_until == image.base_offset and stored.readable():
            return await producers_of(self._tiering.store, self._place, stored)
        return self._replica.producers.encode(wall_ms(), until_offset=image.base_offset)

    # Describing

    async def _describe(self) -> None:
        topic = self._tiering.topic_of(self._replica)
        if topic is None:
            return
        remote = self._metadata.log
        manifest = StreamManifest(
            self._tiering.cluster_id, self._place, self._replica.start_offset, topic.configs, len(topic.partitions),
            tuple(remote.readable()),
        )  # fmt: skip
        if manifest == self._described:
            return
        self._check_leading()  # an older one must not replace that of the next leader
        if faults.ARMED:
            faults.hit("tier.manifest")
        await self._tiering.store.put(self._place.manifest, manifest.encode(self._text_of))
        self._described = manifest

    def _text_of(self, segment: RemoteSegment) -> str:
        text = self._texts.get(segment.id)
        if text is None:
            text = self._texts[segment.id] = segment_text(segment)
        return text


def bounds_of(replica: Replica) -> Retention:
    config = replica.config
    if not config.remote_copy:  # what is not copied is kept as if there were no store
        return Retention(config.retention_ms, config.retention_bytes)
    return Retention(
        config.retention_ms, config.retention_bytes, config.local_retention_ms, config.local_retention_bytes,
        config.copy_lag_ms, config.copy_lag_bytes,
    )  # fmt: skip


def _image(local: Segment, reader: SegmentReader, from_offset: int) -> SegmentImage | None:
    """In a thread."""
    return image_of(local, reader.rows(), from_offset)


def _looked_through(image: SegmentImage, file: File, local: Segment) -> tuple[int, bool]:
    """(newest time of its records, whether the first batch is compressed). In a thread.

    The index knows the newest time of a whole segment; of one that is copied from its middle on, the batches do.
    """
    position, _ = image.runs[0]
    (attributes,) = _ATTRIBUTES.unpack_from(file.read_at(position, HEADER_BYTES), _ATTRIBUTES_AT)
    compressed = bool(attributes & ATTRIBUTE_COMPRESSION)
    if image.base_offset == local.base_offset:
        return image.newest_timestamp, compressed
    newest = -1
    for start, size in image.runs:
        at = start
        while at < start + size:
            length, _, _, timestamp = read_facts(file.read_at(at, HEADER_BYTES))
            newest, at = max(newest, timestamp), at + length
    return newest, compressed
