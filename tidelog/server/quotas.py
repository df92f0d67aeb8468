"""Traffic in classes, each with a bound in bytes a second that can be changed at any time.

Three classes, as in VDL: writes, reads at the tail (from memory), and catch-up reads (from disk), so that a consumer
that reads history cannot take the disk from producers. A class is a token bucket that may go into debt: what was asked
for is done, and whoever asked is made to wait until the debt is paid. So nobody holds memory while waiting.
"""

from dataclasses import dataclass

BURST_S = 1.0  # what may be saved up
DELAY_MS_MAX = 30_000  # of one answer; the debt stays, and the next one waits again


class TokenBucket:
    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        self._rate = bytes_per_second
        self._tokens = bytes_per_second * BURST_S
        self._filled_ms = now_ms

    def set_rate(self, bytes_per_second: int, now_ms: int) -> None:
        """0: no bound. A debt made under the old bound is forgotten."""
        if bytes_per_second != self._rate:
            self.__init__(bytes_per_second, now_ms)

    @property
    def bounded(self) -> bool:
        return self._rate > 0

    def charge(self, size: int, now_ms: int) -> int:
        """Take `size` tokens; how many milliseconds to wait for them."""
        if self._rate == 0:
            return 0
        earned = max(0, now_ms - self._filled_ms) * self._rate / 1000
        self._filled_ms = max(now_ms, self._filled_ms)
        self._tokens = min(self._rate * BURST_S, self._tokens + earned) - size
        return 0 if self._tokens >= 0 else min(DELAY_MS_MAX, int(-self._tokens * 1000 / self._rate) + 1)


@dataclass(slots=True)
class Quotas:
    write: TokenBucket
    tail_read: TokenBucket
    catch_up_read: TokenBucket
