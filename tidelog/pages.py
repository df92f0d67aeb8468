"""Fresh memory from the system, in huge pages where it is large.

The disk writes from memory whose pages lie side by side in one piece. Of ordinary pages, 4 KiB anywhere, a write of a
megabyte is more pieces than a request to the disk may have, and each costs on both sides of a virtual machine's wall;
of huge ones (2 MiB) it is one. Direct writes of 4 MiB take half to two thirds of the time (`python -m bench pages`).
Memory that is received into has fewer pages to be found and zeroed.

It is advice: where the kernel has no huge pages, or none left, these are ordinary ones. The first touch takes a huge
page as a whole, so what is small is not asked for in them. Memory that is only read takes none at all.
"""

import contextlib
import mmap

HUGE_BYTES = 2 << 20  # of a huge page, on x86-64 and on most arm64


def fresh_memory(size: int) -> mmap.mmap:
    """Zeros, at least `size` bytes of them, at the beginning of a page."""
    if size < HUGE_BYTES:
        return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    whole = -(-size // HUGE_BYTES) * HUGE_BYTES  # Linux begins such a mapping where a huge page may begin
    memory = mmap.mmap(-1, whole, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a kernel without them, a system that has no such advice
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
