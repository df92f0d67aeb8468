"""The two clocks of a node: one that only runs, for deadlines and leases, and the wall's, for what clients see."""

import time


def now_ms() -> int:
    """Milliseconds since the machine started. It also counts while the machine is suspended: leases need that."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000
