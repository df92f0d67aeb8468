"""Fetch: record batches out, from an offset on, up to the high watermark.

A fetch that finds less than it wants waits: it is told when one of its streams moves, looks again, and answers when
there is enough or its time is up. What it gives out are the batches as they lie: memory of the tail cache, or bytes of
a segment read into pooled memory (on the loop when the page cache has them, by a thread when the disk must be waited
for). Old clients (versions 0 to 3) get message sets made from them, which is the slow path.

Bounds: one answer has at most `fetch.bytes.max` bytes, or one batch. The more of `memory.fetch.bytes` is on its way to
clients, the smaller answers become, so that clients who do not read take nothing from those who do.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import UUID

from tidelog.server.connection import Exchange
from tidelog.server.replica import Replica
from tidelog.storage import Chunk, File, FileRange
from tidelog.wire.batch import Buffer, CorruptBatchError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import PartitionAnswer, write_fetch_answer
from tidelog.wire.message_set import write_message_set
from tidelog.wire.messages import FetchRequest
from tidelog.wire.messages.fetch import FetchRequestPartition

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

BATCHES_SINCE = 4
TOPIC_ID_SINCE = 13
PIECE_BYTES = 1 << 20
WAIT_MS_MAX = 60_000


@dataclass(slots=True)
class _Part:
    """One partition of the request."""

    asked: FetchRequestPartition
    answer: PartitionAnswer
    replica: Replica | None
    chunks: Sequence[Chunk] = ()


class _Piece(NamedTuple):
    """Memory that is to be filled from a file."""

    chunk: FileRange  # keeps the file from being used for something else
    file: File
    position: int
    memory: memoryview


def _read_pieces(pieces: Sequence[_Piece]) -> None:
    """In a thread."""
    for piece in pieces:
        read = piece.file.read_into(piece.position, piece.memory)
        if read < len(piece.memory):
            raise OSError(f"a segment ends at {piece.position + read}, its index says later")


class Fetch:
    """One request under way."""

    __slots__ = ("_broker", "_bytes", "_deadline_ms", "_done", "_exchange", "_parts", "_request", "_timer", "_topics")

    def __init__(self, broker: "Broker", exchange: Exchange, request: FetchRequest) -> None:
        self._broker = broker
        self._exchange = exchange
        self._request = request
        self._deadline_ms = exchange.received_ms + min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
        self._done = False
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._parts: list[_Part] = []
        self._topics: list[tuple[str | UUID, list[PartitionAnswer]]] = []
        by_id = exchange.api_version >= TOPIC_ID_SINCE
        for topic in request.topics:
            name = topic.topic_id if by_id else topic.topic
            answers: list[PartitionAnswer] = []
            self._topics.append((name, answers))
            for asked in topic.partitions:
                replica = broker.leader_of(name, asked.partition)
                answer = PartitionAnswer(asked.partition)
                answers.append(answer)
                if isinstance(replica, ErrorCode):
                    answer.error = replica
                    self._parts.append(_Part(asked, answer, None))
                else:
                    self._parts.append(_Part(asked, answer, replica))
        self._look()

    # Gathering

    def _look(self) -> None:
        """See what there is; answer when it is enough, or when there is no use in waiting."""
        if self._done:
            return
        found, failed = self._gather()
        if found >= self._request.min_bytes or failed or self._broker.now() >= self._deadline_ms:
            self._answer(found)
        elif self._timer is None:
            self._wait()

    def _end_waiting(self) -> None:
        """Time is up, or the client is gone. (A timer may fire a little early by our own clock, and only once.)"""
        self._deadline_ms = 0
        self._look()

    def _gather(self) -> tuple[int, bool]:
        """(bytes found, whether a partition failed); fills in every part."""
        left = min(max(self._request.max_bytes, 0), self._broker.fetch_allowance())
        found, failed = 0, False
        for part in self._parts:
            part.chunks = ()
            if part.replica is None:
                failed = True
                continue
            error = self._check(part.replica, part.asked)
            part.answer.error = error
            if error:
                part.answer.high_watermark = -1
                failed = True
                continue
            part.answer.high_watermark = part.replica.high_watermark
            part.answer.start_offset = part.replica.log.start_offset
            if left > 0 or not found:
                part.chunks = self._read(part.replica, part.asked, left, first=not found)
                size = sum(map(len, part.chunks))
                found += size
                left -= size
        return found, failed

    @staticmethod
    def _check(replica: Replica, asked: FetchRequestPartition) -> ErrorCode:
        if not replica.ready:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        epoch = asked.current_leader_epoch
        if epoch >= 0 and epoch != replica.group.term:
            return ErrorCode.FENCED_LEADER_EPOCH if epoch < replica.group.term else ErrorCode.UNKNOWN_LEADER_EPOCH
        if not replica.log.start_offset <= asked.fetch_offset <= replica.log.next_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE
        return ErrorCode.NONE

    @staticmethod
    def _read(replica: Replica, asked: FetchRequestPartition, left: int, *, first: bool) -> Sequence[Chunk]:
        """At most what the partition and the request allow; but one batch for whoever is first (KIP-74)."""
        if asked.fetch_offset >= replica.high_watermark:
            return ()
        bytes_max = min(max(asked.partition_max_bytes, 0), max(left, 0))
        chunks = replica.log.read(asked.fetch_offset, replica.group.commit, bytes_max)
        if not first and sum(map(len, chunks)) > bytes_max:
            return ()
        return chunks

    # Waiting

    def _wait(self) -> None:
        delay_s = max(0, self._deadline_ms - self._broker.now()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._end_waiting)
        self._exchange.hurry = self._end_waiting
        for part in self._parts:
            if part.replica is not None:
                part.replica.watchers[self] = self._look

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            for part in self._parts:
                if part.replica is not None:
                    part.replica.watchers.pop(self, None)

    # Answering

    def _answer(self, size: int) -> None:
        self._done = True
        self._stop_waiting()
        self._bytes = size
        self._broker.fetch_begun(size)
        self._exchange.release = self._release
        pieces = self._plan_reading()
        if not pieces:
            self._send(cold=False)
            return
        # The loop's own reads end where the disk would have to be waited for; a thread reads the rest.
        read = 0
        for piece in pieces:
            if piece.file.read_ready(piece.position, piece.memory) < len(piece.memory):
                break
            read += 1
        if read == len(pieces):
            self._send(cold=True)
        else:
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._broker.readers, _read_pieces, pieces[read:])
            reading.add_done_callback(self._files_read)

    def _plan_reading(self) -> list["_Piece"]:
        """Give every part its buffers; those still to be filled from files are returned."""
        pieces: list[_Piece] = []
        for part in self._parts:
            buffers: list[Buffer] = []
            for chunk in part.chunks:
                if not isinstance(chunk, FileRange):
                    buffers.append(chunk)
                    continue
                for start in range(0, len(chunk), PIECE_BYTES):
                    memory = self._broker.fetch_memory(min(PIECE_BYTES, len(chunk) - start))
                    buffers.append(memory)
                    pieces.append(_Piece(chunk, chunk.file, chunk.position + start, memory))
            part.answer.records = buffers
        return pieces

    def _files_read(self, reading: "asyncio.Future[None]") -> None:
        error = reading.exception()
        if error is not None:
            log.error("a fetch cannot read its segments: %s", error)
            for part in self._parts:
                part.answer.error, part.answer.records = ErrorCode.KAFKA_STORAGE_ERROR, ()
        self._send(cold=True)

    def _send(self, *, cold: bool) -> None:
        version = self._exchange.api_version
        if version < BATCHES_SINCE:
            self._convert(0 if version < 2 else 1)
        quotas = self._broker.quotas
        bucket = quotas.catch_up_read if cold else quotas.tail_read
        mute_ms = bucket.charge(self._bytes, self._broker.now()) if bucket.bounded else 0
        self._exchange.answer(
            write_fetch_answer(version, self._exchange.correlation_id, self._topics, 0, mute_ms), mute_ms
        )

    def _convert(self, magic: Literal[0, 1]) -> None:
        limit = self._broker.settings.request_bytes_max
        for part in self._parts:
            if part.answer.records:
                try:
                    converted = write_message_set(b"".join(part.answer.records), magic, part.asked.fetch_offset, limit)
                except CorruptBatchError:  # its producer's checksum is right, its content is not
                    part.answer.error, part.answer.records = ErrorCode.CORRUPT_MESSAGE, ()
                else:
                    part.answer.records = (converted,)

    def _release(self) -> None:
        self._topics.clear()
        self._parts.clear()
        self._broker.fetch_ended(self._bytes)
