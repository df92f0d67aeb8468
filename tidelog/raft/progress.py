"""What a leader knows of one member's log, and how much it may send it.

    match < next,  and  next - 1 <= the leader's last index

Everything up to `match` is the member's for certain. Entries from `next` on were never sent to it. Those between are on
their way (or lost), and are what the window bounds.

PROBE      Where the logs part is not known, or something was lost. One message at a time.
REPLICATE  The logs meet. Entries are sent as they come, up to the window.
TAKEOVER   The entry at `next` was deleted here. A TakeOver was sent; nothing else is, until it is answered.

    PROBE --AppendResponse--> REPLICATE --AppendRejected, loss--> PROBE
    PROBE --next is deleted--> TAKEOVER --AppendResponse--> REPLICATE;  TAKEOVER --loss--> PROBE
"""

from collections import deque
from enum import Enum

from tidelog.raft.settings import RaftSettings


class State(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    TAKEOVER = "takeover"


class Progress:
    __slots__ = (
        "_flight",
        "_flight_bytes",
        "accepting",
        "append_round",
        "heard_ms",
        "match",
        "next",
        "node",
        "paused",
        "round",
        "sleeping",
        "state",
    )

    def __init__(self, node: int, next_index: int, now_ms: int) -> None:
        self.node = node

        self.match = 0
        """Largest index the member has acknowledged: equal to ours, and durable there. Never falls."""

        self.next = next_index
        """First index not yet sent. Falls back to match + 1 at most."""

        self.state = State.PROBE

        self.paused = False
        """In PROBE and TAKEOVER: the one message is out. Cleared by its answer, or by a heartbeat that outlived it."""

        self.accepting = True
        """False while the member's disk is full. It is then sent no entries."""

        self.append_round = 0
        """An answer to this round, or a later one, tells of a time after our last append was sent."""

        self.round = 0
        """Newest round the member has answered. Never falls."""

        self.heard_ms = now_ms
        """When it last answered in this term (at the start: when it became a member)."""

        self.sleeping = False
        """It has agreed to the present proposal to sleep."""

        self._flight: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each append sent in REPLICATE and not acknowledged; indexes ascend, all > match."""

        self._flight_bytes = 0
        """Sum of the bytes in _flight."""

    def acknowledged(self, match: int) -> bool:
        """The member has everything up to `match`. Says whether that is news."""
        if match <= self.match:
            return False
        self.match = match
        if self.next <= match:
            self.next = match + 1
        flight = self._flight
        while flight and flight[0][0] <= match:
            self._flight_bytes -= flight.popleft()[1]
        return True

    def sent(self, last_index: int, size: int, round_: int) -> None:
        """An append up to `last_index` was sent during `round_`."""
        self.append_round = round_ + 1
        if self.state is State.REPLICATE:
            if last_index >= self.next:
                self.next = last_index + 1
                self._flight.append((last_index, size))
                self._flight_bytes += size
        else:
            self.paused = True

    def probe(self, next_index: int) -> None:
        """Look for the place where the logs meet, beginning before `next_index`."""
        self.state = State.PROBE
        self.next = max(next_index, self.match + 1)
        self.paused = False
        self._land()

    def replicate(self, next_index: int) -> None:
        """The logs meet just before `next_index`."""
        self.state = State.REPLICATE
        self.next = next_index
        self.paused = False
        self._land()

    def take_over(self, round_: int) -> None:
        """A TakeOver was sent during `round_`."""
        self.state = State.TAKEOVER
        self.paused = True
        self.append_round = round_ + 1
        self._land()

    def room(self, settings: RaftSettings) -> tuple[int, int]:
        """How many entries and bytes may be sent now; (0, 0) when nothing may, not even an empty append."""
        if self.state is not State.REPLICATE:
            return (0, 0) if self.paused else (settings.window_entries_max, settings.append_bytes_max)
        entries = settings.window_entries_max - (self.next - 1 - self.match)
        size = settings.window_bytes_max - self._flight_bytes
        if entries <= 0 or size <= 0 or len(self._flight) >= settings.window_messages_max:
            return (0, 0)
        return entries, min(size, settings.append_bytes_max)

    def _land(self) -> None:
        self._flight.clear()
        self._flight_bytes = 0
