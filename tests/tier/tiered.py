"""Clusters whose topics are tiered to a folder, and what tests do to them."""

import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import STAY, admin, create_on, lead
from tests.server.world import Server, until
from tidelog.server.replica import Replica
from tidelog.tier.layout import INDEXES, LOG, ObjectName, id_text
from tidelog.tier.metadata import SegmentState

WIDE = "x" * 100_000
"""A value of which some ten fill a segment."""
TIERED = {"remote_storage_enable": "true", "local_retention_bytes": "1"}


def settings(folder: Path, **changed: Any) -> dict[str, Any]:
    """Small segments, and a look at them every few milliseconds."""
    return (
        {
            "storage_segment_bytes": 1 << 20,
            "retention_check_ms": 20,
            "remote_log_storage_system_enable": True,
            "remote_log_store_url": f"file://{folder}/store",
            "remote_log_manager_task_interval_ms": 20,
            "remote_log_deleted_keep_ms": 0,
            "remote_fetch_max_wait_ms": 10_000,
        }
        | STAY
        | changed
    )


async def tiered_cluster(cluster: ClusterWorld, folder: Path, **changed: Any) -> Server:
    """Three nodes with topic `t` on all of them, led by the first."""
    await cluster.start(3, **settings(folder, **changed))
    await create_on(cluster.any, "t", [1, 2, 3], **TIERED)
    return await lead(cluster, "t", 1)


@asynccontextmanager
async def owner(tmp_path: Path, **configs: str) -> AsyncIterator[tuple[ClusterWorld, Server]]:
    """Another cluster, of one node, whose topic `t` is tiered to the same store."""
    world = ClusterWorld(tmp_path / "owner")
    try:
        await world.start(1, **settings(tmp_path))
        await create_on(world.any, "t", [1], **(TIERED | configs))
        yield world, await world.until_led("t")
    finally:
        await world.stop()


async def attached(cluster: ClusterWorld, tmp_path: Path, offset: int, **changed: Any) -> Server:
    """Three nodes that show it as `shown`, at least up to an offset."""
    await cluster.start(3, **settings(tmp_path, **changed))
    made = await admin(cluster.any, "tier-attach", source="t", topic="shown")
    assert (made["topic"], made["partitions"]) == ("shown", 1)
    leader = await lead(cluster, "shown", 1)
    await until(lambda: leader.replica("shown").high_watermark >= offset)
    return leader


async def write(server: Server, count: int, first: int = 0, topic: str = "t", **options: Any) -> None:
    """Records `first`, `first + 1`, …, one a batch, with their numbers in front."""
    client = await server.connect()
    when = 0
    for number in range(first, first + count):
        when = options.get("time_ms", max(int(time.time() * 1000), when + 1))  # no two have the same
        batch = batch_of(f"{number} {WIDE}", first_time=when)
        answer = await client.produce(topic, batch, partition=options.get("partition", 0))
        assert answer.error_code == 0
    await client.close()


async def read_numbers(server: Server, topic: str = "t", offset: int = 0, partition: int = 0) -> list[int]:
    """The numbers of all records from an offset on, in the order in which a consumer gets them."""
    client = await server.connect()
    try:
        values = await client.read_all(topic, partition, offset)
    finally:
        await client.close()
    return [int(value.split(" ")[0]) for value in values]


def replicas(cluster: ClusterWorld, topic: str = "t") -> list[Replica]:
    return [server.replica(topic) for server in cluster.servers.values()]


async def until_tiered(cluster: ClusterWorld, offset: int, topic: str = "t") -> None:
    """Everything before an offset has left every disk."""
    await until(lambda: all(replica.log.start_offset >= offset for replica in replicas(cluster, topic)))


def stored(folder: Path) -> list[Path]:
    """Folders may go while it looks."""
    return sorted(Path(place, name) for place, _, names in os.walk(folder / "store") for name in names)


def orphans(folder: Path, replica: Replica) -> list[Path]:
    """Objects of segments that the stream knows nothing of, or not as finished."""
    known = {each.id for each in replica.remote.segments() if each.state is SegmentState.COPY_FINISHED}
    found: list[Path] = []
    for path in stored(folder):
        parsed = ObjectName.parse(str(path))
        if parsed is not None and parsed.segment not in known:
            found.append(path)
    return found


def whole(folder: Path, replica: Replica) -> bool:
    """Whether every finished segment has both its objects."""
    names = {path.name for path in stored(folder)}
    return all(
        f"{each.base_offset:020d}-{id_text(each.id)}.{kind}" in names
        for each in replica.remote.readable()
        for kind in (LOG, INDEXES)
    )
