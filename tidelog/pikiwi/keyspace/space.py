"""Where keys live: one table a data type, and a clock that is passed in.

A 4.x master has one type a key. A 3.5 master keeps types apart: a string, a list and a hash of the same name may live
side by side, and DEL or EXPIRE concern all of them (`types_apart`).

Expiry is absolute, in milliseconds, 0 for none. A key whose expiry lies before now is gone; no binlog says so. Items
know their time in whole seconds only. So when a command that worked on the master finds a key of another type whose
expiry is less than a second away, the key is gone: that the command worked proves it.

Values: bytes (string), deque (list), dict (hash), set (set), dict of floats (zset), `Stream`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tidelog.pikiwi.commands import DATA_TYPES, ZeroExpiry
from tidelog.pikiwi.errors import PikiwiError

CLOCK_MS = 1_000  # how far the time of an item may be from the master's


class KeyspaceError(PikiwiError):
    """A command that cannot have worked on the master as things are here, or whose outcome only the master knows."""


@dataclass(slots=True)
class Entry:
    value: Any
    expire_ms: int = 0


class Space:
    def __init__(self, *, types_apart: bool = False, zero_expiry: ZeroExpiry = ZeroExpiry.NONE) -> None:
        self.types_apart = types_apart
        self.zero_expiry = zero_expiry
        self.now_ms = 0
        self.tables: dict[str, dict[bytes, Entry]] = {data_type: {} for data_type in DATA_TYPES}

    def live(self, data_type: str, key: bytes) -> Entry | None:
        table = self.tables[data_type]
        entry = table.get(key)
        if entry is not None and 0 < entry.expire_ms < self.now_ms:
            del table[key]
            return None
        return entry

    def holders(self, key: bytes) -> list[tuple[str, Entry]]:
        """Every type that the key has, in the order of DATA_TYPES."""
        found = [(data_type, self.live(data_type, key)) for data_type, table in self.tables.items() if key in table]
        return [(data_type, entry) for data_type, entry in found if entry is not None]

    def existing(self, data_type: str, key: bytes) -> Entry | None:
        """For a command of that type; KeyspaceError when the key is of another."""
        entry = self.live(data_type, key)
        if entry is None and not self.types_apart:
            self._no_other(data_type, key)
        return entry

    def opened(self, data_type: str, key: bytes, empty: Callable[[], Any]) -> Entry:
        """The same for a command that makes the key when it is not there."""
        entry = self.existing(data_type, key)
        if entry is None:
            entry = self.tables[data_type][key] = Entry(empty())
        return entry

    def put(self, data_type: str, key: bytes, value: Any, expire_ms: int = 0) -> None:
        """Whatever the key was."""
        if not self.types_apart:
            self.drop(key)
        self.tables[data_type][key] = Entry(value, expire_ms)

    def drop(self, key: bytes) -> None:
        for table in self.tables.values():
            table.pop(key, None)

    def tidy(self, data_type: str, key: bytes) -> None:
        """A collection without elements does not exist."""
        entry = self.tables[data_type].get(key)
        if entry is not None and not entry.value:
            del self.tables[data_type][key]

    def all(self) -> Iterator[tuple[str, bytes, Entry]]:
        for data_type, table in self.tables.items():
            for key in list(table):
                entry = self.live(data_type, key)
                if entry is not None:
                    yield data_type, key, entry

    def _no_other(self, data_type: str, key: bytes) -> None:
        for other, entry in self.holders(key):
            if other == data_type:
                continue
            if not 0 < entry.expire_ms <= self.now_ms + CLOCK_MS:
                raise KeyspaceError(f"{key!r} is a {other} here; on the master a command for a {data_type} worked")
            del self.tables[other][key]


def integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise KeyspaceError(f"{text!r} is no integer") from error


def floating(text: bytes) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise KeyspaceError(f"{text!r} is no number") from error
    if number != number:  # noqa: PLR0124 (not a number is what is not itself)
        raise KeyspaceError("a score that is not a number")
    return number
