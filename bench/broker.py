"""What the server's own Python costs: a connection in this process gets ready-made frames, its answers are counted.

Measured is the CPU time of the thread that runs the event loop, and nothing else: no socket, no disk thread. The copy
into the connection's memory stands for the kernel's. Nothing is synced, so groups are as small as they ever get, which
is the dearest case for the loop.
"""

import asyncio
import gc
import os
import statistics
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Self

import uvloop

from bench.frames import (
    KIB,
    batch_of,
    check_fetched,
    check_produced,
    create_topic,
    fetch_frame,
    header_of,
    produce_frame,
    records_in,
)
from bench.rounds import Line, compare, spread
from bench.scratch import scratch
from tidelog.server.broker import Broker
from tidelog.server.connection import Connection
from tidelog.server.process import COLLECT_AFTER
from tidelog.server.settings import Settings
from tidelog.storage import RealDisk
from tidelog.wire.frames import SIZE_BYTES, decode_response, encode_request

TOPIC = "bench"
BATCH_BYTES = 16 * KIB
REQUESTS = 1_024
ROUNDS = 25
WARM_UP = 3
WINDOW = 64  # produces under way
BURST = 16  # of them that arrive with one read
ROUND_S_MAX = 20
SMALL_RECORD_BYTES = 1
LARGE_RECORD_BYTES = 10 * KIB
LARGE_RECORDS_BYTES = 21 * KIB  # a batch of two
RECORD_SIZE_REQUESTS = 512
RECORD_SIZE_ROUNDS = 35


class _Answers(asyncio.Transport):
    """The network as the connection sees it: takes everything, and tells when enough has come."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers = 0
        self.last: list[bytes] = []
        self._wanted = 0
        self._reached: asyncio.Future[None] | None = None

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.last = list(list_of_data)  # type: ignore[arg-type]
        self.buffers += len(self.last)
        if self._reached is not None and self.buffers >= self._wanted:
            self._reached.set_result(None)
            self._reached = None

    async def reach(self, buffers: int) -> None:
        if self.buffers < buffers:
            self._wanted, self._reached = buffers, asyncio.get_running_loop().create_future()
            await self._reached

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        raise AssertionError("the server has closed the connection")


class _Server:
    """A broker and one connection to it, on an event loop that runs only while something is asked of it."""

    def __init__(self, folder: str, runner: asyncio.Runner) -> None:
        self._runner = runner
        runner.run(self._start(os.path.join(folder, "data")))

    async def _start(self, data_dir: str) -> None:
        self._broker = Broker(Settings(data_dir=data_dir), RealDisk("none"), _fail)
        await self._broker.start("127.0.0.1", 1)
        self._connection, self._answers = Connection(self._broker), _Answers()
        self._connection.connection_made(self._answers)

    async def _stop(self) -> None:
        self._connection.connection_lost(None)
        await self._broker.stop()

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[Self]:
        with (
            scratch() as folder,
            _interpreter_of_a_server(),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            server = cls(folder, runner)
            gc.freeze()
            try:
                request = create_topic(TOPIC)
                header = header_of(request)
                answer = server.answer_to(b"".join(encode_request(header, request)))
                assert not decode_response(header, answer).topics[0].error_code
                yield server
            finally:
                runner.run(server._stop())

    def answer_to(self, frame: bytes) -> bytes:
        """One answer, without its size."""
        self._runner.run(self._exchange(frame, 1, 1, 1, 1))
        return b"".join(self._answers.last)[SIZE_BYTES:]

    def cost_s(self, frame: bytes, count: int, window: int, burst: int) -> float:
        """CPU time of the loop for one of so many requests, `window` of them under way, `burst` arriving at once."""
        self.answer_to(frame)
        return self._runner.run(self._exchange(frame, count, window, burst, len(self._answers.last)))

    async def _exchange(self, frame: bytes, count: int, window: int, burst: int, buffers_each: int) -> float:
        """`buffers_each`: of one answer."""
        answers, arriving, first = self._answers, memoryview(frame * burst), self._answers.buffers
        async with asyncio.timeout(ROUND_S_MAX):
            begun = time.thread_time()
            for sent in range(0, count, burst):
                await answers.reach(first + (sent + burst - window) * buffers_each)
                self._arrive(arriving)
            await answers.reach(first + count * buffers_each)
            return (time.thread_time() - begun) / count

    def _arrive(self, data: memoryview) -> None:
        connection, position = self._connection, 0
        while position < len(data):
            room = connection.get_buffer(-1)
            size = min(len(room), len(data) - position)
            room[:size] = data[position : position + size]
            connection.buffer_updated(size)
            position += size


def _fail(error: BaseException) -> None:
    raise error


@contextmanager
def _interpreter_of_a_server() -> Iterator[None]:
    """The collector as `tidelog.server.process` sets it."""
    collect_after = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*collect_after)


def _cost_line(name: str, costs_s: list[float], limit_us: float) -> Line:
    """The best round counts: whatever else the machine does only ever adds to what a request costs."""
    costs = [cost_s * 1e6 for cost_s in costs_s[WARM_UP:]]
    best = min(costs)
    note = f"CPU of the loop; median {statistics.median(costs):.1f}, worst {max(costs):.1f} of {len(costs)} rounds"
    return Line(name, f"{best:.1f} µs", f"< {limit_us:.0f} µs", best < limit_us, note)


def produce() -> Line:
    frame = produce_frame(TOPIC, batch_of(BATCH_BYTES))
    with _Server.started() as server:
        check_produced(server.answer_to(frame))
        costs = [server.cost_s(frame, REQUESTS, WINDOW, BURST) for _ in range(WARM_UP + ROUNDS)]
        check_produced(server.answer_to(frame))
    return _cost_line("one Produce of 16 KiB", costs, 60)


def fetch() -> Line:
    """From the tail, one request at a time, as clients do it."""
    batch = batch_of(BATCH_BYTES)
    with _Server.started() as server:
        for _ in range(4):
            check_produced(server.answer_to(produce_frame(TOPIC, batch)))
        offset = records_in(batch)
        frame = fetch_frame(TOPIC, offset, len(batch))
        costs = [server.cost_s(frame, REQUESTS, 1, 1) for _ in range(WARM_UP + ROUNDS)]
        check_fetched(server.answer_to(frame), offset)
    return _cost_line("one Fetch of 16 KiB from the tail", costs, 50)


def record_size() -> Line:
    """A batch costs what its bytes cost, however many records they are."""
    large = batch_of(LARGE_RECORDS_BYTES, LARGE_RECORD_BYTES)
    small = batch_of(len(large), SMALL_RECORD_BYTES)
    frames = {batch: produce_frame(TOPIC, batch) for batch in (large, small)}
    with _Server.started() as server:
        for frame in frames.values():
            check_produced(server.answer_to(frame))
        comparison = compare(
            lambda: server.cost_s(frames[large], RECORD_SIZE_REQUESTS, WINDOW, BURST),
            lambda: server.cost_s(frames[small], RECORD_SIZE_REQUESTS, WINDOW, BURST),
            RECORD_SIZE_ROUNDS,
            WARM_UP,
        )
    ratio, ratios = comparison.ratio, comparison.ratios
    small_us, large_us = (statistics.median(costs_s) * 1e6 for costs_s in (comparison.floor, comparison.ours))
    name = f"Produce of {records_in(small):,} records of 1 B, against {records_in(large)} of 10 KiB"
    note = f"{spread(ratios, 2)}; {small_us:.1f} and {large_us:.1f} µs a batch of {len(large) // KIB} KiB"
    return Line(name, f"{ratio:.2f} as dear", "0.9 to 1.1", 0.9 <= ratio <= 1.1, note)
