"""A node's monotonic clock: it runs a little fast or slow, and may jump forward, but never goes back.

A jump is what a node sees after it was suspended (a paused virtual machine, SIGSTOP): the world moved on. The
rate stays within the drift that leases are told to allow for.
"""

from random import Random


class Clock:
    """Reads in microseconds since the node's machine started, like CLOCK_MONOTONIC."""

    def __init__(self, rng: Random, now: int, drift_max: float) -> None:
        """A second of this clock is between 1 - drift_max and 1 + drift_max of the world's."""
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
