"""Small files that are read whole and replaced whole: the old content or the new one, never a mixture.

A file is one line of JSON and one line with the CRC-32C of the first, so that a person can read it and damage shows.
Replacing it: write a temporary file, sync it, rename it over the old one, sync the folder.
"""

import json
import os
from typing import Any

from crc32c import crc32c

from tidelog.storage.disk import Buffer, Disk
from tidelog.storage.errors import CorruptDataError

TEMPORARY = ".tmp"


def replace_file(disk: Disk, path: str, content: Buffer) -> None:
    rename_into_place(disk, path, content)
    disk.sync_directory(os.path.dirname(path))


def rename_into_place(disk: Disk, path: str, content: Buffer) -> None:
    """As `replace_file`, but for the last step: the caller syncs the folder."""
    write_temporary(disk, path, content)
    rename_temporary(disk, path)


def write_temporary(disk: Disk, path: str, content: Buffer, *, durable: bool = True) -> None:
    """The first step. Unless it is to be `durable`, the caller syncs the file, before it renames it."""
    file = disk.open_write(path + TEMPORARY)
    try:
        file.truncate(0)
        file.write_at(0, [content])
        if durable:
            file.sync()
    finally:
        file.close()


def rename_temporary(disk: Disk, path: str) -> None:
    disk.rename(path + TEMPORARY, path)


def read_file(disk: Disk, path: str) -> bytes:
    file = disk.open_read(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def encode_json(value: dict[str, Any]) -> bytes:
    line = json.dumps(value, sort_keys=True).encode()
    return b"%s\n%08x\n" % (line, crc32c(line))


def read_json(disk: Disk, path: str) -> dict[str, Any]:
    content = read_file(disk, path)
    line, _, rest = content.partition(b"\n")
    if rest != b"%08x\n" % crc32c(line):
        raise CorruptDataError(path, 0, "the checksum in its second line does not fit the first")
    return json.loads(line)
