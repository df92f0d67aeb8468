"""A disk that loses what was not synced: it watches what happens to the files of a folder, cuts the power before a
chosen step, and then makes what could be found afterwards.

The rules, as POSIX file systems keep them: after fdatasync a file's content is durable; of what was written since then
any sectors may have arrived, in any order, or none, and the file may have any size in between. A name is durable, or
gone, after an fsync of its folder, and may be or not be there before.
"""

import os
import random
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

SECTOR_BYTES = 512
NEVER = 1 << 30


class PowerCut(BaseException):
    """Not an error that anybody could handle."""


class WatchedDisk:
    """Watches the folder while the block runs. Steps are counted from 0; the power goes before step `cut_before`."""

    def __init__(self, folder: Path, cut_before: int = NEVER) -> None:
        self.folder = folder
        self.steps = 0
        self._cut_before = cut_before
        self._synced: dict[str, bytes] = {}
        self._names: set[str] = set()  # durable ones
        self._descriptors: list[int] = []
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> "WatchedDisk":
        self._real_open, self._real_close = os.open, os.close
        for name in ("write", "pwrite", "ftruncate", "fdatasync", "fsync"):
            self._patch.setattr(os, name, self._watched(name, getattr(os, name)))
        self._patch.setattr(os, "open", self._open)
        self._patch.setattr(os, "close", self._close)
        self._patch.setattr(Path, "unlink", self._unlink(Path.unlink))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        self._patch.undo()
        for descriptor in self._descriptors:
            os.close(descriptor)
        return kind is PowerCut

    def _step(self) -> None:
        if self.steps == self._cut_before:
            self._cut_before = -1
        if self._cut_before == -1:
            raise PowerCut
        self.steps += 1

    def _watched(self, name: str, real: Any) -> Any:
        def call(descriptor: int, *arguments: Any) -> Any:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            self._step()
            result = real(descriptor, *arguments)
            if name == "fdatasync":
                self._synced[path.name] = path.read_bytes()
            elif name == "fsync" and path == self.folder:
                self._names = set(os.listdir(path))
            return result

        return call

    def _open(self, path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT:
            self._step()
        descriptor = self._real_open(path, flags, *rest)
        self._descriptors.append(descriptor)
        return descriptor

    def _close(self, descriptor: int) -> None:
        if descriptor in self._descriptors:
            self._descriptors.remove(descriptor)
        self._real_close(descriptor)

    def _unlink(self, real: Any) -> Any:
        def call(path: Path) -> None:
            self._step()
            real(path)

        return call

    def left(self, image: Path, chance: random.Random) -> None:
        """One of the states that may be found afterwards, as a folder of its own."""
        image.mkdir()
        present = set(os.listdir(self.folder))
        for name in sorted(present | self._names):
            if (name not in present or name not in self._names) and chance.random() < 0.5:
                continue
            synced = self._synced.get(name, b"")
            current = (self.folder / name).read_bytes() if name in present else synced
            (image / name).write_bytes(_mixed(synced, current, chance))


def _mixed(synced: bytes, current: bytes, chance: random.Random) -> bytes:
    size = chance.choice([len(synced), len(current), chance.randint(*sorted((len(synced), len(current))))])
    mixed = bytearray()
    arrived = chance.choice([0.0, 0.5, 1.0])
    for at in range(0, size, SECTOR_BYTES):
        source = current if chance.random() < arrived else synced
        mixed += source[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0")
    # What was synced and not written to since is untouched, also within a sector that was written to again.
    common = next((i for i, pair in enumerate(zip(synced, current, strict=False)) if pair[0] != pair[1]), None)
    end = min(len(synced), len(current)) if common is None else common
    mixed = mixed[:size]
    mixed[: min(end, size)] = synced[: min(end, size)]
    return bytes(mixed)
