"""A coordinator in a test's hands: its clock, its journal, its clients.

Appends end at once, or, with `hold()`, when the test says so. Every reply goes to a `Box`, which fails the test if it
is filled twice. `restart` is a crash: a new coordinator that knows only what the journal has.
"""

from collections.abc import Callable
from random import Random
from struct import pack
from typing import Any, Generic, TypeVar

from tidelog.groups import (
    CommitRequest,
    CommitResult,
    Coordinator,
    DeleteOffsetsResult,
    FetchedOffset,
    GroupSettings,
    HeartbeatRequest,
    Image,
    JoinRequest,
    JoinResult,
    LeavingMember,
    OffsetToCommit,
    Protocol,
    Record,
    SyncRequest,
    SyncResult,
    TopicPartition,
    is_snapshot_begin,
)
from tidelog.groups.writer import Done
from tidelog.wire.errors import ErrorCode

Result = TypeVar("Result")
NONE = ErrorCode.NONE
GROUP = "readers"
START_MS = 1_700_000_000_000
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000
DEFAULT_OFFSET: tuple[Any, ...] = ("orders", 0, 42)


class Box(Generic[Result]):
    """Where one reply goes."""

    def __init__(self, stamp: Callable[[], object] = lambda: None) -> None:
        self.results: list[Result] = []
        self.stamp: object = None
        """What `stamp` said when the answer came."""
        self._stamp = stamp

    def __call__(self, result: Result) -> None:
        self.results.append(result)
        self.stamp = self._stamp()
        assert len(self.results) == 1, f"answered twice: {self.results}"

    @property
    def waits(self) -> bool:
        return not self.results

    @property
    def result(self) -> Result:
        assert self.results, "not answered yet"
        return self.results[0]

    @property
    def error(self) -> ErrorCode:
        result: Any = self.result
        return result.error


def subscription(*topics: str) -> bytes:
    """Version 1 of the consumer protocol's subscription, with no user data and nothing owned."""
    names = b"".join(pack(">h", len(topic)) + topic.encode() for topic in topics)
    return pack(">hi", 1, len(topics)) + names + pack(">ii", -1, 0)


def protocols(*names: str, topics: tuple[str, ...] = ("orders",)) -> tuple[Protocol, ...]:
    return tuple(Protocol(name, subscription(*topics)) for name in names or ("range",))


class World:
    def __init__(self, seed: int = 0, **settings: int) -> None:
        self.settings = GroupSettings(**settings)
        self.rng = Random(seed)
        self.now_ms = START_MS
        self.journal: list[Record] = []
        self.held: list[tuple[list[Record], Done]] | None = None
        self.appended: list[list[Record]] = []
        self.stamp: Callable[[], object] = lambda: None
        self._read, self._read_of, self._read_count = Image(), self.journal, 0
        self.coordinator = self._new_coordinator()
        self.coordinator.load([], self.now_ms)

    def _new_coordinator(self) -> Coordinator:
        return Coordinator(self.settings, self.rng, self._append)

    def _append(self, records: list[Record], done: Done) -> None:
        self.appended.append(records)
        if self.held is not None:
            self.held.append((records, done))
        else:
            self.journal += records
            done(NONE)

    def hold(self) -> None:
        self.held = []

    def release(self, error: ErrorCode = NONE, count: int | None = None) -> None:
        """End appends that are under way: all, or the first `count`. A failed one leaves nothing in the journal."""
        assert self.held is not None
        while self.held and count != 0:
            records, done = self.held.pop(0)
            if error is NONE:
                self.journal += records
            done(error)
            count = None if count is None else count - 1

    def restart(self) -> None:
        self.held = None if self.held is None else []
        self.coordinator = self._new_coordinator()
        self.coordinator.load(self.journal, self.now_ms)

    def trim(self) -> None:
        """Cut the journal to where its last snapshot begins."""
        begins = [place for place, (key, _) in enumerate(self.journal) if is_snapshot_begin(key)]
        self.journal = self.journal[begins[-1] :]

    def check_journal(self) -> None:
        """Memory and journal tell the same. Reads on where it left off, so it is cheap to ask after every event."""
        if self._read_of is not self.journal:
            self._read, self._read_of, self._read_count = Image(), self.journal, 0
        for key, value in self.journal[self._read_count :]:
            self._read.apply(key, value)
        self._read_count = len(self.journal)
        assert self._read == self.coordinator.image()

    def advance(self, delta_ms: int) -> None:
        """Let time pass, with a tick at each deadline."""
        end_ms = self.now_ms + delta_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.coordinator.tick(self.now_ms)
        self.now_ms = end_ms

    # Clients

    def join(self, member_id: str = "", group_id: str = GROUP, **fields: Any) -> Box[JoinResult]:
        box = Box[JoinResult](self.stamp)
        fields.setdefault("protocol_type", "consumer")
        fields.setdefault("protocols", protocols())
        fields.setdefault("session_timeout_ms", SESSION_MS)
        fields.setdefault("rebalance_timeout_ms", REBALANCE_MS)
        fields.setdefault("client_id", "client")
        self.coordinator.join(JoinRequest(group_id, member_id=member_id, **fields), box, self.now_ms)
        return box

    def join_in_two_steps(self, **fields: Any) -> Box[JoinResult]:
        first = self.join(**fields)
        assert first.error is ErrorCode.MEMBER_ID_REQUIRED
        return self.join(first.result.member_id, **fields)

    def sync(
        self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None, **fields: Any
    ) -> Box[SyncResult]:
        box = Box[SyncResult](self.stamp)
        group_id = fields.pop("group_id", GROUP)
        request = SyncRequest(group_id, generation, member_id, assignments=assignments or {}, **fields)
        self.coordinator.sync(request, box, self.now_ms)
        return box

    def heartbeat(
        self, member_id: str, generation: int, instance_id: str | None = None, group_id: str = GROUP
    ) -> ErrorCode:
        return self.coordinator.heartbeat(HeartbeatRequest(group_id, generation, member_id, instance_id), self.now_ms)

    def leave(self, member_id: str = "", instance_id: str | None = None, group_id: str = GROUP) -> ErrorCode:
        result = self.coordinator.leave(group_id, [LeavingMember(member_id, instance_id)], self.now_ms)
        return result.error or result.members[0].error

    def commit(
        self, *offsets: tuple[Any, ...], member_id: str = "", generation: int = -1, group_id: str = GROUP, **fields: Any
    ) -> Box[CommitResult]:
        box = Box[CommitResult]()
        to_commit = tuple(OffsetToCommit(*offset) for offset in offsets or (DEFAULT_OFFSET,))
        request = CommitRequest(group_id, to_commit, generation, member_id, **fields)
        self.coordinator.commit(request, box, self.now_ms)
        return box

    def commit_error(self, *offsets: tuple[Any, ...], **fields: Any) -> ErrorCode:
        return self.commit(*offsets, **fields).result.errors[0]

    def fetch(self, topic: str = "orders", partition: int = 0, group_id: str = GROUP) -> int:
        result = self.coordinator.fetch(group_id, [(topic, partition)])
        assert result.error is NONE
        return result.offsets[0].offset

    def fetch_all(self, group_id: str = GROUP) -> dict[TopicPartition, FetchedOffset]:
        return {(each.topic, each.partition): each for each in self.coordinator.fetch(group_id).offsets}

    def delete_offsets(self, *partitions: TopicPartition, group_id: str = GROUP) -> Box[DeleteOffsetsResult]:
        box = Box[DeleteOffsetsResult]()
        self.coordinator.delete_offsets(group_id, partitions, box)
        return box

    def delete_group(self, group_id: str = GROUP) -> Box[dict[str, ErrorCode]]:
        box = Box[dict[str, ErrorCode]]()
        self.coordinator.delete_groups([group_id], box)
        return box

    @property
    def state(self) -> str:
        return self.coordinator.describe(GROUP).state

    def member_ids(self, group_id: str = GROUP) -> list[str]:
        return [member.member_id for member in self.coordinator.describe(group_id).members]

    def stable_group(self, size: int = 2, **fields: Any) -> list[str]:
        """Members of a Stable group in its first generation, the leader first."""
        boxes = [self.join_in_two_steps(**fields) for _ in range(size)]
        self.advance(2 * DELAY_MS)
        ids = [box.result.member_id for box in boxes]
        generation = boxes[0].result.generation
        shares = {member_id: f"share of {n}".encode() for n, member_id in enumerate(ids)}
        group_id = fields.get("group_id", GROUP)
        for member_id in ids[1:]:
            self.sync(member_id, generation, group_id=group_id)
        self.sync(ids[0], generation, shares, group_id=group_id)
        assert self.coordinator.describe(group_id).state == "Stable"
        return ids

    def keep_alive(self, delta_ms: int, generation: int, *member_ids: str) -> None:
        """Let time pass while these members send heartbeats."""
        for _ in range(delta_ms // 3_000):
            self.advance(3_000)
            for member_id in member_ids:
                self.heartbeat(member_id, generation)
        self.advance(delta_ms % 3_000)
