"""The way of records to the journal: in order, bounded, each answered once.

What is under way is known here, for two reasons. When the coordinator lets go, everybody who waits for an append is
told at once; if the append ends later, nobody listens. And a snapshot must say exactly what the journal says up to its
begin marker: so it waits until nothing is under way, while what comes in the meantime is held back and follows it.

`append` may call back at once or later, in order, exactly once. That an append failed does not mean that its records
are not in the journal; it means that nobody may rely on it. The next snapshot sets that right.
"""

from collections import deque
from collections.abc import Callable, Iterator

from tidelog.groups.journal import Record
from tidelog.wire.errors import ErrorCode

Done = Callable[[ErrorCode], None]
Append = Callable[[list[Record], Done], None]


class Writer:
    __slots__ = ("_after", "_append", "_closed", "_held", "_next", "_resuming", "_snapshot", "_under_way")

    def __init__(self, append: Append, after: Callable[[], None]) -> None:
        """`after` is called when an append has ended and its `done` has returned."""
        self._append = append
        self._after = after
        self._closed: ErrorCode | None = None
        self._next = 0
        self._under_way: dict[int, Done] = {}
        """In the order of appending."""
        self._held: deque[tuple[list[Record], Done]] = deque()
        self._snapshot: tuple[Callable[[], list[list[Record]]], Done] | None = None
        """One that waits until nothing is under way."""
        self._resuming = False
        """A snapshot, and what was held back for it, is being appended just now."""

    def __len__(self) -> int:
        """Appends that have not ended."""
        return len(self._under_way) + len(self._held)

    def write(self, records: list[Record], done: Done) -> None:
        if self._closed is not None:
            done(self._closed)
        elif self._snapshot is not None or self._resuming:
            self._held.append((records, done))
        else:
            self._start(records, done)

    def write_snapshot(self, take: Callable[[], list[Record]], bytes_max: int, done: Done) -> bool:
        """`take` gives the records, once nothing is under way. `done` hears of the first failure, or of success.

        False if one is waiting already; then nothing is done.
        """
        if self._snapshot is not None:
            return False
        self._snapshot = (lambda: list(_chunks(take(), bytes_max)), done)
        self._resume()
        return True

    def close(self, error: ErrorCode) -> None:
        """Tell all who wait."""
        self._closed = error
        waiting = [*self._under_way.values(), *(done for _, done in self._held)]
        if self._snapshot is not None:
            waiting.append(self._snapshot[1])
        self._under_way.clear()
        self._held.clear()
        self._snapshot = None
        for done in waiting:
            done(error)

    def _start(self, records: list[Record], done: Done) -> None:
        ticket = self._next
        self._next += 1
        self._under_way[ticket] = done
        self._append(records, lambda error: self._ended(ticket, error))

    def _ended(self, ticket: int, error: ErrorCode) -> None:
        done = self._under_way.pop(ticket, None)
        if done is None:
            return  # closed meanwhile
        done(error)
        self._resume()
        self._after()

    def _resume(self) -> None:
        if self._resuming:
            return
        while self._snapshot is not None and not self._under_way:
            (take, done), self._snapshot = self._snapshot, None
            self._resuming = True
            self._start_snapshot(take(), done)
            while self._held and self._snapshot is None:
                self._start(*self._held.popleft())
            self._resuming = False

    def _start_snapshot(self, chunks: list[list[Record]], done: Done) -> None:
        left = len(chunks)
        failure = ErrorCode.NONE

        def chunk_done(error: ErrorCode) -> None:
            nonlocal left, failure
            left -= 1
            failure = failure or error
            if left == 0:
                done(failure)

        for chunk in chunks:
            self._start(chunk, chunk_done)


def _chunks(records: list[Record], bytes_max: int) -> Iterator[list[Record]]:
    chunk: list[Record] = []
    size = 0
    for key, value in records:
        record_size = len(key) + len(value or b"")
        if chunk and size + record_size > bytes_max:
            yield chunk
            chunk, size = [], 0
        chunk.append((key, value))
        size += record_size
    if chunk:
        yield chunk
