"""Which records of a region count. Pure: the same records in the same order give every process the same answer.

A region has one writer at a time, and nothing but the log's own order to make sure of it: no transactions, no locks,
so it holds on every Kafka-compatible log. These are the rules; a record that a rule drops is *void*, for everybody and
for ever.

1. Every record carries its writer's *epoch*. A record whose epoch is below the highest one that lies before it is void.
2. An *epoch record* raises the epoch, if it is higher than all before it; an equal one is void.
3. A data record counts only if its sequence number is the next one of its table. The parts of a split entry must lie
   one directly behind the other, else the whole entry is void.
4. Of the meta topic's snapshots that count by rule 1, the one with the largest serial number is the region's.

**Who gets an epoch.** An opener reads the meta topic, takes the highest epoch it finds plus one, and writes a copy of
the last snapshot there with this epoch. It then reads up to its own record. If another opener's record with the same
epoch lies before it, it has lost the tie and tries again with a higher one; so an epoch belongs to one opener only, and
a record of an opener that died on the way, which arrives late, has an epoch that is no longer above the others. The
winner then writes an epoch record of its number to the data topic and again reads up to it: a higher epoch before it
means that somebody opened the region meanwhile. The higher epoch in the meta topic is the higher one in the data topic,
so of two openers the same one loses in both. A data epoch has 32 low bits more, which its owner counts up when it has
to shut out its own late records (see `writer`).

**An acknowledged write is never lost.** A writer knows every record up to the offset its fold has reached: it wrote
them itself, or it has read them. A write is acknowledged when all its records are delivered and take exactly the
offsets that follow (n records, the last one at next + n - 1, so there is no place for anybody else's), or when the
reading found them counting. So no higher epoch lies before them, and whoever opens the region later finds them when it
reads up to its own epoch record, which lies behind them.

**A sequence number is never given to two entries that count**: rule 3, and a writer gives out a number again only
after it has raised its epoch, read up to that, and found that the number's entry is not there: if it comes later, it is
void by rule 1.

**A fenced process deletes nothing.** Records are deleted from the data topic only after a snapshot with the marks that
allow it was delivered to the meta topic with no higher epoch before it. Whoever opens the region later reads that
snapshot, and so knows the marks too; it never looks for what was deleted, however late the deletion happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.regionwal.byte_meter import ByteMeter
from tidelog.regionwal.formats import EPOCH_TABLE, Part
from tidelog.regionwal.meta import RegionMeta
from tidelog.regionwal.snapshot_format import Snapshot

EPOCH_SHIFT = 32
EPOCH_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries of one table, one behind the other in the log, each of `width` records."""

    table: int
    sequence: int
    count: int
    width: int


_Begun = tuple[int, int, int, int]
"""A split entry of which parts are missing: table, sequence, offset of the first part, tag."""


class Overtaken(Exception):
    """The next record belongs to a later owner of the region; nothing of it or behind it was folded."""

    def __init__(self, epoch: int, writer: bytes) -> None:
        super().__init__(f"epoch {epoch >> EPOCH_SHIFT} by {writer.decode(errors='replace')}")
        self.epoch = epoch
        self.writer = writer


class DataFold:
    """The data topic: what the entries up to `next_offset` make of the region's metadata.

    The fold of a region's owner goes up to the first record of the next owner and no further: what counts before it was
    written by us, what counts behind it was not, even where the sequence numbers are the same.
    """

    __slots__ = (
        "_begun",
        "accept_gaps",
        "epoch",
        "epoch_offset",
        "epoch_writer",
        "meta",
        "meter",
        "next_offset",
        "owner",
        "void_records",
    )

    def __init__(self, meta: RegionMeta, next_offset: int, epoch: int, meter: ByteMeter) -> None:
        self.meta = meta
        self.meter = meter
        self.next_offset = next_offset
        self.epoch = epoch
        self.epoch_offset: int | None = None  # of the record that raised it, when that was seen here
        self.epoch_writer = b""
        self.owner: int | None = None  # our own epoch, once we have the region
        self.void_records = 0
        self.accept_gaps = False
        """Records were lost: a table may go on behind a hole, and what lies before the hole is given up."""
        self._begun: _Begun | None = None

    @classmethod
    def from_snapshot(cls, snapshot: Snapshot) -> "DataFold":
        meter = ByteMeter(snapshot.byte_marks, snapshot.total_bytes)
        return cls(RegionMeta(snapshot.tables).copy(), snapshot.data_high_watermark, snapshot.data_epoch, meter)

    def observe(
        self, offset: int, epoch: int, table: int, sequence: int, part: Part, payload: bytes, size_bytes: int
    ) -> None:
        """The next record of the topic."""
        assert offset >= self.next_offset, f"record {offset} was folded already: next is {self.next_offset}"
        if self.owner is not None and epoch >> EPOCH_SHIFT > self.owner:
            raise Overtaken(epoch, payload if table == EPOCH_TABLE else b"?")
        self.next_offset = offset + 1
        self.meter.add(offset, size_bytes)
        begun, self._begun = self._begun, None
        if epoch < self.epoch:
            self.void_records += 1
        elif table == EPOCH_TABLE:
            if epoch > self.epoch:
                self.epoch, self.epoch_offset, self.epoch_writer = epoch, offset, payload
            else:
                self.void_records += 1
        else:
            self.epoch = epoch
            if part.parts == 1:
                self._entry(table, sequence, offset, 1)
            else:
                self._part(begun, (table, sequence, offset - part.number, part.tag), part)

    def _entry(self, table: int, sequence: int, offset: int, width: int) -> None:
        if sequence != self.meta.next_seq_num(table) and not self._skip_lost(table, sequence):
            self.void_records += width
            return
        self.meta.append(table, offset, 1, width, offset + width)

    def _part(self, begun: _Begun | None, entry: _Begun, part: Part) -> None:
        if part.number > 0 and begun != entry:
            self.void_records += 1
        elif part.number < part.parts - 1:
            self._begun = entry
        else:
            self._entry(entry[0], entry[1], entry[2], part.parts)

    def _skip_lost(self, table: int, sequence: int) -> bool:
        """Whether an entry that follows a hole may be taken. Then what is before the hole counts as deleted."""
        if not self.accept_gaps or sequence < self.meta.next_seq_num(table):
            return False
        meta = self.meta.table(table)
        meta.seq_offset_mapping.clear()
        meta.next_seq_num = meta.latest_marked_deleted = sequence
        return True

    def confirm(self, pieces: Sequence[Piece], size_bytes: int) -> None:
        """Our own records, delivered right behind what was folded so far: the same as observing each of them."""
        self.meter.add(self.next_offset, size_bytes, sum(piece.count * piece.width for piece in pieces))
        for piece in pieces:
            assert piece.sequence == self.meta.next_seq_num(piece.table)
            end = self.next_offset + piece.count * piece.width
            self.meta.append(piece.table, self.next_offset, piece.count, piece.width, end)
            self.next_offset = end

    def skip_to(self, offset: int) -> None:
        """Nothing lies before the offset: the log says so."""
        self.next_offset = max(self.next_offset, offset)


class MetaFold:
    """The meta topic: the region's epoch and its last snapshot."""

    __slots__ = (
        "_begun",
        "_parts",
        "epoch",
        "epoch_offset",
        "next_offset",
        "snapshot",
        "snapshot_bytes",
        "snapshot_offset",
    )

    def __init__(self, next_offset: int, epoch: int = 0) -> None:
        self.next_offset = next_offset
        self.epoch = epoch
        self.epoch_offset: int | None = None  # of the record that raised it
        self.snapshot: Snapshot | None = None
        self.snapshot_bytes = b""
        self.snapshot_offset = 0  # of its first part
        self._begun: tuple[int, int] | None = None  # offset of the first part, and tag, of a value that is incomplete
        self._parts: list[bytes] = []

    def observe(self, offset: int, epoch: int, part: Part, payload: bytes) -> None:
        """The next record of the topic; its payload is the value without the version byte."""
        assert offset >= self.next_offset
        self.next_offset = offset + 1
        begun, self._begun = self._begun, None
        if epoch < self.epoch:
            return
        if epoch > self.epoch:
            self.epoch, self.epoch_offset = epoch, offset
        # Two openers with the same epoch may write at the same time: the tag tells their parts apart.
        value = (offset - part.number, part.tag)
        if part.number == 0:
            self._parts = []
        elif begun != value:
            return
        self._parts.append(payload)
        if part.number < part.parts - 1:
            self._begun = value
            return
        encoded = b"".join(self._parts)
        snapshot = Snapshot.decode(encoded)
        if self.snapshot is None or snapshot.serial >= self.snapshot.serial:
            self.snapshot, self.snapshot_bytes, self.snapshot_offset = snapshot, encoded, value[0]
