"""What three replicas cannot do without, and nothing else: a leader and two followers, a process each, on uvloop.

    python -m bench.floor follow FILE FILE_BYTES
    python -m bench.floor lead FILE FILE_BYTES CONNECTIONS FRAME_BYTES BATCH_AT BATCH_BYTES FOLLOWER_PORT FOLLOWER_PORT

`python -m bench floor` measures it alone. (One node's floor is `floor_server`, the storage engine's `floor_disk`.)

The leader receives frames of one shape, checks each batch's checksum, and hands whatever has come to both followers
and to its disk at once. A follower writes what it gets and answers how many bytes its disk has. A frame is answered
when two of the three disks have it. Disks are written by a thread: all that waits is one group, with one sync. There is
no protocol, no term, no index, nothing to read back: bytes go through, and are in a file when they are acknowledged.

Memory is received into in turn and used again when nobody looks at it any more, and so are the file's blocks.
A follower takes one connection, and ends with it; a leader takes CONNECTIONS at a time, and ends with its followers.
"""

import asyncio
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import cast

import uvloop
from crc32c import crc32c

from bench.floor_disk import FloorFile
from bench.floor_server import ANSWER, CHECKED_FROM, CRC_AT

MIB = 1 << 20
CHUNK_BYTES = 4 * MIB
CHUNKS_MAX = 64
FRAMES_PER_CHUNK_MIN = 4
READ_BYTES_MIN = 64 << 10
ACCEPT_S_MAX = 60.0
UNUSED = 3  # references to a chunk that nobody looks at: the queue's, the variable's and the question's own

_CRC = struct.Struct(">I")
_COUNT = struct.Struct(">q")


class DiskThread:
    """Writes all that waits in one go, and syncs; `report` hears, on the loop, how many bytes are durable."""

    def __init__(self, path: str, file_bytes: int, report: Callable[[int], None]) -> None:
        self._file = FloorFile(path, file_bytes)
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[memoryview] = deque()
        self._work = threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def write(self, run: memoryview) -> None:
        self._waiting.append(run)
        self._work.release()

    def _run(self) -> None:
        waiting, durable = self._waiting, 0
        while True:
            self._work.acquire()
            runs = [waiting.popleft() for _ in range(len(waiting))]
            if not runs:
                continue  # it went with the group before
            self._file.append_group(runs)
            durable += sum(map(len, runs))
            del runs  # or their memory could not be used again while this waits
            self._loop.call_soon_threadsafe(self._report, durable)


class Intake(asyncio.BufferedProtocol):
    """Receives into memory that is used again; gives on whole frames, as many as have come, as one run."""

    def __init__(
        self, frame_bytes: int, chunk_bytes: int, taken: Callable[["Intake", memoryview], None], *, last: bool
    ) -> None:
        """`last`: with this connection the program ends."""
        self._frame_bytes = frame_bytes
        self._taken = taken
        self._last = last
        self._chunk_bytes = max(FRAMES_PER_CHUNK_MIN, chunk_bytes // frame_bytes) * frame_bytes  # none is cut in two
        self._read_bytes_min = min(READ_BYTES_MIN, self._chunk_bytes // FRAMES_PER_CHUNK_MIN)
        self._chunks: deque[bytearray] = deque()
        self._next_chunk()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        if self._last:
            asyncio.get_running_loop().stop()

    def _next_chunk(self) -> None:
        self._view = memoryview(b"")  # lets the old one go
        self._given = self._filled = 0
        for place in range(len(self._chunks)):
            chunk = self._chunks[place]
            if sys.getrefcount(chunk) == UNUSED:
                del self._chunks[place]
                break
        else:
            assert len(self._chunks) < CHUNKS_MAX, "more is under way than a client may have unanswered"
            chunk = bytearray(self._chunk_bytes)
        self._chunks.append(chunk)
        self._view = memoryview(chunk)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        end = self._filled - self._filled % self._frame_bytes
        if end > self._given:
            self._taken(self, self._view[self._given : end])
            self._given = end
        left = len(self._view) - self._filled
        if not left or (left < self._read_bytes_min and self._given == self._filled):
            self._next_chunk()


class Follower:
    def __init__(self, path: str, file_bytes: int) -> None:
        self._disk = DiskThread(path, file_bytes, self._durable)
        self.intake = Intake(1, CHUNK_BYTES, lambda _, run: self._disk.write(run), last=True)

    def _durable(self, count: int) -> None:
        if self.intake.transport is not None:
            self.intake.transport.write(_COUNT.pack(count))


class FollowerLink(asyncio.Protocol):
    """The leader's side of the connection to a follower."""

    def __init__(self, durable: Callable[[int], None]) -> None:
        self._durable = durable
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        asyncio.get_running_loop().stop()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        end = len(data) - len(data) % _COUNT.size
        self._rest = data[end:]
        if end:
            self._durable(_COUNT.unpack_from(data, end - _COUNT.size)[0])


class Leader:
    def __init__(self, path: str, file_bytes: int, connections: int, frame_bytes: int, at: int, size: int) -> None:
        """A frame has its batch, of `size` bytes, at `at`."""
        self._connections = connections
        self._frame_bytes = frame_bytes
        self._batch_at = at
        self._batch_bytes = size
        self._durable = [0, 0, 0]  # bytes on each disk, the leader's own first
        self._taken = 0  # bytes
        self._unanswered: deque[tuple[int, Intake, int]] = deque()  # (what the disks must have, whose, frames)
        self._disk = DiskThread(path, file_bytes, lambda count: self._has(0, count))
        self.links = [FollowerLink(lambda count: self._has(1, count)), FollowerLink(lambda count: self._has(2, count))]

    def intake(self) -> Intake:
        return Intake(self._frame_bytes, CHUNK_BYTES // self._connections, self._take, last=False)

    def _take(self, intake: Intake, run: memoryview) -> None:
        for link in self.links:
            link.transport.write(run)
        self._disk.write(run)
        self._taken += len(run)
        self._unanswered.append((self._taken, intake, len(run) // self._frame_bytes))
        for start in range(self._batch_at, len(run), self._frame_bytes):
            batch = run[start : start + self._batch_bytes]
            assert crc32c(batch[CHECKED_FROM:]) == _CRC.unpack_from(batch, CRC_AT)[0]

    def _has(self, place: int, count: int) -> None:
        self._durable[place] = count
        durable = sorted(self._durable)[1]
        while self._unanswered and self._unanswered[0][0] <= durable:
            _, intake, frames = self._unanswered.popleft()
            if intake.transport is not None:
                intake.transport.write(ANSWER * frames)


async def _listen(intake: Callable[[], Intake]) -> None:
    server = await asyncio.get_running_loop().create_server(intake, "127.0.0.1", 0)
    print(f"ready bootstrap=127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)


async def follow(path: str, file_bytes: int) -> None:
    intake, loop = Follower(path, file_bytes).intake, asyncio.get_running_loop()
    await _listen(lambda: intake)
    loop.call_later(ACCEPT_S_MAX, lambda: intake.transport or loop.stop())


async def lead(path: str, file_bytes: int, *numbers: int) -> None:
    leader, ports = Leader(path, file_bytes, *numbers[:4]), numbers[4:]
    loop = asyncio.get_running_loop()
    for link, port in zip(leader.links, ports, strict=True):
        await loop.create_connection(lambda link=link: link, "127.0.0.1", port)
    await _listen(leader.intake)


def main(arguments: list[str]) -> None:
    role, path, *numbers = arguments
    begin = {"follow": follow, "lead": lead}[role]
    loop = uvloop.new_event_loop()
    loop.run_until_complete(begin(path, *map(int, numbers)))
    loop.run_forever()  # until a connection is lost


if __name__ == "__main__":
    main(sys.argv[1:])
