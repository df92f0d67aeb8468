"""A disk in memory that keeps exactly what POSIX and a journalling file system promise, and no more.

A file has two contents: the *current* one, which every reader sees at once (the page cache), and the *durable* one.
Between them lie the changes since the last sync. Directories are alike: current names, durable names, and the journal
of the operations between them.

    sync             the file's changes become durable
    sync_directory   the directory's operations become durable, with those they depend on in other directories
    kill             the process dies: handles and locks are gone, the page cache stays
    crash            the power fails: each 512-byte sector of each unsynced write is kept, lost or torn on its own; an
                     unsynced truncation is kept or lost; of each directory's operations a prefix is kept

A name and a content are independent of each other, as on a real disk: a file may be synced and have no durable name, or
have a durable name and lost content. A file whose removal the crash undoes still has its content.

Faults: death before, in or after a later operation (`crash_after`, `kill_after`), a failing sync (`fail_next_sync`), a
full disk (`space_bytes`), a flipped bit (`flip_bit`). Not modelled: read errors, hard links, a drive that reorders
overlapping writes to one sector. A slow disk is the scheduler's business: it delivers completions late.

Costs: a write is two memory copies; a sync copies what was written since the last one; a crash works sector by sector.
"""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from random import Random
from typing import NoReturn, Protocol

from .inode import SECTOR_BYTES, Inode
from .names import Directory, Names, Node, Operation, error, inodes_under, split

Buffer = bytes | bytearray | memoryview


class SimulatedCrash(BaseException):
    """The node died in this operation. Not an Exception: code that handles errors must not survive its own death."""


class Abandonable(Protocol):
    """Writes that are under way by themselves (`writes`)."""

    def abandon(self) -> None: ...


class SimDisk:
    """One node's disk; implements `tidelog.storage.disk.Disk`."""

    def __init__(self, rng: Random, *, space_bytes: int | None = None, direct: bool = True) -> None:
        self.space_bytes = space_bytes  # None: never full. May change at any time, also to less than is in use.
        self.used_bytes = 0
        self.slowness = 1  # a factor on what its work takes; time itself is not the disk's business
        self.down = False
        self.sync_has_failed = False  # in this life
        self._rng = rng
        self._direct = direct
        self._names = Names()
        self._life = 0  # handles of an earlier life are dead
        self._handles: dict[Inode, int] = {}  # how many are open
        self._locked: set[Inode] = set()
        self._operations_until_death: int | None = None
        self._death = self.crash
        self._sync_fails = False
        self._writes: Abandonable | None = None

    # ---- faults

    def crash(self) -> None:
        """Cut the power. The disk stays down until `restart`."""
        self._abandon_writes()
        self._names.crash(self._rng)
        for inode in inodes_under(self._names.root):
            inode.crash(self._rng)
        self.kill()

    def kill(self) -> None:
        """Kill the process. The disk stays down until `restart`."""
        self._abandon_writes()
        self.down = True
        self.used_bytes = sum(inode.space_bytes for inode in inodes_under(self._names.root))
        self._life += 1
        self._handles.clear()
        self._locked.clear()
        self.disarm()

    def set_writes(self, writes: "Abandonable") -> None:
        """What is under way by itself, in this life."""
        self._writes = writes

    def _abandon_writes(self) -> None:
        writes, self._writes = self._writes, None
        if writes is not None:
            writes.abandon()

    def restart(self) -> None:
        self.slowness = 1  # a factor on what its work takes; time itself is not the disk's business
        self.down = False
        self.sync_has_failed = False

    def crash_after(self, operations: int) -> None:
        """Let the next `operations` changes pass; cut the power before, in or after the one that follows."""
        self._operations_until_death = operations
        self._death = self.crash

    def kill_after(self, operations: int) -> None:
        """The same, but only the process dies: what it has written and not synced stays in the page cache."""
        self._operations_until_death = operations
        self._death = self.kill

    def fail_next_sync(self) -> None:
        """The next sync raises EIO. As on Linux its changes are durable or lost then; no later sync repeats them."""
        self._sync_fails = True

    def disarm(self) -> None:
        """Take back a death or a failed sync that has not come yet."""
        self._operations_until_death = None
        self._sync_fails = False

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage a file where it lies; no operation reports it."""
        inode = self._names.file(path)
        for content in (inode.content, inode.durable):
            if position < len(content):
                content[position] ^= 1 << bit

    # ---- what tests look at

    def durable_contains(self, pattern: bytes, folder: str = "") -> bool:
        """Whether `pattern` lies in a file under `folder` that a power cut now must leave, name and content."""
        directory = self._names.find_durable(folder)
        return isinstance(directory, Directory) and any(
            pattern in inode.durable for inode in inodes_under(directory, durable=True)
        )

    def durable_content(self, path: str) -> bytes | None:
        """What the file `path` is certain to hold after a power cut now; None when its name is not certain."""
        node = self._names.find_durable(path)
        return bytes(node.durable) if isinstance(node, Inode) else None

    # ---- Disk

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        self._alive()
        directory = self._names.root
        parts = split(path)
        for depth, name in enumerate(parts, 1):
            child = directory.names.get(name)
            if child is None:
                child = Directory()
                self._change(Operation((directory,), ((directory, name, child),)))
                if durable or depth < len(parts):
                    self._names.commit(directory)
            if not isinstance(child, Directory):
                raise error(errno.ENOTDIR, path)
            directory = child

    def list_directory(self, path: str) -> list[str]:
        self._alive()
        node = self._names.find(path)
        return sorted(node.names) if isinstance(node, Directory) else []

    def remove_directory(self, path: str) -> None:
        self._alive()
        parent, name = self._names.parent(path)
        directory = self._names.directory(path)
        if directory.names:
            raise error(errno.ENOTEMPTY, path)
        # That the directory is a part of it makes its removal wait for the removals inside.
        self._change(Operation((parent, directory), ((parent, name, None),)))

    def exists(self, path: str) -> bool:
        self._alive()
        return self._names.find(path) is not None

    def open_read(self, path: str) -> "SimFile":
        self._alive()
        return SimFile(self, self._names.file(path), path, writable=False)

    def open_write(self, path: str, *, direct: bool = False) -> "SimFile":
        alignment = SECTOR_BYTES if direct and self._direct else 1
        return SimFile(self, self._find_or_create(path), path, alignment=alignment)

    def rename(self, old: str, new: str) -> None:
        self._alive()
        source, old_name = self._names.parent(old)
        target, new_name = self._names.parent(new)
        node = source.names.get(old_name)
        if node is None:
            raise error(errno.ENOENT, old)
        replaced = target.names.get(new_name)
        if replaced is node:
            return
        if isinstance(replaced, Directory):
            raise error(errno.EISDIR, new)
        self._change(Operation((source, target), ((source, old_name, None), (target, new_name, node))))
        if replaced is not None:
            self._unlinked(replaced)

    def remove(self, path: str) -> None:
        self._alive()
        parent, name = self._names.parent(path)
        inode = self._names.file(path)
        self._change(Operation((parent,), ((parent, name, None),)))
        self._unlinked(inode)

    def sync_directory(self, path: str) -> None:
        self._alive()
        directory = self._names.directory(path)
        with self._mortally():
            if self._takes_sync_failure():
                raise error(errno.EIO, path)
            self._names.commit(directory)

    def sync_everything(self) -> None:
        """What a sync of the whole disk does (`tidelog.storage.disk.Whole`)."""
        with self._mortally():
            if self._takes_sync_failure():
                raise error(errno.EIO, "/")
            for inode in inodes_under(self._names.root):
                inode.sync()
            self._names.commit_all()

    def lock(self, path: str) -> "SimFile":
        inode = self._find_or_create(path)
        if inode in self._locked:
            raise error(errno.EAGAIN, path)  # which Python makes a BlockingIOError
        self._locked.add(inode)
        return SimFile(self, inode, path, holds_lock=True)

    # ---- names

    def _change(self, operation: Operation) -> None:
        with self._mortally():
            self._names.change(operation)

    def _find_or_create(self, path: str) -> Inode:
        self._alive()
        node: Node | None = self._names.find(path)
        if isinstance(node, Directory):
            raise error(errno.EISDIR, path)
        if node is None:
            node = Inode()
            if node.space_bytes > self._free_bytes:
                raise error(errno.ENOSPC, path)
            parent, name = self._names.parent(path)
            self._change(Operation((parent,), ((parent, name, node),)))
            self.used_bytes += node.space_bytes
        return node

    # ---- files, for SimFile

    def _write(self, inode: Inode, path: str, position: int, data: bytes) -> None:
        dies = self._dies_now()
        if dies:
            data = data[: self._rng.choice((0, self._rng.randint(0, len(data)), len(data)))]
        fits = inode.length_that_fits(position, len(data), self._free_bytes)
        self.used_bytes += inode.space_needed(position, fits)
        inode.write(position, data[:fits])
        if dies:
            self._die()
        if fits < len(data):
            raise error(errno.ENOSPC, path)

    def _write_durably(self, inode: Inode, path: str, position: int, data: bytes) -> None:
        self._write(inode, path, position, data)
        with self._mortally():
            if self._takes_sync_failure():
                inode.fail_sync(self._rng)
                raise error(errno.EIO, path)
            inode.sync_last()

    def _write_last(self, inode: Inode, position: int, data: bytes) -> None:
        fits = inode.length_that_fits(position, len(data), self._free_bytes)
        self.used_bytes += inode.space_needed(position, fits)
        inode.write(position, data[:fits])

    def _truncate(self, inode: Inode, length: int) -> None:
        with self._mortally():
            self.used_bytes -= inode.truncate(length)

    def _sync(self, inode: Inode, path: str) -> None:
        with self._mortally():
            if self._takes_sync_failure():
                inode.fail_sync(self._rng)
                raise error(errno.EIO, path)
            inode.sync()

    def _opened(self, inode: Inode) -> None:
        self._handles[inode] = self._handles.get(inode, 0) + 1

    def _closed(self, inode: Inode, *, unlock: bool) -> None:
        if unlock:
            self._locked.remove(inode)
        self._handles[inode] -= 1
        if not self._handles[inode]:
            del self._handles[inode]
            if not inode.linked:
                self.used_bytes -= inode.space_bytes

    def _unlinked(self, inode: Inode) -> None:
        """A file without a name gives its space back when the last handle is closed."""
        inode.linked = False
        if inode not in self._handles:
            self.used_bytes -= inode.space_bytes

    # ---- space, life and death

    @property
    def _free_bytes(self) -> float:
        return inf if self.space_bytes is None else max(0, self.space_bytes - self.used_bytes)

    def _takes_sync_failure(self) -> bool:
        fails, self._sync_fails = self._sync_fails, False
        self.sync_has_failed = self.sync_has_failed or fails
        return fails

    def _alive(self) -> None:
        if self.down:
            raise SimulatedCrash

    def _dies_now(self) -> bool:
        """Count an operation that changes the disk; True when the node dies in it."""
        self._alive()
        if self._operations_until_death is None:
            return False
        self._operations_until_death -= 1
        return self._operations_until_death < 0

    @contextmanager
    def _mortally(self) -> Iterator[None]:
        """Around a change that is done or not done: when the node dies in it, it dies either before or after."""
        dies = self._dies_now()
        if dies and self._rng.random() < 0.5:
            self._die()
        yield
        if dies:
            self._die()

    def _die(self) -> NoReturn:
        self._death()
        raise SimulatedCrash


class SimFile:
    """A handle; implements `tidelog.storage.disk.File`. It stays on its file when that is renamed or removed."""

    def __init__(
        self,
        disk: SimDisk,
        inode: Inode,
        path: str,
        *,
        alignment: int = 1,
        writable: bool = True,
        holds_lock: bool = False,
    ) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._alignment = alignment
        self._writable = writable
        self._holds_lock = holds_lock
        self._life = disk._life
        self._open = True
        disk._opened(inode)

    @property
    def alignment(self) -> int:
        return self._alignment

    def size(self) -> int:
        self._usable()
        return len(self._inode.content)

    def read_at(self, position: int, length: int) -> bytes:
        self._usable()
        return bytes(self._inode.content[position : position + length])

    def read_into(self, position: int, memory: memoryview) -> int:
        data = self.read_at(position, len(memory))
        memory[: len(data)] = data
        return len(data)

    def written_until(self, start: int, end: int) -> int:
        return start + len(self.read_at(start, end - start).rstrip(b"\0"))

    def read_ready(self, position: int, memory: memoryview) -> int:
        return self.read_into(position, memory)

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        self._usable(to_write=True)
        data = b"".join(buffers)
        if position % self._alignment or len(data) % self._alignment:
            raise error(errno.EINVAL, self._path)
        self._disk._write(self._inode, self._path, position, data)

    def write_durably(self, position: int, data: bytes) -> None:
        """A write that counts as done only when it is durable; of what else was written to the file it says nothing."""
        self._usable(to_write=True)
        if self._alignment == 1 or position % self._alignment or len(data) % self._alignment:
            raise error(errno.EINVAL, self._path)
        self._disk._write_durably(self._inode, self._path, position, data)

    def write_last(self, position: int, data: bytes) -> None:
        """A write by the kernel, for somebody who is dead and hears of it no more."""
        self._disk._write_last(self._inode, position, data)

    def truncate(self, length: int) -> None:
        self._usable(to_write=True)
        self._disk._truncate(self._inode, length)

    def sync(self) -> None:
        self._usable()
        self._disk._sync(self._inode, self._path)

    def close(self) -> None:
        if self._open and self._life == self._disk._life:
            self._disk._closed(self._inode, unlock=self._holds_lock)
        self._open = False

    def _usable(self, *, to_write: bool = False) -> None:
        if self._life != self._disk._life:
            raise SimulatedCrash
        if not self._open or (to_write and not self._writable):
            raise error(errno.EBADF, self._path)
