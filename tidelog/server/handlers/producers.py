"""InitProducerId: a number for an idempotent producer, never given out twice.

Numbers are allotted to a node in blocks by the cluster's log, so that a node asks for one only once in a while. What is
left of a block when the node stops is never used.
"""

from tidelog.cluster import AllotProducerIds
from tidelog.server.handlers.call import Call
from tidelog.server.topics import TopicError, submit
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import InitProducerIdResponse

BLOCK = 1_000
TIMEOUT_MS = 30_000


class ProducerIds:
    """The numbers allotted to this node."""

    def __init__(self) -> None:
        self._next = self._end = 0

    async def take(self, call: Call) -> int:
        while self._next == self._end:
            applied = await submit(call.broker, AllotProducerIds(BLOCK), call.deadline_ms(TIMEOUT_MS))
            # Which numbers they are is lost when the answer came by way of a snapshot: then others are asked for.
            if self._next == self._end and applied.first_producer_id >= 0:  # nobody else was quicker
                self._next, self._end = applied.first_producer_id, applied.first_producer_id + BLOCK
        self._next += 1
        return self._next - 1


async def init_producer_id(call: Call) -> InitProducerIdResponse:
    if call.request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)  # there are no transactions
    try:
        return InitProducerIdResponse(producer_id=await call.broker.producer_ids.take(call), producer_epoch=0)
    except TopicError as error:
        code = ErrorCode.COORDINATOR_NOT_AVAILABLE if error.code is ErrorCode.NOT_CONTROLLER else error.code
        return InitProducerIdResponse(error_code=code)
