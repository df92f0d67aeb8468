"""Large records, refused records, and producers that number what they send."""

from collections.abc import Callable
from random import Random

import pytest

from .client import Client, Record

MESSAGE_TOO_LARGE = 10


def incompressible(size: int) -> bytes:
    return Random(size).randbytes(size)


def test_record_of_900_kb_is_read_back_whole(client: Client, topic: str) -> None:
    value = incompressible(900_000)

    deliveries = client.produce(topic, [Record(b"before"), Record(value), Record(b"after")])

    assert [each.offset for each in deliveries] == [0, 1, 2], deliveries
    assert client.read(topic, "earliest").values(3) == [b"before", value, b"after"]


def test_record_above_the_topics_limit_is_refused_and_harms_no_other(
    client: Client, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(max_message_bytes="100000")
    client.wrote(topic, [b"before"])

    (delivery,) = client.produce(topic, [Record(incompressible(200_000))])
    assert delivery.refused == MESSAGE_TOO_LARGE, delivery

    client.wrote(topic, [b"after"])
    read = client.read(topic, "earliest").poll(2)
    assert [(each.offset, each.value) for each in read] == [(0, b"before"), (1, b"after")]


@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_many_records_arrive_once_and_in_order(client: Client, new_topic: Callable[..., str], idempotent: bool) -> None:
    if idempotent:
        client.needs("idempotence")
    topic = new_topic(partitions=2)
    values = [b"%04d " % number + b"x" * 500 for number in range(400)]

    deliveries = client.produce(
        topic,
        [Record(value, partition=number % 2) for number, value in enumerate(values)],
        idempotent=idempotent,
    )

    assert [each.offset for each in deliveries] == [number // 2 for number in range(400)]
    for partition in (0, 1):
        assert client.read(topic, "earliest", partition).values(200) == values[partition::2]


@pytest.mark.parametrize("acks", [0, 1])
def test_fewer_acknowledgements_lose_nothing_on_a_healthy_broker(client: Client, topic: str, acks: int) -> None:
    values = [b"%d" % number for number in range(50)]

    deliveries = client.produce(topic, [Record(value) for value in values], acks=acks)

    assert {each.refused for each in deliveries} == {None}, deliveries
    assert client.read(topic, "earliest").values(50) == values


def test_idempotent_producers_do_not_disturb_each_other(client: Client, topic: str) -> None:
    client.needs("idempotence")

    for number in range(3):  # each a producer of its own, whose sequence begins anew
        deliveries = client.produce(topic, [Record(b"%d" % number)], idempotent=True)
        assert [each.offset for each in deliveries] == [number], deliveries

    assert client.read(topic, "earliest").values(3) == [b"0", b"1", b"2"]
