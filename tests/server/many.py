"""A cluster of real brokers in one test: all in its event loop, connected through real sockets on free ports."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.server.controlled_disk import ControlledDisk
from tests.server.world import DEFAULTS, Server, until
from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings

QUICK: dict[str, Any] = {"raft_heartbeat_ms": 20, "raft_election_timeout_ms": 200, "leader_balance_ms": 200}


class ClusterWorld:
    """Nodes 1 to N; those that still run are stopped when the test ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.servers: dict[int, Server] = {}
        self._peer_ports: dict[int, int] = {}
        self._config_servers: list[int] = []

    async def start(self, count: int = 3, **settings: Any) -> None:
        """Found a cluster of so many config servers."""
        self._config_servers = list(range(1, count + 1))
        self._peer_ports = {node: free_port() for node in self._config_servers}
        await asyncio.gather(*(self.start_node(node, **settings) for node in self._config_servers))

    async def start_node(self, node: int, **settings: Any) -> Server:
        """A node, new or once more; others than the first ones join as what they are told to be."""
        peers = ",".join(f"{other}@127.0.0.1:{self._peer_ports[other]}" for other in self._config_servers)
        place: dict[str, Any] = {"data_dir": str(self.folder(node)), "node_id": node, "cluster_nodes": peers}
        chosen = Settings(**(place | DEFAULTS | QUICK | settings))
        server = Server(chosen, ControlledDisk())
        self.servers[node] = server
        await server.start()
        return server

    def folder(self, node: int) -> Path:
        return self._folder / f"node-{node}"

    async def stop_node(self, node: int) -> None:
        server = self.servers.pop(node)
        await server.drop_clients()
        await server.stop()

    async def kill(self, node: int) -> None:
        """As `kill -9` would: nothing is handed over or said."""
        server = self.servers.pop(node)
        await server.drop_clients()
        await server.kill()

    def wipe(self, node: int) -> None:
        shutil.rmtree(self.folder(node))

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.drop_clients()
        await asyncio.gather(*(server.stop() if server.started else server.kill() for server in self.servers.values()))

    # What there is

    @property
    def any(self) -> Server:
        return next(iter(self.servers.values()))

    def leader(self, topic: str, partition: int = 0) -> Server | None:
        for server in self.servers.values():
            found = server.broker.replica_of(topic, partition)
            if isinstance(found, Replica) and found.ready:
                return server
        return None

    async def until_led(self, topic: str, partition: int = 0) -> Server:
        await until(lambda: self.leader(topic, partition) is not None)
        leader = self.leader(topic, partition)
        assert leader is not None
        return leader

    async def controller(self) -> Server:
        def leads(server: Server) -> bool:
            replica = server.broker.node.replicas.get(CLUSTER_STREAM)
            return replica is not None and replica.ready

        await until(lambda: any(leads(server) for server in self.servers.values()))
        return next(server for server in self.servers.values() if leads(server))
