"""Closed segments as files: ReadSegment, and what TidelogAdmin tells of a node's own replicas.

Any replica answers, not only the leader: what is told and handed out is committed, and closed segments never change.
Files are found on the loop and read in a thread.
"""

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from tidelog.server.handlers.call import AdminError, Call
from tidelog.server.replica import Replica
from tidelog.storage import (
    CorruptDataError,
    RangeChecksum,
    StorageError,
    TransferError,
    manifest_of,
    segment_piece,
)
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import READ_SEGMENT_BYTES_MAX, ReadSegmentRequest, ReadSegmentResponse

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)


async def read_segment(call: Call) -> ReadSegmentResponse:
    request: ReadSegmentRequest = call.request
    broker = call.broker
    replica = broker.node.replicas.get(request.stream)
    if replica is None:
        return ReadSegmentResponse(error_code=ErrorCode.REPLICA_NOT_AVAILABLE)
    if not 0 < request.length <= READ_SEGMENT_BYTES_MAX or request.position < 0:
        return ReadSegmentResponse(error_code=ErrorCode.INVALID_REQUEST)
    try:
        piece = segment_piece(replica.log, request.first_index, request.part, request.position, request.length)
        data = await asyncio.get_running_loop().run_in_executor(broker.readers, piece.read)
    except TransferError as error:  # it was deleted meanwhile: the list of segments is to be asked for again
        log.info("a segment cannot be handed out: %s", error)
        return ReadSegmentResponse(error_code=ErrorCode.SNAPSHOT_NOT_FOUND)
    except OSError as error:
        log.error("stream %d cannot be read: %s", request.stream, error)
        return ReadSegmentResponse(error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return ReadSegmentResponse(data=data)


async def manifest(broker: "Broker", stream: int) -> dict[str, Any]:
    replica = _held(broker, stream)
    index, configuration = replica.group.committed_configuration  # what a replica that is filled begins under
    found = dataclasses.replace(
        manifest_of(replica.log, replica.group.commit),
        configuration_index=index,
        configuration=configuration.encode(),
    )
    return {**found.to_json(), "high_watermark": replica.high_watermark}


async def checksum(broker: "Broker", stream: int, start: int, end: int, deadline_ms: int) -> dict[str, Any]:
    """Of the batches that hold the offsets start..end-1, all of them committed. A piece at a time, each in a thread."""
    replica = _held(broker, stream)
    if not 0 <= start <= end:
        raise AdminError(ErrorCode.INVALID_REQUEST, f"offsets {start} to {end}: the end lies before the start")
    if end > replica.high_watermark:
        reached = replica.high_watermark
        raise AdminError(
            ErrorCode.OFFSET_NOT_AVAILABLE, f"only what is before offset {reached} is known to be committed"
        )
    loop = asyncio.get_running_loop()
    try:
        rolled = RangeChecksum(replica.log, start, end, replica.group.commit)
        while (piece := rolled.next_piece()) is not None:
            if broker.now() > deadline_ms:
                raise AdminError(
                    ErrorCode.REQUEST_TIMED_OUT, f"{rolled.bytes} bytes were read: ask for a smaller range"
                )
            await loop.run_in_executor(broker.readers, rolled.take, piece)
    except CorruptDataError as error:
        raise AdminError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    except StorageError as error:  # deleted, before or meanwhile
        raise AdminError(ErrorCode.OFFSET_OUT_OF_RANGE, str(error)) from None
    except OSError as error:
        raise AdminError(ErrorCode.KAFKA_STORAGE_ERROR, str(error)) from None
    return {"start": start, "end": end, "crc": rolled.crc, "batches": rolled.batches, "bytes": rolled.bytes}


def _held(broker: "Broker", stream: int) -> Replica:
    replica = broker.node.replicas.get(stream)
    if replica is None:
        raise AdminError(ErrorCode.REPLICA_NOT_AVAILABLE, f"node {broker.settings.node_id} has no replica of it")
    return replica
