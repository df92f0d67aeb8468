"""Tiered streams over stores of all kinds: S3 behind a bad network, sealed objects, quotas, replicas that lag."""

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest

from tests.server.client import batch_of, fetch_request, records_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, admin, create_on, lead
from tests.server.world import until
from tests.tier.s3 import BUCKET, Fault, FaultProxy, s3_options, s3_server
from tests.tier.tiered import (
    TIERED,
    WIDE,
    orphans,
    read_numbers,
    settings,
    stored,
    tiered_cluster,
    until_tiered,
    write,
)
from tidelog.tier.metadata import SegmentState
from tidelog.tier.store import Patience
from tidelog.wire.messages import (
    IncrementalAlterConfigsEntry,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestResource,
)


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


async def test_history_in_s3_behind_a_network_that_fails_now_and_then(
    cluster: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(tries_max=6, pause_s=0.002)
    monkeypatch.setattr("tidelog.server.tiering.Patience", lambda: patience)
    turn = itertools.count()
    faults: list[Fault] = ["503", "reset", "truncate", "lose-answer"]

    def fault(_method: str, _path: str) -> Fault | None:
        number = next(turn)
        return faults[number // 4 % 4] if number % 4 == 3 else None

    with s3_server() as port:
        async with FaultProxy(port, fault) as proxy:
            options = ",".join(f"{key}={value}" for key, value in s3_options(proxy.port).items())
            leader = await tiered_cluster(
                cluster,
                tmp_path,
                remote_log_store_url=f"s3://{BUCKET}/tiers",
                remote_log_store_options=options,
                remote_fetch_max_wait_ms=10_000,
            )
            await write(leader, 40)
            await until_tiered(cluster, 30)
            assert await read_numbers(leader) == list(range(40))
            await until(lambda: {s.state for s in leader.replica("t").remote.segments()} == {SegmentState(1)})
            found = await admin(leader, "tier-scrub", topic="t", partition=0, remove=True)
            assert found["missing"] == []
            found = await admin(leader, "tier-scrub", topic="t", partition=0)
            assert found["orphans"] == []
            await cluster.stop()
            cluster.servers.clear()


async def test_history_that_is_compressed_and_encrypted(cluster: ClusterWorld, tmp_path: Path) -> None:
    ring = tmp_path / "ring"
    ring.write_text(f"first {os.urandom(32).hex()}\n")
    leader = await tiered_cluster(cluster, tmp_path, remote_log_compress=True, remote_log_key_ring=str(ring))
    await write(leader, 40)
    await until_tiered(cluster, 30)
    assert await read_numbers(leader) == list(range(40))
    logs = [path for path in stored(tmp_path) if path.suffix == ".log"]
    assert all(b"xxxxxxxx" not in path.read_bytes() for path in logs)
    assert sum(path.stat().st_size for path in logs) < 100_000, "a million of the same letter is small"


async def test_a_replica_that_was_away_while_the_log_moved_to_the_store_serves_everything(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 5)
    await until(lambda: cluster.servers[3].high_watermark("t") == 5)
    await cluster.kill(3)
    await write(leader, 40, first=5)
    await until_tiered(cluster, 30)
    back = await cluster.start_node(3, **settings(tmp_path))
    await until(lambda: back.replica("t").high_watermark == 45)
    assert back.replica("t").log.start_offset >= 30, "it begins where the leader's disk does"
    await write(await lead(cluster, "t", 3), 5, first=45)
    assert await read_numbers(back) == list(range(50))
    await until(lambda: orphans(tmp_path, back.replica("t")) == [])  # a copy may be under way


async def test_a_copy_quota_holds_while_the_node_runs_and_can_be_lifted(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path, remote_log_manager_copy_max_bytes_per_second=1)
    await write(leader, 40)
    tiering = leader.broker.tiering
    assert tiering is not None
    await until(lambda: tiering.metrics.node.copy_requests == 1)
    for _ in range(50):
        await asyncio.sleep(0)
    assert leader.replica("t").remote.copied_until == 0
    client = await leader.connect()
    change = IncrementalAlterConfigsEntry(
        name="remote.log.manager.copy.max.bytes.per.second", config_operation=0, value=str(1 << 40)
    )
    of_all_nodes = IncrementalAlterConfigsRequestResource(resource_type=4, resource_name="", configs=[change])
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[of_all_nodes]))
    assert answer.responses[0].error_code == 0
    await until_tiered(cluster, 30)


async def test_a_follower_serves_history_to_consumers_beside_it(cluster: ClusterWorld, tmp_path: Path) -> None:
    await write(await tiered_cluster(cluster, tmp_path, rack="a"), 30)
    await until_tiered(cluster, 20)
    request = fetch_request("t", [(0, 7)])
    request.rack_id = "a"
    client = await cluster.servers[2].connect()
    part = (await client.ask(request, 12)).responses[0].partitions[0]
    assert part.error_code == 0
    assert records_of(part.records)[0].offset == 7
    assert part.log_start_offset == 0


async def test_copying_waits_for_the_lag_that_was_asked_for(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], remote_storage_enable="true", remote_copy_lag_bytes=str(3 << 20),
                    remote_copy_lag_ms="3600000")  # fmt: skip
    await write(await lead(cluster, "t", 1), 55)
    replica = cluster.any.replica("t")
    await until(lambda: replica.remote.copied_until == 20)
    behind = sum(view.length for view in replica.log.segments_view() if view.base_offset >= 20)
    assert 2 << 20 < behind <= 4 << 20
    assert replica.log.start_offset == 0, "without local retention nothing leaves the disk"


async def test_a_fetch_quota_that_is_used_up_makes_empty_answers_and_no_errors(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    tiering = leader.broker.tiering
    assert tiering is not None
    tiering.set_bounds(leader.settings.changed({"remote.log.manager.fetch.max.bytes.per.second": "1"}))
    client = await leader.connect()
    assert (await client.fetch("t", 0)).records, "a piece is taken, and paid for afterwards"
    answer = await client.fetch("t", 15)
    assert (answer.error_code, answer.records or b"") == (0, b"")
    assert (await client.fetch("t", 39)).records
    tiering.set_bounds(leader.settings)
    assert await read_numbers(leader) == list(range(40))


async def test_many_partitions_of_one_fetch_come_together_with_those_on_disk(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], [1], [1], **TIERED)
    server = cluster.any
    client = await server.connect()
    for partition in range(3):
        for number in range(25 if partition < 2 else 3):
            await client.produce(
                "t", batch_of(f"{number} {WIDE}", first_time=int(time.time() * 1000)), partition=partition
            )
    await until(lambda: all(server.replica("t", n).log.start_offset >= 20 for n in (0, 1)))
    request = fetch_request("t", [(0, 3), (1, 12), (2, 1)], max_wait_ms=5_000)
    parts = (await client.ask(request, 12)).responses[0].partitions
    assert [part.error_code for part in parts] == [0, 0, 0]
    assert [record.offset for part in parts for record in records_of(part.records)[:1]] == [3, 12, 1]


async def test_a_fetch_takes_no_more_than_it_asked_for(cluster: ClusterWorld, tmp_path: Path) -> None:
    leader = await tiered_cluster(cluster, tmp_path)
    await write(leader, 40)
    await until_tiered(cluster, 30)
    client = await leader.connect()
    small = await client.fetch("t", 2, partition_max_bytes=250_000)
    assert [record.offset for record in records_of(small.records)] == [2, 3]
    one = await client.fetch("t", 2, partition_max_bytes=10)
    assert [record.offset for record in records_of(one.records)] == [2], "one batch in any case"


async def test_a_wrong_store_keeps_the_node_from_starting(cluster: ClusterWorld, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="key ring"):
        await cluster.start(1, **settings(tmp_path, remote_log_key_ring=str(tmp_path / "nowhere")))
    cluster.servers.clear()
