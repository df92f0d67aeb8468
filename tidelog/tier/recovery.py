"""What the store alone knows of streams: segments that can be made a stream of again, objects that nobody knows of.

A stream's manifest names its readable segments as of its last change. Segments that were finished behind it, and not
yet described, are found by their index objects: an index is put when its segment is whole, and says all that is to
know. Segments at its beginning that are gone were deleted by retention since then; one that is missing behind another
is an error.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from crc32c import crc32c

from tidelog.tier.errors import LayoutError, ObjectDamagedError, TierError
from tidelog.tier.layout import (
    INDEXES,
    LOG,
    MANIFEST,
    ObjectName,
    PackedIndex,
    StreamManifest,
    StreamPlace,
    segment_of,
)
from tidelog.tier.metadata import RemoteLog, RemoteSegment, SegmentAdded, SegmentMoved, SegmentState
from tidelog.tier.store import ObjectStore, StoredObject


async def recoverable(store: ObjectStore, place: StreamPlace) -> RemoteLog:
    """The remote segments of a stream as the store knows them, without a hole from the log start on.

    Raises ObjectMissingError when there is no manifest, TierError when an object is missing or of an unknown form.
    """
    manifest = StreamManifest.decode(await store.read_all(place.manifest))
    if manifest.deleted:
        return RemoteLog()
    names = {each.name for each in await store.objects(place.folder + "/")}
    log = RemoteLog()
    for segment in manifest.segments:
        lacking = [kind for kind in (LOG, INDEXES) if place.object_name(segment, kind) not in names]
        if not lacking:
            _adopt(log, segment)
        elif not log.is_blank:
            raise LayoutError(f"{place.object_name(segment, lacking[0])} is named by the manifest and not there")
    log.move_start(manifest.start_offset)
    for name in sorted(names):  # of several that begin alike the first by name: whoever looks again must find the same
        if _goes_on(log, name):
            _adopt(log, segment_of(PackedIndex.decode(await store.read_all(name))))
    return log


async def producers_of(store: ObjectStore, place: StreamPlace, log: RemoteLog) -> bytes:
    """The idempotent producers as of the end of what is in the store."""
    segment = log.find(log.copied_until - 1)
    if segment is None:
        return b""
    return PackedIndex.decode(await store.read_all(place.object_name(segment, INDEXES))).producers


def _goes_on(log: RemoteLog, name: str) -> bool:
    """Whether it is the index of a segment that begins where the log ends, or before a log start behind that end."""
    parsed = ObjectName.parse(name)
    return parsed is not None and parsed.kind == INDEXES and log.copied_until <= parsed.base_offset <= log.end_offset


def _adopt(log: RemoteLog, segment: RemoteSegment) -> None:
    started = RemoteSegment(
        segment.id, segment.base_offset, segment.last_offset, segment.size, segment.newest_timestamp, segment.epochs,
        segment.node, segment.event_ms,
    )  # fmt: skip
    log.apply(SegmentAdded(started, 0))
    log.apply(SegmentMoved(segment.id, SegmentState.COPY_FINISHED, segment.event_ms))


@dataclass(frozen=True, slots=True)
class Findings:
    """What a look at a stream's folder found."""

    orphans: tuple[StoredObject, ...]  # of segments that nobody knows: left by a copy that was given up
    foreign: tuple[str, ...]  # not of any form we know: left alone
    missing: tuple[str, ...]  # objects of readable segments that are not there: history is lost
    under_way: int  # objects of segments that are being copied or deleted


def compare(place: StreamPlace, objects: Iterable[StoredObject], segments: Iterable[RemoteSegment]) -> Findings:
    """A folder's listing against the stream's segments, which must be known at least as newly as the listing."""
    known: dict[UUID, RemoteSegment] = {segment.id: segment for segment in segments}
    orphans: list[StoredObject] = []
    foreign: list[str] = []
    under_way, names = 0, set[str]()
    for each in objects:
        parsed = ObjectName.parse(each.name)
        names.add(each.name)
        if parsed is None:
            if each.name.rsplit("/", 1)[-1].partition("#")[0] != MANIFEST:
                foreign.append(each.name)
        elif parsed.segment not in known:
            orphans.append(each)
        elif known[parsed.segment].state is not SegmentState.COPY_FINISHED:
            under_way += 1
        elif parsed.kind not in (LOG, INDEXES):
            orphans.append(each)  # a try that broke off before one that did not
    finished = [segment for segment in known.values() if segment.state is SegmentState.COPY_FINISHED]
    wanted = [place.object_name(segment, kind) for segment in finished for kind in (LOG, INDEXES)]
    return Findings(tuple(orphans), tuple(foreign), tuple(sorted(set(wanted) - names)), under_way)


async def check_segment(store: ObjectStore, place: StreamPlace, segment: RemoteSegment) -> str:
    """Read a whole segment and compare every checksum; gives what is wrong with it, or nothing."""
    try:
        index = PackedIndex.decode(await store.read_all(place.object_name(segment, INDEXES)))
        if (index.base_offset, index.size) != (segment.base_offset, segment.size):
            raise ObjectDamagedError("the index is that of another segment")
        name = place.object_name(segment, LOG)
        for number, chunk in enumerate(index.chunks):
            if crc32c(await store.read(name, chunk.position, chunk.length)) != chunk.crc:
                raise ObjectDamagedError(f"{name}, chunk {number}: its checksum does not fit")
    except TierError as error:
        return str(error)
    return ""
