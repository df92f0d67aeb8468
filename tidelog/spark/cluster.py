"""A cluster as source and sink see it: which topics and leaders there are, what a partition holds, a link to a node.

Questions are asked again, of whoever leads then, until they are answered or the time for them is over (`NoAnswer`).
A partition's leader is remembered until somebody says it is wrong (`start_anew`).

Not thread-safe: each task and each stream reader has its own.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from tidelog.spark.errors import NoAnswer
from tidelog.spark.kernel.offsets import EARLIEST, LATEST, Offsets, Partition
from tidelog.spark.kernel.options import Address, Subscription
from tidelog.spark.kernel.security_options import PLAINTEXT, Security
from tidelog.spark.link import Link, LinkFailed, error_name
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
)

ANSWER_S_MAX = 60.0  # for a question, over all tries: longer than any election
UNKNOWN_TOPIC_S_MAX = 5.0  # until a topic that nobody knows is taken for missing
PAUSE_S_FIRST, PAUSE_S_MAX = 0.02, 1.0  # between tries, doubling

RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a node that has not heard of it yet
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.CORRUPT_MESSAGE,  # of what was sent, on its way
    }
)

T = TypeVar("T")


class TryAgain(Exception):
    """What was asked cannot be answered now; the message says why."""


class UnknownTopic(TryAgain):
    """The node that was asked knows no such topic; it may be too new."""


class Patience:
    """Tries with growing pauses, until `seconds` have passed without `progress`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.progress()

    def progress(self) -> None:
        self._give_up = time.monotonic() + self._seconds
        self._pause_s = PAUSE_S_FIRST

    def wait(self) -> bool:
        """Pause before the next try; False when there is none left."""
        if time.monotonic() + self._pause_s > self._give_up:
            return False
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)
        return True


class Cluster:
    def __init__(
        self,
        bootstrap: Sequence[Address],
        request_s: float,
        answer_s: float = ANSWER_S_MAX,
        security: Security = PLAINTEXT,
    ) -> None:
        self._bootstrap = list(bootstrap)
        self._request_s = request_s
        self._answer_s = answer_s
        self._security = security
        self._links: dict[Address, Link] = {}  # for questions, each answered before the next is asked
        self._work: dict[Address, Link] = {}  # for callers, who may have many requests in flight
        self._nodes: dict[int, Address] = {}
        self._leaders: dict[Partition, int] = {}
        self._topic_ids: dict[str, UUID] = {}  # as of the last answer that named the topic
        self._cluster_id: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def sibling(self) -> "Cluster":
        """The same cluster, with links of its own."""
        return Cluster(self._bootstrap, self._request_s, self._answer_s, self._security)

    def close(self) -> None:
        self._close_questions()
        for address in list(self._work):
            self.drop(address)

    # --- questions ---

    def partitions(self, subscription: Subscription) -> list[Partition]:
        """Every partition that is subscribed to, in order. A pattern may match none; a named topic must be there."""
        if subscription.partitions:
            known = self.topics(dict.fromkeys(topic for topic, _ in subscription.partitions))
            for topic, partition in subscription.partitions:
                if partition >= known[topic]:
                    raise NoAnswer(f"topic {topic} has no partition {partition}: it has {known[topic]}")
            return list(subscription.partitions)
        if subscription.pattern is not None:
            matches = re.compile(subscription.pattern).fullmatch
            found = {topic: count for topic, count in self.topics(None).items() if matches(topic)}
        else:
            found = self.topics(subscription.topics)
        return sorted((topic, partition) for topic, count in found.items() for partition in range(count))

    def topics(self, names: Iterable[str] | None) -> dict[str, int]:
        """How many partitions each topic has; of all topics but the cluster's own when none is named."""
        asked = None if names is None else list(names)
        return self._until_answered(lambda: self._ask_topics(asked))

    def identities(self, names: Iterable[str]) -> tuple[str | None, dict[str, UUID]]:
        """The cluster's id and those of topics: a topic that is made anew has another one."""
        topics = self.topics(names)
        return self._cluster_id, {name: self._topic_ids[name] for name in topics}

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        return self.at_times(dict.fromkeys(partitions, EARLIEST))

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        """The offset behind the last that may be read, of each."""
        return self.at_times(dict.fromkeys(partitions, LATEST))

    def at_times(self, times: Mapping[Partition, int]) -> Offsets:
        """The first offset that is not older than the time; -1 when none is. EARLIEST and LATEST are times too."""
        found: Offsets = {}

        def ask() -> Offsets:
            by_node: dict[Address, list[Partition]] = {}
            for place in times.keys() - found.keys():
                by_node.setdefault(self.leader(place), []).append(place)
            for address, places in by_node.items():
                found.update(self._ask_offsets(address, {place: times[place] for place in places}))
            return found

        return self._until_answered(ask)

    # --- nodes ---

    def leader(self, place: Partition) -> Address:
        """Where the partition's leader is; TryAgain when nobody leads."""
        if place not in self._leaders:
            self._ask_topics([place[0]])
        if place not in self._leaders:
            raise TryAgain(f"{place[0]}-{place[1]} has no leader")
        return self._nodes[self._leaders[place]]

    def start_anew(self) -> None:
        """Forget links and leaders: something failed, and nothing of the sort is known for sure."""
        self.close()
        self._leaders.clear()

    def link(self, address: Address) -> Link:
        """A link to a node, for the caller's own requests; LinkFailed when it cannot be had."""
        link = self._work.get(address)
        if link is None:
            link = self._work[address] = Link(*address, self._request_s, self._security)
        return link

    def drop(self, address: Address) -> None:
        """Close the caller's link to a node: the answers that are still to come are of no use."""
        link = self._work.pop(address, None)
        if link is not None:
            link.close()

    # --- parts ---

    def _until_answered(self, ask: Callable[[], T]) -> T:
        patience = Patience(self._answer_s)
        begun = time.monotonic()
        while True:
            try:
                return ask()
            except (TryAgain, LinkFailed) as failure:
                self._close_questions()
                self._leaders.clear()
                if isinstance(failure, UnknownTopic) and time.monotonic() - begun > UNKNOWN_TOPIC_S_MAX:
                    raise NoAnswer(f"{failure}: make it first, or correct its name") from None
                if not patience.wait():
                    where = ",".join(f"{host}:{port}" for host, port in self._bootstrap)
                    raise NoAnswer(f"no answer from {where} in {self._answer_s:.0f} s: {failure}") from None

    def _ask_topics(self, names: Sequence[str] | None) -> dict[str, int]:
        asked = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        answer = self._ask_anyone(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
        self._cluster_id = answer.cluster_id
        self._nodes |= {node.node_id: (node.host, node.port) for node in answer.brokers}
        counts: dict[str, int] = {}
        for topic in answer.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopic(f"there is no topic {topic.name}")
            if topic.error_code in RETRIABLE:
                raise TryAgain(f"topic {topic.name}: {error_name(topic.error_code)}")
            if topic.error_code:
                raise NoAnswer(f"topic {topic.name}: the cluster answers {error_name(topic.error_code)}")
            self._topic_ids[topic.name] = topic.topic_id
            if names is not None or not topic.is_internal:
                counts[topic.name] = len(topic.partitions)
            for partition in topic.partitions:
                self._leaders.pop((topic.name, partition.partition_index), None)
                if partition.leader_id in self._nodes:
                    self._leaders[topic.name, partition.partition_index] = partition.leader_id
        return counts

    def _ask_anyone(self, request: object) -> Any:
        """Nodes with a link first, then those that are known, then those that were named."""
        reasons: list[str] = []
        for address in dict.fromkeys([*self._links, *self._nodes.values(), *self._bootstrap]):
            try:
                return self._question_link(address).ask(request)
            except LinkFailed as failure:
                self._links.pop(address, None)
                reasons.append(str(failure))
        raise TryAgain("; ".join(reasons))

    def _question_link(self, address: Address) -> Link:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = Link(*address, self._request_s, self._security)
        return link

    def _close_questions(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _ask_offsets(self, address: Address, times: Mapping[Partition, int]) -> Offsets:
        topics: dict[str, list[ListOffsetsRequestPartition]] = {}
        for (topic, partition), time_ms in times.items():
            asked = ListOffsetsRequestPartition(partition_index=partition, timestamp=time_ms)
            topics.setdefault(topic, []).append(asked)
        request = ListOffsetsRequest(
            topics=[ListOffsetsRequestTopic(name=name, partitions=asked) for name, asked in topics.items()],
            timeout_ms=int(self._request_s * 1000),
        )
        found: Offsets = {}
        failed = None
        for topic in self._question_link(address).ask(request).topics:
            for partition in topic.partitions:
                where = f"{topic.name}-{partition.partition_index}"
                if partition.error_code in RETRIABLE:
                    failed = TryAgain(f"{where}: {error_name(partition.error_code)}")
                elif partition.error_code:
                    raise NoAnswer(f"{where}: its leader answers {error_name(partition.error_code)}")
                else:
                    found[topic.name, partition.partition_index] = partition.offset
        if failed is not None:
            raise failed
        return found
