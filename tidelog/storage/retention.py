"""How much of a log to keep: Kafka's `retention.ms`, `retention.bytes` and `segment.ms`, over whole segments.

* A segment goes by age when its newest record is older than `retention.ms`, by size when the log without it still has
  `retention.bytes`. Both stop at the first segment that must stay, so that the log stays without a hole.
* A segment without times (entries of our own alone, or records of clients that set none) goes with the next one that
  has some: it cannot be younger than what was written behind it.
* The active segment is never deleted. One whose records are all too old is closed first (`should_roll`).
* Nothing goes that holds an entry behind the commit index.

A bound below 0 is none.
"""

from collections.abc import Sequence

from tidelog.storage.segment_view import SegmentView


def start_for(
    segments: Sequence[SegmentView], retention_ms: int, retention_bytes: int, committed_index: int, now_ms: int
) -> int | None:
    """The log start that retention asks for; None when every segment stays.

    It may be one that the log has already, after a deletion by a client: ask for more than that only.
    """
    closed = segments[:-1]
    committed = next((n for n, segment in enumerate(closed) if segment.last_index > committed_index), len(closed))
    count = min(committed, max(_too_old(closed, retention_ms, now_ms), _too_much(segments, retention_bytes)))
    if not count or segments[count - 1].next_offset <= segments[0].base_offset:
        return None  # nothing, or nothing with a record in it
    return segments[count - 1].next_offset


def should_roll(active: SegmentView, segment_ms: int, retention_ms: int, now_ms: int) -> bool:
    """Whether the active segment is to be closed: it has been written to for long, or all in it is too old."""
    lasting = 0 <= segment_ms < now_ms - active.oldest_timestamp and active.oldest_timestamp >= 0
    too_old = 0 <= retention_ms < now_ms - active.newest_timestamp and active.newest_timestamp >= 0
    return lasting or too_old


def _too_old(closed: Sequence[SegmentView], retention_ms: int, now_ms: int) -> int:
    """How many segments from the first on are."""
    count = 0
    for number, segment in enumerate(closed, 1):
        if segment.newest_timestamp >= 0:
            if not 0 <= retention_ms < now_ms - segment.newest_timestamp:
                break
            count = number
    return count


def _too_much(segments: Sequence[SegmentView], retention_bytes: int) -> int:
    """How many segments from the first on the log can spare."""
    if retention_bytes < 0:
        return 0
    spare = sum(segment.length for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:-1]:
        spare -= segment.length
        if spare < 0:
            break
        count += 1
    return count
