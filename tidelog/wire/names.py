"""Lengths and names as the two hand-written paths put them: encoded once, used in every answer."""

import functools
import struct

_INT16 = struct.Struct(">h")


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@functools.lru_cache(maxsize=1024)
def encoded_name(name: str, flexible: bool) -> bytes:
    """A topic's name with its length before it."""
    encoded = name.encode()
    return (uvarint(len(encoded) + 1) if flexible else _INT16.pack(len(encoded))) + encoded
