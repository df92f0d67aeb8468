"""Committing, fetching and deleting offsets of any group.

Memory follows the journal: an offset is seen by OffsetFetch only when it is durable, and gone only when its deletion
is. Appends end in order, so memory passes through the states of the journal one by one.

Offsets that nobody used for the retention time are swept in the background, some groups a tick; a group without
members goes with its last offset.
"""

from collections.abc import Callable, Sequence

from tidelog.groups.group import Group
from tidelog.groups.journal import Record, fits_string, group_record, offset_record
from tidelog.groups.messages import (
    CommitReply,
    CommitRequest,
    CommitResult,
    DeleteOffsetsReply,
    DeleteOffsetsResult,
    FetchedOffset,
    FetchResult,
    OffsetToCommit,
    TopicPartition,
)
from tidelog.groups.offsets import NO_EXPIRY, CommittedOffset
from tidelog.groups.rebalance import GroupState, response_error
from tidelog.groups.replies import Replies
from tidelog.groups.settings import GroupSettings
from tidelog.groups.views import is_subscribed, offsets_in_use_until_ms
from tidelog.groups.writer import Writer
from tidelog.wire.errors import ErrorCode

GROUP_ID_NOT_FOUND_VERSION = 9
"""From this OffsetCommit on, a member of an unknown group is told so; before, that its generation is wrong."""

TIME_MS_MAX = 2**63 - 1
"""The last moment the journal can tell."""


class OffsetRequests:
    def __init__(
        self,
        groups: dict[str, Group],
        create: Callable[[str, int], Group | None],
        settings: GroupSettings,
        writer: Writer,
        replies: Replies,
    ) -> None:
        """`create` makes a group, or None when there are too many."""
        self._groups = groups
        self._create = create
        self._settings = settings
        self._writer = writer
        self._replies = replies
        self._to_sweep: list[str] = []

    def commit(self, request: CommitRequest, reply: CommitReply, now_ms: int) -> None:
        group, error = self._group_to_commit(request, now_ms)
        if group is None or error is not ErrorCode.NONE:
            self._replies.add(reply, CommitResult((error,) * len(request.offsets)))
            return
        expire_ms = NO_EXPIRY if request.retention_ms < 0 else min(now_ms + request.retention_ms, TIME_MS_MAX)
        accepted: dict[TopicPartition, CommittedOffset] = {}
        errors: list[ErrorCode] = []
        room = self._settings.offsets_max - len(group.offsets)
        for offset in request.offsets:
            partition = (offset.topic, offset.partition)
            error = self._refusal_of(offset)
            if error is ErrorCode.NONE and partition not in accepted and partition not in group.offsets:
                error = ErrorCode.NONE if room > 0 else ErrorCode.POLICY_VIOLATION
                room -= 1
            if error is ErrorCode.NONE:
                epoch = offset.leader_epoch if expire_ms == NO_EXPIRY else -1
                accepted[partition] = CommittedOffset(offset.offset, epoch, offset.metadata or "", now_ms, expire_ms)
            errors.append(error)
        if not accepted:
            self._replies.add(reply, CommitResult(tuple(errors)))
            return
        group.offsets.begin(accepted)

        def done(error: ErrorCode) -> None:
            group.offsets.end(accepted)
            if error is ErrorCode.NONE:
                group.offsets.apply(accepted.items())
            failed = response_error(error)
            result = CommitResult(tuple(each or failed for each in errors))
            self._replies.add(reply, result)

        self._writer.write([offset_record(group.group_id, *entry) for entry in accepted.items()], done)

    def fetch(self, group_id: str, partitions: Sequence[TopicPartition] | None) -> FetchResult:
        group = self._groups.get(group_id)
        committed = group.offsets.committed if group is not None else {}
        offsets: list[FetchedOffset] = []
        for partition in committed if partitions is None else partitions:
            found = committed.get(partition)
            if found is None:
                offsets.append(FetchedOffset(*partition))
            else:
                offsets.append(FetchedOffset(*partition, found.offset, found.leader_epoch, found.metadata))
        return FetchResult(ErrorCode.NONE, tuple(offsets))

    def delete(self, group_id: str, partitions: Sequence[TopicPartition], reply: DeleteOffsetsReply) -> None:
        group = self._groups.get(group_id)
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else group.refusal_of_offset_deletion()
        if group is None or error is not ErrorCode.NONE:
            self._replies.add(reply, DeleteOffsetsResult(error))
            return
        subscribed = {topic for topic, _ in partitions if is_subscribed(group, topic)}
        doomed = [each for each in dict.fromkeys(partitions) if each in group.offsets and each[0] not in subscribed]

        def done(error: ErrorCode) -> None:
            failed = response_error(error)
            errors = (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if topic in subscribed else failed for topic, _ in partitions)
            self._replies.add(reply, DeleteOffsetsResult(ErrorCode.NONE, tuple(errors)))

        if doomed:
            self._delete(group, doomed, done)
        else:
            done(ErrorCode.NONE)

    def forget_topic(self, topic: str, reply: Callable[[ErrorCode], None]) -> None:
        """Delete every group's offsets of a topic that is gone. NONE when that is durable."""
        doomed = [(group, group.offsets.of_topic(topic)) for group in self._groups.values()]
        doomed = [(group, partitions) for group, partitions in doomed if partitions]
        if not doomed:
            self._replies.add(reply, ErrorCode.NONE)
            return
        records = [
            offset_record(group.group_id, partition, None) for group, partitions in doomed for partition in partitions
        ]

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                for group, partitions in doomed:
                    group.offsets.remove(partitions)
            self._replies.add(reply, response_error(error))

        self._writer.write(records, done)

    def delete_group(self, group: Group, done: Callable[[ErrorCode], None]) -> None:
        """An empty group with all its offsets, in one append. It is Dead from now on, and gone when that ended well."""
        records: list[Record] = [
            offset_record(group.group_id, partition, None) for partition in group.offsets.all_partitions()
        ]
        records.append(group_record(group.group_id, None))
        group.bury()

        def deleted(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                group.close(ErrorCode.UNKNOWN_MEMBER_ID)
                self._groups.pop(group.group_id, None)
            else:
                group.revive()
            done(error)

        self._writer.write(records, deleted)

    # Sweeping

    @property
    def is_sweeping(self) -> bool:
        return bool(self._to_sweep)

    def start_sweep(self) -> None:
        self._to_sweep = list(self._groups)

    def sweep(self, now_ms: int) -> None:
        for _ in range(min(self._settings.sweep_groups_max, len(self._to_sweep))):
            group = self._groups.get(self._to_sweep.pop())
            if group is not None:
                self._sweep_group(group, now_ms)

    def _sweep_group(self, group: Group, now_ms: int) -> None:
        until_ms = offsets_in_use_until_ms(group)
        if until_ms is None:
            return
        retention_ms = self._settings.offsets_retention_ms
        expired = group.offsets.expired(now_ms, retention_ms, until_ms, lambda topic: is_subscribed(group, topic))
        left = len(group.offsets.committed) - len(expired) + len(group.offsets.pending)
        if group.is_blank:
            del self._groups[group.group_id]
        elif group.state is GroupState.EMPTY and not left and not group.roster.pending:
            self.delete_group(group, _ignore)  # if it fails, the next sweep finds it again
        elif expired:
            self._delete(group, expired, _ignore)

    def _delete(self, group: Group, partitions: list[TopicPartition], done: Callable[[ErrorCode], None]) -> None:
        def deleted(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                group.offsets.remove(partitions)
            done(error)

        self._writer.write([offset_record(group.group_id, partition, None) for partition in partitions], deleted)

    # Committing

    def _group_to_commit(self, request: CommitRequest, now_ms: int) -> tuple[Group | None, ErrorCode]:
        if len(self._writer) >= self._settings.appends_max:
            return None, ErrorCode.COORDINATOR_NOT_AVAILABLE
        group = self._groups.get(request.group_id)
        if group is not None:
            return group, group.refusal_of_commit(request, now_ms)
        if request.generation >= 0:
            known = request.version >= GROUP_ID_NOT_FOUND_VERSION
            return None, ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION
        group = self._create(request.group_id, now_ms)
        return group, ErrorCode.NONE if group is not None else ErrorCode.POLICY_VIOLATION

    def _refusal_of(self, offset: OffsetToCommit) -> ErrorCode:
        metadata = offset.metadata or ""
        if len(metadata.encode()) > self._settings.offset_metadata_bytes_max:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE
        return ErrorCode.NONE if fits_string(offset.topic) else ErrorCode.INVALID_TOPIC_EXCEPTION


def _ignore(_: ErrorCode) -> None:
    """Whoever started this did not wait for it."""
