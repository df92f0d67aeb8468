"""What a link to another node receives, taken apart into frames: one run of memory, chunk after chunk.

A link has a chunk of its own and receives into it without a gap, however the frames lie in it; each frame is handed on
where it lies, and may be kept. A frame that does not fit behind its beginning moves to the next chunk; one larger than
a chunk has memory of its own. So the pool sees one size only, and its buffers are used again and again. (Clients are
many and may be slow, so they share memory instead: see `framing`.)
"""

import struct
from collections.abc import Callable

from tidelog.server.memory import CHUNK_BYTES, READ_BYTES_MIN, BufferPool
from tidelog.wire.errors import ProtocolError

SIZE_BYTES = 4
FRAME_BYTES_MIN = 2
_SIZE = struct.Struct(">i")
_NOTHING = memoryview(b"")


class PeerFrames:
    def __init__(self, bytes_max: int, pool: BufferPool, take: Callable[[memoryview], None]) -> None:
        """`take` is handed each frame's content."""
        self._bytes_max = bytes_max
        self._pool = pool
        self._take = take
        self._view = _NOTHING
        self._begun = 0  # where the first frame that is not complete begins
        self._filled = 0

    def room(self) -> memoryview:
        """Where to receive next."""
        if len(self._view) - self._filled < (READ_BYTES_MIN if self._filled == self._begun else 1):
            self._move(CHUNK_BYTES)
        return self._view[self._filled :]

    def received(self, size: int) -> None:
        """So many bytes were received into the room. Raises ProtocolError."""
        self._filled = filled = self._filled + size
        view, begun = self._view, self._begun
        while filled - begun >= SIZE_BYTES:
            (frame_bytes,) = _SIZE.unpack_from(view, begun)
            if not FRAME_BYTES_MIN <= frame_bytes <= self._bytes_max:
                raise ProtocolError(f"a frame of {frame_bytes} bytes between nodes")
            end = begun + SIZE_BYTES + frame_bytes
            if end > filled:
                self._begun = begun
                if end > len(view):
                    self._move(SIZE_BYTES + frame_bytes)
                return
            self._begun = end
            self._take(view[begun + SIZE_BYTES : end])
            begun = end
        self._begun = begun
        if begun < filled and len(view) - begun < SIZE_BYTES:
            self._move(CHUNK_BYTES)

    def drop(self) -> None:
        self._view = _NOTHING
        self._begun = self._filled = 0

    def _move(self, size: int) -> None:
        """Go on in another chunk, with what has come of the frame that is begun."""
        part = self._view[self._begun : self._filled]
        chunk = self._pool.take(max(size, CHUNK_BYTES))
        # Replication must go on when clients have filled the pool: it is what empties it.
        self._view = memoryview(chunk if chunk is not None else bytearray(max(size, READ_BYTES_MIN)))
        self._view[: len(part)] = part
        self._begun, self._filled = 0, len(part)
