"""Commands of lists, hashes and sets."""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from tidelog.pikiwi.keyspace.space import KeyspaceError, Space, integer
from tidelog.pikiwi.keyspace.strings import decimal_sum

# Lists


def rpush(space: Space, args: Sequence[bytes]) -> None:
    space.opened("list", args[1], deque).value.extend(args[2:])


def lpush(space: Space, args: Sequence[bytes]) -> None:
    space.opened("list", args[1], deque).value.extendleft(args[2:])  # one after the other: the last comes first


def rpushx(space: Space, args: Sequence[bytes]) -> None:
    if space.existing("list", args[1]) is not None:
        rpush(space, args)


def lpushx(space: Space, args: Sequence[bytes]) -> None:
    if space.existing("list", args[1]) is not None:
        lpush(space, args)


def lpop(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("list", args[1])
    if entry is not None:
        for _ in range(min(_count(args), len(entry.value))):
            entry.value.popleft()
        space.tidy("list", args[1])


def rpop(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("list", args[1])
    if entry is not None:
        for _ in range(min(_count(args), len(entry.value))):
            entry.value.pop()
        space.tidy("list", args[1])


def rpoplpush(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("list", args[1])
    space.existing("list", args[2])  # of another type: nothing must have been taken out yet
    if entry is not None:
        moved = entry.value[-1]
        rpop(space, args[:2])
        lpush(space, (b"lpush", args[2], moved))


def lset(space: Space, args: Sequence[bytes]) -> None:
    entry, at = space.existing("list", args[1]), integer(args[2])
    if entry is None or not -len(entry.value) <= at < len(entry.value):
        raise KeyspaceError(f"LSET {args[1]!r} {at}: no such element")
    entry.value[at] = args[3]


def linsert(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("list", args[1])
    if entry is not None and args[3] in entry.value:
        entry.value.insert(entry.value.index(args[3]) + (args[2].upper() == b"AFTER"), args[4])


def lrem(space: Space, args: Sequence[bytes]) -> None:
    """The first `count` equal elements, the last ones when it is negative, all when it is 0."""
    entry, count = space.existing("list", args[1]), integer(args[2])
    if entry is None:
        return
    equal = [at for at, element in enumerate(entry.value) if element == args[3]]
    gone = set(equal[:count] if count > 0 else equal[count:] if count < 0 else equal)
    entry.value = deque(element for at, element in enumerate(entry.value) if at not in gone)
    space.tidy("list", args[1])


def ltrim(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("list", args[1])
    if entry is not None:
        first, end = bounds(integer(args[2]), integer(args[3]), len(entry.value))
        entry.value = deque(islice(entry.value, first, end))
        space.tidy("list", args[1])


def bounds(first: int, last: int, length: int) -> tuple[int, int]:
    """From first and last, both counted from the end when negative, to a slice."""
    first = max(0, first + length if first < 0 else first)
    end = (last + length if last < 0 else last) + 1
    return (first, end) if first < end else (0, 0)


def _count(args: Sequence[bytes]) -> int:
    return integer(args[2]) if len(args) > 2 else 1


# Hashes


def hset(space: Space, args: Sequence[bytes]) -> None:
    if len(args) % 2 or len(args) < 4:
        raise KeyspaceError(f"{args[0]!r} with {len(args)} words: a field lacks its value")
    space.opened("hash", args[1], dict).value.update(zip(args[2::2], args[3::2], strict=True))


def hsetnx(space: Space, args: Sequence[bytes]) -> None:
    space.opened("hash", args[1], dict).value.setdefault(args[2], args[3])


def hdel(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("hash", args[1])
    if entry is not None:
        for field in args[2:]:
            entry.value.pop(field, None)
        space.tidy("hash", args[1])


def hincrby(space: Space, args: Sequence[bytes]) -> None:
    total = integer(_field(space, args[1], args[2])) + integer(args[3])
    space.opened("hash", args[1], dict).value[args[2]] = b"%d" % total


def hincrbyfloat(space: Space, args: Sequence[bytes]) -> None:
    total = decimal_sum(_field(space, args[1], args[2]), args[3])
    space.opened("hash", args[1], dict).value[args[2]] = total


def _field(space: Space, key: bytes, field: bytes) -> bytes:
    """The number in a field; one that is not there is 0."""
    entry = space.existing("hash", key)
    return entry.value.get(field, b"0") if entry is not None else b"0"


# Sets


def sadd(space: Space, args: Sequence[bytes]) -> None:
    space.opened("set", args[1], set).value.update(args[2:])


def srem(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("set", args[1])
    if entry is not None:
        entry.value.difference_update(args[2:])
        space.tidy("set", args[1])


def smove(space: Space, args: Sequence[bytes]) -> None:
    entry = space.existing("set", args[1])
    space.existing("set", args[2])  # of another type: nothing must have been taken out yet
    if entry is not None and args[3] in entry.value:
        srem(space, (b"srem", args[1], args[3]))
        sadd(space, (b"sadd", args[2], args[3]))
