"""What the machine's disks are doing."""

import os
import time
from pathlib import Path

SETTLE_S_MAX = 15.0
SETTLED_S = 0.25
WRITTEN, DISCARDED = 9, 16  # columns of /proc/diskstats: sectors, since the machine was started
SECTORS_MAX = 2048  # written while nobody works: a megabyte


def settle_disks() -> None:
    """Have everything written that is only in memory, and wait until the disks have next to nothing to do."""
    os.sync()
    deadline = time.monotonic() + SETTLE_S_MAX
    before = _moved()
    while time.monotonic() < deadline:
        time.sleep(SETTLED_S)
        now = _moved()
        if now - before < SECTORS_MAX:
            return
        before = now


def _moved() -> int:
    """Sectors that were written or discarded, on all disks; nothing where that cannot be known."""
    try:
        lines = Path("/proc/diskstats").read_text().splitlines()
    except OSError:
        return 0
    return sum(
        int(columns[place])
        for columns in (line.split() for line in lines)
        for place in (WRITTEN, DISCARDED)
        if place < len(columns)
    )
