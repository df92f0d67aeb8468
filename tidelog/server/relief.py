"""A leader whose disk is full, or nearly, can take no records: it hands its streams over to replicas that may."""

import asyncio
import logging
from typing import TYPE_CHECKING

from tidelog.server.background import run_in_background
from tidelog.server.leaders import successor_of
from tidelog.server.replica import Replica

if TYPE_CHECKING:
    from tidelog.server.broker import Broker

log = logging.getLogger(__name__)

LOOK_S = 1.0
AGAIN_MS = 30_000  # all may be short of space: nobody is helped by a leadership that goes round


class Relief:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self._next_ms: dict[int, int] = {}

    def start(self) -> None:
        self._task = run_in_background(self._run(), self._broker.node.fail)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            for replica in list(self._broker.node.replicas.values()):
                if (replica.log.full or replica.log.short_of_space) and replica.leads:
                    self._hand_over(replica)

    def _hand_over(self, replica: Replica) -> None:
        broker, now_ms = self._broker, self._broker.now()
        if now_ms < self._next_ms.get(replica.stream, 0):
            return
        successor = successor_of(broker, replica)
        if successor is None:
            return
        refusal = broker.node.transfer_leadership(replica.stream, successor)
        if refusal is None:
            self._next_ms[replica.stream] = now_ms + AGAIN_MS
            log.warning("the disk has no room: stream %d is handed over to node %d", replica.stream, successor)
