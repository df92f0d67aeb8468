"""One database of the sample master: users' commands, what they leave behind, and what goes on the binlog.

A master does not log what its user wrote. Times become absolute, sums become values, what touches several keys is taken
apart, what was left to chance is decided; and conditional commands are logged whether they did anything or not. The
rules here are those of the recordings of real masters (`fixtures/commands-*.txt`), which a test plays against this
module. A command that fails (wrong type, no such element) is logged by nobody.

The key space is `tidelog.pikiwi.keyspace`, which is fed users' commands here and the logged ones by those who follow.
A 3.5 master counts time in seconds and keeps types apart; a 4.x master knows milliseconds, which its binlog tells for
some commands only.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from tidelog.pikiwi.commands import ZeroExpiry
from tidelog.pikiwi.dump.commands import score_text
from tidelog.pikiwi.dump.layout import INTERNAL_PREFIXES
from tidelog.pikiwi.keyspace import Keyspace, KeyspaceError

Command = tuple[bytes, ...]
Version = Literal["3.5", "4.0"]

SADD_BYTES_MAX = 128 << 10  # members of a …STORE command are logged in pieces of this


def keyspace_of(version: Version) -> Keyspace:
    """One that behaves as a master of that version does."""
    if version == "3.5":
        return Keyspace(types_apart=True, zero_expiry=ZeroExpiry.KEEP)
    return Keyspace()


def clock_of(version: Version, exec_time_s: int) -> int:
    """The time that somebody who follows the binlog goes by."""
    return exec_time_s * 1000 + (0 if version == "3.5" else 999)


class LiveDatabase:
    """`chance` decides what SPOP takes."""

    def __init__(self, version: Version, chance: random.Random) -> None:
        self.version: Version = version
        self.keys = keyspace_of(version)
        self._chance = chance
        self._exact_ms = 0  # what streams' ids are made of, also in 3.5
        self._now_ms = 0  # what keys live by
        self._rules: dict[bytes, Callable[[Command], list[Command]]] = {
            b"set": self._set,
            b"setex": self._setex,
            b"psetex": self._psetex,
            b"setnx": lambda args: self._verbatim((b"setnx", *args[1:])),
            **dict.fromkeys((b"incr", b"incrby", b"incrbyfloat", b"append"), self._new_value),
            b"expire": self._expire,
            b"pexpire": self._pexpire,
            b"pexpireat": self._pexpireat,
            b"mset": self._mset,
            b"msetnx": self._msetnx,
            b"del": lambda args: [each for key in args[1:] for each in self._verbatim((args[0], key))],
            b"rename": self._rename,
            b"flushdb": lambda _: self._verbatim((b"flushdb",)),
            b"rpoplpush": self._rpoplpush,
            **dict.fromkeys((b"blpop", b"brpop"), self._blocking_pop),
            b"sadd": self._sadd,
            b"spop": self._spop,
            b"smove": self._smove,
            **dict.fromkeys((b"sunionstore", b"sinterstore", b"sdiffstore"), self._set_store),
            b"zunionstore": self._zunionstore,
            b"pfmerge": self._pfmerge,
            b"xadd": self._xadd,
        }

    def execute(self, args: Command, now_ms: int) -> list[Command]:
        """What the master logs; KeyspaceError, and nothing has changed, when it would answer with an error."""
        self._exact_ms = now_ms
        self._now_ms = now_ms - now_ms % 1000 if self.version == "3.5" else now_ms
        return self._rules.get(args[0].lower(), self._verbatim)(args)

    # --- strings and times ---------------------------------------------------------------------------------------

    def _set(self, args: Command) -> list[Command]:
        option = args[3].upper() if len(args) == 5 else b""
        if option == b"EX":
            return self._put(args[1], args[2], int(args[4]) * 1000, logged_ms=False)
        if option == b"PX":
            return self._put(args[1], args[2], int(args[4]), logged_ms=False)
        return self._verbatim(args)

    def _setex(self, args: Command) -> list[Command]:
        return self._put(args[1], args[3], int(args[2]) * 1000, logged_ms=False)

    def _psetex(self, args: Command) -> list[Command]:
        return self._put(args[1], args[3], int(args[2]), logged_ms=self.version != "3.5")

    def _put(self, key: bytes, value: bytes, live_ms: int, *, logged_ms: bool) -> list[Command]:
        if live_ms <= 0:
            raise KeyspaceError("invalid expire time")
        seconds = b"%d" % (self._now_ms // 1000 + live_ms // 1000)
        milliseconds = b"%d" % (self._now_ms + live_ms)
        self._apply(b"pksetexat", key, seconds if self.version == "3.5" else milliseconds, value)
        return [(b"pksetexat", key, milliseconds if logged_ms else seconds, value)]

    def _new_value(self, args: Command) -> list[Command]:
        self._apply(*args)
        entry = self._entry("string", args[1])
        expire_s = 0 if self.version == "3.5" else entry.expire_ms // 1000
        return [(b"pksetexat", args[1], b"%d" % expire_s, entry.value)]

    def _expire(self, args: Command) -> list[Command]:
        self._apply(*args)
        return [(b"expireat", args[1], b"%d" % (self._now_ms // 1000 + int(args[2])))]

    def _pexpire(self, args: Command) -> list[Command]:
        if self.version == "3.5":
            return self._expire((b"expire", args[1], b"%d" % (int(args[2]) // 1000)))
        self._apply(*args)
        return [(b"pexpireat", args[1], b"%d" % (self._now_ms + int(args[2])))]

    def _pexpireat(self, args: Command) -> list[Command]:
        if self.version == "3.5":
            return self._verbatim((b"expireat", args[1], b"%d" % (int(args[2]) // 1000)))
        return self._verbatim(args)

    def _mset(self, args: Command) -> list[Command]:
        self._apply(*args)
        return [(b"set", key, value) for key, value in zip(args[1::2], args[2::2], strict=True)]

    def _msetnx(self, args: Command) -> list[Command]:
        if any(self.keys.get(key, self._now_ms) for key in args[1::2]):
            return []
        return self._mset((b"mset", *args[1:]))

    def _pfmerge(self, args: Command) -> list[Command]:
        held = [entry.value for key in args[1:] if (entry := self._found("string", key))]
        merged = bytes(map(max, *held)) if len(held) > 1 else held[0] if held else b""
        if not merged:
            raise KeyspaceError("nothing to merge")
        return self._verbatim((b"set", args[1], merged))

    # --- keys of any type ----------------------------------------------------------------------------------------

    def _rename(self, args: Command) -> list[Command]:
        if self.keys.get(args[1], self._now_ms) is None:
            raise KeyspaceError("no such key")
        return self._verbatim(args)

    # --- lists, sets, sorted sets, streams -----------------------------------------------------------------------

    def _rpoplpush(self, args: Command) -> list[Command]:
        entry = self._found("list", args[1])
        if entry is None:
            return []
        self._found("list", args[2])
        moved = entry.value[-1]
        self._apply(*args)
        return [(b"RPOP", args[1]), (b"LPUSH", args[2], moved)]

    def _blocking_pop(self, args: Command) -> list[Command]:
        for key in args[1:-1]:
            if self._found("list", key):
                return self._verbatim((args[0][1:].lower(), key))
        return []

    def _sadd(self, args: Command) -> list[Command]:
        logged = self._verbatim(args)
        return [] if args[1].startswith(INTERNAL_PREFIXES) else logged

    def _spop(self, args: Command) -> list[Command]:
        entry = self._found("set", args[1])
        if entry is None:
            return []
        counts = [int(word) for word in args[2:3]] or [1]
        taken = self._chance.sample(sorted(entry.value), min(*counts, len(entry.value)))
        return self._verbatim((b"srem", args[1], *taken))

    def _smove(self, args: Command) -> list[Command]:
        entry = self._found("set", args[1])
        if entry is None or args[3] not in entry.value:
            return []
        self._found("set", args[2])
        self._apply(*args)
        return [(b"srem", args[1], args[3]), (b"sadd", args[2], args[3])]

    def _set_store(self, args: Command) -> list[Command]:
        sets = [entry.value if (entry := self._found("set", key)) else set[bytes]() for key in args[2:]]
        operation = {b"sunionstore": set.union, b"sinterstore": set.intersection, b"sdiffstore": set.difference}
        members = sorted(operation[args[0].lower()](*sets))
        logged = self._verbatim((b"del", args[1]))
        while members:
            size = taken = 0
            while taken < len(members) and size < SADD_BYTES_MAX:
                size += len(members[taken])
                taken += 1
            logged += self._verbatim((b"sadd", args[1], *members[:taken]))
            members = members[taken:]
        return logged

    def _zunionstore(self, args: Command) -> list[Command]:
        scores: dict[bytes, float] = {}
        for key in args[3 : 3 + int(args[2])]:
            entry = self._found("zset", key)
            for member, score in entry.value.items() if entry else ():
                if score != -math.inf:  # real masters lose these: they look from the smallest finite score on
                    scores[member] = scores.get(member, 0.0) + score
        logged = self._verbatim((b"del", args[1]))
        words = [word for member, score in sorted(scores.items()) for word in (score_text(score), member)]
        return logged + (self._verbatim((b"zadd", args[1], *words)) if words else [])

    def _xadd(self, args: Command) -> list[Command]:
        entry = self._found("stream", args[1])
        last = entry.value.last_id if entry is not None else (0, 0)
        at = _id_place(args)
        if args[at] == b"*":
            new = max((self._exact_ms, 0), (last[0], last[1] + 1))
            args = (*args[:at], b"%d-%d" % new, *args[at + 1 :])
        else:
            milliseconds, _, sequence = args[at].partition(b"-")
            new = (int(milliseconds), int(sequence or b"0"))
        if new <= last:
            raise KeyspaceError("the id is equal to or smaller than the stream's last one")
        return self._verbatim(args)

    # --- the key space -------------------------------------------------------------------------------------------

    def _verbatim(self, args: Command) -> list[Command]:
        self._apply(*args)
        return [args]

    def _apply(self, *args: bytes) -> None:
        self.keys.apply(args, self._now_ms)

    def _found(self, data_type: str, key: bytes) -> Any:
        """The entry; None without one, and an error when the key is of another type."""
        found = self.keys.get(key, self._now_ms, data_type)
        if found is None and self.version != "3.5" and self.keys.get(key, self._now_ms) is not None:
            raise KeyspaceError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return found[1] if found is not None else None

    def _entry(self, data_type: str, key: bytes) -> Any:
        entry = self._found(data_type, key)
        assert entry is not None
        return entry


def _id_place(args: Sequence[bytes]) -> int:
    """Where XADD's id stands: behind its options."""
    at = 2
    while args[at].upper() in (b"NOMKSTREAM", b"MAXLEN", b"MINID"):
        at += 1 if args[at].upper() == b"NOMKSTREAM" else 3 if args[at + 1] in (b"=", b"~") else 2
    return at
