"""A node's monotonic clock: it runs a little fast or slow, and may jump forward, but never goes back.

A jump is what a node sees after it was suspended (a paused virtual machine, SIGSTOP): the world moved on. The
rate stays within the drift that leases are told to allow for.
"""

from random import Random

DRIFT_MAX = 0.01  # a node's second is between 0.99 and 1.01 of the world's


class Clock:
    """Reads in microseconds since the node's machine started, like CLOCK_MONOTONIC."""

    def __init__(self, rng: Random, now: int, *, drift_max: float = DRIFT_MAX) -> None:
        self.rate = 1.0 + rng.uniform(-drift_max, drift_max)
        self._world_origin = now
        self._local_origin = rng.randrange(1 << 40)  # machines started at different times

    def read(self, now: int) -> int:
        """What the clock shows when the world's time is `now`."""
        return self._local_origin + int((now - self._world_origin) * self.rate)

    def jump(self, microseconds: int) -> None:
        assert microseconds >= 0
        self._local_origin += microseconds

    def world_delay(self, local_delay: int) -> int:
        """How long the world must wait until this clock has moved on by `local_delay`."""
        return int(local_delay / self.rate) + 1
