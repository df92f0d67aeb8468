"""How groups behave: times, and the bound of everything a client can make grow.

Where Kafka has a setting of the same meaning, its name stands beside it and its default is ours.
"""

from dataclasses import dataclass

from tidelog.groups.errors import GroupSettingsError

KIB = 1024
MIB = 1024 * KIB
DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms_min: int = 6_000  # group.min.session.timeout.ms
    session_timeout_ms_max: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms

    new_member_join_timeout_ms: int = 300_000
    """How long a member that has never had an answer may wait for one: its client may be long gone."""

    offsets_retention_ms: int = 7 * DAY_MS  # offsets.retention.minutes
    offsets_retention_check_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_bytes_max: int = 4_096  # offset.metadata.max.bytes

    members_max: int = 10_000
    """Members of one group (group.max.size, which Kafka leaves unbounded)."""

    pending_members_max: int = 10_000
    """Ids of one group given out in the first step of a two-step join, and not yet used."""

    groups_max: int = 100_000
    """Groups of one coordinator."""

    offsets_max: int = 100_000
    """Partitions one group may have committed offsets for."""

    member_bytes_max: int = 1 * MIB
    """What one member may say about itself in JoinGroup: its protocols with their metadata, and its names."""

    group_record_bytes_max: int = 16 * MIB
    """A group's metadata as one record: all members with their subscriptions and assignments."""

    appends_max: int = 10_000
    """Appends that may be under way or held back; a client's commit beyond is refused."""

    snapshot_append_bytes_max: int = 1 * MIB
    """Bytes of a snapshot that are appended at once. A larger record is appended alone."""

    sweep_groups_max: int = 200
    """Groups that one tick looks through for expired offsets."""

    def __post_init__(self) -> None:
        if not 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max:
            raise GroupSettingsError(
                f"session_timeout_ms_min={self.session_timeout_ms_min} must be positive and at most "
                f"session_timeout_ms_max={self.session_timeout_ms_max}"
            )
        if min(self.initial_rebalance_delay_ms, self.offset_metadata_bytes_max) < 0:
            raise GroupSettingsError(
                f"initial_rebalance_delay_ms={self.initial_rebalance_delay_ms} and "
                f"offset_metadata_bytes_max={self.offset_metadata_bytes_max} must not be negative"
            )
        if self.offset_metadata_bytes_max > 32_767:
            raise GroupSettingsError(
                f"offset_metadata_bytes_max={self.offset_metadata_bytes_max} must fit a string of the journal (32767)"
            )
        bounds = (
            self.new_member_join_timeout_ms,
            self.offsets_retention_ms,
            self.offsets_retention_check_ms,
            self.members_max,
            self.pending_members_max,
            self.groups_max,
            self.offsets_max,
            self.member_bytes_max,
            self.group_record_bytes_max,
            self.appends_max,
            self.snapshot_append_bytes_max,
            self.sweep_groups_max,
        )
        if min(bounds) < 1:
            raise GroupSettingsError(f"every bound must be at least 1: {self}")
