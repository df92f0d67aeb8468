"""What is known of a stream's remote segments, kept as entries of the stream's own Raft group.

Whoever is not the leader any more cannot commit, and learns it here (`NotLeaderError`). An event is applied on this
node by the time its recording ends, so the outcome is read off the state.
"""

import asyncio
import uuid

from tidelog.raft import Refusal
from tidelog.server.replica import Replica
from tidelog.tier.errors import TierError
from tidelog.tier.metadata import (
    Event,
    Outcome,
    RemoteLog,
    SegmentAdded,
    SegmentMoved,
    SegmentsAdopted,
    SegmentsMirrored,
    SegmentState,
)

RECORD_MS = 30_000


class NotLeaderError(TierError):
    """This node does not lead the stream any more: somebody else goes on."""


class RaftMetadata:
    """`RemoteMetadata` in the stream's own Raft group."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    @property
    def log(self) -> RemoteLog:
        return self._replica.remote

    async def record(self, event: Event) -> Outcome:
        replica = self._replica
        id_ = _segment_id(event)
        before = None if id_ is None else replica.remote.segment(id_)
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def finish(refusal: Refusal | None) -> None:
            if not done.done():
                done.set_result(refusal)

        replica.record_remote(event, replica.now() + RECORD_MS, finish)
        refusal = await done
        if refusal is not None:
            raise NotLeaderError(f"stream {replica.stream}: {refusal.reason.value}")
        match event:
            case SegmentsAdopted():
                return Outcome.REFUSED if replica.remote.is_blank else Outcome.APPLIED
            case SegmentsMirrored():
                return Outcome.APPLIED if replica.remote.mirrored else Outcome.REFUSED
            case SegmentAdded(segment):
                id_, wanted = segment.id, SegmentState.COPY_STARTED
            case SegmentMoved(id_, wanted):
                pass
        after = replica.remote.segment(id_)
        there = after.state if after is not None else SegmentState.DELETE_FINISHED
        if there is not wanted:
            return Outcome.REFUSED
        return Outcome.REPEATED if before is not None and before.state is wanted else Outcome.APPLIED

    async def move_start(self, offset: int) -> None:
        replica = self._replica
        done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        replica.move_start(offset, replica.now() + RECORD_MS, lambda r: None if done.done() else done.set_result(r))
        refusal = await done
        if refusal is not None:
            raise NotLeaderError(f"stream {replica.stream}: {refusal.reason.value}")


def _segment_id(event: Event) -> uuid.UUID | None:
    match event:
        case SegmentAdded(segment):
            return segment.id
        case SegmentMoved(id_):
            return id_
        case SegmentsAdopted() | SegmentsMirrored():
            return None
