"""What comes out of a dump: keys in bounded parts, and the commands that build them.

A collection may be larger than memory, so a key comes as one or more parts of at most `batch_num` elements and about
`batch_bytes` bytes. Parts of a key follow one another, numbered from 0; the final one says so. A key is wholly inside
one range, so whoever reads a range sees each of its keys from the first part to the last.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

DataType = Literal["string", "hash", "set", "list", "zset", "stream"]
DATA_TYPES: tuple[DataType, ...] = get_args(DataType)

BATCH_NUM = 512
BATCH_BYTES = 256 << 10  # as base64 twice over (arguments and raw command) still below a Kafka message's usual 1 MB


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream remembers besides its entries; ids are (milliseconds, sequence)."""

    last_id: tuple[int, int]
    max_deleted_id: tuple[int, int]
    entries_added: int
    length: int


class DumpKey(NamedTuple):
    """One part of one key. (A tuple, since there is one a string: a frozen dataclass takes five times as long.)

    | data_type | elements |
    | --- | --- |
    | string | one value |
    | hash | (field, value) |
    | set | member |
    | list | value, in the list's order |
    | zset | (member, score), by member |
    | stream | (milliseconds, sequence, (field, value, field, value, …)), by id |
    """

    data_type: DataType
    key: bytes
    expire_ms: int  # unix time; 0: never
    elements: list[Any]
    part: int = 0
    last: bool = True
    stream: StreamState | None = None
    hyperloglog: bool = False  # a string that holds one; 3.5 does not tell


class SnapshotCommand(NamedTuple):
    data_type: DataType
    key: bytes
    args: tuple[bytes, ...]  # the command's name first
    batch: int  # unique among the commands of one key and type, and the same whenever the dump is read
