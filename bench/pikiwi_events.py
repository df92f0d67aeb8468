"""Events of PikiwiDB: what one costs built by itself, and built with thousands of others.

The floor is the plain way to the same bytes: parse by lengths, a dictionary, `json.dumps`. Items are what a master of a
busy shop writes: eight kinds of commands, 100 bytes of RESP, the seed's settings.
"""

import base64
import json
import random
import time
from functools import partial

from bench.rounds import Comparison, Line, compare, spread
from tidelog.pikiwi.binlog import BinlogItem, decode_item, encode_item
from tidelog.pikiwi.event import EventBuilder, EventSettings
from tidelog.pikiwi.filter import Filter
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.resp import encode_command

ITEMS = 20_000
ROUNDS = 5
SETTINGS = EventSettings("db0", "127.0.0.1:9221", "dfe36f6e6bf2c7de85df3657e8ad1b519a3ecc56b509ecedb0")

Items = list[tuple[Position, bytes]]


def _items() -> Items:
    chance = random.Random(7)
    end, items = 0, []
    for number in range(ITEMS):
        key = b"user:%d:profile" % chance.randrange(1_000_000)
        value = chance.randbytes(chance.randrange(20, 60)).hex().encode()
        commands = (
            [b"SET", key, value],
            [b"pksetexat", key, b"1794771485", value],
            [b"HSET", key, b"field-%d" % chance.randrange(100), value],
            [b"RPUSH", key, value[:30], value[30:]],
            [b"ZADD", key, b"1.5", value],
            [b"SADD", key, value],
            [b"DEL", key],
            [b"expireat", key, b"1794771485"],
        )
        content = encode_command(commands[chance.randrange(len(commands))])
        start, end = end, end + 42 + len(content)
        item = BinlogItem(1_700_000_000 + number // 20_000, 0, number, Position(3, start), content)
        items.append((Position(3, end), encode_item(item)))
    return items


def pikiwi_events() -> list[Line]:
    items = _items()
    everything = EventBuilder(SETTINGS)
    some = EventBuilder(SETTINGS, Filter.parse(["key=user:*;type=string,hash,list"], ["tmp:*"]))
    alone = partial(_by_item, everything, items)
    plain = compare(alone, partial(_plainly, items), ROUNDS)
    filtered = compare(partial(_by_item, some, items), alone, ROUNDS)
    lines = [
        _line("an event alone, against json.dumps", plain, 1.5),
        _line("the same with a filter that lets 3 of 4 pass, against without", filtered, 0.7),
    ]
    try:
        import pyarrow as pa  # noqa: PLC0415 (an optional dependency)

        from tidelog.pikiwi.event_kernel import EventKernel  # noqa: PLC0415
    except ImportError:
        return [*lines, Line("events by thousands", "-", note="pyarrow is not installed")]
    payloads = pa.array([payload for _, payload in items], pa.binary())
    filenums, offsets = [end.filenum for end, _ in items], [end.offset for end, _ in items]
    kernel = EventKernel(everything)

    def by_thousands() -> float:
        begun = time.process_time()
        built = sum(len(step.item) for step in kernel.build(payloads, filenums, offsets))
        assert built == ITEMS
        return time.process_time() - begun

    return [*lines, _line("events by thousands, against alone", compare(by_thousands, alone, ROUNDS), 2.0)]


def _line(name: str, measured: Comparison, target: float) -> Line:
    costs_us = [seconds / ITEMS * 1e6 for seconds in measured.ours]
    note = f"{spread(costs_us, 2)} µs of CPU an item, {1e6 / min(costs_us):,.0f} a second at best"
    raw = {"ours_s": list(measured.ours), "floor_s": list(measured.floor)}
    return Line(name, f"× {measured.ratio:.2f}", f"≥ × {target}", measured.ratio >= target, note, raw)


def _by_item(builder: EventBuilder, items: Items) -> float:
    begun = time.process_time()
    for end, payload in items:
        builder.binlog_event(end, payload)
    return time.process_time() - begun


def _plainly(items: Items) -> float:
    begun = time.process_time()
    for end, payload in items:
        _plain_event(end, payload)
    return time.process_time() - begun


def _plain_event(end: Position, payload: bytes) -> tuple[bytes, bytes]:
    item = decode_item(payload)
    at = item.content.index(b"\r\n") + 2
    args: list[bytes] = []
    while at < len(item.content):
        line = item.content.index(b"\r\n", at)
        length = int(item.content[at + 1 : line])
        args.append(item.content[line + 2 : line + 2 + length])
        at = line + 4 + length
    key = args[1].decode()
    value = {
        "event_type": "binlog",
        "op": args[0].decode().lower(),
        "data_type": "string",
        "db": "db0",
        "slot": 0,
        "key": key,
        "args": [base64.b64encode(arg).decode() for arg in args],
        "args_encoding": "base64",
        "raw_resp": base64.b64encode(item.content).decode(),
        "raw_resp_encoding": "base64",
        "ts_ms": item.exec_time_s * 1000,
        "event_id": f"{item.term_id}:{item.start.filenum}:{item.start.offset}:{item.logic_id}",
        "source_id": SETTINGS.source_id,
        "binlog": {
            "filenum": item.start.filenum,
            "offset": item.start.offset,
            "logic_id": item.logic_id,
            "server_id": 0,
            "term_id": item.term_id,
        },
        "source": {"host": "127.0.0.1", "port": 9221},
        "key_encoding": "none",
        "effect": "idempotent",
        "position": f"{SETTINGS.replication_id}/db0/{end.filenum}/{end.offset}",
    }
    return f"db0:{key}".encode(), json.dumps(value, separators=(",", ":")).encode()
