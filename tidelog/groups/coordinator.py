"""All groups whose state lives in one partition of the internal stream, on the node that leads it.

    coordinator = Coordinator(settings, rng, append)       # answers "loading" until it is loaded
    coordinator.load(records, now_ms)                      # the partition's records, from its start
    coordinator.join(request, reply, now_ms)               # reply is called once, now or later
    coordinator.tick(now_ms)                               # no later than next_deadline_ms()
    coordinator.unload(ErrorCode.NOT_COORDINATOR)          # all who wait are told; after that it only says this

Time is in milliseconds since 1970, for it is compared with times in the journal; it must not fall or leap, since
sessions are measured by it: take the wall clock once at start, and count on from there with a monotonic one.

Every answer goes out after the state it speaks of is settled, so a callback may call back. `append` makes records
durable and calls back exactly once, in order, from this thread, now or later; while that goes on nothing else waits for
it.

Bounds: groups, members, pending ids, offsets a group, bytes a member and a group, appends under way; see `settings`.
Cost: a heartbeat or commit O(1) (a partition), a join or sync O(members), a tick O(what is due).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

from tidelog.groups.errors import GroupsError
from tidelog.groups.group import MEMBER_ID_SUFFIX_LENGTH, Group
from tidelog.groups.image import Image
from tidelog.groups.journal import GroupImage, Record, fits_string, group_record
from tidelog.groups.messages import (
    CommitReply,
    CommitRequest,
    CommitResult,
    DeleteGroupsReply,
    DeleteOffsetsReply,
    DeleteOffsetsResult,
    DescribedGroup,
    FetchResult,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    LeftMember,
    ListedGroup,
    SyncReply,
    SyncRequest,
    SyncResult,
    TopicPartition,
)
from tidelog.groups.offset_requests import OffsetRequests
from tidelog.groups.rebalance import GroupState, response_error
from tidelog.groups.replies import Replies
from tidelog.groups.settings import GroupSettings
from tidelog.groups.timers import Timers
from tidelog.groups.views import described, is_listed, listed
from tidelog.groups.writer import Append, Writer
from tidelog.wire.errors import ErrorCode

REBALANCE_TIMEOUT_VERSION = 1
"""From this JoinGroup on, a member says how long a rebalance may take."""


class Coordinator:
    def __init__(self, settings: GroupSettings, rng: Random, append: Append) -> None:
        self._settings = settings
        self._rng = rng
        self._refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        """What everyone is told; NONE while this coordinator serves."""
        self._now_ms = 0
        self._groups: dict[str, Group] = {}
        self._timers = Timers()
        self._replies = Replies()
        self._writer = Writer(append, self._replies.flush)
        self._offsets = OffsetRequests(self._groups, self._create, settings, self._writer, self._replies)
        self._sweep_ms = 0
        self._late: dict[str, Group] = {}
        """Groups with sessions that must start anew at the next time we hear of."""

    # Life

    def load(self, records: Iterable[Record], now_ms: int) -> None:
        """Take up what the journal tells. Raises JournalError if it cannot be understood; then nothing is served."""
        self.start(Image.of(records), now_ms)

    def start(self, image: Image, now_ms: int) -> None:
        """Like `load`, for whoever folds the journal bit by bit."""
        if self._refusal is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            raise GroupsError("a coordinator is loaded once; make a new one")
        self._now_ms = now_ms
        self._refusal = ErrorCode.NONE
        self._sweep_ms = now_ms + self._settings.offsets_retention_check_ms
        for group_id, offsets in image.offsets.items():
            self._add(group_id, now_ms).offsets.apply(offsets.items())
        for group_id, group_image in image.groups.items():
            group = self._groups.get(group_id) or self._add(group_id, now_ms)
            group.durable = group_image
            group.restore(group_image, now_ms)
        self._replies.flush()

    def unload(self, error: ErrorCode = ErrorCode.NOT_COORDINATOR) -> None:
        """Let go of everything: another node leads, or will."""
        self._refusal = error
        for group in self._groups.values():
            group.close(error)
        self._writer.close(error)
        self._groups.clear()
        self._timers.clear()
        self._late.clear()
        self._replies.flush()

    def tick(self, now_ms: int) -> None:
        if self._refusal is not ErrorCode.NONE:
            return
        self._hear(now_ms)
        for key in self._timers.due(self._now_ms):
            group = self._groups.get(key.group_id)
            if group is not None:
                group.expire(key, self._now_ms)
        if self._now_ms >= self._sweep_ms:
            self._sweep_ms = self._now_ms + self._settings.offsets_retention_check_ms
            self._offsets.start_sweep()
        if self._offsets.is_sweeping:
            self._offsets.sweep(self._now_ms)
        self._replies.flush()

    def next_deadline_ms(self) -> int | None:
        """When to tick next; None while nothing is served."""
        if self._refusal is not ErrorCode.NONE:
            return None
        if self._late or self._offsets.is_sweeping:
            return self._now_ms
        timer_ms = self._timers.next_ms()
        return self._sweep_ms if timer_ms is None else min(self._sweep_ms, timer_ms)

    # Snapshots

    def image(self) -> Image:
        """What is durable, as memory has it: the same as the journal tells, once nothing is under way."""
        groups = {group.group_id: group.durable for group in self._groups.values() if group.durable is not None}
        offsets = {
            group.group_id: dict(group.offsets.committed) for group in self._groups.values() if group.offsets.committed
        }
        return Image(groups, offsets)

    def snapshot_records(self) -> list[Record] | None:
        """Everything, as one run of records to append next, before which the journal may be trimmed when they are
        durable. None while an append is under way (the snapshot would not have it): `write_snapshot` waits.
        """
        if self._refusal is not ErrorCode.NONE or len(self._writer):
            return None
        return self.image().snapshot(self._rng.getrandbits(63))

    def write_snapshot(self, reply: Callable[[ErrorCode], None]) -> bool:
        """Append a snapshot as soon as it can be exact. False, and no reply, if one waits already or none can be.

        On NONE the journal may be trimmed to the record that `is_snapshot_begin` tells.
        """
        if self._refusal is not ErrorCode.NONE:
            return False

        return self._writer.write_snapshot(
            lambda: self.image().snapshot(self._rng.getrandbits(63)),
            self._settings.snapshot_append_bytes_max,
            lambda error: self._replies.add(reply, error),
        )

    # Members

    def join(self, request: JoinRequest, reply: JoinReply, now_ms: int) -> None:
        self._hear(now_ms)
        error = self._refusal or self._refusal_of_join(request)
        group = self._groups.get(request.group_id)
        if error is ErrorCode.NONE and group is None:
            if request.member_id:
                error = ErrorCode.UNKNOWN_MEMBER_ID
            else:
                group = self._create(request.group_id, self._now_ms)
                error = ErrorCode.NONE if group is not None else ErrorCode.GROUP_MAX_SIZE_REACHED
        if error is not ErrorCode.NONE or group is None:
            self._replies.add(reply, JoinResult(error, request.member_id))
        else:
            group.join(_normal(request), reply, self._now_ms)
            if group.is_blank:
                self._groups.pop(group.group_id, None)  # it was made for this request, which was refused
        self._replies.flush()

    def sync(self, request: SyncRequest, reply: SyncReply, now_ms: int) -> None:
        self._hear(now_ms)
        group = self._groups.get(request.group_id)
        if self._refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance is lost with the last coordinator, and old clients do not expect to hear of loading.
            self._replies.add(reply, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        elif error := self._refusal or self._refusal_of_id(request.group_id):
            self._replies.add(reply, SyncResult(error))
        elif group is None:
            self._replies.add(reply, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            group.sync(request, reply, self._now_ms)
        self._replies.flush()

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        self._hear(now_ms)
        group = self._groups.get(request.group_id)
        if self._refusal is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # its session starts anew with loading, so nothing is lost by believing it
        if error := self._refusal or self._refusal_of_id(request.group_id):
            return error
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.heartbeat(request, self._now_ms)

    def leave(self, group_id: str, members: Sequence[LeavingMember], now_ms: int) -> LeaveResult:
        self._hear(now_ms)
        if error := self._refusal or self._refusal_of_id(group_id):
            return LeaveResult(error)
        group = self._groups.get(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return LeaveResult(
                ErrorCode.NONE, tuple(LeftMember(each.member_id, each.instance_id, unknown) for each in members)
            )
        if group.state is GroupState.DEAD:
            return LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        left = group.leave(members, self._now_ms)
        self._replies.flush()
        return LeaveResult(ErrorCode.NONE, left)

    # Offsets

    def commit(self, request: CommitRequest, reply: CommitReply, now_ms: int) -> None:
        self._hear(now_ms)
        if error := self._refusal or self._refusal_of_id(request.group_id, may_be_empty=True):
            self._replies.add(reply, CommitResult((error,) * len(request.offsets)))
        else:
            self._offsets.commit(request, reply, self._now_ms)
        self._replies.flush()

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition] | None = None) -> FetchResult:
        """None asks for all. Pending transactions do not exist, so "require stable" makes no difference."""
        if self._refusal is not ErrorCode.NONE:
            return FetchResult(self._refusal)
        return self._offsets.fetch(group_id, partitions)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], reply: DeleteOffsetsReply) -> None:
        if error := self._refusal or self._refusal_of_id(group_id):
            self._replies.add(reply, DeleteOffsetsResult(error))
        else:
            self._offsets.delete(group_id, partitions, reply)
        self._replies.flush()

    def forget_topic(self, topic: str, reply: Callable[[ErrorCode], None]) -> None:
        """A topic was deleted, and its offsets with it. Ask again if it fails."""
        if self._refusal is not ErrorCode.NONE:
            self._replies.add(reply, self._refusal)
        else:
            self._offsets.forget_topic(topic, reply)
        self._replies.flush()

    def topics(self) -> set[str]:
        """Topics with committed offsets: after loading, those that are gone meanwhile are to be forgotten."""
        return {topic for group in self._groups.values() for topic, _ in group.offsets.committed}

    # Administration

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> tuple[ErrorCode, tuple[ListedGroup, ...]]:
        if self._refusal is not ErrorCode.NONE:
            return self._refusal, ()
        states, types = frozenset(states), frozenset(types)
        groups = (group for group in self._groups.values() if is_listed(group, states, types))
        return ErrorCode.NONE, tuple(listed(group) for group in groups)

    def describe(self, group_id: str) -> DescribedGroup:
        """Of a group that does not exist: GROUP_ID_NOT_FOUND and Dead. Below version 6 the error is to be NONE."""
        if self._refusal is not ErrorCode.NONE:
            return DescribedGroup(self._refusal, group_id, "")
        group = self._groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, group_id, GroupState.DEAD.value)
        return described(group)

    def delete_groups(self, group_ids: Sequence[str], reply: DeleteGroupsReply) -> None:
        """One answer for all, when the last deletion is durable."""
        results: dict[str, ErrorCode] = {}
        doomed: dict[str, Group] = {}
        for group_id in group_ids:
            group = self._groups.get(group_id)
            if self._refusal is not ErrorCode.NONE:
                results[group_id] = self._refusal
            elif group is None or group.state is GroupState.DEAD:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                doomed[group_id] = group
        left = len(doomed)

        def deleted(group_id: str, error: ErrorCode) -> None:
            nonlocal left
            results[group_id] = response_error(error)
            left -= 1
            if left == 0:
                self._replies.add(reply, results)

        for group_id, group in doomed.items():
            self._offsets.delete_group(group, lambda error, group_id=group_id: deleted(group_id, error))
        if not doomed:
            self._replies.add(reply, results)
        self._replies.flush()

    # Inside

    def _hear(self, now_ms: int) -> None:
        self._now_ms = max(self._now_ms, now_ms)
        if self._late:
            for group in self._late.values():
                group.rebalance.restart_late_sessions(self._now_ms)
            self._late.clear()

    def _create(self, group_id: str, now_ms: int) -> Group | None:
        return self._add(group_id, now_ms) if len(self._groups) < self._settings.groups_max else None

    def _add(self, group_id: str, now_ms: int) -> Group:
        group = Group(group_id, self._settings, self._rng, self._timers, self._replies, self._persist, now_ms)
        self._groups[group_id] = group
        return group

    def _persist(self, image: GroupImage, done: Callable[[ErrorCode, int], None]) -> None:
        group = self._groups[image.group_id]
        key, value = group_record(image.group_id, image)

        def ended(error: ErrorCode) -> None:
            if self._refusal is not ErrorCode.NONE:
                return  # unloaded, and everybody told
            if error is ErrorCode.NONE:
                group.durable = image
            done(error, self._now_ms)
            if group.rebalance.late:
                self._late[group.group_id] = group

        if value is not None and len(value) > self._settings.group_record_bytes_max:
            ended(ErrorCode.MESSAGE_TOO_LARGE)
        else:
            self._writer.write([(key, value)], ended)

    def _refusal_of_join(self, request: JoinRequest) -> ErrorCode:
        if error := self._refusal_of_id(request.group_id):
            return error
        settings = self._settings
        if not settings.session_timeout_ms_min <= request.session_timeout_ms <= settings.session_timeout_ms_max:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        static_id = (request.instance_id or "") + " " * MEMBER_ID_SUFFIX_LENGTH
        names = [request.client_id, request.client_host, static_id, request.protocol_type]
        names += (protocol.name for protocol in request.protocols)
        size = sum(map(len, names)) + sum(len(protocol.metadata) for protocol in request.protocols)
        fits = size <= settings.member_bytes_max and all(fits_string(name) for name in names)
        return ErrorCode.NONE if fits else ErrorCode.INVALID_REQUEST

    def _refusal_of_id(self, group_id: str, may_be_empty: bool = False) -> ErrorCode:
        """A group with members must have a name; offsets could always be kept without one."""
        if (group_id or may_be_empty) and fits_string(group_id):
            return ErrorCode.NONE
        return ErrorCode.INVALID_GROUP_ID


def _normal(request: JoinRequest) -> JoinRequest:
    """Times as they count, and each protocol once."""
    old = request.version < REBALANCE_TIMEOUT_VERSION
    timeout_ms = request.session_timeout_ms if old else max(request.rebalance_timeout_ms, 0)
    first = {protocol.name: protocol for protocol in reversed(request.protocols)}
    protocols = tuple(protocol for protocol in request.protocols if first[protocol.name] is protocol)
    return replace(request, rebalance_timeout_ms=timeout_ms, protocols=protocols)
