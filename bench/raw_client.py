"""A client that does as little as a client can: frames that were made before go out, answers are counted, not read.

It is the same for the server and for the floor beside it, so what it costs it costs both.
"""

import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.frames import HIGH_WATERMARK, check_produced, create_topic, delete_records, header_of, produce_frame
from tidelog.wire.frames import decode_response, encode_request

KIB, MIB = 1 << 10, 1 << 20
SILENCE_S_MAX = 20
BURST_BYTES = 256 * KIB  # handed to the kernel at once, if the window allows it
ANSWERS_BYTES = 64 * KIB
LARGEST_ANSWER_BYTES = 64 * MIB

_SIZE = struct.Struct(">i")
_TIMEVAL = struct.Struct("@ll")


@dataclass(frozen=True, slots=True)
class Sent:
    seconds: float
    latencies_s: list[float]
    last_answer: bytes


class RawClient:
    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, SILENCE_S_MAX)
        # The kernel's time-outs: those of Python cost another system call each time.
        self._socket.settimeout(None)
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(SILENCE_S_MAX, 0))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._memory = memoryview(bytearray(MIB))

    def close(self) -> None:
        self._socket.close()

    def call(self, request: object) -> Any:
        """One request, and its answer."""
        header = header_of(request)
        return decode_response(header, self.exchange(b"".join(encode_request(header, request))))

    def create(self, topic: str) -> None:
        assert not self.call(create_topic(topic)).topics[0].error_code, f"{topic} was not created"

    def delete_all(self, topic: str) -> None:
        """Its segments, as far as they are whole, are used again."""
        self.delete_before(topic, HIGH_WATERMARK)

    def delete_before(self, topic: str, offset: int) -> None:
        response = self.call(delete_records(topic, offset))
        assert not response.topics[0].partitions[0].error_code, f"{topic} was not cut"

    def produce(self, topic: str, batch: bytes, count: int, window: int) -> Sent:
        """So many batches; all must be acknowledged."""
        sent = self.send_windowed(produce_frame(topic, batch), count, window)
        check_produced(sent.last_answer)  # a failure ends the connection, so those before it are as good
        return sent

    def exchange(self, frame: bytes) -> memoryview:
        """Send a frame; gives the answer's, which lies in memory that is used again."""
        self._socket.sendall(frame)
        size = _SIZE.unpack(self._receive(_SIZE.size))[0]
        assert 0 < size <= LARGEST_ANSWER_BYTES, f"an answer of {size} bytes"
        return self._receive(size)

    def _receive(self, size: int) -> memoryview:
        if size > len(self._memory):
            self._memory = memoryview(bytearray(size + MIB))
        memory, filled = self._memory[:size], 0
        while filled < size:
            received = self._socket.recv_into(memory[filled:], 0, socket.MSG_WAITALL)
            if received == 0:
                raise ConnectionError("the other side has closed the connection")
            filled += received
        return memory

    def send_windowed(self, frame: bytes, count: int, window: int) -> Sent:
        """Send a frame many times, never more than `window` of them unanswered. Answers must have one size."""
        connection, size = self._socket, len(frame)
        burst_max = max(1, min(window, BURST_BYTES // size))
        burst = memoryview(frame * burst_max)
        begun_at: deque[float] = deque()
        latencies: list[float] = []
        sent = answered = answer_bytes = 0
        rest = last = b""
        begun = time.perf_counter()
        while answered < count:
            number = min(burst_max, window - (sent - answered), count - sent)
            if number > 0:
                begun_at.extend([time.perf_counter()] * number)
                connection.sendall(burst[: number * size])
                sent += number
                if sent - answered < window and sent < count:
                    continue
            received = connection.recv(ANSWERS_BYTES)
            if not received:
                raise ConnectionError("the other side has closed the connection")
            rest += received
            if not answer_bytes:
                answer_bytes = _SIZE.size + _SIZE.unpack_from(rest)[0]
            number = len(rest) // answer_bytes
            assert number <= len(begun_at), "an answer has another size than the first"
            now = time.perf_counter()
            latencies += [now - begun_at.popleft() for _ in range(number)]
            answered += number
            if number:
                end = number * answer_bytes
                last, rest = rest[end - answer_bytes : end], rest[end:]
        seconds = time.perf_counter() - begun
        assert not rest, "more came than was asked for"
        return Sent(seconds, latencies, last[_SIZE.size :])

    def read_whole(self, frame_at: Callable[[int], bytes], total_bytes: int, unit_bytes: int) -> float:
        """Read so many bytes, whole units an answer, one request at a time; returns seconds.

        `frame_at` gives the request for what comes behind so many bytes. What an answer has beside its units is less
        than one of them.
        """
        position = 0
        begun = time.perf_counter()
        while position < total_bytes:
            advance = len(self.exchange(frame_at(position))) // unit_bytes * unit_bytes
            assert advance > 0, "an answer without anything in it"
            position += advance
        return time.perf_counter() - begun
