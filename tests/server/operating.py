"""What operators and the world do to a cluster in tests: topics on chosen nodes, changes, cut connections."""

import json
from collections.abc import Iterable
from typing import Any

from tests.server.many import ClusterWorld
from tests.server.world import Server, until
from tidelog.cluster import CLUSTER_STREAM, Partition
from tidelog.server.peers import Peers
from tidelog.wire.messages import (
    CreateTopicsAssignment,
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    TidelogAdminRequest,
    TidelogAdminResponse,
)

QUICK_STABLE_MS = 100
NEVER_STABLE_MS = 3_600_000  # the controller moves no leader and fills no place
STAY: dict[str, Any] = {"leader_balance_ms": 3_600_000}  # leaders stay where a test puts them


def number_of(server: Server) -> int:
    return server.settings.node_id


# Operators


async def ask_admin(server: Server, method: str, **content: Any) -> TidelogAdminResponse:
    client = await server.connect()
    response = await client.ask(TidelogAdminRequest(method=method, content=json.dumps(content)))
    await client.close()
    return response


async def admin(server: Server, method: str, **content: Any) -> dict[str, Any]:
    response = await ask_admin(server, method, **content)
    assert response.error_code == 0, response.error_message
    return json.loads(response.content)


async def create_on(server: Server, name: str, *nodes: Iterable[int], **configs: str) -> None:
    """A topic whose partitions are on such nodes, the first of them preferred to lead."""
    client = await server.connect()
    rows = [CreateTopicsAssignment(partition_index=n, broker_ids=list(on)) for n, on in enumerate(nodes)]
    wanted = [CreateTopicsRequestConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
    topic = CreateTopicsRequestTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=rows, configs=wanted
    )
    response = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    assert response.topics[0].error_code == 0, response.topics[0].error_message
    await client.close()


def partition_of(server: Server, topic: str, partition: int = 0) -> Partition:
    """As the node knows it."""
    return server.broker.state.topics[topic].partitions[partition]


async def lead(cluster: ClusterWorld, topic: str, node: int, partition: int = 0) -> Server:
    """Have a node lead."""
    server = cluster.servers[node]
    await cluster.until_led(topic, partition)

    def leads() -> bool:
        leader = cluster.leader(topic, partition)
        if leader is not None and leader is not server:
            leader.broker.node.transfer_leadership(leader.replica(topic, partition).stream, node)
        return leader is server

    await until(leads)
    return server


async def lead_cluster(cluster: ClusterWorld, node: int) -> Server:
    """Have a node be the controller."""
    server = cluster.servers[node]
    while (controller := await cluster.controller()) is not server:
        controller.broker.node.transfer_leadership(CLUSTER_STREAM, node)
        await until(lambda controller=controller: not controller.broker.node.replicas[CLUSTER_STREAM].leads)
    return server


def voters(cluster: ClusterWorld, topic: str, partition: int = 0) -> tuple[int, ...]:
    """Those of the stream's group, committed, as its leader knows them; nothing while there is none."""
    leader = cluster.leader(topic, partition)
    if leader is None:
        return ()
    configuration = leader.replica(topic, partition).group.committed_configuration[1]
    return () if configuration.joint or configuration.learners else tuple(sorted(configuration.voters))


def cluster_members(server: Server) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(voters, learners) of the cluster's own group as a node knows them."""
    configuration = server.broker.node.replicas[CLUSTER_STREAM].group.committed_configuration[1]
    return tuple(sorted(configuration.voters)), tuple(sorted(configuration.learners))


# The network


def cut(*servers: Server, off: Iterable[Server]) -> None:
    """No connection between any of the servers and any of the others, until `heal`."""
    off = list(off)
    for one, others in [*((s, off) for s in servers), *((s, servers) for s in off)]:
        away = {number_of(other) for other in others}
        _refuse(one.broker.peers, away)
        for link in list(one.broker.peers._all):
            if link.hello is None or link.hello.node in away:
                link.abort("the test cuts it")


def heal(*servers: Server) -> None:
    for server in servers:
        server.broker.peers.__dict__.pop("refusal_of", None)


def _refuse(peers: Peers, away: set[int]) -> None:
    def refusal_of(hello: Any, expected: int | None) -> str:
        return "the test cuts it" if hello.node in away else Peers.refusal_of(peers, hello, expected)

    peers.refusal_of = refusal_of  # type: ignore[method-assign]
