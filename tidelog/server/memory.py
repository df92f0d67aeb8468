"""Memory that is used again: for what clients send, and for what is read from files on its way to them.

Fresh memory is what costs (docs/decisions 4): a page that was never touched has to be found and zeroed. So buffers stay
with the pool for ever, and the pool finds out by itself when nobody looks at one any more: a batch on its way to the
disk, to a follower or in the tail cache is a memoryview, and each view keeps a reference to its buffer. Nothing has to
be given back, so nothing can be given back too early or forgotten. Each is a mapping of its own: in the C library's
heap what is small and stays would keep what is large and unused from going back to the system.

`Inlet` is the memory all connections of a node receive into, one after the other. What a connection keeps (a produced
batch) stays where it arrived, and the next one receives behind it; what nobody keeps is overwritten. So a connection
that is idle, or sends small requests, owns no memory at all.

What is small (COPIED_BYTES_MAX) is copied out of where it arrived when it is kept. Else a few bytes that stay, such as
the last entries of a quiet stream, would keep a whole chunk each from being used again.
"""

import contextlib
import ctypes
import mmap
import sys
from collections import deque

from tidelog.pages import fresh_memory

CHUNK_BYTES = 4 << 20
COPIED_BYTES_MAX = 4 << 10
READ_BYTES_MIN = 64 << 10  # room that a read is offered at least; with less left, the next chunk is begun
SIZE_MIN = 64 << 10
LOOKS_MAX = 8  # buffers that are looked at before a new one is made
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of glibc's mallopt


def keep_freed(bytes_max: int, piece_bytes: int) -> None:
    """Have the C library keep what is freed, up to a bound, and reuse it for pieces of up to so many bytes.

    For what others allocate and this process lets go, such as chunks of an object: to give 12 MB back to the system,
    page by page, stopped the loop for two milliseconds, again and again. Nothing happens where there is no glibc.
    """
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_ARENA_MAX, 2)  # else the bound would be one for each of many threads
        mallopt(_M_MMAP_THRESHOLD, 2 * piece_bytes)  # a piece with what its owner and the library add
        mallopt(_M_TRIM_THRESHOLD, bytes_max)


def _references(queue: deque[mmap.mmap], place: int) -> int:
    """How many there are to a buffer of the queue."""
    return sys.getrefcount(queue[place])


# To a buffer that only its queue has. It is counted, and not known: how many are the question's own is the
# interpreter's business, and with one too many a buffer would be used again while somebody looks at it.
_UNUSED = _references(deque([mmap.mmap(-1, 1)]), 0)


class BufferPool:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffers: dict[int, deque[mmap.mmap]] = {}  # by size, least recently taken or looked at first
        self.bytes = 0
        """Of all buffers, used or not."""

    def take(self, size: int) -> mmap.mmap | None:
        """A buffer of at least `size` bytes, with anything in it; None when the pool has reached its bound.

        Some are let go at once, so the last is looked at first; most in the order of their use. One that is still in
        use goes to the end of the queue: a few that are held for long must not hide those behind them for ever.
        """
        rounded = max(SIZE_MIN, 1 << (size - 1).bit_length())
        queue = self._buffers.setdefault(rounded, deque())
        if queue and _references(queue, -1) == _UNUSED:
            return queue[-1]
        for _ in range(min(len(queue), LOOKS_MAX)):
            queue.rotate(-1)
            if _references(queue, -1) == _UNUSED:
                return queue[-1]
        if self.bytes + rounded > self._bytes_max:
            self.release_unused(0)
            if self.bytes + rounded > self._bytes_max:
                return None
        buffer = fresh_memory(rounded)
        queue.append(buffer)
        self.bytes += rounded
        return buffer

    def release_unused(self, bytes_kept: int) -> None:
        """Give unused buffers back to the system, all but some."""
        for size, queue in self._buffers.items():
            for _ in range(len(queue)):
                unused = _references(queue, 0) == _UNUSED
                if unused and bytes_kept < size:
                    self.bytes -= size
                    queue.popleft()
                    continue
                bytes_kept -= size if unused else 0
                queue.rotate(-1)

    @property
    def exhausted(self) -> bool:
        """There is no memory to receive into, and none can be made."""
        if self.bytes + CHUNK_BYTES <= self._bytes_max or self._has_unused_chunk():
            return False
        self.release_unused(0)
        return self.bytes + CHUNK_BYTES > self._bytes_max

    def _has_unused_chunk(self) -> bool:
        queue = self._buffers.get(CHUNK_BYTES, deque())
        return any(_references(queue, place) == _UNUSED for place in range(len(queue)))


class Inlet:
    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._view = memoryview(bytearray(READ_BYTES_MIN))  # until the first connection asks
        self._position = len(self._view)

    def room(self) -> memoryview:
        """Where to receive next. Valid until the next call; `keep` makes it last."""
        if len(self._view) - self._position < READ_BYTES_MIN:
            chunk = self._pool.take(CHUNK_BYTES)
            # Connections stop reading when the pool is exhausted. What is read once more then has memory of its own.
            self._view = memoryview(chunk if chunk is not None else bytearray(READ_BYTES_MIN))
            self._position = 0
        return self._view[self._position :]

    def keep(self, size: int) -> None:
        """Somebody looks at the first `size` bytes of `room`: receive behind them from now on."""
        self._position += size
