"""Receive memory: used again only when nobody looks at it, bounded, and owned by nobody who is idle."""

import gc
import struct
import subprocess
import sys

import pytest

from tidelog.server.framing import Frames
from tidelog.server.memory import CHUNK_BYTES, LOOKS_MAX, READ_BYTES_MIN, SIZE_MIN, BufferPool, Inlet

MIB = 1 << 20


@pytest.mark.parametrize(
    ("asked", "given"),
    [(1, SIZE_MIN), (SIZE_MIN, SIZE_MIN), (SIZE_MIN + 1, 2 * SIZE_MIN), (MIB - 1, MIB), (MIB, MIB), (MIB + 1, 2 * MIB)],
)
def test_a_buffer_has_the_next_power_of_two(asked: int, given: int) -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    buffer = pool.take(asked)
    assert buffer is not None
    assert len(buffer) == given
    assert pool.bytes == given


def test_a_buffer_that_nobody_looks_at_is_used_again() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    buffer = pool.take(MIB)
    assert buffer is not None
    identity = id(buffer)
    del buffer
    again = pool.take(MIB)
    assert id(again) == identity
    assert pool.bytes == MIB


def test_a_view_of_a_buffer_keeps_it_from_being_used_again() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    buffer = pool.take(MIB)
    assert buffer is not None
    view = memoryview(buffer)[10:20]
    view[:] = b"0123456789"
    del buffer
    others = [pool.take(MIB) for _ in range(5)]
    for other in others:
        assert other is not None
        other[:] = bytes(len(other))
    assert bytes(view) == b"0123456789"
    del view, others, other
    gc.collect()
    assert pool.take(MIB) is not None
    assert pool.bytes == 6 * MIB


def test_beyond_its_bound_there_is_none_until_one_is_let_go() -> None:
    pool = BufferPool(3 * CHUNK_BYTES)
    held = [pool.take(CHUNK_BYTES) for _ in range(3)]
    assert all(buffer is not None for buffer in held)
    assert pool.take(CHUNK_BYTES) is None
    assert pool.exhausted
    held.pop()
    assert not pool.exhausted
    assert pool.take(CHUNK_BYTES) is not None
    assert pool.bytes == 3 * CHUNK_BYTES


def test_unused_buffers_of_another_size_make_room() -> None:
    pool = BufferPool(4 * MIB)
    held = [pool.take(SIZE_MIN) for _ in range(4 * MIB // SIZE_MIN)]
    assert pool.take(2 * MIB) is None
    held.clear()
    assert pool.take(2 * MIB) is not None
    assert pool.bytes <= 4 * MIB


def test_unused_memory_of_any_size_is_not_exhaustion() -> None:
    """Nobody reads while the pool is exhausted, so nobody would ask for memory and make room by that."""
    pool = BufferPool(4 * CHUNK_BYTES)
    held = [pool.take(2 * CHUNK_BYTES) for _ in range(2)]
    assert pool.exhausted
    held.clear()
    assert not pool.exhausted


def test_release_gives_back_what_is_unused_and_keeps_what_is_looked_at() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    buffers = [pool.take(MIB) for _ in range(6)]
    looked_at = buffers[2]
    assert looked_at is not None
    view = memoryview(looked_at)
    del looked_at
    buffers.clear()
    pool.release_unused(2 * MIB)
    assert pool.bytes == 3 * MIB
    pool.release_unused(0)
    assert pool.bytes == MIB
    view.release()
    pool.release_unused(0)
    assert pool.bytes == 0


def test_buffers_that_are_held_for_long_do_not_hide_those_that_are_free() -> None:
    pool = BufferPool(100 * CHUNK_BYTES)
    held = [pool.take(CHUNK_BYTES) for _ in range(2 * LOOKS_MAX)]
    for _ in range(10):
        used = [pool.take(CHUNK_BYTES) for _ in range(LOOKS_MAX)]
        del used
    assert pool.bytes < 50 * CHUNK_BYTES
    assert len(held) == 2 * LOOKS_MAX


# --- the inlet -------------------------------------------------------------------------------------------------------


def test_room_that_nobody_keeps_is_the_same_room() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    inlet = Inlet(pool)
    first = inlet.room()
    first[:4] = b"once"
    second = inlet.room()
    assert bytes(second[:4]) == b"once"
    assert len(first) == len(second) == CHUNK_BYTES
    assert pool.bytes == CHUNK_BYTES


def test_what_is_kept_is_not_written_over() -> None:
    inlet = Inlet(BufferPool(10 * CHUNK_BYTES))
    kept: list[memoryview] = []
    for number in range(60):
        room = inlet.room()
        assert len(room) >= READ_BYTES_MIN
        room[:50_000] = bytes([number]) * 50_000
        kept.append(room[:50_000])
        inlet.keep(50_000)
    for number, view in enumerate(kept):
        assert bytes(view) == bytes([number]) * 50_000


def test_keeping_a_little_leaves_the_rest_of_the_chunk_to_the_next() -> None:
    pool = BufferPool(10 * CHUNK_BYTES)
    inlet = Inlet(pool)
    views: list[memoryview] = []
    for _ in range(9):
        views.append(inlet.room()[:100_000])
        inlet.keep(100_000)
    assert pool.bytes == CHUNK_BYTES
    assert len({id(view.obj) for view in views}) == 1


def test_without_memory_left_there_is_still_room_for_one_read() -> None:
    """Connections stop reading when the pool is exhausted; what is read once more must land somewhere."""
    pool = BufferPool(CHUNK_BYTES)
    inlet = Inlet(pool)
    first = inlet.room()
    inlet.keep(len(first))
    assert pool.exhausted
    assert len(inlet.room()) >= READ_BYTES_MIN
    assert pool.bytes == CHUNK_BYTES
    del first


@pytest.mark.parametrize("gone", [False, True])
def test_connections_that_are_idle_or_gone_hold_no_memory(gone: bool) -> None:
    """Each read into another chunk before it fell silent, or was offered room just as its client left: all of them can
    be used again. (One that is gone may lie about until the collector finds it.)
    """
    pool = BufferPool(4 * CHUNK_BYTES)
    inlet = Inlet(pool)
    kept: list[memoryview] = []
    silent: list[Frames] = []
    for _ in range(20):
        frames = Frames(CHUNK_BYTES, CHUNK_BYTES, inlet, pool, lambda _frame, _key: False, (), 1)
        room = frames.room()
        if gone:
            frames.drop()
        else:
            room[:12] = struct.pack(">ihhi", 8, 18, 0, 7)
            frames.received(12)
        del room
        silent.append(frames)
        kept = [inlet.room()]  # a producer's batch fills the rest of the chunk, and is let go soon
        inlet.keep(len(kept[0]))
    kept.clear()
    assert len(silent) == 20
    assert not pool.exhausted


def test_freed_memory_is_kept_up_to_a_bound() -> None:
    """In a process of its own, for it cannot be undone."""
    program = """
import ctypes
from tidelog.server.memory import keep_freed
keep_freed(64 << 20, 4 << 20)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.sbrk.restype = ctypes.c_void_p
pieces = [libc.malloc(4 << 20) for _ in range(8)]
top = libc.sbrk(0)
for piece in pieces:
    libc.free(piece)
assert libc.sbrk(0) == top, "it was given back"
pieces = [libc.malloc(4 << 20) for _ in range(32)]
for piece in pieces:
    libc.free(piece)
assert libc.sbrk(0) < max(pieces), "more than the bound was kept"
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
