"""Fills replicas that begin with nothing, on nodes that are new to a stream or have lost their disk.

The stream's leader lists its closed segments, which are committed, and hands out their bytes; this node checks and
keeps them (`storage.transfer`), and takes part in the stream once it has them all. What was written since then comes by
ordinary replication. A filling that is interrupted goes on where it was, with another source if it must.

The configuration that the log begins with is the newest one known to be committed, to the leader or to the cluster's
state, not the one the segments begin under: that one may give this node a vote which it has lost (`raft.membership`).

Bounds: FILLING_MAX streams at a time, `fill.bytes.per.second` for all of them together.
"""

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from tidelog import faults
from tidelog.cluster import Partition, TopicConfig
from tidelog.raft import Configuration
from tidelog.server.background import run_in_background
from tidelog.server.quotas import TokenBucket
from tidelog.server.segment_client import SegmentClient, SourceError
from tidelog.storage import Filling, Manifest, StorageError, SyncFailedError

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

FILLING_MAX = 4
RETRY_S = 0.25
PIECE_BYTES = 1 << 20
LOG_PART = 0


class Filler:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(FILLING_MAX)
        self._rate = TokenBucket(0, broker.now())
        self.bytes_filled = 0

    def want(self, stream: int) -> None:
        """This node shall hold the stream, and has nothing of it."""
        if stream not in self._under_way:
            task = run_in_background(self._fill(stream), self._broker.node.fail)
            self._under_way[stream] = task
            task.add_done_callback(lambda _: self._under_way.pop(stream, None))

    @property
    def streams(self) -> list[int]:
        """Those that are being filled, or wait for it."""
        return list(self._under_way)

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    async def _fill(self, stream: int) -> None:
        said = ""
        while self.wanted(stream):
            try:
                async with self._room:  # let go between attempts: a stream without a leader must not keep others out
                    await self._fill_from_leader(stream)
            except (SourceError, StorageError) as error:
                if str(error) != said:
                    said = str(error)
                    log.info("stream %d is not filled yet: %s", stream, said)
            await asyncio.sleep(RETRY_S)
        self._broker.node.abandon_fillings(self.wanted)

    def wanted(self, stream: int) -> bool:
        broker = self._broker
        found = broker.state.partition_of(stream)
        if found is None or stream in broker.node.replicas:
            return False
        return broker.settings.node_id in found[0].partitions[found[1]].newcomers

    async def _fill_from_leader(self, stream: int) -> None:
        broker = self._broker
        leader = broker.state.nodes.get(broker.leader_node(stream))
        if leader is None or leader.node == broker.settings.node_id:
            raise SourceError("it has no leader now")
        if stream in broker.node.streams_being_deleted:
            raise SourceError("what was here before is still being deleted")
        topic, number = broker.state.partition_of(stream) or (None, 0)
        if topic is None:
            return
        source = await SegmentClient.connect(leader.host, leader.port)
        try:
            content = await source.admin("segments", {"topic": topic.name, "partition": number})
            manifest = Manifest.from_json(content)
            if manifest.stream != stream:
                raise SourceError("its name belongs to another stream by now")
            filling = broker.node.fill(_under_newest(manifest, topic.partitions[number]))
            try:
                await self._copy(source, filling)
            finally:
                filling.close()
        finally:
            source.close()
        if self.wanted(stream):
            if faults.ARMED:
                faults.hit("members.begin")
            broker.assigned.filled(stream, broker.node.adopt(filling, TopicConfig.of({})))

    async def _copy(self, source: SegmentClient, filling: Filling) -> None:
        """All that is missing; checks and writes happen in a thread."""
        loop, broker = asyncio.get_running_loop(), self._broker
        self._rate.set_rate(broker.live().fill_bytes_per_second, broker.now())
        try:
            await loop.run_in_executor(broker.readers, filling.begin)
            while (wanted := filling.wanted()) is not None:
                if not self.wanted(filling.stream):
                    raise SourceError("it is not wanted any more")
                first_index, position, length = wanted
                if faults.ARMED:
                    faults.hit("fill.piece")
                data = await source.read(filling.stream, first_index, LOG_PART, position, min(length, PIECE_BYTES))
                await loop.run_in_executor(broker.readers, filling.take, first_index, position, data)
                self.bytes_filled += len(data)
                if self._rate.bounded:
                    await asyncio.sleep(self._rate.charge(len(data), broker.now()) / 1000)
            if faults.ARMED:
                faults.hit("fill.open")
            await loop.run_in_executor(broker.readers, filling.finish)
        except SyncFailedError as error:
            broker.node.fail(error)
            raise SourceError(str(error)) from None
        except OSError as error:  # a full disk, most likely
            raise SourceError(f"this node's disk: {error}") from None


def _under_newest(manifest: Manifest, partition: Partition) -> Manifest:
    """The source may be a leader no more, and not know how this node was let go; the cluster's state does."""
    if partition.configuration_index <= manifest.configuration_index:
        return manifest
    configuration = Configuration.of(partition.voters, partition.learners)
    return replace(manifest, configuration_index=partition.configuration_index, configuration=configuration.encode())
