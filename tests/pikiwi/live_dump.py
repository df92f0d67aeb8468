"""A dump of a key space as a real master leaves it on disk: 4.x in numbered instances, 3.5 in one database a type.

A real dump holds more than what lives: keys that have expired but were not yet swept, metas of collections that became
empty, rows of versions that were deleted. All of that is in here too; a reader has to see through it. Streams are not
in the dumps of a 3.5 master.
"""

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

from tests.pikiwi.dump_writer import VERSION, BlackwidowWriter, FloydWriter
from tidelog.pikiwi.keyspace import Entry, Keyspace

INSTANCES = 3
SLOTS = 1024
EVERYTHING_MS = 0  # a clock by which nothing has expired
DEAD_EVERY = 7  # one collection in so many has rows of an older version
DEAD_VERSION_35 = 1_700_000


def write_dump(version: str, keys: Keyspace, emptied: Iterable[bytes], folder: Path) -> None:
    """`emptied`: keys that were collections once and are nothing now."""
    held = list(keys.all(EVERYTHING_MS))
    names = {key for _, key, _ in held}
    gone = [key for key in emptied if key not in names]
    if version == "3.5":
        _write_blackwidow(held, gone, folder)
    else:
        _write_floyd(held, gone, folder)


def instance_of(key: bytes) -> int:
    """By the text between the first `{` and the next `}`, if there is any."""
    begin = key.find(b"{")
    end = key.find(b"}", begin + 1) if begin >= 0 else -1
    tag = key[begin + 1 : end] if end > begin + 1 else key
    return zlib.crc32(tag) % SLOTS % INSTANCES


def _write_floyd(held: list[tuple[str, bytes, Entry]], gone: list[bytes], folder: Path) -> None:
    writers = [FloydWriter(folder, instance) for instance in range(INSTANCES)]
    for number, (data_type, key, entry) in enumerate(held):
        writer, value, expire_ms = writers[instance_of(key)], entry.value, entry.expire_ms
        match data_type:
            case "string":
                writer.string(key, value, expire_ms)
            case "hash":
                writer.hash(key, value, expire_ms)
                if number % DEAD_EVERY == 0:
                    writer.put("hash_data_cf", writer.data_row(key, b"dead", VERSION - 1), b"dead" + bytes(24))
            case "set":
                writer.set(key, value, expire_ms)
                if number % DEAD_EVERY == 0:
                    writer.put("set_data_cf", writer.data_row(key, b"dead", VERSION + 1), bytes(24))
            case "list":
                writer.list(key, list(value), expire_ms)
            case "zset":
                writer.zset(key, value, expire_ms)
            case _:
                entries = [(*each, fields) for each, fields in value.entries.items()]
                writer.stream(
                    key, entries, last_id=value.last_id, added=value.entries_added, deleted=value.max_deleted_id
                )
    for key in gone:
        writer = writers[instance_of(key)]
        writer.set(key, ())
        writer.put("set_data_cf", writer.data_row(key, b"dead"), bytes(24))
    for writer in writers:
        writer.close()


def _write_blackwidow(held: list[tuple[str, bytes, Entry]], gone: list[bytes], folder: Path) -> None:
    writer = BlackwidowWriter(folder)
    for number, (data_type, key, entry) in enumerate(held):
        value, expire_s = entry.value, entry.expire_ms // 1000
        match data_type:
            case "string":
                writer.string(key, value, expire_s)
            case "hash":
                writer.hash(key, value, expire_s)
                if number % DEAD_EVERY == 0:
                    writer.rows["hashes"]["data_cf"].append((writer.data_row(key, b"dead", DEAD_VERSION_35), b"dead"))
            case "list":
                writer.list(key, list(value), expire_s)
            case "set":
                _collection(writer, "sets", key, expire_s, "member_cf", dict.fromkeys(value, b""))
            case "zset":
                scores = {member: struct.pack("<d", score) for member, score in value.items()}
                _collection(writer, "zsets", key, expire_s, "data_cf", scores)
            case _:
                pass
    for key in gone:
        _collection(writer, "sets", key, 0, "member_cf", {})
    writer.close()


def _collection(
    writer: BlackwidowWriter, database: str, key: bytes, expire_s: int, family: str, elements: dict[bytes, bytes]
) -> None:
    version = DEAD_VERSION_35 + 1
    writer.rows[database]["default"].append((key, struct.pack("<iii", len(elements), version, expire_s)))
    writer.rows[database][family] += [(writer.data_row(key, name, version), value) for name, value in elements.items()]
