"""A shop at work on a PikiwiDB master: all data types, and everything that has ever hurt somebody who follows a binlog.

    for db, args in Shop(seed=7).steps(10_000, clock):
        master.execute(db, *args)

The same seed and clock give the same commands. What is in it, besides a shop's everyday work: binary keys; CR LF, NUL
and nothing at all in keys and values; values of 1 MB; expiries in seconds and milliseconds; renames; FLUSHDB and
FLUSHALL; collections that become empty; keys that change their type; commands that cannot be applied twice (DECR, LPOP,
SETRANGE, HINCRBY, ZPOPMIN, …), that do nothing (a failed SETNX), that fail, and that a master takes apart (MSET,
SUNIONSTORE, …).

One thing is kept out: nobody touches a key within `QUIET_MS` of its expiry, since a binlog tells time in whole seconds
and no follower could tell whether the key was still there. So keys that expire soon are left alone from their creation
until they are long gone; then their names are used again, for another type.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tests.pikiwi.live_commands import Command, Version

QUIET_MS = 2_500
FLUSH_EVERY = 40_000
FLUSH_FIRST = 700  # early, so that also a short run has one
FLUSH_ALL_EVERY = 50_000
FLUSH_ALL_FIRST = 9_000
BIG_EVERY = 2_000
BIG_FIRST = 900
BIG_BYTES = 1 << 20
DAY_S = 86_400
RECENT_MAX = 200  # names that are remembered for being used again

NASTY = (
    b"",
    b"\0",
    b"\r\n",
    b"$3\r\nfoo\r\n",
    b"*1\r\n$7\r\nflushdb\r\n",
    b"\xff\xfe\0\x80",
    b"{tag}",
    b"\"'\\",
    "ü–漢".encode(),
)

Step = tuple[str, Command]
"""Database and command."""


class Shop:
    def __init__(
        self,
        seed: int,
        dbs: Sequence[str] = ("db0",),
        version: Version = "4.0",
        big_bytes: int = BIG_BYTES,
    ) -> None:
        self._chance = random.Random(seed)
        self._dbs = dbs
        self._version = version
        self._big_bytes = big_bytes
        self._number = 0
        self._now_ms = 0
        self._expiring: deque[tuple[int, str, bytes]] = deque()  # when it is long gone, database, key
        self._old_names: deque[tuple[str, bytes]] = deque(maxlen=RECENT_MAX)
        self._own_ids: deque[tuple[str, bytes, bytes]] = deque(maxlen=RECENT_MAX)  # database, stream, id
        self._work: list[tuple[int, Callable[[], Command]]] = [
            (18, self._products),
            (14, self._counters),
            (14, self._carts),
            (10, self._tags),
            (10, self._ranks),
            (8, self._orders),
            (6, self._texts),
            (6, self._expiries),
            (5, self._batches),
            (4, self._binary),
            (3, self._conditions),
            (3, self._renames),
            (3, self._empties),
            (2, self._types),
            (2, self._failures),
            (1, self._visitors),
            (1, self._places),
        ]
        self._weights = [weight for weight, _ in self._work]

    def steps(self, count: int, clock: Callable[[], int]) -> Iterator[Step]:
        """The next `count` commands; `clock` in milliseconds."""
        for _ in range(count):
            self._now_ms = clock()
            self._db = self._dbs[self._pick(len(self._dbs))]
            yield self._db, self._next()
            self._number += 1

    def _next(self) -> Command:
        if self._number % FLUSH_EVERY == FLUSH_FIRST:
            return (b"FLUSHDB",)
        if self._number % FLUSH_ALL_EVERY == FLUSH_ALL_FIRST:
            return (b"flushall",)
        if self._number % BIG_EVERY == BIG_FIRST:
            return self._big()
        if self._expiring and self._expiring[0][0] < self._now_ms:
            _, self._db, key = self._expiring.popleft()
            return (b"RPUSH", key, b"was something else", self._value())
        return self._chance.choices(self._work, self._weights)[0][1]()

    # --- everyday work -------------------------------------------------------------------------------------------

    def _products(self) -> Command:
        key = self._name(b"product", 400)
        match self._pick(8):
            case 0 | 1:
                return (b"HMSET", key, b"name", self._value(), b"stock", self._digits(50), b"price", b"9.95")
            case 2:
                return (b"hset", key, b"f%d" % self._pick(20), self._value())
            case 3 | 4:
                return (b"HINCRBY", key, b"stock", b"-%d" % (1 + self._pick(3)))
            case 5:
                return (b"HINCRBYFLOAT", key, b"price", b"0.1")
            case 6:
                return (b"HDEL", key, b"f%d" % self._pick(20), b"absent")
            case _:
                return (b"HSETNX", key, b"f%d" % self._pick(20), self._value())

    def _counters(self) -> Command:
        key = self._name(b"stock", 300)
        match self._pick(8):
            case 0:
                return (b"SET", key, self._digits(1000))
            case 1:
                return (b"INCR", key)
            case 2:
                return (b"INCRBY", key, self._digits(100))
            case 3 | 4:
                return (b"DECR", key)
            case 5:
                return (b"DECRBY", key, self._digits(20))
            case 6:
                return (b"GETSET", key, self._digits(10))
            case _:
                return (b"INCRBYFLOAT", self._name(b"sales", 50), b"%d.25" % self._pick(100))

    def _carts(self) -> Command:
        key = self._name(b"cart", 300)
        match self._pick(14):
            case 0 | 1 | 2:
                return (b"RPUSH", key, *(self._value() for _ in range(1 + self._pick(4))))
            case 3 | 4:
                return (b"LPUSH", key, self._value(), b"wish")
            case 5:
                return (b"LPOP", key)
            case 6:
                return (b"rpop", key)
            case 7:
                return (b"LSET", key, b"0", self._value())
            case 8:
                return (b"LINSERT", key, b"BEFORE" if self._pick(2) else b"AFTER", b"wish", self._value())
            case 9:
                return (b"LREM", key, b"%d" % (self._pick(3) - 1), b"wish")
            case 10:
                return (b"LTRIM", key, b"0", b"%d" % (5 + self._pick(10)))
            case 11:
                return (b"RPOPLPUSH", key, self._name(b"cart", 300))
            case 12:
                return (b"BLPOP" if self._pick(2) else b"BRPOP", key, self._name(b"cart", 300), b"1")
            case _:
                return (b"LPUSHX" if self._pick(2) else b"RPUSHX", key, self._value())

    def _tags(self) -> Command:
        key, other = self._name(b"tags", 100), self._name(b"tags", 100)
        match self._pick(10):
            case 0 | 1 | 2:
                return (b"SADD", key, *(self._tag() for _ in range(1 + self._pick(5))))
            case 3:
                return (b"SREM", key, self._tag(), self._tag())
            case 4:
                return (b"SPOP", key)
            case 5:
                return (b"SPOP", key, b"2")
            case 6:
                return (b"SMOVE", key, other, self._tag())
            case 7:
                return (b"SUNIONSTORE", self._name(b"found", 20), key, other)
            case 8:
                return (b"SINTERSTORE", self._name(b"found", 20), key, other)
            case _:
                return (b"SDIFFSTORE", self._name(b"found", 20), key, other)

    def _ranks(self) -> Command:
        key = self._name(b"rank", 60)
        match self._pick(11):
            case 0 | 1 | 2:
                score = (b"%d" % self._pick(1000), b"-1.5", b"0.1", b"1e300", b"inf", b"-inf")[self._pick(6)]
                return (b"ZADD", key, score, self._tag(), self._digits(100), self._tag())
            case 3 | 4:
                return (b"ZINCRBY", key, b"0.1", b"fixed-%d" % self._pick(5))
            case 5:
                return (b"ZREM", key, self._tag())
            case 6:
                return (b"ZPOPMIN", key, b"1")
            case 7:
                return (b"ZPOPMAX", key)
            case 8:
                return (b"ZREMRANGEBYRANK", key, b"0", b"1")
            case 9:
                return (b"ZREMRANGEBYSCORE", key, b"(0", b"5")
            case _:
                return (b"ZUNIONSTORE", self._name(b"best", 20), b"2", key, self._name(b"rank", 60))

    def _orders(self) -> Command:
        """With ids of the master's, and with the client's own, some of which are taken back."""
        key = self._name(b"orders", 12)
        match self._pick(8):
            case 0:
                return (b"XADD", key, b"MAXLEN", b"~", b"50", b"*", b"item", self._value())
            case 1:
                return (b"XTRIM", key, b"MAXLEN", b"30")
            case 2 if self._own_ids:
                self._db, key, own_id = self._own_ids.popleft()
                return (b"XDEL", key, own_id, b"1-1")
            case 3:
                own_id = b"%d-%d" % (self._now_ms + self._pick(3), 1 + self._pick(5))
                self._own_ids.append((self._db, key, own_id))
                return (b"XADD", key, own_id, b"a", b"", b"b", b"\0")
            case _:
                return (b"XADD", key, b"*", b"item", self._value(), b"paid", self._digits(100))

    def _texts(self) -> Command:
        key = self._name(b"text", 60)
        match self._pick(6):
            case 0:
                return (b"SET", key, self._value())
            case 1 | 2:
                return (b"APPEND", key, self._value())
            case 3:
                return (b"SETRANGE", key, b"%d" % self._pick(40), self._value())
            case 4:
                return (b"SETBIT", self._name(b"bits", 20), b"%d" % self._pick(4096), b"%d" % self._pick(2))
            case _:
                return (b"SET", key, self._value(), b"EX", b"%d" % (DAY_S + self._pick(DAY_S)))

    def _visitors(self) -> Command:
        if self._pick(20) == 0:
            return (b"PFMERGE", self._name(b"visitors:week", 2), self._name(b"visitors", 4), self._name(b"visitors", 4))
        return (b"PFADD", self._name(b"visitors", 4), b"user-%d" % self._number, self._value())

    def _places(self) -> Command:
        longitude = b"%.4f" % (self._chance.random() * 360 - 180)
        return (
            b"GEOADD",
            self._name(b"places", 3),
            longitude,
            b"%.4f" % (self._chance.random() * 160 - 80),
            self._tag(),
        )

    # --- what hurts ----------------------------------------------------------------------------------------------

    def _expiries(self) -> Command:
        """Far ones may be touched by everybody, near ones are left alone until they are gone."""
        match self._pick(12):
            case 0:
                return (b"EXPIRE", self._any(), b"%d" % (DAY_S + self._pick(DAY_S)))
            case 1:
                return (b"PEXPIRE", self._any(), b"%d" % (DAY_S * 1000 + self._pick(DAY_S)))
            case 2:
                return (b"EXPIREAT", self._any(), b"%d" % (self._now_ms // 1000 + DAY_S))
            case 3:
                return (b"PEXPIREAT", self._any(), b"%d" % (self._now_ms + DAY_S * 1000 + self._pick(1000)))
            case 4 | 5:
                return (b"PERSIST", self._any())
            case 6:
                return (b"SETEX", self._name(b"session", 200), b"%d" % (DAY_S + self._pick(1000)), self._value())
            case 7:
                return (
                    b"PSETEX",
                    self._name(b"session", 200),
                    b"%d" % (DAY_S * 1000 + self._pick(9999)),
                    self._value(),
                )
            case 8:
                return (b"SETEX", self._soon(1000), b"1", self._value())
            case 9:
                return (b"PSETEX", self._soon(1500), b"1500", self._value())
            case 10:
                return (b"SET", self._soon(1300), self._value(), b"PX", b"1300")
            case _:
                return (b"EXPIRE", b"absent-%d" % self._number, b"10")

    def _soon(self, live_ms: int) -> bytes:
        key = b"flash:%d" % self._number
        self._expiring.append((self._now_ms + live_ms + QUIET_MS, self._db, key))
        return key

    def _batches(self) -> Command:
        keys = [self._name(b"stock", 300) for _ in range(3)]
        match self._pick(4):
            case 0:
                return (b"MSET", *(word for key in keys for word in (key, self._digits(100))))
            case 1:
                return (b"MSETNX", *(word for key in keys for word in (key, self._digits(100))))
            case 2:
                return (b"MSETNX", b"batch:%d:a" % self._number, self._value(), b"batch:%d:b" % self._number, b"")
            case _:
                return (b"DEL", self._any(), self._any(), b"absent")

    def _binary(self) -> Command:
        key = b"bin:" + self._nasty() + bytes((self._pick(256),)) + self._nasty()
        match self._pick(6):
            case 0:
                return (b"SET", b"s" + key, self._nasty())
            case 1:
                return (b"HSET", b"h" + key, self._nasty(), self._nasty())
            case 2:
                return (b"RPUSH", b"l" + key, self._nasty(), self._nasty())
            case 3:
                return (b"SADD", b"m" + key, self._nasty(), self._nasty())
            case 4:
                return (b"ZADD", b"z" + key, b"1", self._nasty())
            case _:
                return (b"XADD", b"x" + key, b"*", self._nasty(), self._nasty())

    def _conditions(self) -> Command:
        """Logged whether they do anything or not."""
        key = self._name(b"lock", 30)
        match self._pick(5):
            case 0:
                return (b"SETNX", key, self._value())
            case 1:
                return (b"SET", key, self._value(), b"NX")
            case 2:
                return (b"SET", key, self._value(), b"XX")
            case 3:
                return (b"DEL", key)
            case _:
                return (b"HDEL", self._name(b"product", 400), b"absent")

    def _renames(self) -> Command:
        kind = (b"product", b"cart", b"tags", b"rank", b"stock")[self._pick(5)]
        old = self._name(kind, 60)
        match self._pick(4):
            case 0:
                return (b"RENAMENX", old, self._name(kind, 60))
            case 1 if self._old_names:  # back again
                self._db, new = self._old_names.popleft()
                return (b"RENAME", new, old)
            case _:
                self._old_names.append((self._db, b"old:%d:%b" % (self._number, kind)))
                return (b"RENAME", old, self._old_names[-1][1])

    def _empties(self) -> Command:
        match self._pick(5):
            case 0:
                return (b"LTRIM", self._name(b"cart", 300), b"1", b"0")
            case 1:
                return (b"ZREMRANGEBYRANK", self._name(b"rank", 60), b"0", b"-1")
            case 2:
                return (b"SPOP", self._name(b"tags", 100), b"1000")
            case 3:
                return (
                    b"HDEL",
                    self._name(b"product", 400),
                    *(b"f%d" % i for i in range(20)),
                    b"name",
                    b"stock",
                    b"price",
                )
            case _:
                return (b"XTRIM", self._name(b"orders", 12), b"MAXLEN", b"0")

    def _types(self) -> Command:
        """A key becomes something else: at once by SET, or after DEL."""
        if self._version != "3.5" and self._pick(2):
            return (b"SET", self._any(), self._value())
        return (b"DEL", self._any())

    def _failures(self) -> Command:
        """What a master answers with an error, and logs nowhere."""
        match self._pick(4):
            case 0:
                return (b"LSET", self._name(b"cart", 300), b"99999", b"beyond")
            case 1:
                return (b"INCR", self._name(b"text", 60))
            case 2:
                return (b"RENAME", b"absent-%d" % self._number, b"x")
            case _:
                return (b"SADD", b"_internal:slotkey:4migrate:%d" % self._pick(3), self._value())

    def _big(self) -> Command:
        half = self._chance.randbytes(self._big_bytes // 2)
        match self._number // BIG_EVERY % 3:
            case 0:
                return (b"SET", self._name(b"picture", 5), half + half)
            case 1:
                return (b"HSET", self._name(b"album", 3), b"cover", half + half)
            case _:
                return (b"RPUSH", self._name(b"film", 3), half, half)

    # --- words ---------------------------------------------------------------------------------------------------

    def _pick(self, count: int) -> int:
        return int(self._chance.random() * count)

    def _name(self, kind: bytes, count: int) -> bytes:
        """Some names come often, most seldom."""
        return b"%b:%d" % (kind, int(self._chance.random() ** 2 * count))

    def _any(self) -> bytes:
        kind = (b"product", b"stock", b"cart", b"tags", b"rank", b"text", b"session")[self._pick(7)]
        return self._name(kind, 60)

    def _digits(self, below: int) -> bytes:
        return b"%d" % self._pick(below)

    def _tag(self) -> bytes:
        return b"tag-%d" % self._pick(40) if self._pick(20) else self._nasty()

    def _nasty(self) -> bytes:
        return NASTY[self._pick(len(NASTY))]

    def _value(self) -> bytes:
        if self._pick(25) == 0:
            return self._nasty()
        return b"value %d of %d" % (self._number, self._pick(1_000_000))
