"""A small rsync2 server for tests: serves a dump out of a dictionary, and does to it what a test asks for.

It keeps the rules that a real master lives by: a `reader_index` outside 0..3, more than 4 MiB at once, or a read behind
a file's end is the death of a real one, and here a line in `offences`.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tidelog.pikiwi.protocol import FrameDecoder, encode_frame, parse
from tidelog.pikiwi.protocol import rsync_service_pb2 as pb

HOST = "127.0.0.1"
INFO = b"0s\n127.0.0.1\n9221\n3\n4567\n"

Answer = bytes | pb.RsyncResponse | None
"""Raw bytes, a message, or None: hang up."""


@dataclass
class RsyncServer:
    files: dict[str, bytes]
    change: Callable[[pb.RsyncRequest, pb.RsyncResponse], Answer] = lambda _, response: response
    requests: list[pb.RsyncRequest] = field(default_factory=list)
    offences: list[str] = field(default_factory=list)
    port: int = 0
    connections: int = 0

    @property
    def uuid(self) -> str:
        return hashlib.md5(self.files["info"], usedforsecurity=False).hexdigest()

    @property
    def asked(self) -> list[tuple[str, int]]:
        """Name and offset of every file request."""
        return [(each.file_req.filename, each.file_req.offset) for each in self.requests if each.type == pb.kRsyncFile]

    def answer(self, request: pb.RsyncRequest) -> Answer:
        self.requests.append(request)
        if not 0 <= request.reader_index <= 3:
            self.offences.append(f"reader_index {request.reader_index}")
        response = pb.RsyncResponse(
            type=request.type,
            reader_index=request.reader_index,
            snapshot_uuid=self.uuid,
            db_name=request.db_name,
            slot_id=0,
            code=pb.kOk,
        )
        if request.type == pb.kRsyncMeta:
            response.meta_resp.filenames.extend(self.files)
        elif request.file_req.filename not in self.files:
            response.code = pb.kErr
        else:
            self._read(request.file_req, response)
        return self.change(request, response)

    def _read(self, wanted: pb.FileRequest, response: pb.RsyncResponse) -> None:
        content = self.files[wanted.filename]
        if wanted.count > 4 << 20:
            self.offences.append(f"{wanted.count} bytes at once")
        if wanted.offset >= len(content) > 0:
            self.offences.append(f"{wanted.filename} at {wanted.offset} of {len(content)}")
        data = content[wanted.offset : wanted.offset + wanted.count]
        eof = int(wanted.offset + len(data) >= len(content))
        name, offset = wanted.filename, wanted.offset
        response.file_resp.CopyFrom(
            pb.FileResponse(eof=eof, count=len(data), offset=offset, data=data, checksum="", filename=name)
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["RsyncServer"]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
            server.close()
            for writer in list(self._writers):
                writer.close()

    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        decoder = FrameDecoder(1 << 20)
        try:
            while data := await reader.read(1 << 16):
                decoder.feed(data)
                for frame in decoder:
                    answer = self.answer(parse(pb.RsyncRequest, frame))
                    if answer is None:
                        return
                    writer.write(answer if isinstance(answer, bytes) else encode_frame(answer))
                await writer.drain()
        except ConnectionError:
            pass  # the client hung up
        finally:
            self._writers.discard(writer)
            writer.close()
