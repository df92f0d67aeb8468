"""RocksDB's variable-length integers and length-prefixed byte strings, as its files hold them."""

VARINT_BYTES_MAX = 10  # of 64 bits


class Malformed(ValueError):
    """Bytes that are not what they should be; whoever knows the file says where."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next thing begins."""
    value = shift = 0
    for position in range(at, min(len(data), at + VARINT_BYTES_MAX)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise Malformed(f"no number at byte {at:,}")


def sized(data: bytes, at: int) -> tuple[bytes, int]:
    """The byte string at `at`, its length before it, and where the next thing begins."""
    length, begin = varint(data, at)
    end = begin + length
    if end > len(data):
        raise Malformed(f"{length:,} bytes are announced at byte {at:,} and {len(data) - begin:,} are there")
    return data[begin:end], end


def zigzag(value: int) -> int:
    """A signed number out of the unsigned one that stands for it."""
    return (value >> 1) ^ -(value & 1)
