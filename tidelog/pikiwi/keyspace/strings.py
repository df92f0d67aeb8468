"""Commands of strings, bits and HyperLogLogs."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation, localcontext

from tidelog.pikiwi.commands import MILLISECONDS_ABOVE, ZeroExpiry
from tidelog.pikiwi.keyspace.hyperloglog import with_elements
from tidelog.pikiwi.keyspace.space import KeyspaceError, Space, integer

_DIGITS = 40  # of a sum of decimal numbers; a master's own have 17 behind the point
STRING_BYTES_MAX = 512 * 1024 * 1024


def set_(space: Space, args: Sequence[bytes]) -> None:
    key, value = args[1:3]
    options = iter(args[3:])
    expire_ms, keep = 0, False
    for option in options:
        match option.upper():
            case b"NX":
                if space.holders(key):
                    return
            case b"XX":
                if not space.holders(key):
                    return
            case b"KEEPTTL":
                keep = True
            case b"GET":
                pass
            case b"EX" | b"PX" | b"EXAT" | b"PXAT" as word:
                time = integer(next(options, b"")) * (1 if word.startswith(b"P") else 1000)
                expire_ms = time if word.endswith(b"AT") else space.now_ms + time
            case other:
                raise KeyspaceError(f"SET has no option {other!r}")
    if keep:
        expire_ms = _expiry(space, key)
    space.put("string", key, value, expire_ms)


def setex(space: Space, args: Sequence[bytes]) -> None:
    space.put("string", args[1], args[3], space.now_ms + integer(args[2]) * 1000)


def psetex(space: Space, args: Sequence[bytes]) -> None:
    space.put("string", args[1], args[3], space.now_ms + integer(args[2]))


def pksetexat(space: Space, args: Sequence[bytes]) -> None:
    time = integer(args[2])
    if time == 0:
        expire_ms = _expiry(space, args[1]) if space.zero_expiry is ZeroExpiry.KEEP else 0
    else:
        expire_ms = time if time > MILLISECONDS_ABOVE else time * 1000
    space.put("string", args[1], args[3], expire_ms)


def setnx(space: Space, args: Sequence[bytes]) -> None:
    if not (space.live("string", args[1]) if space.types_apart else space.holders(args[1])):
        space.put("string", args[1], args[2])


def getset(space: Space, args: Sequence[bytes]) -> None:
    space.existing("string", args[1])
    space.put("string", args[1], args[2])


def mset(space: Space, args: Sequence[bytes]) -> None:
    if len(args) % 2 == 0:
        raise KeyspaceError(f"{args[0]!r} with {len(args)} words: a key lacks its value")
    for key, value in zip(args[1::2], args[2::2], strict=True):
        space.put("string", key, value)


def msetnx(space: Space, args: Sequence[bytes]) -> None:
    if not any(space.holders(key) for key in args[1::2]):
        mset(space, args)


def delvx(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("string", args[1])
    if entry is not None and entry.value == args[2]:
        del space.tables["string"][args[1]]


def append(space: Space, args: Sequence[bytes]) -> None:
    space.opened("string", args[1], bytes).value += args[2]


def incr(space: Space, args: Sequence[bytes]) -> None:
    _add(space, args[1], 1)


def decr(space: Space, args: Sequence[bytes]) -> None:
    _add(space, args[1], -1)


def incrby(space: Space, args: Sequence[bytes]) -> None:
    _add(space, args[1], integer(args[2]))


def decrby(space: Space, args: Sequence[bytes]) -> None:
    _add(space, args[1], -integer(args[2]))


def incrbyfloat(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("string", args[1])
    total = decimal_sum(entry.value if entry is not None else b"0", args[2])
    space.opened("string", args[1], bytes).value = total


def setrange(space: Space, args: Sequence[bytes]) -> None:
    at, piece = integer(args[2]), args[3]
    if at < 0 or at + len(piece) > STRING_BYTES_MAX:
        raise KeyspaceError(f"SETRANGE at {at:,}: a string has at most {STRING_BYTES_MAX:,} bytes")
    entry = space.opened("string", args[1], bytes)
    entry.value = entry.value[:at].ljust(at, b"\0") + piece + entry.value[at + len(piece) :]


def setbit(space: Space, args: Sequence[bytes]) -> None:
    """A bit that has the value already changes nothing: no key is made, none gets longer."""
    at, on = integer(args[2]), integer(args[3])
    byte, mask = at >> 3, 0x80 >> (at & 7)
    if at < 0 or byte >= STRING_BYTES_MAX or on not in {0, 1}:
        raise KeyspaceError(f"SETBIT {at:,} {on}: no such bit")
    entry = space.existing("string", args[1])
    old = entry.value if entry is not None else b""
    if bool(byte < len(old) and old[byte] & mask) != bool(on):
        changed = bytearray(old.ljust(byte + 1, b"\0"))
        changed[byte] ^= mask
        space.opened("string", args[1], bytes).value = bytes(changed)


def pfadd(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("string", args[1])
    space.put("string", args[1], with_elements(entry.value if entry is not None else b"", list(args[2:])))


def decimal_sum(old: bytes, more: bytes) -> bytes:
    """Exact, without an exponent and without zeros at the end, as masters write them."""
    try:
        with localcontext() as context:
            context.prec = _DIGITS
            total = Decimal(old.decode("ascii")) + Decimal(more.decode("ascii"))
            return f"{total.normalize():f}".encode()
    except (InvalidOperation, UnicodeDecodeError) as error:
        raise KeyspaceError(f"{old!r} + {more!r} is no number") from error


def _add(space: Space, key: bytes, more: int) -> None:
    entry = space.existing("string", key)
    total = (integer(entry.value) if entry is not None else 0) + more
    space.opened("string", key, bytes).value = b"%d" % total


def _expiry(space: Space, key: bytes) -> int:
    entry = space.live("string", key)
    return entry.expire_ms if entry is not None else 0
