"""Fetch: record batches out, from an offset on, up to the high watermark.

A fetch that finds less than it wants waits: it is told when one of its streams moves, looks again, and answers when
there is enough or its time is up. What it gives out are the batches as they lie: memory of the tail cache, or bytes of
a segment read into pooled memory (on the loop when the page cache has them, by a thread when the disk must be waited
for). Old clients (versions 0 to 3) get message sets made from them, which is the slow path.

What lies before the log on this disk is read from the object store, in the background (`server/tiering.py`). A fetch
waits for all such partitions, for `remote.fetch.max.wait.ms` and no longer; those that have nothing by then are empty
in the answer, and the download goes on into the cache. One that is under way counts with all it may bring.

Who answers: the leader, once everything before its term is committed. A consumer that names its rack, in version 11 or
later, is sent to a replica there that keeps up, unless the leader stands there itself (KIP-392); that replica then
answers, below its own high watermark, as long as it hears its leader. One that asked a node which cannot answer is told
who leads (KIP-951).

Bounds: one answer has at most `fetch.bytes.max` bytes, or one batch. The more of `memory.fetch.bytes` is on its way to
clients, the smaller answers become, so that clients who do not read take nothing from those who do.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Literal, NamedTuple
from uuid import UUID

from tidelog import faults
from tidelog.raft import Refusal
from tidelog.server.connection import Exchange
from tidelog.server.leaders import WRONG_NODE, endpoints_of, epoch_error, hint_of, members_of
from tidelog.server.replica import Replica
from tidelog.storage import Chunk, File, FileRange
from tidelog.wire.batch import Buffer, CorruptBatchError
from tidelog.wire.errors import ErrorCode
from tidelog.wire.fetch import PartitionAnswer, write_fetch_answer
from tidelog.wire.leader_hints import Endpoint
from tidelog.wire.message_set import write_message_set
from tidelog.wire.messages import FetchRequest
from tidelog.wire.messages.fetch import FetchRequestPartition

if TYPE_CHECKING:
    from tidelog.server.broker import Broker
    from tidelog.server.remote_reads import RemoteRead

log = logging.getLogger(__name__)

BATCHES_SINCE = 4
RACK_SINCE = 11
LEADER_SINCE = 12
TOPIC_ID_SINCE = 13
IN_SYNC_TIMEOUTS = 2  # election timeouts within which a replica was heard that consumers are sent to,
IN_SYNC_ENTRIES_MAX = 4_096  # and how many committed entries it may lack
PIECE_BYTES = 1 << 20
WAIT_MS_MAX = 60_000
PROOF_MS_MAX = 1_000  # is waited for it, also if the reader would not wait: it comes with the next heartbeats


class _Proof(Enum):
    """That this node still leads a stream: asked for only where being wrong would do harm."""

    NOT_ASKED = 0
    PENDING = 1
    GIVEN = 2
    REFUSED = 3


@dataclass(slots=True)
class _Part:
    """One partition of the request."""

    asked: FetchRequestPartition
    answer: PartitionAnswer
    replica: Replica | None
    chunks: Sequence[Chunk] = ()
    remote: "RemoteRead | None" = None
    """What is being read from the object store for it."""
    proof: _Proof = _Proof.NOT_ASKED


class _Piece(NamedTuple):
    """Memory that is to be filled from a file."""

    chunk: FileRange  # keeps the file from being used for something else
    file: File
    position: int
    memory: memoryview


def _read_pieces(pieces: Sequence[_Piece]) -> None:
    """In a thread."""
    if faults.ARMED:
        faults.hit("fetch.read")
    for piece in pieces:
        read = piece.file.read_into(piece.position, piece.memory)
        if read < len(piece.memory):
            raise OSError(f"a segment ends at {piece.position + read}, its index says later")


class Fetch:
    """One request under way."""

    __slots__ = (
        "_broker", "_bytes", "_deadline_ms", "_done", "_exchange", "_parts", "_remote_deadline_ms", "_request",
        "_timer", "_topics",
    )  # fmt: skip

    def __init__(self, broker: "Broker", exchange: Exchange, request: FetchRequest) -> None:
        self._broker = broker
        self._exchange = exchange
        self._request = request
        self._deadline_ms = exchange.received_ms + min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
        self._remote_deadline_ms = 0  # of what is read from the store; 0: nothing is
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
                if replica is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    replica = broker.replica_of(name, asked.partition)  # it may answer as a follower
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
        found, hurry, pending = self._gather()
        now_ms = self._broker.now()
        if pending and now_ms < self._remote_deadline_ms:
            self._wait()
        elif found >= self._request.min_bytes or hurry or pending or now_ms >= self._deadline_ms:
            self._answer(found)
        else:
            self._wait()

    def _end_waiting(self) -> None:
        """Time is up, or the client is gone. (A timer may fire a little early by our own clock, and only once.)"""
        self._deadline_ms = self._remote_deadline_ms = 0
        self._look()

    def _remote_late(self) -> None:
        """The store did not answer in time."""
        self._remote_deadline_ms = 0
        self._timer = None
        self._look()
        for part in self._parts:
            if part.replica is not None and part.remote is not None and not part.remote.done:
                assert self._broker.tiering is not None, "it was asked"
                self._broker.tiering.expired(part.replica, fetch_expires=1)

    def _gather(self) -> tuple[int, bool, bool]:
        """(bytes found, whether there is something to tell at once, whether the store is waited for).

        Fills in every part.
        """
        left = min(max(self._request.max_bytes, 0), self._broker.under_way.fetch_allowance())
        found, hurry, pending = 0, False, False
        for part in self._parts:
            part.chunks = ()
            replica, answer = part.replica, part.answer
            if replica is None:
                hurry = True
                continue
            error, patient = self._check(replica, part)
            answer.error = error
            if error:
                answer.high_watermark = answer.start_offset = -1
                hurry = hurry or not patient
                continue
            answer.high_watermark = replica.high_watermark
            answer.start_offset = replica.start_offset
            if self._elsewhere(replica, part):
                hurry = True
            elif part.asked.fetch_offset < replica.local_start:
                size = self._gather_remote(replica, part, left, first=not (found or pending))
                hurry = hurry or bool(answer.error)
                pending = pending or size < 0
                found += max(0, size)
                left -= abs(size)
            elif left > 0 or not (found or pending):
                part.chunks = self._read(replica, part.asked, left, first=not (found or pending))
                size = sum(map(len, part.chunks))
                found += size
                left -= size
        return found, hurry, pending

    def _gather_remote(self, replica: Replica, part: _Part, left: int, *, first: bool) -> int:
        """Bytes that the store gave for the part; less than 0 while it is under way, by as much as it may give."""
        tiering = self._broker.tiering
        if tiering is None:
            part.answer.error = ErrorCode.KAFKA_STORAGE_ERROR
            return 0
        if part.remote is None:
            bytes_max = min(max(part.asked.partition_max_bytes, 0), max(left, 0))
            if not bytes_max and not first:
                return 0
            part.remote = tiering.begin_read(replica, part.asked.fetch_offset, bytes_max, self._look, first=first)
            if part.remote is None:
                return 0  # the quota is used up: others shall not wait for this one
            if not self._remote_deadline_ms:
                self._remote_deadline_ms = self._exchange.received_ms + tiering.wait_ms
        if not part.remote.done:
            return -max(1, part.remote.bytes_max)
        part.answer.error = part.remote.error
        part.chunks = part.remote.pieces
        return sum(map(len, part.chunks))

    def _check(self, replica: Replica, part: _Part) -> tuple[ErrorCode, bool]:
        """(what is wrong, whether time may mend it)."""
        asked = part.asked
        if replica.ready:
            error = epoch_error(replica, asked.current_leader_epoch)
            if not error and asked.fetch_offset < replica.start_offset:
                error = ErrorCode.OFFSET_OUT_OF_RANGE
            elif not error and asked.fetch_offset > replica.end_offset:
                return self._beyond_the_end(replica, part)
            return error, False
        return self._check_unready(replica, asked)

    def _check_unready(self, replica: Replica, asked: FetchRequestPartition) -> tuple[ErrorCode, bool]:
        """As `_check`, of a replica that does not lead, or not yet."""
        if replica.group.leader is None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, False
        error = epoch_error(replica, asked.current_leader_epoch)
        if error:
            return error, False
        if replica.leads:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, True  # it will know soon what is committed
        if not (replica.follows and self._was_sent_here()):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, False
        if asked.fetch_offset < replica.start_offset:
            return ErrorCode.OFFSET_OUT_OF_RANGE, False
        if asked.fetch_offset > replica.high_watermark:
            return ErrorCode.OFFSET_NOT_AVAILABLE, True  # the leader is ahead
        return ErrorCode.NONE, False

    def _beyond_the_end(self, replica: Replica, part: _Part) -> tuple[ErrorCode, bool]:
        """A reader that hears "out of range" begins anew: only a leader that has proof of being one may say so.

        One that was deposed, and does not know yet, lacks what its successor has given out.
        """
        if part.proof is _Proof.NOT_ASKED:
            part.proof = _Proof.PENDING

            def proved(refusal: Refusal | None) -> None:
                part.proof = _Proof.GIVEN if refusal is None else _Proof.REFUSED
                asyncio.get_running_loop().call_soon(self._look)

            self._deadline_ms = max(self._deadline_ms, self._broker.now() + PROOF_MS_MAX)
            replica.read_when_current(self._deadline_ms, proved)
        if part.proof is _Proof.GIVEN:
            return ErrorCode.OFFSET_OUT_OF_RANGE, False
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, part.proof is _Proof.PENDING

    def _was_sent_here(self) -> bool:
        """Leaders send consumers only to replicas in the consumer's own rack."""
        rack = self._request.rack_id
        return bool(rack) and self._exchange.api_version >= RACK_SINCE and rack == self._broker.settings.rack

    def _elsewhere(self, replica: Replica, part: _Part) -> bool:
        """Whether the reader is to go on elsewhere, which then stands in the answer."""
        asked, answer = part.asked, part.answer
        answer.preferred_replica, answer.diverging = -1, None
        if asked.last_fetched_epoch >= 0:
            epoch, end = replica.end_of_term(asked.last_fetched_epoch)
            if epoch < 0:
                answer.error = ErrorCode.OFFSET_OUT_OF_RANGE  # it is older than all that is known here
                return True
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                answer.diverging = (epoch, end)
                return True
        rack = self._request.rack_id
        if rack and rack != self._broker.settings.rack and replica.ready:
            answer.preferred_replica = self._nearest(replica, asked.fetch_offset, rack)
        return answer.preferred_replica >= 0

    def _nearest(self, replica: Replica, offset: int, rack: str) -> int:
        """The voter in the rack that has most of the log, if it keeps up and has the offset; else -1."""
        nodes = self._broker.state.nodes
        heard_ms_ago_max = IN_SYNC_TIMEOUTS * self._broker.settings.raft_election_timeout_ms
        best, best_match = -1, replica.group.commit - IN_SYNC_ENTRIES_MAX - 1
        for member in members_of(self._broker, replica):
            node = nodes.get(member.node)
            if (
                node is not None
                and node.rack == rack
                and member.node != self._broker.settings.node_id
                and member.voter
                and member.heard_ms_ago <= heard_ms_ago_max
                and member.match > best_match
                and (replica.remote.mirrored or replica.log.offset_after(member.match) >= offset)
            ):
                best, best_match = member.node, member.match
        return best

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
        if self._timer is not None:
            return
        until_ms, then = self._deadline_ms, self._end_waiting
        if self._remote_deadline_ms:
            until_ms, then = self._remote_deadline_ms, self._remote_late
        delay_s = max(0, until_ms - self._broker.now()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)
        self._exchange.hurry = self._end_waiting
        for part in self._parts:
            if part.replica is not None:
                part.replica.watchers[self] = self._look

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._exchange.hurry is not None:  # it has waited
            for part in self._parts:
                if part.replica is not None:
                    part.replica.watchers.pop(self, None)

    # Answering

    def _answer(self, size: int) -> None:
        self._done = True
        self._stop_waiting()
        self._bytes = size
        self._broker.under_way.fetch_begun(size)
        self._exchange.release = self._release
        pieces = self._plan_reading()
        if not pieces:
            self._send(cold=any(part.remote is not None for part in self._parts))
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
                    memory = self._broker.under_way.fetch_memory(min(PIECE_BYTES, len(chunk) - start))
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
        endpoints = self._tell_leaders() if version >= LEADER_SINCE else ()
        self._exchange.answer(
            write_fetch_answer(version, self._exchange.correlation_id, self._topics, 0, mute_ms, endpoints), mute_ms
        )

    def _tell_leaders(self) -> Sequence[Endpoint]:
        """Add who leads the partitions that this node does not; where those leaders are is returned."""
        leaders: list[int] = []
        for name, answers in self._topics:
            for answer in answers:
                if answer.error in WRONG_NODE:
                    answer.leader = hint_of(self._broker, name, answer.partition)
                    if answer.leader is not None:
                        leaders.append(answer.leader[0])
        return endpoints_of(self._broker, leaders) if leaders else ()

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
        self._broker.under_way.fetch_ended(self._bytes)
