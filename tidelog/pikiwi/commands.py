"""The write commands of a PikiwiDB binlog: what type they work on, which keys they touch, what applying them means.

`COMMANDS` has every command that 3.5 and 4.x masters flag as a write, those that appear only on a binlog (`pksetexat`),
and the ones of Redis that a proxy or a later version may write. A name that is not in it is a command of type UNKNOWN
whose second word is its key.

UNKNOWN is also the type of commands that work on keys of any type: del, unlink, expire and its relatives, persist,
rename, flushdb. It passes every type filter, since it may concern a key of the wanted type.

An `Effect` tells a consumer how a command may be applied:

- IDEMPOTENT: the outcome does not depend on the value that was there. The last write to a key, field or member wins,
  and writing it again changes nothing.
- CONDITIONAL: takes effect only if something exists, or does not. A master writes it down even when it had no effect.
- NON_IDEMPOTENT: the outcome is computed from what was there: apply it exactly once, in the key's order. Everything on
  lists, and all that is not known, is one of these.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

UNKNOWN = "unknown"
DATA_TYPES = ("string", "list", "hash", "set", "zset", "stream")

PADDING = "padding"  # a filler that old masters write into their binlog to reach a position; no command
PKSETEXAT = "pksetexat"


class Effect(Enum):
    IDEMPOTENT = "idempotent"
    CONDITIONAL = "conditional"
    NON_IDEMPOTENT = "non_idempotent"


class Keys(Enum):
    """Which arguments are keys that the command may change."""

    NONE = "none"  # it concerns all keys of the database
    FIRST = "first"
    SECOND = "second"  # of two words before the key: BITOP AND destination …
    FIRST_TWO = "first two"
    ALL = "all"
    ALL_BUT_LAST = "all but last"  # the last is a time-out
    EVERY_OTHER = "every other"  # key value key value …


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    data_type: str
    effect: Effect
    keys: Keys = Keys.FIRST


def keys_of(command: Command, arguments: Sequence[bytes]) -> Sequence[bytes]:
    """The keys that this command may change, in its own order; none for a command that lacks its key."""
    match command.keys:
        case Keys.NONE:
            return ()
        case Keys.FIRST:
            return arguments[1:2]
        case Keys.SECOND:
            return arguments[2:3]
        case Keys.FIRST_TWO:
            return arguments[1:3]
        case Keys.ALL:
            return arguments[1:]
        case Keys.ALL_BUT_LAST:
            return arguments[1:-1]
        case Keys.EVERY_OTHER:
            return arguments[1::2]


def command_of(name: bytes) -> Command:
    """The command of that name in any case; one of unknown type for a name that is not known."""
    lower = name.lower().decode("utf-8", "replace")
    return COMMANDS.get(lower) or Command(lower, UNKNOWN, Effect.NON_IDEMPOTENT)


def data_type_of(op: str) -> str:
    command = COMMANDS.get(op.lower())
    return command.data_type if command else UNKNOWN


def effect_of(command: Command, arguments: Sequence[bytes]) -> Effect:
    """The command's effect with these arguments: the options of some commands change it."""
    options = _OPTIONS.get(command.name)
    if options is None or len(arguments) <= options.after:
        return command.effect
    for word in arguments[options.after : options.after + options.words_max]:
        effect = options.effects.get(word.upper())
        if effect is not None:
            return effect
    return command.effect


def options_after(command: Command) -> int | None:
    """From which argument on options may change the command's effect; None: never."""
    options = _OPTIONS.get(command.name)
    return options.after if options else None


MILLISECONDS_ABOVE = 10**11
"""An expiry time above it is in milliseconds: in seconds it would lie after the year 5000."""


class ZeroExpiry(Enum):
    """What `pksetexat key 0 value` means. It stands for INCR, INCRBY, INCRBYFLOAT and APPEND."""

    NONE = "none"  # a 4.x master: the key has no expiry
    KEEP = "keep"  # a 3.5 master: writes 0 always, and the key keeps the expiry it has


def absolute_set(arguments: Sequence[bytes], zero: ZeroExpiry = ZeroExpiry.NONE) -> list[bytes] | None:
    """`pksetexat key time value` as a SET with an absolute expiry, as Redis ≥ 6.2 has it; None for any other form."""
    if len(arguments) != 4:
        return None
    _, key, time, value = arguments
    if not time.isdigit() or (time[:1] == b"0" and time != b"0"):
        return None
    if time == b"0":
        return [b"SET", key, value] if zero is ZeroExpiry.NONE else [b"SET", key, value, b"KEEPTTL"]
    return [b"SET", key, value, b"PXAT" if int(time) > MILLISECONDS_ABOVE else b"EXAT", time]


def relative_setex(arguments: Sequence[bytes], now_s: int) -> list[bytes] | None:
    """The same as the seed's tool writes it: SETEX with seconds from `now_s` on, at least 1, as SETEX takes no less."""
    absolute = absolute_set(arguments)
    if absolute is None or len(absolute) == 3:
        return absolute
    time = int(arguments[2])
    expire_s = -(-time // 1000) if time > MILLISECONDS_ABOVE else time
    return [b"setex", arguments[1], b"%d" % max(1, expire_s - now_s), arguments[3]]


# The table


@dataclass(frozen=True, slots=True)
class _Options:
    after: int
    words_max: int
    effects: dict[bytes, Effect]


_OPTIONS = {
    "set": _Options(3, 6, dict.fromkeys((b"NX", b"XX"), Effect.CONDITIONAL)),
    # An option of these stands right behind the key, where without one there is an id or a score.
    "xadd": _Options(2, 1, dict.fromkeys((b"MAXLEN", b"MINID", b"NOMKSTREAM"), Effect.NON_IDEMPOTENT)),
    "zadd": _Options(2, 1, dict.fromkeys((b"NX", b"XX", b"GT", b"LT", b"CH", b"INCR"), Effect.NON_IDEMPOTENT)),
}


def _commands() -> dict[str, Command]:
    idempotent, conditional, other = Effect.IDEMPOTENT, Effect.CONDITIONAL, Effect.NON_IDEMPOTENT
    rows: list[tuple[str, Effect, str]] = [
        ("string", idempotent, "set setex psetex pksetexat getset"),
        ("string", conditional, "setnx delvx"),
        (
            "string",
            other,
            "append incr incrby incrbyfloat decr decrby setrange setbit bitfield getdel getex pfadd pfmerge",
        ),
        ("hash", idempotent, "hset hmset hdel"),
        ("hash", conditional, "hsetnx"),
        ("hash", other, "hincrby hincrbyfloat"),
        ("hash", other, "pkhset pkhexpire pkhexpireat pkhpersist pkhmset pkhincrby pkhsetex pkhdel"),
        ("list", conditional, "lpushx rpushx"),
        ("list", other, "lpush rpush lpop rpop lset linsert lrem ltrim"),
        ("set", idempotent, "sadd srem"),
        ("set", other, "spop sunionstore sinterstore sdiffstore"),
        ("zset", idempotent, "zadd zrem"),
        ("zset", other, "zincrby zpopmin zpopmax zremrangebyrank zremrangebyscore zremrangebylex"),
        ("zset", other, "zunionstore zinterstore zdiffstore zrangestore"),
        ("zset", idempotent, "geoadd"),
        ("zset", other, "geosearchstore"),
        ("stream", idempotent, "xadd xdel"),
        ("stream", other, "xtrim xsetid xack xclaim xautoclaim"),
        (UNKNOWN, idempotent, "del unlink expireat pexpireat persist"),
        (UNKNOWN, other, "expire pexpire restore"),
    ]
    table = {name: Command(name, data_type, effect) for data_type, effect, names in rows for name in names.split()}
    more: list[tuple[Keys, str, Effect, str]] = [
        (Keys.NONE, UNKNOWN, idempotent, "flushdb flushall"),
        (Keys.NONE, UNKNOWN, idempotent, PADDING),
        (Keys.SECOND, "string", other, "bitop"),
        (Keys.SECOND, "stream", other, "xgroup"),
        (Keys.FIRST_TWO, "list", other, "rpoplpush brpoplpush lmove blmove"),
        (Keys.FIRST_TWO, "set", other, "smove"),
        (Keys.FIRST_TWO, UNKNOWN, other, "rename copy"),
        (Keys.FIRST_TWO, UNKNOWN, conditional, "renamenx"),
        (Keys.ALL_BUT_LAST, "list", other, "blpop brpop"),
        (Keys.EVERY_OTHER, "string", idempotent, "mset"),
        (Keys.EVERY_OTHER, "string", conditional, "msetnx"),
    ]
    table |= {
        name: Command(name, data_type, effect, keys)
        for keys, data_type, effect, names in more
        for name in names.split()
    }
    for name in ("del", "unlink"):
        table[name] = Command(name, UNKNOWN, idempotent, Keys.ALL)
    return table


COMMANDS: dict[str, Command] = _commands()
