"""Which segments a pipeline no longer needs: arithmetic on names, no files."""

from collections.abc import Sequence

from tidelog.pikiwi.position import Position
from tidelog.pikiwi.wal.segments import Segment


def removable(segments: Sequence[Segment], ack: Position, retain: int) -> Sequence[Segment]:
    """The oldest segments that lie wholly at or before `ack`, so many that `retain` are left, and one at least.

    A segment ends where the next begins, so all of it was delivered when the next one's start was.
    """
    spare = len(segments) - max(1, retain)
    count = 0
    while count < spare and segments[count + 1].start <= ack:
        count += 1
    return segments[:count]
