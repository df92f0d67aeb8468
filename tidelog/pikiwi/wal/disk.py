"""The few things done to files here, each with what makes it durable, and with the fault points of any disk."""

import errno
import fcntl
import os
from pathlib import Path

from tidelog import faults
from tidelog.pikiwi.errors import WalError

LOCK_NAME = "lock"


def write_all(descriptor: int, data: bytes) -> None:
    """At the end of the file; a short write is gone on with, so an error says that something of it may be there."""
    if faults.ARMED:
        faults.hit("disk.write")
    written = os.write(descriptor, data)
    if written < len(data):
        rest = memoryview(data)
        while written < len(data):
            written += os.write(descriptor, rest[written:])


def sync_file(descriptor: int) -> None:
    if faults.ARMED:
        faults.hit("disk.sync")
    os.fdatasync(descriptor)


def sync_folder(path: Path) -> None:
    """So that names made, changed or removed in it stay so."""
    if faults.ARMED:
        faults.hit("disk.sync-directory")
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """With its parents, all durable."""
    missing = [path]
    while not missing[-1].is_dir() and missing[-1] != missing[-1].parent:
        missing.append(missing[-1].parent)
    for folder in reversed(missing[:-1]):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """The whole file or the one before, never a part of it; with `durable` it has arrived when this returns."""
    temporary = path.with_name(f"{path.name}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(descriptor, data)
        if durable:
            sync_file(descriptor)
    finally:
        os.close(descriptor)
    if faults.ARMED:
        faults.hit("disk.rename")
    temporary.replace(path)
    if durable:
        sync_folder(path.parent)


def lock_folder(path: Path) -> int:
    """Make the folder and take its lock, which is held until the descriptor is closed, or the process ends."""
    make_folder(path)
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno == errno.EWOULDBLOCK:
            raise WalError(f"{path} is in use by another receiver: stop it, or give this one another wal_dir") from None
        raise
    return descriptor
