"""HoraeDB's cases for its message queue, on our `Log`: topics, producing and consuming, deleting, both ends, no hang.

Upstream they are ignored by default, for want of a broker.
"""

import time
from collections.abc import Iterator

import pytest

from tidelog.regionwal.errors import Closed, RegionWalError
from tidelog.regionwal.log import Log as Queue
from tidelog.regionwal.log import OutOfRange

from .world import World

LONG_S = 30.0


@pytest.fixture
def queue(world: World) -> Iterator[Queue]:
    queue = Queue(world.settings())
    yield queue
    queue.close()


@pytest.fixture
def topic(world: World, queue: Queue) -> str:
    queue.ensure_topics([world.namespace], soon())
    return world.namespace


def soon() -> float:
    return time.monotonic() + LONG_S


def write(queue: Queue, topic: str, first: int, count: int) -> int:
    """Gives the offset of the last."""
    return queue.write(
        topic, [(b"key %d" % number, b"value %d" % number, []) for number in range(first, first + count)]
    )


def read(queue: Queue, topic: str, start: int, end: int) -> list[bytes | None]:
    return [message.value() for chunk in queue.read(topic, start, end) for message in chunk]


def values(first: int, count: int) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def test_topic_is_created_once_however_often_it_is_asked_for(queue: Queue, topic: str) -> None:
    write(queue, topic, 0, 3)

    queue.ensure_topics([topic], soon())

    assert queue.topics()[topic] == 1
    assert read(queue, topic, 0, 3) == values(0, 3)


def test_topic_with_several_partitions_is_refused(world: World, queue: Queue) -> None:
    world.create(world.namespace, partitions=2)

    with pytest.raises(RegionWalError, match="2 partitions"):
        queue.ensure_topics([world.namespace], soon())


def test_records_are_consumed_as_they_were_produced(queue: Queue, topic: str) -> None:
    assert write(queue, topic, 0, 10) == 9
    assert write(queue, topic, 10, 10) == 19

    assert read(queue, topic, 0, 20) == values(0, 20)
    assert read(queue, topic, 5, 12) == values(5, 7)


def test_earliest_is_where_the_log_was_deleted_to(queue: Queue, topic: str) -> None:
    write(queue, topic, 0, 10)

    queue.delete_before(topic, 6)

    assert queue.watermarks(topic, soon()) == (6, 10)
    assert read(queue, topic, 6, 10) == values(6, 4)


def test_read_of_what_was_deleted_is_said_to_be_out_of_range(queue: Queue, topic: str) -> None:
    write(queue, topic, 0, 10)
    queue.delete_before(topic, 6)

    with pytest.raises(OutOfRange):
        read(queue, topic, 0, 10)


def test_empty_topic_is_consumed_without_a_hang(queue: Queue, topic: str) -> None:
    earliest, latest = queue.watermarks(topic, soon())

    assert (earliest, latest) == (0, 0)
    assert read(queue, topic, earliest, latest) == []


def test_both_ends_before_and_after_producing_and_deleting(queue: Queue, topic: str) -> None:
    ends = [queue.watermarks(topic, soon())]
    write(queue, topic, 0, 10)
    ends.append(queue.watermarks(topic, soon()))
    queue.delete_before(topic, 3)
    ends.append(queue.watermarks(topic, soon()))
    queue.delete_before(topic, 10)
    ends.append(queue.watermarks(topic, soon()))

    assert ends == [(0, 0), (0, 10), (3, 10), (10, 10)]


def test_two_consumers_each_get_everything(queue: Queue, topic: str) -> None:
    write(queue, topic, 0, 20)
    one, two = (queue.read(topic, 0, 20) for _ in range(2))

    found: list[list[bytes | None]] = [[], []]
    for number, reading in ((0, one), (1, two)):
        for chunk in reading:
            found[number] += [message.value() for message in chunk]

    assert found == [values(0, 20), values(0, 20)]


def test_reader_is_used_again_and_begins_anew(queue: Queue, topic: str) -> None:
    """Readers are pooled: what one has fetched ahead is not given to the next."""
    write(queue, topic, 0, 50)
    for start in (40, 0, 25):
        reading = queue.read(topic, start, 50)
        assert next(reading)[0].value() == b"value %d" % start
        reading.close()
        assert read(queue, topic, start, start + 5) == values(start, 5)


def test_queue_that_is_closed_says_so(queue: Queue, topic: str) -> None:
    queue.close()

    with pytest.raises(Closed):
        queue.watermarks(topic, soon())
    with pytest.raises(Closed):
        write(queue, topic, 0, 1)
