"""Opening a region: recover what its log says, and become its one writer. `fold` has the rules and why they hold.

    1. the topics exist
    2. the meta topic: read the last snapshot, write a copy of it with the next epoch, read up to that
    3. the data topic: read from the snapshot's high watermark on, write an epoch record, read up to that

Interrupted anywhere, nothing is lost: a copy of a snapshot changes nothing but the epoch, and an epoch record nothing
but who may write. What recovery reads is what came after the snapshot, however long the log is.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from tidelog import faults
from tidelog.regionwal import formats
from tidelog.regionwal.errors import Fenced, LogFailed, LogLost, RegionWalError
from tidelog.regionwal.fold import EPOCH_SHIFT, DataFold, MetaFold, Overtaken
from tidelog.regionwal.following import NO_LOCK, Lock, follow_data, follow_meta
from tidelog.regionwal.log import Log
from tidelog.regionwal.log_errors import OutOfRange
from tidelog.regionwal.snapshot_format import Snapshot
from tidelog.regionwal.snapshots import meta_records

logger = logging.getLogger(__name__)

READ_ATTEMPTS_MAX = 3
TAKE_ATTEMPTS_MAX = 10  # openers that take the region from each other at the same moment
LOST_TABLES_NAMED_MAX = 20


class FencedLongAgo(Fenced):
    """So long that what our last writes came to can no longer be seen."""


@dataclass(frozen=True, slots=True)
class Topics:
    region: int
    data: str
    meta: str


@dataclass(frozen=True, slots=True)
class Opened:
    fold: DataFold
    meta_fold: MetaFold
    earliest: int
    """Of the data topic."""
    records_read: int
    bytes_read: int


def writer_name() -> bytes:
    """Who we are, for the people who read an epoch record or an error."""
    return f"{socket.gethostname()}:{os.getpid()}".encode()


def open_to_write(log: Log, topics: Topics, timeout_s: float, accept_loss: bool) -> Opened:
    log.ensure_topics([topics.data, topics.meta], time.monotonic() + timeout_s)
    least = 0
    for _ in range(TAKE_ATTEMPTS_MAX):
        meta_fold = take_meta(log, topics, least, timeout_s)
        opened = _recover(log, topics, meta_fold, timeout_s, accept_loss)
        try:
            take_data(log, topics, opened.fold, meta_fold.epoch, timeout_s)
        except Fenced:  # somebody was faster, or the meta topic was lost and counts from 1 again
            least = opened.fold.epoch >> EPOCH_SHIFT
            logger.warning("region %d: epoch %d is taken, trying the next", topics.region, least)
            continue
        _trim(log, topics, meta_fold.snapshot_offset)
        if faults.ARMED:
            faults.hit("regionwal.open.recovered")
        return opened
    raise Fenced(f"region {topics.region} was opened by others {TAKE_ATTEMPTS_MAX} times while we tried to")


def _trim(log: Log, topics: Topics, offset: int) -> None:
    try:
        log.delete_before(topics.meta, offset)
    except RegionWalError as error:
        logger.warning("region %d: old snapshots stay until the next one: %s", topics.region, error)


def open_to_read(log: Log, topics: Topics, timeout_s: float) -> Opened:
    """As the log is now; nothing is written, nobody fenced, and what is lost is left out."""
    missing = {topics.data, topics.meta} - set(log.topics())
    if missing:
        raise LogFailed(f"there is no region {topics.region}: the log has no topic {', '.join(sorted(missing))}")
    for _ in range(READ_ATTEMPTS_MAX):
        try:
            return _recover(log, topics, _read_meta(log, topics, timeout_s), timeout_s, accept_loss=False)
        except (LogLost, OutOfRange):  # or its owner has cleaned between our two looks
            continue
    return _recover(log, topics, _read_meta(log, topics, timeout_s), timeout_s, accept_loss=True)


def _read_meta(log: Log, topics: Topics, timeout_s: float) -> MetaFold:
    fold = MetaFold(0)
    for _ in range(READ_ATTEMPTS_MAX):
        earliest, end = log.watermarks(topics.meta, time.monotonic() + timeout_s)
        fold = MetaFold(earliest)
        follow_meta(log, topics.meta, topics.region, fold, end)
        if fold.snapshot is not None or end == 0:
            break  # otherwise its owner has put a new one behind where we looked, and trimmed
    return fold


def take_meta(log: Log, topics: Topics, least: int, timeout_s: float) -> MetaFold:
    """Own the region's meta topic, with an epoch above `least`."""
    for _ in range(TAKE_ATTEMPTS_MAX):
        fold = _read_meta(log, topics, timeout_s)
        encoded = fold.snapshot_bytes if fold.snapshot else Snapshot().encode()
        epoch = (max(fold.epoch >> EPOCH_SHIFT, least) + 1) << EPOCH_SHIFT
        if faults.ARMED:
            faults.hit("regionwal.open.before-meta-epoch")
        records = meta_records(topics.region, epoch, encoded)
        last = log.write(topics.meta, records)
        if faults.ARMED:
            faults.hit("regionwal.open.after-meta-epoch")
        follow_meta(log, topics.meta, topics.region, fold, last + 1)
        if fold.epoch == epoch and fold.epoch_offset == last - len(records) + 1:
            return fold
        # A tie is lost, or more; the next round sees who won.
    raise Fenced(f"region {topics.region} was opened by others {TAKE_ATTEMPTS_MAX} times while we tried to")


def _recover(log: Log, topics: Topics, meta_fold: MetaFold, timeout_s: float, accept_loss: bool) -> Opened:
    """The region's state at the data topic's high watermark."""
    earliest, end = log.watermarks(topics.data, time.monotonic() + timeout_s)
    snapshot = meta_fold.snapshot or Snapshot()
    fold = DataFold.from_snapshot(snapshot)
    lost = _lost(topics, snapshot, earliest, end)
    if lost and not accept_loss:
        raise LogLost(lost)
    if lost:
        logger.warning("%s; going on without", lost)
        _give_up(fold, earliest, end)
    records, size_bytes = follow_data(log, topics.data, topics.region, fold, end)
    fold.accept_gaps = False
    return Opened(fold, meta_fold, earliest, records, size_bytes)


def _lost(topics: Topics, snapshot: Snapshot, earliest: int, end: int) -> str:
    """What the log must have and has not; empty when nothing."""
    known = snapshot.data_high_watermark
    if end < known:
        return (
            f"{topics.data} ends at offset {end}, and had records up to {known}: it was made anew, or lost its "
            f"replicas; {_lost_entries(snapshot, lambda offset: offset >= end)}"
        )
    if earliest > known:
        return (
            f"{topics.data} begins at offset {earliest}, and the records from {known} on are not in any snapshot; "
            f"{_lost_entries(snapshot, lambda offset: offset < earliest)}, and what came after those"
        )
    if any(
        meta.safe_delete_offset is not None and meta.safe_delete_offset < earliest for meta in snapshot.tables.values()
    ):
        return f"{topics.data} begins at offset {earliest}; {_lost_entries(snapshot, lambda offset: offset < earliest)}"
    return ""


def _lost_entries(snapshot: Snapshot, is_lost: Callable[[int], bool]) -> str:
    named: list[str] = []
    for table, meta in sorted(snapshot.tables.items()):
        gone = [sequence for sequence, offset in meta.seq_offset_mapping.items() if is_lost(offset)]
        if gone:
            named.append(f"{table} ({gone[0]} to {gone[-1]})")
    more = f" and {len(named) - LOST_TABLES_NAMED_MAX} more" if len(named) > LOST_TABLES_NAMED_MAX else ""
    which = ", ".join(named[:LOST_TABLES_NAMED_MAX]) or "none that is known"
    return f"lost entries that were not marked as deleted, by table: {which}{more}"


def _give_up(fold: DataFold, earliest: int, end: int) -> None:
    """Forget the entries that are lost; at the log's end, their sequence numbers are given out again."""
    for meta in fold.meta.table_metas.values():
        held = meta.seq_offset_mapping
        kept = next((sequence for sequence, offset in held.items() if offset >= earliest), meta.next_seq_num)
        meta.latest_marked_deleted = max(kept, meta.latest_marked_deleted)
        held.drop_below(kept)
        cut = next((sequence for sequence, offset in held.items() if offset >= end), None)
        if cut is not None:
            held.drop_from(cut)
            meta.next_seq_num = cut
        meta.current_high_watermark = min(meta.current_high_watermark, end)
    fold.next_offset = max(min(fold.next_offset, end), earliest)
    fold.accept_gaps = True


def take_data(log: Log, topics: Topics, fold: DataFold, epoch: int, timeout_s: float, lock: Lock = NO_LOCK) -> None:
    """Own the data topic, and know all that lies before: from here on, records of lower epochs are void."""
    try:
        _take_data(log, topics, fold, epoch, timeout_s, lock)
    except Overtaken as other:
        raise _fenced(topics, epoch, other.epoch, other.writer) from None


def _take_data(log: Log, topics: Topics, fold: DataFold, epoch: int, timeout_s: float, lock: Lock) -> None:
    earliest, end = log.watermarks(topics.data, time.monotonic() + timeout_s)
    if earliest > fold.next_offset:  # what we never saw is deleted, with the epoch records in it
        raise FencedLongAgo(
            f"region {topics.region} was cleaned by another process, {topics.data} begins at offset {earliest}, and we "
            f"know it up to {fold.next_offset}: open it again to take it back"
        )
    if end < fold.next_offset:
        raise LogLost(
            f"{topics.data} ends at offset {end}, and had records up to {fold.next_offset}: it was made anew, or "
            f"lost its replicas; close the region and open it with accept_loss=True to go on with what is left"
        )
    follow_data(log, topics.data, topics.region, fold, end, lock)
    if fold.epoch >= epoch:
        raise _fenced(topics, epoch, fold.epoch, fold.epoch_writer)
    key = formats.data_key(topics.region, formats.EPOCH_TABLE, epoch)
    if faults.ARMED:
        faults.hit("regionwal.open.before-data-epoch")
    offset = log.write(topics.data, [(key, formats.VALUE_PREFIX + writer_name(), [formats.epoch_header(epoch)])])
    if faults.ARMED:
        faults.hit("regionwal.open.after-data-epoch")
    follow_data(log, topics.data, topics.region, fold, offset + 1, lock)
    if fold.epoch_offset != offset:
        raise _fenced(topics, epoch, fold.epoch, fold.epoch_writer)
    fold.owner = epoch >> EPOCH_SHIFT


def _fenced(topics: Topics, ours: int, epoch: int, writer: bytes) -> Fenced:
    return Fenced(
        f"region {topics.region} was opened by another process, {writer.decode(errors='replace') or 'unknown'} (epoch "
        f"{epoch >> EPOCH_SHIFT}, ours is {ours >> EPOCH_SHIFT}): open it again to take it back"
    )
