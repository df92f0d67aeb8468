"""Consumer groups: sharing out, leaving, resuming, static members."""

from collections.abc import Callable

import pytest

from .client import Client, Consumed
from .driver import Refused

PARTITIONS = 4
FENCED_INSTANCE_ID = 82


@pytest.fixture
def wide(new_topic: Callable[..., str]) -> str:
    """An empty topic with four partitions."""
    return new_topic(partitions=PARTITIONS)


def write_everywhere(client: Client, topic: str, value: bytes) -> None:
    for partition in range(PARTITIONS):
        client.wrote(topic, [value], partition)


def partitions_of(records: list[Consumed], value: bytes) -> set[int]:
    assert {each.value for each in records} == {value}
    return {each.partition for each in records}


def test_lone_member_reads_all_partitions(client: Client, wide: str, group: str) -> None:
    write_everywhere(client, wide, b"x")
    member = client.join(group, wide)

    assert client.settle(member, partitions=PARTITIONS) == [{0, 1, 2, 3}]
    assert partitions_of(member.poll(PARTITIONS), b"x") == {0, 1, 2, 3}


def test_two_members_share_the_partitions_and_the_one_that_stays_takes_over(
    client: Client, wide: str, group: str
) -> None:
    first = client.join(group, wide)
    client.settle(first, partitions=PARTITIONS)
    second = client.join(group, wide)

    held_by_first, held_by_second = client.settle(first, second, partitions=PARTITIONS)
    assert len(held_by_first) == len(held_by_second) == 2

    write_everywhere(client, wide, b"shared")
    assert partitions_of(first.poll(2), b"shared") == held_by_first
    assert partitions_of(second.poll(2), b"shared") == held_by_second

    first.commit()
    second.commit()
    first.close()
    assert client.settle(second, partitions=PARTITIONS) == [{0, 1, 2, 3}]

    write_everywhere(client, wide, b"alone")
    assert partitions_of(second.poll(PARTITIONS), b"alone") == {0, 1, 2, 3}


def test_group_resumes_after_what_it_committed(client: Client, reference: Client, topic: str, group: str) -> None:
    client.wrote(topic, [b"%d" % number for number in range(10)])
    member = client.join(group, topic)
    assert member.values(10) == [b"%d" % number for number in range(10)]
    member.commit()
    member.close()
    assert reference.admin("group_offsets", group=group, topic=topic, partition=0) == {"offset": 10}

    client.wrote(topic, [b"next", b"and next"])

    assert client.join(group, topic).values(2) == [b"next", b"and next"]


def test_group_resumes_at_the_offset_it_chose_to_commit(client: Client, topic: str, group: str) -> None:
    client.needs("commit_offsets")
    client.wrote(topic, [b"%d" % number for number in range(10)])
    member = client.join(group, topic)
    assert len(member.poll(10)) == 10
    member.commit({(topic, 0): 4})
    if client.has("committed"):
        assert member.committed(topic, 0) == 4
    member.close()

    assert client.join(group, topic).values(6) == [b"4", b"5", b"6", b"7", b"8", b"9"]


def test_group_without_commit_starts_where_its_reset_policy_says(client: Client, topic: str, group: str) -> None:
    client.wrote(topic, [b"a", b"b"])
    member = client.join(group, topic)
    if client.has("committed"):
        client.settle(member, partitions=1)
        assert member.committed(topic, 0) is None

    assert member.values(2) == [b"a", b"b"]


def test_two_groups_read_the_same_records(client: Client, topic: str, group: str) -> None:
    client.wrote(topic, [b"a", b"b", b"c"])

    assert client.join(group, topic).values(3) == [b"a", b"b", b"c"]
    assert client.join(f"{group}-other", topic).values(3) == [b"a", b"b", b"c"]


@pytest.mark.slow
def test_static_member_that_comes_back_has_the_same_partitions(client: Client, wide: str, group: str) -> None:
    client.needs("static_members")
    first = client.join(group, wide, instance="one")
    second = client.join(group, wide, instance="two")
    held_by_first, held_by_second = client.settle(first, second, partitions=PARTITIONS)

    first.close()
    returned = client.join(group, wide, instance="one")

    assert client.settle(returned, second, partitions=PARTITIONS) == [held_by_first, held_by_second]
    write_everywhere(client, wide, b"x")
    assert partitions_of(returned.poll(2), b"x") == held_by_first
    assert partitions_of(second.poll(2), b"x") == held_by_second


@pytest.mark.slow
def test_second_member_with_the_same_instance_fences_the_first(client: Client, topic: str, group: str) -> None:
    client.needs("static_members", "fencing")
    first = client.join(group, topic, instance="one")
    client.settle(first, partitions=1)
    second = client.join(group, topic, instance="one")
    client.settle(second, partitions=1)

    with pytest.raises(Refused) as refused:
        first.poll(1)

    assert refused.value.code == FENCED_INSTANCE_ID
