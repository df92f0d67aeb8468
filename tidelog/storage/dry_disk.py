"""A disk on which changes are imagined: they show to whoever works on it, and nothing of them reaches the files.

It is what recovery, which tidies up, runs on when a folder is only to be looked at. Small files are replaced whole
(`small_file`), so the new content is kept in memory; of larger ones only the intention is noted.
"""

from collections.abc import Sequence

from tidelog.storage.disk import Buffer, Disk, File
from tidelog.storage.small_file import TEMPORARY


class DryDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._made: dict[str, MemoryFile] = {}
        self._gone: set[str] = set()
        self.intentions: list[str] = []
        """What would have been done to the files."""

    def make_directory(self, path: str, *, durable: bool = True) -> None:
        pass

    def list_directory(self, path: str) -> list[str]:
        return self._disk.list_directory(path)

    def remove_directory(self, path: str) -> None:
        self.intentions.append(f"remove {path}")

    def exists(self, path: str) -> bool:
        return path in self._made or (path not in self._gone and self._disk.exists(path))

    def open_read(self, path: str) -> File:
        return self._made[path] if path in self._made else self._disk.open_read(path)

    def open_write(self, path: str, *, direct: bool = False) -> File:
        del direct  # memory needs no alignment
        if path in self._made:
            return self._made[path]
        if path.endswith(TEMPORARY):
            self._made[path] = made = MemoryFile()
            return made
        self.intentions.append(f"change {path}")
        return UnchangedFile(self._disk.open_read(path))

    def rename(self, old: str, new: str) -> None:
        self.intentions.append(f"replace {new}")
        self._made[new] = self._made.pop(old)

    def remove(self, path: str) -> None:
        self.intentions.append(f"remove {path}")
        self._made.pop(path, None)
        self._gone.add(path)

    def sync_directory(self, path: str) -> None:
        pass

    def lock(self, path: str) -> File:
        return self._disk.lock(path)


class MemoryFile:
    """A file that was made here."""

    alignment = 1

    def __init__(self) -> None:
        self._content = bytearray()

    def size(self) -> int:
        return len(self._content)

    def read_at(self, position: int, length: int) -> bytes:
        return bytes(self._content[position : position + length])

    def read_into(self, position: int, memory: memoryview) -> int:
        data = self.read_at(position, len(memory))
        memory[: len(data)] = data
        return len(data)

    def read_ready(self, position: int, memory: memoryview) -> int:
        return self.read_into(position, memory)

    def written_until(self, start: int, end: int) -> int:
        del start
        return end

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        for buffer in buffers:
            self._content[position : position + len(buffer)] = buffer
            position += len(buffer)

    def sync(self) -> None:
        pass

    def truncate(self, length: int) -> None:
        del self._content[length:]

    def close(self) -> None:
        pass


class UnchangedFile:
    """A file that stays as it is, whatever is written to it."""

    alignment = 1

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.size
        self.read_at = file.read_at
        self.read_into = file.read_into
        self.read_ready = file.read_ready
        self.written_until = file.written_until
        self.close = file.close

    def write_at(self, position: int, buffers: Sequence[Buffer]) -> None:
        pass

    def sync(self) -> None:
        pass

    def truncate(self, length: int) -> None:
        pass
