"""What a seed's world is like: how large, how rough, and which faults strike how often.

Seeds take turns through the kinds below, so that any run of a dozen seeds has seen each. Everything else is drawn.
"""

from dataclasses import dataclass
from random import Random

from tidelog.raft import RaftSettings
from tidelog.storage import StorageSettings

from .network import CALM, Weather
from .scheduler import MILLISECOND, SECOND

KIB = 1024

ROUGH = Weather(slow=0.05, drop=0.02, duplicate=0.02)
STORMY = Weather(slow=0.2, drop=0.1, duplicate=0.05)

# The faults of each kind of seed with their weights; see `faults`, `schemes` and `members` for what they do.
KINDS: dict[str, dict[str, int]] = {
    "calm": {"transfer": 1, "trim": 1},
    "crashes": {"power_cut": 4, "kill": 4, "die_in_write": 8, "all_die": 1},
    "partitions": {"depose": 6, "isolate": 2, "split": 2, "one_way_cut": 4, "heal": 2, "weather": 1, "slow_disk": 2},
    "members": {"change_members": 16, "leave": 2, "power_cut": 1, "depose": 4, "transfer": 1},
    "lost disks": {"lose_disk": 4, "change_members": 8, "leave": 2, "depose": 3, "kill": 1, "trim": 1, "heal": 1},
    "full disks": {"disk_full": 6, "disk_freed": 2, "die_in_write": 1, "trim": 2, "power_cut": 1},
    "bad disks": {"sync_failure": 4, "die_in_write": 3, "slow_disk": 2},
    "clocks": {"clock_jump": 4, "leap": 4, "tempt": 4, "depose": 2, "slow_disk": 2},
    "transfers": {"transfer": 6, "usurp": 4, "power_cut": 1, "weather": 1, "one_way_cut": 1, "heal": 2},
    "trimming": {"trim": 4, "outrun": 6, "die_in_write": 2, "kill": 1, "depose": 2, "change_members": 2},
    "everything": {
        "power_cut": 2, "kill": 2, "die_in_write": 3, "all_die": 1, "depose": 4, "isolate": 1, "split": 1, "heal": 3,
        "one_way_cut": 2, "weather": 2, "change_members": 4, "leave": 1, "lose_disk": 1, "disk_full": 2,
        "disk_freed": 1, "sync_failure": 1, "slow_disk": 1, "clock_jump": 2, "leap": 1, "tempt": 1, "usurp": 1,
        "transfer": 2, "trim": 2, "outrun": 1,
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mix:
    kind: str
    nodes: int
    voters: int  # nodes 1..voters begin as the voters of every group; the others are spare
    groups: int
    storm: int  # how long faults strike, in microseconds
    fault_interval: int  # mean time between two
    proposal_interval: int
    weather: Weather
    faults: dict[str, int]
    direct: bool  # whether the disks take O_DIRECT
    lane: bool  # whether they write by themselves
    drift_max: float  # of a node's clock
    cluster_group: int  # the group that is the cluster's own log; 0: none is
    raft: RaftSettings
    storage: StorageSettings

    def is_founded(self, group: int) -> bool:
        """Whether the group's first leader is agreed upon, as a stream's is; the cluster's own log elects it."""
        return group != self.cluster_group


def mix_of(seed: int) -> Mix:
    rng = Random(f"{seed} mix")
    kind = list(KINDS)[seed % len(KINDS)]
    voters = rng.choice((3, 3, 3, 4, 5))
    nodes = voters + rng.choice((1, 2)) if "change_members" in KINDS[kind] else voters
    return Mix(
        kind=kind,
        nodes=nodes,
        voters=voters,
        groups=rng.choice((1, 1, 2, 3)),
        storm=rng.randint(2, 5) * SECOND,
        fault_interval=rng.choice((100, 200, 400)) * MILLISECOND,
        proposal_interval=rng.choice((10, 20, 40)) * MILLISECOND,
        weather=rng.choice((CALM, CALM, ROUGH, STORMY)),
        faults=KINDS[kind],
        direct=rng.random() < 0.5,
        drift_max=rng.choice((0.0, 0.01, 0.045)),  # a fast and a slow one keep within clock_drift_max
        raft=_raft(rng),
        storage=_storage(rng),
        cluster_group=rng.choice((0, 1)),
        lane=rng.random() < 0.7,
    )


def _raft(rng: Random) -> RaftSettings:
    """Small windows and bounds, so that they are met."""
    return RaftSettings(
        heartbeat_ms=100,
        election_timeout_ms=500,
        sleep_after_ms=rng.choice((100, 300, 1000)),
        append_bytes_max=rng.choice((1 * KIB, 64 * KIB)),
        window_messages_max=rng.choice((2, 8, 64)),
        window_entries_max=rng.choice((4, 64, 1000)),
        proposals_max=rng.choice((8, 1000)),
    )


def _storage(rng: Random) -> StorageSettings:
    """Tiny segments and caches, so that rolling, closing, recycling and reading from files happen all the time."""
    return StorageSettings(
        segment_bytes=rng.choice((4, 8, 16)) * KIB,
        rows_bytes=4 * KIB,
        staging_bytes=rng.choice((4, 16)) * KIB,
        tail_cache_bytes=rng.choice((1 * KIB, 8 * KIB, 1024 * KIB)),
        queue_bytes_max=rng.choice((8 * KIB, 1024 * KIB)),
        readers_max=rng.choice((2, 16)),
        pool_files_max=rng.choice((0, 1, 4)),
    )
