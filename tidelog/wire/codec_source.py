"""What both code generators share: source lines with indentation, names for constants, variable-length integers.

A generated function sees nothing but its arguments and the names that its `Source` bound, so two functions never share
state. Generated source holds only names and numbers from our own tables, never anything from the network.
"""

import linecache
import struct
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from tidelog.wire.codec_fields import Buffer
from tidelog.wire.errors import ProtocolError

UVARINT_BYTES_MAX = 5  # a 32-bit value, seven bits a byte


class Source:
    """The growing source of one function, and the constants it refers to."""

    def __init__(self, bound: dict[str, Any]) -> None:
        self._lines: list[str] = []
        self._indent = 0
        self._bound = dict(bound)
        self._fresh = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._indent + text)

    @contextmanager
    def block(self, header: str) -> Generator[None]:
        self.line(header)
        self._indent += 1
        yield
        self._indent -= 1

    def bind(self, prefix: str, value: object) -> str:
        """A name by which the generated code reaches `value`."""
        name = f"{prefix}_{len(self._bound)}"
        self._bound[name] = value
        return name

    def fresh(self, prefix: str) -> str:
        """A local variable that nothing else in the function uses."""
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def function(self, name: str, title: str) -> Callable[..., Any]:
        """Compile what was written. Tracebacks show `title` as the file, and the generated lines."""
        lines = [line + "\n" for line in self._lines]
        source = "".join(lines)
        linecache.cache[f"<{title}>"] = (len(source), None, lines, f"<{title}>")
        exec(compile(source, f"<{title}>", "exec"), self._bound)
        made: Callable[..., Any] = self._bound[name]
        return made


def packer(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)


def encode_uvarint(value: int) -> bytes:
    """An unsigned integer, seven bits a byte, lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """The integer at `position` and where it ends. Raises IndexError when the input ends within it."""
    value = 0
    for index in range(UVARINT_BYTES_MAX):
        byte = data[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                break
            return value, position + index + 1
    raise ProtocolError(f"a variable-length integer of more than 32 bits at byte {position}")


def skip_tags(data: Buffer, position: int, end: int) -> int:
    """Where the tag section that begins at `position` ends; none of its fields is known to us."""
    count, position = decode_uvarint(data, position)
    if count * 2 > end - position:
        raise bad_length("tagged fields", count, end - position)
    for _ in range(count):
        _tag, position = decode_uvarint(data, position)
        size, position = decode_uvarint(data, position)
        if size > end - position:
            raise bad_length("tagged field", size, end - position)
        position += size
    return position


def bad_length(what: str, length: int, left: int) -> ProtocolError:
    return ProtocolError(f"{what}: length {length} with {left} bytes left")
