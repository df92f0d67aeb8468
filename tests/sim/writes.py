"""Writes that the simulated disk does by itself (`tidelog.storage.disk.DurableWrites`), one at a time, in any order.

A write that is under way takes effect when it is done: then all of it is durable. Until then its memory is read by
nobody, so whoever changes that meanwhile has written something else. When the power fails, each sector of it is kept,
lost or torn; when only the process dies, the kernel still does all of it, as far as the disk has room.
"""

import errno
from collections.abc import Callable, Sequence
from random import Random

from tidelog.storage.disk import WRITES_MAX, Write

from .disk import SimDisk, SimFile
from .inode import BLOCK_BYTES


class SimWrites:
    def __init__(self, disk: SimDisk, rng: Random, submitted: Callable[[int], None]) -> None:
        """`submitted` is told of each write, by its number; whoever hears it calls `perform` some time."""
        self._disk = disk
        self._rng = rng
        self._submitted = submitted
        self._under_way: dict[int, Write] = {}
        self._done: list[tuple[int, int]] = []
        disk.set_writes(self)

    def submit(self, writes: Sequence[Write]) -> None:
        for write in writes:
            assert not any(_touch(write, other) for other in self._under_way.values()), "two writes touch one block"
            self._under_way[write[0]] = write
            self._submitted(write[0])
        assert len(self._under_way) <= WRITES_MAX

    def perform(self, number: int) -> None:
        """The write is done, as far as the disk is able to."""
        file, position, data = _parts(self._under_way.pop(number))
        try:
            file.write_durably(position, data)
        except OSError as error:
            self._done.append((number, -(error.errno or errno.EIO)))
        else:
            self._done.append((number, len(data)))

    def take_done(self) -> list[tuple[int, int]]:
        done, self._done = self._done, []
        return done

    def wait(self) -> list[tuple[int, int]]:
        if self._under_way:
            self.perform(self._rng.choice(list(self._under_way)))
        return self.take_done()

    def abandon(self) -> None:
        """Whoever submitted them is dead: the kernel writes what it was given. Before a power cut that is undecided."""
        for write in self._under_way.values():
            file, position, data = _parts(write)
            file.write_last(position, data)
        self._under_way.clear()

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated disk has no descriptor")

    def close(self) -> None:
        """Nothing is left behind."""


def _parts(write: Write) -> tuple[SimFile, int, bytes]:
    _, file, position, staging, start, size = write
    assert isinstance(file, SimFile)
    return file, position, bytes(staging.view[start : start + size])


def _touch(one: Write, other: Write) -> bool:
    if one[1] is not other[1]:
        return False
    return one[2] < other[2] + _whole(other[5]) and other[2] < one[2] + _whole(one[5])


def _whole(size: int) -> int:
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES
