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
from tidelog.storage import TransferError, manifest_of, segment_piece
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


async def checksum(_broker: "Broker", _stream: int, _start: int, _end: int) -> dict[str, Any]:
    raise AdminError(ErrorCode.UNSUPPORTED_VERSION, "not there yet")


def _held(broker: "Broker", stream: int) -> Replica:
    replica = broker.node.replicas.get(stream)
    if replica is None:
        raise AdminError(ErrorCode.REPLICA_NOT_AVAILABLE, f"node {broker.settings.node_id} has no replica of it")
    return replica
