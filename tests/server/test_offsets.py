"""ListOffsets and DeleteRecords: earliest, latest, by time; and neither end ever goes backwards."""

import asyncio

import pytest

from tests.server.client import EARLIEST, LATEST, MAX_TIMESTAMP, Client, batch_of
from tests.server.world import Server, World
from tidelog.wire.compression import Codec
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)


async def _timed(world: World, codec: Codec = Codec.NONE) -> tuple[Server, Client]:
    """Offsets 0 to 8 with times 100, 101, 102, 200, 201, 202, 150, 151, 152, three to a batch."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    for first_time in (100, 200, 150):
        assert (await client.produce("t", batch_of("a", "b", "c", first_time=first_time, codec=codec))).error_code == 0
    return server, client


async def _delete(client: Client, offset: int, timeout_ms: int = 10_000) -> tuple[int, int]:
    partition = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
    topic = DeleteRecordsRequestTopic(name="t", partitions=[partition])
    answer = (await client.ask(DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms))).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize(
    ("asked", "offset", "timestamp"),
    [
        pytest.param(EARLIEST, 0, -1, id="earliest"),
        pytest.param(LATEST, 9, -1, id="latest"),
        pytest.param(-4, 0, -1, id="earliest local"),
        pytest.param(-5, -1, -1, id="latest tiered"),
        pytest.param(MAX_TIMESTAMP, 5, 202, id="max timestamp"),
        pytest.param(0, 0, 100, id="before all"),
        pytest.param(101, 1, 101, id="inside a batch"),
        pytest.param(103, 3, 200, id="between batches"),
        pytest.param(202, 5, 202, id="the newest"),
        pytest.param(203, -1, -1, id="after all"),
    ],
)
async def test_offsets_by_time(world: World, codec: Codec, asked: int, offset: int, timestamp: int) -> None:
    _, client = await _timed(world, codec)
    answer = await client.list_offset("t", asked)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, timestamp)


@pytest.mark.parametrize("version", range(1, 12))
async def test_every_version_gives_both_ends(world: World, version: int) -> None:
    _, client = await _timed(world)
    assert (await client.list_offset("t", EARLIEST, version=version)).offset == 0
    assert (await client.list_offset("t", LATEST, version=version)).offset == 9


@pytest.mark.parametrize(
    ("asked", "max_num_offsets", "offsets"), [(LATEST, 1, [9]), (EARLIEST, 1, [0]), (LATEST, 0, []), (EARLIEST, 5, [0])]
)
async def test_version_0_has_a_shape_of_its_own(
    world: World, asked: int, max_num_offsets: int, offsets: list[int]
) -> None:
    _, client = await _timed(world)
    partition = ListOffsetsRequestPartition(partition_index=0, timestamp=asked, max_num_offsets=max_num_offsets)
    request = ListOffsetsRequest(topics=[ListOffsetsRequestTopic(name="t", partitions=[partition])])
    answer = (await client.ask(request, 0)).topics[0].partitions[0]
    assert (answer.error_code, answer.old_style_offsets) == (0, offsets)


async def test_an_empty_stream_begins_and_ends_at_zero(world: World) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    found = [(await client.list_offset("t", asked)).offset for asked in (EARLIEST, LATEST, MAX_TIMESTAMP, 0)]
    assert found == [0, 0, -1, -1]


async def test_what_is_not_there_is_unknown(world: World) -> None:
    _, client = await _timed(world)
    assert (await client.list_offset("unknown", LATEST)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await client.list_offset("t", LATEST, 3)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_newest_time_is_that_of_a_visible_record(world: World) -> None:
    """A newer one is under way; it must be neither shown nor waited for."""
    server, client = await _timed(world)
    producer = await server.connect()
    server.disk.hold_syncs()
    producer.send_produce("t", batch_of("new", first_time=9_000), timeout_ms=2_000)
    await server.until_appended("t", 10)
    async with asyncio.timeout(4):
        answer = await client.list_offset("t", MAX_TIMESTAMP)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, 5, 202)


@pytest.mark.parametrize("end", ["clean stop", "kill"])
async def test_earliest_moves_with_delete_records_and_stays_over_a_restart(world: World, end: str) -> None:
    server, client = await _timed(world)
    assert await _delete(client, 4) == (0, 4)
    assert (await client.list_offset("t", EARLIEST)).offset == 4
    assert (await client.fetch("t", 3)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await client.read_all("t", offset=4) == ["b", "c", "a", "b", "c"]
    assert (await client.list_offset("t", 0)).offset >= 4
    if end == "kill":
        server = await world.start(world.copy_as_killed(server, "copy"))
    else:
        await server.stop()
        server = await world.start()
    client = await server.connect()
    assert (await client.list_offset("t", EARLIEST)).offset == 4
    assert (await client.list_offset("t", LATEST)).offset == 9
    assert (await client.produce("t", batch_of("d"))).base_offset == 9


async def test_records_deleted_up_to_the_end_leave_an_empty_stream_that_goes_on(world: World) -> None:
    server, client = await _timed(world)
    assert await _delete(client, -1) == (0, 9)
    assert (await client.list_offset("t", EARLIEST)).offset == 9
    found = [(await client.list_offset("t", asked)).offset for asked in (MAX_TIMESTAMP, 0)]
    assert found == [-1, -1]
    await server.stop()
    server = await world.start()
    client = await server.connect()
    assert [(await client.list_offset("t", asked)).offset for asked in (EARLIEST, LATEST)] == [9, 9]
    assert (await client.produce("t", batch_of("d"))).base_offset == 9


@pytest.mark.parametrize(("offset", "error"), [(10, 1), (-2, 1), (0, 0), (9, 0)])
async def test_bounds_of_delete_records(world: World, offset: int, error: int) -> None:
    _, client = await _timed(world)
    assert (await _delete(client, offset))[0] == error


async def test_earliest_never_goes_backwards(world: World) -> None:
    _, client = await _timed(world)
    assert await _delete(client, 6) == (0, 6)
    assert await _delete(client, 2) == (0, 6)
    assert (await client.list_offset("t", EARLIEST)).offset == 6


async def test_delete_records_ends_in_its_own_time_though_the_disk_is_stuck(world: World) -> None:
    server, client = await _timed(world)
    server.disk.hold_syncs()
    error, _ = await _delete(client, 4, timeout_ms=100)
    assert error == ErrorCode.REQUEST_TIMED_OUT


async def test_latest_never_goes_backwards_for_a_client_over_restarts(world: World) -> None:
    """Asked as soon as the node serves again: an error that asks for patience, or what was acknowledged; never less."""
    server, client = await _timed(world)
    stream = server.replica("t").stream
    server = await world.start(world.copy_as_killed(server, "copy"), never_ready=stream)
    client = await server.connect()
    while "t" not in server.broker.state.topics:
        await client.list_offset("t", LATEST)
    client.send(ListOffsetsRequest(topics=[_ask(LATEST)]))
    client.send(ListOffsetsRequest(topics=[_ask(EARLIEST)]))
    server.disk.release_syncs()
    answers = [response.topics[0].partitions[0] for response in await client.receive_all()]
    for answer, expected in zip(answers, (9, 0), strict=True):
        assert answer.error_code in (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.NONE)
        assert answer.error_code or answer.offset == expected


def _ask(timestamp: int) -> ListOffsetsRequestTopic:
    partition = ListOffsetsRequestPartition(partition_index=0, timestamp=timestamp)
    return ListOffsetsRequestTopic(name="t", partitions=[partition])
