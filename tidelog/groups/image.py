"""The state that a journal tells: its records folded together.

Records apply in order, each by itself. A snapshot is a run of ordinary records between two markers that says everything
there is to know; the begin marker's place is where a journal may be trimmed to. So that a crash in the middle of one is
harmless:

* What a snapshot says was true when its begin marker was appended, and nothing else is appended until its end marker
  is. Hence to apply its records one by one changes nothing, whether it is complete or not.
* From the begin marker on, records are applied to a fresh state too. The end marker, if it has the same id and counts
  as many records as were seen, makes the fresh state the state; else nothing happens. What a snapshot does not mention
  is gone with it; in a whole journal there is nothing of the kind, in a trimmed one there was never anything else.

Who trims must have seen the whole snapshot made durable. Cost: O(1) a record, and a second state while in a snapshot.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidelog.groups.errors import JournalError
from tidelog.groups.journal import (
    GroupImage,
    GroupKey,
    OffsetKey,
    Record,
    SnapshotBegin,
    decode_group,
    decode_key,
    decode_offset,
    decode_snapshot_begin,
    decode_snapshot_end,
    group_record,
    offset_record,
    snapshot_begin_record,
    snapshot_end_record,
)
from tidelog.groups.messages import TopicPartition
from tidelog.groups.offsets import CommittedOffset


@dataclass(slots=True)
class _Snapshot:
    """One whose begin marker was seen."""

    snapshot_id: int
    state: "Image"
    count: int = 0


@dataclass(slots=True)
class Image:
    """Equal when they tell the same, however they came to it."""

    groups: dict[str, GroupImage] = field(default_factory=dict[str, GroupImage])
    offsets: dict[str, dict[TopicPartition, CommittedOffset]] = field(
        default_factory=dict[str, dict[TopicPartition, CommittedOffset]]
    )
    """Group id -> its offsets, never empty."""

    snapshots_complete: int = field(default=0, compare=False)
    snapshots_incomplete: int = field(default=0, compare=False)
    _snapshot: _Snapshot | None = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(records: Iterable[Record]) -> "Image":
        image = Image()
        for key, value in records:
            image.apply(key, value)
        return image

    def apply(self, key: bytes, value: bytes | None) -> None:
        """Raises JournalError if the record cannot be understood; then the state is not to be used."""
        decoded = decode_key(key)
        if isinstance(decoded, OffsetKey):
            self._put_offset(decoded, decode_offset(value) if value is not None else None)
        elif isinstance(decoded, GroupKey):
            self._put_group(decoded.group_id, decode_group(decoded.group_id, value) if value is not None else None)
        elif value is None:
            raise JournalError(f"a snapshot marker has no value: {decoded}")
        elif isinstance(decoded, SnapshotBegin):
            decode_snapshot_begin(value)
            self._abandon_snapshot()
            self._snapshot = _Snapshot(decoded.snapshot_id, Image())
        else:
            self._end_snapshot(decoded.snapshot_id, decode_snapshot_end(value))

    def records(self) -> Iterator[Record]:
        for group_id, group in self.groups.items():
            yield group_record(group_id, group)
        for group_id, offsets in self.offsets.items():
            for partition, committed in offsets.items():
                yield offset_record(group_id, partition, committed)

    def snapshot(self, snapshot_id: int) -> list[Record]:
        """The whole state between two markers."""
        records = list(self.records())
        return [snapshot_begin_record(snapshot_id), *records, snapshot_end_record(snapshot_id, len(records))]

    def _put_offset(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        if committed is not None:
            self.offsets.setdefault(key.group_id, {})[key.partition] = committed
        else:
            of_group = self.offsets.get(key.group_id, {})
            of_group.pop(key.partition, None)
            if not of_group:
                self.offsets.pop(key.group_id, None)
        if self._snapshot is not None:
            self._snapshot.count += 1
            self._snapshot.state._put_offset(key, committed)

    def _put_group(self, group_id: str, group: GroupImage | None) -> None:
        if group is not None:
            self.groups[group_id] = group
        else:
            self.groups.pop(group_id, None)
        if self._snapshot is not None:
            self._snapshot.count += 1
            self._snapshot.state._put_group(group_id, group)

    def _end_snapshot(self, snapshot_id: int, count: int) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return  # its beginning was trimmed by a later one, or it was abandoned
        if snapshot.snapshot_id != snapshot_id or snapshot.count != count:
            self._abandon_snapshot()
            return
        self.groups, self.offsets = snapshot.state.groups, snapshot.state.offsets
        self.snapshots_complete += 1
        self._snapshot = None

    def _abandon_snapshot(self) -> None:
        if self._snapshot is not None:
            self.snapshots_incomplete += 1
            self._snapshot = None
