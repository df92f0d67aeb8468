"""A client of the protocol that does what it is told and nothing else: no retries, no metadata, no buffers of its own.

Requests are sent without waiting; answers are taken one at a time and must be those to the oldest unanswered request,
which is what Kafka promises. Every wait has a bound, so that a server that forgets an answer fails the test at once.
"""

import asyncio
import contextlib
import itertools
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from tidelog.wire.batch import Buffer
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import RequestHeader, decode_response, encode_request, read_correlation_id
from tidelog.wire.messages import (
    APIS,
    PRIVATE_APIS,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponsePartition,
)
from tidelog.wire.messages.fetch import FetchResponsePartition
from tidelog.wire.messages.offsets import ListOffsetsResponsePartition
from tidelog.wire.records import Record, build_batch, read_records

WAIT_S = 10.0  # generous: only a server that does not answer at all takes so long
ASK_AGAIN_S = 0.01
PRODUCE_VERSION = 9
FETCH_VERSION = 12
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3

_KEYS = {api.request: api.key for api in (*APIS.values(), *PRIVATE_APIS.values())}
_SIZE = struct.Struct(">i")


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._unanswered: deque[RequestHeader] = deque()

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    @property
    def port(self) -> int:
        """Its own, by which the server knows it."""
        return self._writer.get_extra_info("sockname")[1]

    # Sending

    def send(self, request: object, version: int | None = None, *, answered: bool = True) -> RequestHeader:
        """Without waiting for anything; `answered` is false for a produce with acks 0."""
        header = self.header(request, version)
        self._writer.writelines(encode_request(header, request))
        if answered:
            self._unanswered.append(header)
        return header

    def header(self, request: object, version: int | None = None) -> RequestHeader:
        key = _KEYS[type(request)]
        default = {0: PRODUCE_VERSION, 1: FETCH_VERSION}.get(key, (APIS | PRIVATE_APIS)[key].max_version)
        return RequestHeader(key, default if version is None else version, next(self._numbers), "test")

    def send_bytes(self, data: Buffer) -> None:
        self._writer.write(data)

    def expect(self, header: RequestHeader) -> None:
        """A request that went out as bytes will be answered."""
        self._unanswered.append(header)

    async def sent(self) -> None:
        """Everything sent so far is with the kernel."""
        async with asyncio.timeout(WAIT_S):
            await self._writer.drain()

    def end_sending(self) -> None:
        self._writer.write_eof()

    # Receiving

    async def receive(self) -> Any:
        """The answer to the oldest request that has none yet."""
        header = self._unanswered.popleft()
        frame = await self.receive_frame()
        assert frame is not None, f"the connection ended before request {header.correlation_id} was answered"
        assert read_correlation_id(frame) == header.correlation_id, "answers come in the order of the requests"
        return decode_response(header, frame)

    async def receive_all(self) -> list[Any]:
        return [await self.receive() for _ in range(len(self._unanswered))]

    async def receive_frame(self) -> bytes | None:
        """The next answer as it came; None when the server has ended the connection, in order and without a reset."""
        async with asyncio.timeout(WAIT_S):
            first = await self._reader.read(1)
            if not first:
                return None
            (size,) = _SIZE.unpack(first + await self._reader.readexactly(3))
            return await self._reader.readexactly(size)

    async def expect_end(self) -> None:
        """The server ends the connection and says nothing more before."""
        assert await self.receive_frame() is None

    async def expect_closed(self) -> None:
        """The server ends the connection somehow: a reset will do, and answers may come before."""
        with contextlib.suppress(ConnectionError):
            while await self.receive_frame() is not None:
                pass

    async def ask(self, request: object, version: int | None = None) -> Any:
        self.send(request, version)
        return await self.receive()

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def read_again(self) -> None:
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

    # Requests that most tests make

    def send_produce(self, topic: str | UUID, batch: Buffer | None, partition: int = 0, **options: Any) -> None:
        version = options.pop("version", PRODUCE_VERSION)
        request = produce_request(topic, [(partition, batch)], **options)
        self.send(request, version, answered=request.acks != 0)

    async def produce(self, topic: str | UUID, batch: Buffer | None, partition: int = 0, **options: Any) -> Any:
        self.send_produce(topic, batch, partition, **options)
        return await self.receive_produced()

    async def receive_produced(self) -> ProduceResponsePartition:
        response = await self.receive()
        return response.responses[0].partition_responses[0]

    async def fetch(self, topic: str | UUID, offset: int, partition: int = 0, **options: Any) -> FetchResponsePartition:
        version = options.pop("version", FETCH_VERSION)
        response = await self.ask(fetch_request(topic, [(partition, offset)], **options), version)
        return response.responses[0].partitions[0]

    async def read_all(self, topic: str, partition: int = 0, offset: int = 0) -> list[str]:
        """Every visible value from `offset` on. A node that is between two leaders is asked again, as consumers do."""
        values: list[str] = []
        give_up = time.monotonic() + WAIT_S
        while True:
            fetched = await self.fetch(topic, offset, partition)
            if fetched.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and time.monotonic() < give_up:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            assert fetched.error_code == 0, fetched
            records = [record for record in records_of(fetched.records) if record.offset >= offset]
            if not records:
                assert offset == fetched.high_watermark
                return values
            values += [(record.value or b"").decode() for record in records]
            offset = records[-1].offset + 1

    async def list_offset(
        self, topic: str, timestamp: int, partition: int = 0, version: int | None = None
    ) -> ListOffsetsResponsePartition:
        response = await self.ask(offsets_request(topic, timestamp, partition), version)
        return response.topics[0].partitions[0]

    # The end

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(WAIT_S):
                await self._writer.wait_closed()


def produce_request(
    topic: str | UUID,
    partitions: Sequence[tuple[int, Buffer | None]],
    *,
    acks: int = -1,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    data = [ProduceRequestPartition(index=number, records=batch) for number, batch in partitions]
    named: dict[str, Any] = {"name": topic} if isinstance(topic, str) else {"topic_id": topic}
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        transactional_id=transactional_id,
        topic_data=[ProduceRequestTopic(partition_data=data, **named)],
    )


def fetch_request(
    topic: str | UUID,
    partitions: Sequence[tuple[int, int]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_max_bytes: int = 1 << 20,
    epoch: int = -1,
) -> FetchRequest:
    """`partitions` are (number, offset)."""
    asked = [
        FetchRequestPartition(
            partition=number, fetch_offset=offset, partition_max_bytes=partition_max_bytes, current_leader_epoch=epoch
        )
        for number, offset in partitions
    ]
    named: dict[str, Any] = {"topic": topic} if isinstance(topic, str) else {"topic_id": topic}
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        topics=[FetchRequestTopic(partitions=asked, **named)],
    )


def offsets_request(topic: str, timestamp: int, partition: int = 0) -> ListOffsetsRequest:
    asked = ListOffsetsRequestPartition(partition_index=partition, timestamp=timestamp)
    return ListOffsetsRequest(topics=[ListOffsetsRequestTopic(name=topic, partitions=[asked])])


def batch_of(*values: bytes | str, first_time: int = 1_000, **options: Any) -> bytearray:
    """A batch of such values; their times count up from `first_time`."""
    records = [
        Record(value.encode() if isinstance(value, str) else value, timestamp=first_time + number)
        for number, value in enumerate(values)
    ]
    return build_batch(records, **options)


def numbered(producer_id: int, sequence: int, *values: str, epoch: int = 0) -> bytearray:
    """A batch of an idempotent producer."""
    return batch_of(
        *(values or (f"p{producer_id} s{sequence}",)),
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def records_of(data: Buffer | None) -> list[Record]:
    """The records of batches one after the other."""
    records: list[Record] = []
    view, position = memoryview(data or b""), 0
    while position < len(view):
        size = 12 + _SIZE.unpack_from(view, position + 8)[0]
        records += read_records(view[position : position + size])
        position += size
    return records


def values_of(data: Buffer | None) -> list[str]:
    return [(record.value or b"").decode() for record in records_of(data)]
