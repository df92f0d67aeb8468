"""The files of a WAL: `wal-<start filenum, 8 digits>-<start offset, 20>-<segment number, 8>.log`.

The start is the position at which the segment begins: the end of the item before its first. So the names alone say
which segment holds the item after a position, and a segment without records has a name too. Numbers grow by one; the
segment with the highest is the only one that is written to.
"""

import os
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tidelog.pikiwi.errors import CorruptWal
from tidelog.pikiwi.position import Position

NUMBER_MAX = 2**32 - 1
_NAME = re.compile(r"wal-(\d{8,10})-(\d{20})-(\d{8,10})\.log")


@dataclass(frozen=True, slots=True)
class Segment:
    folder: Path
    start: Position
    number: int

    @property
    def path(self) -> Path:
        return self.folder / f"wal-{self.start.filenum:08}-{self.start.offset:020}-{self.number:08}.log"


def parse_name(folder: Path, name: str) -> Segment | None:
    """None for what is no segment."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    filenum, offset, number = map(int, match.groups())
    return Segment(folder, Position(filenum, offset), number)


def list_segments(folder: Path) -> list[Segment]:
    """By number. Names only: nothing is opened."""
    found = [segment for name in os.listdir(folder) if (segment := parse_name(folder, name)) is not None]
    return sorted(found, key=lambda segment: segment.number)


def check_sequence(segments: list[Segment]) -> None:
    """Each follows the one before: a file that is missing in the middle is damage, as is one that is there twice."""
    for before, after in pairwise(segments):
        if after.number != before.number + 1:
            raise CorruptWal(after.path, 0, f"segment {before.number} is followed by {after.number}, not by the next")
        if after.start < before.start:
            raise CorruptWal(after.path, 0, f"it begins at {after.start}, before segment {before.number} does")
