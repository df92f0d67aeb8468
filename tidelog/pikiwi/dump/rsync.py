"""Fetching a dump from a master over rsync2: `info` first, then all files over up to four connections.

The order of things: ask for the list until the master has a dump (it may still be saving), fetch `info` and hand its
position over, so that the binlog can flow from there, then fetch the rest. Every reply names the dump it is of; another
uuid means that the master has replaced it, which before `info` was handed over starts the fetch over, and after it ends
the fetch with `DumpChanged`: the binlog must then begin at another position. What was fetched stays, see `received.py`.

A master is treated with care: `reader_index` 0..3 and at most 4 MiB a request (anything else ends it), one request at
a time on a connection, and nothing is asked for at or behind a file's end, since it would answer with garbage for ever.
And it is not trusted: names, lengths, offsets, sizes and times are bounded.

Memory: one reply a connection.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from google.protobuf.message import Message

from tidelog.pikiwi.dump.info import INFO_BYTES_MAX, INFO_NAME, DumpInfo
from tidelog.pikiwi.dump.received import Held, ReceivedDump, checked_names
from tidelog.pikiwi.errors import DumpError, LinkError, ProtocolError
from tidelog.pikiwi.progress import SnapshotProgress
from tidelog.pikiwi.protocol import FrameDecoder, encode_frame, parse
from tidelog.pikiwi.protocol import rsync_service_pb2 as pb

READERS_MAX = 4  # reader_index 0..3
REQUEST_BYTES_MAX = 4 << 20
_FRAME_EXTRA_BYTES = 64 << 10  # of a reply, besides its data
_READ_BYTES = 256 << 10

P = ParamSpec("P")
T = TypeVar("T")


class DumpChanged(DumpError):
    """The master replaced or removed the dump while it was fetched: ask for a full sync again."""


class DumpNotReady(DumpError):
    """The master had no dump to give within the time it was given."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Bounds of a fetch. The times are for each step; a fetch as a whole may take as long as it moves."""

    readers: int = READERS_MAX
    request_bytes: int = REQUEST_BYTES_MAX
    connect_s: float = 5.0
    reply_s: float = 30.0
    ready_s: float = 1800.0  # for the master to have a dump (`wait_bgsave_timeout`)
    poll_s: float = 1.0  # between two looks for it
    failures: int = 5  # of a connection in a row, without a byte in between
    retry_s: float = 1.0  # before the next try, once more for each failure
    files: int = 200_000
    file_bytes: int = 64 << 30
    dump_bytes: int = 64 << 40

    def __post_init__(self) -> None:
        assert 1 <= self.readers <= READERS_MAX
        assert 1 <= self.request_bytes <= REQUEST_BYTES_MAX


async def fetch_dump(
    host: str,
    port: int,
    db: str,
    folder: Path,
    *,
    progress: SnapshotProgress,
    on_info: Callable[[DumpInfo], None],
    limits: FetchLimits = FetchLimits(),  # noqa: B008  (frozen)
) -> DumpInfo:
    """Copy the dump of `db` from the rsync2 port of a master; complete and durable when it returns.

    Call it after DBSync. Cancel it, or let it fail, and the next call goes on where it stopped if the master still has
    the same dump.
    """
    fetch = _Fetch(host, port, db, ReceivedDump(folder), progress, limits)
    try:
        return await fetch.run(on_info)
    except (LinkError, ProtocolError) as error:
        raise DumpError(f"the dump of {db} could not be fetched from {host}:{port}: {error}") from error
    except OSError as error:
        raise DumpError(f"the dump of {db} cannot be written to {folder}: {error}; what is there is kept") from error


class _Fetch:
    def __init__(
        self, host: str, port: int, db: str, received: ReceivedDump, progress: SnapshotProgress, limits: FetchLimits
    ) -> None:
        self._address = (host, port)
        self._db = db
        self._received = received
        self._progress = progress
        self._limits = limits
        self._bytes = 0

    async def run(self, on_info: Callable[[DumpInfo], None]) -> DumpInfo:
        now = asyncio.get_running_loop().time
        deadline = now() + self._limits.ready_s
        while True:
            uuid, names = await self._wait_ready(deadline)
            try:
                held, info = await self._fetch_info(uuid, names)
                break
            except DumpChanged:  # nobody was told of it yet, so it can begin again
                if now() >= deadline:
                    raise
                await asyncio.sleep(self._limits.poll_s)
        on_info(info)
        if not held.complete:
            await self._fetch_files(uuid, held.missing)
            await _in_thread(self._received.complete, uuid, names)
        return info

    async def _wait_ready(self, deadline: float) -> tuple[str, list[str]]:
        """The dump's uuid and files, once there is one."""
        loop = asyncio.get_running_loop()
        failures = 0
        connection = _Connection(*self._address, self._db, 0, self._limits)
        try:
            while True:
                try:
                    reply = await connection.ask_list()
                    failures = 0
                    if reply.code == pb.kOk and reply.snapshot_uuid:  # without uuid: there is no dump at all
                        return reply.snapshot_uuid, checked_names(reply.meta_resp.filenames, self._limits.files)
                except LinkError:
                    failures += 1
                    if failures >= self._limits.failures:
                        raise
                if loop.time() >= deadline:
                    raise DumpNotReady(
                        f"the master had no dump of {self._db} within {self._limits.ready_s:.0f} s; look at its log, "
                        "or set wait_bgsave_timeout higher"
                    )
                await asyncio.sleep(self._limits.poll_s)
        finally:
            connection.close()

    async def _fetch_info(self, uuid: str, names: list[str]) -> tuple[Held, DumpInfo]:
        """What is here besides `info`, and what `info` says."""
        held = await _in_thread(self._received.begin, uuid, names)
        self._progress.fetching(uuid, len(names))
        self._bytes = held.whole_bytes + sum(held.missing.values())
        self._progress.fetched(self._bytes, len(names) - len(held.missing))
        if held.missing.pop(INFO_NAME, None) is not None:
            connection = _Connection(*self._address, self._db, 0, self._limits)
            try:
                await self._fetch_file(connection, uuid, INFO_NAME, 0, INFO_BYTES_MAX)
            finally:
                connection.close()
        content = await _in_thread(self._received.read_info)
        return held, DumpInfo.parse(content)

    async def _fetch_files(self, uuid: str, missing: dict[str, int]) -> None:
        waiting = iter(missing.items())

        async def reader(index: int) -> None:
            connection = _Connection(*self._address, self._db, index, self._limits)
            try:
                for name, have in waiting:
                    await self._fetch_file(connection, uuid, name, have, self._limits.file_bytes)
            finally:
                connection.close()

        try:
            async with asyncio.TaskGroup() as group:
                for index in range(min(self._limits.readers, len(missing))):
                    group.create_task(reader(index))
        except ExceptionGroup as errors:  # the first that failed ended the others
            raise errors.exceptions[0] from None

    async def _fetch_file(self, connection: "_Connection", uuid: str, name: str, have: int, bytes_max: int) -> None:
        """One file, from what is here on; a failed connection is tried again, as often as the limits say."""
        # Not at `have`: if that is the file's end, a master would answer with garbage. One request's bytes are few.
        offset = max(0, have - 1) // self._limits.request_bytes * self._limits.request_bytes
        self._count(offset - have)
        failures = 0
        while True:
            try:
                reply = await connection.ask_file(name, offset)
            except LinkError:
                failures += 1
                if failures >= self._limits.failures:
                    raise
                await asyncio.sleep(self._limits.retry_s * failures)
                continue
            data = self._checked(reply, uuid, name, offset)
            failures = 0 if data else failures + 1
            if failures >= self._limits.failures:
                raise ProtocolError(f"{name}: {failures} replies without data, and none says that the file has ended")
            if offset + len(data) > bytes_max:
                raise DumpError(f"{name} goes on after {bytes_max:,} bytes: the master sends it without an end")
            await _in_thread(self._received.write, name, offset, data)
            offset += len(data)
            self._count(len(data))
            if reply.file_resp.eof:
                await _in_thread(self._received.finish_file, name)
                self._progress.fetched(0, 1)
                return

    def _count(self, byte_count: int) -> None:
        self._bytes += byte_count
        self._progress.fetched(byte_count)
        if self._bytes > self._limits.dump_bytes:
            raise DumpError(
                f"the dump has more than {self._limits.dump_bytes:,} bytes: the master sends without an end"
            )

    def _checked(self, reply: pb.RsyncResponse, uuid: str, name: str, offset: int) -> bytes:
        if reply.snapshot_uuid != uuid:
            raise DumpChanged(
                f"the master replaced the dump of {self._db} while it was fetched; a new full sync is needed"
            )
        if reply.code != pb.kOk or not reply.HasField("file_resp"):
            raise DumpChanged(f"the master no longer has {name} of the dump of {self._db}; a new full sync is needed")
        file = reply.file_resp
        data = file.data
        if file.filename != name or file.offset != offset or file.count != len(data):
            raise ProtocolError(
                f"asked for {name} at {offset:,}, got {file.filename[:100]!r} at {file.offset:,}, {len(data):,} bytes "
                f"that say they are {file.count:,}"
            )
        if len(data) > self._limits.request_bytes:
            raise ProtocolError(f"{name}: {len(data):,} bytes came, {self._limits.request_bytes:,} were asked for")
        return data


class _Connection:
    """One connection with one reader_index; connects when it is first used, and again after a failure."""

    def __init__(self, host: str, port: int, db: str, reader_index: int, limits: FetchLimits) -> None:
        assert 0 <= reader_index < READERS_MAX, "would end the master"
        self._host, self._port = host, port
        self._db = db
        self._reader_index = reader_index
        self._limits = limits
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._decoder = FrameDecoder(limits.request_bytes + _FRAME_EXTRA_BYTES)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    async def ask_list(self) -> pb.RsyncResponse:
        return await self._ask(self._request(pb.kRsyncMeta))

    async def ask_file(self, name: str, offset: int) -> pb.RsyncResponse:
        request = self._request(pb.kRsyncFile)
        request.file_req.CopyFrom(pb.FileRequest(filename=name, count=self._limits.request_bytes, offset=offset))
        return await self._ask(request)

    def _request(self, kind: pb.Type) -> pb.RsyncRequest:
        return pb.RsyncRequest(type=kind, reader_index=self._reader_index, db_name=self._db, slot_id=0)

    async def _ask(self, request: pb.RsyncRequest) -> pb.RsyncResponse:
        """One request and its reply. LinkError and a closed connection when it fails in any way that may pass."""
        try:
            reply = parse(pb.RsyncResponse, await self._exchange(request))
        except (TimeoutError, OSError, EOFError) as error:
            self.close()
            raise LinkError(f"rsync2 at {self._host}:{self._port}: {_reason(error)}") from error
        except BaseException:
            self.close()
            raise
        got = (reply.type, reply.reader_index, reply.db_name)
        if got != (request.type, request.reader_index, request.db_name):
            self.close()
            raise ProtocolError(f"rsync2 answered {got} to {(request.type, request.reader_index, request.db_name)}")
        return reply

    async def _exchange(self, request: Message) -> bytes:
        if self._streams is None:
            async with asyncio.timeout(self._limits.connect_s):
                self._streams = await asyncio.open_connection(self._host, self._port, limit=_READ_BYTES)
            self._decoder = FrameDecoder(self._limits.request_bytes + _FRAME_EXTRA_BYTES)
        reader, writer = self._streams
        async with asyncio.timeout(self._limits.reply_s):
            writer.write(encode_frame(request))
            await writer.drain()
            while True:
                data = await reader.read(_READ_BYTES)
                if not data:
                    raise EOFError
                self._decoder.feed(data)
                for frame in self._decoder:
                    return frame


async def _in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Like `asyncio.to_thread`, but when it is cancelled the thread is waited for: nothing writes behind our back."""
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _reason(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no answer in time"
        case EOFError():
            return "the master closed the connection"
        case _:
            return str(error) or type(error).__name__
