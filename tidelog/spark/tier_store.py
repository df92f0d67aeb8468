"""The object store as Spark's driver and tasks reach it: opened from options, asked from code that waits.

The calls themselves, with their deadlines and tries, are `tidelog.tier.store`'s. Here is a thread with a loop for them,
so that the next pieces come while the present one is decoded.
"""

import asyncio
import os
import random
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from tidelog.spark.errors import BadOption, LogSourceError
from tidelog.spark.kernel.options import TierOptions
from tidelog.tier.errors import TierError
from tidelog.tier.sealing import KeyRing
from tidelog.tier.store import ObjectStore, Patience, open_store

END_S_MAX = 10.0  # for calls that nobody waits for any more

T = TypeVar("T")


class HistoryFailed(LogSourceError):
    """History cannot be read from the object store; the brokers may have it still: leave tier.path out."""


def opened(tier: TierOptions) -> ObjectStore:
    parts = urlsplit(tier.url)
    if parts.scheme == "file" and not os.path.isdir(unquote(parts.path)):
        raise BadOption(f"tier.path: there is no folder {unquote(parts.path)} here")  # and none is made by reading
    try:
        return open_store(tier.url, tier.client, Patience(), random.Random())
    except TierError as error:
        raise BadOption(f"tier.path: {error}") from None


def key_ring(tier: TierOptions) -> KeyRing | None:
    try:
        return None if tier.key_ring is None else KeyRing.load(tier.key_ring)
    except TierError as error:
        raise BadOption(f"tier.keyRing: {error}") from None


class StoreThread:
    """Runs coroutines in order of their beginning, each as far as it comes; what is begun may be waited for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)


@contextmanager
def store_thread() -> Iterator[StoreThread]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="tidelog-store", daemon=True)
    thread.start()
    try:
        yield StoreThread(loop)
    finally:
        asyncio.run_coroutine_threadsafe(_cancelled(), loop).result(END_S_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S_MAX)
        loop.close()


async def _cancelled() -> None:
    """Nothing of this loop goes on."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
