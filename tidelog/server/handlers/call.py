"""One request on its way to a handler, and the few things every handler does."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.raft import Refusal
from tidelog.server.peers import PeerCallError
from tidelog.server.refusals import error_of
from tidelog.server.replica import Done, Replica
from tidelog.wire.errors import ErrorCode
from tidelog.wire.frames import RequestHeader

if TYPE_CHECKING:
    from tidelog.server.broker import Broker
    from tidelog.server.connection import Exchange

TIMEOUT_MS_MAX = 300_000


@dataclass(slots=True)
class Call:
    broker: "Broker"
    header: RequestHeader
    request: Any
    """None only for an ApiVersions request of a version that is not ours."""
    exchange: "Exchange"

    @property
    def version(self) -> int:
        return self.header.api_version

    def deadline_ms(self, timeout_ms: int) -> int:
        return self.exchange.received_ms + min(max(timeout_ms, 0), TIMEOUT_MS_MAX)


class AdminError(PeerCallError):
    """Something an administrator asked for that is not done, and why; also when another node was asked to do it."""


Handler = Callable[[Call], object | Coroutine[Any, Any, object]]
"""Gives the response to the call's request, at once or as a coroutine."""


async def outcome(begin: Callable[[Done], None]) -> ErrorCode:
    """Wait for something a replica was asked for: `begin` is handed what to call when it is done."""
    done: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

    def finish(refusal: Refusal | None) -> None:
        if not done.done():
            done.set_result(refusal)

    begin(finish)
    refusal = await done
    return ErrorCode.NONE if refusal is None else error_of(refusal)


async def current(replica: Replica, deadline_ms: int) -> ErrorCode:
    """Wait until the replica knows everything that was acknowledged before now."""
    return await outcome(lambda done: replica.read_when_current(deadline_ms, done))
