"""Promise 6 for requests other than Produce: each is answered in its own time, whatever the disk or the topic does."""

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.server.client import batch_of, fetch_request
from tests.server.world import World, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreatePartitionsRequestTopic,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
)

SHORT_MS = 200
NO_ANSWER_S = 5  # only an answer that never comes takes so long

CHANGES: dict[str, tuple[Callable[[], object], Callable[..., int]]] = {
    "create": (
        lambda: CreateTopicsRequest(
            topics=[CreateTopicsRequestTopic(name="new", num_partitions=1, replication_factor=1)], timeout_ms=SHORT_MS
        ),
        lambda response: response.topics[0].error_code,
    ),
    "delete": (
        lambda: DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=SHORT_MS),
        lambda response: response.responses[0].error_code,
    ),
    "grow": (
        lambda: CreatePartitionsRequest(
            topics=[CreatePartitionsRequestTopic(name="t", count=3, assignments=None)], timeout_ms=SHORT_MS
        ),
        lambda response: response.results[0].error_code,
    ),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_topics_times_out_when_the_disk_is_stuck(world: World, change: str) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    request, error_of = CHANGES[change]
    server.disk.hold_syncs()
    async with asyncio.timeout(NO_ANSWER_S):
        response = await client.ask(request())
    assert error_of(response) == ErrorCode.REQUEST_TIMED_OUT


async def test_a_long_poll_ends_when_its_topic_is_deleted(world: World) -> None:
    server = await world.start()
    await server.create("t")
    reader, admin = await server.connect(), await server.connect()
    reader.send(fetch_request("t", [(0, 0)], max_wait_ms=60_000))
    await until(lambda: len(server.replica("t").watchers) == 1)
    await admin.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=10_000))
    async with asyncio.timeout(NO_ANSWER_S):
        response = await reader.receive()
    assert response.responses[0].partitions[0].error_code != 0


async def test_produces_under_way_end_when_their_topic_is_deleted(world: World) -> None:
    """The deletion comes behind them in the writer's queue: they are acknowledged or refused, never forgotten."""
    server = await world.start()
    await server.create("t")
    producer, admin = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    for number in range(5):
        producer.send_produce("t", batch_of(str(number)))
    await server.until_appended("t", 5)
    admin.send(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=10_000))
    await admin.sent()
    server.disk.release_syncs()
    async with asyncio.timeout(NO_ANSWER_S):
        errors = [(await producer.receive_produced()).error_code for _ in range(5)]
        response = await admin.receive()
    assert response.responses[0].error_code == 0
    assert errors == sorted(errors, key=bool), "none is acknowledged behind one that was refused"


async def test_a_produce_is_answered_that_is_committed_in_the_turn_in_which_its_stream_is_dropped(world: World) -> None:
    server = await world.start()
    await server.create("t")
    producer = await server.connect()
    node, stream = server.broker.node, server.replica("t").stream
    cluster, writer = node.replicas[CLUSTER_STREAM], node._store.stores[0].writer
    server.disk.hold_syncs()
    cluster.move_start(0, server.broker.now() + 10_000, lambda _: None)  # committed first; and what then happens:
    cluster.take = lambda _: node.drop(stream)  # type: ignore[method-assign]
    producer.send_produce("t", batch_of("x"))
    await server.until_appended("t", 1)
    server.disk.release_syncs()
    give_up = time.monotonic() + NO_ANSWER_S
    while {report.stream for report in writer._reports} < {CLUSTER_STREAM, stream}:
        assert time.monotonic() < give_up
        time.sleep(0.001)  # noqa: ASYNC251 - the loop hears of neither before it hears of both
    assert (await producer.receive_produced()).error_code == 0


async def test_a_topic_made_anew_has_nothing_of_the_one_before(world: World) -> None:
    server = await world.start()
    for turn in range(3):
        await server.create("t")
        client = await server.connect()
        assert (await client.produce("t", batch_of(f"turn {turn}"))).base_offset == 0
        assert await client.read_all("t") == [f"turn {turn}"]
        await client.ask(DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name="t")], timeout_ms=10_000))
        assert (await client.fetch("t", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_node_whose_disk_failed_stops_without_waiting_for_it(world: World) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("lost"))
    await server.until_appended("t", 1)
    server.disk.syncs_fail = True
    server.disk.release_syncs()
    await until(lambda: server.failure is not None)
    stopping = asyncio.ensure_future(server.stop())
    stopped, _ = await asyncio.wait({stopping}, timeout=2)
    await stopping
    assert stopped


async def test_a_stopped_node_starts_again_with_everything_it_acknowledged(world: World) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for number in range(200):
        client.send_produce("t", batch_of(str(number)))
    acknowledged = [(await client.receive_produced()).base_offset for _ in range(100)]
    await server.stop()
    server = await world.start()
    client = await server.connect()
    found = await client.read_all("t")
    assert found[:100] == [str(offset) for offset in acknowledged]
    assert found == [str(number) for number in range(len(found))], "no gap among those that were not acknowledged"
    assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
