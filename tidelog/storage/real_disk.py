"""The disk of this machine, through `os`. See `disk` for the rules it must keep.

`sync` chooses what File.sync means: `fdatasync` (default), `range` (VDL's sync_file_range: no metadata, no flush of
the drive's cache; survives the death of the process or the kernel, not a power cut) or `none` (for tests of other
things).
"""

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Literal

from tidelog import faults
from tidelog.storage.disk import Buffer, File
from tidelog.storage.errors import SyncFailedError
from tidelog.storage.kernel_writes import KernelWrites, works
from tidelog.storage.whole_disk import can_sync_whole, sync_file_system

SyncMode = Literal["fdatasync", "range", "none"]

DIRECT_ALIGNMENT = 4096
BUFFERS_PER_CALL_MAX = 1024  # IOV_MAX on Linux
TOGETHER_THREADS = 16
TRIAL_NAME = "trial"  # a file that is written to once, to see what the file system can do
TOGETHER_MIN = 8  # fewer calls are not worth waking threads for

# sync_file_range(2): wait for writeback in flight, start it for what is dirty, wait for that.
_RANGE_WAIT_WRITE_WAIT = 1 | 2 | 4


def _sync_file_range(descriptor: int) -> None:
    if _libc.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), _RANGE_WAIT_WRITE_WAIT) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _sync_nothing(_descriptor: int) -> None:
    pass


_NOT_READY = (errno.EAGAIN, errno.EOPNOTSUPP)  # not in memory, or a file system that cannot tell

_libc = ctypes.CDLL(None, use_errno=True)
_SYNC: dict[SyncMode, Callable[[int], None]] = {
    "fdatasync": os.fdatasync,
    "range": _sync_file_range,
    "none": _sync_nothing,
}


_WRITE_FLAGS: dict[Callable[[int], None], int] = {os.fdatasync: os.RWF_DSYNC, _sync_nothing: 0}


class RealFile:
    def __init__(self, descriptor: int, alignment: int, sync: Callable[[int], None]) -> None:
        self._descriptor = descriptor
        self._sync = sync
        self.alignment = alignment

    def fileno(self) -> int:
        return self._descriptor

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read_at(self, position: int, length: int) -> bytes:
        if faults.ARMED:
            faults.hit("disk.read")
        if self.alignment > 1:
            return self._read_aligned(position, length)
        data = os.pread(self._descriptor, length, position)
        if len(data) == length:
            return data
        parts = [data]
        while data and (missing := length - sum(map(len, parts))):
            data = os.pread(self._descriptor, missing, position + length - missing)
            parts.append(data)
        return b"".join(parts)

    def read_into(self, position: int, memory: memoryview) -> int:
        if faults.ARMED:
            faults.hit("disk.read")
        read = 0
        while read < len(memory):
            part = os.preadv(self._descriptor, [memory[read:]], position + read)
            if part == 0:
                break
            read += part
        return read

    def read_ready(self, position: int, memory: memoryview) -> int:
        try:
            return os.preadv(self._descriptor, [memory], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _NOT_READY:
                return 0
            raise

    def written_until(self, start: int, end: int) -> int:
        last = start
        try:
            while last < end:
                data = os.lseek(self._descriptor, last, os.SEEK_DATA)
                if data >= end:
                    break
                last = min(end, os.lseek(self._descriptor, data, os.SEEK_HOLE))
        except OSError as error:
            if error.errno != errno.ENXIO:  # no data behind `last`
                return end
        return last

    def _read_aligned(self, position: int, length: int) -> bytes:
        first = position - position % self.alignment
        last = -(-(position + length) // self.alignment) * self.alignment
        with mmap.mmap(-1, last - first) as memory:
            read = os.preadv(self._descriptor, [memory], first)
            return memory[position - first : min(read, position - first + length)]

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        if faults.ARMED:
            faults.hit("disk.write")
        for first in range(0, len(buffers), BUFFERS_PER_CALL_MAX):
            part = buffers[first : first + BUFFERS_PER_CALL_MAX]
            expected = sum(map(len, part))
            written = os.pwritev(self._descriptor, part, position)
            if written < expected:
                self._write_rest(position, part, written)
            position += expected

    def _write_rest(self, position: int, buffers: Sequence[Buffer], written: int) -> None:
        """A write was cut short: go on until the disk takes it all or says why not (that it is full, most likely)."""
        for buffer in buffers:
            done = min(written, len(buffer))
            written -= done
            with memoryview(buffer) as view:  # no copy: direct writes need the memory's alignment
                while done < len(buffer):
                    advanced = os.pwrite(self._descriptor, view[done:], position + done)
                    if advanced == 0:
                        raise OSError(errno.EIO, f"the file takes no more bytes at {position + done}")
                    done += advanced
            position += len(buffer)

    def sync(self) -> None:
        try:
            if faults.ARMED:
                faults.hit("disk.sync")
            self._sync(self._descriptor)
        except OSError as error:
            raise SyncFailedError(f"sync of descriptor {self._descriptor}: {error}") from error

    def truncate(self, length: int) -> None:
        os.ftruncate(self._descriptor, length)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class RealDisk:
    def __init__(self, sync: SyncMode = "fdatasync", *, direct: bool = True) -> None:
        self._sync = _SYNC[sync]
        self._direct = direct and hasattr(os, "O_DIRECT")
        self._pool: ThreadPoolExecutor | None = None
        self._making_pool = threading.Lock()

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def run_together(self, calls: Sequence[Callable[[], None]]) -> None:
        """A journalling file system makes many syncs that wait at the same time durable with one commit."""
        if len(calls) < TOGETHER_MIN:
            for call in calls:
                call()
            return
        with self._making_pool:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(TOGETHER_THREADS, "tidelog-disk")
        futures = [self._pool.submit(call) for call in calls]
        wait(futures)  # all of them: nothing may go on behind the back of whoever handles an error
        for future in futures:
            future.result()

    def open_whole(self, path: str) -> RealFile | None:
        if self._sync is not os.fdatasync or not can_sync_whole(path):
            return None
        return RealFile(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), 1, sync_file_system)

    def open_writes(self, folder: str) -> KernelWrites | None:
        """For the two kinds of sync that a write can carry with it."""
        flags = _WRITE_FLAGS.get(self._sync)
        if flags is None:
            return None
        path = os.path.join(folder, TRIAL_NAME)
        try:
            writes, file = KernelWrites(flags), self.open_write(path, direct=True)
        except OSError:
            return None
        try:
            if file.alignment > 1 and works(writes, file):
                return writes
        finally:
            file.close()
            os.unlink(path)
        writes.close()
        return None

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        parent = os.path.dirname(os.path.abspath(path))
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return
        except FileNotFoundError:
            self.make_directory(parent)
            os.mkdir(path)
        if durable:
            self.sync_directory(parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def open_read(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC), 1, self._sync)

    def open_write(self, path: str, *, direct: bool = False) -> File:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        if direct and self._direct:
            try:
                descriptor = os.open(path, flags | os.O_DIRECT, 0o644)
            except OSError as error:
                if error.errno != errno.EINVAL:  # what a file system without O_DIRECT (tmpfs) answers
                    raise
            else:
                return RealFile(descriptor, DIRECT_ALIGNMENT, self._sync)
        return RealFile(os.open(path, flags, 0o644), 1, self._sync)

    def rename(self, old: str, new: str) -> None:
        if faults.ARMED:
            faults.hit("disk.rename")
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if faults.ARMED:
                faults.hit("disk.sync-directory")
            os.fsync(descriptor)
        except OSError as error:
            raise SyncFailedError(f"sync of the folder {path}: {error}") from error
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> File:
        file = RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), 1, self._sync)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file
