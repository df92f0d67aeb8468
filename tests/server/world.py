"""Real brokers for one test: each with its listener on a free port, all in the test's own event loop."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.server.client import WAIT_S, Client
from tests.server.controlled_disk import ControlledDisk
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
        self.serves_while_starting = False
        """As a node does that has many streams: some of them are not ready yet when it begins to serve."""

    def _failed(self, error: BaseException) -> None:
        self.failure = self.failure or error

    async def start(self) -> None:
        self.port = await self.listener.open("127.0.0.1", 0)
        self.starting = asyncio.ensure_future(self.broker.start("127.0.0.1", self.port))
        if self.serves_while_starting:
            await self.listener.serve()
        else:
            await self.starting
            await self.listener.serve()
            await self.until_led()

    async def stop(self) -> None:
        """As the process does it at SIGTERM."""
        if not self._stopped:
            self._stopped = True
            self.disk.release_syncs()
            await self.starting
            self.listener.close()
            await self.broker.stop()

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

    async def create(self, name: str, partitions: int = 1, **configs: str) -> UUID:
        """A topic; `max_message_bytes="100"` stands for the setting max.message.bytes."""
        client = await self.connect()
        wanted = [CreateTopicsRequestConfig(name=key.replace("_", "."), value=text) for key, text in configs.items()]
        topic = CreateTopicsRequestTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=wanted
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
        await until(lambda: all(replica.ready for replica in self.broker.node.replicas.values()))

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
        if never_ready is not None:
            server.serves_while_starting = True
            server.disk.hold_syncs(f"/streams/{never_ready}/")
        self._servers.append(server)
        await server.start()
        return server

    def copy_as_killed(self, server: Server, folder: str) -> str:
        """What another process would find on disk if this one were killed now."""
        shutil.copytree(server.settings.data_dir, self._folder / folder)
        return folder

    async def stop(self) -> None:
        for server in self._servers:
            await server.drop_clients()
            await server.stop()
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the server under test has no event to wait for
            await asyncio.sleep(POLL_S)
