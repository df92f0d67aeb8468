"""One node alone, for tests that speak to it by hand. It is node 1 of the voters 1, 2 and 3, unless told otherwise."""

from collections.abc import Sequence, Set
from random import Random
from typing import TypeVar

from tests.raft.harness import GROUP
from tests.raft.memory_log import MemoryLog
from tidelog.raft import (
    AppendRequest,
    Configuration,
    Entry,
    EntryKind,
    Group,
    HardState,
    Heartbeat,
    Message,
    RaftSettings,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)

M = TypeVar("M")
ELECTION_MS = RaftSettings().election_timeout_ms


class Lone:
    def __init__(
        self,
        log: MemoryLog | None = None,
        *,
        term: int | None = None,
        vote: int | None = None,
        configuration: Configuration | None = None,
        configuration_index: int = 0,
        settings: RaftSettings | None = None,
        now_ms: int = 0,
        alive: Set[int] | None = None,
        seed: int = 1,
    ) -> None:
        """By default its disk works at once, its term is that of its last entry, and it is patient with nobody."""
        self.log = log or MemoryLog()
        self.now_ms = now_ms
        self.disk_works = True
        hard_state = HardState(self.log.term_at(self.log.last_index) if term is None else term, vote)
        self.group = Group(
            GROUP,
            1,
            self.log,
            hard_state,
            [(configuration_index, configuration or Configuration.of([1, 2, 3]))],
            settings or RaftSettings(),
            Random(seed),
            now_ms,
            alive,
        )
        self.effects = self.group.take_effects()
        self.now_ms += ELECTION_MS

    def take(self) -> Sequence[Message]:
        """Take effects, and let the disk work if it does. Returns the messages."""
        messages: list[Message] = []
        while True:
            self.effects = effects = self.group.take_effects()
            messages.extend(effects.messages)
            busy = False
            if self.disk_works:
                busy = effects.hard_state is not None
                if effects.hard_state is not None:
                    self.group.hard_state_written(effects.hard_state, self.now_ms)
                if self.log.sync():
                    self.group.written(self.now_ms)
                    busy = True
            if not busy and not effects.messages:
                return messages

    def hear(self, *messages: Message) -> Sequence[Message]:
        for message in messages:
            self.group.receive(message, self.now_ms)
        return self.take()

    def lead(self) -> Sequence[Message]:
        """Win an election with the vote of node 2; everything it then says."""
        self.group.campaign(self.now_ms)
        self.take()
        term = self.group.term + 1
        self.hear(VoteResponse(GROUP, 2, 1, term, granted=True, pre=True))
        return self.hear(VoteResponse(GROUP, 2, 1, term, granted=True, pre=False))


def only(kind: type[M], messages: Sequence[Message]) -> M:
    found = [message for message in messages if isinstance(message, kind)]
    assert len(found) == 1, f"{len(found)} of {kind.__name__} in {messages}"
    return found[0]


def every(kind: type[M], messages: Sequence[Message]) -> list[M]:
    return [message for message in messages if isinstance(message, kind)]


def append(
    term: int,
    after: tuple[int, int],
    *terms: int,
    commit: int = 0,
    source: int = 2,
    round_: int = 0,
    data: bytes | None = None,
) -> AppendRequest:
    """An append of data entries with these terms after entry (index, term)."""
    entries = [
        Entry(index, entry_term, EntryKind.DATA, data or b"%d.%d" % (entry_term, index))
        for index, entry_term in enumerate(terms, after[0] + 1)
    ]
    return AppendRequest(GROUP, source, 1, term, *after, entries, commit, round_)


def heartbeat(term: int, *, commit: int = 0, source: int = 2, round_: int = 0, sleep: bool = False) -> Heartbeat:
    return Heartbeat(GROUP, source, 1, term, commit, round_, sleep)


def vote_request(
    term: int, last: tuple[int, int], *, source: int = 2, pre: bool = False, forced: bool = False
) -> VoteRequest:
    """A request by a candidate whose last entry is (index, term)."""
    return VoteRequest(GROUP, source, 1, term, *last, pre, forced)


def timeout_now(term: int, source: int = 2) -> TimeoutNow:
    return TimeoutNow(GROUP, source, 1, term)
