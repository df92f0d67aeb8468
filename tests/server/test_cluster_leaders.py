"""Where streams are led: at home when home is there and stable, elsewhere without a pause when it goes."""

import asyncio
import time

import pytest

from tests.ports import free_port
from tests.server.client import batch_of
from tests.server.many import ClusterWorld
from tests.server.operating import (
    NEVER_STABLE_MS,
    QUICK_STABLE_MS,
    STAY,
    ask_admin,
    create_on,
    cut,
    heal,
    lead,
    lead_cluster,
    number_of,
    partition_of,
)
from tests.server.world import Server, until
from tidelog.server import operations
from tidelog.server.operations import OperationError, transfer_leader
from tidelog.server.replica import Replica
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import CreatePartitionsRequest, CreatePartitionsRequestTopic

PATIENT = {"raft_heartbeat_ms": 500, "raft_election_timeout_ms": 20_000}  # no election comes by itself


@pytest.fixture
def soon_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", QUICK_STABLE_MS)


def _leads(cluster: ClusterWorld, topic: str, node: int, partition: int = 0) -> bool:
    leader = cluster.leader(topic, partition)
    return leader is not None and number_of(leader) == node


def _missing(leader: Server, node: int) -> int:
    """Entries that a member has not acknowledged."""
    replica = leader.replica("t")
    match = next(member.match for member in replica.group.members(leader.broker.now()) if member.node == node)
    return replica.log.last_index - match


async def test_the_preferred_leader_gets_its_stream_back_once_it_is_stable(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    stable_ms = 700
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", stable_ms)
    await cluster.start(3)
    await create_on(cluster.any, "t", [1, 2, 3])
    await until(lambda: _leads(cluster, "t", 1))
    await lead_cluster(cluster, 2)
    await cluster.stop_node(1)
    await cluster.until_led("t")
    controller = cluster.servers[2].broker
    await until(lambda: 1 in controller.controller_loop.health().dead)
    await cluster.start_node(1)
    await until(lambda: 1 in controller.controller_loop.health().alive)
    since = controller.controller_loop.health().alive[1]
    await until(lambda: _leads(cluster, "t", 1))
    assert controller.now() - since >= stable_ms


async def test_a_leader_at_home_stays_there(cluster: ClusterWorld, soon_stable: None) -> None:
    await cluster.start(3, leader_balance_ms=50)
    await create_on(cluster.any, "t", [1, 2, 3], [2, 3, 1], [3, 1, 2])
    for partition, node in enumerate((1, 2, 3)):
        await until(lambda partition=partition, node=node: _leads(cluster, "t", node, partition))
    controller = await cluster.controller()
    await until(lambda: all(partition_of(controller, "t", number).leader == number + 1 for number in range(3)))
    terms = [partition_of(controller, "t", number).term for number in range(3)]
    for _ in range(5):  # rounds of the controller
        watched = controller.broker.controller_loop._planner._known_topics
        await until(lambda watched=watched: controller.broker.controller_loop._planner._known_topics is not watched)
    assert [partition_of(controller, "t", number).term for number in range(3)] == terms


async def test_leaders_stand_and_return_to_the_preferred_data_centre(cluster: ClusterWorld, soon_stable: None) -> None:
    await _start_in_racks(cluster, "a", "b", "c")
    server = cluster.servers[1]
    await server.create("t", partitions=4, replication=3, leader_rack="b")
    for number in range(4):
        assert partition_of(server, "t", number).replicas[0] == 2
        await until(lambda number=number: _leads(cluster, "t", 2, number))
    await lead_cluster(cluster, 1)
    await cluster.stop_node(2)
    for number in range(4):
        await cluster.until_led("t", number)
    await cluster.start_node(2, rack="b")
    for number in range(4):
        await until(lambda number=number: _leads(cluster, "t", 2, number))


async def test_a_preferred_data_centre_that_is_set_later_attracts_the_leader(
    cluster: ClusterWorld, soon_stable: None
) -> None:
    await _start_in_racks(cluster, "a", "b", "c")
    await create_on(cluster.servers[1], "t", [1, 2, 3], leader_rack="c")
    await until(lambda: _leads(cluster, "t", 3))


async def test_partitions_that_are_added_are_led_from_the_preferred_data_centre(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.controller.STABLE_MS", NEVER_STABLE_MS)  # nobody moves leaders there later
    await _start_in_racks(cluster, "a", "b", "c", "d")
    server = cluster.servers[1]
    await server.create("t", replication=2, leader_rack="b")
    asked = [CreatePartitionsRequestTopic(name="t", count=6, assignments=None)]
    response = await (await server.connect()).ask(CreatePartitionsRequest(topics=asked, timeout_ms=10_000))
    assert response.results[0].error_code == 0, response.results[0].error_message
    assert [partition_of(server, "t", number).replicas[0] for number in range(6)] == [2] * 6


async def _start_in_racks(cluster: ClusterWorld, *racks: str) -> None:
    """As `ClusterWorld.start`, each node in a data centre of its own."""
    cluster._config_servers = list(range(1, len(racks) + 1))
    cluster._peer_ports = {node: free_port() for node in cluster._config_servers}
    await asyncio.gather(*(cluster.start_node(node, rack=rack) for node, rack in enumerate(racks, 1)))


async def test_leadership_is_not_given_to_a_node_that_is_away(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    away = cluster.servers[3]
    cut(away, off=[cluster.servers[1], cluster.servers[2]])
    await until(lambda: not leader.broker.is_alive(3))
    term = leader.replica("t").group.term
    with pytest.raises(OperationError, match="away"):
        await transfer_leader(leader.broker, leader.replica("t").stream, 3)
    refused = await ask_admin(leader, "transfer-leader", topic="t", partition=0, target=3)
    assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert leader.replica("t").ready
    assert leader.replica("t").group.term == term


async def test_leadership_is_not_given_to_a_node_that_is_behind(
    cluster: ClusterWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "BEHIND_ENTRIES_MAX", 2)
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    stream = leader.replica("t").stream
    cluster.servers[3].disk.hold_syncs(f"/streams/{stream}/")  # it hears, and acknowledges nothing
    client = await leader.connect()
    for number in range(5):
        assert (await client.produce("t", batch_of(str(number)))).error_code == 0
    with pytest.raises(OperationError, match="caught up"):
        await transfer_leader(leader.broker, stream, 3)
    assert leader.replica("t").ready
    cluster.servers[3].disk.release_syncs()
    await until(lambda: cluster.servers[3].high_watermark("t") == 5)

    await until(lambda: _missing(leader, 3) == 0)
    assert (await ask_admin(leader, "transfer-leader", topic="t", partition=0, target=3)).error_code == 0
    await until(lambda: _leads(cluster, "t", 3))


async def test_a_node_that_stops_hands_over_and_a_producer_waits_for_no_election(cluster: ClusterWorld) -> None:
    """No election timeout passes in this test: whoever leads next was asked to."""
    await cluster.start(3, **STAY, **PATIENT)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await lead_cluster(cluster, 1)
    client = await leader.connect()
    assert (await client.produce("t", batch_of("before"))).error_code == 0
    begun = time.monotonic()
    await cluster.stop_node(1)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    assert (await client.produce("t", batch_of("after"))).error_code == 0
    assert time.monotonic() - begun < 5
    await cluster.controller()
    assert await client.read_all("t") == ["before", "after"]


async def test_produces_under_way_are_answered_by_a_node_that_stops(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    client = await leader.connect()
    cluster.servers.pop(1)
    stopping = asyncio.ensure_future(leader.stop())
    for number in range(50):
        client.send_produce("t", batch_of(str(number)))
    accepted = 0
    try:
        for _ in range(50):
            answer = await client.receive_produced()
            accepted += answer.error_code == 0
    except (AssertionError, ConnectionError, asyncio.IncompleteReadError):
        pass  # it let go of its clients
    await stopping
    await leader.drop_clients()
    leader = await cluster.until_led("t")
    client = await leader.connect()
    values = await client.read_all("t")
    assert len(values) >= accepted
    assert values == [str(number) for number in range(len(values))]


async def test_a_leader_whose_disk_is_full_hands_over_to_one_that_has_room(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    leader = await lead(cluster, "t", 1)
    await lead_cluster(cluster, 2)
    client = await leader.connect()
    leader.disk.full = True
    client.send_produce("t", batch_of("x"))
    await until(lambda: cluster.leader("t") not in (None, leader))
    other = await cluster.until_led("t")
    writer = await other.connect()
    assert (await writer.produce("t", batch_of("y"))).error_code == 0
    leader.disk.full = False
    await until(lambda: leader.high_watermark("t") == other.high_watermark("t"))


async def test_a_stream_fails_over_when_its_leader_dies_and_back_and_forth(cluster: ClusterWorld) -> None:
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    for number in range(3):
        leader = await cluster.until_led("t")
        client = await leader.connect()
        assert (await client.produce("t", batch_of(str(number)))).error_code == 0
        others = [server for server in cluster.servers.values() if server is not leader]
        cut(leader, off=others)
        await until(lambda others=others: any(_ready(server) for server in others))
        heal(*cluster.servers.values())
        await until(lambda leader=leader: not leader.replica("t").leads)
    leader = await cluster.until_led("t")
    client = await leader.connect()
    assert await client.read_all("t") == ["0", "1", "2"]


def _ready(server: Server) -> bool:
    found = server.broker.replica_of("t", 0)
    return isinstance(found, Replica) and found.ready


async def test_a_node_that_stops_hands_over_to_one_that_lives(cluster: ClusterWorld) -> None:
    """It chose among those that have everything, and gave up when the one it had chosen was dead."""
    await cluster.start(3, **STAY)
    await create_on(cluster.any, "t", [1, 2, 3])
    for leader, away, other in ((1, 2, 3), (3, 1, 2)):
        await lead(cluster, "t", leader)
        await lead_cluster(cluster, leader)
        stopping, staying = cluster.servers[leader], cluster.servers[other]
        await until(lambda stopping=stopping: _all_have_everything(stopping, "t"))
        await cluster.kill(away)
        await until(lambda stopping=stopping, away=away: not stopping.broker.is_alive(away))
        term = stopping.replica("t").group.term
        await cluster.stop_node(leader)
        assert staying.replica("t").group.term > term  # it has not waited for silence
        await asyncio.gather(cluster.start_node(leader), cluster.start_node(away))


def _all_have_everything(leader: Server, topic: str) -> bool:
    replica = leader.replica(topic)
    return all(m.match == replica.log.last_index for m in replica.group.members(leader.broker.now()))
