"""Tiered clusters of real processes, with a real client that knows what it has written.

Every record is a function of its offset, so what a consumer gets can be compared without remembering it.
"""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from tests.e2e.faults.asking import AskError
from tests.e2e.faults.cluster import Cluster, ClusterFailed

TOPIC = "history"
VALUE_BYTES = 20_000
WAIT_S = 30.0
ASK_S = 2.0


def value_of(number: int) -> bytes:
    seed = hashlib.sha256(b"%d" % number).digest()
    return (b"%d " % number) + (seed * (VALUE_BYTES // 32))


class TieredProcesses:
    def __init__(self, folder: Path, nodes: int = 3, *, store: Path | None = None, topic: str = TOPIC) -> None:
        """With a store of its own, unless it shares one."""
        folder.mkdir(exist_ok=True)
        self.store = folder / "store" if store is None else store
        self.topic = topic
        self.written = 0
        self._nodes = nodes
        self.cluster = Cluster(
            folder,
            nodes=nodes,
            config_nodes=nodes,
            racks=("a",),
            faults="",
            settings={
                "remote.log.storage.system.enable": "true",
                "remote.log.store.url": f"file://{self.store}",
                "remote.log.manager.task.interval.ms": "20",
                "remote.fetch.max.wait.ms": "5000",
                "retention.check.ms": "50",
                "leader.balance.ms": "3600000",
            },
        )

    def start(self, **configs: str) -> None:
        self.cluster.start()
        self.start_topic(**configs)

    def start_topic(self, **configs: str) -> None:
        settings = {"remote.storage.enable": "true", "local.retention.bytes": "1", **configs}
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        topic = NewTopic(self.topic, num_partitions=1, replication_factor=self._nodes, config=settings)
        admin.create_topics([topic])[self.topic].result(WAIT_S)

    def write(self, count: int) -> None:
        """More records, of which each is acknowledged once and lies at the offset of its number."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0})
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for number in range(self.written, self.written + count):
            producer.produce(self.topic, value_of(number), on_delivery=delivered)
        assert producer.flush(WAIT_S) == 0
        assert failed == []
        self.written += count

    def status(self) -> dict[str, Any]:
        def ask() -> dict[str, Any] | None:
            try:
                leader = self.cluster.leader(self.topic)
                return self.cluster.admin("tier-status", node=leader, topic=self.topic, partition=0)
            except (AskError, ClusterFailed):
                return None

        return self.cluster.wait_for(ask, "the tier's status", WAIT_S)

    def wait_tiered(self, offset: int) -> None:
        self.cluster.wait_for(lambda: self.status()["local_start_offset"] >= offset, "tiering", WAIT_S)

    def check_every_offset(self) -> tuple[int, int]:
        """What a consumer gets from the first offset to the last is what was written; gives the two."""
        self.cluster.leader(self.topic)
        consumer = Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": "check", "enable.auto.commit": False}
        )

        def watermarks() -> tuple[int, int] | None:
            with contextlib.suppress(KafkaException):  # this client asks whom it first took for the leader
                return consumer.get_watermark_offsets(TopicPartition(self.topic, 0), ASK_S)
            return None

        try:
            first, last = self.cluster.wait_for(watermarks, "offsets of the topic", WAIT_S)
            consumer.assign([TopicPartition(self.topic, 0, first)])
            for offset in range(first, last):
                message = consumer.poll(WAIT_S)
                assert message is not None, f"nothing came at {offset}"
                assert message.error() is None, message.error()
                assert (message.offset(), message.value()) == (offset, value_of(offset))
        finally:
            consumer.close()
        return first, last

    def scrub(self) -> dict[str, Any]:
        leader = self.cluster.leader(self.topic)
        return self.cluster.admin("tier-scrub", node=leader, topic=self.topic, partition=0, remove=True)

    def close(self) -> None:
        self.cluster.close()
