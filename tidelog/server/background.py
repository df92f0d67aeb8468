"""Work that goes on beside requests, for as long as the node lives.

It handles what can go wrong in operation by itself. Anything else is a fault of ours: the node must not go on without
the work, and nobody would notice, so it ends the node.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def run_in_background(work: Coroutine[Any, Any, None], failed: Callable[[BaseException], None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)

    def done(finished: asyncio.Task[None]) -> None:
        error = None if finished.cancelled() else finished.exception()
        if error is not None:
            failed(error)

    task.add_done_callback(done)
    return task
