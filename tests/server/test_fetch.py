"""Fetch: what is committed, as much as was asked for, as soon as there is enough; from memory or from files."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from tests.server.client import Client, batch_of, fetch_request, records_of, values_of
from tests.server.world import Server, World, until
from tests.wire import record_oracles
from tests.wire.oracles import ORACLES
from tidelog.wire.compression import Codec
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import decode_response
from tidelog.wire.messages import APIS, FetchRequest, FetchRequestPartition, FetchRequestTopic, FetchResponse

FETCH = APIS[1]


async def _filled(world: World, batches: int = 5, size: int = 1_000, **settings: Any) -> tuple[Server, Client]:
    server = await world.start(**settings)
    await server.create("t")
    client = await server.connect()
    for number in range(batches):
        assert (await client.produce("t", batch_of(f"{number:04}".ljust(size, ".")))).error_code == 0
    return server, client


def _numbers(data: object) -> list[int]:
    return [int((record.value or b"")[:4]) for record in records_of(data)]  # type: ignore[arg-type]


async def test_a_long_poll_wakes_when_something_is_committed(world: World) -> None:
    server, client = await _filled(world, 1)
    client.send(fetch_request("t", [(0, 1)], max_wait_ms=60_000))
    await until(lambda: len(server.replica("t").watchers) == 1)
    assert (await (await server.connect()).produce("t", batch_of("new"))).error_code == 0
    response = await client.receive()
    assert values_of(response.responses[0].partitions[0].records) == ["new"]
    assert not server.replica("t").watchers


async def test_a_long_poll_ends_with_nothing_when_its_time_is_up(world: World) -> None:
    server, client = await _filled(world, 1)
    answer = await client.fetch("t", 1, max_wait_ms=50)
    assert (answer.error_code, answer.high_watermark, bytes(answer.records or b"")) == (0, 1, b"")
    assert not server.replica("t").watchers


async def test_a_long_poll_waits_for_as_many_bytes_as_were_asked_for(world: World) -> None:
    server, client = await _filled(world, 0)
    producer = await server.connect()
    client.send(fetch_request("t", [(0, 0)], max_wait_ms=60_000, min_bytes=2_500))
    for number in range(3):
        assert len(server.replica("t").watchers) == (number > 0) or await _watched(server)
        await producer.produce("t", batch_of(f"{number:04}".ljust(1_000, ".")))
    response = await client.receive()
    assert _numbers(response.responses[0].partitions[0].records) == [0, 1, 2]


async def _watched(server: Server) -> bool:
    await until(lambda: len(server.replica("t").watchers) == 1)
    return True


async def test_min_bytes_of_zero_is_answered_at_once(world: World) -> None:
    _, client = await _filled(world, 0)
    assert (await client.fetch("t", 0, max_wait_ms=60_000, min_bytes=0)).error_code == 0


async def test_records_under_way_are_not_visible(world: World) -> None:
    """Visible means committed (promise 2)."""
    server, client = await _filled(world, 1)
    producer = await server.connect()
    server.disk.hold_syncs()
    producer.send_produce("t", batch_of("held"))
    await server.until_appended("t", 2)
    for version in (0, 3, 4, 12):
        answer = await client.fetch("t", 0, version=version)
        assert answer.high_watermark == 1
        assert b"held" not in bytes(answer.records or b"")
        at_the_end = await client.fetch("t", 1, version=version)
        assert (at_the_end.error_code, bytes(at_the_end.records or b"")) == (0, b"")
    assert (await client.list_offset("t", -1)).offset == 1
    server.disk.release_syncs()
    assert (await producer.receive_produced()).error_code == 0
    assert values_of((await client.fetch("t", 1)).records) == ["held"]


@pytest.mark.parametrize(
    ("max_bytes", "partition_max_bytes", "expected"),
    [
        pytest.param(10**6, 10**6, 10, id="everything"),
        pytest.param(10**6, 2_300, 2, id="the partition's bound"),
        pytest.param(3_500, 10**6, 3, id="the request's bound"),
        pytest.param(10**6, 1, 1, id="one batch in any case, by the partition's bound"),
        pytest.param(1, 10**6, 1, id="one batch in any case, by the request's bound"),
        pytest.param(0, 0, 1, id="one batch even for nothing"),
    ],
)
async def test_bounds_of_an_answer(world: World, max_bytes: int, partition_max_bytes: int, expected: int) -> None:
    _, client = await _filled(world, 10)
    answer = await client.fetch("t", 0, max_bytes=max_bytes, partition_max_bytes=partition_max_bytes)
    assert _numbers(answer.records) == list(range(expected))


async def test_only_the_first_partition_that_has_something_gets_a_batch_in_any_case(world: World) -> None:
    server = await world.start()
    await server.create("t", 4)
    client = await server.connect()
    for partition in (1, 2, 3):
        await client.produce("t", batch_of(bytes(1_000)), partition)
    request = fetch_request("t", [(number, 0) for number in range(4)], partition_max_bytes=10)
    parts = (await client.ask(request, 12)).responses[0].partitions
    assert [len(records_of(part.records)) for part in parts] == [0, 1, 0, 0]
    request = fetch_request("t", [(number, 0) for number in (3, 1, 2)], max_bytes=1_200)
    parts = (await client.ask(request, 12)).responses[0].partitions
    assert [(part.partition_index, len(records_of(part.records))) for part in parts] == [(3, 1), (1, 0), (2, 0)]


async def test_an_offset_inside_a_batch_gives_the_whole_batch(world: World) -> None:
    server, client = await _filled(world, 0)
    await client.produce("t", batch_of("a", "b", "c"))
    assert values_of((await client.fetch("t", 2)).records) == ["a", "b", "c"]
    assert server.high_watermark("t") == 3


@pytest.mark.parametrize(("offset", "error"), [(-1, 1), (5, 0), (6, 1), (2**62, 1)])
async def test_offsets_outside_the_log_are_out_of_range(world: World, offset: int, error: int) -> None:
    _, client = await _filled(world, 5)
    assert (await client.fetch("t", offset)).error_code == error


@pytest.mark.parametrize(("name", "partition"), [("t", 1), ("t", -1), ("unknown", 0)])
async def test_what_is_not_there_is_unknown(world: World, name: str, partition: int) -> None:
    _, client = await _filled(world, 1)
    assert (await client.fetch(name, 0, partition, max_wait_ms=60_000)).error_code == 3


@pytest.mark.parametrize("version", range(13, 19))
async def test_topics_go_by_their_id(world: World, version: int) -> None:
    server, client = await _filled(world, 1)
    topic_id = server.broker.state.topics["t"].id
    assert _numbers((await client.fetch(topic_id, 0, version=version)).records) == [0]
    assert (await client.fetch(uuid4(), 0, version=version)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_an_epoch_that_is_not_the_leaders_is_fenced_off(world: World) -> None:
    server, client = await _filled(world, 1)
    term = server.replica("t").group.term
    assert (await client.fetch("t", 0, epoch=term)).error_code == 0
    assert (await client.fetch("t", 0, epoch=term - 1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await client.fetch("t", 0, epoch=term + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH


@pytest.mark.parametrize("version", range(FETCH.min_version, FETCH.max_version + 1))
async def test_every_version_is_read_by_our_codec_and_by_others(world: World, version: int) -> None:
    server, client = await _filled(world, 3)
    topic = server.broker.state.topics["t"].id if version >= 13 else "t"
    header = client.send(fetch_request(topic, [(0, 0), (9, 0)]), version)
    frame = await client.receive_frame()
    assert frame is not None
    response = decode_response(header, frame)
    good, bad = response.responses[0].partitions
    assert (good.high_watermark, bad.error_code) == (3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert [record.offset for record in record_oracles.read("kafka-python", bytes(good.records))] == [0, 1, 2]
    body = frame[5:] if version >= FETCH.flexible_since else frame[4:]
    for name, oracle in ORACLES.items():
        if oracle.knows(FETCH, FetchResponse, version):
            assert oracle.ask(FETCH, FetchResponse, version, body).written == body, name


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
@pytest.mark.parametrize("version", range(4))
async def test_old_clients_get_message_sets_that_they_can_read(world: World, version: int, codec: Codec) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    await client.produce("t", batch_of("a", "b", codec=codec), version=9)
    await client.produce("t", batch_of("c", codec=codec), version=9)
    data = bytes((await client.fetch("t", 0, version=version)).records or b"")
    assert data[16] == (0 if version < 2 else 1)
    found = record_oracles.read("kafka-python", data)
    assert [(record.offset, record.value) for record in found] == [(0, b"a"), (1, b"b"), (2, b"c")]


# --- from files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cold", [False, True], ids=["page cache", "reader thread"])
async def test_what_has_left_the_tail_cache_is_read_from_its_segments(world: World, cold: bool) -> None:
    server, client = await _filled(world, 60, 100_000, storage_segment_bytes=1 << 20, storage_tail_cache_bytes=300_000)
    server.disk.cold = cold
    before = server.disk.reads_waited_for
    assert await _read_numbers(client) == list(range(60))
    if cold:
        assert server.disk.reads_waited_for > before


async def test_many_readers_of_old_and_new_records_at_once(world: World) -> None:
    server, _ = await _filled(world, 40, 50_000, storage_segment_bytes=1 << 20, storage_tail_cache_bytes=200_000)
    server.disk.cold = True
    clients = [await server.connect() for _ in range(8)]
    found = await asyncio.gather(*(_read_numbers(client, start) for start, client in enumerate(clients)))
    assert found == [list(range(start, 40)) for start in range(8)]


@pytest.mark.parametrize("end", ["clean stop", "kill"])
async def test_everything_is_read_again_after_a_restart(world: World, end: str) -> None:
    server, _ = await _filled(world, 30, 100_000, storage_segment_bytes=1 << 20)
    if end == "kill":
        server = await world.start(world.copy_as_killed(server, "copy"), storage_segment_bytes=1 << 20)
    else:
        await server.stop()
        server = await world.start(storage_segment_bytes=1 << 20)
    assert await _read_numbers(await server.connect()) == list(range(30))


async def _read_numbers(client: Client, offset: int = 0) -> list[int]:
    found: list[int] = []
    while True:
        answer = await client.fetch("t", offset)
        assert answer.error_code == 0
        records = records_of(answer.records)
        if not records:
            return found
        assert records[0].offset == offset
        found += [int((record.value or b"")[:4]) for record in records]
        offset = records[-1].offset + 1


async def test_the_same_partition_asked_for_twice_is_answered_twice(world: World) -> None:
    _, client = await _filled(world, 2)
    asked = [FetchRequestPartition(partition=0, fetch_offset=n, partition_max_bytes=10**6) for n in (0, 1)]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=10**6, topics=[FetchRequestTopic(topic="t", partitions=asked)]
    )
    parts = (await client.ask(request, 12)).responses[0].partitions
    assert [_numbers(part.records) for part in parts] == [[0, 1], [1]]
