"""What consensus needs of a log, and nothing more.

To the core a log is memory: an append or a truncation takes effect at once, and every later call sees it. The
log's owner makes the change durable behind its back, in the order of the calls, and reports it with the event
`written`. So there is one log and not two (no "unstable" tail beside a stored one), and the core never waits.

    first_index - 1 <= durable_index <= last_index      (one less while a take-over is not yet durable)

`storage.StreamLog` is the real one; tests have one in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class EntryKind(IntEnum):
    """What an entry is. DATA takes client offsets; all others take a Raft index only."""

    DATA = 0
    NOOP = 1  # first entry of a term, so that earlier terms' entries commit (Raft 5.4.2)
    CONFIGURATION = 2  # the group's members from this entry on
    LOG_START = 3  # moves the stream's log start; the core carries it without looking inside
    REMOTE = 4  # what happened to a segment in the object store; the core does not look inside either


@dataclass(slots=True)
class Entry:
    """One entry of the log. `data` is a whole Kafka record batch for DATA, the bare content for the other kinds.

    Never changed once made; not frozen, because a frozen one takes three times as long to make and one is made a batch.
    """

    index: int
    term: int
    kind: EntryKind
    data: Buffer


class Log(Protocol):
    @property
    def first_index(self) -> int:
        """Index of the oldest entry held; last_index + 1 when there is none."""
        ...

    @property
    def last_index(self) -> int: ...

    @property
    def durable_index(self) -> int:
        """Everything up to here is on stable storage. Truncation can lower it."""
        ...

    @property
    def accepting(self) -> bool:
        """False while the disk is full: nothing may be appended, reads and truncation still work."""
        ...

    def term_at(self, index: int) -> int:
        """Term of the entry at `index`, for first_index - 1 <= index <= last_index. O(log terms)."""
        ...

    def last_index_of_term_at_most(self, index: int, term: int) -> int:
        """The largest i <= index with term_at(i) <= term, or first_index - 1 when there is none. O(log terms)."""
        ...

    def entries(self, first: int, last: int, bytes_max: int) -> Sequence[Entry]:
        """Entries first..last in order, cut after `bytes_max` bytes of data, but never to nothing."""
        ...

    def append_new(self, term: int, kind: EntryKind, data: Sequence[Buffer]) -> int:
        """The leader's append: the log gives out indexes (and offsets), and returns the last index."""
        ...

    def append_received(self, entries: Sequence[Entry]) -> None:
        """A follower's append: entries as the leader made them, the first one at last_index + 1."""
        ...

    def truncate_from(self, index: int) -> None:
        """Forget the entries at `index` and above."""
        ...

    def takeover_context(self) -> bytes:
        """What another replica's log needs besides (index, term) to begin after first_index - 1 (the next offset)."""
        ...

    def take_over(self, index: int, term: int, context: bytes) -> None:
        """Drop everything and begin anew after (index, term), as another replica's `takeover_context` says."""
        ...
