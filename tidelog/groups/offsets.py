"""The committed offsets of one group.

An offset is in `committed` only once it is durable. While a commit is on its way to the journal its partition is
`pending`: it is never expired, and whoever deletes must delete it too, for its record comes first in the journal.

An offset expires when it has been idle for the retention time, counted from its commit; when its group has members of
which the last left later than that, from then. A commit of old (OffsetCommit 2 to 4) may carry its own time instead.

Cost: commit, fetch O(1) a partition; expiry and the deletion of a topic O(offsets).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tidelog.groups.messages import TopicPartition

NO_EXPIRY = -1


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    commit_ms: int
    expire_ms: int = NO_EXPIRY
    """When the client wanted it gone; NO_EXPIRY leaves it to the retention time."""

    def is_expired(self, now_ms: int, retention_ms: int, in_use_until_ms: int) -> bool:
        if self.expire_ms != NO_EXPIRY:
            return now_ms >= self.expire_ms
        return now_ms - max(self.commit_ms, in_use_until_ms) >= retention_ms


class Offsets:
    __slots__ = ("committed", "pending")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[TopicPartition, int] = {}
        """Partition -> how many commits of it are on their way, at least 1."""

    def __contains__(self, partition: TopicPartition) -> bool:
        """Committed or about to be."""
        return partition in self.committed or partition in self.pending

    def __len__(self) -> int:
        new = sum(1 for partition in self.pending if partition not in self.committed)
        return len(self.committed) + new

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these set out."""
        for partition in partitions:
            self.pending[partition] = self.pending.get(partition, 0) + 1

    def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Commits of these arrived, or failed."""
        for partition in partitions:
            count = self.pending[partition] - 1
            if count:
                self.pending[partition] = count
            else:
                del self.pending[partition]

    def apply(self, offsets: Iterable[tuple[TopicPartition, CommittedOffset]]) -> None:
        self.committed.update(offsets)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self.committed.pop(partition, None)

    def all_partitions(self) -> list[TopicPartition]:
        return list(self.committed.keys() | self.pending.keys())

    def of_topic(self, topic: str) -> list[TopicPartition]:
        return [partition for partition in self.all_partitions() if partition[0] == topic]

    def expired(
        self, now_ms: int, retention_ms: int, in_use_until_ms: int, is_kept: Callable[[str], bool]
    ) -> list[TopicPartition]:
        """Those to delete now; `is_kept` says of a topic whether it is subscribed."""
        return [
            partition
            for partition, offset in self.committed.items()
            if partition not in self.pending
            and offset.is_expired(now_ms, retention_ms, in_use_until_ms)
            and not is_kept(partition[0])
        ]
