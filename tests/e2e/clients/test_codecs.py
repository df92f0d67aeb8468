"""Whatever a client writes, with whichever codec, every client reads back the same."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from .client import CODECS, Client, Consumed, Record
from .stored import stored_codecs

TIME_MS = 1_700_000_000_000
TEXT = b"the same words over and over, so that a codec has something to do; " * 8

RECORDS = [
    Record(TEXT, key=b"first"),
    Record(b"\x00\x01\xfe\xff" + TEXT, key=b"binary \x80\xff"),
    Record(TEXT + b"no key"),
    Record(b"", key=b"empty value"),
    Record(None, key=b"null value"),
    Record(TEXT, key=b"with headers", headers=(("a", b"1"), ("a", b"2"), ("trace", b"x-y-z"), ("empty", b""))),
    Record(TEXT * 40, key=b"longer"),
    Record(TEXT, key=b"old", timestamp_ms=TIME_MS),
    Record(TEXT, key=b"older still", timestamp_ms=TIME_MS - 86_400_000),
]


def fit(client: Client, records: list[Record]) -> list[Record]:
    """The same records without what the client cannot say; the scenario holds for the rest."""
    if not client.has("headers"):
        records = [replace(record, headers=()) for record in records]
    if not client.has("timestamps"):
        records = [replace(record, timestamp_ms=None) for record in records]
    return records


def assert_same(written: list[Record], read: list[Consumed]) -> None:
    assert [(each.key, each.value, each.headers) for each in read] == [
        (each.key, each.value, each.headers) for each in written
    ]
    assert [each.offset for each in read] == list(range(len(written)))
    for before, after in zip(written, read, strict=True):
        if before.timestamp_ms is None:
            assert after.timestamp_ms > TIME_MS, "the client's own clock"
        else:
            assert after.timestamp_ms == before.timestamp_ms


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_read_back_as_they_were_written(client: Client, topic: str, bootstrap: str, codec: str) -> None:
    client.needs(codec)
    records = fit(client, RECORDS)

    deliveries = client.produce(topic, records, codec)

    assert [(each.partition, each.offset, each.message) for each in deliveries] == [
        (0, offset, "") for offset in range(len(records))
    ]
    assert_same(records, client.read(topic, "earliest").poll(len(records)))
    if client.has("record_batches"):
        assert codec in stored_codecs(bootstrap, topic)


@pytest.mark.parametrize("codec", CODECS)
def test_client_reads_what_another_client_wrote(client: Client, reference: Client, topic: str, codec: str) -> None:
    client.needs(codec)
    records = fit(client, RECORDS)
    reference.produce(topic, records, codec)

    assert_same(records, client.read(topic, "earliest").poll(len(records)))


@pytest.mark.parametrize("codec", CODECS)
def test_another_client_reads_what_client_wrote(client: Client, reference: Client, topic: str, codec: str) -> None:
    client.needs(codec)
    records = fit(client, RECORDS)
    client.produce(topic, records, codec)

    assert_same(records, reference.read(topic, "earliest").poll(len(records)))


def test_records_go_to_the_partition_that_was_asked_for(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    places = [2, 0, 1, 2, 2]

    client.produce(topic, [Record(b"%d" % number, partition=place) for number, place in enumerate(places)])

    assert client.read(topic, "earliest", partition=0).values(1) == [b"1"]
    assert client.read(topic, "earliest", partition=1).values(1) == [b"2"]
    assert client.read(topic, "earliest", partition=2).values(3) == [b"0", b"3", b"4"]


@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_brokers_time_replaces_the_clients_where_the_topic_says_so(
    client: Client, new_topic: Callable[..., str], codec: str
) -> None:
    client.needs("timestamps")
    topic = new_topic(message_timestamp_type="LogAppendTime")

    client.produce(topic, [Record(TEXT, timestamp_ms=TIME_MS), Record(TEXT, timestamp_ms=TIME_MS)], codec)

    read = client.read(topic, "earliest").poll(2)
    assert [each.value for each in read] == [TEXT, TEXT]
    assert all(each.timestamp_ms > TIME_MS for each in read)
