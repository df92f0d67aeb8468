"""What clients may rely on while leaders, coordinators and controllers change."""

import asyncio
from typing import Any

import pytest

from tests.server.client import EARLIEST, LATEST, Client, batch_of, numbered
from tests.server.many import ClusterWorld
from tests.server.operating import NEVER_STABLE_MS, STAY, create_on, cut, heal, lead, lead_cluster, number_of
from tests.server.world import Server, until
from tidelog.server.handlers.call import outcome
from tidelog.server.handlers.producers import BLOCK
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

OFFSETS = "__consumer_offsets"


@pytest.fixture(autouse=True)
def _leaders_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)


async def _three(cluster: ClusterWorld, **settings: Any) -> Server:
    await cluster.start(3, **(STAY | settings))
    await create_on(cluster.any, "t", [1, 2, 3])
    return await lead(cluster, "t", 1)


def _others(cluster: ClusterWorld, server: Server) -> list[Server]:
    return [other for other in cluster.servers.values() if other is not server]


async def _led_by_another(cluster: ClusterWorld, old: Server, topic: str = "t") -> Server:
    def other() -> Server | None:
        for server in _others(cluster, old):
            if server.replica(topic).ready:
                return server
        return None

    await until(lambda: other() is not None)
    found = other()
    assert found is not None
    return found


# Producers


async def test_an_idempotent_producer_that_retries_at_the_next_leader_writes_each_batch_once(
    cluster: ClusterWorld,
) -> None:
    leader = await _three(cluster)
    producer = await leader.new_producer()
    client = await leader.connect()
    for sequence in range(3):
        assert (await client.produce("t", numbered(producer, sequence))).error_code == 0
    cut(leader, off=_others(cluster, leader))
    for sequence in (3, 4):
        client.send_produce("t", numbered(producer, sequence), timeout_ms=2_000)
    await client.sent()
    following = await _led_by_another(cluster, leader)
    again = await following.connect()
    for sequence in (1, 2, 3, 4, 5):  # what it knows to be written, and what it does not
        answer = await again.produce("t", numbered(producer, sequence))
        assert (answer.error_code, answer.base_offset) == (0, sequence)
    heal(*cluster.servers.values())
    await until(lambda: leader.high_watermark("t") == 6)
    assert await again.read_all("t") == [f"p{producer} s{sequence}" for sequence in range(6)]


async def test_a_retry_of_what_the_old_leader_had_replicated_is_known_to_the_next(cluster: ClusterWorld) -> None:
    """It was appended on the followers, but neither committed there nor acknowledged."""
    leader = await _three(cluster)
    producer = await leader.new_producer()
    client = await leader.connect()
    stream = leader.replica("t").stream
    for server in cluster.servers.values():
        server.disk.hold_syncs(f"/streams/{stream}/")
    client.send_produce("t", numbered(producer, 0, "once"))
    for server in cluster.servers.values():
        await server.until_appended("t", 1)
    cut(leader, off=_others(cluster, leader))
    for server in cluster.servers.values():
        server.disk.release_syncs()
    following = await _led_by_another(cluster, leader)
    again = await following.connect()
    answer = await again.produce("t", numbered(producer, 0, "once"))
    assert (answer.error_code, answer.base_offset) == (0, 0)
    answer = await again.produce("t", numbered(producer, 1, "twice"))
    assert (answer.error_code, answer.base_offset) == (0, 1)
    assert await again.read_all("t") == ["once", "twice"]


async def test_every_produce_at_a_leader_that_is_cut_off_ends_and_none_behind_a_failed_one_is_written(
    cluster: ClusterWorld,
) -> None:
    leader = await _three(cluster)
    client = await leader.connect()
    for number in range(10):
        client.send_produce("t", batch_of(str(number)), timeout_ms=1_500)
    await leader.until_appended("t", 3)
    cut(leader, off=_others(cluster, leader))
    for number in range(10, 20):
        client.send_produce("t", batch_of(str(number)), timeout_ms=1_500)
    begun = asyncio.get_running_loop().time()
    codes = [(await client.receive_produced()).error_code for _ in range(20)]
    assert asyncio.get_running_loop().time() - begun < 3
    await client.expect_closed()
    accepted = next((number for number, code in enumerate(codes) if code), 20)
    assert accepted < 20
    assert all(codes[accepted:]), "nothing behind a failed one is acknowledged"
    following = await _led_by_another(cluster, leader)
    heal(*cluster.servers.values())
    await until(lambda: leader.replica("t").group.leader == number_of(following))
    reader = await following.connect()
    assert (await reader.produce("t", batch_of("end"))).error_code == 0
    values = await reader.read_all("t")
    assert values[-1] == "end"
    # What failed may have been written all the same, as far as it goes without a gap.
    assert len(values) - 1 >= accepted
    assert values[:-1] == [str(number) for number in range(len(values) - 1)]


async def test_what_a_leader_alone_had_is_gone_when_it_leads_again_and_a_retry_of_it_is_new(
    cluster: ClusterWorld,
) -> None:
    leader = await _three(cluster)
    producer = await leader.new_producer()
    client = await leader.connect()
    assert (await client.produce("t", batch_of("kept"))).error_code == 0
    cut(leader, off=_others(cluster, leader))
    client.send_produce("t", numbered(producer, 0, "alone"), timeout_ms=1_000)
    await leader.until_appended("t", 2)
    following = await _led_by_another(cluster, leader)
    writer = await following.connect()
    assert (await writer.produce("t", batch_of("new"))).base_offset == 1
    assert (await client.receive_produced()).error_code != 0
    heal(*cluster.servers.values())
    await until(lambda: leader.high_watermark("t") == 2)
    await lead(cluster, "t", 1)
    again = await leader.connect()
    assert await again.read_all("t") == ["kept", "new"]
    answer = await again.produce("t", numbered(producer, 0, "alone"), timeout_ms=3_000)
    assert (answer.error_code, answer.base_offset) == (0, 2)
    assert await again.read_all("t") == ["kept", "new", "alone"]


async def test_a_leader_that_is_cut_off_serves_no_stale_end(cluster: ClusterWorld) -> None:
    leader = await _three(cluster)
    client = await leader.connect()
    assert (await client.produce("t", batch_of("a"))).error_code == 0
    cut(leader, off=_others(cluster, leader))
    following = await _led_by_another(cluster, leader)
    writer = await following.connect()
    assert (await writer.produce("t", batch_of("b"))).error_code == 0
    assert (await client.list_offset("t", LATEST)).error_code != 0


async def test_producer_ids_are_different_whichever_node_and_controller_gives_them(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    given: list[int] = []
    for turn in range(4):
        await lead_cluster(cluster, turn % 3 + 1)
        for server in cluster.servers.values():
            ids = server.broker.producer_ids
            ids._next = ids._end  # as if the block were used up
            client = await server.connect()
            for _ in range(2):
                answer = await client.ask(InitProducerIdRequest())
                assert answer.error_code == 0
                given.append(answer.producer_id)
    assert len(set(given)) == len(given) == 24
    assert max(given) < 12 * BLOCK


# Readers


async def test_neither_end_of_a_log_goes_back_whoever_is_asked_while_leaders_change(cluster: ClusterWorld) -> None:
    leader = await _three(cluster)
    clients = {server: await server.connect() for server in cluster.servers.values()}
    writers = {server: await server.connect() for server in cluster.servers.values()}
    seen = {LATEST: 0, EARLIEST: 0}
    answered = 0
    asking = True

    async def ask() -> None:
        nonlocal answered
        while asking:
            for client in clients.values():
                for which in (LATEST, EARLIEST):
                    before = seen[which]
                    answer = await client.list_offset("t", which)
                    if answer.error_code == 0:
                        assert answer.offset >= before, f"{which} went back from {before} to {answer.offset}"
                        seen[which] = max(seen[which], answer.offset)
                        answered += 1

    watching = asyncio.ensure_future(ask())
    for turn in range(4):
        leader = await lead(cluster, "t", turn % 3 + 1)
        writer = writers[leader]
        for number in range(5):
            assert (await writer.produce("t", batch_of(f"{turn} {number}"))).error_code == 0
            seen[LATEST] = max(seen[LATEST], 5 * turn + number + 1)
        start = 5 * turn + 2
        refusal = await outcome(
            lambda done, leader=leader, start=start: leader.replica("t").move_start(
                start, leader.broker.now() + 5_000, done
            )
        )
        assert refusal == 0
        seen[EARLIEST] = max(seen[EARLIEST], start)
        await until(lambda turn=turn: watching.done() or answered > 6 * turn)
    asking = False
    await watching
    assert seen == {LATEST: 20, EARLIEST: 17}


@pytest.mark.parametrize("asked", ["old leader", "new leader"])
async def test_readers_and_writers_of_another_epoch_are_told(cluster: ClusterWorld, asked: str) -> None:
    leader = await _three(cluster)
    client = await leader.connect()
    assert (await client.produce("t", batch_of("a"))).error_code == 0
    old_term = leader.replica("t").group.term
    following = await lead(cluster, "t", 2)
    await until(lambda: leader.replica("t").group.leader == 2)
    term = following.replica("t").group.term
    client = await (leader if asked == "old leader" else following).connect()
    assert (await client.fetch("t", 0, epoch=old_term)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await client.fetch("t", 0, epoch=term + 1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    fetched = await client.fetch("t", 0, epoch=term)
    assert fetched.error_code in ((0,) if asked == "new leader" else (0, ErrorCode.NOT_LEADER_OR_FOLLOWER))


# Groups


class _Member:
    def __init__(self, client: Client) -> None:
        self.client = client
        self.member_id = ""
        self.generation = -1

    async def join(self) -> None:
        protocol = [JoinGroupRequestProtocol(name="range", metadata=b"m")]
        while True:
            answer = await self.client.ask(
                JoinGroupRequest(
                    group_id="g",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=protocol,
                )
            )
            self.member_id = answer.member_id
            if answer.error_code == 0:
                break
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.generation = answer.generation_id
        synced = await self.client.ask(
            SyncGroupRequest(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                assignments=[SyncGroupRequestAssignment(member_id=self.member_id, assignment=b"all")],
            )
        )
        assert (synced.error_code, bytes(synced.assignment)) == (0, b"all")

    async def heartbeat(self) -> int:
        request = HeartbeatRequest(group_id="g", generation_id=self.generation, member_id=self.member_id)
        return (await self.client.ask(request)).error_code

    async def commit(self, offset: int) -> int:
        request = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)],
                )
            ],
        )
        answer = await self.client.ask(request, 8)
        return answer.topics[0].partitions[0].error_code

    async def committed(self) -> int:
        answer = await self.client.ask(
            OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)]), 8
        )
        group = answer.groups[0]
        assert group.error_code == 0
        return group.topics[0].partitions[0].committed_offset


@pytest.mark.parametrize("end", ["handed over", "cut off"])
async def test_a_groups_members_generation_and_offsets_survive_their_coordinator(
    cluster: ClusterWorld, end: str
) -> None:
    await _three(cluster, group_initial_rebalance_delay_ms=10)
    seat = cluster.any
    await seat.broker.coordinators.partition_of("g")
    coordinator = await lead(cluster, OFFSETS, 1)
    member = _Member(await coordinator.connect())
    await until(lambda: coordinator.broker.coordinators.all() != [])
    await member.join()
    assert await member.commit(7) == 0
    if end == "handed over":
        following = await lead(cluster, OFFSETS, 2)
    else:
        cut(coordinator, off=_others(cluster, coordinator))
        following = await _led_by_another(cluster, coordinator, OFFSETS)
    if end == "handed over":
        assert await member.heartbeat() == ErrorCode.NOT_COORDINATOR
    member.client = await following.connect()
    await until(lambda: following.broker.coordinators.all() != [])
    assert await member.heartbeat() == 0, "the same member of the same generation"
    assert await member.committed() == 7
    assert await member.commit(8) == 0
    assert await member.committed() == 8
    if end == "cut off":
        stale = _Member(await coordinator.connect())
        stale.member_id, stale.generation = member.member_id, member.generation
        assert await stale.commit(1) != 0, "the old coordinator takes nothing"
        assert await member.committed() == 8
