"""`tidelog produce STREAM`: each line of stdin becomes a record.

The producer is idempotent and waits for all replicas. Memory is bounded by librdkafka's queue: when it is full, no line
is read. At the first line that is not acknowledged it stops, and says up to which line all is well.
"""

import argparse
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from tidelog.cli import CommandError
from tidelog.cli.client import Cluster, add_bootstrap, number_from, pair, seconds, settings, stream_name
from tidelog.cli.input_lines import LINE_BYTES_MAX, LineTooLong, read_lines
from tidelog.cli.output import Progress, show_json

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DELIVERY_S_MAX = 30.0
QUEUE_RECORDS_MAX = 100_000
QUEUE_BYTES_MAX = 2 * LINE_BYTES_MAX  # a line always fits
LINGER_MS = 5
POLL_S = 0.1
INTERRUPTED = 130  # the exit status: 128 + SIGINT


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("produce", help="write the lines of stdin to a stream, a record a line")
    parser.add_argument("stream", type=stream_name)
    parser.add_argument("--key-separator", metavar="SEP", help="each line is a key, SEP and a value")
    parser.add_argument("--partition", metavar="P", type=number_from(0), help="write to this one (default: by key)")
    parser.add_argument("--codec", choices=CODECS, default="none", help="compress batches (default: none)")
    parser.add_argument("--header", metavar="K=V", type=pair, action="append", default=[], help="may be repeated")
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=seconds,
        default=DELIVERY_S_MAX,
        help=f"seconds a record may take to be acknowledged (default: {DELIVERY_S_MAX:.0f})",
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON to stdout")
    add_bootstrap(parser)


def run(options: argparse.Namespace) -> int:
    cluster = Cluster(options.bootstrap)
    cluster.partitions(options.stream, options.partition)  # writing must not create a stream by mistake
    sending = _Sending(options)
    signal.signal(signal.SIGINT, sending.interrupt)
    sending.send(read_lines(sys.stdin.fileno(), sending.poll), _splitter(options.key_separator))
    sending.finish()
    if options.json:
        show_json({"stream": options.stream, "records": sending.records, "bytes": sending.size})
    else:
        print(f"produced {sending.records} records, {sending.size} bytes, to {options.stream}", file=sys.stderr)
    if sending.interrupted:
        print(f"tidelog: interrupted after line {sending.line}; all lines up to it are acknowledged", file=sys.stderr)
        return INTERRUPTED
    return 0


Split = Callable[[bytes], tuple[bytes | None, bytes] | None]


def _splitter(separator: str | None) -> Split:
    """From a line to its key and value; None when the line lacks the separator."""
    if not separator:
        return lambda line: (None, line)
    mark = separator.encode(errors="surrogateescape")

    def split(line: bytes) -> tuple[bytes, bytes] | None:
        key, found, value = line.partition(mark)
        return (key, value) if found else None

    return split


class _Sending:
    """Lines on their way, and what became of them. Lines are counted from 1."""

    def __init__(self, options: argparse.Namespace) -> None:
        from confluent_kafka import Producer

        self._stream: str = options.stream
        self._partition: int = -1 if options.partition is None else options.partition  # -1: by key
        self._headers = [(name, value.encode()) for name, value in options.header]
        self._progress = Progress()
        self.line = 0  # the last one taken
        self.records = 0  # acknowledged
        self.size = 0  # bytes of keys and values acknowledged
        self.interrupted = False
        self._last: tuple[int, int, int] | None = None  # line, partition, offset: the highest line acknowledged
        self._lost_line = 0  # the lowest line not acknowledged; 0: none
        self._lost_why = ""
        self._refused = ""  # why the line after the last one taken cannot be sent
        self._producer = Producer(
            settings(
                options.bootstrap,
                {
                    "enable.idempotence": True,
                    "acks": "all",
                    "compression.type": options.codec,
                    "partitioner": "murmur2_random",  # as Kafka's Java clients choose
                    "linger.ms": LINGER_MS,
                    "message.timeout.ms": max(LINGER_MS + 1, int(options.timeout * 1000)),
                    "message.max.bytes": 2 * LINE_BYTES_MAX,  # the stream's own limit decides, not librdkafka's
                    "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
                    "queue.buffering.max.kbytes": QUEUE_BYTES_MAX >> 10,
                },
            )
        )

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """Ctrl-C: take no more lines. A second one ends at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def poll(self, wait_s: float = 0) -> bool:
        """Hear what was acknowledged; whether to go on."""
        self._producer.poll(wait_s)
        self._progress.update(self.records, self.size)
        return not (self.interrupted or self._refused or self._lost_line)

    def send(self, lines: Iterable[bytes], split: Split) -> None:
        try:
            for line in lines:
                parts = split(line)
                if parts is None:
                    self._refused = "the key separator is not in it"
                else:
                    self._send_one(*parts)
                if not self.poll():
                    return
        except LineTooLong as error:
            self._refused = str(error)

    def _send_one(self, key: bytes | None, value: bytes) -> None:
        from confluent_kafka import KafkaException

        line = self.line + 1
        delivered = partial(self._delivered, line, len(key or b"") + len(value))
        while True:
            try:
                self._producer.produce(
                    self._stream, value, key, self._partition, headers=self._headers, on_delivery=delivered
                )
            except BufferError:  # the queue is full: it empties, or its records time out
                if not self.poll(POLL_S):
                    return
            except KafkaException as exception:
                self._refused = exception.args[0].str()
                return
            else:
                self.line = line
                return

    def _delivered(self, line: int, size: int, error: "KafkaError | None", message: "Message") -> None:
        if error is not None:
            self._lose(line, error.str())
            return
        self.records += 1
        self.size += size
        if self._last is None or line > self._last[0]:
            self._last = (line, message.partition() or 0, message.offset() or 0)

    def _lose(self, line: int, why: str) -> None:
        """The first reason is the cause; what follows is only that we gave up."""
        self._lost_why = self._lost_why or why
        self._lost_line = min(self._lost_line or line, line)

    def finish(self) -> None:
        """Wait for what is under way; each record is acknowledged or times out, so this ends."""
        while len(self._producer) and not self._lost_line:
            self.poll(POLL_S)
        if self._lost_line:
            self._producer.purge()
            while len(self._producer):
                self.poll(POLL_S)
        elif self._refused:
            self._lose(self.line + 1, self._refused)
        self._progress.clear()
        if self._lost_line:
            raise CommandError(self._loss())

    def _loss(self) -> str:
        first = f"line {self._lost_line} was not written to {self._stream}: {self._lost_why}"
        if self._last is None:
            return f"{first}; no line is acknowledged"
        line, partition, offset = self._last
        before = "all lines before it are acknowledged; " if self._lost_line > 1 else ""
        return f"{first}; {before}last acknowledged: line {line}, offset {offset} of partition {partition}"
