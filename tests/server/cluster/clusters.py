"""A cluster for one test."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.server.client import Client
from tests.server.controlled_disk import ControlledDisk
from tests.server.world import DEFAULTS, Server, World, until
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.wire.messages import (
    CreateTopicsAssignment,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    TidelogAdminRequest,
    TidelogAdminResponse,
)

QUICK: dict[str, Any] = {"leader_balance_ms": 3_600_000}  # leaders stay where a test puts them


class Member(Server):
    async def until_led(self) -> None:
        await until(lambda: all(map(_led, self.broker.node.replicas.values())))

    async def ask_admin(self, method: str, **content: Any) -> TidelogAdminResponse:
        client = await self.connect()
        response = await client.ask(TidelogAdminRequest(method=method, content=json.dumps(content)))
        await client.close()
        return response

    async def admin(self, method: str, **content: Any) -> dict[str, Any]:
        response = await self.ask_admin(method, **content)
        assert response.error_code == 0, response.error_message
        return json.loads(response.content)


def _led(replica: Replica) -> bool:
    return replica.ready if replica.leads else replica.group.leader is not None


class Cluster:
    def __init__(self, world: World, folder: Path, racks: Sequence[str], settings: dict[str, Any]) -> None:
        self._world = world
        self._folder = folder
        self._racks = racks
        ports = [free_port() for _ in racks]
        self._settings = DEFAULTS | QUICK | settings
        self._settings["cluster_nodes"] = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(ports, 1))
        self.members: dict[int, Member] = {}

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node) for node in range(1, len(self._racks) + 1)))
        await until(lambda: all(len(member.broker.state.nodes) == len(self._racks) for member in self.members.values()))

    async def start_node(self, node: int) -> Member:
        settings = Settings(
            node_id=node, rack=self._racks[node - 1], data_dir=str(self._folder / f"node-{node}"), **self._settings
        )
        member = Member(settings, ControlledDisk())
        self.members[node] = member
        self._world._servers.append(member)
        await member.start()
        return member

    async def stop_node(self, node: int) -> None:
        member = self.members.pop(node)
        await member.drop_clients()
        await member.stop()

    def __getitem__(self, node: int) -> Member:
        return self.members[node]

    @property
    def any(self) -> Member:
        return next(iter(self.members.values()))

    @property
    def controller(self) -> Member:
        return self.members[self.any.broker.controller]

    async def create(self, name: str, *nodes: Sequence[int]) -> None:
        """A topic whose partitions are on such nodes, each led by the first."""
        client = await self.any.connect()
        rows = [CreateTopicsAssignment(partition_index=n, broker_ids=list(on)) for n, on in enumerate(nodes)]
        topic = CreateTopicsRequestTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows)
        response = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        await client.close()
        for partition, on in enumerate(nodes):
            await self.until_led(name, on[0], partition)

    async def until_led(self, topic: str, leader: int, partition: int = 0) -> None:
        """Wait until `leader` leads, having it take over if it must, and all nodes know."""
        await self.until(lambda: self._knows(self.members[leader], topic, partition))

        def led() -> bool:
            replica = self[leader].replica(topic, partition)
            if replica.leads:
                return replica.ready
            now = replica.group.leader
            if now in self.members:
                self[now].broker.node.transfer_leadership(replica.stream, leader)
            return False

        await until(led)
        await self.until(
            lambda: all(self._told(member, topic, partition) == leader for member in self.members.values())
        )

    @staticmethod
    def _knows(member: Member, topic: str, partition: int) -> bool:
        return isinstance(member.broker.replica_of(topic, partition), Replica)

    @staticmethod
    def _told(member: Member, topic: str, partition: int) -> int:
        found = member.broker.topic_of(topic)
        return -1 if found is None else found.partitions[partition].leader

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition)

    async def connect(self, node: int) -> Client:
        return await self[node].connect()


async def started(world: World, *racks: str, **settings: Any) -> Cluster:
    cluster = Cluster(world, world._folder, racks or ("", "", ""), settings)
    await cluster.start()
    return cluster
