"""Names and bytes: what a region looks like in the log. Pure, and one page a stranger could implement.

Topics, one partition each:

    {namespace}_data_{region}      the entries of all tables
    {namespace}_meta_{region}      snapshots of the region's metadata

A data record is HoraeDB's, all numbers big-endian:

    key     namespace u8 (1 = log) | region u64 | table u64 | sequence u64 | key version u8 (0)
    value   version u8 (0) | payload

A meta record too (`snapshot_format` has what follows the value's version byte):

    key     namespace u8 (0 = meta) | version u8 (0) | region u64
    value   version u8 (0) | protobuf

What HoraeDB does not know travels in record headers, so its tools read our keys and values as they read theirs:

    e       u64: the writer's epoch, on every record of both topics (see `fold`)
    p       u32 part | u32 parts | u32 tag: on every record of a value that was split; its parts follow one another and
            have the same tag, which is random

An *epoch record* of the data topic is a record of the table `EPOCH_TABLE`, whose sequence number is the epoch and whose
payload says who wrote it; for HoraeDB's tools it is a table that they do not know. User tables are all other ids.
"""

import random
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

NAMESPACE_META, NAMESPACE_LOG = 0, 1
VERSION = 0
VALUE_PREFIX = bytes([VERSION])

EPOCH_TABLE = 2**64 - 1
TABLE_MAX = EPOCH_TABLE - 1
U64_MAX = 2**64 - 1

DATA_KEY = struct.Struct(">BQQQB")
META_KEY = struct.Struct(">BBQ")

HEADER_EPOCH = "e"
HEADER_PART = "p"
EPOCH = struct.Struct(">Q")
PART = struct.Struct(">III")

Headers = list[tuple[str, str | bytes | None]]  # as the client's types have it; ours are bytes


class Part(NamedTuple):
    number: int
    parts: int
    tag: int


WHOLE = Part(0, 1, 0)  # of a value that was not split


class FormatError(ValueError):
    """Bytes that are not what this page says; who knows topic and offset makes a CorruptRecord of it."""


class VersionError(FormatError):
    """A version byte of a format that is not known here."""


def data_topic(namespace: str, region: int) -> str:
    return f"{namespace}_data_{region}"


def meta_topic(namespace: str, region: int) -> str:
    return f"{namespace}_meta_{region}"


def region_of_topic(namespace: str, topic: str) -> int | None:
    """Whose data topic that is, or none."""
    number = topic.removeprefix(f"{namespace}_data_")
    if number == topic or not (number.isascii() and number.isdecimal()) or str(int(number)) != number:
        return None
    return int(number)


def data_key(region: int, table: int, sequence: int) -> bytes:
    return DATA_KEY.pack(NAMESPACE_LOG, region, table, sequence, VERSION)


def parse_data_key(key: bytes | None, region: int) -> tuple[int, int]:
    """Table and sequence number."""
    if key is None or len(key) != DATA_KEY.size:
        raise FormatError(f"its key has {'no' if key is None else len(key)} bytes, a data key has {DATA_KEY.size}")
    namespace, found, table, sequence, version = DATA_KEY.unpack(key)
    if version != VERSION:
        raise VersionError(f"its key has version {version}, known is {VERSION}")
    if namespace != NAMESPACE_LOG:
        raise FormatError(f"its key says namespace {namespace}, not {NAMESPACE_LOG} (log)")
    if found != region:
        raise FormatError(f"its key says region {found}, not {region}")
    return table, sequence


def meta_key(region: int) -> bytes:
    return META_KEY.pack(NAMESPACE_META, VERSION, region)


def check_meta_key(key: bytes | None, region: int) -> None:
    if key is None or len(key) != META_KEY.size:
        raise FormatError(f"its key has {'no' if key is None else len(key)} bytes, a meta key has {META_KEY.size}")
    namespace, version, found = META_KEY.unpack(key)
    if version != VERSION:
        raise VersionError(f"its key has version {version}, known is {VERSION}")
    if namespace != NAMESPACE_META:
        raise FormatError(f"its key says namespace {namespace}, not {NAMESPACE_META} (meta)")
    if found != region:
        raise FormatError(f"its key says region {found}, not {region}")


def payload_of(value: bytes | None) -> bytes:
    """A value without its version byte."""
    if not value:
        raise FormatError("its value is empty: not even a version byte")
    if value[0] != VERSION:
        raise VersionError(f"its value has version {value[0]}, known is {VERSION}")
    return value[1:]


def epoch_header(epoch: int) -> tuple[str, str | bytes | None]:
    return (HEADER_EPOCH, EPOCH.pack(epoch))


def part_header(part: Part) -> tuple[str, str | bytes | None]:
    return (HEADER_PART, PART.pack(*part))


def parse_headers(headers: Iterable[Any] | None) -> tuple[int, Part]:
    """Epoch and part, from (name, value) pairs. Without an epoch, other software wrote it: it is of epoch 0."""
    epoch, part = 0, WHOLE
    for name, value in headers or ():
        if name == HEADER_EPOCH:
            (epoch,) = EPOCH.unpack(_header_bytes(name, value, EPOCH.size))
        elif name == HEADER_PART:
            part = Part(*PART.unpack(_header_bytes(name, value, PART.size)))
            if part.number >= part.parts:
                raise FormatError(f"it says that it is part {part.number} of {part.parts}")
    return epoch, part


def _header_bytes(name: str, value: object, size: int) -> bytes:
    if not isinstance(value, bytes) or len(value) != size:
        raise FormatError(f"its header {name!r} is not {size} bytes long")
    return value


def records_of(key: bytes, payload: bytes, bytes_max: int, headers: Headers) -> list[tuple[bytes, bytes, Headers]]:
    """A payload as the records to write, each with at most `bytes_max` of it: key, value, headers."""
    if len(payload) <= bytes_max:
        return [(key, VALUE_PREFIX + payload, headers)]
    starts = range(0, len(payload), bytes_max)
    tag = random.getrandbits(32)
    return [
        (
            key,
            VALUE_PREFIX + payload[start : start + bytes_max],
            [*headers, part_header(Part(number, len(starts), tag))],
        )
        for number, start in enumerate(starts)
    ]
