"""What a master's keys hold after its commands: a model of the key space, pure and in memory.

Feed it the commands of a snapshot, then those of the binlog after it, each with the time it was executed at, and it
holds what the master holds. It is what state tables fold with, and what they are compared with.

Commands are those a master writes on its binlog (and their translations: SET … EXAT). Of the ones that masters take
apart before they write them, those with a certain outcome are known too. SPOP chooses by chance, the …STORE commands
need keys that may live elsewhere: these are refused, as is everything that is not known. A command that worked on the
master but cannot work here is refused as well, for then the two are not the same any more.

Time: pass what the item says, `exec_time_s * 1000`, for a 3.5 master, whose expiries are in whole seconds; and
`exec_time_s * 1000 + 999` for a 4.x master, whose expiries are not: what has expired in that second counts as gone.

Cost: that of the Python containers below it: constant for the ends of a list, a field, a member; the whole collection
for commands that look for an element or a rank.
"""

from collections.abc import Callable, Iterator, Sequence

from tidelog.pikiwi.commands import ZeroExpiry
from tidelog.pikiwi.keyspace import collections, strings, zsets
from tidelog.pikiwi.keyspace import streams as stream_commands
from tidelog.pikiwi.keyspace.space import Entry, KeyspaceError, Space, integer
from tidelog.pikiwi.keyspace.streams import Stream

__all__ = ["Entry", "Keyspace", "KeyspaceError", "Stream"]


class Keyspace:
    """One database. `types_apart` and `zero_expiry=KEEP` for a 3.5 master, neither for a 4.x one."""

    def __init__(self, *, types_apart: bool = False, zero_expiry: ZeroExpiry = ZeroExpiry.NONE) -> None:
        self._space = Space(types_apart=types_apart, zero_expiry=zero_expiry)

    def apply(self, args: Sequence[bytes], now_ms: int) -> None:
        """One command, its name first. After a KeyspaceError everything is as it was."""
        name = args[0].lower().decode("utf-8", "replace")
        try:
            run, words_min = _COMMANDS[name]
        except KeyError:
            raise KeyspaceError(f"{name}: what this command leaves behind is not known here") from None
        if len(args) < words_min:
            raise KeyspaceError(f"{name} with {len(args)} words; it has at least {words_min}")
        self._space.now_ms = now_ms
        run(self._space, args)

    def get(self, key: bytes, now_ms: int, data_type: str | None = None) -> tuple[str, Entry] | None:
        """The key's type, value and expiry; of several types the one that is asked for, or the first."""
        self._space.now_ms = now_ms
        holders = self._space.holders(key)
        return next((holder for holder in holders if data_type in {None, holder[0]}), None)

    def all(self, now_ms: int) -> Iterator[tuple[str, bytes, Entry]]:
        """Every key that has not expired, with its type."""
        self._space.now_ms = now_ms
        return self._space.all()


def _del(space: Space, args: Sequence[bytes]) -> None:
    for key in args[1:]:
        space.drop(key)


def _expire(unit_ms: int, *, relative: bool) -> Callable[[Space, Sequence[bytes]], None]:
    def run(space: Space, args: Sequence[bytes]) -> None:
        expire_ms = integer(args[2]) * unit_ms + (space.now_ms if relative else 0)
        for data_type, entry in space.holders(args[1]):
            if expire_ms <= 0:
                del space.tables[data_type][args[1]]
            else:
                entry.expire_ms = expire_ms

    return run


def _persist(space: Space, args: Sequence[bytes]) -> None:
    for _, entry in space.holders(args[1]):
        entry.expire_ms = 0


def _rename(space: Space, args: Sequence[bytes]) -> None:
    old, new = args[1:3]
    holders = space.holders(old)
    if not holders or old == new:
        return
    space.drop(new)
    space.drop(old)
    for data_type, entry in holders:
        space.tables[data_type][new] = entry


def _renamenx(space: Space, args: Sequence[bytes]) -> None:
    if not space.holders(args[2]):
        _rename(space, args)


def _flush(space: Space, args: Sequence[bytes]) -> None:  # noqa: ARG001 (as all the others)
    for table in space.tables.values():
        table.clear()


_COMMANDS: dict[str, tuple[Callable[[Space, Sequence[bytes]], None], int]] = {
    "del": (_del, 2),
    "unlink": (_del, 2),
    "expire": (_expire(1000, relative=True), 3),
    "pexpire": (_expire(1, relative=True), 3),
    "expireat": (_expire(1000, relative=False), 3),
    "pexpireat": (_expire(1, relative=False), 3),
    "persist": (_persist, 2),
    "rename": (_rename, 3),
    "renamenx": (_renamenx, 3),
    "flushdb": (_flush, 1),
    "flushall": (_flush, 1),
    "set": (strings.set_, 3),
    "setex": (strings.setex, 4),
    "psetex": (strings.psetex, 4),
    "pksetexat": (strings.pksetexat, 4),
    "setnx": (strings.setnx, 3),
    "getset": (strings.getset, 3),
    "mset": (strings.mset, 3),
    "msetnx": (strings.msetnx, 3),
    "delvx": (strings.delvx, 3),
    "append": (strings.append, 3),
    "incr": (strings.incr, 2),
    "decr": (strings.decr, 2),
    "incrby": (strings.incrby, 3),
    "decrby": (strings.decrby, 3),
    "incrbyfloat": (strings.incrbyfloat, 3),
    "setrange": (strings.setrange, 4),
    "setbit": (strings.setbit, 4),
    "pfadd": (strings.pfadd, 2),
    "rpush": (collections.rpush, 3),
    "lpush": (collections.lpush, 3),
    "rpushx": (collections.rpushx, 3),
    "lpushx": (collections.lpushx, 3),
    "lpop": (collections.lpop, 2),
    "rpop": (collections.rpop, 2),
    "rpoplpush": (collections.rpoplpush, 3),
    "lset": (collections.lset, 4),
    "linsert": (collections.linsert, 5),
    "lrem": (collections.lrem, 4),
    "ltrim": (collections.ltrim, 4),
    "hset": (collections.hset, 4),
    "hmset": (collections.hset, 4),
    "hsetnx": (collections.hsetnx, 4),
    "hdel": (collections.hdel, 3),
    "hincrby": (collections.hincrby, 4),
    "hincrbyfloat": (collections.hincrbyfloat, 4),
    "sadd": (collections.sadd, 3),
    "srem": (collections.srem, 3),
    "smove": (collections.smove, 4),
    "zadd": (zsets.zadd, 4),
    "zincrby": (zsets.zincrby, 4),
    "zrem": (zsets.zrem, 3),
    "zpopmin": (zsets.zpopmin, 2),
    "zpopmax": (zsets.zpopmax, 2),
    "zremrangebyrank": (zsets.zremrangebyrank, 4),
    "zremrangebyscore": (zsets.zremrangebyscore, 4),
    "zremrangebylex": (zsets.zremrangebylex, 4),
    "geoadd": (zsets.geoadd, 5),
    "xadd": (stream_commands.xadd, 5),
    "xdel": (stream_commands.xdel, 3),
    "xtrim": (stream_commands.xtrim, 4),
    "xsetid": (stream_commands.xsetid, 3),
}
