"""What may leave the disk, what may leave the store, and where the log then begins: pure functions over both tiers.

Kafka's meaning of the settings (KIP-405), with two tiers:

* `retention.ms` and `retention.bytes` are about the whole log; what is in both tiers counts once. They delete from the
  store, by moving the log start past whole remote segments first.
* `local.retention.ms` and `local.retention.bytes` are about the disk; -2 means "as the whole log". They delete nothing
  that is not finished in the store, however full the disk gets.
* `remote.copy.lag.ms` and `remote.copy.lag.bytes` keep a closed segment from being copied until it is so old, or so
  much has been written behind it (KIP-1241); either is enough. 0: at once; -1: as late as local retention allows.
  Where a topic sets one alone, the other is -1 (`TopicConfig`).

A bound of -1 is none. A segment without a time of its own goes with the next that has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.storage import SegmentView
from tidelog.tier.metadata import RemoteSegment

NONE = -1
AS_TOTAL = -2


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's four bounds, and its two lags."""

    total_ms: int
    total_bytes: int
    local_ms: int = AS_TOTAL
    local_bytes: int = AS_TOTAL
    lag_ms: int = 0
    lag_bytes: int = 0

    @property
    def disk_ms(self) -> int:
        return self.total_ms if self.local_ms == AS_TOTAL else self.local_ms

    @property
    def disk_bytes(self) -> int:
        return self.total_bytes if self.local_bytes == AS_TOTAL else self.local_bytes


def log_start(
    remote: Sequence[RemoteSegment], local: Sequence[SegmentView], copied_until: int, bounds: Retention, now_ms: int
) -> int | None:
    """The log start that total retention asks for, past whole remote segments; None when all stay."""
    old = _count_old([segment.newest_timestamp for segment in remote], bounds.total_ms, now_ms)
    sizes = [segment.size for segment in remote]
    total = sum(sizes) + local_only_bytes(local, copied_until)
    count = max(old, _count_spare(sizes, total, bounds.total_bytes))
    return remote[count - 1].next_offset if count else None


def local_only_bytes(local: Sequence[SegmentView], copied_until: int) -> int:
    """Bytes on disk that are not in the store: whole segments, since no more is known without reading them."""
    return sum(segment.length for segment in local if segment.next_offset > copied_until)


def local_start(
    local: Sequence[SegmentView],
    start_offset: int,
    copied_until: int,
    committed_index: int,
    bounds: Retention,
    now_ms: int,
) -> int | None:
    """Where the log on this disk may begin; None when every segment stays.

    `start_offset` is the log start: what lies before it is gone for clients, and leaves the disk in any case.
    """
    closed = local[:-1]  # the last one is written to
    removable = 0
    for segment in closed:
        if segment.last_index > committed_index or segment.next_offset > max(copied_until, start_offset):
            break
        removable += 1
    old = _count_old([segment.newest_timestamp for segment in closed], bounds.disk_ms, now_ms)
    sizes = [segment.length for segment in local]
    spare = _count_spare(sizes[:-1], sum(sizes), bounds.disk_bytes)
    gone = sum(1 for segment in closed if segment.next_offset <= start_offset)
    count = min(removable, max(old, spare, gone))
    return local[count - 1].next_offset if count else None


def overdue_bytes(
    local: Sequence[SegmentView], copied_until: int, committed_index: int, bounds: Retention, now_ms: int
) -> int:
    """Bytes that local retention would delete if only they were in the store: an alarm when it is more than a
    little."""
    wanted = local_start(local, 0, 2**63 - 1, committed_index, bounds, now_ms)
    if wanted is None:
        return 0
    return sum(each.length for each in local if copied_until < each.next_offset <= wanted)


def next_to_copy(
    local: Sequence[SegmentView], done_until: int, committed_index: int, bounds: Retention, now_ms: int
) -> int | None:
    """Which segment is the next to be copied, as its number; None when none is, for now.

    They are copied in order: the first one that is not in the store, if it is closed, committed to its end, and old
    enough. The one that is written to never is.
    """
    for number, segment in enumerate(local[:-1]):
        if not segment.closed or segment.last_index > committed_index:
            return None
        if segment.next_offset > done_until:
            return number if may_copy(local, number, bounds, now_ms) else None
    return None


def may_copy(local: Sequence[SegmentView], number: int, bounds: Retention, now_ms: int) -> bool:
    """Whether the closed segment `number` is old enough, or far enough behind the end, to be copied."""
    lag_ms = bounds.disk_ms if bounds.lag_ms == NONE else bounds.lag_ms
    lag_bytes = bounds.disk_bytes if bounds.lag_bytes == NONE else bounds.lag_bytes
    if lag_ms == 0 or lag_bytes == 0 or (lag_ms < 0 and lag_bytes < 0):
        return True  # no bound on what stays here means that nothing is gained by waiting
    segment = local[number]
    newest = max((each.newest_timestamp for each in local[: number + 1]), default=NONE)
    old = lag_ms >= 0 and (newest < 0 or lag_ms <= now_ms - newest)  # what has no time would be waited for for ever
    behind = sum(each.length for each in local[number + 1 :]) + segment.length
    return old or 0 <= lag_bytes < behind


def roll_after_ms(segment_ms: int, tier_roll_ms: int, bounds: Retention) -> int:
    """The age at which an active segment is closed, so that a slow stream is copied, and can leave the disk, too."""
    local = [bounds.disk_ms] if bounds.disk_ms >= 0 else []
    return min([segment_ms, tier_roll_ms, *local])


def _count_old(timestamps: Sequence[int], retention_ms: int, now_ms: int) -> int:
    """How many from the first on are older than allowed."""
    count = 0
    for number, timestamp in enumerate(timestamps, 1):
        if timestamp >= 0:
            if not 0 <= retention_ms < now_ms - timestamp:
                break
            count = number
    return count


def _count_spare(sizes: Sequence[int], total: int, retention_bytes: int) -> int:
    """How many from the first on can go while `retention_bytes` remain."""
    if retention_bytes < 0:
        return 0
    spare, count = total - retention_bytes, 0
    for size in sizes:
        spare -= size
        if spare < 0:
            break
        count += 1
    return count
