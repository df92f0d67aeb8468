"""Fills replicas that begin with nothing, on nodes that are new to a stream or have lost their disk."""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.cluster import TopicConfig

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

RETRY_S = 0.2


class Filler:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._wanted: dict[int, None] = {}
        self._task: asyncio.Task[None] | None = None

    def want(self, stream: int) -> None:
        """This node shall hold the stream, and has nothing of it."""
        self._wanted[stream] = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while self._wanted:
            for stream in list(self._wanted):
                if self._begin(stream):
                    del self._wanted[stream]
            await asyncio.sleep(RETRY_S)

    def _begin(self, stream: int) -> bool:
        """Says whether nothing is left to do."""
        broker, me = self._broker, self._broker.settings.node_id
        found = broker.state.partition_of(stream)
        if found is None or stream in broker.node.replicas:
            return True
        partition = found[0].partitions[found[1]]
        if me not in partition.newcomers:
            return True
        voters = [node for node in partition.voters or partition.initial if node != me]
        if not voters or stream in broker.node.streams_being_deleted:
            return False
        broker.filled(stream, broker.node.begin(stream, voters, TopicConfig.of({})))
        return True
