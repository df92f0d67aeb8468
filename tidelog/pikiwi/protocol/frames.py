"""Framing of both protocols: a 4-byte big-endian length, then that many bytes of protobuf.

`FrameDecoder` takes bytes as they come from a socket and gives frames; it knows no socket. It holds at most one
unfinished frame of `limit_bytes` and what was fed beyond it, so a length out of a hostile or foreign server is refused
when its four bytes are there, before anything is kept for it. Cost: each byte is copied twice, whatever its chunk.
"""

import struct
from collections.abc import Iterator
from typing import TypeVar

from google.protobuf.message import DecodeError, EncodeError, Message

from tidelog.pikiwi.errors import ProtocolError

_LENGTH = struct.Struct(">I")

M = TypeVar("M", bound=Message)


def encode_frame(message: Message) -> bytes:
    """The message as it goes over the wire. A missing required field is our own mistake, and raises."""
    try:
        content = message.SerializeToString()
    except EncodeError as error:
        raise AssertionError(f"{type(message).__name__} is not complete: {error}") from error
    return _LENGTH.pack(len(content)) + content


def parse(kind: type[M], frame: bytes | memoryview) -> M:
    """One frame's message; ProtocolError when it is none, or lacks a required field."""
    message = parse_unchecked(kind, frame)
    check_complete(message, len(frame))
    return message


def parse_unchecked(kind: type[M], frame: bytes | memoryview) -> M:
    """As `parse`, but required fields may be missing, and then have their defaults."""
    message = kind()
    try:
        message.ParseFromString(frame)  # type: ignore[arg-type]  (it takes any buffer)
    except DecodeError as error:
        raise ProtocolError(f"{len(frame):,} bytes are no {kind.__name__}: {error}") from error
    return message


def check_complete(message: Message, size_bytes: int) -> None:
    if not message.IsInitialized():
        raise ProtocolError(f"{size_bytes:,} bytes are no {type(message).__name__}: it lacks a required field")


class FrameDecoder:
    """`feed` bytes, then iterate: whole frames so far, each once."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    @property
    def held_bytes(self) -> int:
        """What was fed and not yet given out."""
        return len(self._held)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._held += data

    def __iter__(self) -> Iterator[bytes]:
        held = self._held
        begin = 0
        try:
            while len(held) - begin >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(held, begin)
                if length > self._limit_bytes:
                    raise ProtocolError(
                        f"a message of {length:,} bytes is announced and at most {self._limit_bytes:,} are accepted: "
                        "is this port a PikiwiDB replication or rsync2 port?"
                    )
                end = begin + _LENGTH.size + length
                if end > len(held):
                    return
                with memoryview(held) as view:
                    frame = bytes(view[begin + _LENGTH.size : end])
                begin = end
                yield frame
        finally:
            del held[:begin]
