"""Commands of sorted sets, and of places on the earth, which are members with a geohash for a score."""

from collections.abc import Sequence
from heapq import nlargest, nsmallest

from tidelog.pikiwi.keyspace.collections import bounds
from tidelog.pikiwi.keyspace.space import KeyspaceError, Space, floating, integer

_GEO_STEPS = 26  # bits of each coordinate in a geohash of 52
_LATITUDE_MAX = 85.05112878
_LONGITUDE_MAX = 180.0


def zadd(space: Space, args: Sequence[bytes]) -> None:
    if len(args) % 2 or len(args) < 4:
        raise KeyspaceError(f"ZADD with {len(args)} words: a score lacks its member")
    scores = [floating(score) for score in args[2::2]]
    space.opened("zset", args[1], dict).value.update(zip(args[3::2], scores, strict=True))


def zincrby(space: Space, args: Sequence[bytes]) -> None:
    more = floating(args[2])
    members = space.opened("zset", args[1], dict).value
    members[args[3]] = members.get(args[3], 0.0) + more


def zrem(space: Space, args: Sequence[bytes]) -> None:
    _remove(space, args[1], args[2:])


def zpopmin(space: Space, args: Sequence[bytes]) -> None:
    count = integer(args[2]) if len(args) > 2 else 1
    _remove(space, args[1], [member for _, member in nsmallest(count, _ranks(space, args[1]))])


def zpopmax(space: Space, args: Sequence[bytes]) -> None:
    count = integer(args[2]) if len(args) > 2 else 1
    _remove(space, args[1], [member for _, member in nlargest(count, _ranks(space, args[1]))])


def zremrangebyrank(space: Space, args: Sequence[bytes]) -> None:
    ranked = sorted(_ranks(space, args[1]))
    first, end = bounds(integer(args[2]), integer(args[3]), len(ranked))
    _remove(space, args[1], [member for _, member in ranked[first:end]])


def zremrangebyscore(space: Space, args: Sequence[bytes]) -> None:
    (low, low_open), (high, high_open) = _score_bound(args[2]), _score_bound(args[3])
    inside = [
        member
        for score, member in _ranks(space, args[1])
        if (low < score or (low == score and not low_open)) and (score < high or (score == high and not high_open))
    ]
    _remove(space, args[1], inside)


def zremrangebylex(space: Space, args: Sequence[bytes]) -> None:
    low, high = args[2], args[3]
    inside = [member for _, member in _ranks(space, args[1]) if _above(low, member) and _below(high, member)]
    _remove(space, args[1], inside)


def geoadd(space: Space, args: Sequence[bytes]) -> None:
    if (len(args) - 2) % 3 or len(args) < 5:
        raise KeyspaceError(f"GEOADD with {len(args)} words: a place is longitude, latitude and name")
    places = zip(args[2::3], args[3::3], args[4::3], strict=True)
    hashed = {name: geohash(floating(longitude), floating(latitude)) for longitude, latitude, name in places}
    space.opened("zset", args[1], dict).value.update(hashed)


def geohash(longitude: float, latitude: float) -> float:
    """52 bits, the two coordinates' bits in turn, longitude first."""
    if not (abs(longitude) <= _LONGITUDE_MAX and abs(latitude) <= _LATITUDE_MAX):
        raise KeyspaceError(f"{longitude}, {latitude} is no place that can be stored")
    x = int((longitude + _LONGITUDE_MAX) / (2 * _LONGITUDE_MAX) * (1 << _GEO_STEPS))
    y = int((latitude + _LATITUDE_MAX) / (2 * _LATITUDE_MAX) * (1 << _GEO_STEPS))
    bits = 0
    for step in range(_GEO_STEPS):
        bits |= (y >> step & 1) << 2 * step | (x >> step & 1) << 2 * step + 1
    return float(bits)


def _ranks(space: Space, key: bytes) -> list[tuple[float, bytes]]:
    """What members are ordered by: their score, and their name where scores are equal."""
    entry = space.existing("zset", key)
    return [(score, member) for member, score in entry.value.items()] if entry is not None else []


def _remove(space: Space, key: bytes, members: Sequence[bytes]) -> None:
    entry = space.existing("zset", key)
    if entry is not None:
        for member in members:
            entry.value.pop(member, None)
        space.tidy("zset", key)


def _score_bound(text: bytes) -> tuple[float, bool]:
    return (floating(text[1:]), True) if text.startswith(b"(") else (floating(text), False)


def _above(low: bytes, member: bytes) -> bool:
    return low == b"-" or (low[:1] == b"[" and member >= low[1:]) or (low[:1] == b"(" and member > low[1:])


def _below(high: bytes, member: bytes) -> bool:
    return high == b"+" or (high[:1] == b"[" and member <= high[1:]) or (high[:1] == b"(" and member < high[1:])
