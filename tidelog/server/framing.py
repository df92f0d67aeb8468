"""What a connection receives, taken apart into frames.

A frame is four bytes of size and a request. Most arrive whole, in the node's inlet (`memory.Inlet`), and are handed on
where they lie. One that arrives in parts gets memory for some times what has come of it, so that announcing a frame
costs the node nothing; a large one whose rest fits behind its beginning simply stays there.

Of many frames that were read at once, no more are handed on than the connection lets wait; the rest stays unsplit until
it asks for more.
"""

import struct
from collections.abc import Callable, Sized

from tidelog.server.memory import BufferPool, Inlet
from tidelog.wire.errors import ProtocolError

PRODUCE = 0
REQUEST_BYTES_MIN = 8  # key, version and correlation id
HEAD_BYTES = 6  # a frame's size and the request's key, which says how large it may be
SMALL_BYTES = 16 << 10  # a frame received in parts up to this size has memory of its own, a larger one the pool's
GRANT_BYTES_MIN = 16 << 10  # memory that a frame gets when its first bytes have come,
GRANT_FACTOR = 4  # or so many times what has come of it
PROVEN_BYTES_MAX = 4 << 20

_NOTHING = memoryview(b"")
_HEAD = struct.Struct(">ih")


class Frames:
    def __init__(
        self,
        produce_bytes_max: int,
        control_bytes_max: int,
        inlet: Inlet,
        pool: BufferPool,
        take: Callable[[memoryview, int], bool],
        waiting: Sized,
        waiting_max: int,
    ) -> None:
        """The first two say how large a Produce request, and any other, may be. `take` is handed each frame's content
        and key, and says whether it keeps it. While `waiting` has `waiting_max` items, it is handed no more.
        """
        self._produce_bytes_max = produce_bytes_max
        self._control_bytes_max = control_bytes_max
        self._inlet = inlet
        self._pool = pool
        self._take = take
        self._waiting = waiting
        self._waiting_max = waiting_max
        self._room = _NOTHING  # what the last read was offered
        self._head = b""  # the beginning of a frame, too short to know its size
        self._frame: memoryview | None = None  # a frame received in parts: memory for as much as came, or will soon
        self._frame_bytes = self._frame_key = 0  # its size, and its request's key
        self._filled = 0
        self._proven = 0  # frames up to this size get their memory at once: about as large a one has come before
        self._unsplit = _NOTHING  # read, and not looked at yet

    @property
    def begun(self) -> bool:
        """A frame has memory and waits for its rest: it must be possible to receive that."""
        return self._frame is not None

    @property
    def incomplete(self) -> bool:
        return self._frame is not None or bool(self._head)

    @property
    def unsplit(self) -> bool:
        return bool(self._unsplit)

    def room(self) -> memoryview:
        """Where to receive next."""
        if self._frame is not None:
            return self._frame[self._filled :]
        self._room = self._inlet.room()
        return self._room

    def received(self, size: int) -> None:
        """So many bytes were received into the room. Raises ProtocolError."""
        if self._frame is not None:
            self._continue_frame(size)
            return
        if self._head:
            data = memoryview(bytearray(self._head) + self._room[:size])
            self._head = b""
            self._split(data, in_room=False)
        else:
            self._split(self._room[:size], in_room=True)
        self._room = _NOTHING  # a connection that is idle keeps no chunk from being used again

    def go_on(self) -> None:
        """Hand on what was too much at once, as far as it is wanted now. Raises ProtocolError."""
        while self._unsplit and len(self._waiting) < self._waiting_max:
            data, self._unsplit = self._unsplit, _NOTHING
            self._split(data, in_room=False)

    def drop(self) -> None:
        """The connection is gone, and keeps no memory from being used again, however long it lies about itself."""
        self._room = self._unsplit = _NOTHING
        self._frame = None

    def _split(self, data: memoryview, in_room: bool) -> None:
        end, position, kept_to = len(data), 0, 0
        take, waiting, waiting_max = self._take, self._waiting, self._waiting_max
        while end - position >= HEAD_BYTES:
            if len(waiting) >= waiting_max:
                self._unsplit, kept_to, position = data[position:], end, end
                break
            size, key = _HEAD.unpack_from(data, position)
            limit = self._produce_bytes_max if key == PRODUCE else self._control_bytes_max
            if not REQUEST_BYTES_MIN <= size <= limit:
                raise ProtocolError(
                    f"a request with key {key} of {size} bytes; between {REQUEST_BYTES_MIN} and {limit} are allowed"
                )
            start, stop = position + 4, position + 4 + size
            if stop <= end:
                if take(data[start:stop], key):
                    kept_to = stop
                position = stop
            else:
                self._frame_key = key
                if self._begin_frame(data, start, size, in_room):
                    kept_to = stop
                position = end
        if position < end:
            self._head = bytes(data[position:])
        if kept_to and in_room:
            self._inlet.keep(kept_to)

    def _begin_frame(self, data: memoryview, start: int, size: int, in_room: bool) -> bool:
        """The beginning of a frame has come; true when it stays where it lies."""
        part = data[start:]
        self._frame_bytes, self._filled = size, len(part)
        granted = size if size <= self._proven else min(size, max(GRANT_BYTES_MIN, GRANT_FACTOR * len(part)))
        if granted == size and size > SMALL_BYTES and in_room and start + size <= len(self._room):
            self._frame = self._room[start : start + size]
            return True
        self._frame = self._memory(granted)
        self._frame[: len(part)] = part
        return False

    def _memory(self, size: int) -> memoryview:
        """Memory for a frame. Beyond the pool's bound it is the frame's own; `exhausted` stops others meanwhile."""
        buffer = self._pool.take(size) if size > SMALL_BYTES else None
        return memoryview(buffer if buffer is not None else bytearray(size))[:size]

    def _continue_frame(self, size: int) -> None:
        frame = self._frame
        assert frame is not None
        self._filled += size
        if self._filled < len(frame):
            return
        if self._filled < self._frame_bytes:
            grown = self._memory(min(self._frame_bytes, GRANT_FACTOR * self._filled))
            grown[: self._filled] = frame
            self._frame = grown
            return
        self._frame = None
        self._proven = max(self._proven, min(PROVEN_BYTES_MAX, self._frame_bytes + self._frame_bytes // 8))
        self._take(frame, self._frame_key)
