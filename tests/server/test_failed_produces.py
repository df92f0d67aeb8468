"""Promise 5: after a produce to a stream fails on a connection, nothing later on that connection is accepted for it.

Promise 6 for produces: each is answered within its own timeout, whatever the disk does.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.server.client import batch_of, fetch_request, numbered, produce_request
from tests.server.world import Server, World, until
from tidelog.raft import Reason, Refusal
from tidelog.wire.batch import ATTRIBUTE_CONTROL, seal
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import MetadataRequest

Invalid = Callable[[], tuple[bytearray, int]]
"""Gives a batch that is refused, and the partition it goes to."""


def _corrupt() -> tuple[bytearray, int]:
    batch = batch_of("corrupt")
    batch[-1] ^= 1
    return batch, 0


def _too_large() -> tuple[bytearray, int]:
    return batch_of(bytes(20_000)), 0


def _unknown_partition() -> tuple[bytearray, int]:
    return batch_of("nowhere"), 7


def _bad_codec() -> tuple[bytearray, int]:
    batch = batch_of("codec")
    batch[22] |= 0x05
    seal(batch)
    return batch, 0


def _control() -> tuple[bytearray, int]:
    batch = batch_of("control")
    batch[22] |= ATTRIBUTE_CONTROL
    seal(batch)
    return batch, 0


def _out_of_order() -> tuple[bytearray, int]:
    return numbered(900, 77), 0


def _garbage() -> tuple[bytearray, int]:
    return bytearray(b"\x00" * 200), 0


INVALID: dict[str, tuple[Invalid, ErrorCode]] = {
    "corrupt": (_corrupt, ErrorCode.CORRUPT_MESSAGE),
    "too large": (_too_large, ErrorCode.MESSAGE_TOO_LARGE),
    "unknown partition": (_unknown_partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    "bad codec": (_bad_codec, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "control": (_control, ErrorCode.INVALID_RECORD),
    "out of order": (_out_of_order, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    "garbage": (_garbage, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
}


async def _server(world: World) -> Server:
    server = await world.start()
    await server.create("t", max_message_bytes="10000")
    # The producer of the out-of-order batch is known.
    assert (await (await server.connect()).produce("t", numbered(900, 0, "first"))).error_code == 0
    return server


async def _everything(server: Server, topic: str = "t") -> list[str]:
    return await (await server.connect()).read_all(topic)


@pytest.mark.parametrize("kind", INVALID)
@pytest.mark.parametrize("position", [0, 3, 7])
async def test_nothing_behind_an_invalid_produce_is_accepted(world: World, kind: str, position: int) -> None:
    server = await _server(world)
    invalid, error = INVALID[kind]
    client, other = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    for number in range(8):
        batch, partition = invalid() if number == position else (batch_of(f"v{number}"), 0)
        client.send_produce("t", batch, partition)
    other.send_produce("t", batch_of("other"))
    await server.until_appended("t", 1 + position + 1)
    server.disk.release_syncs()

    answers = [await client.receive_produced() for _ in range(8)]
    assert [answer.error_code for answer in answers[:position]] == [0] * position
    assert answers[position].error_code == error
    assert all(answer.error_code != 0 for answer in answers[position:])
    await client.expect_end()
    assert (await other.receive_produced()).error_code == 0
    assert (await other.produce("t", batch_of("other again"))).error_code == 0
    found = [value for value in await _everything(server) if value.startswith("v")]
    assert found == [f"v{number}" for number in range(position)]


async def test_produces_that_arrive_after_the_failure_was_answered_are_not_accepted(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    assert (await client.produce("t", _corrupt()[0])).error_code == ErrorCode.CORRUPT_MESSAGE
    client.send_produce("t", batch_of("late"))
    await client.expect_closed()
    assert await _everything(server) == ["first"]


async def test_the_refusal_of_a_later_produce_makes_the_client_try_again(world: World) -> None:
    """Nothing is wrong with the later ones themselves, so the client must be told something that it may retry."""
    server = await _server(world)
    client = await server.connect()
    client.send_produce("t", _corrupt()[0])
    client.send_produce("t", batch_of("fine"))
    await client.receive_produced()
    assert (await client.receive_produced()).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_other_requests_behind_a_failed_produce_are_answered(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    client.send_produce("t", _corrupt()[0])
    client.send(MetadataRequest(topics=[]))
    assert (await client.receive_produced()).error_code == ErrorCode.CORRUPT_MESSAGE
    assert (await client.receive()).brokers
    await client.expect_end()


async def test_of_two_batches_for_a_partition_in_one_request_the_second_is_not_taken_without_the_first(
    world: World,
) -> None:
    server = await _server(world)
    client = await server.connect()
    request = produce_request("t", [(0, _corrupt()[0]), (0, batch_of("second"))])
    response = await client.ask(request, 9)
    errors = [answer.error_code for answer in response.responses[0].partition_responses]
    assert errors[0] == ErrorCode.CORRUPT_MESSAGE
    assert errors[1] != 0
    assert await _everything(server) == ["first"]


async def test_a_failed_partition_does_not_take_the_others_of_its_request_with_it(world: World) -> None:
    server = await world.start()
    await server.create("t", 3)
    client = await server.connect()
    request = produce_request("t", [(0, batch_of("a")), (1, _corrupt()[0]), (2, batch_of("c"))])
    response = await client.ask(request, 9)
    errors = [answer.error_code for answer in response.responses[0].partition_responses]
    assert errors == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert [server.high_watermark("t", number) for number in range(3)] == [1, 0, 1]


# --- failures after the append: time runs out while the disk is busy -------------------------------------------------


async def test_a_produce_is_answered_when_its_time_is_up_though_the_disk_is_stuck(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    server.disk.hold_syncs()
    answer = await client.produce("t", batch_of("slow"), timeout_ms=200)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    await client.expect_end()


async def test_each_produce_ends_in_its_own_time(world: World) -> None:
    """The first has much time, the ones behind it little: they end first inside, and are answered in order."""
    server = await _server(world)
    client, impatient = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("patient"), timeout_ms=30_000)
    await server.until_appended("t", 2)
    assert (await impatient.produce("t", batch_of("impatient"), timeout_ms=100)).error_code == 7
    server.disk.release_syncs()
    assert (await client.receive_produced()).error_code == 0


async def test_produces_behind_one_that_timed_out_fail_though_they_come_to_be_committed(world: World) -> None:
    server = await _server(world)
    client, other = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("v0"), timeout_ms=200)
    for number in range(1, 4):
        client.send_produce("t", batch_of(f"v{number}"), timeout_ms=30_000)
    await server.until_appended("t", 5)
    other.send_produce("t", batch_of("other"), timeout_ms=30_000)
    assert (await client.receive_produced()).error_code == ErrorCode.REQUEST_TIMED_OUT
    server.disk.release_syncs()
    assert all([(await client.receive_produced()).error_code != 0 for _ in range(3)])
    await client.expect_end()
    assert (await other.receive_produced()).error_code == 0
    assert await _everything(server) == ["first", "v0", "v1", "v2", "v3", "other"]


async def test_a_stream_where_nothing_failed_is_acknowledged_behind_one_that_timed_out(world: World) -> None:
    server = await world.start()
    await server.create("t", 2)
    client = await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("a"), 0, timeout_ms=200)
    client.send_produce("t", batch_of("b"), 1, timeout_ms=30_000)
    assert (await client.receive_produced()).error_code == ErrorCode.REQUEST_TIMED_OUT
    server.disk.release_syncs()
    assert (await client.receive_produced()).error_code == 0
    await client.expect_end()


async def test_a_retry_of_a_batch_under_way_ends_in_its_own_time(world: World) -> None:
    """The original has 30 seconds, its retry on a new connection a fifth of one."""
    server = await _server(world)
    first, second = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    first.send_produce("t", numbered(901, 0), timeout_ms=30_000)
    await server.until_appended("t", 2)
    async with asyncio.timeout(5):
        answer = await second.produce("t", numbered(901, 0), timeout_ms=200)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_retry_with_more_time_outlives_the_original(world: World) -> None:
    """The original's time is up; the retry, which came meanwhile, still waits for the commit and learns the offset."""
    server = await _server(world)
    first, second = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    first.send_produce("t", numbered(901, 0), timeout_ms=500)
    await server.until_appended("t", 2)
    second.send_produce("t", numbered(901, 0), timeout_ms=30_000)
    assert (await first.receive_produced()).error_code == ErrorCode.REQUEST_TIMED_OUT
    server.disk.release_syncs()
    answer = await second.receive_produced()
    assert (answer.error_code, answer.base_offset) == (0, 1)


async def test_a_retry_after_the_original_timed_out_waits_for_the_commit(world: World) -> None:
    server = await _server(world)
    first, second = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    assert (await first.produce("t", numbered(901, 0), timeout_ms=100)).error_code == ErrorCode.REQUEST_TIMED_OUT
    second.send_produce("t", numbered(901, 0), timeout_ms=30_000)
    await second.sent()
    await (await server.connect()).ask(MetadataRequest(topics=[]))
    server.disk.release_syncs()
    answer = await second.receive_produced()
    assert (answer.error_code, answer.base_offset) == (0, 1)


async def test_an_idempotent_producer_that_retries_writes_each_record_once_and_in_order(world: World) -> None:
    """Its fourth batch times out; it reconnects and sends everything that was not acknowledged again."""
    server = await world.start()
    await server.create("t")
    producer = await server.new_producer()
    expected = [f"r{number}" for number in range(12)]

    client = await server.connect()
    for number in range(3):
        assert (await client.produce("t", numbered(producer, number, f"r{number}"))).error_code == 0
    server.disk.hold_syncs()
    for number in range(3, 8):  # five under way, as many as Kafka's producers have
        client.send_produce("t", numbered(producer, number, f"r{number}"), timeout_ms=100)
    errors = [(await client.receive_produced()).error_code for _ in range(5)]
    assert all(errors)
    await client.expect_end()
    server.disk.release_syncs()
    await until(lambda: server.high_watermark("t") == 8)

    client = await server.connect()
    for number in range(3, 12):
        client.send_produce("t", numbered(producer, number, f"r{number}"))
    answers = [await client.receive_produced() for _ in range(9)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, number) for number in range(3, 12)]
    assert await _everything(server) == expected


async def test_an_idempotent_producer_that_retries_while_the_disk_is_still_stuck_ends_with_each_record_once(
    world: World,
) -> None:
    server = await world.start()
    await server.create("t")
    producer = await server.new_producer()
    server.disk.hold_syncs()
    acknowledged: list[int] = []
    for attempt in range(6):
        if attempt == 4:
            server.disk.release_syncs()
            await until(lambda: server.high_watermark("t") == server.replica("t").log.next_offset)
        client = await server.connect()
        left = [number for number in range(5) if number not in acknowledged]
        for number in left:
            client.send_produce("t", numbered(producer, number, f"r{number}"), timeout_ms=50)
        acknowledged += [number for number in left if (await client.receive_produced()).error_code == 0]
        await client.close()
    assert acknowledged == [0, 1, 2, 3, 4]
    assert await _everything(server) == [f"r{number}" for number in range(5)]


# --- acks=0 ----------------------------------------------------------------------------------------------------------


async def test_a_produce_without_acks_gets_no_answer(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    client.send_produce("t", batch_of("quiet"), acks=0)
    client.send(MetadataRequest(topics=[]))
    await client.receive()  # the next answer is that to the next request
    assert await _everything(server) == ["first", "quiet"]


@pytest.mark.parametrize("kind", INVALID)
async def test_a_failing_produce_without_acks_ends_the_connection(world: World, kind: str) -> None:
    server = await _server(world)
    client = await server.connect()
    client.send_produce("t", batch_of("before"), acks=0)
    batch, partition = INVALID[kind][0]()
    client.send_produce("t", batch, partition, acks=0)
    client.send_produce("t", batch_of("after"), acks=0)
    await client.expect_end()
    assert await _everything(server) == ["first", "before"]


async def test_answers_before_a_failing_produce_without_acks_arrive(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    client.send_produce("t", batch_of("acknowledged"))
    client.send_produce("t", _corrupt()[0], acks=0)
    assert (await client.receive_produced()).error_code == 0
    await client.expect_end()


# --- the node or its disk ends ---------------------------------------------------------------------------------------


async def test_requests_under_way_when_the_node_stops_end_with_the_connection(world: World) -> None:
    server = await _server(world)
    client, other = await server.connect(), await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("held"))
    other.send(_long_poll())
    await server.until_appended("t", 2)
    await server.stop()
    for one in (client, other):
        await one.expect_closed()


def _long_poll() -> object:
    return fetch_request("t", [(0, 1)], max_wait_ms=30_000)


async def test_a_failed_sync_ends_the_node_and_acknowledges_nothing(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    server.disk.hold_syncs()
    client.send_produce("t", batch_of("lost"))
    await server.until_appended("t", 2)
    server.disk.syncs_fail = True
    server.disk.release_syncs()
    await until(lambda: server.failure is not None)
    assert server.high_watermark("t") == 1
    await server.stop()
    await client.expect_closed()


async def test_a_full_disk_times_produces_out_and_takes_them_again_when_there_is_room(world: World) -> None:
    server = await _server(world)
    client = await server.connect()
    server.disk.full = True
    answer = await client.produce("t", batch_of("no room"), timeout_ms=200)
    assert answer.error_code in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR)
    assert server.failure is None
    server.disk.full = False
    error = int(ErrorCode.KAFKA_STORAGE_ERROR)
    async with asyncio.timeout(10):  # the disk is tried again once in a while
        while error == ErrorCode.KAFKA_STORAGE_ERROR:
            error = (await (await server.connect()).produce("t", batch_of("room"))).error_code
    assert error == 0
    assert await _everything(server) == ["first", "no room", "room"]


async def test_a_batch_that_fits_no_segment_is_too_large(world: World) -> None:
    """The topic allows it, the node's segments do not."""
    server = await world.start(storage_segment_bytes=1 << 20)
    await server.create("t", max_message_bytes="8000000")
    client, other = await server.connect(), await server.connect()
    answer = await client.produce("t", batch_of(bytes(3_000_000)))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await other.produce("t", batch_of("small"))).error_code == 0


async def test_nothing_is_appended_behind_one_that_is_refused_when_the_turn_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Produces of one turn are proposed together, those with another timeout apart: the first of them is refused."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    propose, refused = server.broker.node._host.propose, []
    stream = server.broker.state.topics["t"].partitions[0].stream

    def refuse_first(*arguments: Any) -> Any:
        if not refused and arguments[0] == stream:  # the cluster's own log may be written to at any time
            refused.append(arguments)
            return Refusal(Reason.BUSY)
        return propose(*arguments)

    monkeypatch.setattr(server.broker.node._host, "propose", refuse_first)
    for number in range(4):
        client.send_produce("t", batch_of(f"value {number}"), timeout_ms=10_000 + 1_000 * (number % 2))
    answers = [await client.receive_produced() for _ in range(4)]
    assert refused
    assert all(answer.error_code != 0 for answer in answers)
    await client.expect_closed()
    assert await (await server.connect()).read_all("t") == []
