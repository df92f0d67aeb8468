"""What the commands write: stdout that may be closed early, tables and JSON, progress on a terminal."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, TextIO

PROGRESS_S = 0.5


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """stdout, flushed at the end. When its reader has gone, Python must not try to flush it once more as it exits."""
    try:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def show(text: str) -> None:
    with standard_output() as out:
        out.write(text.encode(errors="surrogateescape") + b"\n")


def show_json(value: object) -> None:
    show(json.dumps(value, ensure_ascii=False))


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers stand right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [bool(rows) and all(isinstance(row[i], int) for row in rows) for i in range(len(header))]
    lines = [
        "  ".join(
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in cells
    ]
    return "\n".join(lines)


class StatusLine:
    """What long work is doing: on a terminal one line that is written over again and again, elsewhere a line when it
    changes, `EVERY_S` apart at least, so that a log shows that something moves."""

    EVERY_S = 5.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._last = ""
        self._every_s = PROGRESS_S if self._terminal else self.EVERY_S
        self._next = time.monotonic() + self._every_s  # what is quickly over needs no progress
        self._shown = False

    def show(self, text: str) -> None:
        now = time.monotonic()
        if text == self._last or now < self._next:
            return
        self._last = text
        self._next = now + self._every_s
        if self._terminal:
            self._shown = True
            print(f"\r\x1b[K{text}", end="", file=self._stream, flush=True)
        else:
            print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=self._stream, flush=True)


class Progress:
    """One line on stderr that is written over again and again; nothing when stderr is not a terminal."""

    def __init__(self) -> None:
        self._wanted = sys.stderr.isatty()
        self._next = time.monotonic() + PROGRESS_S
        self._shown = False

    def update(self, records: int, size: int) -> None:
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_S
            self._shown = True
            print(f"\r\x1b[K{records} records, {size} bytes", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
