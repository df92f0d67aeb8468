"""Commands on the binlog are RESP arrays of bulk strings: `*2\\r\\n$3\\r\\nDEL\\r\\n$1\\r\\nk\\r\\n`.

Binary safe: an argument may hold any bytes, CR and LF among them. Nothing is trusted: every length is checked against
what is there, bytes left over are an error, and a command may not pass its limits. What `parse_command` accepts,
`encode_command` writes back byte for byte.

Cost: one split of the bytes and two passes over the arguments in C, about 1 µs for a command of three arguments. The
fast way is exact. A command of n arguments without CRLF inside them splits into 2n + 2 parts, and each CRLF inside an
argument adds one; so with that number of parts, and the lengths being right, the split has found the arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.pikiwi.errors import RespError

_CRLF = b"\r\n"
_DIGITS_MAX = 10  # of a count or a length; more is no number that could be meant


@dataclass(frozen=True, slots=True)
class RespLimits:
    """What one command may have. The defaults are what a master itself accepts from its clients."""

    arguments_max: int = 1024 * 1024
    argument_bytes_max: int = 512 * 1024 * 1024
    command_bytes_max: int = 512 * 1024 * 1024

    def __post_init__(self) -> None:
        if min(self.arguments_max, self.argument_bytes_max, self.command_bytes_max) < 1:
            raise ValueError(f"a limit below 1 lets no command through: {self}")


DEFAULT_LIMITS = RespLimits()

_SHORT = 4096  # lengths and counts whose text is looked up instead of parsed
_LENGTH_OF = {b"$%d" % length: length for length in range(_SHORT)}
_COUNT_OF = {b"*%d" % count: count for count in range(1, _SHORT)}
_length_of = _LENGTH_OF.get


def parse_command(data: bytes, limits: RespLimits = DEFAULT_LIMITS) -> list[bytes]:
    """The arguments, the command's name first; RespError when `data` is anything but one whole command."""
    parts = data.split(_CRLF)
    count = _COUNT_OF.get(parts[0])
    if (
        count is not None
        and len(parts) == 2 * count + 2
        and not parts[-1]
        and count <= limits.arguments_max
        and len(data) <= limits.command_bytes_max
    ):
        arguments = parts[2::2]
        lengths = list(map(len, arguments))
        fit = len(data) <= limits.argument_bytes_max or max(lengths) <= limits.argument_bytes_max
        if fit and lengths == list(map(_length_of, parts[1:-1:2])):
            return arguments
    return _parse_by_lengths(data, limits)


def encode_command(arguments: Sequence[bytes]) -> bytes:
    out = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        out += (b"$%d\r\n" % len(argument), argument, _CRLF)
    return b"".join(out)


def _parse_by_lengths(data: bytes, limits: RespLimits) -> list[bytes]:
    """The same for commands with CRLF inside arguments, long arguments or many of them, and for all that is wrong."""
    if len(data) > limits.command_bytes_max:
        raise RespError(f"a command of {len(data):,} bytes; at most {limits.command_bytes_max:,} are allowed")
    count, at = _number_line(data, 0, b"*", "the number of arguments")
    if count < 1:
        raise RespError("a command without arguments: it has no name")
    if count > limits.arguments_max:
        raise RespError(f"a command of {count:,} arguments; at most {limits.arguments_max:,} are allowed")
    arguments: list[bytes] = []
    for number in range(count):
        length, at = _number_line(data, at, b"$", f"the length of argument {number}")
        if length > limits.argument_bytes_max:
            raise RespError(
                f"argument {number} has {length:,} bytes; at most {limits.argument_bytes_max:,} are allowed"
            )
        end = at + length
        if data[end : end + 2] != _CRLF:
            missing = end + 2 - len(data)
            why = f"{missing:,} bytes are missing" if missing > 0 else f"no CRLF at byte {end:,}"
            raise RespError(f"argument {number} should have {length:,} bytes and a CRLF, but {why}")
        arguments.append(data[at:end])
        at = end + 2
    if at != len(data):
        raise RespError(f"{len(data) - at:,} bytes follow the command, which ends at byte {at:,}")
    return arguments


def _number_line(data: bytes, at: int, mark: bytes, what: str) -> tuple[int, int]:
    """A mark, a number and a CRLF at `at`; the number and where the line after begins."""
    if data[at : at + 1] != mark:
        raise RespError(f"byte {at:,} should begin {what} with {mark.decode()}, found {data[at : at + 1]!r}")
    end = data.find(_CRLF, at + 1, at + 1 + _DIGITS_MAX + len(_CRLF))
    text = data[at + 1 : end] if end >= 0 else data[at + 1 : at + 1 + _DIGITS_MAX]
    if end < 0 or not text.isdigit() or (text[:1] == b"0" and len(text) > 1):
        raise RespError(f"{what} at byte {at + 1:,} is no number and CRLF: {text!r}")
    return int(text), end + 2
