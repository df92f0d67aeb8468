"""How many bytes lie in the log from an offset on. Pure, and an estimate from above.

Marks (offset, bytes before it) are kept at a spacing that grows with what lies between the oldest and the newest one,
so there are never more than `MARKS_MAX`, and an answer is too large by at most one spacing.
"""

from bisect import bisect_right
from collections.abc import Sequence

MARKS_MAX = 256
SPACING_BYTES_MIN = 64 * 1024


class ByteMeter:
    __slots__ = ("_bytes", "_offsets", "_spacing", "total_bytes")

    def __init__(self, marks: Sequence[tuple[int, int]] = (), total_bytes: int = 0) -> None:
        self._offsets = [offset for offset, _ in marks]
        self._bytes = [before for _, before in marks]
        self._spacing = SPACING_BYTES_MIN
        self.total_bytes = total_bytes

    @property
    def marks(self) -> list[tuple[int, int]]:
        return list(zip(self._offsets, self._bytes, strict=True))

    def add(self, offset: int, size_bytes: int, records: int = 1) -> None:
        """A record, or several of about the same size that begin at an offset; offsets only grow."""
        slices = min(records, 1 + size_bytes // self._spacing)
        for index in range(slices):
            share = size_bytes * (index + 1) // slices - size_bytes * index // slices
            self._add(offset + records * index // slices, share)

    def _add(self, offset: int, size_bytes: int) -> None:
        if not self._offsets or self.total_bytes - self._bytes[-1] >= self._spacing:
            self._offsets.append(offset)
            self._bytes.append(self.total_bytes)
            if len(self._offsets) > MARKS_MAX:
                self._spacing *= 2
                del self._offsets[1::2]
                del self._bytes[1::2]
        self.total_bytes += size_bytes

    def bytes_from(self, offset: int) -> int:
        """What was added at this offset and later."""
        if not self._offsets:
            return 0
        index = bisect_right(self._offsets, offset) - 1
        return self.total_bytes - self._bytes[max(0, index)]

    def drop_below(self, offset: int) -> None:
        """Those records are gone; the mark at or before the offset stays, for what follows it."""
        keep = bisect_right(self._offsets, offset) - 1
        if keep > 0:
            del self._offsets[:keep]
            del self._bytes[:keep]
            held = self.total_bytes - self._bytes[0]
            while self._spacing > SPACING_BYTES_MIN and held < self._spacing * MARKS_MAX // 4:
                self._spacing //= 2

    def copy(self) -> "ByteMeter":
        copied = ByteMeter(self.marks, self.total_bytes)
        copied._spacing = self._spacing
        return copied
