"""The content of one simulated file: what readers see, what is durable, and the changes between the two."""

from random import Random

SECTOR_BYTES = 512  # what a drive writes whole, at best
BLOCK_BYTES = 4096  # what the file system allocates

_Write = tuple[int, bytes]  # position and data
_Truncation = int  # the new length


class Inode:
    """A file's content, apart from its names and handles.

    `durable` with all of `_unsynced` applied in order is `content`, except after a failed sync, which forgets changes
    that readers go on seeing.
    """

    __slots__ = ("_allocated", "_unsynced", "content", "durable", "linked")

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = bytearray()
        self.linked = True  # has a name
        self._unsynced: list[_Write | _Truncation] = []
        self._allocated = bytearray()  # one byte a block: 1 when it takes space, 0 for a hole

    @property
    def space_bytes(self) -> int:
        """What the file takes of the disk, with one block for the file itself."""
        return BLOCK_BYTES * (1 + self._allocated.count(1))

    def write(self, position: int, data: bytes) -> None:
        if not data:
            return
        first, end = position // BLOCK_BYTES, _blocks(position + len(data))
        if first > len(self._allocated):
            self._allocated.extend(bytes(first - len(self._allocated)))
        self._allocated[first:end] = b"\x01" * (end - first)
        _overwrite(self.content, position, data)
        self._unsynced.append((position, data))

    def truncate(self, length: int) -> int:
        """Cut or extend; returns the bytes of space this freed. An extension is a hole and takes none."""
        before = self._allocated.count(1)
        del self._allocated[_blocks(length) :]
        _resize(self.content, length)
        self._unsynced.append(length)
        return BLOCK_BYTES * (before - self._allocated.count(1))

    def sync(self) -> None:
        for change in self._unsynced:
            self._make_durable(change)
        self._unsynced.clear()

    def sync_last(self) -> None:
        """Only the newest write becomes durable, and with it a length that it needs."""
        if self._unsynced:
            self._make_durable(self._unsynced.pop())

    def fail_sync(self, rng: Random) -> None:
        """The kernel reports the error once and forgets: part is durable, and no later sync will write the rest."""
        self._keep_some(rng)

    def crash(self, rng: Random) -> None:
        """Only the durable content is left, with whatever of the unsynced changes happened to reach the disk."""
        self._keep_some(rng)
        self.content = bytearray(self.durable)
        self.linked = True
        blocks = _blocks(len(self.content))
        del self._allocated[blocks:]
        self._allocated.extend(b"\x01" * (blocks - len(self._allocated)))

    # ---- space

    def space_needed(self, position: int, length: int) -> int:
        """Bytes of new blocks that a write here takes; 0 over blocks that exist already."""
        if not length:
            return 0
        first, end = position // BLOCK_BYTES, _blocks(position + length)
        missing = max(0, end - max(first, len(self._allocated)))
        return BLOCK_BYTES * (missing + self._allocated.count(0, first, end))

    def length_that_fits(self, position: int, length: int, free_bytes: float) -> int:
        """How much of a write can be done before it needs a block too many."""
        while length and self.space_needed(position, length) > free_bytes:
            last_block = _blocks(position + length) - 1
            length = max(0, last_block * BLOCK_BYTES - position)
        return length

    # ---- what becomes durable

    def _make_durable(self, change: _Write | _Truncation) -> None:
        if isinstance(change, int):
            _resize(self.durable, change)
        else:
            _overwrite(self.durable, *change)

    def _keep_some(self, rng: Random) -> None:
        if not self._unsynced:
            return
        kept = rng.choice((0.0, 0.5, 0.9, 1.0))
        for change in self._unsynced:
            if kept == 1.0 or (isinstance(change, int) and rng.random() < kept):
                self._make_durable(change)
            elif not isinstance(change, int):
                self._keep_some_sectors(*change, kept, rng)
        self._unsynced.clear()

    def _keep_some_sectors(self, position: int, data: bytes, kept: float, rng: Random) -> None:
        start = 0
        while start < len(data):
            end = min(len(data), start + SECTOR_BYTES - (position + start) % SECTOR_BYTES)
            chance = rng.random()
            if chance < kept:
                _overwrite(self.durable, position + start, data[start:end])
            elif chance < kept + (1 - kept) / 4:  # torn
                _overwrite(self.durable, position + start, data[start : rng.randint(start, end)])
            elif chance < kept + (1 - kept) / 2 and len(self.durable) < position + end:
                _resize(self.durable, position + end)  # the new length got there, the data did not
            start = end


def _blocks(length: int) -> int:
    return -(-length // BLOCK_BYTES)


def _resize(content: bytearray, length: int) -> None:
    if length < len(content):
        del content[length:]
    else:
        content.extend(bytes(length - len(content)))


def _overwrite(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
