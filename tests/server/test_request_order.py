"""One connection: answers in the order of the requests, and each request sees what those before it did."""

import asyncio

import pytest

from tests.server.client import (
    EARLIEST,
    LATEST,
    Client,
    batch_of,
    fetch_request,
    offsets_request,
    produce_request,
    values_of,
)
from tests.server.world import Server, World
from tidelog.wire.frames import encode_request
from tidelog.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    HeartbeatRequest,
    MetadataRequest,
    MetadataRequestTopic,
    ProduceRequest,
)

LATER = {
    "metadata": MetadataRequest(topics=[MetadataRequestTopic(name="t")]),
    "fetch": fetch_request("t", [(0, 0)]),
    "list_offsets": offsets_request("t", LATEST),
    "heartbeat": HeartbeatRequest(group_id="g", generation_id=1, member_id="m"),
    "api_versions": ApiVersionsRequest(client_software_name="test", client_software_version="1"),
}


async def _with_held_produces(world: World, count: int) -> tuple[Server, Client]:
    """A client with so many produces under way that cannot end before the disk is let go."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    server.disk.hold_syncs()
    for number in range(count):
        client.send_produce("t", batch_of(f"v{number}"))
    await server.until_appended("t", count)
    return server, client


@pytest.mark.parametrize("later", LATER)
async def test_a_request_does_not_overtake_produces_that_wait_for_the_disk(world: World, later: str) -> None:
    server, client = await _with_held_produces(world, 3)
    client.send(LATER[later])
    await client.sent()
    # Another connection's answer shows that the loop has turned; the first client still has nothing.
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    first = asyncio.ensure_future(client.receive_produced())
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    assert not first.done()
    server.disk.release_syncs()
    assert (await first).base_offset == 0
    assert [(await client.receive_produced()).base_offset for _ in range(2)] == [1, 2]
    await client.receive()


async def test_answers_come_in_order_when_many_kinds_of_requests_are_mixed(world: World) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    produced = 0
    for turn in range(30):
        for number in range(turn % 4):
            client.send_produce("t", batch_of(f"{turn}.{number}"))
            produced += 1
        for request in LATER.values():
            client.send(request)
    await client.receive_all()  # which checks each answer's number
    assert server.high_watermark("t") == produced


async def test_a_fetch_sees_the_produces_before_it_on_its_connection(world: World) -> None:
    server, client = await _with_held_produces(world, 2)
    client.send(fetch_request("t", [(0, 0)]), 12)
    server.disk.release_syncs()
    await client.receive_produced()
    await client.receive_produced()
    response = await client.receive()
    assert values_of(response.responses[0].partitions[0].records) == ["v0", "v1"]


@pytest.mark.parametrize(("asked", "expected"), [(LATEST, 2), (EARLIEST, 0)])
async def test_list_offsets_sees_the_produces_before_it_on_its_connection(
    world: World, asked: int, expected: int
) -> None:
    server, client = await _with_held_produces(world, 2)
    client.send(offsets_request("t", asked))
    server.disk.release_syncs()
    await client.receive_produced()
    await client.receive_produced()
    response = await client.receive()
    assert response.topics[0].partitions[0].offset == expected


async def test_produces_behind_another_request_wait_for_it(world: World) -> None:
    """A long poll is under way: the produce behind it would end it, and must not be begun before."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    client.send(fetch_request("t", [(0, 0)], max_wait_ms=100), 12)
    client.send_produce("t", batch_of("late"))
    response = await client.receive()
    assert not response.responses[0].partitions[0].records
    assert (await client.receive_produced()).base_offset == 0


async def test_requests_of_other_connections_do_not_wait(world: World) -> None:
    server, _ = await _with_held_produces(world, 3)
    other = await server.connect()
    for name in ("metadata", "fetch", "list_offsets", "api_versions"):
        await other.ask(LATER[name])


async def test_more_produces_than_may_be_under_way_are_all_answered_in_order(world: World) -> None:
    server = await world.start(requests_inflight_max=4)
    await server.create("t")
    client = await server.connect()
    server.disk.hold_syncs()
    for number in range(50):
        client.send_produce("t", batch_of(str(number)))
    await server.until_appended("t", 4)
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    assert server.replica("t").log.next_offset == 4, "the bound holds"
    server.disk.release_syncs()
    assert [(await client.receive_produced()).base_offset for _ in range(50)] == list(range(50))


async def test_produces_beyond_the_nodes_memory_wait_and_are_answered_in_order(world: World) -> None:
    server = await world.start(memory_produce_bytes=5_000)
    await server.create("t")
    clients = [await server.connect() for _ in range(3)]
    server.disk.hold_syncs()
    for client in clients:
        for _ in range(10):
            client.send_produce("t", batch_of(bytes(1_000)))
    await server.until_appended("t", 5)
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    assert server.replica("t").log.next_offset <= 7
    server.disk.release_syncs()
    answers = [[await client.receive_produced() for _ in range(10)] for client in clients]
    for ours in answers:
        offsets = [answer.base_offset for answer in ours]
        assert offsets == sorted(offsets)
    assert sorted(answer.base_offset for ours in answers for answer in ours) == list(range(30))


async def test_frames_cut_anywhere_give_the_same_answers(world: World) -> None:
    """Sizes around every bound of the receiver: small frames, ones that stay in place, ones that grow."""
    server = await world.start()
    await server.create("t", max_message_bytes="20000000")
    client = await server.connect()
    sizes = [1, 100, 16_000, 17_000, 60_000, 70_000, 900_000, 1_100_000, 3_000_000]
    data = bytearray()
    for size in sizes:
        request = _produce(size)
        header = client.header(request, 9)
        data += b"".join(encode_request(header, request))
        client.expect(header)
    position, step = 0, 1
    while position < len(data):
        client.send_bytes(bytes(data[position : position + step]))
        position += step
        step = min(step * 3 % 100_003 + 1, 100_000)
        await client.sent()
    offsets = [(await client.receive_produced()).base_offset for _ in sizes]
    assert offsets == list(range(len(sizes)))
    reader = await server.connect()
    for offset, size in enumerate(sizes):
        fetched = await reader.fetch("t", offset, partition_max_bytes=1)
        assert values_of(fetched.records) == ["x" * size]


def _produce(size: int) -> ProduceRequest:
    return produce_request("t", [(0, batch_of(b"x" * size))])


async def test_a_client_that_ends_its_half_of_the_connection_still_gets_its_answers(world: World) -> None:
    server, client = await _with_held_produces(world, 3)
    client.send(LATER["metadata"])
    client.end_sending()
    server.disk.release_syncs()
    assert [(await client.receive_produced()).base_offset for _ in range(3)] == [0, 1, 2]
    await client.receive()
    await client.expect_end()


@pytest.mark.parametrize("asked", ["api_versions", "metadata"])  # answered at once, and a little later
async def test_a_client_that_asks_and_ends_its_half_at_once_gets_its_answer(world: World, asked: str) -> None:
    server = await world.start()
    client = await server.connect()
    client.send(LATER[asked])
    client.end_sending()
    await client.receive()
    await client.expect_end()


async def test_a_client_that_ended_its_half_is_not_waited_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await world.start()
    client = await server.connect()
    monkeypatch.setattr("tidelog.server.connection.LINGER_S", 0.05)
    server.disk.hold_syncs()
    topic = CreateTopicsRequestTopic(name="t", num_partitions=1, replication_factor=1)
    client.send(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    client.end_sending()
    await client.expect_closed()
    assert not server.broker.connections
    server.disk.release_syncs()


async def test_a_connection_s_trouble_does_not_keep_the_answers_of_others(world: World) -> None:
    node = (await world.start()).broker.node
    answered = asyncio.Event()
    decide = node._decide

    def decide_and_answer() -> None:
        decide()
        node.after_turn(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        node.after_turn(answered.set)

    node._decide = decide_and_answer  # type: ignore[method-assign]
    node._plan_turn()
    async with asyncio.timeout(10):
        await answered.wait()
    node._decide = decide  # type: ignore[method-assign]
