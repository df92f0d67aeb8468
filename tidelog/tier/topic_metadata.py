"""`RemoteMetadata` over an internal topic, `__remote_log_metadata`, as Kafka keeps it.

Many streams share the topic's partitions; each reads the one that its place falls into, and of that its own records:

    topic id 16 | partition 4 | an event (`metadata.encode_event`)

The topic's order is the events' order: an event counts as it is applied by those who read, and whoever wrote one
knows its outcome when it has read it back. So the topic must be strongly consistent and nothing more. Unlike the
stream's own Raft group it knows nothing of who leads the stream; the state machine's rules keep a leader that lost
its office from harm.

The server keeps metadata in the streams' groups (decision 21); this is for logs that have none, and shows that the
two are not tied together.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Protocol
from zlib import crc32

from tidelog.tier.errors import LayoutError, StoreTimeoutError
from tidelog.tier.layout import StreamPlace
from tidelog.tier.metadata import Event, Outcome, RemoteLog, StartMoved, decode_event, encode_event

TOPIC = "__remote_log_metadata"
PARTITIONS = 50
"""Kafka's default."""
READ_BACK_S_MAX = 120.0
READS_MAX = 10_000  # of the topic, until one's own record is found

_HEAD = struct.Struct(">16si")


class MetadataTopic(Protocol):
    """What is needed of the topic."""

    async def append(self, partition: int, record: bytes) -> int:
        """Make a record durable; gives its offset."""
        ...

    async def read(self, partition: int, offset: int) -> Sequence[tuple[int, bytes]]:
        """(offset, record) of some records from an offset on, as many as are there, perhaps none."""
        ...


def partition_of(place: StreamPlace, partitions: int = PARTITIONS) -> int:
    """Where a stream's records go: by its topic's id and its number, so a topic's streams are spread."""
    return crc32(_HEAD.pack(place.topic_id.bytes, place.partition)) % partitions


class TopicMetadata:
    """One stream's remote segments, by the records of the topic."""

    def __init__(self, topic: MetadataTopic, place: StreamPlace, partitions: int = PARTITIONS) -> None:
        self._topic = topic
        self._key = _HEAD.pack(place.topic_id.bytes, place.partition)
        self._partition = partition_of(place, partitions)
        self._log = RemoteLog()
        self._next_offset = 0
        self._reading = asyncio.Lock()

    @property
    def log(self) -> RemoteLog:
        return self._log

    async def catch_up(self) -> None:
        """Apply everything that is in the topic by now."""
        async with self._reading:
            for _ in range(READS_MAX):
                if not await self._read_on():
                    return

    async def move_start(self, offset: int) -> None:
        await self._record(StartMoved(offset))

    async def record(self, event: Event) -> Outcome:
        return await self._record(event)

    async def _record(self, event: Event | StartMoved) -> Outcome:
        """Raises StoreTimeoutError when the record was written and could not be read back: it may count all the
        same."""
        async with self._reading:  # so that what is read between the two is read here
            offset = await self._topic.append(self._partition, self._key + encode_event(event))
            try:
                async with asyncio.timeout(READ_BACK_S_MAX):
                    for _ in range(READS_MAX):
                        outcome = (await self._read_on()).get(offset)
                        if outcome is not None:
                            return outcome
            except TimeoutError:
                pass
            raise StoreTimeoutError(f"the record at offset {offset} of {TOPIC} was not read back")

    async def _read_on(self) -> dict[int, Outcome]:
        """Apply what comes next; gives what became of the stream's own records, by offset, or of others' nothing."""
        outcomes: dict[int, Outcome] = {}
        for offset, record in await self._topic.read(self._partition, self._next_offset):
            if len(record) < _HEAD.size:
                raise LayoutError(f"{TOPIC}, partition {self._partition}, offset {offset}: no record of ours")
            self._next_offset = offset + 1
            ours = record.startswith(self._key)
            outcomes[offset] = self._log.apply(decode_event(record[_HEAD.size :])) if ours else Outcome.REPEATED
        return outcomes
