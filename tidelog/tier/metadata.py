"""What is known of a stream's segments in the object store: a state machine, pure, the same on every replica.

    COPY_STARTED ──▶ COPY_FINISHED ──▶ DELETE_STARTED ──▶ DELETE_FINISHED (forgotten)
          └────────────────────────────────▲

* Only COPY_FINISHED segments are readable.
* A segment is added once, as COPY_STARTED, with an id drawn for this try. A copy that failed is deleted under its own
  id, and the next try has another: nothing is ever written to an object that somebody may read.
* The move to the state that a segment is in already is a repetition, and changes nothing. Every other move is refused,
  and changes nothing either: so a leader that lost its office in the middle cannot undo what the next one has decided.
* A readable segment may be deleted only when the log start lies behind it. So a leader that takes a copy for failed,
  while its end is on the way into the log, deletes nothing that disks may rely on.
* Readable segments do not overlap: a copy that finishes behind one that did the same work is refused.
* A stream that mirrors another cluster's (`mirrored`) takes what that one's manifest says, and nothing else: nothing of
  it is ever deleted, because every event that could lead there is refused.

`start_offset` is the log start that clients see, as far as entries have moved it; `copied_until` the offset up to which
everything that was not deleted is in the store. Neither falls.

The events are entries of the stream's own Raft group (`EntryKind.REMOTE`), or records of an internal topic; the state
goes into the application's snapshot. Both encodings are in docs/tiered-storage.md.

Cost: lookups by offset are a search; a segment takes some 200 bytes of memory and 57 + 12 × epochs in a snapshot.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Protocol
from uuid import UUID

from tidelog.tier.errors import LayoutError

FORMAT = 1
MIRROR_FORMAT = 2
"""Of the snapshot of a stream that mirrors another."""
EPOCHS_MAX = 0xFFFF

_SEGMENT = struct.Struct(">16sBqqqqqiH")  # id, state, base, last, size, newest timestamp, event time, node, epochs
_EPOCH = struct.Struct(">iq")
_EVENT = struct.Struct(">BB")
_START = struct.Struct(">q")
_MOVE = struct.Struct(">16sBq")
_SNAPSHOT = struct.Struct(">BqqI")
_MIRROR = struct.Struct(">qI")
_LENGTH = struct.Struct(">I")


class SegmentState(IntEnum):
    """KIP-405's numbers."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


_MOVES = {
    (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED),
    (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED),
    (SegmentState.COPY_FINISHED, SegmentState.DELETE_STARTED),
    (SegmentState.DELETE_STARTED, SegmentState.DELETE_FINISHED),
}


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    id: UUID
    base_offset: int
    last_offset: int  # of its last record: inclusive
    size: int  # bytes of its batches, before they are sealed
    newest_timestamp: int  # -1: none of its records has a time
    epochs: tuple[tuple[int, int], ...]  # (leader epoch, its first offset in the segment), rising; never empty
    node: int  # that copied it
    event_ms: int  # when its state last moved, by the leader's clock
    state: SegmentState = SegmentState.COPY_STARTED

    def __post_init__(self) -> None:
        if not 0 <= self.base_offset <= self.last_offset:
            raise LayoutError(f"segment {self.id}: offsets {self.base_offset} to {self.last_offset}")
        if not 0 < len(self.epochs) <= EPOCHS_MAX:
            raise LayoutError(f"segment {self.id} has {len(self.epochs)} leader epochs")

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def newest_epoch(self) -> int:
        return max(epoch for epoch, _ in self.epochs)

    def epoch_at(self, offset: int) -> int:
        return self.epochs[max(0, bisect_right(self.epochs, offset, key=_first_offset) - 1)][0]


# Events


@dataclass(frozen=True, slots=True)
class SegmentAdded:
    """A copy begins. `log_start` is where the log began when it did, so that no replica ever shows an earlier start."""

    segment: RemoteSegment
    log_start: int


@dataclass(frozen=True, slots=True)
class SegmentMoved:
    id: UUID
    state: SegmentState
    event_ms: int


@dataclass(frozen=True, slots=True)
class SegmentsAdopted:
    """A stream that is made again from the store: everything at once, as a snapshot (`RemoteLog.encode`).

    `producers` are the idempotent ones as of the last segment's end, who may go on.
    """

    snapshot: bytes
    producers: bytes = b""


@dataclass(frozen=True, slots=True)
class SegmentsMirrored:
    """What another cluster's manifest says of its stream: where that begins, and segments behind those known so far."""

    start_offset: int
    segments: tuple[RemoteSegment, ...]


@dataclass(frozen=True, slots=True)
class StartMoved:
    """The log start has moved. A stream's own Raft group has an entry of its own for that, and never this one."""

    offset: int


Event = SegmentAdded | SegmentMoved | SegmentsAdopted | SegmentsMirrored


class _What(IntEnum):
    """Numbers of the events."""

    ADDED = 0
    MOVED = 1
    ADOPTED_ALONE = 2  # is read, and no longer written: before producers came with the segments
    ADOPTED = 3
    MIRRORED = 4
    START_MOVED = 5


def encode_event(event: Event | StartMoved) -> bytes:
    match event:
        case SegmentAdded(segment, log_start):
            return _EVENT.pack(FORMAT, _What.ADDED) + _START.pack(log_start) + _encode_segment(segment)
        case SegmentMoved(id_, state, event_ms):
            return _EVENT.pack(FORMAT, _What.MOVED) + _MOVE.pack(id_.bytes, state, event_ms)
        case SegmentsAdopted(snapshot, producers):
            return _EVENT.pack(FORMAT, _What.ADOPTED) + _LENGTH.pack(len(producers)) + producers + snapshot
        case SegmentsMirrored(start_offset, segments):
            head = _EVENT.pack(FORMAT, _What.MIRRORED) + _MIRROR.pack(start_offset, len(segments))
            return head + b"".join(map(_encode_segment, segments))
        case StartMoved(offset):
            return _EVENT.pack(FORMAT, _What.START_MOVED) + _START.pack(offset)


def decode_event(content: bytes | bytearray | memoryview) -> Event | StartMoved:
    try:
        version, kind = _EVENT.unpack_from(content)
        if version != FORMAT:
            raise LayoutError(f"an event of version {version}; this one reads {FORMAT}")
        at = _EVENT.size
        match _What(kind):
            case _What.ADDED:
                (log_start,) = _START.unpack_from(content, at)
                return SegmentAdded(_decode_segment(content, at + _START.size)[0], log_start)
            case _What.MOVED:
                id_, state, event_ms = _MOVE.unpack_from(content, at)
                return SegmentMoved(UUID(bytes=id_), SegmentState(state), event_ms)
            case _What.ADOPTED_ALONE:
                return SegmentsAdopted(bytes(content[at:]))
            case _What.ADOPTED:
                behind = at + _LENGTH.size + _LENGTH.unpack_from(content, at)[0]
                return SegmentsAdopted(bytes(content[behind:]), bytes(content[at + _LENGTH.size : behind]))
            case _What.MIRRORED:
                start_offset, count = _MIRROR.unpack_from(content, at)
                return SegmentsMirrored(start_offset, tuple(_decode_segments(content, at + _MIRROR.size, count)))
            case _What.START_MOVED:
                return StartMoved(_START.unpack_from(content, at)[0])
    except (struct.error, ValueError) as error:
        raise LayoutError(f"an event about a remote segment that cannot be read: {error}") from None


class Outcome(Enum):
    APPLIED = "applied"
    REPEATED = "repeated"  # it was so already
    REFUSED = "refused"  # not a legal move: nothing has changed


class RemoteLog:
    """One stream's segments in the store."""

    def __init__(self) -> None:
        self.start_offset = 0
        self.copied_until = 0
        self.mirrored = False
        """The segments are another cluster's, and all there is: nothing is on disks."""
        self._all: dict[UUID, RemoteSegment] = {}
        self._readable: list[RemoteSegment] = []  # by offset

    def __len__(self) -> int:
        return len(self._all)

    @property
    def is_blank(self) -> bool:
        """Nothing was ever copied: there is nothing to keep in a snapshot."""
        return not self._all and not self.copied_until and not self.mirrored

    @property
    def end_offset(self) -> int:
        """Where a stream ends that mirrors another, or of which only the store is left."""
        return max(self.copied_until, self.start_offset)

    # Changing

    def apply(self, event: Event | StartMoved) -> Outcome:
        if self.mirrored and not isinstance(event, SegmentsMirrored):
            return Outcome.REFUSED  # the objects are not ours
        match event:
            case SegmentsMirrored():
                return self._mirror(event)
            case SegmentAdded():
                return self._add(event)
            case SegmentMoved():
                return self._move(event)
            case StartMoved(offset):
                outcome = Outcome.APPLIED if offset > self.start_offset else Outcome.REPEATED
                self.move_start(offset)
                return outcome
            case SegmentsAdopted(snapshot, _):
                if not self.is_blank:
                    return Outcome.REFUSED
                self.restore(snapshot)
                return Outcome.APPLIED

    def move_start(self, offset: int) -> None:
        """The log start has moved; never back."""
        self.start_offset = max(self.start_offset, offset)

    def _mirror(self, event: SegmentsMirrored) -> Outcome:
        if not (self.mirrored or self.is_blank):
            return Outcome.REFUSED
        outcome = Outcome.REPEATED if self.mirrored and event.start_offset <= self.start_offset else Outcome.APPLIED
        self.mirrored = True
        self.move_start(event.start_offset)
        while self._readable and self._readable[0].next_offset <= self.start_offset:
            del self._all[self._readable.pop(0).id]
        for segment in event.segments:
            if segment.base_offset < self.copied_until or segment.next_offset <= self.start_offset:
                continue  # it is known, or gone
            if self._readable and segment.base_offset != self.copied_until:
                break  # there would be a hole: whoever reads the manifest again knows more
            self._all[segment.id] = segment
            self._readable.append(segment)
            self.copied_until = segment.next_offset
            outcome = Outcome.APPLIED
        return outcome

    def _add(self, event: SegmentAdded) -> Outcome:
        segment = event.segment
        if segment.id in self._all:
            return Outcome.REPEATED
        if segment.state is not SegmentState.COPY_STARTED:
            return Outcome.REFUSED
        self.move_start(event.log_start)
        self._all[segment.id] = segment
        return Outcome.APPLIED

    def _move(self, event: SegmentMoved) -> Outcome:
        known = self._all.get(event.id)
        if known is None:  # what is forgotten was deleted
            return Outcome.REPEATED if event.state is SegmentState.DELETE_FINISHED else Outcome.REFUSED
        if known.state is event.state:
            return Outcome.REPEATED
        if (known.state, event.state) not in _MOVES:
            return Outcome.REFUSED
        if known.state is SegmentState.COPY_FINISHED and known.next_offset > self.start_offset:
            return Outcome.REFUSED
        moved = replace(known, state=event.state, event_ms=event.event_ms)
        if event.state is SegmentState.COPY_FINISHED:
            if moved.base_offset < self.copied_until:
                return Outcome.REFUSED  # another copy has done this already
            self._readable.append(moved)
            self.copied_until = moved.next_offset
        elif known.state is SegmentState.COPY_FINISHED:
            self._readable.remove(known)
        if event.state is SegmentState.DELETE_FINISHED:
            del self._all[event.id]
        else:
            self._all[event.id] = moved
        return Outcome.APPLIED

    # Looking up

    def segment(self, id_: UUID) -> RemoteSegment | None:
        return self._all.get(id_)

    def segments(self) -> list[RemoteSegment]:
        """All that are known, in whatever state."""
        return list(self._all.values())

    def readable(self) -> list[RemoteSegment]:
        """By offset."""
        return list(self._readable)

    @property
    def readable_bytes(self) -> int:
        return sum(segment.size for segment in self._readable)

    def first_offset(self, local_start: int) -> int:
        """Where the stream begins, when its log on disk begins at `local_start`."""
        if not self._readable:
            return local_start
        return min(local_start, max(self.start_offset, self._readable[0].base_offset))

    def find(self, offset: int) -> RemoteSegment | None:
        """The readable segment that holds the offset."""
        at = bisect_right(self._readable, offset, key=_base_offset) - 1
        if at < 0 or self._readable[at].last_offset < offset:
            return None
        return self._readable[at]

    def find_after(self, segment: RemoteSegment) -> RemoteSegment | None:
        """The readable segment that follows."""
        at = bisect_left(self._readable, segment.next_offset, key=_base_offset)
        return self._readable[at] if at < len(self._readable) else None

    def reaching(self, timestamp: int) -> list[RemoteSegment]:
        """The readable segments with a record at or after a time, by offset, from the log start on."""
        return [
            segment
            for segment in self._readable
            if segment.newest_timestamp >= timestamp and segment.last_offset >= self.start_offset
        ]

    def newest_epoch(self) -> int:
        """The largest leader epoch in the store; -1: there is none."""
        return max((segment.newest_epoch for segment in self._readable), default=-1)

    def epoch_at(self, offset: int) -> int | None:
        segment = self.find(offset)
        return None if segment is None else segment.epoch_at(offset)

    def end_of_epoch(self, epoch: int) -> tuple[int, int] | None:
        """(largest leader epoch <= `epoch` in the store, the offset where it ends); None when all are larger."""
        spans = [each for segment in self._readable for each in segment.epochs]
        ends = [first for _, first in spans[1:]] + [self.copied_until]
        found: tuple[int, int] | None = None
        for (each, _), end in zip(spans, ends, strict=False):
            if each <= epoch and (found is None or each >= found[0]):  # in a stream made again, they may fall
                found = (each, end)
        return found

    # Snapshots

    def encode(self) -> bytes:
        version = MIRROR_FORMAT if self.mirrored else FORMAT
        head = _SNAPSHOT.pack(version, self.start_offset, self.copied_until, len(self._all))
        return head + b"".join(map(_encode_segment, self._all.values()))

    def restore(self, content: bytes) -> None:
        """As `encode` had it; nothing at all is a stream that was never copied."""
        self.__init__()
        if not content:
            return
        try:
            version, self.start_offset, self.copied_until, count = _SNAPSHOT.unpack_from(content)
            if version not in (FORMAT, MIRROR_FORMAT):
                raise LayoutError(f"a snapshot of remote segments of version {version}; {MIRROR_FORMAT} is the newest")
            self.mirrored = version == MIRROR_FORMAT
            self._all = {each.id: each for each in _decode_segments(content, _SNAPSHOT.size, count)}
        except (struct.error, ValueError) as error:
            raise LayoutError(f"a snapshot of remote segments that cannot be read: {error}") from None
        finished = (each for each in self._all.values() if each.state is SegmentState.COPY_FINISHED)
        self._readable = sorted(finished, key=_base_offset)


class RemoteMetadata(Protocol):
    """Where the state machine's events are kept: strongly consistent, one writer at a time."""

    @property
    def log(self) -> RemoteLog:
        """What was made of all events that count."""
        ...

    async def record(self, event: Event) -> Outcome:
        """Have an event counted. Raises TierError when that is not known to have happened."""
        ...

    async def move_start(self, offset: int) -> None:
        """Have the log start moved, before anything is deleted. Raises TierError as `record` does."""
        ...


def _encode_segment(segment: RemoteSegment) -> bytes:
    head = _SEGMENT.pack(
        segment.id.bytes, segment.state, segment.base_offset, segment.last_offset, segment.size,
        segment.newest_timestamp, segment.event_ms, segment.node, len(segment.epochs),
    )  # fmt: skip
    return head + b"".join(_EPOCH.pack(*epoch) for epoch in segment.epochs)


def _decode_segment(content: bytes | bytearray | memoryview, at: int) -> tuple[RemoteSegment, int]:
    id_, state, base, last, size, newest, event_ms, node, count = _SEGMENT.unpack_from(content, at)
    at += _SEGMENT.size
    epochs = tuple(_EPOCH.unpack_from(content, at + number * _EPOCH.size) for number in range(count))
    segment = RemoteSegment(
        UUID(bytes=id_), base, last, size, newest, epochs, node, event_ms, SegmentState(state)
    )  # fmt: skip
    return segment, at + count * _EPOCH.size


def _decode_segments(content: bytes | bytearray | memoryview, at: int, count: int) -> Iterator[RemoteSegment]:
    for _ in range(count):
        segment, at = _decode_segment(content, at)
        yield segment


def _base_offset(segment: RemoteSegment) -> int:
    return segment.base_offset


def _first_offset(epoch: tuple[int, int]) -> int:
    return epoch[1]
