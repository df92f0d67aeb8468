"""What is done to a stream's files, one operation after the other, and what is reported of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tidelog.storage.disk import Buffer
from tidelog.storage.hard_states import StoredVote
from tidelog.storage.segment import Segment, SegmentShape


@dataclass(frozen=True, slots=True)
class Durable:
    """What the log may count on once the operation is synced. A truncation begins a new `generation`."""

    generation: int
    index: int


@dataclass(slots=True)
class Create:
    """The stream's first operation: its folder, its state file, and the file of its first segment."""

    content: bytes
    active_name: str
    shape: SegmentShape
    error: OSError | None = None  # why it could not be done; the next cycle tries again


@dataclass(frozen=True, slots=True)
class Begin:
    """The stream goes on in a new segment; `then` runs once the one before is complete on disk."""

    segment: Segment
    then: Callable[[], None]


@dataclass(slots=True)  # not frozen: one is made for each append, and a frozen one takes three times as long
class Append:
    segment: Segment
    position: int
    data: Sequence[Buffer]
    data_bytes: int
    rows_position: int
    rows: bytes
    generation: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The stream is at rest: note how many rows are durable, so that damage to the last ones shows."""

    segment: Segment
    count: int
    chain: int


@dataclass(frozen=True, slots=True)
class WipeRows:
    """Entries of the active segment are truncated: rows first..end-1 go, and the settled mark.

    Were they left, a batch written over theirs would look like damage, or, should it be the same one again, bring back
    those that once stood behind it.
    """

    segment: Segment
    first: int
    end: int
    durable: Durable  # all that the truncation left: reports on it from before the truncation no longer count


@dataclass(frozen=True, slots=True)
class DropSuffix:
    """Remove whole segments, newest first, then cut the one that ends the log now, which is closed."""

    removed: Sequence[Segment]
    kept: Segment | None
    kept_length: int
    kept_index: bytes
    durable: Durable


@dataclass(frozen=True, slots=True)
class SaveState:
    """Replace the stream's state file; `then` runs once that is durable (removing what the state no longer names)."""

    content: bytes
    then: Callable[[], None]
    durable: Durable | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """The stream is removed; `then` runs when nothing of it is written any more."""

    then: Callable[[], None]


Operation = Create | Begin | Append | Settle | WipeRows | DropSuffix | SaveState | Close


@dataclass(frozen=True, slots=True)
class Completion:
    """What one cycle did for one stream."""

    stream: int
    durable: Durable | None = None
    full: bool | None = None  # the disk ran full (true), or has room again (false)
    vote: StoredVote | None = None
    data_bytes: int = 0
    operations: int = 0  # how many it carried out
