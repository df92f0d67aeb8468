"""Reads that see everything acknowledged before them: by asking a quorum (ReadIndex), or by a lease (Raft thesis 6.4).

A leader asks in rounds. Each of its messages carries the number of the newest round, each answer echoes it. Once a
quorum has answered a round, the leader knows that it led *at the moment the round began*: so a read that came before
that moment may be served, and it shares the round with all others that came before it.

A follower that hears from its leader promises it an election timeout of patience: no vote for another. So a round that
a quorum has answered is a lease from the round's beginning, shortened by what the clocks may drift apart.

A round's number is the leader's clock when it began, in ms, with ROUND_SHIFT bits below to number rounds of the same
millisecond: the number ascends, and needs no table to tell when its round began.
"""

from collections import deque

from tidelog.raft.settings import NEVER_MS

ROUND_SHIFT = 20


class Rounds:
    """Numbers rounds and knows how long the lease of the last confirmed one lasts."""

    __slots__ = ("_distrusted", "confirmed", "current")

    def __init__(self) -> None:
        self.current = 0
        """The newest round; 0: none yet."""

        self.confirmed = 0
        """The newest round that a quorum has answered; <= current."""

        self._distrusted = 0
        """Rounds up to here give no lease."""

    @property
    def in_flight(self) -> bool:
        return self.confirmed < self.current

    def start(self, now_ms: int) -> int:
        self.current = max(self.current + 1, now_ms << ROUND_SHIFT)
        return self.current

    def confirm(self, round_: int) -> None:
        if round_ > self.confirmed:
            self.confirmed = round_

    def distrust_clock(self) -> None:
        """The clock leapt: when earlier rounds began is not known any more."""
        self._distrusted = self.current

    def lease_holds(self, now_ms: int, lease_ms: int) -> bool:
        return self.confirmed > self._distrusted and now_ms < (self.confirmed >> ROUND_SHIFT) + lease_ms


class Reads:
    """Reads that wait for a round, bounded in number. In the order they came, so in the order of rounds they need."""

    __slots__ = ("_count_max", "_queue", "deadline_ms")

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._queue: deque[tuple[int, int, int, int]] = deque()
        """(round after which it may be served, ticket, index, deadline); rounds ascend."""

        self.deadline_ms = NEVER_MS
        """Never later than the earliest deadline."""

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def has_room(self) -> bool:
        return len(self._queue) < self._count_max

    def add(self, ticket: int, index: int, after_round: int, deadline_ms: int) -> None:
        """A read of the state at `index` that any round later than `after_round` allows."""
        self._queue.append((after_round, ticket, index, deadline_ms))
        self.deadline_ms = min(self.deadline_ms, deadline_ms)

    def needs_round(self, current: int) -> bool:
        """Whether somebody waits for a round that has not begun."""
        return bool(self._queue) and self._queue[-1][0] >= current

    def confirmed(self, round_: int) -> list[tuple[int, int]]:
        """Take those that the round allows, as (ticket, index)."""
        done: list[tuple[int, int]] = []
        while self._queue and self._queue[0][0] < round_:
            _, ticket, index, _ = self._queue.popleft()
            done.append((ticket, index))
        if not self._queue:
            self.deadline_ms = NEVER_MS
        return done

    def expired(self, now_ms: int) -> list[int]:
        """Take the tickets whose deadline has come."""
        if now_ms < self.deadline_ms:
            return []
        late = [ticket for _, ticket, _, deadline_ms in self._queue if deadline_ms <= now_ms]
        self._queue = deque(read for read in self._queue if read[3] > now_ms)
        self.deadline_ms = min((read[3] for read in self._queue), default=NEVER_MS)
        return late

    def abandoned(self) -> list[int]:
        """Take all tickets."""
        tickets = [ticket for _, ticket, _, _ in self._queue]
        self._queue.clear()
        self.deadline_ms = NEVER_MS
        return tickets
