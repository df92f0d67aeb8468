"""Real brokers for one test: each with its listener on a free port, all in the test's own event loop."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.server.client import WAIT_S, Client
from tests.server.controlled_disk import ControlledDisk
from tidelog.cluster import TopicConfig
from tidelog.raft.settings import NEVER_MS
from tidelog.server.broker import Broker
from tidelog.server.listener import Listener
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.storage import Disk
from tidelog.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    InitProducerIdRequest,
)

POLL_S = 0.001
COPIES_MAX = 5
DEFAULTS: dict[str, Any] = {"storage_segment_bytes": 4 << 20, "group_partitions": 1}


class Server:
    """One broker that runs, and what tests want of it."""

    def __init__(self, settings: Settings, disk: ControlledDisk) -> None:
        self.settings = settings
        self.disk = disk
        self.failure: BaseException | None = None
        disk_as_such: Disk = disk  # type: ignore[assignment] - most of it is delegated
        self.broker = Broker(settings, disk_as_such, self._failed)
        self.listener = Listener(self.broker)
        self.port = 0
        self._clients: list[Client] = []
        self._stopped = False
        self.never_ready: int | None = None
        """A stream that gets a leader which commits nothing before the disk's syncs are released."""

    def _failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    async def start(self) -> None:
        self.port = await self.listener.open("127.0.0.1", 0)
        if self.never_ready is not None:
            self._put_off_election(self.never_ready)
        self.starting = asyncio.ensure_future(self.broker.start("127.0.0.1", self.port))
        await self.starting
        await self.listener.serve()
        if self.never_ready is None:
            await self.until_led()
        else:
            await self._lead_without_committing(self.never_ready)

    def _put_off_election(self, stream: int) -> None:
        node, carry = self.broker.node, self.broker.node.carry

        def patiently(number: int, config: TopicConfig) -> Replica:
            replica = carry(number, config)
            if number == stream:
                replica.group._patience.deadline_ms = NEVER_MS
            return replica

        node.carry = patiently  # type: ignore[method-assign]

    async def _lead_without_committing(self, stream: int) -> None:
        self.disk.hold_syncs(f"/streams/{stream}/")
        node = self.broker.node

        def leads() -> bool:
            node._host.campaign(stream, node._request())
            return node.replicas[stream].leads

        await until(leads)

    @property
    def started(self) -> bool:
        return self.starting.done() and not self.starting.cancelled() and self.starting.exception() is None

    async def stop(self) -> None:
        """As the process does it at SIGTERM."""
        if not self._stopped:
            self._stopped = True
            self.disk.release_syncs()
            await self.starting
            self.listener.close()
            await self.broker.stop()

    async def kill(self) -> None:
        """Let go of everything at once: nothing is answered, said or handed over any more."""
        if self._stopped:
            return
        self._stopped = True
        self.disk.release_syncs()
        self.starting.cancel()
        self.listener.close()
        self.broker.leave()

    async def drop_clients(self) -> None:
        for client in self._clients:
            client.abort()
        self._clients.clear()
        await asyncio.sleep(0)  # for the transports to let go of their sockets

    async def connect(self) -> Client:
        client = await Client.connect(self.port)
        self._clients.append(client)
        return client

    # Shortcuts past the protocol, for what is not under test

    async def create(self, name: str, partitions: int = 1, replication: int = 1, **configs: str) -> UUID:
        """A topic; `max_message_bytes="100"` stands for the setting max.message.bytes."""
        client = await self.connect()
        wanted = [CreateTopicsRequestConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
        topic = CreateTopicsRequestTopic(
            name=name, num_partitions=partitions, replication_factor=replication, assignments=[], configs=wanted
        )
        response = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=30_000))
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        await client.close()
        return self.broker.state.topics[name].id

    async def new_producer(self) -> int:
        client = await self.connect()
        response = await client.ask(InitProducerIdRequest())
        await client.close()
        return response.producer_id

    def replica(self, topic: str, partition: int = 0) -> Replica:
        found = self.broker.replica_of(topic, partition)
        assert isinstance(found, Replica)
        return found

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        return self.replica(topic, partition).high_watermark

    async def until_led(self) -> None:
        """Wait until every stream can be read and written."""
        replicas = self.broker.node.replicas
        await until(lambda: all(r.ready or (not r.leads and r.group.leader) for r in replicas.values()))

    async def until_appended(self, topic: str, offset: int, partition: int = 0) -> None:
        """Wait until the stream's log reaches `offset`, durable or not."""
        await until(lambda: self.replica(topic, partition).log.next_offset >= offset)


class World:
    """Starts servers; those that still run are stopped when the test ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._servers: list[Server] = []

    async def start(self, folder: str = "data", *, never_ready: int | None = None, **settings: Any) -> Server:
        """A new one, or with the folder of one that was stopped, that one again.

        `never_ready` is a stream that gets a leader which commits nothing before the disk's syncs are released.
        """
        chosen = Settings(data_dir=str(self._folder / folder), **(DEFAULTS | settings))
        server = Server(chosen, ControlledDisk())
        server.never_ready = never_ready
        self._servers.append(server)
        await server.start()
        return server

    def copy_as_killed(self, server: Server, folder: str) -> str:
        """What another process would find on disk if this one were killed now."""
        for left in reversed(range(COPIES_MAX)):
            try:
                shutil.copytree(server.settings.data_dir, self._folder / folder)
                break
            except shutil.Error:  # a spare file was taken into use meanwhile
                shutil.rmtree(self._folder / folder)
                if not left:
                    raise
        return folder

    async def stop(self) -> None:
        for server in self._servers:
            await server.drop_clients()
            await (server.stop() if server.started else server.kill())
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the server under test has no event to wait for
            await asyncio.sleep(POLL_S)
