"""Retention: leaders move their streams' log start past what is too old or too much, by an entry, for all replicas.

Segments are deleted whole. An active segment that has grown old is closed first, here and, when they look themselves,
on the followers; so a stream that is hardly written to loses its old records as well.

Of a tiered stream, every replica lets go of what is in the store by its own look (`local.retention.*`); the log start
is then moved by `tier_streams`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.raft import Refusal
from tidelog.server.background import run_in_background
from tidelog.server.clock import wall_ms
from tidelog.server.replica import Replica
from tidelog.server.tier_streams import bounds_of
from tidelog.storage import SegmentView, should_roll, start_for
from tidelog.tier.retention import local_start, roll_after_ms

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

MOVE_MS = 30_000
STREAMS_A_STEP = 50  # looked at before others get the loop


class Retention:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._timeless: dict[int, tuple[int, int]] = {}
        """By stream: the beginning of an active segment whose records have no time, and when it was first seen."""

    def start(self) -> None:
        self._task = run_in_background(self._run(), self._broker.node.fail)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._broker.settings.retention_check_ms / 1000)
            for number, replica in enumerate(list(self._broker.node.replicas.values())):
                if number % STREAMS_A_STEP == 0:
                    await asyncio.sleep(0)
                if not replica.internal and self._broker.state.partition_of(replica.stream) is not None:
                    self.look(replica)
            for stream in self._timeless.keys() - self._broker.node.replicas.keys():  # no longer here
                del self._timeless[stream]

    def look(self, replica: Replica) -> None:
        config, now_ms = replica.config, wall_ms()
        if config.attached:
            return  # nothing of it is here, and what is in the store is not ours
        segments = replica.log.segments_view()
        segment_ms = config.segment_ms
        if config.remote and config.remote_copy:
            segment_ms = roll_after_ms(segment_ms, self._broker.settings.remote_log_roll_ms, bounds_of(replica))
        if segments and should_roll(
            self._with_a_time(replica, segments[-1], now_ms), segment_ms, config.retention_ms, now_ms
        ):
            replica.log.roll()
        if config.remote:
            self._trim_local(replica, segments, now_ms)
        if not replica.ready or (config.remote and (config.remote_copy or replica.remote.readable())):
            return  # of what is in the store, `tiering` moves the log start
        offset = start_for(segments, config.retention_ms, config.retention_bytes, replica.group.commit, now_ms)
        if offset is not None and offset > replica.log.start_offset:
            replica.move_start(offset, replica.now() + MOVE_MS, _say_refused)

    def _with_a_time(self, replica: Replica, active: SegmentView, now_ms: int) -> SegmentView:
        """Records without a time are as old as this node knows them: closed a little late is better than never."""
        if active.oldest_timestamp >= 0 or active.next_offset == active.base_offset:
            self._timeless.pop(replica.stream, None)
            return active
        first_index, since_ms = self._timeless.get(replica.stream, (-1, 0))
        if first_index != active.first_index:
            since_ms = now_ms
            self._timeless[replica.stream] = active.first_index, since_ms
        return active._replace(oldest_timestamp=since_ms)

    def _trim_local(self, replica: Replica, segments: Sequence[SegmentView], now_ms: int) -> None:
        """Every replica for itself: what is finished in the store, or before the log start, may leave the disk."""
        remote = replica.remote
        start = local_start(
            segments, replica.start_offset, remote.copied_until, replica.group.commit, bounds_of(replica), now_ms
        )
        if start is not None and start > replica.log.start_offset:
            replica.trim_local(start)


def _say_refused(refusal: Refusal | None) -> None:
    if refusal is not None:
        log.info("old segments stay until the next look: %s", refusal.reason.value)
