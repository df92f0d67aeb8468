"""The other nodes: one connection to each, for the messages of all consensus groups and for calls.

Either side may open the connection: a node that starts does, and after one broke, the smaller number; the other only
when that takes too long. If both did, the connection that the smaller number opened stays. It begins with a hello each
way, which says who speaks, which cluster it belongs to and which disk it has; what does not fit is refused.

    send(envelope)                 consensus: may be lost, then `lost` tells that something was
    await call(node, method, …)    a question with one answer, or PeerCallError

Bounds: a node that takes nothing gets nothing more (what is sent meanwhile is lost) once UNSENT_BYTES_MAX wait for it;
calls under way are counted; a connection that is silent for too long is closed and opened anew.
"""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tidelog import faults
from tidelog.raft import Envelope
from tidelog.server.clock import now_ms
from tidelog.server.memory import BufferPool
from tidelog.server.peer_codec import (
    FrameKind,
    PeerProtocolError,
    decode_envelope,
    decode_json,
    encode_envelope,
    encode_json,
)
from tidelog.server.peer_frames import PeerFrames
from tidelog.wire.batch import Buffer, CorruptBatchError
from tidelog.wire.errors import ErrorCode, ProtocolError

log = logging.getLogger(__name__)

VERSION = 1
UNSENT_BYTES_MAX = 64 << 20
FRAME_BYTES_MAX = 128 << 20  # one batch may be that large
CALLS_MAX = 1_000  # under way, to one node
CONNECT_S_MAX = 1.0
HELLO_S_MAX = 2.0
REDIAL_S_MIN, REDIAL_S_MAX = 0.02, 0.5
PATIENCE_S = 0.5  # how long the larger number waits for the smaller one to connect
SWEEP_S = 0.25
SPEAK_MS = 500  # a connection on which nothing was said for so long gets a sign of life
SILENT_MS = 2_500  # one on which nothing was heard for so long is closed
KIND_BYTES = 2
_CODES = frozenset(code.value for code in ErrorCode)


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a node is."""

    node: int
    incarnation: int
    cluster_id: str
    directory: str


class PeerCallError(Exception):
    """A call came to nothing, or to a refusal."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


Called = Callable[[int, str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers a call: (node, method, content). Raises PeerCallError to refuse."""


class Link(asyncio.BufferedProtocol):
    """One connection to another node."""

    def __init__(self, peers: "Peers", expected: int | None) -> None:
        """`expected` is the node that was dialed; None: whoever it is dialed us."""
        self._peers = peers
        self.expected = expected
        self.dialed = expected is not None
        self.hello: Hello | None = None
        self.transport: asyncio.Transport | None = None
        self.heard_ms = self.spoken_ms = now_ms()
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the hellos are exchanged, or the connection is gone."""
        self._frames = PeerFrames(FRAME_BYTES_MAX, peers.pool, self._take)
        self._next_call = 1
        self._calls: dict[int, asyncio.Future[dict[str, Any]]] = {}

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers.opened(self)
        hello = self._peers.hello()
        content = {
            "version": VERSION,
            "node": hello.node,
            "incarnation": hello.incarnation,
            "cluster": hello.cluster_id,
            "directory": hello.directory,
        }
        self.write([encode_json(FrameKind.HELLO, content)])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """The end, told once or more often."""
        self.transport = None
        self._frames.drop()
        if not self.greeted.done():
            self.greeted.set_result(None)
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(PeerCallError(ErrorCode.NETWORK_EXCEPTION, "the connection to the node broke"))
        self._calls.clear()
        self._peers.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_ms = now_ms()
        try:
            self._frames.received(nbytes)
        except (ProtocolError, PeerProtocolError, CorruptBatchError) as error:
            self.abort(str(error))

    def eof_received(self) -> bool:
        return False

    # Frames

    def _take(self, frame: memoryview) -> None:
        kind = int.from_bytes(frame[:KIND_BYTES])
        body = frame[KIND_BYTES:]
        if kind == FrameKind.ENVELOPE and self.hello is not None:
            if self._peers.trusts(self.hello) and not (faults.ARMED and faults.hit("peers.receive")):
                self._peers.receive(decode_envelope(body, self.hello.node, self._peers.node))
        elif kind == FrameKind.HELLO and self.hello is None:
            self._greet(decode_json(body))
        elif kind == FrameKind.CALL and self.hello is not None:
            self._peers.begin_call(self, self.hello.node, decode_json(body))
        elif kind == FrameKind.REPLY and self.hello is not None:
            self._answered(decode_json(body))
        else:
            raise PeerProtocolError(f"a frame of kind {kind}, which has no place here")

    def _greet(self, content: dict[str, Any]) -> None:
        if content.get("version") != VERSION:
            raise PeerProtocolError(
                f"the node speaks version {content.get('version')} between nodes, this one {VERSION}"
            )
        fields = [content.get(name) for name in ("node", "incarnation", "cluster", "directory")]
        if [type(field) for field in fields] != [int, int, str, str]:
            raise PeerProtocolError(f"a hello that says {fields}")
        hello = Hello(*cast(tuple[int, int, str, str], fields))
        refusal = self._peers.refusal_of(hello, self.expected)
        if refusal:
            raise PeerProtocolError(refusal)
        self.hello = hello
        self._peers.greeted(self, hello)
        if not self.greeted.done():
            self.greeted.set_result(None)

    def write(self, buffers: list[Buffer]) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.spoken_ms = now_ms()
            self.transport.writelines(buffers)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def abort(self, why: str) -> None:
        if self.transport is not None:
            who = f"node {self.hello.node}" if self.hello else f"node {self.expected}" if self.expected else "a node"
            log.info("the connection to %s ends: %s", who, why)
            self.transport.abort()

    # Calls

    async def call(self, method: str, content: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
        if len(self._calls) >= CALLS_MAX:
            raise PeerCallError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many calls to the node are under way")
        number, self._next_call = self._next_call, self._next_call + 1
        waiting: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = waiting
        self.write([encode_json(FrameKind.CALL, {"call": number, "method": method, "content": content})])
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await waiting
        except TimeoutError:
            raise PeerCallError(ErrorCode.REQUEST_TIMED_OUT, f"the node did not answer {method} in time") from None
        finally:
            self._calls.pop(number, None)

    def _answered(self, content: dict[str, Any]) -> None:
        number, error = content.get("call"), content.get("error", 0)
        if not isinstance(number, int) or not isinstance(error, int):
            raise PeerProtocolError(f"a reply to call {number!r} with error {error!r}")
        waiting = self._calls.get(number)
        if waiting is None or waiting.done():
            return
        if error:
            code = ErrorCode(error) if error in _CODES else ErrorCode.UNKNOWN_SERVER_ERROR
            waiting.set_exception(PeerCallError(code, str(content.get("message", ""))))
        else:
            waiting.set_result(content.get("content", {}))


class Peers:
    def __init__(
        self,
        node: int,
        hello: Callable[[], Hello],
        trusts: Callable[[Hello], bool],
        receive: Callable[[Envelope], None],
        lost: Callable[[int], None],
        called: Called,
        pool: BufferPool,
    ) -> None:
        """`trusts`: whether a node's messages count; its calls always do. `lost`: messages to a node may have been."""
        self.node = node
        self.hello = hello
        self.receive = receive
        self.pool = pool
        self.trusts = trusts
        self._lost = lost
        self._called = called
        self._links: dict[int, Link] = {}
        self._all: set[Link] = set()
        self._addresses: dict[int, tuple[str, int]] = {}
        self._dialers: dict[int, asyncio.Task[None]] = {}
        self._wake: dict[int, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False
        self.arrived = asyncio.Event()
        """Set whenever another node has connected; for those who wait for one."""

    # Beginning and end

    async def open(self, host: str, port: int, listening: socket.socket | None = None) -> int:
        """Listen for other nodes, at an address or on a socket that listens already; gives the port."""
        loop = asyncio.get_running_loop()
        if listening is not None:
            self._server = await loop.create_server(lambda: Link(self, None), sock=listening)
        else:
            self._server = await loop.create_server(lambda: Link(self, None), host, port)
        self._sweep()
        return self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in (*self._dialers.values(), *self._tasks):
            task.cancel()
        if self._server is not None:
            self._server.close()
        for link in list(self._all):
            if link.transport is not None:
                link.transport.close() if not link.unsent_bytes else link.transport.abort()

    def set_addresses(self, addresses: Mapping[int, tuple[str, int]]) -> None:
        """Where the other nodes are. Those no longer named are not dialed any more; they end by themselves."""
        self._addresses = {node: address for node, address in addresses.items() if node != self.node}
        for node in list(self._dialers):
            if node not in self._addresses:
                self._dialers.pop(node).cancel()
                self._wake.pop(node)
        for node in self._addresses:
            if node not in self._dialers and not self._closed:
                self._wake[node] = asyncio.Event()
                self._dialers[node] = asyncio.get_running_loop().create_task(self._keep_connected(node))

    @property
    def connected(self) -> frozenset[int]:
        return frozenset(self._links)

    # Talking

    def send(self, envelope: Envelope) -> None:
        if faults.ARMED and faults.hit("peers.send"):
            return
        link = self._links.get(envelope.destination)
        if link is None:
            return
        if link.unsent_bytes > UNSENT_BYTES_MAX:
            if envelope.messages:
                self._lost(envelope.destination)
            return
        link.write(encode_envelope(envelope))

    async def call(self, node: int, method: str, content: Mapping[str, Any], timeout_ms: int) -> dict[str, Any]:
        if faults.ARMED:
            faults.hit("peers.call")
        link = self._links.get(node)
        if link is None:
            raise PeerCallError(ErrorCode.BROKER_NOT_AVAILABLE, f"node {node} cannot be reached")
        return await link.call(method, content, timeout_ms)

    def begin_call(self, link: Link, node: int, content: dict[str, Any]) -> None:
        if len(self._tasks) >= 4 * CALLS_MAX:
            code = ErrorCode.THROTTLING_QUOTA_EXCEEDED
            reply = {"call": content.get("call"), "error": code, "message": "the node has too much to answer"}
            link.write([encode_json(FrameKind.REPLY, reply)])
            return
        task = asyncio.get_running_loop().create_task(self._answer(link, node, content))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, link: Link, node: int, content: dict[str, Any]) -> None:
        reply: dict[str, Any] = {"call": content.get("call")}
        try:
            reply["content"] = await self._called(node, content["method"], content["content"])
        except PeerCallError as error:
            reply |= {"error": error.code, "message": error.message}
        except Exception as error:
            log.exception("a call of node %d failed: %s", node, content.get("method"))
            reply |= {"error": ErrorCode.UNKNOWN_SERVER_ERROR, "message": repr(error)}
        link.write([encode_json(FrameKind.REPLY, reply)])

    # Connections

    def opened(self, link: Link) -> None:
        self._all.add(link)

    def refusal_of(self, hello: Hello, expected: int | None) -> str:
        if hello.node == self.node:
            return f"node {hello.node} is this node's own number"
        if expected is not None and hello.node != expected:
            return f"node {hello.node} answers where node {expected} should be"
        mine = self.hello()
        if mine.cluster_id and hello.cluster_id and mine.cluster_id != hello.cluster_id:
            return f"node {hello.node} belongs to cluster {hello.cluster_id}, this one to {mine.cluster_id}"
        return ""

    def greeted(self, link: Link, hello: Hello) -> None:
        """Decide which connection to a node stays when there are two."""
        there = self._links.get(hello.node)
        if there is not None and there.hello is not None:
            dialer_of_new = self.node if link.dialed else hello.node
            newer = hello.incarnation > there.hello.incarnation
            stuck = now_ms() - there.heard_ms > SPEAK_MS
            if not stuck and self.trusts(there.hello) and not self.trusts(hello):
                raise PeerProtocolError(f"node {hello.node} is here already, with another disk")
            if not newer and not stuck and there.dialed != link.dialed and dialer_of_new > min(self.node, hello.node):
                raise PeerProtocolError("there is a connection already")
            self._links[hello.node] = link
            there.abort("another connection has taken its place")
            self._lost(hello.node)
        else:
            self._links[hello.node] = link
        self.arrived.set()

    def closed(self, link: Link) -> None:
        self._all.discard(link)
        hello = link.hello
        if hello is not None and self._links.get(hello.node) is link:
            del self._links[hello.node]
            if not self._closed:
                self._lost(hello.node)
                if hello.node in self._wake:
                    self._wake[hello.node].set()

    async def _keep_connected(self, node: int) -> None:
        """Dial the node whenever there is no connection to it."""
        delay_s = REDIAL_S_MIN
        while True:
            if node in self._links:
                delay_s = REDIAL_S_MIN
                self._wake[node].clear()
                await self._wake[node].wait()
                if node < self.node:
                    await asyncio.sleep(PATIENCE_S)
                continue
            await self._dial(node)
            if node not in self._links:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(REDIAL_S_MAX, 2 * delay_s)

    async def _dial(self, node: int) -> None:
        host, port = self._addresses[node]
        loop = asyncio.get_running_loop()
        link = Link(self, node)
        with contextlib.suppress(OSError, TimeoutError, ValueError):  # the last: a host that is no name
            try:
                async with asyncio.timeout(CONNECT_S_MAX):
                    await loop.create_connection(lambda: link, host, port)
            except BaseException:
                link.connection_lost(None)  # uvloop does not tell it when the time is up just as it is made
                raise
            async with asyncio.timeout(HELLO_S_MAX):
                await link.greeted

    def _sweep(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        now = now_ms()
        for link in list(self._all):
            if now - link.heard_ms > SILENT_MS:
                link.abort("nothing was heard on it")
            elif link.hello is not None and now - link.spoken_ms > SPEAK_MS:
                incarnation = self.hello().incarnation
                link.write(encode_envelope(Envelope(self.node, link.hello.node, incarnation, ())))
