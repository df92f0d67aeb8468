"""Requests while the store keeps them waiting: each ends in its own time, and none waits for another's."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from tests.server.client import Client, fetch_request, offsets_request, records_of
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, create_on
from tests.server.world import Server, until
from tests.tier.tiered import TIERED, settings, write
from tidelog.server.tiering import NICENESS
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import ListOffsetsRequest, ListOffsetsRequestPartition, ListOffsetsRequestTopic

ANY_TIME = 1
WITH_A_TIMEOUT = 10
"""ListOffsets' first version with one."""


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


class Gate:
    """A store that gives nothing of a segment before it is opened."""

    def __init__(self, server: Server) -> None:
        assert server.broker.tiering is not None
        self.waiting: set[str] = set()
        """Partitions of which something is wanted."""
        self._open = asyncio.Event()
        self._store = server.broker.tiering.store
        self._read = self._store.read
        self._store.read = self._wait  # type: ignore[method-assign]

    def open(self) -> None:
        self._open.set()

    async def _wait(self, name: str, position: int, length: int) -> memoryview:
        self.waiting.add(name.split("/")[-2])
        await self._open.wait()
        return await self._read(name, position, length)


async def gated(cluster: ClusterWorld, tmp_path: Path, partitions: int = 1, **changed: object) -> tuple[Client, Gate]:
    """A client of a node whose topic `t` has history in the store, of which nothing comes for now."""
    await cluster.start(1, **settings(tmp_path, **changed))
    await create_on(cluster.any, "t", *([1] for _ in range(partitions)), **TIERED)
    server = cluster.any
    for partition in range(partitions):
        await write(await cluster.until_led("t", partition), 15, partition=partition)
        await until(lambda partition=partition: server.replica("t", partition).log.start_offset == 10)
    return await server.connect(), Gate(server)


def counted(cluster: ClusterWorld) -> dict[str, int]:
    assert cluster.any.broker.tiering is not None
    return cluster.any.broker.tiering.metrics.topic("t").named()


def offsets_of_all(partitions: int) -> ListOffsetsRequest:
    asked = [ListOffsetsRequestPartition(partition_index=n, timestamp=ANY_TIME) for n in range(partitions)]
    return ListOffsetsRequest(topics=[ListOffsetsRequestTopic(name="t", partitions=asked)])


async def test_list_offsets_waits_for_the_store_as_long_as_the_node_allows(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    client, _ = await gated(cluster, tmp_path, remote_list_offsets_request_timeout_ms=50)
    assert (await client.list_offset("t", ANY_TIME)).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert counted(cluster)["RemoteListOffsetsExpires"] == 1
    assert (await client.list_offset("t", -2)).offset == 0, "what needs no store is answered all the same"


async def test_list_offsets_waits_for_the_store_no_longer_than_its_request_allows(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    client, _ = await gated(cluster, tmp_path, remote_list_offsets_request_timeout_ms=3_600_000)
    request = offsets_request("t", ANY_TIME)
    request.timeout_ms = 50
    answer = (await client.ask(request, WITH_A_TIMEOUT)).topics[0].partitions[0]
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_all_partitions_of_one_list_offsets_wait_together(cluster: ClusterWorld, tmp_path: Path) -> None:
    client, gate = await gated(cluster, tmp_path, partitions=3)
    asked = asyncio.create_task(client.ask(offsets_of_all(3)))
    await until(lambda: gate.waiting == {"0", "1", "2"})
    gate.open()
    answers = (await asked).topics[0].partitions
    assert [(each.error_code, each.offset) for each in answers] == [(0, 0)] * 3


async def test_all_partitions_of_one_fetch_are_read_together(cluster: ClusterWorld, tmp_path: Path) -> None:
    client, gate = await gated(cluster, tmp_path, partitions=3)
    asked = asyncio.create_task(client.ask(fetch_request("t", [(n, n) for n in range(3)], max_wait_ms=5_000), 12))
    await until(lambda: gate.waiting == {"0", "1", "2"})
    gate.open()
    parts = (await asked).responses[0].partitions
    assert [records_of(part.records)[0].offset for part in parts] == [0, 1, 2]


async def test_a_fetch_that_the_store_keeps_waiting_is_counted(cluster: ClusterWorld, tmp_path: Path) -> None:
    client, _ = await gated(cluster, tmp_path, remote_fetch_max_wait_ms=30)
    answer = await client.fetch("t", 0, max_wait_ms=0)
    assert (answer.error_code, answer.records or b"") == (0, b"")
    await until(lambda: counted(cluster)["RemoteFetchExpires"] == 1)


async def test_a_search_by_time_goes_on_when_segments_are_deleted_meanwhile(
    cluster: ClusterWorld, tmp_path: Path
) -> None:
    await cluster.start(1, **settings(tmp_path))
    await create_on(cluster.any, "t", [1], **TIERED)
    server = await cluster.until_led("t")
    await write(server, 45)
    await until(lambda: server.replica("t").log.start_offset == 40)
    gate, client = Gate(server), await server.connect()
    asked = asyncio.create_task(client.list_offset("t", ANY_TIME))
    await until(lambda: gate.waiting == {"0"})
    replica = server.replica("t")
    replica.move_start(20, replica.now() + 5_000, lambda _: None)
    await until(lambda: [each.base_offset for each in replica.remote.segments()] == [20, 30])
    gate.open()
    assert (await asked).offset == 20


async def test_threads_of_the_tiers_stand_back_behind_the_loop(cluster: ClusterWorld, tmp_path: Path) -> None:
    await cluster.start(1, **settings(tmp_path))
    tiering = cluster.any.broker.tiering
    assert tiering is not None

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    theirs = await asyncio.get_running_loop().run_in_executor(tiering.executor, niceness)
    assert theirs == max(niceness(), NICENESS)
    assert niceness() == os.getpriority(os.PRIO_PROCESS, os.getpid()), "the loop's is as it was"
