"""How a group gets from one generation to the next.

    Empty ──first member──▶ PreparingRebalance ──all joined, or time is up──▶ CompletingRebalance
      ▲                        ▲    │                                               │
      └────nobody is left──────┼────┘                            the leader's assignment is durable
                               └────a member comes, goes, changes────  Stable ◀─────┘

* Joining ends when every member has joined and no id is pending, or at the rebalance timeout (the largest any member
  asks for). Dynamic members that have not joined by then are dropped; static ones stay, until their session ends.
* A group that was empty waits a little longer (KIP-134): the initial delay, extended by it as long as members keep
  coming, up to the rebalance timeout.
* A generation gets one assignment: the first its leader sends. Nobody is told before it is durable. If it cannot be
  made durable all are told so, and join again.
* Who has not synced a rebalance timeout after the generation began is dropped, and the others rebalance.

An answer given because an append ended comes at a time nobody told us. Such members are `late`: their sessions start
anew at the next time we hear of.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial

from tidelog.groups.journal import GroupImage, MemberImage
from tidelog.groups.messages import JoinedMember, JoinResult, SyncResult
from tidelog.groups.replies import Replies
from tidelog.groups.roster import Member, Roster
from tidelog.groups.settings import GroupSettings
from tidelog.groups.subscription import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from tidelog.groups.timers import TimerKey, TimerKind, Timers
from tidelog.wire.errors import ErrorCode

Persist = Callable[[GroupImage, Callable[[ErrorCode, int], None]], None]
"""Make a group durable, then say how it went, and the last time known."""


class GroupState(Enum):
    """By Kafka's names, which clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


def response_error(append_error: ErrorCode) -> ErrorCode:
    """What to tell a client when the journal could not be written, in codes that make it do the right thing."""
    if append_error in {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
    }:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if append_error in {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR}:
        return ErrorCode.NOT_COORDINATOR
    if append_error in {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_FETCH_SIZE,
    }:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return append_error


class Rebalance:
    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        roster: Roster,
        timers: Timers,
        replies: Replies,
        persist: Persist,
        now_ms: int,
    ) -> None:
        self._group_id = group_id
        self._settings = settings
        self._roster = roster
        self._timers = timers
        self._replies = replies
        self._persist = persist

        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        """Never falls. Members of one generation work by one protocol and one assignment."""
        self.protocol_type: str | None = None
        """None for a group that never had a member: it only keeps offsets."""
        self.protocol_name: str | None = None
        self.subscribed: frozenset[str] | None = None
        """What a "consumer" group's members subscribe to in this generation; None if that is not known."""
        self.late: list[Member] = []

        self._initial = False
        """This rebalance began with an empty group."""
        self._initial_delay_ms = 0
        self._initial_remaining_ms = 0
        self._newcomer = False
        """A member came since the initial delay was last set."""
        self._join_deadline_ms = 0
        self._unsynced: set[str] = set()
        """Members of this generation that have not sent a SyncGroup."""
        self._sync_deadline_ms = 0
        self._assigning = False
        """This generation's assignment is on its way to the journal."""

    # Members

    def admit(self, member: Member, protocol_type: str, now_ms: int) -> None:
        """Take in a new member that waits to join."""
        member.is_new = True
        if not len(self._roster):
            self.protocol_type = protocol_type
        if self.state is GroupState.PREPARING_REBALANCE and self._initial:
            self._newcomer = True
        self._roster.add(member)
        self.start_session(member, now_ms, self._settings.new_member_join_timeout_ms)
        self.provoke(now_ms)

    def drop(self, member: Member, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID, member_id: str = "") -> None:
        """Take a member out, and say so if it waits. What that means for the others is the caller's business."""
        self._roster.remove(member.member_id)
        self.forget(member, error, member_id)

    def forget(self, member: Member, error: ErrorCode, member_id: str = "") -> None:
        """The member is no longer in the roster, or will not be."""
        self._unsynced.discard(member.member_id)
        self._timers.disarm(TimerKey(TimerKind.SESSION, self._group_id, member.member_id))
        self.answer_join(member, JoinResult(error, member_id))
        self.answer_sync(member, SyncResult(error))

    def start_session(self, member: Member, now_ms: int, timeout_ms: int | None = None) -> None:
        member.session_deadline_ms = now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms)
        self._timers.arm(TimerKey(TimerKind.SESSION, self._group_id, member.member_id), member.session_deadline_ms)

    def restart_late_sessions(self, now_ms: int) -> None:
        for member in self.late:
            if self._roster.get(member.member_id) is member:
                self.start_session(member, now_ms)
        self.late.clear()

    # Answers: each takes the callback away as it uses it

    def answer_join(self, member: Member, result: JoinResult) -> bool:
        reply, member.join_reply = member.join_reply, None
        if reply is not None:
            self._replies.add(reply, result)
        return reply is not None

    def answer_sync(self, member: Member, result: SyncResult) -> bool:
        reply, member.sync_reply = member.sync_reply, None
        if reply is not None:
            self._replies.add(reply, result)
        return reply is not None

    def joined(self, member: Member, leader_id: str | None = None, skip_assignment: bool = False) -> JoinResult:
        """The current generation, as its member is told of it. With `leader_id`, that is who is said to lead."""
        leads = leader_id is None and self._roster.leader_id == member.member_id
        members = tuple(
            JoinedMember(each.member_id, each.instance_id, each.metadata(self.protocol_name))
            for each in (self._roster if leads else ())
        )
        return JoinResult(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol_name,
            leader_id or self._roster.leader_id or "",
            skip_assignment,
            members,
        )

    def synced(self, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # Joining

    def provoke(self, now_ms: int) -> None:
        """Something changed that the group must agree on anew."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self.maybe_complete_join(now_ms)
        else:
            self.prepare(now_ms)

    def prepare(self, now_ms: int) -> None:
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._fail_assignment(ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._unsynced.clear()
        self._initial = self.state is GroupState.EMPTY
        self._newcomer = False
        self._move(GroupState.PREPARING_REBALANCE, now_ms)
        if self._initial:
            delay_ms = self._settings.initial_rebalance_delay_ms
            self._initial_delay_ms = delay_ms
            self._initial_remaining_ms = max(self._roster.rebalance_timeout_ms - delay_ms, 0)
            self._arm_join(now_ms + delay_ms)
        elif self._roster.all_joined:
            self.complete_join(now_ms)
        else:
            self._arm_join(now_ms + self._roster.rebalance_timeout_ms)

    def maybe_complete_join(self, now_ms: int) -> None:
        if self.state is GroupState.PREPARING_REBALANCE and not self._initial and self._roster.all_joined:
            self.complete_join(now_ms)

    def join_time_is_up(self, now_ms: int) -> None:
        if self.state is not GroupState.PREPARING_REBALANCE:
            return
        if now_ms < self._join_deadline_ms:
            self._arm_join(self._join_deadline_ms)
        elif self._initial and self._newcomer and self._initial_remaining_ms > 0:
            self._newcomer = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, self._initial_remaining_ms)
            self._initial_remaining_ms = max(self._initial_remaining_ms - self._initial_delay_ms, 0)
            self._initial_delay_ms = delay_ms
            self._arm_join(now_ms + delay_ms)
        else:
            self.complete_join(now_ms)

    def complete_join(self, now_ms: int) -> None:
        roster = self._roster
        for member in [each for each in roster if each.join_reply is None and each.instance_id is None]:
            self.drop(member)
        if len(roster) and not roster.elect_joined_leader():
            # Only static members are left, and none has joined: wait for one, or for the end of their sessions.
            self._arm_join(now_ms + roster.rebalance_timeout_ms)
            return
        self.generation += 1
        self._assigning = False
        self._unsynced = {member.member_id for member in roster}
        self.protocol_name = roster.select_protocol() if len(roster) else None
        self.read_subscriptions()
        if not len(roster):
            self._move(GroupState.EMPTY, now_ms)
            # If this is lost, the members of the last durable generation come back, and time out once more.
            self._persist(self.image(), _ignore)
            return
        self._move(GroupState.COMPLETING_REBALANCE, now_ms)
        for member in roster:
            self.answer_join(member, self.joined(member))
            self.start_session(member, now_ms)
            member.is_new = False
        self._arm_sync(now_ms + roster.rebalance_timeout_ms)

    def read_subscriptions(self) -> None:
        self.subscribed = None
        if self.protocol_type == CONSUMER_PROTOCOL_TYPE:
            self.subscribed = subscribed_topics(member.metadata(self.protocol_name) for member in self._roster)

    # Assigning

    def has_synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """The leader's word on who gets what. A member it does not mention gets nothing."""
        if self._assigning:
            return
        self._assigning = True
        shares = {member.member_id: assignments.get(member.member_id, b"") for member in self._roster}
        self._persist(self.image(shares), partial(self._assigned, self.generation, shares))

    def _assigned(self, generation: int, shares: Mapping[str, bytes], error: ErrorCode, now_ms: int) -> None:
        if self.state is not GroupState.COMPLETING_REBALANCE or generation != self.generation:
            return  # a new rebalance began, and told everyone
        if error is not ErrorCode.NONE:
            self.late.extend(self._fail_assignment(response_error(error), now_ms))
            self.prepare(now_ms)
            return
        self._assigning = False
        self._move(GroupState.STABLE, now_ms)
        for member in self._roster:
            member.assignment = shares[member.member_id]
            if self.answer_sync(member, self.synced(member)):
                self.start_session(member, now_ms)
                self.late.append(member)

    def _fail_assignment(self, error: ErrorCode, now_ms: int) -> list[Member]:
        """Nobody has an assignment, and those that wait for one are told why."""
        told: list[Member] = []
        for member in self._roster:
            member.assignment = b""
            if self.answer_sync(member, SyncResult(error)):
                self.start_session(member, now_ms)
                told.append(member)
        return told

    def sync_time_is_up(self, now_ms: int) -> None:
        if self.state not in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE} or not self._unsynced:
            return
        if now_ms < self._sync_deadline_ms:
            self._arm_sync(self._sync_deadline_ms)
            return
        for member in [each for each in self._roster if each.member_id in self._unsynced]:
            self.drop(member)
        self.prepare(now_ms)

    # State

    def image(self, shares: Mapping[str, bytes] | None = None) -> GroupImage:
        """The group as it would be durable, with the assignments given, or those in force."""
        members = tuple(
            MemberImage(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.rebalance_timeout_ms,
                member.session_timeout_ms,
                member.metadata(self.protocol_name),
                member.assignment if shares is None else shares[member.member_id],
            )
            for member in self._roster
        )
        return GroupImage(
            self._group_id,
            self.protocol_type or "",
            self.generation,
            self.protocol_name,
            self._roster.leader_id,
            self.state_since_ms,
            members,
        )

    def _move(self, state: GroupState, now_ms: int) -> None:
        self.state = state
        self.state_since_ms = now_ms

    def _arm_join(self, deadline_ms: int) -> None:
        self._join_deadline_ms = deadline_ms
        self._timers.arm(TimerKey(TimerKind.JOIN, self._group_id), deadline_ms)

    def _arm_sync(self, deadline_ms: int) -> None:
        self._sync_deadline_ms = deadline_ms
        self._timers.arm(TimerKey(TimerKind.SYNC, self._group_id), deadline_ms)


def _ignore(_error: ErrorCode, _now_ms: int) -> None:
    """Nobody waits for it."""
