"""The lines of stdin, as they come, with a bound on what is held of them."""

import os
import select
from collections.abc import Callable, Iterator

LINE_BYTES_MAX = 32 << 20
READ_BYTES = 1 << 16
IDLE_S = 0.1


class LineTooLong(Exception):
    """A line without end: memory has one."""


def read_lines(descriptor: int, idle: Callable[[], bool]) -> Iterator[bytes]:
    """Lines without their newline; bytes after the last newline are a line too.

    While nothing comes, `idle` is called every `IDLE_S`; when it says no, reading ends.
    """
    parts: list[bytes] = []
    size = 0
    while data := _read(descriptor, idle):
        first, *others = data.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > LINE_BYTES_MAX:
            raise LineTooLong(f"it is longer than {LINE_BYTES_MAX} bytes")
        for line in others:
            yield b"".join(parts)
            parts = [line]
            size = len(line)
    if size:
        yield b"".join(parts)


def _read(descriptor: int, idle: Callable[[], bool]) -> bytes:
    while not select.select([descriptor], [], [], IDLE_S)[0]:
        if not idle():
            return b""
    return os.read(descriptor, READ_BYTES)
