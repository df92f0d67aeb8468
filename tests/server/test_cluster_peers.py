"""Connections between nodes: one a pair, whoever dials; garbage ends one and harms no other; calls always end."""

import asyncio
import contextlib
import itertools
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import STAY, create_on, lead, number_of
from tests.server.world import until
from tidelog.raft import AppendRequest, Entry, EntryKind, Envelope, VoteRequest
from tidelog.server import peers as peers_module
from tidelog.server.memory import BufferPool
from tidelog.server.peer_codec import FrameKind, encode_envelope, encode_json
from tidelog.server.peers import VERSION, Hello, Link, PeerCallError, Peers
from tidelog.wire.errors import ErrorCode

CALL_MS = 10_000  # generous: a call that is answered at all is answered long before
BATCH = bytes(batch_of("x" * 100_000))
_starts = itertools.count(1)


class End:
    """One node's peers, without the rest of the node."""

    def __init__(self, node: int, cluster: str = "c", start: int | None = None) -> None:
        self.hello = Hello(node, next(_starts) if start is None else start, cluster, f"disk {node}")
        self.received: list[Envelope] = []
        self.lost: list[int] = []
        self.gate = asyncio.Event()
        pool = BufferPool(1 << 30)
        self.peers = Peers(
            node, lambda: self.hello, lambda _: True, self.received.append, self.lost.append, self._called, pool
        )
        self.port = 0

    async def open(self) -> "End":
        self.port = await self.peers.open("127.0.0.1", 0)
        return self

    async def _called(self, node: int, method: str, content: dict[str, Any]) -> dict[str, Any]:
        if method == "never":
            await self.gate.wait()
        if method == "refused":
            raise PeerCallError(ErrorCode.INVALID_REQUEST, "no")
        if method == "broken":
            raise KeyError("a fault of ours")
        return {"from": node, "echo": content}

    def send(self, destination: int, count: int = 1) -> None:
        entries = [Entry(n, 1, EntryKind.DATA, BATCH) for n in range(1, count + 1)]
        message = AppendRequest(5, self.hello.node, destination, 1, 0, 0, entries, 0, 0)
        self.peers.send(Envelope(self.hello.node, destination, self.hello.incarnation, [message]))

    def talks_to(self, node: int) -> bool:
        return node in self.peers.connected


@contextlib.asynccontextmanager
async def _ends(*nodes: int, dial: bool = True) -> AsyncIterator[list[End]]:
    ends = [await End(node).open() for node in nodes]
    if dial:
        _introduce(*ends)
        for one, other in itertools.permutations(ends, 2):
            await until(lambda one=one, other=other: one.talks_to(other.hello.node))
    try:
        yield ends
    finally:
        for end in ends:
            end.peers.close()
        await until(lambda: not any(end.peers._all for end in ends))


def _introduce(*ends: End) -> None:
    for one in ends:
        one.peers.set_addresses({end.hello.node: ("127.0.0.1", end.port) for end in ends})


class Stranger:
    """A connection to a node's port for other nodes, by somebody who need not be one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> "Stranger":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def say_hello(self, **different: Any) -> None:
        content = {"version": VERSION, "node": 9, "incarnation": 1, "cluster": "c", "directory": "disk 9"}
        self.writer.write(encode_json(FrameKind.HELLO, content | different))

    async def ended(self) -> None:
        """The other side ends it, after whatever it had to say."""
        try:
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(5):
                    while await self.reader.read(1 << 16):
                        pass
        finally:
            self.writer.transport.abort()


# One connection


async def test_when_both_dial_at_once_one_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "PATIENCE_S", 0.0)
    for _ in range(5):
        async with _ends(1, 2) as (one, two):
            await until(lambda one=one, two=two: len(one.peers._all) == len(two.peers._all) == 1)
            assert (await one.peers.call(2, "echo", {"n": 1}, CALL_MS))["from"] == 1
            assert (await two.peers.call(1, "echo", {"n": 2}, CALL_MS))["echo"] == {"n": 2}


async def test_the_larger_number_dials_when_the_smaller_one_does_not() -> None:
    async with _ends(1, 2, dial=False) as (one, two):
        two.peers.set_addresses({1: ("127.0.0.1", one.port)})
        await until(lambda: one.talks_to(2) and two.talks_to(1))


async def test_a_node_that_started_anew_takes_the_place_of_its_old_connection() -> None:
    async with _ends(1, 2) as (one, two):
        old = one.peers._links[2]
        again = await End(2).open()
        again.peers.set_addresses({1: ("127.0.0.1", one.port)})
        await until(lambda: one.peers._links.get(2) not in (None, old))
        assert 2 in one.lost, "what was sent on the old one may be lost"
        two.peers.close()
        again.peers.close()
        await until(lambda: not again.peers._all)


async def test_a_broken_connection_is_noticed_on_both_sides_and_opened_anew() -> None:
    async with _ends(1, 2) as (one, two):
        two.peers._links[1].abort("the test breaks it")
        await until(lambda: 2 in one.lost and 1 in two.lost)
        await until(lambda: one.talks_to(2) and two.talks_to(1))
        one.send(2)
        await until(lambda: any(envelope.messages for envelope in two.received))


async def test_a_silent_connection_is_closed_and_a_quiet_one_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "SILENT_MS", 400)
    monkeypatch.setattr(peers_module, "SPEAK_MS", 100)
    monkeypatch.setattr(peers_module, "SWEEP_S", 0.02)
    async with _ends(1, 2) as (one, two):
        link = one.peers._links[2]
        stranger = await Stranger.connect(one.port)
        stranger.say_hello()
        await until(lambda: one.talks_to(9))
        await stranger.ended()
        await until(lambda: one.lost == [9])
        assert one.peers._links[2] is link, "nothing was sent on it, but signs of life"
        assert two.talks_to(1)


async def test_a_connection_whose_time_was_up_just_when_it_was_made_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop that stands still for as long as a dial may take: uvloop then closes the connection and tells nobody."""
    monkeypatch.setattr(peers_module, "CONNECT_S_MAX", 0.05)
    async with _ends(1, 2, dial=False) as (one, two):
        opened, stalls = one.peers.opened, [0.1, 0.1]

        def stall(link: Link) -> None:
            opened(link)
            time.sleep(stalls.pop() if stalls else 0)

        monkeypatch.setattr(one.peers, "opened", stall)
        one.peers.set_addresses({2: ("127.0.0.1", two.port)})
        await until(lambda: not stalls)

        async def answered() -> bool:
            try:
                return bool(await one.peers.call(2, "echo", {}, CALL_MS))
            except PeerCallError:
                return False

        async with asyncio.timeout(5):
            while not await answered():  # noqa: ASYNC110 - as `until`
                await asyncio.sleep(0.01)
        await until(lambda: len(one.peers._all) == 1)
        one.send(2)
        await until(lambda: any(envelope.messages for envelope in two.received))


# What makes no sense


def _size(size: int) -> bytes:
    return struct.pack(">i", size)


GARBAGE: dict[str, Callable[[], bytes]] = {
    "a negative size": lambda: _size(-1),
    "a size of nothing": lambda: _size(0),
    "an enormous size": lambda: _size(2**31 - 1),
    "random bytes": lambda: bytes(range(256)) * 300,
    "http": lambda: b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "an unknown kind": lambda: struct.pack(">ih", 2, 77),
    "an envelope before the hello": lambda: bytes(encode_envelope(Envelope(9, 1, 1, ()))[0]),
    "a call before the hello": lambda: encode_json(FrameKind.CALL, {"call": 1, "method": "echo", "content": {}}),
    "a hello that is no object": lambda: encode_json(FrameKind.HELLO, [1]),
    "a hello that is no JSON": lambda: struct.pack(">ih", 5, FrameKind.HELLO) + b"{,}",
    "a hello without a node": lambda: encode_json(FrameKind.HELLO, {"version": VERSION}),
    "a deep hello": lambda: struct.pack(">ih", 200_002, FrameKind.HELLO) + b"[" * 200_000,
}


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reached the loop's exception handler. Silence ends no connection meanwhile."""
    monkeypatch.setattr(peers_module, "SILENT_MS", 3_600_000)
    found: list[dict[str, Any]] = []
    return found


async def _refused(end: End, other: End, data: bytes, faults: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    link = end.peers._links[other.hello.node]
    connected = end.peers.connected
    stranger = await Stranger.connect(end.port)
    stranger.writer.write(data)
    await stranger.ended()
    await until(lambda: len(end.peers._all) == 1)
    assert end.peers.connected == connected
    assert end.peers._links[other.hello.node] is link
    assert end.received == [e for e in end.received if not e.messages]
    assert (await other.peers.call(end.hello.node, "echo", {}, CALL_MS))["from"] == other.hello.node
    assert faults == [], "it is an answer to garbage, not a fault"


@pytest.mark.parametrize("kind", GARBAGE)
async def test_garbage_ends_its_connection_and_nothing_else(kind: str, faults: list[dict[str, Any]]) -> None:
    async with _ends(1, 2) as (one, two):
        await _refused(one, two, GARBAGE[kind](), faults)


@pytest.mark.parametrize(
    "different",
    [
        {"cluster": "another"},
        {"node": 1},
        {"version": 99},
        {"node": "2"},
        {"node": [2]},
        {"incarnation": "x"},
        {"cluster": 5},
        {"directory": None},
    ],
    ids=str,
)
async def test_a_hello_that_does_not_fit_ends_its_connection(
    different: dict[str, Any], faults: list[dict[str, Any]]
) -> None:
    content = {"version": VERSION, "node": 9, "incarnation": 1, "cluster": "c", "directory": "disk 9"}
    async with _ends(1, 2) as (one, two):
        await _refused(one, two, encode_json(FrameKind.HELLO, content | different), faults)


@pytest.mark.parametrize(
    "frame",
    [
        encode_json(FrameKind.REPLY, {"call": 1, "error": 31_000}),
        encode_json(FrameKind.REPLY, {"call": [1]}),
        encode_json(FrameKind.HELLO, {}),
        struct.pack(">ihqH", 12, FrameKind.ENVELOPE, 1, 500),
        struct.pack(">ih", 200_002, FrameKind.CALL) + b"[" * 200_000,
    ],
    ids=["an unknown error", "a call that is no number", "a second hello", "half an envelope", "a deep call"],
)
async def test_garbage_after_the_hello_ends_its_connection_or_is_ignored(
    frame: bytes, faults: list[dict[str, Any]]
) -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with _ends(1, 2) as (one, two):
        link = one.peers._links[2]
        stranger = await Stranger.connect(one.port)
        stranger.say_hello()
        await until(lambda: one.talks_to(9))
        calling = asyncio.ensure_future(one.peers.call(9, "echo", {}, 500))
        stranger.writer.write(frame)
        stranger.writer.write(_size(-1))  # whoever read on until here ends it now
        await stranger.ended()
        await until(lambda: not one.talks_to(9))
        with pytest.raises(PeerCallError):
            await calling
        assert one.peers._links[2] is link
        assert (await two.peers.call(1, "echo", {}, CALL_MS))["from"] == 2
    assert faults == []


async def test_a_node_that_answers_under_another_number_is_not_talked_to() -> None:
    async with _ends(1, 2, dial=False) as (one, two):
        one.peers.set_addresses({3: ("127.0.0.1", two.port)})
        for _ in range(3):
            await one.peers._dial(3)
        assert not one.peers.connected


# A node that takes nothing


async def test_a_node_that_never_reads_costs_bounded_memory_and_stalls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = 1 << 20
    monkeypatch.setattr(peers_module, "UNSENT_BYTES_MAX", bound)
    async with _ends(1, 2) as (one, two):
        stranger = await Stranger.connect(one.port)
        stranger.say_hello()
        await until(lambda: one.talks_to(9))
        stranger.writer.transport.pause_reading()  # type: ignore[attr-defined]
        link = one.peers._links[9]
        envelope_bytes = 10 * len(BATCH)
        for _ in range(100):
            one.send(9, 10)
            await asyncio.sleep(0)
            assert link.unsent_bytes <= bound + envelope_bytes + 1_000
        assert link.unsent_bytes > bound, "it did get stuck"
        assert one.lost.count(9) > 10, "whoever sent is told"
        one.send(2, 10)
        await until(lambda: any(envelope.messages for envelope in two.received))
        stranger.writer.transport.abort()


# Calls


async def test_a_call_that_is_not_answered_ends_when_its_time_is_up() -> None:
    async with _ends(1, 2) as (one, two):
        with pytest.raises(PeerCallError) as failed:
            await one.peers.call(2, "never", {}, 50)
        assert failed.value.code is ErrorCode.REQUEST_TIMED_OUT
        two.gate.set()
        assert (await one.peers.call(2, "echo", {"still": "there"}, CALL_MS))["echo"] == {"still": "there"}


async def test_calls_end_with_their_connection() -> None:
    async with _ends(1, 2) as (one, two):
        calling = asyncio.ensure_future(one.peers.call(2, "never", {}, 60_000))
        await until(lambda: len(two.peers._tasks) == 1)
        two.peers._links[1].abort("the test breaks it")
        with pytest.raises(PeerCallError) as failed:
            await calling
        assert failed.value.code is ErrorCode.NETWORK_EXCEPTION


async def test_a_node_that_cannot_be_reached_is_not_called() -> None:
    async with _ends(1, dial=False) as (one,):
        with pytest.raises(PeerCallError) as failed:
            await one.peers.call(2, "echo", {}, CALL_MS)
        assert failed.value.code is ErrorCode.BROKER_NOT_AVAILABLE


async def test_more_calls_than_the_bound_are_refused_and_the_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers_module, "CALLS_MAX", 3)
    async with _ends(1, 2) as (one, two):
        calls = [asyncio.ensure_future(one.peers.call(2, "never", {}, 5_000)) for _ in range(5)]
        for refused in calls[3:]:
            with pytest.raises(PeerCallError) as failed:
                await refused
            assert failed.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        two.gate.set()
        assert len(await asyncio.gather(*calls[:3])) == 3


async def test_a_node_that_is_asked_too_much_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _ends(1, 2) as (one, two):
        waiting = [asyncio.ensure_future(one.peers.call(2, "never", {}, 5_000)) for _ in range(8)]
        await until(lambda: len(two.peers._tasks) == 8)
        monkeypatch.setattr(peers_module, "CALLS_MAX", 2)  # 8 being answered are as many as may be
        with pytest.raises(PeerCallError) as failed:
            await _call_past_own_bound(one)
        assert failed.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
        two.gate.set()
        await asyncio.gather(*waiting)


async def _call_past_own_bound(end: End) -> None:
    link = end.peers._links[2]
    answered: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
    link._calls[999] = answered
    link.write([encode_json(FrameKind.CALL, {"call": 999, "method": "echo", "content": {}})])
    await answered


@pytest.mark.parametrize(
    ("method", "code"),
    [("refused", ErrorCode.INVALID_REQUEST), ("broken", ErrorCode.UNKNOWN_SERVER_ERROR)],
)
async def test_a_call_that_fails_there_fails_here(method: str, code: ErrorCode) -> None:
    async with _ends(1, 2) as (one, _):
        with pytest.raises(PeerCallError) as failed:
            await one.peers.call(2, method, {}, CALL_MS)
        assert failed.value.code is code


async def test_a_method_that_the_other_node_does_not_know_is_refused(cluster: ClusterWorld) -> None:
    await cluster.start(2)
    with pytest.raises(PeerCallError) as failed:
        await cluster.servers[1].broker.peers.call(2, "nonsense", {}, CALL_MS)
    assert failed.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "nonsense" in failed.value.message


# Under replication


async def test_what_one_turn_writes_to_many_streams_leaves_for_a_node_together(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    leader = cluster.servers[1]
    await create_on(leader, "t", *[[1, 2, 3]] * 10)
    for number in range(10):
        await lead(cluster, "t", 1, number)
    replicas = [leader.replica("t", number) for number in range(10)]
    sent: list[Envelope] = []
    send = leader.broker.node.send

    def record(envelope: Envelope) -> None:
        sent.append(envelope)
        send(envelope)

    leader.broker.node.send = record
    for replica in replicas:
        replica.append([batch_of("x")], 1, None, replica.now() + 10_000, lambda refusal: None)
    await until(lambda: all(replica.high_watermark == 1 for replica in replicas))
    for follower in (2, 3):
        written = [[m.group for m in envelope.messages if isinstance(m, AppendRequest) and m.entries]
                   for envelope in sent if envelope.destination == follower]  # fmt: skip
        assert sorted(filter(None, written)) == [[replica.stream for replica in replicas]]


async def test_connections_that_break_while_records_are_on_their_way_lose_none(cluster: ClusterWorld) -> None:
    patient = {"raft_election_timeout_ms": 5_000, "raft_heartbeat_ms": 50}
    await cluster.start(3, **STAY, **patient)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    client = await leader.connect()
    term = leader.replica("t").group.term
    for turn in range(10):
        for number in range(20):
            client.send_produce("t", batch_of(f"{turn * 20 + number}"))
        await leader.until_appended("t", turn * 20 + 5)
        for link in list(leader.broker.peers._all):
            link.abort("the test breaks it")
    answers = [await client.receive_produced() for _ in range(200)]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, n) for n in range(200)]
    assert await client.read_all("t") == [str(number) for number in range(200)]
    assert leader.replica("t").group.term == term, f"node {number_of(leader)} led all the time"
    for server in cluster.servers.values():
        await until(lambda server=server: server.high_watermark("t") == 200)


async def test_a_second_node_with_a_number_that_is_taken_is_not_listened_to(cluster: ClusterWorld) -> None:
    """Its disk is not the one the number is known by: its messages do not count."""
    await cluster.start(3, **STAY)
    controller = await cluster.controller()
    term = controller.broker.node.replicas[0].group.term
    port = controller.broker.state.nodes[number_of(controller)].peer_port
    taken = next(node for node in (1, 2, 3) if node != number_of(controller))
    await cluster.kill(taken)
    await until(lambda: taken not in controller.broker.peers.connected)
    stranger = await Stranger.connect(port)
    cluster_id = controller.broker.state.cluster_id
    stranger.say_hello(node=taken, incarnation=2**62, cluster=cluster_id, directory="another")
    await until(lambda: taken in controller.broker.peers.connected)
    ask = VoteRequest(0, taken, number_of(controller), term + 10, 10**6, term + 9, False, True)
    for buffer in encode_envelope(Envelope(taken, number_of(controller), 2**62, [ask])):
        stranger.writer.write(buffer)
    stranger.writer.write(encode_json(FrameKind.CALL, {"call": 1, "method": "founding", "content": {}}))
    async with asyncio.timeout(5):
        while b'"founded":true' not in await stranger.reader.read(1 << 16):
            pass
    assert controller.broker.node.replicas[0].group.term == term
    stranger.writer.transport.abort()
