"""The topics that events go to: made when they are missing, with the cluster's own defaults.

What holds for a topic (partitions, the largest message) is asked for when a query starts. A topic that grows is noticed
at the next start; the first batch then still goes where its earlier attempts went.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # pyright: ignore[reportPrivateImportUsage]

from tidelog.pikiwi.config import Config
from tidelog.spark.kernel.messages import DEAD_LETTER, Delivery
from tidelog.spark.pipeline.errors import TopicError

ANSWER_S_MAX = 30.0
UNKNOWN_PAUSE_S = 0.1
_LIMIT = "max.message.bytes"


def snapshot_topic(config: Config) -> str:
    return config.kafka_topic_snapshot if config.kafka_stream_mode == "dual" else config.kafka_topic_single


def binlog_topic(config: Config) -> str:
    return config.kafka_topic_binlog if config.kafka_stream_mode == "dual" else config.kafka_topic_single


def delivery_to(config: Config, topic: str) -> Delivery:
    """The topic as it is now, with its dead letters; both are made when they are not there."""
    admin = AdminClient(
        {"bootstrap.servers": config.kafka_brokers, "client.id": config.kafka_client_id, "log_level": 2}
    )
    try:
        _make_missing(admin, [topic, topic + DEAD_LETTER])
        partitions = _partitions(admin, topic)
        limit = _message_bytes_max(admin, topic)
    except KafkaException as error:
        raise TopicError(f"topic {topic} at {config.kafka_brokers}: {error.args[0].str()}") from None
    return Delivery(topic, partitions, min(config.kafka_message_max_bytes, limit or config.kafka_message_max_bytes))


def _make_missing(admin: AdminClient, names: Sequence[str]) -> None:
    there = admin.list_topics(timeout=ANSWER_S_MAX).topics
    missing = [NewTopic(name, -1, -1) for name in names if name not in there]
    if not missing:
        return
    for future in admin.create_topics(missing, request_timeout=ANSWER_S_MAX).values():
        try:
            _ended(future)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _partitions(admin: AdminClient, topic: str) -> int:
    """A node may not know a topic yet that another has just made; no number of its is good then."""
    give_up_s = time.monotonic() + ANSWER_S_MAX
    while True:
        found = admin.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic]
        if found.error is None and found.partitions:
            return len(found.partitions)
        if time.monotonic() >= give_up_s:
            raise KafkaException(found.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        time.sleep(UNKNOWN_PAUSE_S)


def _message_bytes_max(admin: AdminClient, topic: str) -> int | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = _ended(admin.describe_configs([resource], request_timeout=ANSWER_S_MAX)[resource])
    entry = entries.get(_LIMIT)
    return int(entry.value) if entry is not None and entry.value else None


def _ended(future: "Future[Any]") -> Any:
    """Wait for an admin request; the client ends each by itself, and this is for the case that it does not."""
    try:
        return future.result(ANSWER_S_MAX + 5)
    except TimeoutError:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
