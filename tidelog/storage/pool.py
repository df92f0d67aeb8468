"""Files that are to become segments: kept from deleted segments, or written ahead with zeros.

Overwriting blocks that exist costs a tenth of growing a file, and its sync no journal commit (docs/decisions). What a
recycled file holds does not matter: its trailer is wiped before it is handed out, and the rows' salted chain keeps its
old content from being taken for new (see `rows`).

A file on its way to a stream is a draft: it stays in the pool's folder while it is written, piece by piece, and is
moved to its place when it is whole and durable. After a crash it is a file like any that is kept, only shorter.
"""

import errno
import os
from dataclasses import dataclass

from tidelog.storage.disk import Disk, File
from tidelog.storage.segment import TRAILER_BYTES, SegmentShape
from tidelog.storage.staging import Staging

FREE_SUFFIX = ".free"
ZEROS_BYTES = 2 << 20  # of one write
POOL_TASKS = "pool"  # housekeeping that belongs to no stream's folder


@dataclass(slots=True, eq=False)
class Draft:
    name: str = ""
    """In the pool's folder; empty before the first piece."""
    size: int = 0
    given_up: bool = False


class FilePool:
    """Used by one housekeeping task at a time."""

    def __init__(self, disk: Disk, folder: str, files_max: int) -> None:
        self._disk = disk
        self._folder = folder
        self._files_max = files_max
        self._zeros = Staging(ZEROS_BYTES).view  # never touched: they take no memory
        disk.make_directory(folder)
        self._free = [name for name in disk.list_directory(folder) if name.endswith(FREE_SUFFIX)]
        self._drafts: list[Draft] = []
        self._next_number = 1 + max((int(name.removesuffix(FREE_SUFFIX)) for name in self._free), default=-1)
        while len(self._free) > files_max:  # a crash left the drafts of many streams
            disk.remove(os.path.join(folder, self._free.pop()))

    def __len__(self) -> int:
        return len(self._free) + len(self._drafts)

    def put(self, path: str) -> bool:
        """Keep the file at `path`; false when the pool is full. The caller syncs the folder the file leaves."""
        if len(self._free) >= self._files_max:
            return False
        name = self._new_name()
        self._disk.rename(path, os.path.join(self._folder, name))
        self._free.append(name)
        return True

    def extend(self, draft: Draft, size: int, shape: SegmentShape) -> bool:
        """Have the draft's blocks written up to `size`; true when it is whole, its trailer wiped, and durable.

        Raises OSError; whoever made the draft then has to discard it.
        """
        if draft.given_up:
            raise OSError(errno.ENOSPC, "its room was given back to the full disk")
        if not draft.name:
            draft.name = self._free.pop() if self._free else self._new_name()
            self._drafts.append(draft)
        file = self._disk.open_write(self._path(draft), direct=True)
        try:
            draft.size = file.size()
            if draft.size > shape.file_bytes:
                file.truncate(shape.file_bytes)
            self._write_zeros(file, min(draft.size, shape.trailer_at), size)
            draft.size = max(draft.size, size)
            if size == shape.file_bytes:
                file.sync()
        finally:
            file.close()
        return size == shape.file_bytes

    def place(self, draft: Draft, path: str) -> None:
        """Move a draft that is whole to `path`, durably."""
        self._drafts.remove(draft)
        self._disk.rename(self._path(draft), path)
        self._disk.sync_directory(os.path.dirname(path))

    def discard(self, draft: Draft) -> None:
        """Nobody wants it any more, and its room is wanted."""
        draft.given_up = True
        if draft in self._drafts:
            self._drafts.remove(draft)
            if self._disk.exists(self._path(draft)):
                self._disk.remove(self._path(draft))

    def put_back(self, draft: Draft) -> None:
        """Nobody wants it any more: keep it as it is, unless the pool is full."""
        if draft in self._drafts and len(self._free) < self._files_max:
            draft.given_up = True
            self._drafts.remove(draft)
            self._free.append(draft.name)
        else:
            self.discard(draft)

    def clear(self) -> None:
        """Give the files' room back."""
        while self._free:
            self._disk.remove(os.path.join(self._folder, self._free.pop()))
        for draft in list(self._drafts):
            self.discard(draft)

    def _path(self, draft: Draft) -> str:
        return os.path.join(self._folder, draft.name)

    def _new_name(self) -> str:
        name = f"{self._next_number:08d}{FREE_SUFFIX}"
        self._next_number += 1
        return name

    def _write_zeros(self, file: File, start: int, end: int) -> None:
        position = start - start % TRAILER_BYTES
        while position < end:
            size = min(ZEROS_BYTES, end - position)
            file.write_at(position, [self._zeros[:size]])
            position += size
