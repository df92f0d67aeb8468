"""What a test of the region WAL works with: a log, a namespace on it, nodes (WAL instances) and an outsider's eyes.

The outsider reads and writes the region's topics as any Kafka client would, so that a test sees what is really in the
log and not what the WAL believes.
"""

# pyright: reportPrivateImportUsage=false
# (confluent_kafka.admin documents these names as its API, but does not mark them as exported)

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from tidelog.regionwal import Entry, RegionWal, Settings

ASK_S_MAX = 20.0
NEVER_S = 0.0  # the background cleaner stays out of tests that clean by hand


@dataclass(frozen=True, slots=True)
class Log:
    name: str
    bootstrap: str


class World:
    def __init__(self, log: Log, namespace: str) -> None:
        self.log = log
        self.namespace = namespace
        self._nodes: list[RegionWal] = []
        self.admin = self.admin_of(log.bootstrap)

    @staticmethod
    def admin_of(bootstrap: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    # Nodes

    def settings(self, **more: Any) -> Settings:
        chosen = {"bootstrap": self.log.bootstrap, "namespace": self.namespace, "clean_period_s": NEVER_S, **more}
        return Settings(**chosen)

    def node(self, **settings: Any) -> RegionWal:
        """One more process that uses this namespace, as it were; closed when the test ends."""
        wal = RegionWal(self.settings(**settings))
        self._nodes.append(wal)
        return wal

    def close(self) -> None:
        for wal in self._nodes:
            wal.close()
        self._nodes.clear()
        del self.admin  # and its connection

    # The log from outside

    def data_topic(self, region: int) -> str:
        return f"{self.namespace}_data_{region}"

    def meta_topic(self, region: int) -> str:
        return f"{self.namespace}_meta_{region}"

    def topics(self) -> set[str]:
        return {name for name in self.admin.list_topics(timeout=ASK_S_MAX).topics if name.startswith(self.namespace)}

    def earliest(self, topic: str) -> int:
        return self._offset(topic, OffsetSpec.earliest())

    def latest(self, topic: str) -> int:
        return self._offset(topic, OffsetSpec.latest())

    def _offset(self, topic: str, spec: Any) -> int:
        place = TopicPartition(topic, 0)
        return self.admin.list_offsets({place: spec}, request_timeout=ASK_S_MAX)[place].result(ASK_S_MAX).offset

    def create(self, topic: str, partitions: int) -> None:
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(ASK_S_MAX)

    def trim(self, topic: str, before: int) -> None:
        """Remove everything below that offset, as an operator or a retention would."""
        place = TopicPartition(topic, 0, before)
        self.admin.delete_records([place], request_timeout=ASK_S_MAX)[place].result(ASK_S_MAX)

    def configs(self, topic: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        entries = self.admin.describe_configs([resource], request_timeout=ASK_S_MAX)[resource].result(ASK_S_MAX)
        return {name: entry.value for name, entry in entries.items()}

    def records(self, topic: str) -> list[Message]:
        """All that is there, from the first kept record to the end as it is now."""
        start, end = self.earliest(topic), self.latest(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.log.bootstrap,
                "group.id": "outsider",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "log_level": 0,
            }
        )
        found: list[Message] = []
        try:
            consumer.assign([TopicPartition(topic, 0, start)])
            while start + len(found) < end:
                messages = consumer.consume(end - start - len(found), ASK_S_MAX)
                assert messages, f"{topic}: nothing after {len(found)} of {end - start} records"
                for message in messages:
                    error = message.error()
                    assert error is None, str(error)
                found += messages
        finally:
            consumer.close()
        return found

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] | None = None,
    ) -> int:
        """A record that no WAL wrote; gives its offset."""
        producer = Producer({"bootstrap.servers": self.log.bootstrap, "acks": "all", "log_level": 0})
        reports: list[tuple[KafkaError | None, Message]] = []
        producer.produce(
            topic,
            value,
            key,
            partition=0,
            headers=list(headers or ()),
            on_delivery=lambda *report: reports.append(report),
        )
        assert producer.flush(ASK_S_MAX) == 0
        [(error, message)] = reports
        assert error is None, str(error)
        offset = message.offset()
        assert offset is not None
        return offset


# --- what tests write and look at ------------------------------------------------------------------------------------


def payloads(table: int, first: int, count: int, size: int = 0) -> list[bytes]:
    """Of `count` entries from sequence `first` on; each says whose it is."""
    return [b"table %d entry %d" % (table, number) + b"." * size for number in range(first, first + count)]


def contents(entries: Iterable[Entry]) -> list[tuple[int, int, bytes]]:
    """Table, sequence and payload of each."""
    return [(entry.table_id, entry.sequence, bytes(entry.payload)) for entry in entries]


def expected(table: int, first: int, last: int, size: int = 0) -> list[tuple[int, int, bytes]]:
    """What `contents` gives of `payloads`, from `first` to `last`."""
    return [
        (table, number, payload)
        for number, payload in zip(range(first, last + 1), payloads(table, first, last - first + 1, size), strict=True)
    ]


def by_table(entries: Iterable[Entry]) -> Mapping[int, list[tuple[int, bytes]]]:
    found: dict[int, list[tuple[int, bytes]]] = {}
    for entry in entries:
        found.setdefault(entry.table_id, []).append((entry.sequence, bytes(entry.payload)))
    return found
