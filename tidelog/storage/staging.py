"""Page-aligned memory for direct writes, made once and used for every one."""

import ctypes
import mmap

from tidelog.pages import fresh_memory

BLOCK_BYTES = 4096  # what a direct write is made of


class Staging:
    def __init__(self, size: int, memory: mmap.mmap | None = None, start: int = 0) -> None:
        """Memory of its own, or a part of `memory`."""
        if size <= 0 or size % BLOCK_BYTES:
            raise ValueError(f"the staging buffer has {size} bytes; it must be a multiple of {BLOCK_BYTES}")
        memory = memory or fresh_memory(size)
        self.size = size
        self.view = memoryview(memory)[start : start + size]
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(memory, start))


def several(count: int, size: int) -> list[Staging]:
    """Pieces of equal size. What is never used of them takes no memory."""
    memory = fresh_memory(count * size)
    return [Staging(size, memory, number * size) for number in range(count)]
