"""What a region knows of its tables, and the arithmetic of deleting. Pure; guarded by the region's lock.

`RegionMeta` is a table of `TableMeta`, whose fields are the specification's. Invariants, for each table:

    1 <= latest_marked_deleted <= next_seq_num
    seq_offset_mapping holds exactly the sequence numbers from latest_marked_deleted to before next_seq_num
    every offset in it is below current_high_watermark, or the table was never written (0)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidelog.regionwal.errors import BadMark
from tidelog.regionwal.sequence_map import SequenceMap

FIRST_SEQUENCE = 1  # 0 means "none"

DROPPED = 2**64 - 1
"""Mark everything of a table: it was dropped."""


@dataclass(slots=True)
class TableMeta:
    next_seq_num: int = FIRST_SEQUENCE
    """The number the next entry gets."""

    latest_marked_deleted: int = FIRST_SEQUENCE
    """Every smaller sequence number may be deleted."""

    current_high_watermark: int = 0
    """The data topic's high watermark after the table's last write: the offset after its last record."""

    seq_offset_mapping: SequenceMap = field(default_factory=SequenceMap)
    """Where the entries lie that may not be deleted."""

    @property
    def safe_delete_offset(self) -> int | None:
        """Everything below may be deleted as far as this table goes; none when it has no live entry."""
        return self.seq_offset_mapping.first_offset

    def copy(self) -> "TableMeta":
        return TableMeta(
            self.next_seq_num, self.latest_marked_deleted, self.current_high_watermark, self.seq_offset_mapping.copy()
        )


class RegionMeta:
    __slots__ = ("table_metas",)

    def __init__(self, table_metas: dict[int, TableMeta] | None = None) -> None:
        self.table_metas: dict[int, TableMeta] = {} if table_metas is None else table_metas

    def table(self, table: int) -> TableMeta:
        """Of a table that is written: it begins to exist by that."""
        found = self.table_metas.get(table)
        if found is None:
            found = self.table_metas[table] = TableMeta()
        return found

    def next_seq_num(self, table: int) -> int:
        found = self.table_metas.get(table)
        return FIRST_SEQUENCE if found is None else found.next_seq_num

    def append(self, table: int, offset: int, count: int, width: int, end_offset: int) -> None:
        """Entries of one table that lie one behind the other in the log, from `offset` on."""
        meta = self.table(table)
        meta.seq_offset_mapping.append(meta.next_seq_num, offset, count, width, width)
        meta.next_seq_num += count
        meta.current_high_watermark = end_offset

    def mark(self, table: int, up_to: int) -> bool:
        """Everything up to and with `up_to` may be deleted. False when that was so already.

        A mark below an earlier one changes nothing; one above what is written is refused, unless it is DROPPED.
        """
        meta = self.table_metas.get(table)
        if meta is None:
            if up_to not in (0, DROPPED):
                raise BadMark(f"table {table} was never written, and cannot be marked as deleted up to {up_to}")
            return False
        marked = meta.next_seq_num if up_to == DROPPED else up_to + 1
        if marked > meta.next_seq_num:
            raise BadMark(
                f"table {table} cannot be marked as deleted up to {up_to}: its last entry is {meta.next_seq_num - 1}"
            )
        if marked <= meta.latest_marked_deleted:
            return False
        meta.latest_marked_deleted = marked
        meta.seq_offset_mapping.drop_below(marked)
        return True

    def safe_delete_offset(self) -> int:
        """Everything below may be deleted: the oldest live entry of any table, or, when all is flushed, everything."""
        offsets = [offset for meta in self.table_metas.values() if (offset := meta.safe_delete_offset) is not None]
        if offsets:
            return min(offsets)
        return max((meta.current_high_watermark for meta in self.table_metas.values()), default=0)

    def tables_below(self, offset: int) -> list[int]:
        """The tables with live entries below an offset, the one with the oldest first."""
        found = [(first, table) for table, first in self._firsts() if first < offset]
        return [table for _, table in sorted(found)]

    def _firsts(self) -> Iterator[tuple[int, int]]:
        for table, meta in self.table_metas.items():
            first = meta.safe_delete_offset
            if first is not None:
                yield table, first

    def copy(self) -> "RegionMeta":
        return RegionMeta({table: meta.copy() for table, meta in self.table_metas.items()})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RegionMeta) and self.table_metas == other.table_metas

    __hash__ = None  # type: ignore[assignment]
