"""A binlog position as one number, so that it can be a Delta transaction's version and a row's.

File number in the upper half, offset in the lower: later positions are larger numbers. A master starts a new file long
before an offset needs more than 32 bits (100 MB by default).
"""

from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.position import Position

OFFSET_BITS = 32
FILENUM_MAX = (1 << 31) - 1  # a Delta version is signed


class PositionTooLarge(PikiwiError):
    """A binlog position that has no number here."""


def pack(position: Position) -> int:
    if position.filenum > FILENUM_MAX or position.offset >> OFFSET_BITS:
        raise PositionTooLarge(
            f"{position} cannot be a version: tables take binlog files up to {FILENUM_MAX:,} and offsets below 4 GiB"
        )
    return position.filenum << OFFSET_BITS | position.offset


def unpack(number: int) -> Position:
    return Position(number >> OFFSET_BITS, number & ((1 << OFFSET_BITS) - 1))
