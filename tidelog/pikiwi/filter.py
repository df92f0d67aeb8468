"""Which events are sent: the seed's filter language.

    filter=key=dev:*,test;type=list,hash;action=rpush      conditions joined by `;` must all hold, one of each list
    filter=/etc/pikiwi/filters.conf                        a value without `=` is a file of such lines
    exclude=tmp:*,^session:[0-9]+$                         keys that are never sent, whatever the filters say

Several filters: one must hold. None: everything is sent. A key pattern that ends in `*` and has no other special
character is a prefix; one without special characters is the key itself; any other is a regular expression, searched
for anywhere in the key (anchor it with ^ and $).

What cannot be understood is a `FilterError`: a word that is skipped would widen the filter or empty it, unnoticed.

A command that may concern any type has the type "unknown" and passes each type condition. A command without a key
(FLUSHDB) concerns every key, so it passes key conditions and excludes; only an action condition can hold it back.

Cost: what types and actions decide is looked up per command name; keys then cost one set lookup, one `startswith` with
all prefixes, and a search for each regular expression.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tidelog.pikiwi.commands import COMMANDS, DATA_TYPES, PADDING, UNKNOWN
from tidelog.pikiwi.errors import FilterError

_SPECIAL = frozenset(".+?^$()[]{}|\\*")
_PLURALS = {"strings": "string", "lists": "list", "hashes": "hash", "sets": "set", "zsets": "zset", "streams": "stream"}
_PLANS_MAX = 4096  # names of commands come from the source: what is remembered of them is bounded

_WRITTEN_AS = {
    **dict.fromkeys(("setex", "psetex", "incr", "incrby", "incrbyfloat", "append"), "pksetexat"),
    **dict.fromkeys(("expire", "pexpire"), "expireat or pexpireat"),
    **dict.fromkeys(("mset", "msetnx", "bitop", "pfmerge"), "set"),
    **dict.fromkeys(("sunionstore", "sinterstore", "sdiffstore"), "del and sadd"),
    **dict.fromkeys(("zunionstore", "zinterstore"), "del and zadd"),
    "rpoplpush": "rpop and lpush",
    "blpop": "lpop",
    "brpop": "rpop",
    "spop": "srem",
    "smove": "srem and sadd",
    "flushall": "flushdb",
}


@dataclass(frozen=True, slots=True)
class KeyPatterns:
    """A list of key patterns, any of which may match."""

    exact: frozenset[bytes] = frozenset()
    prefixes: tuple[bytes, ...] = ()
    regexes: tuple[re.Pattern[str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.exact or self.prefixes or self.regexes)

    def match(self, key: bytes) -> bool:
        if key in self.exact or key.startswith(self.prefixes):
            return True
        if not self.regexes:
            return False
        text = key.decode("utf-8", "surrogateescape")  # a byte that is no UTF-8 is one character, as in the seed
        return any(regex.search(text) for regex in self.regexes)

    def __or__(self, other: "KeyPatterns") -> "KeyPatterns":
        return KeyPatterns(self.exact | other.exact, self.prefixes + other.prefixes, self.regexes + other.regexes)


EVERY_KEY = None
Plan: TypeAlias = KeyPatterns | None


@dataclass(frozen=True, slots=True)
class Group:
    """One filter; an empty condition holds always."""

    keys: KeyPatterns
    types: frozenset[str]
    actions: frozenset[str]

    def takes(self, data_type: str, op: str, written: str) -> bool:
        """Whether type and action hold, the keys aside."""
        if self.types and data_type and data_type != UNKNOWN and data_type not in self.types:
            return False
        return not self.actions or op in self.actions or written in self.actions


class Filter:
    """Immutable; make one with `Filter.parse`."""

    def __init__(self, groups: Sequence[Group] = (), excludes: KeyPatterns | None = None) -> None:
        self.groups = tuple(groups)
        self.excludes = excludes or KeyPatterns()
        self._plans: dict[tuple[str, str, str], Plan] = {}

    @classmethod
    def parse(cls, specs: Iterable[str] = (), excludes: Iterable[str] = ()) -> "Filter":
        """FilterError names the spec and what is wrong with it. Files have been read already (`read_specs`)."""
        patterns = KeyPatterns()
        for spec in excludes:
            patterns |= _key_patterns(spec, f'exclude "{spec}"')
        return cls([_group(spec) for spec in specs], patterns)

    def passes(self, key: bytes | None, data_type: str, op: str, written: str = "") -> bool:
        """Whether an event is sent. `op` is lower case; `key` is None for a command without one; `written` is what the
        master had written for a command that was translated: an action condition may name either."""
        plan = self.plan(data_type, op, written)
        if key is None:
            return plan is None or bool(plan)
        if plan is not None and not plan.match(key):
            return False
        return not self.excludes or not self.excludes.match(key)

    def plan(self, data_type: str, op: str, written: str = "") -> Plan:
        """The key patterns that are left once type and action are known, excludes aside: EVERY_KEY, or patterns, which
        match nothing when they are empty."""
        at = (data_type, op, written)
        try:
            return self._plans[at]
        except KeyError:
            if len(self._plans) >= _PLANS_MAX:
                self._plans.clear()
            plan = self._plans[at] = self._made_plan(data_type, op, written)
            return plan

    def _made_plan(self, data_type: str, op: str, written: str) -> Plan:
        if not self.groups:
            return EVERY_KEY
        patterns = KeyPatterns()
        for group in self.groups:
            if group.takes(data_type, op, written):
                if not group.keys:
                    return EVERY_KEY
                patterns |= group.keys
        return patterns

    # What a snapshot reader may leave unread. Both are wide enough: they never leave out what would pass.

    def types(self) -> tuple[str, ...]:
        """The data types of which something may pass."""
        if not self.groups:
            return DATA_TYPES
        wanted = set[str]()
        for group in self.groups:
            by_type = set(group.types or DATA_TYPES)
            by_action = {COMMANDS[action].data_type for action in group.actions} or {UNKNOWN}
            wanted |= by_type if UNKNOWN in by_action else by_type & by_action
        return tuple(data_type for data_type in DATA_TYPES if data_type in wanted)

    def prefixes(self) -> tuple[bytes, ...]:
        """Prefixes one of which each passing key has; the empty prefix alone when they are not known."""
        if not self.groups or any(not group.keys for group in self.groups):
            return (b"",)
        found = set[bytes]()
        for group in self.groups:
            found |= group.keys.exact
            found.update(group.keys.prefixes)
            found.update(_literal_prefix(regex.pattern) for regex in group.keys.regexes)
        shortest: list[bytes] = []
        for prefix in sorted(found):  # one that begins another sorts before it
            if not shortest or not prefix.startswith(shortest[-1]):
                shortest.append(prefix)
        return tuple(shortest)

    def notes(self) -> list[str]:
        """What is allowed but hardly meant: actions that a master never writes under their own name."""
        named = sorted({action for group in self.groups for action in group.actions} & _WRITTEN_AS.keys())
        return [
            f"action={name}: a master writes {name} as {_WRITTEN_AS[name]}, which has to be named" for name in named
        ]


EVERYTHING = Filter()


def read_specs(values: Iterable[str], read_text: Callable[[str], str] | None = None) -> list[str]:
    """The specs that the values of `filter` stand for. A value with `=` is a spec, any other a file of them; its
    lines that begin with # are comments."""
    specs: list[str] = []
    for value in values:
        if "=" in value:
            specs.append(value)
            continue
        try:
            text = read_text(value) if read_text else Path(value).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FilterError(
                f'filter "{value}" has no =, so it should be a file of filters, which cannot be read: {error}'
            ) from error
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise FilterError(f"{value}: a file of filters with none in it would let everything through")
        for line in found:
            if "=" not in line:
                raise FilterError(f'{value}: "{line}" is no filter; write key=…;type=…;action=…')
        specs += found
    return specs


# Reading one spec


def _group(spec: str) -> Group:
    where = f'filter "{spec}"'
    keys = KeyPatterns()
    types, actions = set[str](), set[str]()
    for part in spec.split(";"):
        if not part.strip():
            continue
        field, equals, value = part.partition("=")
        field = field.strip().lower()
        if not equals:
            raise FilterError(f'{where}: "{part.strip()}" lacks its =; write field=value')
        match field:
            case "key":
                keys |= _key_patterns(value, where)
            case "type":
                types.update(_data_type(word, where) for word in _words(value, where, field))
            case "action":
                actions.update(_action(word, where) for word in _words(value, where, field))
            case _:
                raise FilterError(f'{where}: unknown field "{field}"; the fields are key, type and action')
    if not (keys or types or actions):
        raise FilterError(f"{where} has no condition; write key=…, type=… or action=…")
    return Group(keys, frozenset(types), frozenset(actions))


def _words(value: str, where: str, field: str) -> list[str]:
    words = [word.strip() for word in value.split(",") if word.strip()]
    if not words:
        raise FilterError(f"{where}: {field}= is empty")
    return words


def _data_type(word: str, where: str) -> str:
    name = _PLURALS.get(word.lower(), word.lower())
    if name not in DATA_TYPES and name != UNKNOWN:
        raise FilterError(f'{where}: no data type "{word}"; they are {", ".join(DATA_TYPES)}')
    return name


def _action(word: str, where: str) -> str:
    name = word.lower()
    if name not in COMMANDS or name == PADDING:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        raise FilterError(f'{where}: no write command "{word}"' + (f'; is it "{near[0]}"?' if near else ""))
    return name


def _key_patterns(value: str, where: str) -> KeyPatterns:
    exact: set[bytes] = set()
    prefixes: list[bytes] = []
    regexes: list[re.Pattern[str]] = []
    for word in _words(value, where, "key"):
        if _SPECIAL.isdisjoint(word):
            exact.add(_key_bytes(word))
        elif word.endswith("*") and _SPECIAL.isdisjoint(word[:-1]):
            prefixes.append(_key_bytes(word[:-1]))
        else:
            regexes.append(_regex(word, where))
    return KeyPatterns(frozenset(exact), tuple(prefixes), tuple(regexes))


def _key_bytes(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")  # arguments of a command line arrive with such characters


def _regex(word: str, where: str) -> re.Pattern[str]:
    if word.count("{") != word.count("}") and "\\" not in word:
        # A brace that is never closed is a plain character to `re`: the two halves would silently mean something else.
        raise FilterError(f'{where}: "{word}" has an open brace. A comma ends a pattern: write {{1}}|{{2}} for {{1,2}}')
    try:
        return re.compile(word, re.ASCII)
    except (re.error, OverflowError) as error:
        raise FilterError(f'{where}: "{word}" is no regular expression: {error}') from error


def _literal_prefix(pattern: str) -> bytes:
    """What every key begins with in which this expression is found."""
    if not pattern.startswith("^") or "|" in pattern:
        return b""
    literal: list[str] = []
    for character in pattern[1:]:
        if character in _SPECIAL:
            if character in "*?{":  # the character before may be absent
                literal = literal[:-1]
            break
        literal.append(character)
    return _key_bytes("".join(literal))
