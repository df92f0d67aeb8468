"""One sorted file (SST, block-based table, format versions 2 to 6), read block by block.

Layout: data blocks, meta blocks (properties, range tombstones, filters), the index, and a footer of 53 bytes. A block
is followed by its compression type (u8) and a checksum (u32) over both. A block of rows is a run of `shared | unshared
| value length` (varints), the unshared end of the key and the value; each key takes `shared` bytes from the one before.
The index is such a block too: for each data block a key that is not smaller than its last one, and where it lies; from
format version 4 on it leaves out what can be told from the entry before. A two-level index has a block of index blocks.

Inside a file a row's key ends in 8 bytes: sequence number (56 bits) and kind (8 bits).

Memory: one block of the file, and its index once somebody seeks. Cost: a row is about a microsecond.
"""

import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import cramjam
import crc32c
import lz4.block
import xxhash
import zstandard

from tidelog.pikiwi.dump.rocks.coding import Malformed, sized, varint, zigzag
from tidelog.pikiwi.dump.rocks.records import mask
from tidelog.pikiwi.errors import DumpError

FORMAT_VERSIONS: Final = range(2, 7)
BLOCK_BYTES_MAX: Final = 1 << 30  # a single value may be 512 MiB; more is a damaged length

_FOOTER = struct.Struct("<B40sIQ")
_MAGIC = 0x88E241B785F4CFF7
_PLACED_CHECKSUMS = 6  # the format version whose footer is checked too, and whose index is among the meta blocks
_EXTENDED = struct.Struct("<4sIII24x")  # in place of the handles: mark, checksum, base of checksums, size of the metas
_EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
_FOOTER_CHECKSUM = slice(5, 9)
_TRAILER = struct.Struct("<BI")
_U32 = struct.Struct("<I")
_HASH_INDEX = 1 << 31  # in a block's count of restart points: a hash index of u8 buckets follows them
_ALL_ONES = 0xFFFFFFFF
_LAST_BYTE = 0x6B9083D9  # folds the compression type into an XXH3 checksum
_INDEX_TYPES = range(4)
_TWO_LEVEL, _WITH_FIRST_KEY = 2, 3
_SEQUENCE_BYTES = 8

_PROPERTIES, _RANGE_TOMBSTONES, _DICTIONARY = b"rocksdb.properties", b"rocksdb.range_del", b"rocksdb.compression_dict"
_INDEX = b"rocksdb.index"
_INDEX_TYPE = b"rocksdb.block.based.table.index.type"
_INDEX_USER_KEYS = b"rocksdb.index.key.is.user.key"
_INDEX_DELTAS = b"rocksdb.index.value.is.delta.encoded"
_COMPARATOR = b"rocksdb.comparator"
_INGESTED = b"rocksdb.external_sst_file.version"


class UnknownFormat(DumpError):
    """A table of a format that came after this reader."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a block lies, without its trailer."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """One data block: no row of it sorts after `last` (a key without sequence number)."""

    last: bytes
    handle: Handle


class Table:
    """An open file. Not thread-safe; close it."""

    def __init__(self, path: Path, comparator: str) -> None:
        self.path = path
        self._base = 0  # of checksums that depend on where a block lies; 0: they do not
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise DumpError(f"{path} is missing; fetch the dump again") from error
        try:
            self._open(comparator)
        except BaseException:
            self.close()
            raise

    def _open(self, comparator: str) -> None:
        try:
            metas = self._read_footer()
            found = dict(entries(self.block(metas[_PROPERTIES]))) if _PROPERTIES in metas else {}
        except Malformed as error:
            raise self._damaged(error) from error
        self._tombstones = metas.get(_RANGE_TOMBSTONES)
        self._index_type = int.from_bytes(found.get(_INDEX_TYPE, b"\0"), "little")
        if self._index_type not in _INDEX_TYPES:
            raise DumpError(f"{self.path}: an index of type {self._index_type}, which this reader lacks")
        self._index_user_keys = found.get(_INDEX_USER_KEYS, b"\0") != b"\0"
        self._index_deltas = found.get(_INDEX_DELTAS, b"\0") != b"\0"
        if _DICTIONARY in metas:
            raise DumpError(f"{self.path} is compressed with a dictionary, which this reader lacks")
        if _INGESTED in found:
            raise DumpError(f"{self.path} was ingested: its rows take their age from outside, which this reader lacks")
        if (written := found.get(_COMPARATOR, comparator.encode())) != comparator.encode():
            raise DumpError(
                f"{self.path} is sorted by {written.decode(errors='replace')}, its database by {comparator}"
            )

    def _read_footer(self) -> dict[bytes, Handle]:
        """The meta blocks by name; leaves the kind of checksum and where the index is."""
        size = os.fstat(self._descriptor).st_size
        offset = size - _FOOTER.size
        if offset < 0:
            raise DumpError(f"{self.path}: {size:,} bytes are no table; fetch the dump again")
        footer = os.pread(self._descriptor, _FOOTER.size, offset)
        self._checksum, handles, version, magic = _FOOTER.unpack(footer)
        if magic != _MAGIC:
            raise DumpError(f"{self.path} does not end as a block-based table does; fetch the dump again")
        if version not in FORMAT_VERSIONS:
            raise UnknownFormat(
                f"{self.path}: table format_version {version}, and this reader knows {FORMAT_VERSIONS[0]} to "
                f"{FORMAT_VERSIONS[-1]}"
            )
        if version < _PLACED_CHECKSUMS:
            meta, at = _handle(handles, 0)
            self._index, _ = _handle(handles, at)
            return self._metas(meta)
        extended, stored, self._base, meta_size = _EXTENDED.unpack(handles)
        unsigned = footer[: _FOOTER_CHECKSUM.start] + bytes(4) + footer[_FOOTER_CHECKSUM.stop :]
        if extended != _EXTENDED_MAGIC or self._sum(unsigned, len(unsigned) - 1, offset) != stored:
            raise DumpError(f"{self.path}: the checksum of its footer is wrong; fetch the dump again")
        metas = self._metas(Handle(offset - _TRAILER.size - meta_size, meta_size))
        if _INDEX not in metas:
            raise Malformed("it has no index")
        self._index = metas[_INDEX]
        return metas

    def _metas(self, handle: Handle) -> dict[bytes, Handle]:
        return {name: _handle(value, 0)[0] for name, value in entries(self.block(handle))}

    def _sum(self, data: bytes, size: int, offset: int) -> int:
        """The checksum of `size` bytes and the one after them that lie at `offset`."""
        check = _CHECKSUMS.get(self._checksum)
        if check is None:
            raise DumpError(f"{self.path}: checksums of kind {self._checksum}, which this reader lacks")
        if not self._base:
            return check(data, size)
        return (check(data, size) + (self._base ^ (offset + (offset >> 32) & _ALL_ONES))) & _ALL_ONES

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def block(self, handle: Handle) -> bytes:
        """A block's content, checked and decompressed."""
        if handle.size > BLOCK_BYTES_MAX:
            raise DumpError(f"{self.path}: a block of {handle.size:,} bytes at {handle.offset:,}; fetch the dump again")
        data = os.pread(self._descriptor, handle.size + _TRAILER.size, handle.offset)
        if len(data) < handle.size + _TRAILER.size:
            raise DumpError(f"{self.path}: the block at {handle.offset:,} is cut short; fetch the dump again")
        compression, stored = _TRAILER.unpack_from(data, handle.size)
        if self._sum(data, handle.size, handle.offset) != stored:
            raise DumpError(
                f"{self.path}: the checksum of the block at {handle.offset:,} is wrong; fetch the dump again"
            )
        if not compression:
            return data[: handle.size]
        decompress = _DECOMPRESS.get(compression)
        if decompress is None:
            raise DumpError(f"{self.path}: compression of kind {compression}, which this reader lacks")
        try:
            return decompress(data[: handle.size])
        except (Malformed, *_DECOMPRESSION_ERRORS) as error:
            raise self._damaged(error, handle) from error

    def blocks(self) -> Iterator[BlockEntry]:
        """The data blocks in order, read from the index as they are asked for."""
        try:
            if self._index_type == _TWO_LEVEL:
                for part in self._index_entries(self._index):
                    yield from self._index_entries(part.handle)
            else:
                yield from self._index_entries(self._index)
        except Malformed as error:
            raise self._damaged(error) from error

    @cached_property
    def _index_list(self) -> list[BlockEntry]:
        return list(self.blocks())

    def row_blocks(self, order: Callable[[bytes], Any], lower: Any = None) -> Iterator[list[tuple[bytes, bytes]]]:
        """Keys (with sequence number and kind) and values, block by block, from the one on that can hold `lower`."""
        if lower is None:
            begin = self.blocks()
        else:
            index = self._index_list
            begin = iter(index[bisect_left(index, lower, key=lambda entry: order(entry.last)) :])
        for entry in begin:
            try:
                rows = entries(self.block(entry.handle))
            except Malformed as error:
                raise self._damaged(error, entry.handle) from error
            yield rows

    def tombstones(self) -> Iterator[tuple[bytes, bytes]]:
        """Deleted ranges: the first key (with sequence number and kind) and the first key after the range."""
        if self._tombstones is not None:
            try:
                yield from entries(self.block(self._tombstones))
            except Malformed as error:
                raise self._damaged(error, self._tombstones) from error

    def _index_entries(self, handle: Handle) -> Iterator[BlockEntry]:
        block = self.block(handle)
        end = _entries_end(block)
        cut = None if self._index_user_keys else -_SEQUENCE_BYTES
        at = 0
        key = b""
        offset = size = 0
        while at < end:
            shared, at = varint(block, at)
            unshared, at = varint(block, at)
            if not self._index_deltas:
                _, at = varint(block, at)
            key = key[:shared] + block[at : at + unshared]
            at += unshared
            if self._index_deltas and shared:
                change, at = varint(block, at)
                offset += size + _TRAILER.size
                size += zigzag(change)
            else:
                offset, at = varint(block, at)
                size, at = varint(block, at)
            if self._index_type == _WITH_FIRST_KEY:
                _, at = sized(block, at)
            yield BlockEntry(key[:cut], Handle(offset, size))
        if at != end:
            raise Malformed(f"the index block at {handle.offset:,} ends inside an entry")

    def _damaged(self, error: Exception, handle: Handle | None = None) -> DumpError:
        where = "" if handle is None else f" in the block at {handle.offset:,}"
        return DumpError(f"{self.path}: cannot be read{where} ({error}); fetch the dump again")


def entries(block: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of a block, in order. The hottest loop of the reader: short lengths take the first branch."""
    found: list[tuple[bytes, bytes]] = []
    end = _entries_end(block)
    at = 0
    key = b""
    while at < end:
        shared, unshared, length = block[at], block[at + 1], block[at + 2]
        if shared | unshared | length < 0x80:
            at += 3
        else:
            shared, at = varint(block, at)
            unshared, at = varint(block, at)
            length, at = varint(block, at)
        key = key[:shared] + block[at : at + unshared]
        at += unshared
        found.append((key, block[at : at + length]))
        at += length
    if at != end:
        raise Malformed("the block ends inside a row")
    return found


def _entries_end(block: bytes) -> int:
    """Where a block's restart points begin."""
    tail = len(block) - _U32.size
    if tail < 0:
        raise Malformed("a block without its count of restart points")
    (restarts,) = _U32.unpack_from(block, tail)
    if restarts & _HASH_INDEX:
        restarts &= ~_HASH_INDEX
        tail -= 2
        if tail < 0:
            raise Malformed("a hash index without its count of buckets")
        tail -= int.from_bytes(block[tail : tail + 2], "little")
    end = tail - _U32.size * restarts
    if end < 0:
        raise Malformed(f"{restarts:,} restart points do not fit in a block of {len(block):,} bytes")
    return end


def _handle(data: bytes, at: int) -> tuple[Handle, int]:
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return Handle(offset, size), at


# Checksums of a block and the compression type after it, by the footer's number; `size` is the block's alone.


def _crc32c(data: bytes, size: int) -> int:
    return mask(crc32c.crc32c(data[: size + 1]))


def _xxh3(data: bytes, size: int) -> int:
    return (xxhash.xxh3_64_intdigest(data[:size]) & _ALL_ONES) ^ (data[size] * _LAST_BYTE & _ALL_ONES)


_CHECKSUMS: dict[int, Callable[[bytes, int], int]] = {
    1: _crc32c,
    2: lambda data, size: xxhash.xxh32_intdigest(data[: size + 1]),
    3: lambda data, size: xxhash.xxh64_intdigest(data[: size + 1]) & _ALL_ONES,
    4: _xxh3,
}


# Decompressors by the trailer's number. All but snappy have the plain size before the data.


def _plain_size(data: bytes) -> tuple[int, int]:
    size, at = varint(data, 0)
    if size > BLOCK_BYTES_MAX:
        raise Malformed(f"it would have {size:,} bytes")
    return size, at


def _snappy(data: bytes) -> bytes:
    size, _ = varint(data, 0)
    if size > BLOCK_BYTES_MAX:
        raise Malformed(f"it would have {size:,} bytes")
    return bytes(cramjam.snappy.decompress_raw(data))


def _zlib(data: bytes) -> bytes:
    size, at = _plain_size(data)
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data[at:], max(1, size))


def _lz4(data: bytes) -> bytes:
    size, at = _plain_size(data)
    return lz4.block.decompress(data[at:], uncompressed_size=size)


def _zstd(data: bytes) -> bytes:
    size, at = _plain_size(data)
    return zstandard.ZstdDecompressor().decompress(data[at:], max_output_size=size)


_DECOMPRESS: dict[int, Callable[[bytes], bytes]] = {1: _snappy, 2: _zlib, 4: _lz4, 5: _lz4, 7: _zstd}
_DECOMPRESSION_ERRORS = (cramjam.DecompressionError, zlib.error, lz4.block.LZ4BlockError, zstandard.ZstdError)
