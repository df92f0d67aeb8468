"""A topic of which half is in the object store: no client notices where a record lies."""

from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.e2e.broker import Broker
from tidelog.cli.admin import Admin

from .client import Client, eventually
from .conftest import PREPARE_TIMEOUT_S

TOPIC = "half-in-the-store"
IN_STORE, IN_ALL = 30, 50
ASK_S = 10.0
WEEK_MS = 604_800_000


def value_of(number: int) -> bytes:
    return b"%d " % number + bytes([65 + number % 26]) * 5_000


def write(bootstrap: str, first: int, end: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "batch.num.messages": 7})
    for number in range(first, end):
        producer.produce(TOPIC, value_of(number))
    assert producer.flush(PREPARE_TIMEOUT_S) == 0


@pytest.fixture(scope="session")
def half_in_the_store(broker: Broker | None, bootstrap: str, preparing: AdminClient) -> str:
    """Its first records are only in the store, the others only on disk."""
    if broker is None:
        pytest.skip("the broker that the environment names may have no store")
    configs = {"remote.storage.enable": "true", "local.retention.bytes": "1", "segment.ms": "1"}
    preparing.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(PREPARE_TIMEOUT_S)
    write(bootstrap, 0, IN_STORE)
    admin = Admin(bootstrap)

    def status() -> dict[str, Any]:
        return admin.call("tier-status", ASK_S, topic=TOPIC, partition=0)

    try:
        eventually(lambda: status()["local_start_offset"], IN_STORE)
        later = ConfigEntry("segment.ms", str(WEEK_MS), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[later])
        preparing.incremental_alter_configs([resource])[resource].result(PREPARE_TIMEOUT_S)
        write(bootstrap, IN_STORE, IN_ALL)
        assert (status()["local_start_offset"], status()["start_offset"]) == (IN_STORE, 0)
    finally:
        admin.close()
    return TOPIC


def test_reads_from_the_first_record_to_the_last_across_the_border(client: Client, half_in_the_store: str) -> None:
    read = client.read(half_in_the_store, "earliest").poll(IN_ALL)

    assert [each.offset for each in read] == list(range(IN_ALL))
    assert [each.value for each in read] == [value_of(number) for number in range(IN_ALL)]


@pytest.fixture(scope="session")
def shown(half_in_the_store: str, bootstrap: str) -> str:
    """What is in the store of it, attached as a topic of its own, as another cluster would."""
    admin = Admin(bootstrap)
    try:
        name: str = admin.call("tier-attach", ASK_S, source=half_in_the_store, topic="shown")["topic"]
        eventually(lambda: admin.call("tier-status", ASK_S, topic=name, partition=0)["high_watermark"], IN_STORE)
    finally:
        admin.close()
    return name


def test_reads_a_topic_that_is_attached(client: Client, shown: str) -> None:
    read = client.read(shown, "earliest").poll(IN_STORE)

    assert [(each.offset, each.value) for each in read] == [(number, value_of(number)) for number in range(IN_STORE)]
