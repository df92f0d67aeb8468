"""Keys of the source: which are its own, how they stand in JSON, and which partition an event goes to.

A key is any bytes. In JSON it is text when it is UTF-8, and base64 otherwise; `key_encoding` says which, with the
words that `args_encoding` has.

The partition key decides the partition, so it may hold only what all events of a key have in common: database and key
(`PartitionBy.DB_KEY`). With the type in it (`DB_TYPE_KEY`, as the seed's tool does it) the deletion of a list, whose
command does not say "list", may overtake the list's own events in another partition.
"""

from binascii import b2a_base64
from collections.abc import Sequence
from enum import Enum
from json.encoder import encode_basestring

INTERNAL_PREFIXES = (b"_internal:slotkey:4migrate:", b"_internal:slottag:4migrate:")
"""Sets in which a master remembers the keys of a slot while it migrates; no data of anybody."""


class PartitionBy(Enum):
    DB_KEY = "db_key"
    DB_TYPE_KEY = "db_type_key"


class Encoding(Enum):
    BASE64 = "base64"
    NONE = "none"


def is_internal(key: bytes) -> bool:
    return key.startswith(INTERNAL_PREFIXES)


def base64(data: bytes) -> bytes:
    return b2a_base64(data, newline=False)


TEXT = Encoding.NONE.value.encode()
BASE64 = Encoding.BASE64.value.encode()
NO_KEY = (b'""', TEXT)


def json_key(key: bytes) -> tuple[bytes, bytes]:
    """The key as a JSON string with its quotes, and the name of its encoding in there."""
    try:
        return encode_basestring(key.decode()).encode(), TEXT
    except UnicodeDecodeError:
        return b'"%s"' % base64(key), BASE64


def json_texts(values: Sequence[bytes]) -> list[bytes] | None:
    """The values as JSON strings with their quotes, or None when one of them is no UTF-8."""
    try:
        return [encode_basestring(value.decode()).encode() for value in values]
    except UnicodeDecodeError:
        return None


def partition_prefix(by: PartitionBy, db: str, data_type: str) -> bytes:
    """What stands before the key in the partition key; without its last colon it is that of a command without a key."""
    if by is PartitionBy.DB_TYPE_KEY:
        return f"{db}:{data_type}:".encode()
    return f"{db}:".encode()
