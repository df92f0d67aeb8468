"""Produce: what is acknowledged and what is refused, with which error; after a refusal the stream is as it was."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.server.client import Client, batch_of, numbered, produce_request, records_of, values_of
from tests.server.world import Server, World
from tests.wire import record_oracles
from tidelog.server.connection import Exchange
from tidelog.server.produce import DEADLINE_STEP_MS
from tidelog.wire.batch import Buffer, assemble, seal
from tidelog.wire.compression import Codec
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import RequestHeader, encode_request
from tidelog.wire.records import Record


async def _topic(world: World, **configs: Any) -> tuple[Server, Client]:
    server = await world.start()
    await server.create("t", **configs)
    return server, await server.connect()


def _changed(position: int, value: int, batch: bytearray | None = None) -> bytearray:
    """A batch with one byte changed and its checksum right."""
    made = batch or batch_of("x")
    made[position] = value
    seal(made)
    return made


def _corrupted(batch: bytearray) -> bytearray:
    batch[-1] ^= 1
    return batch


OWN: dict[str, int] = {
    "attributes": 0x20,
    "last_offset_delta": -1,
    "base_timestamp": -1,
    "max_timestamp": -1,
    "record_count": 0,
    "base_offset": 0,
    "leader_epoch": -1,
}

REFUSED: list[tuple[str, Callable[[], Buffer | None], ErrorCode]] = [
    ("wrong checksum", lambda: _corrupted(batch_of("x")), ErrorCode.CORRUPT_MESSAGE),
    ("cut short", lambda: batch_of("x" * 50)[:-3], ErrorCode.CORRUPT_MESSAGE),
    ("shorter than a header", lambda: b"\x00" * 30, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("too large", lambda: batch_of(bytes(20_000)), ErrorCode.MESSAGE_TOO_LARGE),
    ("codec 5", lambda: _changed(22, 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("codec 7", lambda: _changed(22, 7), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    ("gzip that is none", lambda: _changed(22, 1), ErrorCode.CORRUPT_MESSAGE),
    ("control", lambda: _changed(22, 0x20), ErrorCode.INVALID_RECORD),
    ("transactional", lambda: _changed(22, 0x10), ErrorCode.INVALID_RECORD),
    ("append time", lambda: _changed(22, 0x08), ErrorCode.INVALID_TIMESTAMP),
    ("no records", lambda: _changed(60, 0), ErrorCode.INVALID_RECORD),
    ("offset delta does not fit", lambda: _changed(26, 3), ErrorCode.INVALID_RECORD),
    ("producer without sequence", lambda: batch_of("x", producer_id=4), ErrorCode.INVALID_RECORD),
    ("two batches", lambda: batch_of("x") + batch_of("y"), ErrorCode.INVALID_RECORD),
    ("nothing", lambda: b"", ErrorCode.INVALID_RECORD),
    ("null", lambda: None, ErrorCode.INVALID_RECORD),
    ("magic 1", lambda: _message_set(1), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("magic 0", lambda: _message_set(0), ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    ("an entry of our own", lambda: assemble(b"\x01content", **OWN), ErrorCode.INVALID_RECORD),
]


def _message_set(magic: int, codec: Codec = Codec.NONE, count: int = 3) -> bytearray:
    records = [Record(f"m{number}".encode(), timestamp=1_000 + number) for number in range(count)]
    return bytearray(record_oracles.build("kafka-python", magic, codec, records, (-1, -1, -1)))


@pytest.mark.parametrize(("made", "error"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
async def test_a_batch_that_is_refused_leaves_the_stream_as_it_was(
    world: World, made: Callable[[], Buffer | None], error: ErrorCode
) -> None:
    server, client = await _topic(world, max_message_bytes="10000")
    assert (await client.produce("t", batch_of("before"))).error_code == 0
    answer = await client.produce("t", made())
    assert (ErrorCode(answer.error_code), answer.base_offset) == (error, -1)
    await client.expect_end()
    assert server.high_watermark("t") == server.replica("t").log.next_offset == 1


@pytest.mark.parametrize("acks", [-1, 1])
@pytest.mark.parametrize("version", range(3, 13))
async def test_a_batch_is_acknowledged_in_every_version(world: World, version: int, acks: int) -> None:
    server, client = await _topic(world)
    answer = await client.produce("t", batch_of("x"), version=version, acks=acks)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    assert server.high_watermark("t") == 1


async def test_an_acknowledged_record_is_visible_at_once(world: World) -> None:
    server, client = await _topic(world)
    reader = await server.connect()
    for number in range(20):
        await client.produce("t", batch_of(str(number)), acks=1)
        assert values_of((await reader.fetch("t", number)).records) == [str(number)]


@pytest.mark.parametrize("acks", [2, -2, 32767])
async def test_other_acks_are_invalid(world: World, acks: int) -> None:
    server, client = await _topic(world)
    assert (await client.produce("t", batch_of("x"), acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert server.high_watermark("t") == 0


async def test_transactions_are_an_invalid_request(world: World) -> None:
    server, client = await _topic(world)
    answer = await client.produce("t", batch_of("x"), transactional_id="mine")
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert server.high_watermark("t") == 0


@pytest.mark.parametrize(("topic", "partition"), [("unknown", 0), ("t", 1), ("t", -1), ("", 0)])
async def test_what_is_not_there_is_unknown(world: World, topic: str, partition: int) -> None:
    _, client = await _topic(world)
    answer = await client.produce(topic, batch_of("x"), partition)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topics_go_by_their_id_since_version_13(world: World) -> None:
    server, client = await _topic(world)
    topic_id = server.broker.state.topics["t"].id
    assert (await client.produce(topic_id, batch_of("x"), version=13)).error_code == 0
    assert (await client.produce(uuid4(), batch_of("x"), version=13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_zstd_needs_version_7(world: World) -> None:
    server, client = await _topic(world)
    assert (await client.produce("t", batch_of("x", codec=Codec.ZSTD), version=7)).error_code == 0
    refused = await client.produce("t", batch_of("x", codec=Codec.ZSTD), version=6)
    assert refused.error_code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert server.high_watermark("t") == 1


async def test_the_largest_batch_that_is_allowed_is_taken_and_one_byte_more_is_not(world: World) -> None:
    batch = batch_of(bytes(5_000))
    server, client = await _topic(world, max_message_bytes=str(len(batch)))
    assert (await client.produce("t", batch)).error_code == 0
    assert (await client.produce("t", batch_of(bytes(5_001)))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert server.high_watermark("t") == 1


async def test_with_log_append_time_records_get_the_leaders_clock(world: World) -> None:
    _, client = await _topic(world, message_timestamp_type="LogAppendTime")
    answer = await client.produce("t", batch_of("a", "b", first_time=5))
    assert answer.log_append_time_ms > 1_600_000_000_000
    records = records_of((await client.fetch("t", 0)).records)
    assert [record.timestamp for record in records] == [answer.log_append_time_ms] * 2


# --- message sets of old clients -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
@pytest.mark.parametrize(("version", "magic"), [(0, 0), (1, 0), (2, 1)])
async def test_message_sets_become_batches(world: World, version: int, magic: int, codec: Codec) -> None:
    _, client = await _topic(world)
    answer = await client.produce("t", _message_set(magic, codec), version=version)
    assert (answer.error_code, answer.base_offset) == (0, 0)
    found = records_of((await client.fetch("t", 0)).records)
    assert [(record.offset, record.value) for record in found] == [(0, b"m0"), (1, b"m1"), (2, b"m2")]


@pytest.mark.parametrize("place", ["first", "middle", "last"])
async def test_one_bad_message_refuses_its_whole_set(world: World, place: str) -> None:
    server, client = await _topic(world)
    data = _message_set(1, count=6)
    message = len(data) // 6
    end = {"first": message, "middle": 3 * message, "last": 6 * message}[place]
    data[end - 1] ^= 1
    answer = await client.produce("t", data, version=2)
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert server.replica("t").log.next_offset == 0


async def test_a_batch_in_an_old_request_is_of_the_wrong_format(world: World) -> None:
    server, client = await _topic(world)
    answer = await client.produce("t", batch_of("x"), version=2)
    assert answer.error_code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
    assert server.high_watermark("t") == 0


@pytest.mark.parametrize("version", [14, 99, -1])
async def test_a_version_that_is_not_ours_ends_the_connection(world: World, version: int) -> None:
    """In the bytes of version 9: were they read by a guess, something might be appended."""
    server, client = await _topic(world)
    data = bytearray(b"".join(encode_request(RequestHeader(0, 9, 1, "c"), produce_request("t", [(0, batch_of("x"))]))))
    data[6:8] = version.to_bytes(2, "big", signed=True)
    client.send_bytes(data)
    await client.expect_closed()
    assert server.high_watermark("t") == 0


async def test_a_producer_id_of_a_stranger_is_accepted(world: World) -> None:
    _, client = await _topic(world)
    assert (await client.produce("t", numbered(2**62, 5))).error_code == 0


async def test_requests_of_neighbouring_milliseconds_are_one_proposal(world: World) -> None:
    server, _ = await _topic(world)
    replica = server.replica("t")
    connection = next(iter(server.broker.connections))
    header, request = RequestHeader(0, 9, 1, "c"), produce_request("t", [(0, batch_of("x"))])
    last_index = replica.log.last_index
    due_ms = (server.broker.now() + request.timeout_ms) | (DEADLINE_STEP_MS - 1)
    for later_ms in (1, 2, DEADLINE_STEP_MS):
        frame = memoryview(bytearray(b"".join(encode_request(header, request))[4:]))
        server.broker.begin(Exchange(connection, 0, 9, 1, due_ms + later_ms - request.timeout_ms), frame)
    assert replica.log.last_index == last_index, "nothing was proposed before the turn's end"
    await server.until_appended("t", 3)
