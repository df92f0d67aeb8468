"""What commands make of the keys they name: the state before, commands in order, the state after. Pure.

`touched` says which keys a run of commands can change or look at; only these are wanted for `fold`, which applies the
commands to them as a master would (`tidelog.pikiwi.keyspace`) and gives back what they hold then. Everything else stays
as it is, except that after a FLUSHDB nothing of before does.

Splitting a run anywhere and folding the parts one after the other gives the same, versions included: a key's version is
that of the last command that named it.

Cost: that of the commands, and of the keys that they name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.pikiwi.commands import COMMANDS, Keys, ZeroExpiry, command_of, keys_of
from tidelog.pikiwi.errors import PikiwiError
from tidelog.pikiwi.keyspace import Entry, Keyspace, KeyspaceError
from tidelog.spark.tables.position import unpack

_FIRST_KEY = frozenset(command.name for command in COMMANDS.values() if command.keys is Keys.FIRST)
_FLUSHES = frozenset({"flushdb", "flushall"})


class FoldError(PikiwiError):
    """A command that the state cannot have allowed: table and master are not the same any more, or never were."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What differs between masters."""

    name: str
    types_apart: bool
    """A key may have several types at once, and DEL or EXPIRE concern all of them."""
    zero_expiry: ZeroExpiry
    clock_ms: int
    """Added to the time of an item, which is in whole seconds: a 4.x master's expiries are not."""


RULES = {
    rules.name: rules for rules in (Rules("4", False, ZeroExpiry.NONE, 999), Rules("3.5", True, ZeroExpiry.KEEP, 0))
}


class Command(NamedTuple):
    op: str
    """The name, in lower case."""
    args: Sequence[bytes]
    exec_ms: int
    version: int
    """Grows from command to command."""


@dataclass(frozen=True, slots=True)
class Folded:
    flushed: bool
    """Nothing of the database's earlier rows is left."""
    touched: frozenset[bytes]
    """Keys whose earlier rows go."""
    held: Sequence[tuple[str, bytes, Entry, int]]
    """What stands in their place: type, key, entry, version."""


def touched(commands: Iterable[Command]) -> set[bytes]:
    """The keys that these commands name."""
    found: set[bytes] = set()
    for command in commands:
        if command.op in _FIRST_KEY:
            found.update(command.args[1:2])
        else:
            found.update(_keys(command))
    return found


def fold(state: Iterable[tuple[str, bytes, Entry]], commands: Iterable[Command], rules: Rules) -> Folded:
    """`state` holds at least what is there of the touched keys; it is used up."""
    space = _Keys(rules, state)
    versions: dict[bytes, int] = {}
    flushed = False
    clock_ms = rules.clock_ms
    for command in commands:
        op, args, exec_ms, version = command
        try:
            space.apply(args, exec_ms + clock_ms)
        except KeyspaceError as error:
            raise FoldError(f"the item that ends at {unpack(version)}: {error}") from error
        if op in _FIRST_KEY:
            versions[args[1]] = version
        elif op in _FLUSHES:
            flushed = True
        else:
            versions.update(dict.fromkeys(_keys(command), version))
    return Folded(flushed, frozenset(versions), space.held(versions))


def _keys(command: Command) -> Sequence[bytes]:
    return keys_of(COMMANDS.get(command.op) or command_of(command.args[0]), command.args)


class _Keys(Keyspace):
    """A key space that begins with some keys, whether or not they have expired: the commands' own times decide."""

    def __init__(self, rules: Rules, state: Iterable[tuple[str, bytes, Entry]]) -> None:
        super().__init__(types_apart=rules.types_apart, zero_expiry=rules.zero_expiry)
        self._tables = self._space.tables
        for data_type, key, entry in state:
            self._tables[data_type][key] = entry

    def held(self, versions: Mapping[bytes, int]) -> list[tuple[str, bytes, Entry, int]]:
        """What is left of the keys that have a version."""
        return [
            (data_type, key, entry, versions[key])
            for data_type, table in self._tables.items()
            for key, entry in table.items()
            if key in versions
        ]
