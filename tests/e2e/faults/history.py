"""What clients asked for and got, as they saw it: the checker's only evidence.

Times are `time.monotonic()` of the one process that all clients run in, so that "before" means before. Clients append
from threads of their own (a list's append is atomic) and never change what they have written.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Produced:
    """One record that a client sent, once, and how that ended."""

    client: str
    number: int  # the client's own count; with `client` it makes the value
    partition: int
    sent_s: float
    ended_s: float
    offset: int | None  # where it is, by the server's word; None: it said no, or nothing
    error: str = ""

    @property
    def value(self) -> str:
        return f"{self.client}:{self.number}"


@dataclass(frozen=True, slots=True)
class Polled:
    """Records that a consumer got one after the other. A `session` ends when its position is set anew."""

    client: str
    session: int
    partition: int
    records: Sequence[tuple[int, str]]  # (offset, value)


@dataclass(frozen=True, slots=True)
class Committed:
    """A member's group stands at `offset`, by the server's word."""

    client: str
    partition: int
    answered_s: float
    offset: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Earliest and latest offset; either is None when the answer was an error."""

    client: str
    partition: int
    asked_s: float
    answered_s: float
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, slots=True)
class Pipelined:
    """One connection on which records were sent to one partition without waiting, in the order of their numbers.

    `offsets` has one entry a record: the offset it was acknowledged with, or None (refused, or no answer came).
    """

    client: str
    partition: int
    first_number: int
    offsets: Sequence[int | None]


@dataclass(frozen=True, slots=True)
class FinalRead:
    """The whole partition, read from its start to its end after everything was healed and all producers were done."""

    partition: int
    earliest: int
    latest: int
    records: Sequence[tuple[int, str]]


@dataclass(slots=True)
class History:
    idempotent: set[str] = field(default_factory=set)  # clients whose records must be there once and in order
    groups: dict[str, str] = field(default_factory=dict)  # consumer -> the group it is a member of
    sessions: dict[tuple[str, int], float] = field(default_factory=dict)  # (member, session) -> when it was assigned
    committed: list[Committed] = field(default_factory=list)
    sent: dict[str, tuple[int, float]] = field(default_factory=dict)  # value -> (partition, when)
    produced: list[Produced] = field(default_factory=list)
    polled: list[Polled] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    pipelined: list[Pipelined] = field(default_factory=list)
    final: list[FinalRead] = field(default_factory=list)
    fatal: list[tuple[str, str]] = field(default_factory=list)  # (client, error): it can never go on
    notes: list[tuple[float, str]] = field(default_factory=list)  # what was done to the cluster, and when
    said: dict[str, deque[tuple[float, str]]] = field(default_factory=dict)  # member -> what its library logged

    @property
    def acknowledged(self) -> int:
        return sum(item.offset is not None for item in self.produced)

    def longest_gap_ms(self, since_s: float, until_s: float) -> int:
        """The longest time in that span without an acknowledgement on some partition that was written to."""
        ended = sorted(((i.ended_s, i.partition, i.offset) for i in list(self.produced)), key=lambda item: item[0])
        times: dict[int, list[float]] = {partition: [since_s] for _, partition, _ in ended}
        for at_s, partition, offset in ended:
            if offset is not None and since_s < at_s < until_s:
                times[partition].append(at_s)
        gaps = [after - before for found in times.values() for before, after in pairwise([*found, until_s])]
        return int(max(gaps, default=0.0) * 1000)
