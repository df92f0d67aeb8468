"""What the disk itself can do: bare loops of the same shape as the storage engine's, with nothing around them."""

import mmap
import os
import time
from collections.abc import Sequence

BLOCK_BYTES = 4096
BATCH_BYTES_MAX = 4 << 20


class FloorFile:
    """A file whose blocks exist already, written with O_DIRECT where the file system allows it."""

    def __init__(self, path: str, size: int) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
        except OSError:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._size = size
        self._position = 0  # of what the memory holds
        self._filled = 0  # of the memory: the beginning of a block
        self._memory = memoryview(mmap.mmap(-1, BATCH_BYTES_MAX + BLOCK_BYTES))  # behind a block that is not full yet
        self._memory[:BATCH_BYTES_MAX] = os.urandom(1 << 20) * (BATCH_BYTES_MAX >> 20)
        for position in range(0, size, len(self._memory)):
            os.pwrite(self._descriptor, self._memory, position)
        os.fdatasync(self._descriptor)

    def append_groups(self, groups: Sequence[int], batches: Sequence[bytearray]) -> float:
        """Write so many batches a group, one group after the other, each followed by a sync; returns seconds."""
        number = 0
        begun = time.perf_counter()
        for group in groups:
            self.append_group([batches[place % len(batches)] for place in range(number, number + group)])
            number += group
        return time.perf_counter() - begun

    def append_group(self, batches: Sequence[bytearray | memoryview]) -> None:
        """Write the batches behind what is there, and sync.

        They lie anywhere in memory and O_DIRECT wants whole, aligned blocks, so they are copied together first: no loop
        that writes batches can do without that. A block that is not full yet is written again with the next group.
        """
        memory, filled = self._memory, self._filled
        for batch in batches:
            if filled + len(batch) > len(memory):
                filled = self._write(filled)
            memory[filled : filled + len(batch)] = batch
            filled += len(batch)
        self._filled = self._write(filled)
        os.fdatasync(self._descriptor)

    def _write(self, filled: int) -> int:
        """Write so much of the memory, from the file's begin again when it is full; returns how much of it stays."""
        memory = self._memory
        whole = filled - filled % BLOCK_BYTES
        end = whole if whole == filled else whole + BLOCK_BYTES
        if self._position + end > self._size:
            self._position = 0
        os.pwrite(self._descriptor, memory[:end], self._position)
        self._position += whole
        memory[: filled - whole] = memory[whole:filled]
        return filled - whole

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
