"""An S3 server of the test's own, and a proxy in front of it that does to requests what networks do.

The server is moto's, in threads of this process, with everything in memory. Its own log is silenced.
"""

import asyncio
import logging
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from moto.server import ThreadedMotoServer

BUCKET = "tidelog-test"
HEAD_END = b"\r\n\r\n"
ANSWERS = {"403": b"403 Forbidden", "503": b"503 Slow Down"}
Fault = Literal["delay", "403", "503", "reset", "truncate", "lose-answer"]


@contextmanager
def s3_server(bucket: str = BUCKET) -> Iterator[int]:
    """The port of a server with one bucket. All servers of a process share their buckets, and keep what is in them."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{bucket}", method="PUT")
        with urllib.request.urlopen(request):
            pass
        yield port
    finally:
        server.stop()


def s3_options(port: int) -> dict[str, str]:
    return {
        "endpoint": f"http://127.0.0.1:{port}",
        "allow_http": "true",
        "access_key_id": "a",
        "secret_access_key": "b",
        "region": "us-east-1",
    }


class FaultProxy:
    """Passes HTTP requests on, one at a time a connection, and lets `fault` choose what happens to each.

    "403" and "503" are answered without asking the server; "reset" cuts the connection before asking it, "lose-answer"
    after; "truncate" sends half of the answer's body; "delay" waits before passing on, until `release` is set.
    """

    def __init__(self, upstream_port: int, fault: Callable[[str, str], Fault | None]) -> None:
        self._upstream = upstream_port
        self.fault = fault
        self.release = asyncio.Event()
        self.seen: list[tuple[str, str]] = []
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "FaultProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self.release.set()
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    @property
    def port(self) -> int:
        assert self._server is not None
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while await self._exchange(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection goes on."""
        head = await reader.readuntil(HEAD_END)
        body = await _body(reader, head)
        method, path, _ = head.split(b"\r\n")[0].decode().split(" ")
        self.seen.append((method, path))
        fault = self.fault(method, path)
        if fault == "delay":
            await self.release.wait()
        elif fault in ANSWERS:
            writer.write(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % ANSWERS[fault])
            return True
        elif fault == "reset":
            writer.transport.abort()
            return False
        answer_head, answer_body = await self._ask(head, body, method)
        if fault == "lose-answer":
            writer.transport.abort()
            return False
        if fault == "truncate":
            writer.write(answer_head + answer_body[: len(answer_body) // 2])
            await writer.drain()
            writer.close()
            return False
        writer.write(answer_head + answer_body)
        await writer.drain()
        return True

    async def _ask(self, head: bytes, body: bytes, method: str) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        self._open.add(writer)
        try:
            writer.write(head + body)
            answer_head = await reader.readuntil(HEAD_END)
            answer_body = b"" if method == "HEAD" else await _body(reader, answer_head)
            if b"transfer-encoding: chunked" in answer_head.lower():
                lines = [line for line in answer_head.split(b"\r\n") if not line.lower().startswith(b"transfer-enc")]
                answer_head = b"\r\n".join([*lines[:-2], b"Content-Length: %d" % len(answer_body), b"", b""])
            return answer_head, answer_body
        finally:
            self._open.discard(writer)
            writer.close()


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    lines = [line.lower() for line in head.split(b"\r\n")]
    if b"transfer-encoding: chunked" in lines:
        parts: list[bytes] = []
        while size := int((await reader.readline()).strip(), 16):
            parts.append(await reader.readexactly(size))
            await reader.readline()
        await reader.readline()
        return b"".join(parts)
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    return await reader.readexactly(length)
