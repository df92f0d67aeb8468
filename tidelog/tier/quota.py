"""Bytes per second, for what is copied to the store and what is fetched from it (KIP-956).

A bucket that may go into debt: whoever takes bytes is told how long to wait before taking more. So a large piece is
never refused, and over a second or more the rate holds. Changeable at any time. `Pace` is for what only stands back.
Pure: the clock is passed in.
"""

UNBOUNDED = 2**63 - 1
"""Kafka's default for both quotas."""
BURST_MS = 1_000
WAIT_MS_MAX = 60_000


class ByteRate:
    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        self._rate = bytes_per_second
        self._left = self._burst
        self._at_ms = now_ms

    @property
    def _burst(self) -> float:
        return self._rate * BURST_MS / 1_000

    @property
    def bounded(self) -> bool:
        return self._rate < UNBOUNDED

    def set_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """From now on; a debt stays one."""
        self._fill(now_ms)
        self._rate = bytes_per_second
        self._left = min(self._left, self._burst)

    def charge(self, size: int, now_ms: int) -> int:
        """Take `size` bytes; gives the milliseconds to wait before more are taken."""
        if not self.bounded:
            return 0
        self._fill(now_ms)
        self._left -= size
        return self.wait_ms(now_ms)

    def wait_ms(self, now_ms: int) -> int:
        """How long the debt will last, at the rate of now. Those who wait ask again: the rate may change."""
        if not self.bounded:
            return 0
        self._fill(now_ms)
        return 0 if self._left >= 0 else min(WAIT_MS_MAX, int(-self._left * 1_000 / self._rate) + 1)

    def _fill(self, now_ms: int) -> None:
        passed_ms = max(0, now_ms - self._at_ms)
        self._at_ms = now_ms
        self._left = min(self._burst, self._left + self._rate * passed_ms / 1_000)


class Pace:
    """Keeps large answers apart, so that others find room between them.

    Each waits as long as the bytes before it take at the rate; but nobody longer than `wait_s_max`, however many come.
    """

    def __init__(self, bytes_per_second: int, wait_s_max: float) -> None:
        self._rate = bytes_per_second
        self._wait_s_max = wait_s_max
        self._free_s = 0.0

    def wait_s(self, size: int, now_s: float) -> float:
        """How long to wait with so many bytes; they are taken for sent then."""
        turn_s = min(max(self._free_s, now_s), now_s + self._wait_s_max)
        self._free_s = turn_s + size / self._rate
        return turn_s - now_s
