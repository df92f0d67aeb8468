"""Files that are ready to become segments: kept from deleted segments, or written ahead with zeros.

Overwriting blocks that exist costs a tenth of growing a file, and its sync no journal commit (docs/decisions). What a
recycled file holds does not matter: its trailer is wiped before it is handed out, and the rows' salted chain keeps its
old content from being taken for new (see `rows`).
"""

import os

from tidelog.storage.disk import Disk, File
from tidelog.storage.segment import TRAILER_BYTES, SegmentShape
from tidelog.storage.staging import Staging

FREE_SUFFIX = ".free"


class FilePool:
    """Used by one housekeeping task at a time."""

    def __init__(self, disk: Disk, folder: str, files_max: int) -> None:
        self._disk = disk
        self._folder = folder
        self._files_max = files_max
        disk.make_directory(folder)
        self._free = [name for name in disk.list_directory(folder) if name.endswith(FREE_SUFFIX)]
        self._next_number = 1 + max((int(name.removesuffix(FREE_SUFFIX)) for name in self._free), default=-1)

    def __len__(self) -> int:
        return len(self._free)

    def put(self, path: str) -> bool:
        """Keep the file at `path`; false when the pool is full. The caller syncs the folder the file leaves."""
        if len(self._free) >= self._files_max:
            return False
        name = self._new_name()
        self._disk.rename(path, os.path.join(self._folder, name))
        self._free.append(name)
        return True

    def prepare(self, path: str, shape: SegmentShape, staging: Staging) -> None:
        """Place a file of this shape at `path`, all its blocks written, its trailer wiped, durable."""
        name = self._free.pop() if self._free else self._new_name()
        source = os.path.join(self._folder, name)
        try:
            self._write_whole(source, shape, staging)
        except OSError:
            # The disk is full, most likely: half a file must not keep its room from those who need it now.
            if self._disk.exists(source):
                self._disk.remove(source)
            raise
        self._disk.rename(source, path)
        self._disk.sync_directory(os.path.dirname(path))

    def clear(self) -> None:
        """Give the files' room back."""
        while self._free:
            self._disk.remove(os.path.join(self._folder, self._free.pop()))

    def _write_whole(self, path: str, shape: SegmentShape, staging: Staging) -> None:
        file = self._disk.open_write(path, direct=True)
        try:
            if file.size() > shape.file_bytes:
                file.truncate(shape.file_bytes)
            _write_zeros(file, min(file.size(), shape.trailer_at), shape.file_bytes, staging)
            file.sync()
        finally:
            file.close()

    def _new_name(self) -> str:
        name = f"{self._next_number:08d}{FREE_SUFFIX}"
        self._next_number += 1
        return name


def _write_zeros(file: File, start: int, end: int, staging: Staging) -> None:
    position = start - start % TRAILER_BYTES
    zeros = staging.view
    zeros[:] = bytes(staging.size)
    while position < end:
        size = min(staging.size, end - position)
        file.write_at(position, [zeros[:size]])
        position += size
