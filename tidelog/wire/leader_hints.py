"""Who leads, and where that node is (KIP-951), as the hand-written answers to Produce and Fetch put it: as tags.

The tables in `messages.leadership` describe the same bytes.
"""

import struct
from collections.abc import Sequence

from tidelog.wire.names import encoded_name, uvarint

Endpoint = tuple[int, str, int, str | None]
"""Node, host, port, rack."""

NO_TAGS = b"\x00"

_NODE = struct.Struct(">i")
_LEADER = struct.Struct(">BBiiB")  # tag, nine bytes: leader, epoch, no tags


def leader_tag(tag: int, leader: tuple[int, int]) -> bytes:
    """One tag with (node, epoch) of a leader."""
    return _LEADER.pack(tag, 9, *leader, 0)


def endpoint_tags(endpoints: Sequence[Endpoint]) -> bytes:
    """All tags of an answer that may name endpoints, which are its tag 0."""
    if not endpoints:
        return NO_TAGS
    content = bytearray(uvarint(len(endpoints) + 1))
    for node, host, port, rack in endpoints:
        content += _NODE.pack(node) + encoded_name(host, True) + _NODE.pack(port)
        content += NO_TAGS if rack is None else encoded_name(rack, True)
        content += NO_TAGS
    return b"\x01\x00" + uvarint(len(content)) + content
