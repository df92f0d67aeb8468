"""The server's parts that run in the simulator: replicas of streams, and the cluster's log.

All that depends on how the server makes them is here. They know two clocks: the node's own, which is simulated, and the
wall's, which stands still (what it stamps is of no consequence here, but would differ from run to run). Bounds that are
reached once a day are made small.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from tidelog.cluster import Applied, Command, TopicConfig
from tidelog.groups.producers import Producers
from tidelog.raft import Group, Host
from tidelog.server import cluster_log, replica
from tidelog.server.cluster_log import ClusterLog
from tidelog.server.replica import Replica
from tidelog.storage import StreamLog

EXPIRATION_MS = 1 << 40  # of producers: never
CONFIG = TopicConfig.of({})

SMALL: list[tuple[object, str, object]] = [
    (replica, "APPLICATION_ENTRIES_MAX", 20),
    (cluster_log, "SNAPSHOT_EVERY", 15),
    (replica, "wall_ms", lambda: 0),
    (cluster_log, "wall_ms", lambda: 0),
]


@contextmanager
def small_server() -> Iterator[None]:
    """While a world lives."""
    with ExitStack() as stack:
        for module, name, value in SMALL:
            stack.enter_context(patch.object(module, name, value))
        yield


def make_replica(
    log: StreamLog, group: Group, host: Host, now: Callable[[], int], gathering: Callable[[Replica], None]
) -> Replica:
    return Replica(log, group, host, CONFIG, Producers(EXPIRATION_MS), now, gathering)


def make_cluster_log(applied: Callable[[Command, Applied], None]) -> ClusterLog:
    """`applied` is told of every command, right after it changed the state."""

    async def forward(command: Command, timeout_ms: int) -> int:
        raise NotImplementedError("the simulator's clients ask the leader themselves")

    return ClusterLog(applied, forward)


def producers_state(made: Replica) -> bytes:
    """What the replica knows of idempotent producers from the committed log, as bytes to compare."""
    return made.producers.encode(0)
