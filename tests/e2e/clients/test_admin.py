"""Administration: topics, their configuration, partitions, records, groups."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from .client import Client, eventually

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
OFFSET_OUT_OF_RANGE = 1
NON_EMPTY_GROUP = 68
GROUP_ID_NOT_FOUND = 69


@pytest.fixture
def name() -> str:
    return f"admin-{uuid4().hex[:12]}"


def test_topic_is_created_listed_described_and_deleted(client: Client, name: str) -> None:
    client.needs("create_topic", "delete_topic")
    client.admin("create_topic", topic=name, partitions=3, configs={"retention.ms": "123456"})

    eventually(lambda: client.admin("describe_topic", topic=name), {"partitions": 3})
    assert name in client.admin("list_topics")["topics"]
    assert client.admin("describe_config", topic=name)["configs"]["retention.ms"] == "123456"

    client.admin("delete_topic", topic=name)
    eventually(lambda: name in client.admin("list_topics")["topics"], False)


def test_topic_of_another_client_is_listed_and_described(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=5)

    eventually(lambda: client.admin("describe_topic", topic=topic), {"partitions": 5})
    assert topic in client.admin("list_topics")["topics"]


def test_topic_that_exists_is_not_created_again(client: Client, topic: str) -> None:
    assert client.refused("create_topic", topic=topic, partitions=1, configs={}) == TOPIC_ALREADY_EXISTS


def test_topic_with_an_impossible_name_is_refused(client: Client) -> None:
    assert client.refused("create_topic", topic="no spaces!", partitions=1, configs={}) == INVALID_TOPIC


def test_topic_with_an_impossible_config_is_refused(client: Client, name: str) -> None:
    configs = {"retention.ms": "soon"}
    assert client.refused("create_topic", topic=name, partitions=1, configs=configs) == INVALID_CONFIG


def test_unknown_topic_is_not_described(client: Client, name: str) -> None:
    client.needs("describe_unknown")
    assert client.refused("describe_topic", topic=name) == UNKNOWN_TOPIC_OR_PARTITION


def test_unknown_topic_is_not_deleted(client: Client, name: str) -> None:
    assert client.refused("delete_topic", topic=name) == UNKNOWN_TOPIC_OR_PARTITION


def test_topic_created_again_is_empty(client: Client, reference: Client, topic: str) -> None:
    client.wrote(topic, [b"of the first life"] * 3)
    reference.admin("delete_topic", topic=topic)
    reference.admin("create_topic", topic=topic, partitions=1, configs={})

    eventually(lambda: client.admin("list_offsets", topic=topic, partition=0, at="latest"), {"offset": 0})
    client.wrote(topic, [b"of the second"])
    read = client.read(topic, "earliest").poll(1)
    assert [(each.offset, each.value) for each in read] == [(0, b"of the second")]


def test_config_is_altered_and_the_rest_stays(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms="1000000")
    before = client.admin("describe_config", topic=topic)["configs"]

    client.admin("alter_config", topic=topic, configs={"retention.ms": "2000000", "cleanup.policy": "delete"})

    after = {**before, "retention.ms": "2000000"}
    eventually(lambda: client.admin("describe_config", topic=topic)["configs"], after)


def test_partitions_are_added_and_can_be_written(client: Client, topic: str) -> None:
    client.admin("create_partitions", topic=topic, count=3)

    eventually(lambda: client.admin("describe_topic", topic=topic), {"partitions": 3})
    client.wrote(topic, [b"new"], partition=2)
    assert client.read(topic, "earliest", partition=2).values(1) == [b"new"]


def test_partitions_are_never_taken_away(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)

    assert client.refused("create_partitions", topic=topic, count=2) == INVALID_PARTITIONS


def test_deleted_records_are_gone_and_the_rest_keeps_its_offsets(client: Client, topic: str) -> None:
    client.needs("delete_records")
    client.wrote(topic, [b"%d" % number for number in range(10)])

    client.admin("delete_records", topic=topic, partition=0, before=7)

    assert client.admin("list_offsets", topic=topic, partition=0, at="earliest") == {"offset": 7}
    assert client.admin("list_offsets", topic=topic, partition=0, at="latest") == {"offset": 10}
    read = client.read(topic, "earliest").poll(3)
    assert [(each.offset, each.value) for each in read] == [(7, b"7"), (8, b"8"), (9, b"9")]


def test_records_beyond_the_end_cannot_be_deleted(client: Client, topic: str) -> None:
    client.needs("delete_records")
    client.wrote(topic, [b"only"])

    assert client.refused("delete_records", topic=topic, partition=0, before=5) == OFFSET_OUT_OF_RANGE


def test_group_is_listed_described_and_deleted_when_empty(client: Client, topic: str, group: str) -> None:
    client.needs("describe_group")
    client.wrote(topic, [b"a", b"b", b"c"])
    member = client.join(group, topic)
    client.settle(member, partitions=1)
    assert len(member.poll(3)) == 3
    member.commit()

    assert group in client.admin("list_groups")["groups"]
    described = client.admin("describe_group", group=group)
    assert (described["state"].lower(), described["members"]) == ("stable", 1)
    assert client.admin("group_offsets", group=group, topic=topic, partition=0) == {"offset": 3}
    if client.has("delete_group"):
        assert client.refused("delete_group", group=group) == NON_EMPTY_GROUP

    member.close()
    described = client.admin("describe_group", group=group)
    assert (described["state"].lower(), described["members"]) == ("empty", 0)

    client.admin("delete_group", group=group)
    assert group not in client.admin("list_groups")["groups"]


def test_unknown_group_is_not_deleted(client: Client, group: str) -> None:
    assert client.refused("delete_group", group=group) == GROUP_ID_NOT_FOUND
