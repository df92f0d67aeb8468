"""The names of a simulated disk: a tree of directories, and the journal of what is not durable in it yet.

Names are durable only after their directory was synced. A power cut keeps a prefix of each directory's operations. An
operation on two directories (a rename from one to the other) is one transaction: kept or lost in both.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from .inode import Inode


@dataclass(slots=True, eq=False)
class Directory:
    names: "dict[str, Node]" = field(default_factory=dict)
    durable: "dict[str, Node]" = field(default_factory=dict)


Node = Directory | Inode


@dataclass(frozen=True, slots=True)
class Operation:
    """One transaction of the journal. It is durable only with all earlier ones on any of its directories."""

    directories: tuple[Directory, ...]
    changes: tuple[tuple[Directory, str, Node | None], ...]  # None: the name goes away

    def apply(self) -> None:
        for directory, name, node in self.changes:
            _set(directory.names, name, node)

    def make_durable(self) -> None:
        for directory, name, node in self.changes:
            _set(directory.durable, name, node)


class Names:
    def __init__(self) -> None:
        self.root = Directory()
        self._journal: list[Operation] = []

    def find(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in split(path):
            node = node.names.get(name) if isinstance(node, Directory) else None
        return node

    def find_durable(self, path: str) -> Node | None:
        node: Node | None = self.root
        for name in split(path):
            node = node.durable.get(name) if isinstance(node, Directory) else None
        return node

    def file(self, path: str) -> Inode:
        node = self.find(path)
        if not isinstance(node, Inode):
            raise error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if not isinstance(node, Directory):
            raise error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        *folder, name = split(path)
        return self.directory("/".join(folder)), name

    def change(self, operation: Operation) -> None:
        operation.apply()
        self._journal.append(operation)

    def commit(self, directory: Directory) -> None:
        """Make durable all operations on `directory`, and what came before them in the directories they also touch."""
        needed = {directory}
        left: list[Operation] = []
        committed: list[Operation] = []
        for operation in reversed(self._journal):
            if needed.isdisjoint(operation.directories):
                left.append(operation)
            else:
                needed.update(operation.directories)
                committed.append(operation)
        for operation in reversed(committed):
            operation.make_durable()
        self._journal = left[::-1]

    def commit_all(self) -> None:
        for operation in self._journal:
            operation.make_durable()
        self._journal.clear()

    def crash(self, rng: Random) -> None:
        """Keep a prefix of each directory's operations; what touches two directories must lie in both prefixes."""
        loss = rng.choice((0.0, 0.1, 0.5, 1.0))
        cut: set[Directory] = set()
        for operation in self._journal:
            if rng.random() < loss or not cut.isdisjoint(operation.directories):
                cut.update(operation.directories)
            else:
                operation.make_durable()
        self._journal.clear()
        _forget_all_but_durable(self.root)


def inodes_under(directory: Directory, *, durable: bool = False) -> Iterator[Inode]:
    """All files in a directory and below: those it has now, or those it is certain to have after a power cut."""
    for node in (directory.durable if durable else directory.names).values():
        if isinstance(node, Inode):
            yield node
        else:
            yield from inodes_under(node, durable=durable)


def split(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _forget_all_but_durable(directory: Directory) -> None:
    directory.names = dict(directory.durable)
    for node in directory.names.values():
        if isinstance(node, Directory):
            _forget_all_but_durable(node)


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node
