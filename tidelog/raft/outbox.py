"""Messages on their way out, and the gate before them.

A node must not act on a term or a vote that it could forget (Raft 5.1, figure 2). So when its hard state changes, what
it says from then on is held back until the hard state is reported durable. What it said before may leave.

A held message may be lost like any other: the gate keeps HELD_MAX, the newest, and none of an earlier term.
"""

from collections import deque
from collections.abc import Sequence

from tidelog.raft.effects import HardState
from tidelog.raft.messages import Message

HELD_MAX = 256


class Outbox:
    __slots__ = ("_durable", "_hard_state", "_held", "_ready", "to_persist")

    def __init__(self, hard_state: HardState) -> None:
        self._hard_state = hard_state
        self._durable = True

        self.to_persist: HardState | None = None
        """Changed, and not handed out since."""

        self._ready: list[Message] = []
        self._held: deque[Message] = deque(maxlen=HELD_MAX)

    @property
    def durable(self) -> bool:
        """Whether the present hard state is on stable storage."""
        return self._durable

    def persist(self, hard_state: HardState) -> None:
        if hard_state.term > self._hard_state.term:
            self._held.clear()
        self._hard_state = hard_state
        self.to_persist = hard_state
        self._durable = False

    def persisted(self, hard_state: HardState) -> bool:
        """Opens the gate if it is the newest hard state that became durable; says whether it did."""
        if self._durable or hard_state != self._hard_state:
            return False
        self._durable = True
        self.to_persist = None
        self._ready.extend(self._held)
        self._held.clear()
        return True

    def send(self, message: Message) -> None:
        if self._durable:
            self._ready.append(message)
        else:
            self._held.append(message)

    @property
    def has_messages(self) -> bool:
        return bool(self._ready)

    def take_messages(self) -> Sequence[Message]:
        messages = self._ready
        if not messages:
            return ()
        self._ready = []
        return messages

    def take_hard_state(self) -> HardState | None:
        hard_state = self.to_persist
        self.to_persist = None
        return hard_state
