"""The object store, as tiering uses it: put, read a range, delete, list. A folder, S3 and its like, GCS, Azure, HDFS.

Every call ends: it has a deadline, which grows with the bytes it moves, and a bounded number of tries with pauses
that double and vary. What it could not do it says by name (`errors`). Every call can be repeated: putting an object
again replaces it, deleting one that is not there is done already. A try that is given up may still take effect later;
so names are never used for two things (a fresh id each try), and the scrubber finds what such a try has left.

What a store has acknowledged is durable. Single tries are `backends`' and `hdfs`'.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from tidelog.tier.backends import PART_BYTES, PARTS_AT_ONCE, Backend, Buffer, ObstoreBackend, StoredObject
from tidelog.tier.errors import (
    LayoutError,
    ObjectMissingError,
    StoreError,
    StoreTimeoutError,
    StoreUnavailableError,
)

log = logging.getLogger(__name__)

_T = TypeVar("_T")

SCHEMES = ("file", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "webhdfs")

DELETES_AT_ONCE = 16

Parts = Callable[[], AsyncIterator[Buffer]]
"""Makes the content anew for each try."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often."""

    call_s: float = 10.0
    """A call that moves nothing has so long."""
    bytes_per_second_min: int = 1 << 20
    """Slower than this, a try has failed."""
    tries_max: int = 4
    pause_s: float = 0.1
    """Before the second try; then twice as long each time, more or less."""
    pause_s_max: float = 5.0
    source_s: float = 120.0
    """What is put may make us wait so long for its next piece: quotas do."""

    def deadline_s(self, size: int) -> float:
        return self.call_s + size / self.bytes_per_second_min


class ObjectStore(Protocol):
    async def put(self, name: str, content: Buffer) -> None: ...

    async def put_parts(self, name: str, parts: Parts) -> None:
        """The deadline is one for each part: what is put slowly on purpose is not given up."""
        ...

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """Exactly so many bytes, which must be there."""
        ...

    async def read_all(self, name: str) -> bytes: ...

    async def delete(self, names: Sequence[str]) -> None: ...

    async def objects(self, prefix: str) -> list[StoredObject]:
        """Everything below a folder, whose name ends with a slash or is empty."""
        ...

    async def folders(self, prefix: str) -> list[str]:
        """The names, without what is before them, of the folders directly in one."""
        ...


class RetriedStore:
    """An `ObjectStore` over one that does what it can at the first try."""

    def __init__(self, backend: Backend, patience: Patience, rng: random.Random) -> None:
        self._backend = backend
        self._patience = patience
        self._rng = rng
        self.tries_failed = 0

    async def put(self, name: str, content: Buffer) -> None:
        await self._tried(f"put {name}", lambda: self._backend.put(name, content), len(content))

    async def put_parts(self, name: str, parts: Parts) -> None:
        loop, patience = asyncio.get_running_loop(), self._patience
        part_s = patience.deadline_s(PART_BYTES * (PARTS_AT_ONCE + 1))

        async def watched(clock: asyncio.Timeout) -> AsyncIterator[Buffer]:
            source = aiter(parts())
            while True:
                clock.reschedule(loop.time() + patience.source_s)
                piece = await anext(source, None)
                clock.reschedule(loop.time() + part_s)
                if piece is None:
                    return
                yield piece

        async def once() -> None:
            async with asyncio.timeout(part_s) as clock:
                await self._backend.put_parts(name, watched(clock))

        await self._tried(f"put {name}", once, None)

    async def read(self, name: str, position: int, length: int) -> memoryview:
        async def once() -> memoryview:
            data = await self._backend.read(name, position, length)
            if len(data) != length:
                raise StoreUnavailableError(f"{len(data)} bytes came")
            return data

        return await self._tried(f"read {length} bytes at {position} of {name}", once, length)

    async def read_all(self, name: str) -> bytes:
        return await self._tried(f"read {name}", lambda: self._backend.read_all(name), 0)

    async def delete(self, names: Sequence[str]) -> None:
        rest = iter(names)

        async def delete_some() -> None:
            for name in rest:
                with contextlib.suppress(ObjectMissingError):  # it is not there: that is what was asked for
                    await self._tried(f"delete {name}", lambda name=name: self._backend.delete(name), 0)

        at_once = min(DELETES_AT_ONCE, len(names))
        for outcome in await asyncio.gather(*(delete_some() for _ in range(at_once)), return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def objects(self, prefix: str) -> list[StoredObject]:
        loop, page_s = asyncio.get_running_loop(), self._patience.deadline_s(0)

        async def once() -> list[StoredObject]:
            found: list[StoredObject] = []
            async with asyncio.timeout(page_s) as clock:  # for each page: however many there are, it comes to an end
                async for page in self._backend.pages(prefix):
                    found += page
                    clock.reschedule(loop.time() + page_s)
            return found

        return sorted(await self._tried(f"list {prefix}", once, None), key=lambda each: each.name)

    async def folders(self, prefix: str) -> list[str]:
        return sorted(await self._tried(f"list folders of {prefix}", lambda: self._backend.folders(prefix), 0))

    async def _tried(self, what: str, once: Callable[[], Awaitable[_T]], size: int | None) -> _T:
        """`size` None: the call watches its own time."""
        patience = self._patience
        pause_s = patience.pause_s
        for number in range(1, patience.tries_max + 1):
            try:
                async with asyncio.timeout(None if size is None else patience.deadline_s(size)):
                    return await once()
            except (Exception, TimeoutError) as error:
                named = self._named(error, what)
                if named is None:
                    raise
                self.tries_failed += 1
                if number == patience.tries_max or not isinstance(named, StoreTimeoutError | StoreUnavailableError):
                    raise named from None
                log.info("the store could not %s (try %d of %d): %s", what, number, patience.tries_max, named)
            await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
            pause_s = min(pause_s * 2, patience.pause_s_max)
        raise AssertionError("the last try returns or raises")

    def _named(self, error: BaseException, what: str) -> StoreError | None:
        """The error as one of ours; None for a fault of the program."""
        text = str(error).partition("\n")[0] or repr(error)
        if isinstance(error, StoreError):
            return type(error)(f"cannot {what}: {text}")
        if isinstance(error, TimeoutError):
            return StoreTimeoutError(f"cannot {what}: no answer in time")
        kind = self._backend.kind_of(error)
        if kind is ObjectMissingError:
            text = "it is not there"
        return None if kind is None else kind(f"cannot {what}: {text}")


def open_store(url: str, options: Mapping[str, str], patience: Patience, rng: random.Random) -> RetriedStore:
    """The store that a URL names: `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://container/prefix`,
    `webhdfs://host:port/folder`.

    `options` go to the store's client as they are (`endpoint`, `region`, `allow_http`, …); keys and secrets it also
    takes from the environment, as its vendor's tools do.
    """
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise LayoutError(f"{url!r} is no object store; write one of {', '.join(f'{each}://' for each in SCHEMES)}")
    try:
        match parts.scheme:
            case "file":
                backend = _folder(url, parts)
            case "webhdfs":
                backend = _hdfs(url, parts, options)
            case _:
                backend = _bucket(url, parts, options)
    except (BaseError, ValueError, OSError) as error:
        raise LayoutError(f"{url}: {str(error).partition(chr(10))[0]}") from None
    return RetriedStore(backend, patience, rng)


def _folder(url: str, parts: SplitResult) -> Backend:
    if parts.netloc or not parts.path.strip("/"):
        raise LayoutError(f"{url!r} names no folder; write file:/// and its whole path")
    root = os.path.abspath(unquote(parts.path))
    return ObstoreBackend(LocalStore(root, mkdir=True, automatic_cleanup=True), root=root)


def _bucket(url: str, parts: SplitResult, options: Mapping[str, str]) -> Backend:
    client: dict[str, Any] = {"connect_timeout": timedelta(seconds=5), "timeout": timedelta(minutes=10)}
    config = dict(options)
    if config.pop("allow_http", "false") == "true":
        client["allow_http"] = True
    if not parts.netloc:
        raise LayoutError(f"{url!r} names no bucket")
    base = f"{parts.scheme}://{parts.netloc}"
    prefix = parts.path.strip("/")
    store = from_url(base, config=config, client_options=client, retry_config={"max_retries": 0})  # type: ignore
    return ObstoreBackend(store, prefix=f"{prefix}/" if prefix else "")


def _hdfs(url: str, parts: SplitResult, options: Mapping[str, str]) -> Backend:
    if not parts.netloc or not parts.path.strip("/"):
        raise LayoutError(f"{url!r} names no host or no folder; write webhdfs://host:port/folder")
    try:
        from tidelog.tier.hdfs import OpendalBackend, webhdfs_operator  # noqa: PLC0415 - an extra
    except ImportError:
        raise LayoutError(f"{url!r} needs the extra for HDFS: pip install tidelog[hdfs]") from None
    return OpendalBackend(webhdfs_operator(parts.netloc, unquote(parts.path), options))


def parse_options(text: str) -> dict[str, str]:
    """`key=value,key=value`."""
    options: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise LayoutError(f"{part!r} is no option; write key=value")
        options[key.strip()] = value.strip()
    return options
