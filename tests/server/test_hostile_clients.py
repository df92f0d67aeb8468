"""Clients that break the protocol or its manners: they get an error or lose their connection, and nobody else notices.

Each attack runs while a producer and a consumer on other connections go on; at the end both must have seen no error and
every record, and the node must hold no more memory for what the attackers sent than its settings allow.
"""

import asyncio
import contextlib
import gc
import os
import random
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import tidelog.server.listener
from tests.server.client import Client, batch_of, fetch_request, numbered, produce_request, records_of
from tests.server.world import Server, World, until
from tidelog.server.connection import WAITING_BYTES_MAX, WAITING_FRAMES_MAX
from tidelog.wire.batch import assemble, seal
from tidelog.wire.compression import Codec
from tidelog.wire.frames import RequestHeader, encode_request
from tidelog.wire.messages import APIS, PRIVATE_APIS, ApiVersionsRequest, MetadataRequest

MIB = 1 << 20
FETCH = 1


class Pair:
    """A producer and a consumer that behave, until they are told to stop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stopping = self._produced_all = False
        self.produced = 0
        self.consumed = 0

    async def run(self) -> None:
        producer, consumer = await self._server.connect(), await self._server.connect()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce(producer))
            group.create_task(self._consume(consumer))

    async def _produce(self, client: Client) -> None:
        while not self._stopping:
            answer = await client.produce("good", numbered(1, self.produced, f"good {self.produced}"))
            assert (answer.error_code, answer.base_offset) == (0, self.produced)
            self.produced += 1
        self._produced_all = True

    async def _consume(self, client: Client) -> None:
        while not self._produced_all or self.consumed < self.produced:
            fetched = await client.fetch("good", self.consumed, max_wait_ms=20)
            assert fetched.error_code == 0
            for record in records_of(fetched.records):
                assert (record.offset, record.value) == (self.consumed, f"good {self.consumed}".encode())
                self.consumed += 1

    async def advance(self, records: int = 20) -> None:
        """Wait until both have gone on by so many."""
        goal = self.consumed + records
        await until(lambda: self.consumed >= goal)

    def stop(self) -> None:
        self._stopping = True


@asynccontextmanager
async def well_behaved_pair(server: Server) -> AsyncIterator[Pair]:
    await server.create("good")
    pair = Pair(server)
    running = asyncio.ensure_future(pair.run())
    try:
        await pair.advance()
        yield pair
        await pair.advance()
    finally:
        pair.stop()
        await running
    assert server.failure is None
    assert pair.produced == pair.consumed == server.high_watermark("good")


def _frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _connections_of(server: Server) -> int:
    return len(server.broker.connections)


# --- bytes that are no protocol --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [2**31 - 1, -1, -(2**31), 0, 1, 7, 100 * MIB + 1, 0x47455420], ids=lambda size: f"size {size}"
)
@pytest.mark.parametrize("key", [0, 1, 18, 999, -1])
async def test_a_frame_of_an_impossible_size_ends_the_connection(world: World, size: int, key: int) -> None:
    server = await world.start()
    client = await server.connect()
    client.send_bytes(struct.pack(">ihhi", size, key, 0, 1))
    await client.expect_closed()
    assert (await (await server.connect()).ask(ApiVersionsRequest(), 0)).error_code == 0


async def test_a_request_other_than_produce_has_a_smaller_bound(world: World) -> None:
    server = await world.start(request_control_bytes_max=10_000)
    await server.create("t")
    client = await server.connect()
    client.send_bytes(struct.pack(">ihhi", 10_001, 3, 9, 1))
    await client.expect_closed()
    assert (await (await server.connect()).produce("t", batch_of(bytes(20_000)))).error_code == 0


async def test_truncated_frames_random_bytes_and_garbage_harm_nobody(world: World) -> None:
    server = await world.start()
    await server.create("bad")
    chance = random.Random(7)
    async with well_behaved_pair(server) as pair:
        for attack in _garbage(chance, 150):
            client = await server.connect()
            client.send_bytes(attack)
            with contextlib.suppress(ConnectionError):
                await client.sent()
            if chance.random() < 0.5:
                client.abort()
            else:
                await client.close()
            if chance.random() < 0.1:
                await pair.advance(1)
    await until(lambda: _connections_of(server) <= 4)


def _garbage(chance: random.Random, count: int) -> list[bytes]:
    produce, fetch = produce_request("bad", [(0, batch_of("x"))]), fetch_request("bad", [(0, 0)])
    good = b"".join(
        encode_request(RequestHeader(0, 9, 1, "bad"), produce) + encode_request(RequestHeader(1, 12, 2, "bad"), fetch)
    )
    attacks: list[bytes] = []
    for _ in range(count):
        kind = chance.randrange(5)
        if kind == 0:
            attacks.append(good[: chance.randrange(1, len(good))])
        elif kind == 1:
            attacks.append(chance.randbytes(chance.randrange(1, 3_000)))
        elif kind == 2:
            api = chance.choice(list((APIS | PRIVATE_APIS).values()))
            version = chance.randint(api.min_version, api.max_version)
            head = struct.pack(">hhih", api.key, version, 1, -1)
            attacks.append(_frame(head + chance.randbytes(chance.randrange(200))))
        elif kind == 3:
            damaged = bytearray(good)
            for _ in range(4):
                damaged[chance.randrange(4, len(damaged))] ^= 1 << chance.randrange(8)
            attacks.append(bytes(damaged))
        else:
            # Plausible small lengths lead a decoder deeper than uniform bytes do.
            head = struct.pack(">hhih", chance.choice(list(APIS)), chance.randrange(14), 1, -1)
            attacks.append(_frame(head + bytes(chance.randrange(4) for _ in range(chance.randrange(120)))))
    return attacks


@pytest.mark.parametrize("api", (APIS | PRIVATE_APIS).values(), ids=lambda api: api.name)
async def test_a_valid_header_with_garbage_behind_it_ends_in_an_answer_or_the_end(world: World, api: object) -> None:
    server = await world.start()
    await server.create("bad")
    chance = random.Random(11)
    for version in range(api.min_version, api.max_version + 1):  # type: ignore[attr-defined]
        for _ in range(4):
            client = await server.connect()
            body = bytes(chance.randrange(3) for _ in range(chance.randrange(60)))
            client.send_bytes(_frame(struct.pack(">hhih", api.key, version, 1, -1) + body))  # type: ignore[attr-defined]
            if api.key == FETCH:  # type: ignore[attr-defined]
                await client.sent()
                client.abort()  # garbage may ask for a long poll
            else:
                client.end_sending()
                await client.expect_closed()
    assert server.failure is None
    assert (await (await server.connect()).ask(ApiVersionsRequest(), 0)).error_code == 0


async def test_a_frame_that_comes_byte_by_byte_is_answered(world: World) -> None:
    server = await world.start()
    await server.create("slow")
    async with well_behaved_pair(server):
        client = await server.connect()
        request = produce_request("slow", [(0, batch_of("dribbled"))])
        header = client.header(request, 9)
        client.expect(header)
        for byte in b"".join(encode_request(header, request)):
            client.send_bytes(bytes([byte]))
            await client.sent()
            await asyncio.sleep(0)
        assert (await client.receive_produced()).error_code == 0


# --- batches whose checksum is right and whose content is not --------------------------------------------------------


def _poisoned() -> list[bytearray]:
    """Batches that pass every check of the header and hold garbage."""
    facts = {"base_offset": 0, "leader_epoch": -1, "base_timestamp": 5_000, "max_timestamp": 9_999_999_999_999}
    garbage = assemble(b"\xff" * 50, attributes=0, last_offset_delta=2, record_count=3, **facts)
    empty = assemble(b"", attributes=0, last_offset_delta=0, record_count=1, **facts)
    many = assemble(b"\x00" * 10, attributes=0, last_offset_delta=2**31 - 2, record_count=2**31 - 1, **facts)
    gzip = assemble(b"\x1f\x8b\x08" + b"\x99" * 40, attributes=1, last_offset_delta=0, record_count=1, **facts)
    compressed = batch_of(*["z" * 500] * 20, codec=Codec.GZIP)
    compressed[-20:] = bytes(20)
    seal(compressed)
    return [garbage, empty, gzip, compressed, many]


@pytest.mark.parametrize("which", range(4), ids=["garbage", "empty", "not gzip", "torn gzip"])
@pytest.mark.parametrize("version", [0, 2, 3, 4, 12])
async def test_garbage_inside_a_batch_does_not_stop_readers_of_any_version(
    world: World, which: int, version: int
) -> None:
    """Its producer's checksum is right, so it may be taken; a reader that needs its records must survive it."""
    server = await world.start()
    await server.create("t")
    producer, reader = await server.connect(), await server.connect()
    reader.send(fetch_request("t", [(0, 0)], max_wait_ms=10_000), version)  # waits: it is woken inside the core's turn
    await until(lambda: len(server.replica("t").watchers) == 1)
    async with asyncio.timeout(2):
        if (await producer.produce("t", _poisoned()[which])).error_code:
            return  # refused: so much the better
        await reader.receive()
    assert server.failure is None
    assert (await (await server.connect()).produce("t", batch_of("fine"))).error_code == 0
    again = await server.connect()
    await again.ask(fetch_request("t", [(0, 0)]), version)
    assert server.failure is None


@pytest.mark.parametrize("which", range(4), ids=["garbage", "empty", "not gzip", "torn gzip"])
@pytest.mark.parametrize("timestamp", [-3, 5_000, 1])
async def test_garbage_inside_a_batch_does_not_break_list_offsets(world: World, which: int, timestamp: int) -> None:
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    await client.produce("t", _poisoned()[which])
    await (await server.connect()).produce("t", batch_of("fine", first_time=6_000))
    asking = await server.connect()
    answer = await asking.list_offset("t", timestamp)
    assert answer.error_code in (0, 2)
    assert server.failure is None


async def test_a_batch_that_claims_two_billion_records_takes_no_offsets_it_does_not_have(world: World) -> None:
    """Were its header believed, offsets would not be dense any more (promise 3)."""
    server = await world.start()
    await server.create("t")
    answer = await (await server.connect()).produce("t", _poisoned()[4])
    assert answer.error_code != 0
    assert server.high_watermark("t") == 0


# --- connections -----------------------------------------------------------------------------------------------------


async def test_connections_beyond_the_bound_are_closed_and_those_within_go_on(world: World) -> None:
    server = await world.start(connections_max=20)
    async with well_behaved_pair(server):
        extra = [await server.connect() for _ in range(100)]
        await until(lambda: _connections_of(server) == 20)
        refused = extra[-1]
        await refused.expect_closed()
        for client in extra:
            client.abort()
        await until(lambda: _connections_of(server) < 20)
        assert (await (await server.connect()).ask(ApiVersionsRequest(), 0)).error_code == 0


@pytest.mark.slow
async def test_thousands_of_connections_opened_and_dropped_leave_nothing_behind(world: World) -> None:
    server = await world.start(connections_max=500)
    async with well_behaved_pair(server):
        for turn in range(30):
            clients = await asyncio.gather(*(Client.connect(server.port) for _ in range(100)))
            for number, client in enumerate(clients):
                if number % 3 == 0:
                    client.send(MetadataRequest(topics=[]))
                elif number % 3 == 1:
                    client.send_bytes(b"\x00\x00\x00\x20\x00")
                if (turn + number) % 2:
                    client.abort()
            for client in clients:
                await client.close()
    await until(lambda: _connections_of(server) == 0 or _connections_of(server) <= 4)


async def test_a_long_poll_whose_client_is_gone_does_not_stay(world: World) -> None:
    server = await world.start()
    await server.create("t")
    for _ in range(50):
        client = await server.connect()
        client.send(fetch_request("t", [(0, 0)], max_wait_ms=60_000))
        await client.sent()
    await until(lambda: len(server.replica("t").watchers) == 50)
    await server.drop_clients()
    async with asyncio.timeout(2):
        await until(lambda: _connections_of(server) == 0 and not server.replica("t").watchers)


# --- memory ----------------------------------------------------------------------------------------------------------


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_client_that_sends_without_reading_is_bounded(world: World) -> None:
    server = await world.start()
    await server.create("t")
    payload = await _fill(server, "t", 2 * MIB)
    async with well_behaved_pair(server) as pair:
        before = _resident_bytes()
        client = await server.connect()
        client.stop_reading()
        (connection,) = [one for one in server.broker.connections if one.peer.endswith(f":{client.port}")]
        for _ in range(3_000):
            client.send(fetch_request("t", [(0, 0)], partition_max_bytes=payload))
        await until(lambda: connection._read_paused)
        await pair.advance(50)
        assert len(connection._exchanges) <= server.settings.requests_inflight_max
        assert server.broker.pool.bytes <= server.settings.memory_receive_bytes
        assert _resident_bytes() - before < 64 * MIB


async def _fill(server: Server, topic: str, size: int) -> int:
    client = await server.connect()
    for _ in range(size // 500_000):
        assert (await client.produce(topic, batch_of(bytes(500_000)))).error_code == 0
    return size


async def test_tiny_requests_in_one_read_are_not_all_queued(world: World) -> None:
    """A megabyte of the smallest requests is 70,000 of them: only a few may wait while one is under way."""
    server = await world.start()
    await server.create("t")
    client = await server.connect()
    client.send(fetch_request("t", [(0, 0)], max_wait_ms=30_000))
    await until(lambda: len(server.replica("t").watchers) == 1)
    (connection,) = [one for one in server.broker.connections if one.peer.endswith(f":{client.port}")]
    tiny = _frame(struct.pack(">hhih", 18, 0, 1, -1))
    client.send_bytes(tiny * 70_000)
    await until(lambda: connection._read_paused)
    assert len(connection._waiting) <= 100 * WAITING_FRAMES_MAX
    assert connection._waiting_bytes <= 2 * WAITING_BYTES_MAX


async def test_announced_frames_that_never_come_take_no_memory(world: World) -> None:
    server = await world.start(memory_receive_bytes=16 * MIB)
    clients = [await server.connect() for _ in range(200)]
    gc.collect()
    before = _resident_bytes()
    for client in clients:
        client.send_bytes(struct.pack(">ihhih", 100 * MIB, 0, 9, 1, -1) + bytes(100))
    await until(lambda: sum(connection.receiving for connection in server.broker.connections) == 200)
    assert _resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize("memory", [16 * MIB, 64 * MIB])
async def test_announced_frames_that_never_come_do_not_stop_others(
    world: World, monkeypatch: pytest.MonkeyPatch, memory: int
) -> None:
    """Whoever stops in the middle of a frame while memory is short is closed; the others go on meanwhile or then."""
    monkeypatch.setattr(tidelog.server.listener, "SWEEP_S", 0.05)
    server = await world.start(memory_receive_bytes=memory)
    async with well_behaved_pair(server) as pair:
        clients = [await server.connect() for _ in range(100)]
        for client in clients:
            client.send_bytes(struct.pack(">ihhih", 100 * MIB, 0, 9, 1, -1) + bytes(100))
        await until(lambda: sum(connection.receiving for connection in server.broker.connections) >= 100)
        clock = server.broker.now
        monkeypatch.setattr(server.broker, "now", lambda: clock() + 5_000)
        await pair.advance(50)


async def test_a_slow_consumer_slows_only_itself(world: World) -> None:
    server = await world.start()
    await server.create("big", max_message_bytes="1000000")
    payload = await _fill(server, "big", 3 * MIB)
    async with well_behaved_pair(server) as pair:
        slow = [await server.connect() for _ in range(5)]
        for client in slow:
            client.stop_reading()
            for _ in range(20):
                client.send(fetch_request("big", [(0, 0)], partition_max_bytes=payload))
        await pair.advance(100)
        for client in slow:
            client.read_again()
            for response in await client.receive_all():
                assert len(records_of(response.responses[0].partitions[0].records)) == 6


async def test_when_memory_is_short_fetches_get_less_but_never_nothing(world: World) -> None:
    server = await world.start(memory_fetch_bytes=MIB)
    await server.create("big")
    payload = await _fill(server, "big", 3 * MIB)
    clients = [await server.connect() for _ in range(10)]
    for client in clients:
        client.stop_reading()
        client.send(fetch_request("big", [(0, 0)], partition_max_bytes=payload, max_wait_ms=20_000))
    for client in clients:
        client.read_again()
        response = await client.receive()
        assert 1 <= len(records_of(response.responses[0].partitions[0].records)) <= 6


# --- silence ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidelog.server.listener, "SWEEP_S", 0.01)


@pytest.mark.usefixtures("quick_sweeps")
async def test_an_idle_connection_is_closed_when_its_time_is_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await world.start()
    client = await server.connect()
    await client.ask(ApiVersionsRequest(), 0)
    clock = server.broker.now
    monkeypatch.setattr(server.broker, "now", lambda: clock() + server.settings.connections_idle_ms - 60_000)
    await asyncio.sleep(0.05)  # a few sweeps, which must do nothing
    await client.ask(ApiVersionsRequest(), 0)
    monkeypatch.setattr(server.broker, "now", lambda: clock() + 3 * server.settings.connections_idle_ms)
    await client.expect_closed()


@pytest.mark.usefixtures("quick_sweeps")
async def test_a_frame_that_stops_arriving_ends_its_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await world.start()
    stuck, polling = await server.connect(), await server.connect()
    await server.create("t")
    polling.send(fetch_request("t", [(0, 0)], max_wait_ms=2_000))
    stuck.send_bytes(b"\x00\x00\x10\x00\x00\x03\x00\x09")
    await until(lambda: any(connection.receiving for connection in server.broker.connections))
    clock = server.broker.now
    monkeypatch.setattr(server.broker, "now", lambda: clock() + tidelog.server.listener.STUCK_MS + 1)
    await stuck.expect_closed()
    await polling.receive()  # a long poll is no silence


@pytest.mark.usefixtures("quick_sweeps")
async def test_a_client_that_takes_no_answers_is_closed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await world.start()
    await server.create("big")
    payload = await _fill(server, "big", 3 * MIB)
    client = await server.connect()
    client.stop_reading()
    for _ in range(20):
        client.send(fetch_request("big", [(0, 0)], partition_max_bytes=payload))
    await until(lambda: any(connection._write_paused for connection in server.broker.connections))
    clock = server.broker.now
    await until(lambda: not any(connection.note_progress(0) is None for connection in server.broker.connections))
    monkeypatch.setattr(server.broker, "now", lambda: clock() + 2 * tidelog.server.listener.STUCK_MS)
    await until(lambda: _connections_of(server) <= 2)


@pytest.mark.parametrize("receive_bytes", [4 * MIB, 64 * MIB])
async def test_a_full_tail_cache_leaves_room_to_receive(world: World, receive_bytes: int) -> None:
    """Cached batches lie in the memory they came in: that must not make the node deaf."""
    server = await world.start(memory_receive_bytes=receive_bytes, storage_tail_cache_bytes=16 * MIB)
    await server.create("big")
    client = await server.connect()
    for number in range(80):
        assert (await client.produce("big", batch_of(bytes(500_000)))).base_offset == number
    assert server.broker.pool.bytes <= receive_bytes + 32 * MIB
