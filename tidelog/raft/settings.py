"""How a group behaves: times, and the bound of every queue it keeps."""

from dataclasses import dataclass

from tidelog.raft.errors import ConfigurationError

KIB = 1024
MIB = 1024 * KIB

TERM_MAX = 2**31 - 1
"""A term is also Kafka's leader epoch, which is a signed 32-bit number."""

NEVER_MS = 2**62
"""A deadline that no clock reaches."""


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """All nodes of a group must have the same `election_timeout_ms`: a leader's lease is its followers' patience."""

    heartbeat_ms: int = 50
    election_timeout_ms: int = 400
    """Silence after which a follower may campaign. Each wait is drawn from [1x, 2x), so that rivals seldom meet; and
    from [1x, 1.25x] when the connection to the leader's node is known to have broken."""

    clock_drift_max: float = 0.1
    """How far two nodes' clocks may run apart while one lease lasts, as a fraction of it."""

    sleep_after_ms: int = 200
    """A group this long without work goes to sleep (only where a host watches its nodes)."""

    append_bytes_max: int = 1 * MIB
    """Data in one AppendRequest. One entry may be larger; it then travels alone."""

    window_messages_max: int = 64
    window_entries_max: int = 4_096
    window_bytes_max: int = 8 * MIB
    """What may be on its way to one follower, unacknowledged. The last entry may cross the bound in bytes."""

    proposals_max: int = 4_096
    proposals_bytes_max: int = 64 * MIB
    """What a leader takes before anything of it is committed. One proposal alone may be larger."""

    reads_max: int = 4_096
    """Reads that wait for a quorum's word."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ms * 2 <= self.election_timeout_ms:
            raise ConfigurationError(
                f"heartbeat_ms={self.heartbeat_ms} must be positive and at most half of "
                f"election_timeout_ms={self.election_timeout_ms}"
            )
        if not 0 <= self.clock_drift_max < 1:
            raise ConfigurationError(f"clock_drift_max={self.clock_drift_max} must be a fraction from 0 up to 1")
        bounds = (
            self.append_bytes_max,
            self.window_messages_max,
            self.window_entries_max,
            self.window_bytes_max,
            self.proposals_max,
            self.proposals_bytes_max,
            self.reads_max,
        )
        if min(bounds) < 1 or self.sleep_after_ms < 0:
            raise ConfigurationError(f"every bound must be at least 1: {self}")

    @property
    def lease_ms(self) -> int:
        """How long a leader may rely on its followers' patience: shorter than their patience by the drift bound."""
        return int(self.election_timeout_ms * (1 - self.clock_drift_max))
