"""Memory from the system: what it is made of, and what happens where there are no huge pages."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from tidelog.pages import HUGE_BYTES, fresh_memory
from tidelog.server.memory import CHUNK_BYTES, BufferPool
from tidelog.storage.staging import Staging, several

SMAPS = Path("/proc/self/smaps")
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def _flags_at(address: int) -> list[str]:
    """What the kernel was told of the mapping that holds an address."""
    inside = False
    for line in SMAPS.read_text().splitlines():
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds:
            inside = int(bounds[1], 16) <= address < int(bounds[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError(f"nothing is mapped at {address:#x}")


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages to ask for")
def test_large_memory_is_asked_for_in_huge_pages_and_small_is_not() -> None:
    memory = fresh_memory(2 * HUGE_BYTES)
    assert "hg" in _flags_at(_address(memory))
    assert "hg" not in _flags_at(_address(fresh_memory(HUGE_BYTES // 2)))


@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="this kernel has no huge pages to ask for")
def test_so_is_what_the_disk_writes_from_and_what_is_received_into() -> None:
    received = BufferPool(CHUNK_BYTES).take(CHUNK_BYTES)
    assert received is not None
    written = [Staging(2 * HUGE_BYTES), *several(3, HUGE_BYTES)]
    for address in (_address(received), *(staging.address for staging in written)):
        assert "hg" in _flags_at(address)


@pytest.mark.parametrize("size", [1, 4096, HUGE_BYTES - 1, HUGE_BYTES, HUGE_BYTES + 1, 3 * HUGE_BYTES])
def test_it_is_as_large_as_asked_for_and_zero_and_ones_own(size: int) -> None:
    memory = fresh_memory(size)
    assert len(memory) >= size
    assert memory[:size] == bytes(size)
    memory[:size] = b"\1" * size
    assert fresh_memory(size)[:size] == bytes(size)


def test_a_kernel_that_refuses_gives_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", -1, raising=False)
    assert len(fresh_memory(HUGE_BYTES)) == HUGE_BYTES


def test_a_system_without_such_advice_gives_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert len(fresh_memory(HUGE_BYTES)) == HUGE_BYTES
