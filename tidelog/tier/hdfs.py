"""HDFS as an object store, through `opendal` and HDFS's own HTTP interface (WebHDFS, or an HttpFS gateway).

An extra (`pip install tidelog[hdfs]`), so nothing else imports this module. Objects are written beside their place, in
a folder of the store's own, and renamed into it: a name shows a whole object or none. HDFS 2.9 or newer.

HDFS acknowledges what its data nodes hold in memory, unless `dfs.datanode.synconclose` is true: set it.
"""

from collections.abc import AsyncIterator, Mapping

import opendal
from opendal import exceptions as theirs

from tidelog.tier.backends import Buffer, StoredObject
from tidelog.tier.errors import LayoutError, ObjectMissingError, StoreError, StoreRefusedError, StoreUnavailableError

UNFINISHED = ".tidelog-unfinished"
"""Where objects are written before they are renamed; not the name of any topic's folder. What is broken off stays there
until `tidelog tier scrub` is told to remove the folder."""

_THEIRS: tuple[type[Exception], ...] = tuple(  # they have no base
    found for found in vars(theirs).values() if isinstance(found, type) and issubclass(found, Exception)
)
_REFUSED = (
    theirs.PermissionDenied,
    theirs.ConfigInvalid,
    theirs.Unsupported,
    theirs.IsADirectory,
    theirs.NotADirectory,
)


def webhdfs_operator(host: str, path: str, options: Mapping[str, str]) -> opendal.AsyncOperator:
    """`options`: `tls=true`, and what opendal knows (`user_name`, `delegation`, `disable_list_batch`)."""
    config = dict(options)
    scheme = "https" if config.pop("tls", "false") == "true" else "http"
    root = f"/{path.strip('/')}/"
    unfinished = f"{root}{UNFINISHED}/"
    try:
        return opendal.AsyncOperator(
            "webhdfs", endpoint=f"{scheme}://{host}", root=root, atomic_write_dir=unfinished, **config
        )
    except _THEIRS as error:
        raise LayoutError(f"webhdfs://{host}{root}: {str(error).partition(chr(10))[0]}") from None


class OpendalBackend:
    """`tidelog.tier.backends.Backend` over one of opendal's services."""

    def __init__(self, operator: opendal.AsyncOperator) -> None:
        self._operator = operator

    async def put(self, name: str, content: Buffer) -> None:
        await self._operator.write(name, bytes(content))

    async def put_parts(self, name: str, pieces: AsyncIterator[Buffer]) -> None:
        # It counts only when it is closed: what is broken off stays in the folder of the unfinished.
        file = await self._operator.open(name, "wb")
        async for piece in pieces:
            await file.write(bytes(piece))
        await file.close()

    async def read(self, name: str, position: int, length: int) -> memoryview:
        return memoryview(await self._operator.read(name, offset=position, size=length))

    async def read_all(self, name: str) -> bytes:
        return bytes(await self._operator.read(name))

    async def delete(self, name: str) -> None:
        await self._operator.delete(name)

    async def pages(self, prefix: str) -> AsyncIterator[list[StoredObject]]:
        async for entry in await self._operator.list(prefix, recursive=True):
            if not entry.path.endswith("/"):
                about = await self._operator.stat(entry.path)
                modified = about.last_modified
                modified_ms = 0 if modified is None else int(modified.timestamp() * 1000)
                yield [StoredObject(entry.path, about.content_length, modified_ms)]

    async def folders(self, prefix: str) -> list[str]:
        """Those with something in them: HDFS keeps empty ones, which other stores do not know."""
        found: list[str] = []
        async for entry in await self._operator.list(prefix):
            name = entry.path.removeprefix(prefix).strip("/")
            if entry.path.endswith("/") and name and await self._has_object(entry.path):
                found.append(name)
        return found

    async def _has_object(self, folder: str) -> bool:
        async for entry in await self._operator.list(folder, recursive=True):
            if not entry.path.endswith("/"):
                return True
        return False

    def kind_of(self, error: BaseException) -> type[StoreError] | None:
        if isinstance(error, theirs.NotFound):
            return ObjectMissingError
        if isinstance(error, _REFUSED):
            return StoreRefusedError
        return StoreUnavailableError if isinstance(error, (*_THEIRS, OSError)) else None
