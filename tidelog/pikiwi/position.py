"""Positions in a master's binlog.

A position names the END of an item: the file `write2file<filenum>` and the byte offset after the item's last fragment.
It is what a master is asked to go on from, what it is acknowledged with, and the unique id of an item within one
database and lineage. (The header inside an item names its start instead, which for the first item of a file is the end
of the file before.)

Positions of one lineage are ordered; at a roll (n, end of file n) and (n + 1, 0) are the same place with two names.
"""

from typing import NamedTuple

from tidelog.pikiwi.errors import PikiwiError

FILENUM_MAX = 2**32 - 1
OFFSET_MAX = 2**64 - 1


class PositionError(PikiwiError, ValueError):
    """A text or a pair of numbers that is no position."""


class Position(NamedTuple):
    filenum: int
    offset: int

    def __str__(self) -> str:
        return f"{self.filenum}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        """From "filenum:offset", as `str` writes it."""
        filenum, colon, offset = text.strip().partition(":")
        if not (colon and _is_number(filenum) and _is_number(offset)):
            raise PositionError(f"{text!r} is no binlog position; write filenum:offset, for example 12:34567")
        return cls.checked(int(filenum), int(offset))

    @classmethod
    def checked(cls, filenum: int, offset: int) -> "Position":
        """From numbers out of a file or a setting: within what the wire can carry."""
        if not (0 <= filenum <= FILENUM_MAX and 0 <= offset <= OFFSET_MAX):
            raise PositionError(f"{filenum}:{offset} is no binlog position: filenum has 32 bits, offset has 64")
        return cls(filenum, offset)


ZERO = Position(0, 0)  # before the first item of a master's life; on the wire also "no position" (keepalives, pings)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
