"""Produce: record batches in, each to the end of its stream, acknowledged when a majority has it on disk.

Everything a partition gets in one request is checked before any of it is appended. A batch is not copied and not looked
into: its checksum is computed, its header read, and the memory it arrived in goes to the log.

`acks` of 1 is as safe as -1 (all): there is no weaker promise to give. With 0 there is no answer, and a failure ends
the connection, which is all that can be told.

Promise 5. The first failure marks the connection; from then on its produces are refused, and one that was appended
before that to a stream where an earlier one failed is not acknowledged either, although it may come to be committed:
the earlier one, whose fate is unknown to the client, then was committed before it.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog import faults
from tidelog.groups.producers import Numbers, Written
from tidelog.raft import Reason, Refusal
from tidelog.server.clock import wall_ms
from tidelog.server.connection import Exchange
from tidelog.server.leaders import WRONG_NODE, endpoints_of, hint_of
from tidelog.server.refusals import error_of
from tidelog.server.replica import Replica
from tidelog.wire.batch import BatchHeader, CorruptBatchError, check_batch
from tidelog.wire.errors import ErrorCode
from tidelog.wire.leader_hints import Endpoint
from tidelog.wire.message_set import UnsupportedMagicError, read_message_set
from tidelog.wire.produce import PartitionAnswer, ProduceRequest, TopicName, write_answer
from tidelog.wire.records import InvalidBatchError, check_produced, set_append_time

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

LEADER_SINCE = 10
BATCHES_SINCE = 3  # the version from which on a partition's records are one batch; before, a message set
TIMEOUT_MS_MAX = 600_000
DEADLINE_STEP_MS = 64  # deadlines are rounded up to it, so that requests of neighbouring moments go into one proposal
_MAGIC_AT = 16
_TIMED_OUT = Refusal(Reason.TIMED_OUT)


class _Refused(Exception):
    """A partition's records cannot be appended."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message


class Produce:
    """One request under way."""

    __slots__ = (
        "_acks",
        "_answers",
        "_broker",
        "_deadline_ms",
        "_exchange",
        "_missing",
        "_size",
        "_version",
        "_wrong_node",
    )

    def __init__(self, broker: "Broker", exchange: Exchange, frame: memoryview) -> None:
        request = exchange.connection.produces.read(frame)
        timeout_ms = request.timeout_ms
        self._broker = broker
        self._exchange = exchange
        self._version = request.version
        self._size = len(frame)
        self._acks = request.acks
        if not 0 <= timeout_ms <= TIMEOUT_MS_MAX:
            timeout_ms = 0 if timeout_ms < 0 else TIMEOUT_MS_MAX
        self._deadline_ms = (exchange.received_ms + timeout_ms) | (DEADLINE_STEP_MS - 1)
        self._wrong_node = False  # a partition failed in a way that the client wants to know who leads
        self._missing = 1  # until every partition was begun
        self._answers: list[tuple[TopicName, list[PartitionAnswer]]] = []
        broker.under_way.produce_begun(self._size)
        self._begin(request)

    def _begin(self, request: ProduceRequest) -> None:
        problem = self._problem_with(request)
        failed: set[tuple[TopicName, int]] = set()
        for name, partitions in request.topics:
            answers: list[PartitionAnswer] = []
            self._answers.append((name, answers))
            for number, records in partitions:
                answer = PartitionAnswer(number)
                answers.append(answer)
                if problem is not None:
                    answer.error, answer.message = problem
                    continue
                try:
                    if failed and (name, number) in failed:
                        raise _Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier batch of this request failed")
                    self._append(name, records, answer)
                except _Refused as refused:
                    self._fail(answer, refused.error, refused.message)
                    self._exchange.connection.failed = True
                    failed.add((name, number))
        self._one_done()

    def _fail(self, answer: PartitionAnswer, error: ErrorCode, message: str) -> None:
        self._wrong_node = self._wrong_node or error in WRONG_NODE
        answer.error, answer.message = error, message
        answer.base_offset = answer.append_time_ms = answer.start_offset = -1

    def _problem_with(self, request: ProduceRequest) -> tuple[ErrorCode, str] | None:
        """What is wrong with the request as a whole."""
        connection = self._exchange.connection
        if connection.failed:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier produce on this connection failed: reconnect"
        if request.acks not in (-1, 0, 1):
            connection.failed = True
            return ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be -1, 0 or 1"
        if request.transactional_id is not None:
            connection.failed = True
            return ErrorCode.INVALID_REQUEST, "transactions are not supported"
        return None

    def _append(self, name: TopicName, records: memoryview | None, answer: PartitionAnswer) -> None:
        replica = self._broker.leader_of(name, answer.partition)
        if isinstance(replica, ErrorCode):
            raise _Refused(replica, f"{name}-{answer.partition}: {replica.name}")
        _check_open(replica, name)
        if not records:
            raise _Refused(ErrorCode.INVALID_RECORD, "no records")
        connection = self._exchange.connection
        replica.prepare(self._deadline_ms)
        if replica.stream in connection.failed_streams:
            raise _Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "an earlier produce on this connection failed: reconnect")
        numbers = None
        if self._version >= BATCHES_SINCE:
            header = self._checked(replica, records)
            batches: Sequence[bytearray | memoryview] = (records,)
            count = header.record_count
            if header.producer_id >= 0:
                numbers = Numbers.of(header.producer_id, header.producer_epoch, header.base_sequence, count)
        else:
            batches, count = self._converted(replica, records)
        append_time_ms = -1
        if replica.config.append_time:
            append_time_ms = wall_ms()
            for batch in batches:
                set_append_time(batch, append_time_ms)
        if numbers is not None:
            known = replica.producers.check(numbers, wall_ms())
            if isinstance(known, ErrorCode):
                raise _Refused(known, f"producer {numbers.producer_id}: sequence {numbers.first_sequence}")
            if known is not None:
                self._wait_for_duplicate(replica, known, answer)
                return

        def done(refusal: Refusal | None) -> None:
            if refusal is not None:
                connection.fail(replica.stream)
                self._fail(answer, error_of(refusal), refusal.reason.value)
            elif replica.stream in connection.failed_streams:
                self._fail(answer, ErrorCode.REQUEST_TIMED_OUT, "an earlier produce on this connection failed")
            self._one_done()

        self._missing += 1
        answer.append_time_ms = append_time_ms
        answer.start_offset = replica.start_offset
        answer.base_offset = replica.append(batches, count, numbers, self._deadline_ms, done)

    def _wait_for_duplicate(self, replica: Replica, known: Written, answer: PartitionAnswer) -> None:
        """The batch is in the log already; it is acknowledged when it is committed, within this request's time."""
        answer.base_offset, answer.start_offset = known.base_offset, replica.start_offset
        self._missing += 1
        timer: asyncio.TimerHandle | None = None
        ended = False

        def done(refusal: Refusal | None) -> None:
            nonlocal ended
            if ended:
                return
            ended = True
            if timer is not None:
                timer.cancel()
            if refusal is not None:
                self._exchange.connection.fail(replica.stream)
                self._fail(answer, error_of(refusal), refusal.reason.value)
            self._one_done()

        replica.when_committed(known.index, done)
        if not ended:
            delay_s = max(0, self._deadline_ms - self._broker.now()) / 1000
            timer = asyncio.get_running_loop().call_later(delay_s, done, _TIMED_OUT)

    def _checked(self, replica: Replica, records: memoryview) -> BatchHeader:
        """The header of a partition's one batch, if that may be appended."""
        try:
            header = check_batch(records)
            size = header.size
            if size != len(records):
                raise _Refused(ErrorCode.INVALID_RECORD, "a produce request holds one batch a partition")
            limit = self._bytes_max(replica)
            if size > limit:
                raise _Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; {limit} are allowed")
            check_produced(header, records, self._version)
        except CorruptBatchError as error:
            if len(records) > _MAGIC_AT and records[_MAGIC_AT] in (0, 1):
                raise _Refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, "message sets need Produce 0 to 2") from None
            raise _Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        except InvalidBatchError as error:
            raise _Refused(ErrorCode(error.reason.kafka_error), str(error)) from None
        return header

    def _converted(self, replica: Replica, records: memoryview) -> tuple[list[bytearray], int]:
        """An old client's message set as batches, and how many records they hold."""
        limit = self._bytes_max(replica)
        try:
            batches = read_message_set(records, bytes_max=self._broker.settings.request_bytes_max)
            headers = [check_batch(batch) for batch in batches]
        except UnsupportedMagicError as error:
            raise _Refused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, str(error)) from None
        except CorruptBatchError as error:
            raise _Refused(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
        if not batches:
            raise _Refused(ErrorCode.INVALID_RECORD, "no records")
        if any(header.size > limit for header in headers):
            raise _Refused(ErrorCode.MESSAGE_TOO_LARGE, f"more than {limit} bytes")
        return batches, sum(header.record_count for header in headers)

    def _bytes_max(self, replica: Replica) -> int:
        """Of a batch: what the topic allows, and no more than fits into a segment."""
        allowed, fitting = replica.config.max_message_bytes, self._broker.settings.storage_segment_bytes
        return min(allowed, fitting)

    def _one_done(self) -> None:
        self._missing -= 1
        if self._missing:
            return
        broker, exchange = self._broker, self._exchange
        bucket = broker.quotas.write
        mute_ms = bucket.charge(self._size, broker.now()) if bucket.bounded else 0
        broker.under_way.produce_ended(self._size)
        if self._acks == 0:
            exchange.answer((), mute_ms)
        elif faults.ARMED and faults.hit("produce.answer"):
            exchange.connection.abort("fault point produce.answer")  # the client never hears of it
            exchange.answer((), mute_ms)
        else:
            endpoints = self._tell_leaders() if self._wrong_node and self._version >= LEADER_SINCE else ()
            answer = write_answer(self._version, exchange.correlation_id, self._answers, mute_ms, endpoints)
            exchange.answer((answer,), mute_ms)

    def _tell_leaders(self) -> Sequence[Endpoint]:
        """Add who leads the partitions that this node does not (KIP-951); where those leaders are is returned."""
        leaders: list[int] = []
        for name, answers in self._answers:
            for answer in answers:
                leader = hint_of(self._broker, name, answer.partition) if answer.error in WRONG_NODE else None
                if leader is not None:
                    answer.leader = leader
                    leaders.append(leader[0])
        return endpoints_of(self._broker, leaders)


def _check_open(replica: Replica, name: TopicName) -> None:
    """Whether clients may write to the stream now."""
    if replica.internal:
        raise _Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{name} is internal: only the node writes to it")
    if replica.config.attached:
        raise _Refused(ErrorCode.POLICY_VIOLATION, f"{name} shows another cluster's topic, and is only read")
    if replica.awaits_store:
        raise _Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{name} is taking up what is in the store")
    if replica.log.short_of_space:
        raise _Refused(ErrorCode.KAFKA_STORAGE_ERROR, "what is left of the disk is kept for entries that free it")
