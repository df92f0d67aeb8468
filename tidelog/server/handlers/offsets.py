"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords: about the whole stream, on disk and in the object store."""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.raft import EntryKind
from tidelog.server.handlers.call import Call, current, outcome
from tidelog.server.leaders import led_here
from tidelog.server.replica import Replica
from tidelog.server.topics import until
from tidelog.tier.errors import TierError
from tidelog.wire.batch import CorruptBatchError, read_facts
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    DeleteRecordsResponse,
    DeleteRecordsResponsePartition,
    DeleteRecordsResponseTopic,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponsePartition,
    OffsetForLeaderEpochResponseTopic,
)
from tidelog.wire.records import newest_record, read_records

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6
NONE = -1
READ_TIMEOUT_MS = 30_000
READY_WAIT_MS_MAX = 500
EPOCH_TIMEOUT_MS = 2_000
NOT_AVAILABLE_SINCE = 5


async def list_offsets(call: Call) -> ListOffsetsResponse:
    async def listed(topic: ListOffsetsRequestTopic) -> ListOffsetsResponseTopic:
        answers = await asyncio.gather(*(_list(call, topic.name, partition) for partition in topic.partitions))
        return ListOffsetsResponseTopic(name=topic.name, partitions=list(answers))

    # All at once: each may wait for other nodes and for the store, and all have the request's one deadline.
    return ListOffsetsResponse(topics=list(await asyncio.gather(*map(listed, call.request.topics))))


async def _list(call: Call, name: str, asked: ListOffsetsRequestPartition) -> ListOffsetsResponsePartition:
    answer = ListOffsetsResponsePartition(partition_index=asked.partition_index)
    replica = await _ready_here(call, name, asked.partition_index, asked.current_leader_epoch)
    if isinstance(replica, ErrorCode):
        answer.error_code = replica
        return answer
    if not replica.ready:  # it does not know yet what was committed before its term: offsets would go back (KIP-207)
        old = call.version < NOT_AVAILABLE_SINCE
        answer.error_code = ErrorCode.LEADER_NOT_AVAILABLE if old else ErrorCode.OFFSET_NOT_AVAILABLE
        return answer
    deadline_ms = call.deadline_ms(call.request.timeout_ms or READ_TIMEOUT_MS)
    answer.error_code = await current(replica, deadline_ms)
    if answer.error_code:
        return answer
    if asked.timestamp < EARLIEST_PENDING_UPLOAD:
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
        return answer
    try:
        async with asyncio.timeout(_store_s(call.broker, deadline_ms)):
            answer.offset, answer.timestamp = await _offset_at(call.broker, replica, asked.timestamp)
    except TimeoutError:
        if call.broker.tiering is not None:
            call.broker.tiering.expired(replica, list_offsets_expires=1)
        answer.error_code = ErrorCode.REQUEST_TIMED_OUT
        return answer
    except TierError as error:
        log.error("stream %d: no offset for time %d, the store failed: %s", replica.stream, asked.timestamp, error)
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return answer
    if answer.offset >= 0:
        answer.leader_epoch = replica.term_of_offset(answer.offset)
        answer.old_style_offsets = [answer.offset][: asked.max_num_offsets]
    return answer


def _store_s(broker: "Broker", deadline_ms: int) -> float:
    """How long the store may take: not beyond the request's own deadline."""
    return max(0, min(broker.settings.remote_list_offsets_request_timeout_ms, deadline_ms - broker.now())) / 1000


async def _ready_here(call: Call, name: str, partition: int, epoch: int) -> Replica | ErrorCode:
    """As `led_here`. A new leader is ready in a moment, and not every client asks again: it is waited for."""
    found = led_here(call.broker, name, partition, epoch)
    if isinstance(found, ErrorCode) or found.ready:
        return found
    replica = found
    await until(replica, lambda: replica.ready or not replica.leads, READY_WAIT_MS_MAX)
    return led_here(call.broker, name, partition, epoch)


async def _offset_at(broker: "Broker", replica: Replica, timestamp: int) -> tuple[int, int]:
    """(offset, its time) of what was asked for, in either tier; -1 where there is none. Raises TierError."""
    remote = replica.remote
    match timestamp:
        case -1:
            return replica.high_watermark, NONE
        case -2:
            return replica.start_offset, NONE
        case -4:
            return replica.local_start, NONE
        case -5:
            readable = remote.readable()
            return readable[-1].last_offset if readable else NONE, NONE
        case -6:
            pending = max(remote.copied_until, replica.start_offset) if replica.config.remote else NONE
            return pending, NONE
        case -3:
            newest = _newest(replica)
            older = max((each.newest_timestamp for each in remote.reaching(newest[1] + 1)), default=NONE)
            found = await _at_time_in_store(broker, replica, older) if older > newest[1] else None
            return newest if found is None else found
    found = await _at_time_in_store(broker, replica, timestamp)
    return _first_at_time(replica, timestamp) if found is None else found


async def _at_time_in_store(broker: "Broker", replica: Replica, timestamp: int) -> tuple[int, int] | None:
    """The first record at or after a time, if it is not on this disk."""
    if broker.tiering is None or replica.start_offset == replica.local_start:
        return None
    return await broker.tiering.first_at_time(replica, timestamp)


def _newest(replica: Replica) -> tuple[int, int]:
    """The visible record with the largest time, the first of them if there are several."""
    log, last = replica.log, replica.group.commit
    index = log.index_at_time(log.newest_timestamp(last))
    if index is None or index > last:  # the largest lies before the log start: look at every batch behind it
        newest = NONE
        for at, header in log.batch_headers(log.index_of_offset(log.start_offset), last):
            if read_facts(header)[3] > newest:
                index, newest = at, read_facts(header)[3]
    if index is None or index > last:
        return NONE, NONE
    try:
        return newest_record(log.entries(index, index, 1)[0].data)
    except CorruptBatchError:  # no client can read it either
        return NONE, NONE


def _first_at_time(replica: Replica, timestamp: int) -> tuple[int, int]:
    """The first visible record at or after a time."""
    log = replica.log
    index = log.index_at_time(timestamp)
    while index is not None and index <= replica.group.commit:
        entry = log.entries(index, index, 1)[0]
        if entry.kind is EntryKind.DATA:
            try:
                records = read_records(entry.data)
            except CorruptBatchError:
                records = []  # its producer's checksum is right, its content is not: no client can read it either
            for record in records:
                if record.timestamp >= timestamp and record.offset >= log.start_offset:
                    return record.offset, record.timestamp
        index = index + 1 if index < log.last_index else None
    return NONE, NONE


async def offset_for_leader_epoch(call: Call) -> OffsetForLeaderEpochResponse:
    response = OffsetForLeaderEpochResponse()
    for topic in call.request.topics:
        answers = [await _epoch_end(call, topic.topic, partition) for partition in topic.partitions]
        response.topics.append(OffsetForLeaderEpochResponseTopic(topic=topic.topic, partitions=answers))
    return response


async def _epoch_end(
    call: Call, name: str, asked: OffsetForLeaderEpochRequestPartition
) -> OffsetForLeaderEpochResponsePartition:
    answer = OffsetForLeaderEpochResponsePartition(partition=asked.partition)
    replica = led_here(call.broker, name, asked.partition, asked.current_leader_epoch)
    if isinstance(replica, ErrorCode):
        answer.error_code = replica
        return answer
    # A reader takes a smaller end for lost records and begins anew. So it is told none by a leader that may know less
    # than the reader has read: one that is not ready, or that was deposed and does not know it yet.
    if not replica.ready or await current(replica, call.broker.now() + EPOCH_TIMEOUT_MS):
        answer.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif asked.leader_epoch > max(replica.group.term, replica.remote.newest_epoch()):
        answer.error_code = ErrorCode.UNKNOWN_LEADER_EPOCH
    else:
        epoch, end = replica.end_of_term(asked.leader_epoch)
        answer.leader_epoch, answer.end_offset = epoch, min(end, replica.high_watermark)
    return answer


async def delete_records(call: Call) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    deadline_ms = call.deadline_ms(call.request.timeout_ms)
    for topic in call.request.topics:
        answers = [
            await _delete(call, topic.name, partition.partition_index, partition.offset, deadline_ms)
            for partition in topic.partitions
        ]
        response.topics.append(DeleteRecordsResponseTopic(name=topic.name, partitions=answers))
    return response


async def _delete(
    call: Call, name: str, partition: int, offset: int, deadline_ms: int
) -> DeleteRecordsResponsePartition:
    answer = DeleteRecordsResponsePartition(partition_index=partition, low_watermark=NONE)
    topic = call.broker.topic_of(name)
    replica = call.broker.leader_of(name, partition)
    if isinstance(replica, ErrorCode):
        answer.error_code = replica
        return answer
    if (topic is not None and topic.internal) or replica.config.attached:
        answer.error_code = ErrorCode.POLICY_VIOLATION
        return answer
    answer.error_code = await current(replica, deadline_ms)
    if answer.error_code:
        return answer
    target = replica.high_watermark if offset == LATEST else offset
    if not 0 <= target <= replica.high_watermark:
        answer.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
        return answer
    if target > replica.start_offset:
        answer.error_code = await outcome(lambda done: replica.move_start(target, deadline_ms, done))
    if not answer.error_code:
        answer.low_watermark = replica.start_offset
    return answer
