"""The test master's BGSAVE and its rsync2 server.

What a dump holds is the business of a `Keyspace`: it is told every command that the master executes and writes a dump's
files when asked. `CommandLog` is the simplest: its dump is the list of commands so far, so that a test can check that
dump and binlog together are everything, once. A key space of all types can take its place.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.pikiwi.master_binlog import resp
from tidelog.pikiwi.errors import ProtocolError
from tidelog.pikiwi.position import Position
from tidelog.pikiwi.protocol import FrameDecoder, encode_frame, parse
from tidelog.pikiwi.protocol import rsync_service_pb2 as pb

READER_COUNT = 4
COUNT_BYTES_MAX = 4 << 20
REPLY_BYTES_MAX = 16 << 20
DUMP_FILENUM_DISTANCE_MAX = 50


class Keyspace(Protocol):
    def apply(self, db: str, arguments: tuple[bytes, ...]) -> None:
        """The master executes a command."""
        ...

    def write_dump(self, db: str, folder: Path) -> None:
        """All that a dump holds, except `info`."""
        ...


@dataclass
class CommandLog:
    """A dump is `commands.resp` (all commands so far), and as many bytes of filling as asked for."""

    filling_bytes: int = 0
    commands: dict[str, list[tuple[bytes, ...]]] = field(default_factory=dict)

    def apply(self, db: str, arguments: tuple[bytes, ...]) -> None:
        self.commands.setdefault(db, []).append(arguments)

    def write_dump(self, db: str, folder: Path) -> None:
        (folder / "0").mkdir(exist_ok=True)
        (folder / "0" / "commands.resp").write_bytes(b"".join(resp(*c) for c in self.commands.get(db, [])))
        (folder / "0" / "000001.sst").write_bytes(os.urandom(self.filling_bytes))


@dataclass
class FixedDump:
    """A dump that lies in a folder already, whatever is executed; its `info` is not used."""

    folder: Path

    def apply(self, db: str, arguments: tuple[bytes, ...]) -> None:
        pass

    def write_dump(self, db: str, folder: Path) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path.name != "info":
                target = folder / path.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())


@dataclass
class Dump:
    folder: Path
    position: Position
    done_s: float  # by the master's clock
    uuid: str
    files: list[str]


class Dumps:
    """The dumps in a master's memory, one a database; on disk under `folder`."""

    def __init__(self, folder: Path, keyspace: Keyspace, host: str, port: int) -> None:
        self.folder = folder
        self.keyspace = keyspace
        self._info = (host, port)
        self.dumps: dict[str, Dump] = {}
        self.saves = 0
        self.salt = 0  # a changing dump: another duration makes another uuid

    def usable(self, db: str, asked: Position, first_filenum: int) -> bool:
        dump = self.dumps.get(db)
        if dump is None or dump.position.filenum < first_filenum:
            return False
        return abs(dump.position.filenum - asked.filenum) <= DUMP_FILENUM_DISTANCE_MAX

    def save(self, db: str, position: Position, done_s: float) -> None:
        """BGSAVE: the state as of now, offered from `done_s` on."""
        self.saves += 1
        folder = self.folder / f"{self.saves:04}" / db
        folder.mkdir(parents=True)
        self.keyspace.write_dump(db, folder)
        host, port = self._info
        info = f"{self.salt}s\n{host}\n{port}\n{position.filenum}\n{position.offset}\n".encode()
        (folder / "info").write_bytes(info)
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        self.dumps[db] = Dump(folder, position, done_s, hashlib.md5(info, usedforsecurity=False).hexdigest(), files)


@dataclass
class RsyncFaults:
    """What goes wrong; 0 or None: nothing. Counters count down."""

    endless: bool = False  # never eof=1, and garbage for ever
    short_reply_bytes: int = 0  # replies are cut to this
    error_after_files: int | None = None  # kErr for files from this number of requests on
    change_uuid_after: int | None = None  # requests for files until another dump takes its place
    close_after: int | None = None  # requests until the connection is closed
    garbage: bytes = b""  # sent instead of every reply
    files_hold: asyncio.Event | None = None  # files other than info wait for it


class RsyncServer:
    """rsync2 on its own port."""

    def __init__(
        self, dumps: Dumps, dbs: tuple[str, ...], clock: Callable[[], float], crash: Callable[[str], None]
    ) -> None:
        self.faults = RsyncFaults()
        self.requests = 0
        self.file_requests = 0
        self._dumps = dumps
        self._dbs = dbs
        self._clock = clock
        self._crash = crash
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, host: str, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, host, port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        decoder = FrameDecoder(1 << 20)
        try:
            while data := await reader.read(1 << 16):
                decoder.feed(data)
                for frame in decoder:
                    request = parse(pb.RsyncRequest, frame)
                    self.requests += 1
                    if self._spent("close_after"):
                        return
                    hold = self.faults.files_hold
                    if hold is not None and request.file_req.filename not in ("", "info"):
                        await hold.wait()
                    writer.write(self.faults.garbage or encode_frame(self.answer(request)))
                await writer.drain()
        except (ConnectionError, ProtocolError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def answer(self, request: pb.RsyncRequest) -> pb.RsyncResponse:
        if not 0 <= request.reader_index < READER_COUNT:
            self._crash(f"rsync2 with reader_index {request.reader_index}")
        if request.db_name not in self._dbs:
            self._crash(f"rsync2 for the unknown database {request.db_name}")
        if request.file_req.count > COUNT_BYTES_MAX:
            self._crash(f"rsync2 for {request.file_req.count} bytes at once")
        dump = self._dumps.dumps.get(request.db_name)
        ready = dump is not None and dump.done_s <= self._clock()
        response = pb.RsyncResponse(
            type=request.type,
            reader_index=request.reader_index,
            snapshot_uuid=dump.uuid if ready and dump else "",
            db_name=request.db_name,
            slot_id=0,
            code=pb.kOk,
        )
        if request.type == pb.kRsyncMeta:
            if dump is not None and not ready:
                response.code = pb.kErr
            else:
                response.meta_resp.filenames.extend(["info"] if dump is None else dump.files)
        elif dump is None or not ready:
            response.code = pb.kErr
        else:
            self._answer_file(request.file_req, dump, response)
        return response

    def _answer_file(self, wanted: pb.FileRequest, dump: Dump, response: pb.RsyncResponse) -> None:
        self.file_requests += 1
        faults = self.faults
        if self._spent("change_uuid_after"):
            self._dumps.salt += 1
            self._dumps.save(response.db_name, dump.position, 0.0)
            dump = self._dumps.dumps[response.db_name]
            response.snapshot_uuid = dump.uuid
        failing = faults.error_after_files is not None and self.file_requests > faults.error_after_files
        if failing or wanted.filename not in dump.files:
            response.code = pb.kErr
            return
        content = (dump.folder / wanted.filename).read_bytes()
        limit = min(wanted.count, faults.short_reply_bytes or REPLY_BYTES_MAX)
        data = content[wanted.offset : wanted.offset + limit]
        eof = wanted.offset <= len(content) <= wanted.offset + len(data)
        if wanted.offset > len(content) or (eof and faults.endless):
            data, eof = b"\xa5" * limit, False  # a real master sends what happens to be in its buffer, for ever
        response.file_resp.CopyFrom(
            pb.FileResponse(
                eof=int(eof), count=len(data), offset=wanted.offset, data=data, checksum="", filename=wanted.filename
            )
        )

    def _spent(self, name: str) -> bool:
        """Counts one of the faults' countdowns; true when it is its turn."""
        left = getattr(self.faults, name)
        if left is None:
            return False
        setattr(self.faults, name, None if left == 0 else left - 1)
        return left == 0
