"""What a key space holds, in a form that two sides can be compared in, and that goes through a file.

A 4.x master keeps expiries in milliseconds, and its binlog tells whole seconds for most commands (SET … PX even cuts
twice); so two expiries are the same when they are less than `EXPIRY_MS_MAX` apart. A stream without entries leaves no
rows behind, so it is not compared; nor is the bookkeeping of slot migration, which is not logged.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tidelog.pikiwi.dump.layout import INTERNAL_PREFIXES
from tidelog.pikiwi.keyspace import Entry, Keyspace

EXPIRY_MS_MAX = 2_000
SHOWN_MAX = 10

Key = tuple[str, bytes]
"""Type and key."""
Held = tuple[Any, int]
"""Value and expiry. Values: bytes; a list of bytes; a dict of bytes or floats; a sorted list of members; a list of
((milliseconds, sequence), fields and values in turn)."""
State = dict[Key, Held]


def state_of(keys: Keyspace, now_ms: int) -> State:
    return state_from(keys.all(now_ms))


def state_from(entries: Iterable[tuple[str, bytes, Entry]]) -> State:
    """Of keys that have not expired."""
    held: State = {}
    for data_type, key, entry in entries:
        if key.startswith(INTERNAL_PREFIXES):
            continue
        match data_type:
            case "list":
                value: Any = list(entry.value)
            case "set":
                value = sorted(entry.value)
            case "stream":
                value = [(each, list(fields)) for each, fields in entry.value.entries.items()]
                if not value:
                    continue
            case "string":
                value = entry.value
            case _:
                value = dict(entry.value)
        held[data_type, key] = (value, entry.expire_ms)
    return held


def differences(master: State, other: State) -> list[str]:
    """Key by key, in words; at most `SHOWN_MAX` of them. Empty: they are the same."""
    found: list[str] = []
    for at in sorted(master.keys() | other.keys()):
        mine, its = master.get(at), other.get(at)
        if mine is None or its is None:
            found.append(f"{at} is {'missing' if its is None else 'not on the master'}")
        elif mine[0] != its[0]:
            found.append(f"{at} holds {_short(its[0])}; on the master {_short(mine[0])}")
        elif (mine[1] == 0) != (its[1] == 0) or abs(mine[1] - its[1]) >= EXPIRY_MS_MAX:
            found.append(f"{at} expires at {its[1]}; on the master at {mine[1]}")
        if len(found) == SHOWN_MAX:
            break
    return found


def write_state(path: Path, databases: Mapping[str, State]) -> None:
    """Lines of JSON, one a key: db, type, key, expire_ms, value; bytes in base64."""
    with path.open("w", encoding="ascii") as file:
        for db, state in databases.items():
            for (data_type, key), (value, expire_ms) in state.items():
                row = {"db": db, "type": data_type, "key": _text(key), "expire_ms": expire_ms}
                file.write(json.dumps({**row, "value": _packed(data_type, value)}) + "\n")


def read_state(path: Path) -> dict[str, State]:
    databases: dict[str, State] = {}
    with path.open(encoding="ascii") as file:
        for line in file:
            row = json.loads(line)
            held = (_unpacked(row["type"], row["value"]), row["expire_ms"])
            databases.setdefault(row["db"], {})[row["type"], _bytes(row["key"])] = held
    return databases


def _packed(data_type: str, value: Any) -> Any:
    match data_type:
        case "string":
            return _text(value)
        case "hash":
            return [[_text(field), _text(held)] for field, held in value.items()]
        case "zset":
            return [[_text(member), score.hex()] for member, score in value.items()]
        case "stream":
            return [[*each, [_text(word) for word in words]] for each, words in value]
        case _:
            return [_text(element) for element in value]


def _unpacked(data_type: str, value: Any) -> Any:
    match data_type:
        case "string":
            return _bytes(value)
        case "hash":
            return {_bytes(field): _bytes(held) for field, held in value}
        case "zset":
            return {_bytes(member): float.fromhex(score) for member, score in value}
        case "stream":
            return [((ms, sequence), [_bytes(word) for word in words]) for ms, sequence, words in value]
        case _:
            return [_bytes(element) for element in value]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}… ({len(text):,} characters)"
