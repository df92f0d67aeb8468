"""`info`, the file of a dump that says what it is: five lines (duration, host, port, binlog filenum, binlog offset).

The position is taken under the master's write lock together with the dump: the dump is exactly every item whose end is
not behind it, so the binlog goes on right there. Slaves accept two more lines (term, index) that no master writes.
"""

from dataclasses import dataclass
from pathlib import Path

from tidelog.pikiwi.errors import DumpError
from tidelog.pikiwi.position import Position, PositionError

INFO_NAME = "info"
INFO_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class DumpInfo:
    duration_s: int  # how long the master took to save it
    host: str
    port: int
    position: Position

    @classmethod
    def parse(cls, content: bytes) -> "DumpInfo":
        lines = content[:INFO_BYTES_MAX].decode("utf-8", "replace").split("\n")
        try:
            duration, host, port, filenum, offset = (line.strip() for line in lines[:5])
            return cls(
                _number(duration.removesuffix("s")),
                host,
                _number(port),
                Position.checked(_number(filenum), _number(offset)),
            )
        except (ValueError, PositionError) as error:
            raise DumpError(
                f"the dump's info file {content[:80]!r} is not duration, host, port, filenum, offset on five lines; "
                "fetch the dump again"
            ) from error

    @classmethod
    def load(cls, folder: Path) -> "DumpInfo":
        """Of a dump on this machine."""
        path = folder / INFO_NAME
        try:
            with path.open("rb") as file:
                return cls.parse(file.read(INFO_BYTES_MAX))
        except FileNotFoundError as error:
            raise DumpError(f"{folder} has no {INFO_NAME} file: the dump is not complete; fetch it again") from error


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{text!r} is no number")
    return int(text)
