"""Where a consumer starts: earliest, latest, an offset, a time; and what happens when there is nothing there."""

from collections.abc import Callable
from uuid import uuid4

import pytest

from .client import Client, Consumer, Record, at_time, eventually
from .driver import Refused

TIME_MS = 1_700_000_000_000
OFFSET_OUT_OF_RANGE = 1
# Long enough for a record to come if there were one, short enough to wait for in vain.
IN_VAIN_MS = 1000
# How often `next_after` writes before it gives up.
ATTEMPTS_MAX = 50


@pytest.fixture
def ten(client: Client, topic: str) -> str:
    """A topic with the records b"0" to b"9"."""
    client.wrote(topic, [b"%d" % number for number in range(10)])
    return topic


def next_after(client: Client, topic: str, consumer: Consumer) -> bytes | None:
    """The first record that a consumer at the end gets, when records are written until it gets one.

    When a consumer has found the end is nobody's promise: it does so at some time after it was opened. So what is
    written first may lie before the end that it finds, and only what comes of it can be held to.
    """
    for attempt in range(ATTEMPTS_MAX):
        client.wrote(topic, [b"new %d" % attempt])
        found = consumer.values(1, timeout_ms=300)
        if found:
            return found[0]
    return None


def test_earliest_reads_from_the_first_record(client: Client, ten: str) -> None:
    assert client.read(ten, "earliest").values(10) == [b"%d" % number for number in range(10)]


def test_latest_reads_only_what_comes_later(client: Client, ten: str) -> None:
    found = next_after(client, ten, client.read(ten, "latest", reset="latest"))

    assert found is not None
    assert found.startswith(b"new")


@pytest.mark.parametrize("offset", [0, 4, 9])
def test_offset_reads_from_that_record(client: Client, ten: str, offset: int) -> None:
    read = client.read(ten, offset).poll(10 - offset)

    assert [each.offset for each in read] == list(range(offset, 10))
    assert [each.value for each in read] == [b"%d" % number for number in range(offset, 10)]


def test_offset_at_the_end_reads_what_comes_next(client: Client, ten: str) -> None:
    consumer = client.read(ten, 10, reset="none" if client.has("reset_none") else "earliest")
    client.wrote(ten, [b"next"])

    assert [(each.offset, each.value) for each in consumer.poll(1)] == [(10, b"next")]


@pytest.mark.parametrize(
    ("time_ms", "first"),
    [(TIME_MS - 1, 0), (TIME_MS + 3000, 3), (TIME_MS + 3001, 4), (TIME_MS + 9000, 9)],
    ids=["before all", "exact", "between", "last"],
)
def test_time_reads_from_the_first_record_not_older(
    client: Client, reference: Client, topic: str, time_ms: int, first: int
) -> None:
    client.needs("offsets_by_time")
    reference.produce(topic, [Record(b"%d" % number, timestamp_ms=TIME_MS + 1000 * number) for number in range(10)])

    assert client.read(topic, at_time(time_ms)).values(10 - first) == [b"%d" % number for number in range(first, 10)]


def test_list_offsets_finds_both_ends_and_times(client: Client, reference: Client, topic: str) -> None:
    client.needs("list_offsets")
    reference.produce(topic, [Record(b"%d" % number, timestamp_ms=TIME_MS + 1000 * number) for number in range(10)])

    def offset(at):
        return client.admin("list_offsets", topic=topic, partition=0, at=at)["offset"]

    assert offset("earliest") == 0
    assert offset("latest") == 10
    if client.has("offsets_by_time"):
        assert offset(at_time(TIME_MS + 6500)) == 7
        # Past the last record some clients say "none" and others the end, each by its own choice.
        assert offset(at_time(TIME_MS + 60_000)) in (None, 10)


def test_empty_topic_gives_nothing_and_the_poll_ends(client: Client, topic: str) -> None:
    assert client.read(topic, "earliest").poll(1, timeout_ms=IN_VAIN_MS) == []


def test_empty_topic_has_both_ends_at_zero(client: Client, topic: str) -> None:
    for end in ("earliest", "latest"):
        assert client.admin("list_offsets", topic=topic, partition=0, at=end) == {"offset": 0}


def test_offset_out_of_range_resets_to_earliest(client: Client, ten: str) -> None:
    assert client.read(ten, 1000, reset="earliest").values(10) == [b"%d" % number for number in range(10)]


def test_offset_out_of_range_resets_to_latest(client: Client, ten: str) -> None:
    found = next_after(client, ten, client.read(ten, 1000, reset="latest"))

    assert found is not None
    assert found.startswith(b"new")


def test_offset_out_of_range_without_reset_is_an_error(client: Client, ten: str) -> None:
    client.needs("reset_none")
    with pytest.raises(Refused) as refused:
        client.read(ten, 1000, reset="none").poll(1, timeout_ms=10_000)

    assert refused.value.code == OFFSET_OUT_OF_RANGE


def test_offset_before_the_first_kept_record_resets_to_it(client: Client, reference: Client, ten: str) -> None:
    reference.admin("delete_records", topic=ten, partition=0, before=6)

    assert client.read(ten, 2, reset="earliest").values(4) == [b"6", b"7", b"8", b"9"]


def test_topic_is_created_by_producing_to_it(client: Client, reference: Client) -> None:
    topic = f"auto-{uuid4().hex[:12]}"

    client.wrote(topic, [b"first"])

    assert client.read(topic, "earliest").values(1) == [b"first"]
    eventually(lambda: topic in reference.admin("list_topics")["topics"], True)


def test_consumer_waits_for_records_that_are_written_later(client: Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    consumer = client.read(topic, "earliest")
    assert consumer.poll(1, timeout_ms=300) == []

    client.wrote(topic, [b"late"])

    assert consumer.values(1) == [b"late"]
