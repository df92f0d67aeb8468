"""What scenarios are written with: a client, its consumers, and records."""

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

import pytest

from .driver import Driver, Refused

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ADMIN_COMMANDS = (
    "create_topic",
    "delete_topic",
    "list_topics",
    "describe_topic",
    "create_partitions",
    "alter_config",
    "describe_config",
    "delete_records",
    "list_offsets",
    "list_groups",
    "describe_group",
    "delete_group",
    "group_offsets",
)
# All that a driver may say its client lacks.
FEATURES = frozenset(
    {
        *CODECS,
        *ADMIN_COMMANDS,
        "headers",
        "timestamps",  # set by the application
        "record_batches",  # writes today's format, not that of before 0.11
        "idempotence",
        "describe_unknown",  # asks about a topic without letting the broker create it
        "offsets_by_time",
        "reset_none",  # auto.offset.reset=none
        "commit_offsets",  # commits offsets of one's choice
        "committed",
        "static_members",
        "fencing",  # tells the application that another member has taken its instance
    }
)

# How long a command may take before the driver counts as hung; what the command itself waits for comes on top.
COMMAND_TIMEOUT_S = 60
START_TIMEOUT_S = 60
# How long to wait for what must come. Generous: it costs nothing unless a test fails.
ARRIVAL_MS = 45_000

EVENTUALLY_STEP_S = 0.02

T = TypeVar("T")
Place = int | str | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True, slots=True)
class Consumed:
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where a record went, or the code of the error that refused it."""

    partition: int | None = None
    offset: int | None = None
    refused: int | None = None
    message: str = ""


def at_time(time_ms: int) -> Place:
    return {"time": time_ms}


def eventually(ask: Callable[[], T], expected: T) -> None:
    """What an admin has changed shows when the node that is asked has heard of it. Holds that this comes, in time."""
    deadline = time.monotonic() + ARRIVAL_MS / 1000
    while True:
        try:
            found: object = ask()
        except Refused as refused:
            found = refused
        if found == expected:
            return
        assert time.monotonic() < deadline, f"{found} instead of {expected}, still"
        time.sleep(EVENTUALLY_STEP_S)


def _encode(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _decode(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


class Consumer:
    def __init__(self, driver: Driver, name: str) -> None:
        self._driver = driver
        self.name = name

    def poll(self, count: int, timeout_ms: int = ARRIVAL_MS) -> list[Consumed]:
        """`count` records, or fewer when time is up."""
        fields = {"consumer": self.name, "count": count, "timeout_ms": timeout_ms}
        answer = self._driver.call("poll", COMMAND_TIMEOUT_S + timeout_ms / 1000, **fields)
        return [
            Consumed(
                each["topic"],
                each["partition"],
                each["offset"],
                each["timestamp"],
                _decode(each["key"]),
                _decode(each["value"]),
                tuple((name, _decode(data)) for name, data in each["headers"]),
            )
            for each in answer["records"]
        ]

    def values(self, count: int, timeout_ms: int = ARRIVAL_MS) -> list[bytes | None]:
        return [record.value for record in self.poll(count, timeout_ms)]

    def commit(self, offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        chosen = None if offsets is None else [[topic, number, offset] for (topic, number), offset in offsets.items()]
        self._driver.call("commit", COMMAND_TIMEOUT_S, consumer=self.name, offsets=chosen)

    def committed(self, topic: str, partition: int) -> int | None:
        fields = {"consumer": self.name, "topic": topic, "partition": partition}
        return self._driver.call("committed", COMMAND_TIMEOUT_S, **fields)["offset"]

    def close(self) -> None:
        self._driver.call("close", COMMAND_TIMEOUT_S, consumer=self.name)


class Client:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._names = (f"c{number}" for number in count())
        hello = driver.call("hello", START_TIMEOUT_S)
        self.version: str = hello["client"]
        self._lacks: dict[str, str] = hello["lacks"]
        assert self._lacks.keys() <= FEATURES, (
            f"{driver.name} lacks what nobody asks for: {self._lacks.keys() - FEATURES}"
        )

    def needs(self, *features: str) -> None:
        """Skip the scenario when the client lacks one of these."""
        for feature in features:
            assert feature in FEATURES, feature
            if feature in self._lacks:
                pytest.skip(f"{self._driver.name} lacks {feature}: {self._lacks[feature]}")

    def has(self, feature: str) -> bool:
        assert feature in FEATURES, feature
        return feature not in self._lacks

    def produce(
        self, topic: str, records: Iterable[Record], codec: str = "none", idempotent: bool = False, acks: int = -1
    ) -> list[Delivery]:
        outgoing = [
            {
                "partition": record.partition,
                "key": _encode(record.key),
                "value": _encode(record.value),
                "headers": [[name, _encode(data)] for name, data in record.headers],
                "timestamp": record.timestamp_ms,
            }
            for record in records
        ]
        fields = {"topic": topic, "codec": codec, "idempotent": idempotent, "acks": acks, "records": outgoing}
        results = self._driver.call("produce", COMMAND_TIMEOUT_S, **fields)["results"]
        return [
            Delivery(refused=each["error"]["code"] or -1, message=each["error"]["message"])
            if "error" in each
            else Delivery(each["partition"], each["offset"])
            for each in results
        ]

    def wrote(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Produce, and hold that all of it was taken."""
        deliveries = self.produce(topic, [Record(value, partition=partition) for value in values])
        assert [each.refused for each in deliveries] == [None] * len(values), deliveries

    def read(self, topic: str, at: Place, partition: int = 0, reset: str = "earliest") -> Consumer:
        """A consumer without a group, which starts at `at`."""
        return self._open(assign=[{"topic": topic, "partition": partition, "at": at}], reset=reset)

    def join(self, group: str, topic: str, reset: str = "earliest", instance: str | None = None) -> Consumer:
        return self._open(group=group, topics=[topic], reset=reset, instance=instance)

    def _open(self, reset: str, group=None, topics=None, assign=None, instance=None) -> Consumer:
        name = next(self._names)
        fields = {"group": group, "topics": topics, "assign": assign, "reset": reset, "instance": instance}
        self._driver.call("open", COMMAND_TIMEOUT_S, consumer=name, **fields)
        return Consumer(self._driver, name)

    def settle(self, *consumers: Consumer, partitions: int) -> list[set[int]]:
        """Wait until these members share out `partitions` partitions; who has which."""
        names = [consumer.name for consumer in consumers]
        fields = {"consumers": names, "partitions": partitions, "timeout_ms": ARRIVAL_MS}
        answer = self._driver.call("settle", COMMAND_TIMEOUT_S + ARRIVAL_MS / 1000, **fields)
        return [{number for _, number in answer["assignments"][name]} for name in names]

    def admin(self, command: str, **fields: Any) -> dict[str, Any]:
        self.needs(command)
        return self._driver.call(command, COMMAND_TIMEOUT_S, **fields)

    def refused(self, command: str, **fields: Any) -> int | None:
        """The code with which this command is refused; fails when it is not."""
        try:
            answer = self.admin(command, **fields)
        except Refused as refused:
            return refused.code
        raise AssertionError(f"{command} {fields} was not refused: {answer}")

    def reset(self) -> None:
        self._driver.call("reset", COMMAND_TIMEOUT_S)
