"""The consumer groups of this node: one coordinator for each partition of the internal topic that the node leads.

A coordinator lives from the moment its stream is led from here, and everything before is committed, until it no longer
is. It is loaded from the stream, writes what must last to it, and once in a while a snapshot, up to which the stream's
log start then moves (D8).
"""

import asyncio
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.groups import Coordinator, GroupSettings, is_snapshot_begin, is_snapshot_end, partition_of
from tidelog.groups import Record as JournalRecord
from tidelog.groups.image import Image
from tidelog.raft import Reason, Refusal
from tidelog.server.clock import now_ms, wall_ms
from tidelog.server.replica import Replica
from tidelog.server.settings import Settings
from tidelog.server.topics import TopicError, create_topic, until
from tidelog.wire.errors import ErrorCode
from tidelog.wire.records import Record, build_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.server.broker import Broker

TOPIC = "__consumer_offsets"
APPEND_TIMEOUT_MS = 30_000
CREATE_TIMEOUT_MS = 10_000
SNAPSHOT_EVERY = 20_000  # records; but not before there are as many as the last snapshot had


def group_settings(settings: Settings) -> GroupSettings:
    return GroupSettings(
        session_timeout_ms_min=settings.group_min_session_timeout_ms,
        session_timeout_ms_max=settings.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
        offsets_retention_ms=settings.group_offsets_retention_ms,
        members_max=settings.group_max_size,
        group_record_bytes_max=min(16 << 20, settings.storage_segment_bytes // 4),
        snapshot_append_bytes_max=min(1 << 20, settings.storage_segment_bytes // 4),
    )


class Seat:
    """One partition of the internal topic, and its coordinator while this node leads it."""

    def __init__(self, replica: Replica, settings: GroupSettings, topic_exists: "Callable[[str], bool]") -> None:
        self.replica = replica
        self._settings = settings
        self._topic_exists = topic_exists
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._clock_offset_ms = wall_ms() - now_ms()  # sessions must not feel the wall clock being set
        self._records_since_snapshot = 0
        self._snapshot_offset = -1  # where the last one begins
        self._snapshot_records = 0
        self._loaded_topics: set[str] = set()  # that had offsets when we began; nobody has looked yet if they exist
        self.coordinator: Coordinator | None = None
        replica.on_leadership = self._leadership_changed
        self._leadership_changed()

    def now(self) -> int:
        return now_ms() + self._clock_offset_ms

    def touched(self) -> None:
        """The coordinator was asked something: it may want to be woken sooner."""
        if self.coordinator is None:
            return
        deadline_ms = self.coordinator.next_deadline_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer = self._loop.call_later(max(0, deadline_ms - self.now()) / 1000, self._tick)

    def close(self) -> None:
        self._unload()
        self.replica.on_leadership = None

    def forget_topic(self, topic: str) -> None:
        if self.coordinator is not None:
            self.coordinator.forget_topic(topic, _whatever)
            self.touched()

    def known_to_lead(self, term: int) -> None:
        """The cluster's state, as it is here, says that this node leads in `term`.

        It was told so after everything was loaded, so it knows all topics that had offsets by then: those that are
        missing are deleted. Before, they may be missing because this copy of the state is behind.
        """
        if self.coordinator is None or term != self.replica.group.term:
            return
        topics, self._loaded_topics = self._loaded_topics, set()
        for topic in topics:
            if not self._topic_exists(topic):
                self.forget_topic(topic)

    def _leadership_changed(self) -> None:
        if self.replica.ready and self.coordinator is None:
            self._load()
        elif not self.replica.leads and self.coordinator is not None:
            self._unload()

    def _load(self) -> None:
        self.coordinator = coordinator = Coordinator(self._settings, random.Random(), self._append)
        self._records_since_snapshot = 0
        image = Image()
        for record in self.replica.records(0):
            image.apply(record.key or b"", record.value)
            self._count(record.key or b"", record.offset)
        coordinator.start(image, self.now())
        self._loaded_topics = coordinator.topics()
        self.touched()

    def _unload(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            coordinator.unload(ErrorCode.NOT_COORDINATOR)

    def _tick(self) -> None:
        self._timer = None
        if self.coordinator is not None:
            self.coordinator.tick(self.now())
            self.touched()

    # The journal

    def _append(self, records: Sequence[JournalRecord], done: "Callable[[ErrorCode], None]") -> None:
        replica, coordinator = self.replica, self.coordinator
        time_ms = wall_ms()
        batch = build_batch([Record(value, key, time_ms) for key, value in records])

        def committed(refusal: Refusal | None) -> None:
            done(ErrorCode.NONE if refusal is None else _error(refusal))
            if self.coordinator is coordinator:
                self.touched()

        offset = replica.append([batch], len(records), None, replica.now() + APPEND_TIMEOUT_MS, committed)
        for number, (key, _) in enumerate(records):
            self._count(key, offset + number)
        if self._snapshot_due and coordinator is not None:
            self._loop.call_soon(self._write_snapshot, coordinator)

    def _count(self, key: bytes, offset: int) -> None:
        """A snapshot's own records do not count, else a large one would call for the next."""
        self._records_since_snapshot += 1
        if is_snapshot_begin(key):
            self._snapshot_offset = offset
        elif is_snapshot_end(key):
            self._snapshot_records = offset - self._snapshot_offset
            self._records_since_snapshot = 0

    @property
    def _snapshot_due(self) -> bool:
        return self._records_since_snapshot >= max(SNAPSHOT_EVERY, self._snapshot_records)

    def _write_snapshot(self, coordinator: Coordinator) -> None:
        if self.coordinator is coordinator and self._snapshot_due:  # else it was begun meanwhile
            coordinator.write_snapshot(self._snapshot_written)

    def _snapshot_written(self, error: ErrorCode) -> None:
        if error is ErrorCode.NONE and self.replica.leads:
            deadline_ms = self.replica.now() + APPEND_TIMEOUT_MS
            self.replica.move_start(self._snapshot_offset, deadline_ms, _nothing)


class Coordinators:
    """The seats of this node, by partition."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        self._settings = group_settings(broker.settings)
        self._seats: dict[int, Seat] = {}

    def carried(self) -> None:
        """The internal topic, its place on this node, or who leads it has changed."""
        topic = self._broker.topic_of(TOPIC)
        for number, partition in enumerate(topic.partitions if topic is not None else ()):
            replica = self._broker.node.replicas.get(partition.stream)
            seat = self._seats.get(number)
            if seat is not None and seat.replica is not replica:  # the stream left this node, and may have come back
                self._seats.pop(number).close()
                seat = None
            if replica is not None and seat is None:
                seat = Seat(replica, self._settings, lambda name: name in self._broker.state.topics)
                self._seats[number] = seat
            if seat is not None and partition.leader == self._broker.settings.node_id:
                seat.known_to_lead(partition.term)

    def close(self) -> None:
        for seat in self._seats.values():
            seat.close()

    async def partition_of(self, group_id: str) -> int | None:
        """The partition of the internal topic that holds the group; the topic is made when it is missing."""
        topic = self._broker.topic_of(TOPIC)
        if topic is None:
            deadline_ms = self._broker.now() + CREATE_TIMEOUT_MS
            partitions = self._broker.settings.group_partitions
            try:
                topic = await create_topic(self._broker, TOPIC, partitions, internal=True, deadline_ms=deadline_ms)
            except TopicError:
                topic = self._broker.topic_of(TOPIC)
            if topic is None:
                return None
        return partition_of(group_id, len(topic.partitions))

    async def node_of(self, group_id: str) -> int:
        """The node where the group's coordinator is; -1 when that is not known now."""
        number = await self.partition_of(group_id)
        topic = self._broker.topic_of(TOPIC)
        return -1 if number is None or topic is None else self._broker.leader_node(topic.partitions[number].stream)

    async def seat_of(self, group_id: str) -> tuple[Seat, Coordinator] | ErrorCode:
        """The coordinator of a group, or what a client is told instead."""
        number = await self.partition_of(group_id)
        if number is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        seat = self._seats.get(number)
        if seat is None or not seat.replica.leads:
            return ErrorCode.NOT_COORDINATOR
        replica = seat.replica
        if seat.coordinator is None:
            await until(replica, lambda: replica.ready, CREATE_TIMEOUT_MS)
        if seat.coordinator is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return seat, seat.coordinator

    def all(self) -> list[Coordinator]:
        """Those that are loaded."""
        return [seat.coordinator for seat in self._seats.values() if seat.coordinator is not None]

    def topic_deleted(self, name: str) -> None:
        for seat in self._seats.values():
            seat.forget_topic(name)


def _error(refusal: Refusal) -> ErrorCode:
    if refusal.reason in (Reason.NOT_LEADER, Reason.LEADERSHIP_LOST, Reason.TRANSFERRING):
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


def _whatever(_error: ErrorCode) -> None:
    """If it failed, the next coordinator does it again."""


def _nothing(_refusal: Refusal | None) -> None:
    """If the log start did not move, the next snapshot moves it."""
