"""Whether one call, syncfs(2), may stand for the syncs of many files and folders.

It writes back and commits everything on a file system. That is worth it when hundreds of files are new: each has a sync
of its own and its folder's to wait for otherwise. What must be true before it is believed:

* the kernel reports failed writes to it (5.8 and later; before, it said that all was well), to a descriptor that was
  open when they failed: so one is held open from the beginning;
* the file system is one that makes the disk write out its own cache, also when nothing but data was overwritten and
  its journal has nothing new. ext4 does. XFS forces its log, and with a clean log there may be nothing that does it;
  some in user space, over networks or in layers pass on nothing at all.
"""

import ctypes
import os
import platform
import re

KERNEL_MIN = (5, 8)
FILE_SYSTEMS = ("ext4",)
MOUNTS = "/proc/self/mountinfo"

_libc = ctypes.CDLL(None, use_errno=True)


def sync_file_system(descriptor: int) -> None:
    if _libc.syncfs(descriptor) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def can_sync_whole(path: str) -> bool:
    """Whether `sync_file_system` of a descriptor of `path` makes everything there durable, or says that it failed."""
    if not hasattr(_libc, "syncfs") or not _is_new_enough(platform.release()):
        return False
    try:
        with open(MOUNTS, encoding="utf-8", errors="replace") as file:
            return file_system_of(os.stat(path).st_dev, file.read()) in FILE_SYSTEMS
    except OSError:
        return False


def _is_new_enough(release: str) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= KERNEL_MIN


def file_system_of(device: int, mounts: str) -> str:
    """The type of the file system with this device number, as mountinfo lists it; empty when it does not."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        place, _, rest = line.partition(" - ")
        if place.split()[2:3] == [wanted] and rest:
            return rest.split()[0]
    return ""
