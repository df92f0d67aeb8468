"""Small parts by themselves: placement, subscriptions, timers, and that the package is pure."""

import ast
from pathlib import Path

import pytest

import tidelog.groups
from tests.groups.harness import subscription
from tidelog.groups import partition_of
from tidelog.groups.placement import java_hash
from tidelog.groups.subscription import subscribed_topics, topics_of
from tidelog.groups.timers import TimerKey, TimerKind, Timers


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Hello, World!", 1498789909),
        ("polygenelubricants", -(2**31)),
        ("console-consumer", -648006740),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_hash_is_javas(text: str, value: int):
    assert java_hash(text) == value


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("hello", 99162322 % 50), ("polygenelubricants", 0), ("console-consumer", 648006740 % 50), ("", 0)],
)
def test_group_lives_where_kafka_would_put_it(group_id: str, partition: int):
    assert partition_of(group_id, 50) == partition


@pytest.mark.parametrize(
    ("metadata", "topics"),
    [
        (subscription(), set()),
        (subscription("a"), {"a"}),
        (subscription("a", "b", "a"), {"a", "b"}),
        (b"\0\3" + subscription("a", "b")[2:] + b"of a later version", {"a", "b"}),
        (b"\xff\xff" + subscription("a")[2:], None),
        (b"\0\0\xff\xff\xff\xff", None),
        (b"\0\0\0\0\0\2\0\1a", None),
        (b"\0\0\0\0\0\1\xff\xff", None),
        (b"\0\0\0\0\0\1\0\2a", None),
        (b"\0\0\0\0\0\1\0\1\x80", None),
        (b"\0", None),
    ],
)
def test_subscription_is_read_or_refused(metadata: bytes, topics: set[str] | None):
    assert topics_of(metadata) == topics


def test_group_subscribes_to_all_its_members_do_unless_one_cannot_be_understood():
    assert subscribed_topics([subscription("a"), subscription("b", "c")]) == {"a", "b", "c"}
    assert subscribed_topics([]) == set()
    assert subscribed_topics([subscription("a"), b"?"]) is None


def key(name: str) -> TimerKey:
    return TimerKey(TimerKind.SESSION, "group", name)


def test_timers_come_up_in_order_and_once():
    timers = Timers()
    for name, deadline_ms in (("b", 20), ("a", 10), ("c", 20), ("d", 30)):
        timers.arm(key(name), deadline_ms)
    assert timers.next_ms() == 10
    assert timers.due(9) == []
    assert timers.due(20) == [key("a"), key("b"), key("c")]
    assert timers.due(20) == []
    assert timers.next_ms() == 30


def test_deadline_that_moves_later_leaves_its_key_where_it_is_and_earlier_moves_it():
    timers = Timers()
    timers.arm(key("a"), 20)
    timers.arm(key("a"), 30)
    assert timers.next_ms() == 20
    timers.arm(key("a"), 10)
    assert timers.due(10) == [key("a")]
    assert timers.due(100) == []
    assert timers.next_ms() is None


def test_disarmed_key_does_not_come_up_and_leaves_no_garbage():
    timers = Timers()
    for n in range(1_000):
        timers.arm(key("a"), 1_000 - n)
        timers.arm(key(str(n)), 5_000)
        timers.disarm(key(str(n)))
    assert len(timers) == 1
    assert len(timers._heap) < 200
    timers.disarm(key("a"))
    assert timers.due(10_000) == []


PURE = {
    "collections",
    "collections.abc",
    "dataclasses",
    "enum",
    "functools",
    "heapq",
    "random",
    "struct",
    "typing",
    "uuid",
}


def test_package_reaches_for_no_clock_socket_file_or_thread():
    for path in Path(tidelog.groups.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name in PURE or name.startswith(("tidelog.groups", "tidelog.wire")), f"{path.name}: {name}"
