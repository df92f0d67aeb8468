"""One try of each call that tiering makes to an object store, over `obstore`. Deadlines and tries are `store`'s.

A backend may raise what its library raises; `kind_of` says which of our errors that is.

What a backend has put is durable, and is there whole or not at all; for a local folder this module sees to the first
itself, with syncs.
"""

import asyncio
import contextlib
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    NotSupportedError,
    UnauthenticatedError,
)
from obstore.exceptions import PermissionDeniedError as DeniedError

from tidelog.tier.errors import ObjectMissingError, StoreError, StoreRefusedError, StoreUnavailableError

PART_BYTES = 8 << 20  # of an upload in parts; S3 takes at most 10,000 of them
PARTS_AT_ONCE = 2
_UNFINISHED = re.compile(r"#\d+$")  # behind the name of a file that the library is writing in a folder

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class StoredObject:
    name: str
    size: int
    modified_ms: int


class Backend(Protocol):
    async def put(self, name: str, content: Buffer) -> None: ...

    async def put_parts(self, name: str, pieces: AsyncIterator[Buffer]) -> None: ...

    async def read(self, name: str, position: int, length: int) -> memoryview:
        """So many bytes, or fewer where the object ends."""
        ...

    async def read_all(self, name: str) -> bytes: ...

    async def delete(self, name: str) -> None:
        """It may raise when there is no such object."""
        ...

    def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        """Everything below a folder, also what was begun and never finished, some at a time."""
        ...

    async def folders(self, prefix: str) -> list[str]: ...

    def kind_of(self, error: BaseException) -> type[StoreError] | None:
        """None for a fault of the program."""
        ...


class ObstoreBackend:
    def __init__(self, store: Any, *, root: str | None = None, prefix: str = "") -> None:
        """`root` is the folder of a local store."""
        self._store = store
        self._root = root
        self._prefix = prefix

    async def put(self, name: str, content: Buffer) -> None:
        await obstore.put_async(self._store, self._prefix + name, content, use_multipart=False)
        await self._sync(name)

    async def put_parts(self, name: str, pieces: AsyncIterator[Buffer]) -> None:
        await obstore.put_async(
            self._store, self._prefix + name, pieces, chunk_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE
        )
        await self._sync(name)

    async def read(self, name: str, position: int, length: int) -> memoryview:
        return memoryview(
            await obstore.get_range_async(self._store, self._prefix + name, start=position, length=length)
        )

    async def read_all(self, name: str) -> bytes:
        answer = await obstore.get_async(self._store, self._prefix + name)
        return bytes(await answer.buffer_async())

    async def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._root is not None and _UNFINISHED.search(name):
                os.unlink(os.path.join(self._root, name))
            else:
                await obstore.delete_async(self._store, self._prefix + name)

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        async for page in obstore.list(self._store, (self._prefix + prefix).rstrip("/") or None):
            yield [
                StoredObject(
                    item["path"].removeprefix(self._prefix), item["size"], int(item["last_modified"].timestamp() * 1000)
                )
                for item in page
            ]
        if self._root is not None:
            yield await asyncio.get_running_loop().run_in_executor(None, _unfinished, self._root, prefix)

    async def folders(self, prefix: str) -> list[str]:
        answer = await obstore.list_with_delimiter_async(self._store, (self._prefix + prefix).rstrip("/") or None)
        return [folder.rstrip("/").rsplit("/", 1)[-1] for folder in answer["common_prefixes"]]

    def kind_of(self, error: BaseException) -> type[StoreError] | None:
        match error:
            case FileNotFoundError():
                return ObjectMissingError
            case PermissionError() | DeniedError() | UnauthenticatedError() | InvalidPathError() | NotSupportedError():
                return StoreRefusedError
            case BaseError() | OSError():
                return StoreUnavailableError
            case _:
                return None

    async def _sync(self, name: str) -> None:
        if self._root is not None:
            path = os.path.join(self._root, name)
            await asyncio.get_running_loop().run_in_executor(None, _sync_with_folders, self._root, path)


def _unfinished(root: str, prefix: str) -> list[StoredObject]:
    """What was begun below a folder and is not, or never will be, renamed to its name: the library does not list it."""
    found: list[StoredObject] = []
    for place, _, names in os.walk(os.path.join(root, prefix)):
        for path in (os.path.join(place, name) for name in names if _UNFINISHED.search(name)):
            with contextlib.suppress(FileNotFoundError):  # finished meanwhile
                about = os.stat(path)
                found.append(StoredObject(os.path.relpath(path, root), about.st_size, int(about.st_mtime * 1000)))
    return found


def _sync_with_folders(root: str, path: str) -> None:
    """A file and the folders that name it, up to the store's root."""
    while True:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if path == root:
            return
        path = os.path.dirname(path)
