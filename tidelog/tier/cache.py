"""What was fetched from the store, kept by name: the newest in memory, more of it on disk, each within a byte budget.

* One load a name at a time, however many ask for it (single flight). A load goes on when those who asked have given up,
  so that a reader who comes again finds it.
* Loads under way are bounded in bytes; those who ask wait, those who only think ahead (`prefetch`) are turned away.
* A file is written under another name and renamed, ends with the CRC-32C of its content, and is checked when it is
  read. One that is damaged, or was removed by somebody, is a miss.
* Content is handed out whole, as memory: nothing that is evicted can be pulled away from under a reader.
* Unless a cache `keeps_first`, only what is loaded a second time goes to disk: one who reads through history once would
  fill the disk with what nobody wants again, and make those wait who need it.
* Such files are written one at a time, and what comes meanwhile is not kept. They are written in small pieces, each
  until it is on the disk, with pauses that leave nearly all of the disk's time to others: 4 MiB at once, or a burst of
  writes that the kernel has put off, would make those wait who sync a log to the same disk.
* A disk that is full or broken makes the cache useless, not the node: content is then served from memory alone.

Everything here runs on the event loop; files are touched in threads.
"""

import asyncio
import contextlib
import logging
import os
import struct
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from crc32c import crc32c

log = logging.getLogger(__name__)

TEMPORARY = ".tmp"
LOADED_MAX = 65_536  # names remembered of what was loaded before
PIECE_BYTES = 128 << 10
PAUSES = 32  # a piece is followed by a pause so many times as long as it took
PAUSE_S_MAX = 0.5
_CRC = struct.Struct(">I")

Buffer = bytes | bytearray | memoryview
Load = Callable[[], Awaitable[Buffer]]


@dataclass(slots=True)
class CacheCounts:
    memory_hits: int = 0
    disk_hits: int = 0
    loads: int = 0
    load_errors: int = 0
    evictions: int = 0


class InFlight:
    """A budget of bytes that are on their way. One that is larger than all of it may go alone."""

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._bytes = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def has_room(self, size: int) -> bool:
        return not self._waiting and (self._bytes + size <= self._max or not self._bytes)

    async def take(self, size: int) -> None:
        if self.has_room(size):
            self._bytes += size
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            else:
                self._waiting.remove((size, turn))
            raise

    def give_back(self, size: int) -> None:
        self._bytes -= size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if self._bytes and self._bytes + wanted > self._max:
                return
            del self._waiting[0]
            self._bytes += wanted
            turn.set_result(None)


class DiskCache:
    def __init__(
        self,
        folder: str,
        bytes_max: int,
        memory_bytes_max: int,
        in_flight: InFlight,
        executor: Executor,
        *,
        keeps_first: bool,
    ) -> None:
        """What an earlier process left in the folder is taken up. `bytes_max` 0: nothing is kept on disk."""
        self._folder = folder
        self._max = bytes_max
        self._memory_max = memory_bytes_max
        self._in_flight = in_flight
        self._executor = executor
        self._keeps_first = keeps_first
        self._loaded_before: OrderedDict[str, None] = OrderedDict()
        self._memory: OrderedDict[str, Buffer] = OrderedDict()
        self._memory_bytes = 0
        self._files: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._loading: dict[str, asyncio.Task[Buffer]] = {}
        self._writing: dict[str, asyncio.Task[None]] = {}
        self._broken = ""
        self.counts = CacheCounts()
        self._adopt()

    @property
    def bytes(self) -> int:
        """On disk."""
        return self._bytes

    def set_budget(self, bytes_max: int) -> None:
        begins = bytes_max > 0 and not self._max
        self._max = bytes_max
        if begins:
            self._adopt()
        self._evict()

    async def get(self, name: str, size: int, load: Load) -> Buffer:
        """The content of a name, about `size` bytes, which `load` fetches when it is not here."""
        held = self._held(name)
        if held is not None:
            return held
        return await asyncio.shield(self._task(name, size, load))

    def prefetch(self, name: str, size: int, load: Load) -> None:
        """Somebody will ask for it soon; there is no hurry."""
        if name not in self._memory and name not in self._loading and self._in_flight.has_room(size):
            self._task(name, size, load)

    def forget(self, prefix: str) -> None:
        """Nobody will ask for what begins so any more."""
        for name in [name for name in self._files if name.startswith(prefix)]:
            self._drop_file(name)
        for name in [name for name in self._memory if name.startswith(prefix)]:
            self._memory_bytes -= len(self._memory.pop(name))

    async def settled(self) -> None:
        """Until nothing is being written."""
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    def stop(self) -> None:
        """Nothing goes on here; a file that is half written is removed when the folder is taken up again."""
        for task in (*self._loading.values(), *self._writing.values()):
            task.cancel()

    async def close(self) -> None:
        self.stop()
        await asyncio.gather(*self._loading.values(), *self._writing.values(), return_exceptions=True)

    # Loading

    def _held(self, name: str) -> Buffer | None:
        held = self._memory.get(name)
        if held is not None:
            self._memory.move_to_end(name)
            self.counts.memory_hits += 1
        return held

    def _task(self, name: str, size: int, load: Load) -> "asyncio.Task[Buffer]":
        task = self._loading.get(name)
        if task is None:
            task = self._loading[name] = asyncio.get_running_loop().create_task(self._load(name, size, load))
            task.add_done_callback(lambda done: self._loaded(name, done))
        return task

    def _loaded(self, name: str, task: "asyncio.Task[Buffer]") -> None:
        self._loading.pop(name, None)
        if not task.cancelled() and task.exception() is not None:  # asked for, so that nobody's error is not lost
            self.counts.load_errors += 1

    async def _load(self, name: str, size: int, load: Load) -> Buffer:
        await self._in_flight.take(size)
        try:
            content = await self._from_disk(name)
            if content is None:
                self.counts.loads += 1
                content = await load()
                if self._is_worth_keeping(name):
                    self._write(name, content)
            self._remember(name, content)
            return content
        finally:
            self._in_flight.give_back(size)

    def _is_worth_keeping(self, name: str) -> bool:
        if self._keeps_first or name in self._loaded_before:
            return True
        self._loaded_before[name] = None
        if len(self._loaded_before) > LOADED_MAX:
            self._loaded_before.popitem(last=False)
        return False

    def _remember(self, name: str, content: Buffer) -> None:
        if name in self._memory:
            self._memory_bytes -= len(self._memory.pop(name))
        self._memory[name] = content
        self._memory_bytes += len(content)
        while self._memory_bytes > self._memory_max and len(self._memory) > 1:
            self._memory_bytes -= len(self._memory.popitem(last=False)[1])

    # Files

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def _adopt(self) -> None:
        if not self._max:
            return
        try:
            os.makedirs(self._folder, exist_ok=True)
            found: list[tuple[float, str, int]] = []
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if entry.name.endswith(TEMPORARY):
                        os.unlink(entry.path)
                    elif entry.is_file():
                        status = entry.stat()
                        found.append((status.st_mtime, entry.name, status.st_size))
        except OSError as error:
            self._say_broken(error)
            return
        for _, name, size in sorted(found):
            self._files[name] = size
            self._bytes += size
        self._evict()

    async def _from_disk(self, name: str) -> Buffer | None:
        if name not in self._files:
            return None
        content = await asyncio.get_running_loop().run_in_executor(self._executor, _read_checked, self._path(name))
        if content is None:
            log.warning("%s is damaged or gone from the cache; it is fetched again", name)
            self._drop_file(name)
            return None
        if name in self._files:
            self._files.move_to_end(name)
        self.counts.disk_hits += 1
        return content

    def _write(self, name: str, content: Buffer) -> None:
        if len(content) + _CRC.size > self._max or name in self._writing or (self._writing and not self._keeps_first):
            return
        self._writing[name] = task = asyncio.get_running_loop().create_task(self._written(name, content))
        task.add_done_callback(lambda _: self._writing.pop(name, None))

    async def _written(self, name: str, content: Buffer) -> None:
        loop, path, view = asyncio.get_running_loop(), self._path(name), memoryview(content)
        try:
            for start in range(0, len(view), PIECE_BYTES):
                piece = view[start : start + PIECE_BYTES]
                took_s = await loop.run_in_executor(self._executor, _append, path + TEMPORARY, start, piece)
                if not self._keeps_first:
                    await asyncio.sleep(min(took_s * PAUSES, PAUSE_S_MAX))
            await loop.run_in_executor(self._executor, _finish, path, view)
        except OSError as error:
            self._say_broken(error)
            with contextlib.suppress(OSError):
                os.unlink(path + TEMPORARY)
            return
        self._broken = ""
        size = len(view) + _CRC.size
        self._bytes += size - self._files.pop(name, 0)
        self._files[name] = size
        self._evict()

    def _say_broken(self, error: OSError) -> None:
        if str(error) != self._broken:
            self._broken = str(error)
            log.warning("the cache %s keeps nothing on disk now: %s", self._folder, error)

    def _evict(self) -> None:
        while self._bytes > self._max and self._files:
            self.counts.evictions += 1
            self._drop_file(next(iter(self._files)))

    def _drop_file(self, name: str) -> None:
        self._bytes -= self._files.pop(name, 0)
        with contextlib.suppress(OSError):
            os.unlink(self._path(name))


def _append(path: str, start: int, piece: memoryview) -> float:
    """In a thread. The seconds that it took; whoever is stopped between two of these leaves no open file behind."""
    began = time.perf_counter()
    with open(path, "ab" if start else "wb") as file:
        file.write(piece)
        file.flush()
        os.fdatasync(file.fileno())
    return time.perf_counter() - began


def _finish(path: str, content: memoryview) -> None:
    """In a thread."""
    _append(path + TEMPORARY, len(content), memoryview(_CRC.pack(crc32c(content))))
    os.replace(path + TEMPORARY, path)


def _read_checked(path: str) -> Buffer | None:
    """In a thread. None when there is no intact file."""
    try:
        with open(path, "rb") as file:
            whole = memoryview(file.read())
    except OSError:
        return None
    if len(whole) < _CRC.size:
        return None
    content = whole[: -_CRC.size]
    return content if _CRC.unpack_from(whole, len(content))[0] == crc32c(content) else None
