"""One client's connection: requests in (`framing`), answers out, in the order of the requests.

Order. Requests are handled one at a time, as Kafka does it, with one exception: produces are begun without waiting for
the produces before them, because their order is kept by the log. Whatever the order in which requests are done, answers
leave in the order in which the requests came.

Failure (promise 5). A produce that fails ends the connection: produces behind it are refused, what has come is
answered, and a little later the connection is closed, so that the client begins anew with what it knows to have failed.

Bounds. A connection that has nothing under way owns no memory (`memory.Inlet`). It is not read while too much of it
waits or is under way, while its client does not take its answers, while it is muted by a quota, and while the node has
no memory left, unless that would leave a frame half received. A frame must go on arriving; see `Listener.sweep`.
"""

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from tidelog.server.framing import PRODUCE, Frames
from tidelog.server.memory import BufferPool, Inlet
from tidelog.server.settings import Settings
from tidelog.server.under_way import UnderWay
from tidelog.wire.batch import Buffer
from tidelog.wire.errors import ProtocolError
from tidelog.wire.produce import ProduceReader

log = logging.getLogger(__name__)

WAITING_FRAMES_MAX = 16
WAITING_BYTES_MAX = 1 << 20
WRITE_BUFFER_HIGH = 256 << 10
GRACE_S = 0.25  # between a failure's answer and the end: some clients drop an answer that comes with the end
LINGER_S = 2.0  # how long a closed connection is still read, so that the client gets its last answers

_REQUEST = struct.Struct(">hhi")


class Exchange:
    """A request that is under way, and its answer's place in the order."""

    __slots__ = ("api_key", "api_version", "buffers", "connection", "correlation_id", "hurry", "received_ms", "release")

    def __init__(self, connection: "Connection", api_key: int, api_version: int, correlation_id: int, now: int) -> None:
        self.connection = connection
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.received_ms = now
        self.buffers: Sequence[Buffer] | None = None
        self.hurry: Callable[[], None] | None = None
        """Called when the client will not wait any longer: answer with what there is."""
        self.release: Callable[[], None] | None = None
        """Called when the answer has been handed to the network, or never will be."""

    def answer(self, buffers: Sequence[Buffer], mute_ms: int = 0) -> None:
        """Once for each request; no buffers: the client expects no answer. `mute_ms`: read nothing for that long."""
        assert self.buffers is None, "a request is answered once"
        self.buffers = buffers
        self.connection.answered(mute_ms)


class Broker(Protocol):
    """What a connection needs of its node."""

    settings: Settings
    inlet: Inlet
    pool: BufferPool
    under_way: UnderWay

    def now(self) -> int: ...

    def after_turn(self, call: Callable[[], None]) -> None:
        """Have something done when the present turn ends, or soon."""
        ...

    def begin(self, exchange: Exchange, frame: memoryview) -> bool:
        """Handle a request; true when `frame` is still looked at. Raises ProtocolError."""
        ...

    def opened(self, connection: "Connection") -> bool: ...

    def closed(self, connection: "Connection") -> None: ...


class Connection(asyncio.BufferedProtocol):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._transport: asyncio.Transport | None = None
        self.peer = self.host = ""
        self.client_id: str | None = None
        # Under way
        self._exchanges: deque[Exchange] = deque()
        self._produces = 0  # how many of them are produces
        self._produces_max = broker.settings.requests_inflight_max
        self._waiting: deque[tuple[memoryview, int]] = deque()  # frames, and their keys
        self._waiting_bytes = 0
        # Receiving
        self._frames = Frames(
            broker.settings.request_bytes_max, broker.settings.request_control_bytes_max,
            broker.inlet, broker.pool, self._take, self._waiting, WAITING_FRAMES_MAX,
        )  # fmt: skip
        self.produces = ProduceReader()
        # Answering
        self._out: list[Buffer] = []
        self._out_bytes = 0  # of large ones
        self._release: list[Callable[[], None]] = []
        self._flush_planned = False
        self._write_paused = False
        # Reading stops and goes on
        self._read_paused = False
        self._mute: asyncio.TimerHandle | None = None
        self.failed = False
        """A produce failed: no more are accepted, and the connection ends when all is answered (promise 5)."""
        self.failed_streams: set[int] = set()
        """Where one failed after it was appended: those appended behind it must not be acknowledged either."""
        self._discarding = False
        self._grace: asyncio.TimerHandle | None = None
        self._linger: asyncio.TimerHandle | None = None
        self.progress_ms = 0
        """When a byte was last received or sent."""
        self._unsent_bytes = 0

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername") or ("", 0)
        self.host, self.peer = f"/{address[0]}", f"{address[0]}:{address[1]}"
        self.progress_ms = self._broker.now()
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH, low=0)
        if not self._broker.opened(self):
            self.abort("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        self._transport = None
        for timer in (self._mute, self._grace, self._linger):
            if timer is not None:
                timer.cancel()
        self._waiting.clear()
        self._frames.drop()
        self._hurry()
        self._out.clear()
        self._sent()
        self._broker.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the protocol's signature
        return self._frames.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.progress_ms = self._broker.now()
        if self._discarding:
            return
        try:
            self._frames.received(nbytes)
        except ProtocolError as error:
            self.abort(str(error))
            return
        self._govern_reading()

    def eof_received(self) -> bool:
        """The client sends no more. It may still want its answers, but whoever waits long for one is gone."""
        if self._linger is not None or (self.idle and not self._out):
            return False
        if not self._hurry() and self._grace is None:
            self._grace = asyncio.get_running_loop().call_later(LINGER_S, self.abort, "it waits for too long")
        self._discarding = True
        return True

    def _hurry(self) -> bool:
        """Have everything answered now; false when something cannot be."""
        exchanges = list(self._exchanges)
        for exchange in exchanges:
            if exchange.hurry is not None:
                exchange.hurry()
        return all(exchange.api_key == PRODUCE or exchange.buffers is not None for exchange in exchanges)

    def pause_writing(self) -> None:
        self._write_paused = True
        self._govern_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self.progress_ms = self._broker.now()
        self._sent()
        self.go_on()

    # Requests

    def _take(self, frame: memoryview, key: int) -> bool:
        """A whole request; true when it is kept."""
        if self._transport is None:
            return False
        if self._waiting or not self._may_begin(key):
            self._waiting.append((frame, key))
            self._waiting_bytes += len(frame)
            return True
        return self._begin(frame, self.progress_ms)

    def _may_begin(self, key: int) -> bool:
        if not self._exchanges:
            taken = not self._write_paused and self._out_bytes < WRITE_BUFFER_HIGH  # the answers before
            return taken and (key != PRODUCE or self._broker.under_way.may_produce(self))
        return (
            key == PRODUCE
            and self._produces == len(self._exchanges)
            and self._produces < self._produces_max
            and self._broker.under_way.may_produce(self)
        )

    def _begin(self, frame: memoryview, now: int) -> bool:
        key, version, correlation_id = _REQUEST.unpack_from(frame)
        exchange = Exchange(self, key, version, correlation_id, now)
        self._exchanges.append(exchange)
        if key == PRODUCE:
            self._produces += 1
        return self._broker.begin(exchange, frame)

    def go_on(self) -> None:
        """Begin what waits and may be begun now; its time runs from now on."""
        now = self._broker.now()
        try:
            while self._waiting and self._transport is not None and self._may_begin(self._waiting[0][1]):
                frame, _ = self._waiting.popleft()
                self._waiting_bytes -= len(frame)
                self._begin(frame, now)
                self._frames.go_on()
        except ProtocolError as error:
            self.abort(str(error))
            return
        self._govern_reading()

    def fail(self, stream: int) -> None:
        """A produce to the stream failed after it was appended."""
        self.failed = True
        self.failed_streams.add(stream)

    # Answers

    def answered(self, mute_ms: int) -> None:
        """An exchange has its answer; those at the head of the queue leave."""
        if mute_ms > 0 and self._transport is not None:
            self._mute_for(mute_ms)
        exchanges = self._exchanges
        while exchanges and exchanges[0].buffers is not None:
            exchange = exchanges.popleft()
            if exchange.api_key == PRODUCE:
                self._produces -= 1
            self._out.extend(exchange.buffers or ())
            if exchange.release is not None:
                self._release.append(exchange.release)
                exchange.release = None  # whoever waits for it holds the exchange: no cycle may keep its memory
            exchange.hurry = None
            if exchange.api_key != PRODUCE:
                self._out_bytes += sum(map(len, exchange.buffers or ()))
        if not self._flush_planned:
            self._flush_planned = True
            self._broker.after_turn(self._flush)

    def _flush(self) -> None:
        """Hand all answers of this turn to the network at once."""
        self._flush_planned = False
        transport = self._transport
        if transport is None:
            self._sent()
            return
        if self._out:
            out, self._out, self._out_bytes = self._out, [], 0
            transport.writelines(out)
        if not self._write_paused:
            self._sent()
        if self._waiting:
            self.go_on()
        elif self._read_paused:
            self._govern_reading()
        if self._discarding and self.idle:
            self._end()
        elif self.failed and self._grace is None and self.idle:
            self._grace = asyncio.get_running_loop().call_later(GRACE_S, self._end_when_idle)

    def _sent(self) -> None:
        if self._release:
            released, self._release = self._release, []
            for release in released:
                release()

    # Reading stops and goes on

    def _govern_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        stop = not self._frames.begun and (
            self._write_paused
            or self._mute is not None
            or self._frames.unsplit
            or len(self._waiting) >= WAITING_FRAMES_MAX
            or self._waiting_bytes > WAITING_BYTES_MAX
            or self._produces >= self._produces_max
            or self._broker.pool.exhausted
        )
        if stop and not self._read_paused:
            self._read_paused = True
            transport.pause_reading()
        elif not stop and self._read_paused:
            self._read_paused = False
            transport.resume_reading()

    def _mute_for(self, mute_ms: int) -> None:
        if self._mute is not None:
            self._mute.cancel()
        self._mute = asyncio.get_running_loop().call_later(mute_ms / 1000, self._unmute)
        self._govern_reading()

    def _unmute(self) -> None:
        self._mute = None
        self._govern_reading()

    # The end

    def _end_when_idle(self) -> None:
        self._discarding = True
        if self.idle:
            self._end()

    def _end(self) -> None:
        """Everything is answered: say goodbye, and let the client read it before the connection goes."""
        transport = self._transport
        if transport is None or self._linger is not None:
            return
        self._discarding = True
        if self._grace is not None:
            self._grace.cancel()
        if transport.can_write_eof():
            transport.write_eof()
        if self._read_paused:
            self._read_paused = False
            transport.resume_reading()
        self._linger = asyncio.get_running_loop().call_later(LINGER_S, transport.abort)

    def close(self) -> None:
        """The node stops: send what is answered, then close."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self, reason: str) -> None:
        """Close at once: the client does not speak the protocol, or the node has no use for it."""
        log.info("connection closed peer=%s client=%s reason=%r", self.peer, self.client_id, reason)
        if self._transport is not None:
            self._transport.abort()

    @property
    def idle(self) -> bool:
        """Everything that came is answered, and the answers are with the network."""
        return not self._exchanges and not self._waiting and not self._out

    @property
    def receiving(self) -> bool:
        """A frame is half received."""
        return self._frames.incomplete

    def note_progress(self, now: int) -> bool:
        """Whether anything moved since the last call, given that answers may be leaving slowly."""
        unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
        if unsent < self._unsent_bytes:
            self.progress_ms = now
        self._unsent_bytes = unsent
        return unsent > 0

    def revisit(self) -> None:
        """The node's memory may have become free."""
        if self._waiting:
            self.go_on()
        else:
            self._govern_reading()
