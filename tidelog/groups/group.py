"""One group: who may ask what of it, in which state.

This file decides on requests; how generations follow each other is in `rebalance`, who the members are in `roster`.
The rules are those of Kafka's GroupCoordinator for classic groups:

* A static member is named by its instance id. Who comes with that instance id and another member id than the current
  one is fenced. Who comes with none takes its place; in a Stable group that goes without a rebalance, if the protocol
  that was chosen stays the same.
* From version 4 on, a dynamic member is first told its id, and joins with it (KIP-394), so that a client that retries
  does not become many members.
* A member that waits is superseded when it asks again: its first request is told to try again, its second waits.
* Offsets are committed by members of the current generation, or, while nobody is a member, by anyone without one.

Whatever has to wait is answered exactly once: see `replies`. A group is Dead while its deletion is on the way to the
journal; if that fails it is Empty again.
"""

from collections.abc import Sequence
from random import Random
from uuid import UUID

from tidelog.groups.journal import GroupImage
from tidelog.groups.messages import (
    CommitRequest,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeavingMember,
    LeftMember,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from tidelog.groups.offsets import Offsets
from tidelog.groups.rebalance import GroupState, Persist, Rebalance, response_error
from tidelog.groups.replies import Replies
from tidelog.groups.roster import Member, Roster
from tidelog.groups.settings import GroupSettings
from tidelog.groups.subscription import CONSUMER_PROTOCOL_TYPE
from tidelog.groups.timers import TimerKey, TimerKind, Timers
from tidelog.wire.errors import ErrorCode

MEMBER_ID_REQUIRED_VERSION = 4
"""From this JoinGroup on, a dynamic member joins in two steps."""

SKIP_ASSIGNMENT_VERSION = 9
"""From this JoinGroup on, a leader can be told that it leads and yet has nothing to assign (KIP-814)."""

CLIENT_ID_IN_MEMBER_ID_MAX = 255
"""Characters of a client id that go into a member id."""

MEMBER_ID_SUFFIX_LENGTH = 1 + 36
"""A dash and a UUID."""


class Group:
    def __init__(
        self,
        group_id: str,
        settings: GroupSettings,
        rng: Random,
        timers: Timers,
        replies: Replies,
        persist: Persist,
        now_ms: int,
    ) -> None:
        self.group_id = group_id
        self._settings = settings
        self._rng = rng
        self._timers = timers
        self._replies = replies
        self._persist = persist
        self.roster = Roster()
        self.rebalance = Rebalance(group_id, settings, self.roster, timers, replies, persist, now_ms)
        self.offsets = Offsets()
        self.durable: GroupImage | None = None
        """What the journal says of this group; None if nothing."""

    def restore(self, image: GroupImage, now_ms: int) -> None:
        """Take up a group that another coordinator left: Stable with its members, whose sessions start anew."""
        rebalance = self.rebalance
        self.durable = image
        rebalance.generation = image.generation
        rebalance.protocol_type = image.protocol_type or None
        rebalance.protocol_name = image.protocol_name
        rebalance.state_since_ms = image.state_since_ms
        for member in image.members:
            restored = Member.restored(member, image.protocol_name)
            self.roster.add(restored)
            rebalance.start_session(restored, now_ms)
        if image.leader_id is not None and self.roster.get(image.leader_id) is not None:
            self.roster.leader_id = image.leader_id
        rebalance.read_subscriptions()
        if len(self.roster):
            rebalance.state = GroupState.STABLE
        if len(self.roster) > self._settings.members_max:
            rebalance.prepare(now_ms)  # those that rejoin first stay

    @property
    def state(self) -> GroupState:
        return self.rebalance.state

    @property
    def is_blank(self) -> bool:
        """Nothing would be lost with it."""
        nobody = self.state is GroupState.EMPTY and not self.roster.pending
        return nobody and self.durable is None and not self.offsets and self.rebalance.generation == 0

    # JoinGroup

    def join(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        member_id = request.member_id
        if self.state is GroupState.DEAD:
            self._refuse(reply, ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id)
        elif not self._has_room_for(request):
            member = self.roster.get(member_id)
            if member is not None:
                self.rebalance.drop(member)
            self._refuse(reply, ErrorCode.GROUP_MAX_SIZE_REACHED)
            self.rebalance.maybe_complete_join(now_ms)
        elif not self._supports(request):
            self._refuse(reply, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, member_id)
        elif member_id:
            self._join_as_known(request, reply, now_ms)
        elif request.instance_id is not None:
            self._join_as_static(request, request.instance_id, reply, now_ms)
        elif request.version < MEMBER_ID_REQUIRED_VERSION:
            self._admit(request, self._new_id(request), reply, now_ms)
        elif len(self.roster.pending) >= self._settings.pending_members_max:
            self._refuse(reply, ErrorCode.GROUP_MAX_SIZE_REACHED)
        else:
            new_id = self._new_id(request)
            lapse_ms = now_ms + request.session_timeout_ms
            self.roster.pending[new_id] = lapse_ms
            self._timers.arm(TimerKey(TimerKind.PENDING, self.group_id, new_id), lapse_ms)
            self._refuse(reply, ErrorCode.MEMBER_ID_REQUIRED, new_id)

    def _join_as_known(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        if request.member_id in self.roster.pending and request.instance_id is None:
            self._timers.disarm(TimerKey(TimerKind.PENDING, self.group_id, request.member_id))
            self._admit(request, request.member_id, reply, now_ms)
            return
        member = self._member(request.member_id, request.instance_id)
        if isinstance(member, ErrorCode):
            self._refuse(reply, member, request.member_id)
            return
        same = member.protocols == request.protocols
        leads = self.roster.leader_id == member.member_id
        if (self.state is GroupState.COMPLETING_REBALANCE and same) or (
            # A leader that joins again wants a rebalance: it may have seen partitions come or go.
            self.state is GroupState.STABLE and same and not leads and member.join_reply is None
        ):
            self._replies.add(reply, self.rebalance.joined(member))
            return
        self._supersede(member)
        self._change(member, request, reply)
        self.rebalance.provoke(now_ms)

    def _join_as_static(self, request: JoinRequest, instance_id: str, reply: JoinReply, now_ms: int) -> None:
        old_id = self.roster.static_id(instance_id)
        old = self.roster.get(old_id) if old_id is not None else None
        if old is None:
            self._admit(request, self._new_id(request), reply, now_ms)
            return
        led_by = self.roster.leader_id
        new = Member.joining(request, self._new_id(request), reply)
        new.assignment = old.assignment
        self.roster.replace(old, new)
        self.rebalance.forget(old, ErrorCode.FENCED_INSTANCE_ID, old.member_id)
        self.rebalance.start_session(new, now_ms)
        if self.state is GroupState.STABLE and self.roster.select_protocol() == self.rebalance.protocol_name:
            self.rebalance.read_subscriptions()
            self._persist(
                self.rebalance.image(),
                lambda error, now_ms: self._replaced(new, led_by, request.version, error, now_ms),
            )
        else:
            # Also while the leader assigns: it may be assigning to the old id, and the new one would come away empty.
            self.rebalance.provoke(now_ms)

    def _replaced(self, new: Member, led_by: str | None, version: int, error: ErrorCode, now_ms: int) -> None:
        """That a static member has a new id is durable, or could not be made so."""
        if self.roster.get(new.member_id) is not new or self.state is not GroupState.STABLE:
            return  # it left, was replaced in turn, or is part of a rebalance that will answer it
        rebalance = self.rebalance
        if error is not ErrorCode.NONE:
            # Not taken back: a later record, with the new id in it, may be on its way. The next generation settles it.
            rebalance.answer_join(new, JoinResult(response_error(error)))
            rebalance.start_session(new, now_ms)
            rebalance.late.append(new)
            rebalance.prepare(now_ms)
            return
        leads = self.roster.leader_id == new.member_id
        if version >= SKIP_ASSIGNMENT_VERSION:
            result = rebalance.joined(new, skip_assignment=leads)
        else:
            # Told the old leader's id, it does not take itself for the leader, and assigns nothing.
            result = rebalance.joined(new, leader_id=led_by)
        rebalance.answer_join(new, result)
        rebalance.start_session(new, now_ms)
        rebalance.late.append(new)

    def _admit(self, request: JoinRequest, member_id: str, reply: JoinReply, now_ms: int) -> None:
        self.rebalance.admit(Member.joining(request, member_id, reply), request.protocol_type, now_ms)

    def _change(self, member: Member, request: JoinRequest, reply: JoinReply) -> None:
        self.roster.change_protocols(member, request.protocols)
        member.rebalance_timeout_ms = request.rebalance_timeout_ms
        member.session_timeout_ms = request.session_timeout_ms
        member.join_reply = reply

    def _new_id(self, request: JoinRequest) -> str:
        name = request.client_id[:CLIENT_ID_IN_MEMBER_ID_MAX] if request.instance_id is None else request.instance_id
        return f"{name}-{UUID(int=self._rng.getrandbits(128), version=4)}"

    def _has_room_for(self, request: JoinRequest) -> bool:
        """While members join, those that wait count, not those that may come: the last to rejoin find it full."""
        member = self.roster.get(request.member_id or self.roster.static_id(request.instance_id) or "")
        if self.state is GroupState.PREPARING_REBALANCE:
            waits = member is not None and member.join_reply is not None
            return waits or self.roster.joined_count < self._settings.members_max
        if self.state in {GroupState.COMPLETING_REBALANCE, GroupState.STABLE}:
            return member is not None or len(self.roster) < self._settings.members_max
        return True

    def _supports(self, request: JoinRequest) -> bool:
        if self.state is GroupState.EMPTY:
            return bool(request.protocol_type and request.protocols)
        same_type = request.protocol_type == self.rebalance.protocol_type
        return same_type and self.roster.supports(protocol.name for protocol in request.protocols)

    def _supersede(self, member: Member) -> None:
        """Its earlier request, if one waits, will never be answered otherwise."""
        self.rebalance.answer_join(member, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
        self.rebalance.answer_sync(member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))

    def _refuse(self, reply: JoinReply, error: ErrorCode, member_id: str = "") -> None:
        self._replies.add(reply, JoinResult(error, member_id))

    # SyncGroup, Heartbeat, LeaveGroup

    def sync(self, request: SyncRequest, reply: SyncReply, now_ms: int) -> None:
        member = self._member_of_generation(request.member_id, request.instance_id, request.generation)
        if isinstance(member, ErrorCode):
            self._replies.add(reply, SyncResult(member))
        elif _differs(request.protocol_type, self.rebalance.protocol_type) or _differs(
            request.protocol_name, self.rebalance.protocol_name
        ):
            self._replies.add(reply, SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._replies.add(reply, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        elif self.state is GroupState.STABLE:
            self.rebalance.has_synced(member.member_id)
            self.rebalance.start_session(member, now_ms)
            self._replies.add(reply, self.rebalance.synced(member))
        else:
            self._supersede(member)
            member.sync_reply = reply
            self.rebalance.has_synced(member.member_id)
            if self.roster.leader_id == member.member_id:
                self.rebalance.assign(request.assignments)

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        member = self._member_of_generation(request.member_id, request.instance_id, request.generation)
        if isinstance(member, ErrorCode):
            return member
        self.rebalance.start_session(member, now_ms)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(self, leaving: Sequence[LeavingMember], now_ms: int) -> tuple[LeftMember, ...]:
        """A pending id that is given back concerns nobody but those who wait for it."""
        size = len(self.roster)
        left = tuple(LeftMember(each.member_id, each.instance_id, self._leave(each)) for each in leaving)
        if len(self.roster) < size and self.state is not GroupState.PREPARING_REBALANCE:
            self.rebalance.prepare(now_ms)
        else:
            self.rebalance.maybe_complete_join(now_ms)
        return left

    def _leave(self, leaving: LeavingMember) -> ErrorCode:
        member_id = leaving.member_id or self.roster.static_id(leaving.instance_id) or ""
        if self.roster.pending.pop(member_id, None) is not None:
            self._timers.disarm(TimerKey(TimerKind.PENDING, self.group_id, member_id))
            return ErrorCode.NONE
        member = self._member(member_id, leaving.instance_id)
        if isinstance(member, ErrorCode):
            return member
        self.rebalance.drop(member)
        return ErrorCode.NONE

    # Time

    def expire(self, key: TimerKey, now_ms: int) -> None:
        """A timer came up; it may be early, or nobody's any more."""
        if key.kind is TimerKind.JOIN:
            self.rebalance.join_time_is_up(now_ms)
        elif key.kind is TimerKind.SYNC:
            self.rebalance.sync_time_is_up(now_ms)
        elif key.kind is TimerKind.SESSION:
            self._session_is_up(key, now_ms)
        else:
            lapse_ms = self.roster.pending.get(key.member_id)
            if lapse_ms is not None and lapse_ms > now_ms:
                self._timers.arm(key, lapse_ms)
            elif lapse_ms is not None:
                del self.roster.pending[key.member_id]
                self._complete_if_all_joined(now_ms)

    def _session_is_up(self, key: TimerKey, now_ms: int) -> None:
        member = self.roster.get(key.member_id)
        if member is None or member.may_be_silent:
            return
        if member.session_deadline_ms > now_ms:
            self._timers.arm(key, member.session_deadline_ms)
            return
        self.rebalance.drop(member)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING_REBALANCE}:
            self.rebalance.prepare(now_ms)
        else:
            self._complete_if_all_joined(now_ms)

    def _complete_if_all_joined(self, now_ms: int) -> None:
        """Unlike a member that leaves, one that lapses ends even the initial delay when it was the last awaited."""
        if self.state is GroupState.PREPARING_REBALANCE and self.roster.all_joined:
            self.rebalance.complete_join(now_ms)

    # Offsets

    def refusal_of_commit(self, request: CommitRequest, now_ms: int) -> ErrorCode:
        """NONE if the commit may go ahead. A member's commit is a sign of life."""
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if request.generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE
        if request.generation < 0 and not request.member_id and request.instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member = self._member_of_generation(request.member_id, request.instance_id, request.generation)
        if isinstance(member, ErrorCode):
            return member
        if self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        self.rebalance.start_session(member, now_ms)
        return ErrorCode.NONE

    def refusal_of_offset_deletion(self) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if self.state is not GroupState.EMPTY and self.rebalance.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.NON_EMPTY_GROUP
        return ErrorCode.NONE

    # Life

    def bury(self) -> None:
        self.rebalance.state = GroupState.DEAD

    def revive(self) -> None:
        self.rebalance.state = GroupState.EMPTY

    def close(self, error: ErrorCode) -> None:
        """This coordinator lets go of the group: answer all that wait."""
        for member in self.roster:
            self.rebalance.forget(member, error, member.member_id)

    def _member(self, member_id: str, instance_id: str | None) -> Member | ErrorCode:
        if instance_id is not None:
            current_id = self.roster.static_id(instance_id)
            if current_id is not None and current_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if current_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return self.roster.get(member_id) or ErrorCode.UNKNOWN_MEMBER_ID

    def _member_of_generation(self, member_id: str, instance_id: str | None, generation: int) -> Member | ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        member = self._member(member_id, instance_id)
        if not isinstance(member, ErrorCode) and generation != self.rebalance.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return member


def _differs(said: str | None, known: str | None) -> bool:
    return said is not None and known is not None and said != known
