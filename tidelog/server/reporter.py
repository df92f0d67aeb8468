"""Tells the controller which streams this node leads, and with which members, so that every node can say so.

What was reported is in the cluster's state, which is here: so a report is due for every stream led here whose leader,
term or committed members differ from the state. Nothing has to be remembered, and nothing can be forgotten: beside the
streams that were just touched, all are compared once in a while.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.cluster import CLUSTER_STREAM
from tidelog.server.background import run_in_background
from tidelog.server.peers import PeerCallError
from tidelog.server.replica import Replica

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

GATHER_S = 0.01
RETRY_S = 0.2
COMPARE_S = 5.0
CALL_MS = 5_000
ROWS_MAX = 2_000  # of one report

Row = tuple[int, int, int, int, tuple[int, ...], tuple[int, ...]]


class Reporter:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._touched: dict[int, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = run_in_background(self._run(), self._broker.node.fail)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def touched(self, replica: Replica) -> None:
        self._touched[replica.stream] = None
        self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(COMPARE_S):
                    await self._wake.wait()
                await asyncio.sleep(GATHER_S)
                self._wake.clear()
                streams, self._touched = list(self._touched), {}
            except TimeoutError:
                streams = list(self._broker.node.replicas)
            if not await self._report(streams):
                self._touched |= dict.fromkeys(streams)
                await asyncio.sleep(RETRY_S)
                self._wake.set()

    async def _report(self, streams: list[int]) -> bool:
        """Says whether nothing is left to report."""
        rows = [row for stream in streams if (row := self._row(stream)) is not None]
        pending = any(self._changing(stream) for stream in streams)
        for first in range(0, len(rows), ROWS_MAX):
            try:
                content = {"rows": rows[first : first + ROWS_MAX]}
                await self._broker.at_controller("note-leaders", content, CALL_MS)
            except PeerCallError as error:
                log.debug("leaders are not reported yet: %s", error.message)
                return False
        return not pending

    def _row(self, stream: int) -> Row | None:
        """What to report of a stream, if it is led here and the cluster's state says otherwise."""
        replica = self._broker.node.replicas.get(stream)
        found = self._broker.state.partition_of(stream)
        if stream == CLUSTER_STREAM or replica is None or not replica.ready or found is None:
            return None
        index, configuration = replica.group.committed_configuration
        partition = found[0].partitions[found[1]]
        me = self._broker.settings.node_id
        row = (stream, me, replica.group.term, index, configuration.voters, configuration.learners)
        known = (
            stream, partition.leader, partition.term, partition.configuration_index,
            partition.voters, partition.learners,
        )  # fmt: skip
        return None if configuration.joint or row == known else row

    def _changing(self, stream: int) -> bool:
        """Whether a stream is led here and there will soon be something to report of it."""
        replica = self._broker.node.replicas.get(stream)
        if stream == CLUSTER_STREAM or replica is None or not replica.leads:
            return False
        return not replica.ready or replica.group.committed_configuration[1] != replica.group.configuration
