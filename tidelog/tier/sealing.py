"""How chunks of a segment lie in the store: as they are, compressed, encrypted, or both.

A segment's object is its chunks, each sealed on its own, one behind the other; so any byte range is a few chunks. A
sealed chunk is compressed first (zstd), then encrypted (AES-256-GCM):

    key          drawn at random for each segment, and used for nothing else
    nonce        the chunk's number, 12 bytes: never used twice under one key
    bound to     the segment's id and the chunk's number, so that chunks can be neither swapped nor moved elsewhere

The segment's key is kept beside it, wrapped by a key of the key ring (AES-256-GCM with a random nonce, bound to the
segment's id). The ring's first key wraps new segments; older ones open what they wrapped. Rotation: put a new key
first.

The seal of a segment, as bytes: version 1 | flags 1 (1 zstd, 2 encrypted) | and when encrypted: length of the key's
name 1 | name | nonce 12 | wrapped key 48.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import zstandard

from tidelog.tier.errors import LayoutError, ObjectDamagedError, TierError, UnknownKeyError

if TYPE_CHECKING:
    from tidelog.tier.cipher import Cipher

FORMAT = 1
ZSTD, ENCRYPTED = 1, 2
ZSTD_LEVEL = 3
KEY_BYTES = 32
NONCE_BYTES = 12
WRAPPED_BYTES = KEY_BYTES + 16
NAME_BYTES_MAX = 64

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys by name. The first wraps what is new."""

    keys: Mapping[str, bytes]

    def __post_init__(self) -> None:
        for name, key in self.keys.items():
            if len(key) != KEY_BYTES:
                raise TierError(f"key {name!r} has {len(key)} bytes; it must have {KEY_BYTES}")
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
                raise TierError(f"the name of key {name!r} must have 1 to {NAME_BYTES_MAX} bytes")

    @property
    def active(self) -> str | None:
        return next(iter(self.keys), None)

    @classmethod
    def load(cls, path: str) -> "KeyRing":
        """From a file with a line `NAME HEX` a key, the one to use for new segments first; `#` begins a comment."""
        try:
            with open(path, encoding="utf-8") as file:
                lines = [line.split("#")[0].split() for line in file]
        except OSError as error:
            raise TierError(f"the key ring {path} cannot be read: {error.strerror}") from None
        keys: dict[str, bytes] = {}
        for words in filter(None, lines):
            try:
                name, text = words
                keys[name] = bytes.fromhex(text)
            except ValueError:
                raise TierError(f"the key ring {path}: write NAME and 64 hex digits on each line") from None
        if not keys:
            raise TierError(f"the key ring {path} is empty")
        return cls(keys)


class Seal:
    """How one segment is sealed."""

    def __init__(self, segment: UUID, flags: int, key: bytes | None, header: bytes) -> None:
        self._segment = segment
        self._flags = flags
        self._cipher = None if key is None else _cipher(key)
        self.header = header
        """What must be kept to open it again."""

    @property
    def plain(self) -> bool:
        return not self._flags

    @classmethod
    def new(cls, segment: UUID, *, compress: bool, ring: KeyRing | None) -> "Seal":
        flags = (ZSTD if compress else 0) | (ENCRYPTED if ring is not None else 0)
        header = bytes((FORMAT, flags))
        if ring is None:
            return cls(segment, flags, None, header)
        name = ring.active
        if name is None:
            raise TierError("the key ring holds no key")
        key, nonce = os.urandom(KEY_BYTES), os.urandom(NONCE_BYTES)
        wrapped = _cipher(ring.keys[name]).encrypt(nonce, key, segment.bytes)
        header += bytes((len(name.encode()),)) + name.encode() + nonce + wrapped
        return cls(segment, flags, key, header)

    @classmethod
    def open(cls, segment: UUID, header: Buffer, ring: KeyRing | None) -> "Seal":
        header = bytes(header)
        if len(header) < 2 or header[0] != FORMAT or header[1] & ~(ZSTD | ENCRYPTED):
            raise LayoutError(f"segment {segment}: a seal of an unknown form")
        flags = header[1]
        if not flags & ENCRYPTED:
            return cls(segment, flags, None, header)
        name_end = 3 + header[2]
        name = header[3:name_end].decode(errors="replace")
        nonce = header[name_end : name_end + NONCE_BYTES]
        wrapped = header[name_end + NONCE_BYTES :]
        if len(wrapped) != WRAPPED_BYTES:
            raise LayoutError(f"segment {segment}: a seal that is cut short")
        if ring is None or name not in ring.keys:
            raise UnknownKeyError(f"segment {segment} is encrypted under key {name!r}, which the key ring lacks")
        key = _cipher(ring.keys[name]).decrypt(nonce, wrapped, segment.bytes)
        if key is None:
            raise ObjectDamagedError(f"segment {segment}: its key cannot be unwrapped with {name!r}")
        return cls(segment, flags, key, header)

    def close_chunk(self, number: int, data: Buffer) -> Buffer:
        """The chunk as it goes to the store."""
        if self._flags & ZSTD:
            data = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
        if self._cipher is not None:
            data = self._cipher.encrypt(*self._place(number, data))
        return data

    def open_chunk(self, number: int, data: Buffer, size: int) -> Buffer:
        """The chunk as it was, of so many bytes."""
        if self._cipher is not None:
            opened = self._cipher.decrypt(*self._place(number, data))
            if opened is None:
                raise ObjectDamagedError(f"segment {self._segment}, chunk {number}: not what was encrypted")
            data = opened
        if self._flags & ZSTD:
            try:
                data = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            except zstandard.ZstdError as error:
                raise ObjectDamagedError(f"segment {self._segment}, chunk {number}: {error}") from None
        if len(data) != size:
            raise ObjectDamagedError(f"segment {self._segment}, chunk {number}: {len(data)} bytes instead of {size}")
        return data

    def _place(self, number: int, data: Buffer) -> tuple[bytes, Buffer, bytes]:
        nonce = number.to_bytes(NONCE_BYTES, "big")
        return nonce, data, self._segment.bytes + nonce


def _cipher(key: bytes) -> "Cipher":
    from tidelog.tier.cipher import Cipher  # noqa: PLC0415 - see there

    return Cipher(key)
