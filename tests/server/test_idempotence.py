"""Idempotent producers through the protocol: Kafka's rules (KIP-98), over restarts and kills as well."""

import asyncio

import pytest

from tests.server.client import Client, batch_of, numbered
from tests.server.world import Server, World, until
from tidelog.raft import Reason, Refusal
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import InitProducerIdRequest, MetadataRequest

SEQUENCE_MAX = 2**31 - 1


async def _topic(world: World) -> tuple[Server, Client]:
    server = await world.start()
    await server.create("t")
    return server, await server.connect()


async def _accepted(client: Client, batch: bytearray) -> int:
    answer = await client.produce("t", batch)
    assert answer.error_code == 0, answer
    return answer.base_offset


async def _error(server: Server, batch: bytearray) -> int:
    """What the batch gets on a connection of its own, which it may end."""
    return (await (await server.connect()).produce("t", batch)).error_code


async def _values(server: Server) -> list[str]:
    return await (await server.connect()).read_all("t")


async def test_the_last_five_batches_are_known_again(world: World) -> None:
    server, client = await _topic(world)
    for sequence in range(8):
        assert await _accepted(client, numbered(1, sequence)) == sequence
    for sequence in (7, 3, 5, 4, 6):
        assert await _accepted(client, numbered(1, sequence)) == sequence
    assert server.high_watermark("t") == 8
    assert await _error(server, numbered(1, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert server.high_watermark("t") == 8


async def test_a_duplicate_must_have_the_same_first_and_last_sequence(world: World) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, 0, "a", "b", "c"))
    assert await _error(server, numbered(1, 0, "a", "b")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _error(server, numbered(1, 1, "b", "c")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _accepted(client, numbered(1, 0, "a", "b", "c")) == 0
    assert server.high_watermark("t") == 3


async def test_a_duplicate_of_a_batch_under_way_is_answered_with_its_offset_when_it_is_committed(world: World) -> None:
    server, client = await _topic(world)
    retrying = await server.connect()
    server.disk.hold_syncs()
    for sequence in range(3):
        client.send_produce("t", numbered(1, sequence))
    await server.until_appended("t", 3)
    for sequence in range(3):
        retrying.send_produce("t", numbered(1, sequence))
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    assert server.replica("t").log.next_offset == 3
    server.disk.release_syncs()
    assert [(await client.receive_produced()).base_offset for _ in range(3)] == [0, 1, 2]
    answers = [await retrying.receive_produced() for _ in range(3)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 2)]


async def test_a_duplicate_under_way_on_the_same_connection_is_answered_twice_with_one_offset(world: World) -> None:
    server, client = await _topic(world)
    server.disk.hold_syncs()
    client.send_produce("t", numbered(1, 0))
    client.send_produce("t", numbered(1, 0))
    await server.until_appended("t", 1)
    server.disk.release_syncs()
    assert [(await client.receive_produced()).base_offset for _ in range(2)] == [0, 0]
    assert server.high_watermark("t") == 1


async def test_a_duplicate_of_a_committed_batch_does_not_wait_for_newer_ones(world: World) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, 0))
    server.disk.hold_syncs()
    client.send_produce("t", numbered(1, 1))
    await server.until_appended("t", 2)
    async with asyncio.timeout(5):
        answer = await (await server.connect()).produce("t", numbered(1, 0), timeout_ms=500)
    assert (answer.error_code, answer.base_offset) == (0, 0)


async def test_a_produce_pipelined_behind_a_duplicate_is_appended_behind_it(world: World) -> None:
    _, client = await _topic(world)
    await _accepted(client, numbered(1, 0))
    for sequence in (0, 1, 2):
        client.send_produce("t", numbered(1, sequence))
    assert [(await client.receive_produced()).base_offset for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        pytest.param(numbered(1, 3, epoch=5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a gap"),
        pytest.param(numbered(1, 0, "x", "y", epoch=5), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="overlap"),
        pytest.param(numbered(1, 2, epoch=4), ErrorCode.INVALID_PRODUCER_EPOCH, id="an old epoch"),
        pytest.param(numbered(1, 0, epoch=4), ErrorCode.INVALID_PRODUCER_EPOCH, id="an old epoch from 0"),
        pytest.param(numbered(1, 2, epoch=6), ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, id="a new epoch, not from 0"),
    ],
)
async def test_a_batch_out_of_order_is_refused_and_leaves_no_trace(
    world: World, batch: bytearray, error: ErrorCode
) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, 0, epoch=5))
    await _accepted(client, numbered(1, 1, epoch=5))
    assert await _error(server, batch) == error
    assert server.high_watermark("t") == 2
    assert await _accepted(client, numbered(1, 2, epoch=5)) == 2


async def test_a_new_epoch_from_zero_is_accepted_and_fences_the_old_one(world: World) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, 0))
    await _accepted(client, numbered(1, 1))
    assert await _accepted(client, numbered(1, 0, epoch=1)) == 2
    assert await _error(server, numbered(1, 2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await _accepted(client, numbered(1, 1, epoch=1)) == 3


async def test_after_the_last_sequence_comes_zero(world: World) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, SEQUENCE_MAX - 1, "a"))
    await _accepted(client, numbered(1, SEQUENCE_MAX, "b"))
    await _accepted(client, numbered(1, 0, "c"))
    assert await _accepted(client, numbered(1, 1, "d")) == 3
    assert server.high_watermark("t") == 4


async def test_a_batch_may_span_the_wrap(world: World) -> None:
    server, client = await _topic(world)
    await _accepted(client, numbered(1, SEQUENCE_MAX, "a", "b", "c"))
    assert await _accepted(client, numbered(1, SEQUENCE_MAX, "a", "b", "c")) == 0
    assert await _error(server, numbered(1, 1, "x")) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _accepted(client, numbered(1, 2, "d")) == 3


@pytest.mark.parametrize("sequence", [0, 1, 4711, SEQUENCE_MAX])
async def test_of_an_unknown_producer_any_first_sequence_is_accepted(world: World, sequence: int) -> None:
    _, client = await _topic(world)
    assert await _accepted(client, numbered(77, sequence)) == 0


async def test_streams_and_producers_do_not_know_of_each_other(world: World) -> None:
    server = await world.start()
    await server.create("t", 2)
    client = await server.connect()
    for partition in range(2):
        for producer in range(3):
            for sequence in range(2):
                answer = await client.produce("t", numbered(producer, sequence), partition)
                assert (answer.error_code, answer.base_offset) == (0, producer * 2 + sequence)


async def test_batches_without_a_producer_are_never_duplicates(world: World) -> None:
    _, client = await _topic(world)
    assert [await _accepted(client, batch_of("same")) for _ in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("end", ["clean stop", "kill"])
async def test_producers_are_known_again_after_a_restart(world: World, end: str) -> None:
    server, client = await _topic(world)
    for sequence in range(7):
        await _accepted(client, numbered(1, sequence))
    await _accepted(client, numbered(2, 0, epoch=3))
    if end == "kill":
        folder = world.copy_as_killed(server, "copy")
        server = await world.start(folder)
    else:
        await server.stop()
        server = await world.start()
    client = await server.connect()
    for sequence in range(2, 7):
        assert await _accepted(client, numbered(1, sequence)) == sequence
    assert await _error(server, numbered(1, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await _error(server, numbered(2, 1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await _accepted(client, numbered(1, 7)) == 8
    assert server.high_watermark("t") == 9


async def test_a_restart_in_the_middle_of_retries_writes_each_record_once(world: World) -> None:
    """Killed with batches under way: whichever of them are on disk, sending all again gives each once, in order."""
    server, client = await _topic(world)
    for sequence in range(3):
        await _accepted(client, numbered(1, sequence, f"r{sequence}"))
    server.disk.hold_syncs()
    for sequence in range(3, 6):
        client.send_produce("t", numbered(1, sequence, f"r{sequence}"))
    await server.until_appended("t", 6)
    server = await world.start(world.copy_as_killed(server, "copy"))
    client = await server.connect()
    for sequence in range(3, 8):
        client.send_produce("t", numbered(1, sequence, f"r{sequence}"))
    answers = [await client.receive_produced() for _ in range(5)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, offset) for offset in range(3, 8)]
    assert await _values(server) == [f"r{sequence}" for sequence in range(8)]


async def test_a_retry_is_recognised_while_the_leader_still_learns_what_is_committed(world: World) -> None:
    """A new leader knows its producers only when all before its term is applied: until then it must not take more."""
    server, client = await _topic(world)
    for sequence in range(3):
        await _accepted(client, numbered(1, sequence))
    stream = server.replica("t").stream
    server = await world.start(world.copy_as_killed(server, "copy"), never_ready=stream)
    await until(lambda: "t" in server.broker.state.topics and server.replica("t").leads)
    assert not server.replica("t").ready
    client = await server.connect()
    client.send_produce("t", numbered(1, 2), timeout_ms=1_000)
    await client.sent()
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    server.disk.release_syncs()
    answer = await client.receive_produced()
    await server.until_led()
    assert server.replica("t").log.next_offset == 3, "it was written once"
    assert (answer.error_code, answer.base_offset) in [(0, 2), (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)]


async def test_producer_ids_are_never_given_out_twice(world: World) -> None:
    server = await world.start()
    client = await server.connect()
    for _ in range(50):
        client.send(InitProducerIdRequest())
    ids = [answer.producer_id for answer in await client.receive_all()]
    server = await world.start(world.copy_as_killed(server, "copy"))
    client = await server.connect()
    ids += [(await client.ask(InitProducerIdRequest(), version)).producer_id for version in range(6)]
    assert len(set(ids)) == 56
    assert min(ids) >= 0


async def test_many_producers_at_once_get_ids_of_one_block(world: World) -> None:
    server = await world.start()
    clients = [await server.connect() for _ in range(20)]
    for client in clients:
        client.send(InitProducerIdRequest())
    ids = {(await client.receive()).producer_id for client in clients}
    assert len(ids) == 20


async def test_transactional_producers_are_told_that_there_are_no_transactions(world: World) -> None:
    server = await world.start()
    response = await (await server.connect()).ask(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1))
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert response.producer_id == -1


async def test_a_batch_that_was_refused_is_no_duplicate_when_it_is_retried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was seen, and then not appended (no room): what is under way beside it stays known, and it does not."""
    server, client = await _topic(world)
    await _accepted(client, numbered(1, 0))
    server.disk.hold_syncs()
    under_way = await server.connect()
    under_way.send_produce("t", numbered(1, 1))
    await server.until_appended("t", 2)
    host = server.broker.node._host
    with monkeypatch.context() as patch:
        patch.setattr(host, "propose", lambda *_: Refusal(Reason.BUSY))
        assert await _error(server, numbered(1, 2)) == ErrorCode.NOT_ENOUGH_REPLICAS
    retrying = await server.connect()
    retrying.send_produce("t", numbered(1, 1))
    retrying.send_produce("t", numbered(1, 2))
    await server.until_appended("t", 3)
    server.disk.release_syncs()
    assert [(await retrying.receive_produced()).base_offset for _ in range(2)] == [1, 2]
    assert (await under_way.receive_produced()).base_offset == 1
    assert server.high_watermark("t") == 3
