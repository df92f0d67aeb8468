"""What the machine itself can do: bare loops of the same shape as the storage engine's, with nothing around them."""

import mmap
import os
import time
from collections.abc import Sequence


class FloorFile:
    """A file whose blocks exist already, written with O_DIRECT where the file system allows it."""

    def __init__(self, path: str, size: int) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        except OSError:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = size
        self._memory = memoryview(mmap.mmap(-1, 4 << 20))
        self._memory[:] = os.urandom(1 << 20) * 4
        for position in range(0, size, len(self._memory)):
            os.pwrite(self._descriptor, self._memory, position)
        os.fdatasync(self._descriptor)

    def append_groups(self, groups: Sequence[int], batches: Sequence[bytearray]) -> float:
        """Write so many batches a group, one group after the other, each followed by a sync; returns seconds.

        The batches lie anywhere in memory and O_DIRECT wants whole, aligned blocks, so they are copied together first:
        no loop that writes batches can do without that.
        """
        descriptor, memory = self._descriptor, self._memory
        position = number = 0
        begun = time.perf_counter()
        for group in groups:
            filled = 0
            for _ in range(group):
                batch = batches[number % len(batches)]
                number += 1
                if filled + len(batch) > len(memory):
                    position = self._write(descriptor, memory[:filled], position)
                    filled = 0
                memory[filled : filled + len(batch)] = batch
                filled += len(batch)
            position = self._write(descriptor, memory[:filled], position)
            os.fdatasync(descriptor)
        return time.perf_counter() - begun

    def _write(self, descriptor: int, memory: memoryview, position: int) -> int:
        """Write the blocks, from the file's begin again when it is full; returns the position behind them."""
        if position + len(memory) > self._size:
            position = 0
        os.pwrite(descriptor, memory, position)
        return position + len(memory)

    def close(self) -> None:
        os.close(self._descriptor)


def read_files(paths: Sequence[str], chunk_bytes: int) -> float:
    """Read the files from begin to end with preadv into one buffer; returns seconds."""
    buffer = bytearray(chunk_bytes)
    begun = time.perf_counter()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        position = 0
        while read := os.preadv(descriptor, [buffer], position):
            position += read
        os.close(descriptor)
    return time.perf_counter() - begun
