"""kill -9 of the leader at every step of copying and deleting: real processes, a real client, the same bytes after it.

Every record is a function of its offset, so what a consumer gets can be compared without remembering it.
"""

import contextlib
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from tests.e2e.faults.asking import AskError
from tests.e2e.faults.cluster import Cluster, ClusterFailed

TOPIC = "history"
VALUE_BYTES = 20_000
COPY_POINTS = (
    "tier.copy.started",
    "tier.copy.log-put",
    "tier.copy.indexes-put",
    "tier.copy.finished",
    "tier.manifest",
)
DELETE_POINTS = ("tier.delete.started", "tier.delete.indexes-gone", "tier.delete.objects-gone")
WAIT_S = 30.0
ASK_S = 2.0


def value_of(number: int) -> bytes:
    seed = hashlib.sha256(b"%d" % number).digest()
    return (b"%d " % number) + (seed * (VALUE_BYTES // 32))


class TieredProcesses:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = 0
        self.cluster = Cluster(
            folder,
            racks=("a", "a", "a"),
            faults="",
            settings={
                "remote.log.storage.system.enable": "true",
                "remote.log.store.url": f"file://{folder}/store",
                "remote.log.manager.task.interval.ms": "20",
                "retention.check.ms": "50",
                "leader.balance.ms": "3600000",
            },
        )

    def start(self, **configs: str) -> None:
        self.cluster.start()
        settings = {"remote.storage.enable": "true", "local.retention.bytes": "1", **configs}
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        topic = NewTopic(TOPIC, num_partitions=1, replication_factor=3, config=settings)
        admin.create_topics([topic])[TOPIC].result(WAIT_S)

    def write(self, count: int) -> None:
        """More records, of which each is acknowledged once and lies at the offset of its number."""
        settings = {"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0}
        producer = Producer(settings)
        failed: list[object] = []

        def delivered(error: KafkaError | None, _message: object) -> None:
            if error is not None:
                failed.append(error)

        for number in range(self.written, self.written + count):
            producer.produce(TOPIC, value_of(number), on_delivery=delivered)
        assert producer.flush(WAIT_S) == 0
        assert failed == []
        self.written += count

    def status(self) -> dict:
        def ask() -> dict | None:
            try:
                leader = self.cluster.leader(TOPIC)
                return self.cluster.admin("tier-status", node=leader, topic=TOPIC, partition=0)
            except (AskError, ClusterFailed):
                return None

        return self.cluster.wait_for(ask, "the tier's status", WAIT_S)

    def check_every_offset(self) -> None:
        """What a consumer gets from the first offset to the last is what was written."""
        self.cluster.leader(TOPIC)
        consumer = Consumer(
            {"bootstrap.servers": self.cluster.bootstrap, "group.id": "check", "enable.auto.commit": False}
        )

        def watermarks() -> tuple[int, int] | None:
            with contextlib.suppress(
                KafkaException
            ):  # this client asks whom it first took for the leader, until the end
                return consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), ASK_S)
            return None

        try:
            first, last = self.cluster.wait_for(watermarks, "offsets of the topic", WAIT_S)
            assert last == self.written
            consumer.assign([TopicPartition(TOPIC, 0, first)])
            for offset in range(first, last):
                message = consumer.poll(WAIT_S)
                assert message is not None, f"nothing came at {offset}"
                assert message.error() is None, message.error()
                assert (message.offset(), message.value()) == (offset, value_of(offset))
        finally:
            consumer.close()

    def wait_tiered(self, offset: int) -> None:
        self.cluster.wait_for(lambda: self.status()["local_start_offset"] >= offset, "tiering", WAIT_S)

    def scrub(self) -> dict:
        leader = self.cluster.leader(TOPIC)
        return self.cluster.admin("tier-scrub", node=leader, topic=TOPIC, partition=0, remove=True)

    def close(self) -> None:
        self.cluster.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[TieredProcesses]:
    made = TieredProcesses(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_leader_killed_at_any_step_of_a_copy_loses_nothing_and_leaves_nothing(processes: TieredProcesses) -> None:
    processes.start()
    processes.write(100)
    for point in COPY_POINTS:
        leader = processes.cluster.leader(TOPIC)
        processes.cluster.admin("fault", node=leader, point=point, action="crash")
        processes.write(60)
        assert processes.cluster.nodes[leader].wait_ended(WAIT_S) == 137, point
        processes.check_every_offset()
        processes.cluster.nodes[leader].start()
        processes.cluster.wait_ready()
    processes.wait_tiered(processes.written - 120)
    processes.check_every_offset()
    found = processes.scrub()
    assert (found["missing"], found["foreign"]) == ([], [])
    assert processes.scrub()["orphans"] == []
    assert found["orphans"] == [], "the next leader knows of everything that a killed one has begun"


def test_a_leader_killed_at_any_step_of_a_deletion_finishes_it_later(processes: TieredProcesses) -> None:
    processes.start(**{"retention.bytes": str(3 << 20)})
    processes.write(150)
    for point in DELETE_POINTS:
        leader = processes.cluster.leader(TOPIC)
        processes.cluster.admin("fault", node=leader, point=point, action="crash")
        processes.write(200)
        assert processes.cluster.nodes[leader].wait_ended(WAIT_S) == 137, point
        processes.check_every_offset()
        processes.cluster.nodes[leader].start()
        processes.cluster.wait_ready()
    status = processes.cluster.wait_for(
        lambda: (found := processes.status())["RemoteDeleteLagSegments"] == 0 and found, "the deletions", WAIT_S
    )
    assert status["start_offset"] > 0
    processes.check_every_offset()
    found = processes.scrub()
    assert (found["missing"], found["orphans"]) == ([], [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_hundred_kills_at_random_moments(processes: TieredProcesses) -> None:
    rng = random.Random(7)
    processes.start(**{"retention.bytes": str(40 << 20)})
    for _ in range(100):
        processes.write(rng.randrange(20, 80))
        leader = processes.cluster.leader(TOPIC)
        processes.cluster.nodes[leader].kill()
        processes.check_every_offset()
        processes.cluster.nodes[leader].start()
        processes.cluster.wait_ready()
    processes.check_every_offset()
    processes.scrub()
    found = processes.scrub()
    assert (found["missing"], found["orphans"]) == ([], [])
