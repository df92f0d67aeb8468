"""Writes that the kernel does by itself and tells when they are durable: Linux's asynchronous I/O, through `ctypes`.

`io_submit` of a write to a direct file returns at once. With RWF_DSYNC the write counts as done only when it is on
stable storage, as if `fdatasync` had followed it. The kernel counts what is done in an eventfd, which a loop can wait
for. No thread is woken, and nobody waits for the interpreter: a write costs its system calls.

Not everywhere: other kernels, processors whose numbers of the calls are not known here, containers that forbid the
calls, file systems that cannot do it. So it must be tried out (`works`).

Cost: one system call for all writes that are submitted together, two for all that are done.
"""

import contextlib
import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from typing import Protocol, cast

from tidelog.storage.disk import WRITES_MAX, File, Write
from tidelog.storage.staging import Staging

TRIAL_BYTES = 4096

# (io_setup, io_destroy, io_submit, io_getevents)
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
_COMMAND_WRITE = 1
_TELL_EVENTFD = 1
# data, key, flags of the write, command, priority, file, address, bytes, position, reserved, flags, eventfd
_REQUEST = struct.Struct("<QIIHhIQQqQII")
_EVENT = struct.Struct("<QQqq")  # data, request, result, second result

_libc = ctypes.CDLL(None, use_errno=True)


class _Open(Protocol):
    """What every file here is: one of the kernel's."""

    def fileno(self) -> int: ...


class KernelWrites:
    def __init__(self, flags: int) -> None:
        """`flags` go with every write. Raises OSError where the kernel cannot or will not."""
        if platform.machine() not in _CALLS or not hasattr(os, "eventfd"):
            raise OSError(errno.ENOSYS, "the kernel's calls for asynchronous writes are not known here")
        setup, self._destroy, self._submit, self._get_events = _CALLS[platform.machine()]
        context = ctypes.c_ulong(0)
        _check(_libc.syscall(setup, WRITES_MAX, ctypes.byref(context)))
        self._context = ctypes.c_ulong(context.value)
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._flags = flags
        self._requests = ctypes.create_string_buffer(_REQUEST.size * WRITES_MAX)
        first = ctypes.addressof(self._requests)
        self._pointers = (ctypes.c_void_p * WRITES_MAX)(*(first + _REQUEST.size * n for n in range(WRITES_MAX)))
        self._events = ctypes.create_string_buffer(_EVENT.size * WRITES_MAX)
        self._under_way = 0

    def fileno(self) -> int:
        return self._eventfd

    def submit(self, writes: Sequence[Write]) -> None:
        for place, (number, file, position, staging, start, size) in enumerate(writes):
            _REQUEST.pack_into(
                self._requests, place * _REQUEST.size,
                number, 0, self._flags, _COMMAND_WRITE, 0, cast(_Open, file).fileno(), staging.address + start, size,
                position, 0, _TELL_EVENTFD, self._eventfd,
            )  # fmt: skip
        taken = _check(_libc.syscall(self._submit, self._context, len(writes), self._pointers))
        if taken < len(writes):  # there is room for all: one of them is at fault, and only it is told why
            self._under_way += taken
            self.submit(writes[taken:])
            return
        self._under_way += taken

    def take_done(self) -> list[tuple[int, int]]:
        with contextlib.suppress(BlockingIOError):  # it was read before, and the events with it
            os.eventfd_read(self._eventfd)
        return self._get(0)

    def wait(self) -> list[tuple[int, int]]:
        return self._get(1) if self._under_way else []

    def _get(self, least: int) -> list[tuple[int, int]]:
        while True:
            found = _libc.syscall(self._get_events, self._context, least, WRITES_MAX, self._events, None)
            if found >= 0:
                break
            if ctypes.get_errno() != errno.EINTR:
                _check(found)
        self._under_way -= found
        events = _EVENT.iter_unpack(memoryview(self._events)[: found * _EVENT.size])
        return [(number, result) for number, _, result, _ in events]

    def close(self) -> None:
        """Waits for what is under way."""
        if self._eventfd >= 0:
            _libc.syscall(self._destroy, self._context)
            os.close(self._eventfd)
            self._eventfd = -1


def works(writes: KernelWrites, file: File) -> bool:
    """Try it out on a direct file that is used for nothing else."""
    with contextlib.suppress(OSError):
        writes.submit([(0, file, 0, Staging(TRIAL_BYTES), 0, TRIAL_BYTES)])
        return writes.wait() == [(0, TRIAL_BYTES)]
    return False


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
