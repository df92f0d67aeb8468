"""The test master's binlog: items in files, with the positions a real master would give them; and the file format.

A file `write2file<n>` is made of 64 KiB blocks. An item lies in fragments, each with an 8-byte header (length 3 bytes,
unix time 4 bytes, kind 1 byte; little endian); a fragment never crosses a block, and a rest of fewer than 8 bytes is
zeros. A file rolls when its size already exceeds `file_bytes` as the next item comes; the header of that item still
names the end of the old file.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tidelog.pikiwi.binlog import BinlogItem, encode_item
from tidelog.pikiwi.position import ZERO, Position

BLOCK_BYTES = 64 << 10
FRAGMENT_HEADER_BYTES = 8
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4
PADDING = 6  # written by a slave's full sync


def resp(*arguments: bytes) -> bytes:
    """A command as it stands in an item."""
    return b"*%d\r\n" % len(arguments) + b"".join(b"$%d\r\n%b\r\n" % (len(a), a) for a in arguments)


def fragments(offset: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Where an item of `length` bytes that begins at `offset` lies: (offset of the fragment, its length, its kind)."""
    left = length
    first = True
    while True:
        room = BLOCK_BYTES - offset % BLOCK_BYTES
        if room < FRAGMENT_HEADER_BYTES:
            offset += room
            room = BLOCK_BYTES
        size = min(left, room - FRAGMENT_HEADER_BYTES)
        left -= size
        kind = (FULL if first else LAST) if left == 0 else (FIRST if first else MIDDLE)
        yield offset, size, kind
        offset += FRAGMENT_HEADER_BYTES + size
        first = False
        if left == 0:
            return


def end_of(offset: int, length: int) -> int:
    """The offset after an item of `length` bytes that begins at `offset`."""
    last_at, last_length, _ = list(fragments(offset, length))[-1]
    return last_at + FRAGMENT_HEADER_BYTES + last_length


@dataclass
class BinlogFile:
    ends: list[int] = field(default_factory=list)
    items: list[bytes] = field(default_factory=list)
    begins_at: int = 0  # items before it are padding: the place a promoted slave's own binlog begins


class Binlog:
    """One database's binlog. `begin`: where a promoted slave's begins; all before it in its file is padding."""

    def __init__(self, file_bytes: int = 100 << 20, begin: Position = ZERO) -> None:
        self.file_bytes = file_bytes
        self.files: dict[int, BinlogFile] = {begin.filenum: BinlogFile(begins_at=begin.offset)}
        self.end = begin
        self.logic_id = 0

    def append(self, content: bytes, exec_time_s: int) -> Position:
        """One command; its end."""
        self.logic_id += 1
        data = encode_item(BinlogItem(exec_time_s, 0, self.logic_id, self.end, content))
        filenum, offset = self.end
        if offset > self.file_bytes:
            filenum, offset = filenum + 1, 0
            self.files[filenum] = BinlogFile()
        offset = end_of(offset, len(data))
        file = self.files[filenum]
        file.ends.append(offset)
        file.items.append(data)
        self.end = Position(filenum, offset)
        return self.end

    @property
    def first_filenum(self) -> int:
        return min(self.files)

    def is_boundary(self, position: Position) -> bool:
        """Whether a reader can begin there; offset 0 is taken for one even where padding is."""
        file = self.files[position.filenum]
        if position.offset in (0, file.begins_at):
            return True
        at = bisect_left(file.ends, position.offset)
        return at < len(file.ends) and file.ends[at] == position.offset

    def meets_padding(self, position: Position) -> bool:
        return position.offset < self.files[position.filenum].begins_at

    def after(self, position: Position, limit: int) -> list[tuple[Position, bytes]]:
        """Up to `limit` items whose ends are behind `position`."""
        found: list[tuple[Position, bytes]] = []
        filenum, offset = position
        while len(found) < limit and filenum in self.files:
            file = self.files[filenum]
            at = bisect_right(file.ends, offset)
            take = range(at, min(len(file.ends), at + limit - len(found)))
            found += [(Position(filenum, file.ends[i]), file.items[i]) for i in take]
            filenum, offset = filenum + 1, 0
        return found

    def all_items(self) -> list[tuple[Position, bytes]]:
        return self.after(Position(self.first_filenum, 0), 1 << 60)

    def purge(self, keep_files: int, pinned_from: int | None) -> None:
        """The oldest files go until `keep_files` are left; not `pinned_from` and those after it."""
        for filenum in sorted(self.files)[: max(0, len(self.files) - keep_files)]:
            if pinned_from is not None and filenum >= pinned_from:
                return
            del self.files[filenum]


# --- files -----------------------------------------------------------------------------------------------------------


def write_file(items: Sequence[bytes], time_s: int = 0) -> bytes:
    """A whole binlog file."""
    content = bytearray()
    for item in items:
        taken = 0
        for at, size, kind in fragments(len(content), len(item)):
            content += bytes(at - len(content))
            content += struct.pack("<I", size)[:3] + struct.pack("<IB", time_s, kind) + item[taken : taken + size]
            taken += size
    return bytes(content)


def read_file(path: Path, filenum: int) -> Iterator[tuple[Position, bytes]]:
    """The items of a binlog file, with their ends; stops at the zeros of a preallocated file or where it is cut."""
    content = path.read_bytes()
    offset = 0
    item = b""
    while True:
        room = BLOCK_BYTES - offset % BLOCK_BYTES
        if room < FRAGMENT_HEADER_BYTES:
            offset += room
        if offset + FRAGMENT_HEADER_BYTES > len(content):
            return
        length = int.from_bytes(content[offset : offset + 3], "little")
        kind = content[offset + 7]
        end = offset + FRAGMENT_HEADER_BYTES + length
        if kind == 0 or end > len(content):
            return
        item += content[offset + FRAGMENT_HEADER_BYTES : end]
        offset = end
        if kind in (FULL, LAST):
            yield Position(filenum, offset), item
        if kind in (FULL, LAST, PADDING):
            item = b""
