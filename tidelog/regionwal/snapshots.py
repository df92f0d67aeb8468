"""A region's meta topic, as its one writer sees it: snapshots go in, in order, and the older ones are trimmed away.

Every snapshot checks that this process still owns the region: it knows at which offset its next record must land, and
where it lands elsewhere, what lies between is read. A snapshot whose delivery is in doubt needs no repair: it has the
marks of its time, and the next one has a larger serial number, whichever of them comes last (`fold`, rule 4).
"""

import threading

from tidelog import faults
from tidelog.regionwal import formats
from tidelog.regionwal.errors import Fenced, LogFailed
from tidelog.regionwal.fold import EPOCH_SHIFT, MetaFold
from tidelog.regionwal.following import follow_meta
from tidelog.regionwal.log import Log, Record
from tidelog.regionwal.snapshot_format import Snapshot

SNAPSHOT_RECORD_BYTES_MAX = 900_000


class SnapshotLog:
    """`lock` is held by whoever makes a snapshot, from taking the region's state to having written and trimmed: so
    snapshots are written in the order they are taken."""

    def __init__(self, log: Log, region: int, topic: str, opened: MetaFold) -> None:
        self._log = log
        self._region = region
        self._topic = topic
        self._fold = MetaFold(opened.next_offset, opened.epoch)  # of what others write
        self._trim_offset = 0
        self.lock = threading.Lock()
        self.serial = opened.snapshot.serial if opened.snapshot else 0

    def write(self, snapshot: Snapshot) -> None:
        """Returns when it is durable and nobody else has opened the region before."""
        assert snapshot.serial == self.serial + 1
        self.serial = snapshot.serial  # even if this one fails: it may arrive late
        records = meta_records(self._region, self._fold.epoch, snapshot.encode())
        if faults.ARMED:
            faults.hit("regionwal.snapshot.before-produce")
        last = self._log.write(self._topic, records)
        if faults.ARMED:
            faults.hit("regionwal.snapshot.after-produce")
        if last == self._fold.next_offset + len(records) - 1:  # no place for anybody else's
            self._trim_offset, self._fold.next_offset = self._fold.next_offset, last + 1
        else:
            self._look_between(snapshot, last + 1)

    def _look_between(self, snapshot: Snapshot, end: int) -> None:
        """Somebody else wrote: a later owner, or we ourselves, when an earlier snapshot was in doubt."""
        owned = self._fold.epoch
        follow_meta(self._log, self._topic, self._region, self._fold, end)
        if self._fold.epoch != owned:
            raise Fenced(
                f"region {self._region} was opened by another process (epoch {self._fold.epoch >> EPOCH_SHIFT}, ours "
                f"is {owned >> EPOCH_SHIFT}): open it again to take it back"
            )
        if self._fold.snapshot is None or self._fold.snapshot.serial != snapshot.serial:
            raise LogFailed(f"the snapshot in {self._topic} was torn apart by somebody else's record; try again")
        self._trim_offset, self._fold.snapshot = self._fold.snapshot_offset, None

    def trim(self) -> None:
        """Only the last snapshot stays."""
        if faults.ARMED:
            faults.hit("regionwal.snapshot.before-trim")
        self._log.delete_before(self._topic, self._trim_offset)
        if faults.ARMED:
            faults.hit("regionwal.snapshot.after-trim")


def meta_records(region: int, epoch: int, encoded: bytes) -> list[Record]:
    """A snapshot as the records to write."""
    return formats.records_of(
        formats.meta_key(region), encoded, SNAPSHOT_RECORD_BYTES_MAX, [formats.epoch_header(epoch)]
    )
