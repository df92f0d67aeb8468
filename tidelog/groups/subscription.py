"""What a member of a "consumer" group subscribes to: the one thing the coordinator reads in a protocol's metadata.

The bytes are the client's and may be anything. Version 0 of ConsumerProtocolSubscription is a prefix of every later
one: a 16-bit version, then the topics (a 32-bit count, each a string with a 16-bit length). The rest is not looked at.
"""

from collections.abc import Iterable
from struct import Struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = Struct(">hi")
_LENGTH = Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None when the bytes are no subscription."""
    if len(metadata) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(metadata)
    position = _HEAD.size
    if version < 0 or count < 0 or count * _LENGTH.size > len(metadata) - position:
        return None
    topics: set[str] = set()
    for _ in range(count):
        if position + _LENGTH.size > len(metadata):
            return None
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            return None
        try:
            topics.add(metadata[position : position + length].decode())
        except UnicodeDecodeError:
            return None
        position += length
    return frozenset(topics)


def subscribed_topics(metadata_of_members: Iterable[bytes]) -> frozenset[str] | None:
    """What a group subscribes to as a whole; None when one member cannot be understood: it may be anything."""
    topics: set[str] = set()
    for metadata in metadata_of_members:
        of_member = topics_of(metadata)
        if of_member is None:
            return None
        topics |= of_member
    return frozenset(topics)
