"""A lane writes each row once and in order, however often and by however many it is tried. On Tidelog and on Kafka."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.cli.embedded import Up
from tests.e2e.broker import Broker
from tidelog.spark.commit_record import Written
from tidelog.spark.errors import DeliveryFailed, RowRefused, RowsDiffer
from tidelog.spark.kernel.decode import HEADERS, TIMESTAMP
from tidelog.spark.produce import LaneStart, LaneWriter
from tidelog.spark.tail import find_last_written

from .world import Log, frame, numbered

SMALL = {"kafka.batch.size": "1024"}  # so that a hundred rows are several batches


def write(log: Log, topic: str, batches, start: LaneStart | None = None, options: dict[str, str] | None = None) -> dict:
    with log.cluster() as cluster:
        chosen = log.write_options(topic=topic, **(options or {}))
        return LaneWriter(cluster, chosen, start or LaneStart("identity of " + topic, 0), lambda: 7).write(batches)


def pieces(values: list[bytes], size: int) -> list[pa.RecordBatch]:
    return [frame(values[begin : begin + size]) for begin in range(0, len(values), size)]


def test_rows_arrive_once_and_in_order(log: Log):
    topic = log.topic()
    written = write(log, topic, pieces(numbered(0, 5000), 700), options=SMALL)
    assert log.values(topic) == {0: numbered(0, 5000)}
    assert written == {(topic, 0): Written(5000, 5000)}


def test_keys_headers_and_times_arrive(log: Log):
    topic = log.topic(3)
    pairs = [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]
    batch = frame(
        [b"v", None],  # type: ignore[list-item]
        key=pa.array([b"21", None]),
        timestamp=pa.array([1_700_000_000_123_000, None], TIMESTAMP),
        headers=pa.array(pairs, HEADERS),
    )
    write(log, topic, [batch], options={"kafka.compression.type": "zstd"})
    rows = [row for rows in log.rows(topic).values() for row in rows]
    found = sorted(((row["key"], row["value"], row["headers"]) for row in rows), key=repr)
    assert found == sorted([(b"21", b"v", pairs[0]), (None, None, None)], key=repr)
    assert {row["timestamp"].timestamp() for row in rows} == {1_700_000_000.123, 0.007}  # type: ignore[attr-defined]


@pytest.mark.parametrize("done", [1, 30, 100, 2000])
@pytest.mark.parametrize("retry", ["same batches", "other batches"])
def test_a_retry_writes_only_what_is_missing(log: Log, done: int, retry: str):
    topic = log.topic()
    values = numbered(0, 2000)
    write(log, topic, pieces(values[:done], 100), options=SMALL)
    options = SMALL if retry == "same batches" else {"kafka.batch.size": "3000"}
    written = write(log, topic, pieces(values, 100 if retry == "same batches" else 37), options=options)
    assert log.values(topic) == {0: values}
    assert written == {(topic, 0): Written(2000, 2000)}


def test_the_next_batch_goes_on_where_the_committed_one_ended(log: Log):
    topic = log.topic(2)
    both = pa.array([0, 1] * 50, pa.int32())
    first = write(log, topic, [frame(numbered(0, 100), partition=both)])
    start = LaneStart("identity of " + topic, 0, first)
    second = write(log, topic, [frame(numbered(100, 200), partition=both)], start)
    again = write(log, topic, [frame(numbered(100, 200), partition=both)], start)
    assert log.values(topic) == {0: numbered(0, 200)[::2], 1: numbered(0, 200)[1::2]}
    assert second == again == {(topic, 0): Written(100, 100), (topic, 1): Written(100, 100)}


def test_a_task_that_was_given_up_and_still_writes_does_no_harm(log: Log):
    """The first attempt is slow: in its midst a second one is started, and ends before it."""
    topic = log.topic()
    values = numbered(0, 3000)

    def slowly() -> Iterator[pa.RecordBatch]:
        yield from pieces(values[:1000], 100)
        write(log, topic, pieces(values[:2000], 90), options=SMALL)
        yield from pieces(values[1000:2500], 100)
        write(log, topic, pieces(values, 250), options=SMALL)
        yield from pieces(values[2500:], 100)

    write(log, topic, slowly(), options=SMALL)
    assert log.values(topic) == {0: values}


def test_one_that_comes_back_after_the_next_batch_fails_and_writes_nothing(log: Log):
    topic = log.topic()

    def very_slowly() -> Iterator[pa.RecordBatch]:
        yield from pieces(numbered(0, 100), 100)
        first = write(log, topic, pieces(numbered(0, 500), 90), options=SMALL)
        write(log, topic, pieces(numbered(500, 900), 90), LaneStart("identity of " + topic, 0, first), options=SMALL)
        yield from pieces(numbered(100, 500), 100)

    with pytest.raises(RowsDiffer, match="an earlier attempt has written 400 rows more"):
        write(log, topic, very_slowly(), options=SMALL)
    assert log.values(topic) == {0: numbered(0, 900)}


def test_lanes_do_not_know_of_each_other(log: Log):
    topic = log.topic()
    for lane in (0, 1, 0, 1):
        write(log, topic, [frame(numbered(lane, lane + 10))], LaneStart("shared", lane))
    assert log.values(topic) == {0: numbered(0, 10) + numbered(1, 11)}


def test_other_rows_than_before_are_found_out(log: Log):
    topic = log.topic()
    values = numbered(0, 500)
    write(log, topic, pieces(values[:300], 100), options=SMALL)
    with pytest.raises(RowsDiffer, match=r"another row at position 299 \(offset 299\).*sortWithinPartitions"):
        write(log, topic, pieces(values[::-1], 100), options=SMALL)
    assert log.values(topic) == {0: values[:300]}


def test_other_rows_are_found_out_also_when_the_broker_takes_them_for_a_repetition(log: Log):
    """Same producer, same sequence numbers: a broker answers as if it had written them, with the old offset."""
    topic = log.topic()
    write(log, topic, [frame(numbered(0, 30))])
    with pytest.raises(RowsDiffer, match="another row at position 29"):
        write(log, topic, [frame(numbered(100, 130))])
    assert log.values(topic) == {0: numbered(0, 30)}


def test_fewer_rows_than_before_are_found_out(log: Log):
    topic = log.topic()
    write(log, topic, pieces(numbered(0, 300), 100), options=SMALL)
    with pytest.raises(RowsDiffer, match="an earlier attempt has written 1 rows more"):
        write(log, topic, pieces(numbered(0, 299), 100), options=SMALL)


def test_others_may_write_to_the_same_partition(log: Log, monkeypatch):
    monkeypatch.setattr("tidelog.spark.tail.WINDOW_FIRST", 16)
    topic = log.topic()
    values = numbered(0, 400)
    write(log, topic, pieces(values[:150], 50), options=SMALL)
    write(log, topic, [frame([b"other"] * 1000)], LaneStart("somebody else", 0))
    write(log, topic, pieces(values, 50), options=SMALL)
    assert [value for value in log.values(topic)[0] if value != b"other"] == values


def test_a_producer_that_the_broker_forgot_reads_before_it_writes(tmp_path: Path):
    """Brokers take anything from a producer that they do not know; so a lane that was idle for long must not ask."""
    broker = Broker(tmp_path, settings={"producer.id.expiration.ms": "1"})
    try:
        log = Log(broker.bootstrap, replicas=1)
        for is_doubtful, expected in ((True, numbered(0, 100)), (False, numbered(0, 60) + numbered(0, 100))):
            topic = log.topic()
            write(log, topic, [frame(numbered(0, 60))])
            write(log, topic, [frame(numbered(0, 100))], LaneStart("identity of " + topic, 0, is_doubtful=is_doubtful))
            assert log.values(topic) == {0: expected}
    finally:
        broker.stop()


def test_sequence_numbers_begin_again_after_two_to_the_31(log: Log):
    topic = log.topic()
    start = LaneStart("identity of " + topic, 0, {(topic, 0): Written((1 << 31) - 50, 0)})
    for _ in range(2):
        written = write(log, topic, pieces(numbered(0, 100), 10), start, options=SMALL)
        assert written == {(topic, 0): Written((1 << 31) + 50, 100)}
    assert log.values(topic) == {0: numbered(0, 100)}
    with log.cluster() as cluster:
        last = find_last_written(cluster, (topic, 0), start.producer_id, 0, (1 << 31) + 10)
    assert last is not None
    assert (last.rows, last.offset, last.value) == ((1 << 31) + 50, 99, b"row-000099")


def test_a_topic_that_has_grown_keeps_its_partitions_for_the_batch(log: Log):
    topic = log.topic(1)
    log.grow(topic, 4)
    keys = pa.array([b"%d" % number for number in range(100)])
    write(log, topic, [frame(numbered(0, 100), key=keys)], LaneStart("x", 0, partition_counts={topic: 1}))
    assert log.values(topic)[0] == numbered(0, 100)


def test_a_row_that_is_too_large_is_named(tidelog_log: Log):
    topic = tidelog_log.topic()
    batch = frame([b"small", b"x" * 2000], key=pa.array([b"a", b"big one"]))
    with pytest.raises(RowRefused, match=r"row 3 of task 0 \(topic .*, key b'big one'\) has about 21\d\d bytes"):
        write(
            tidelog_log,
            topic,
            [frame([b"", b""], key=pa.array([b"", b""])), batch],
            options={"kafka.max.request.size": "2048"},
        )


def test_a_batch_that_the_topic_does_not_take_is_named(tidelog_log: Log):
    topic = tidelog_log.topic(config={"max.message.bytes": "2000"})
    with pytest.raises(RowRefused, match=r"MESSAGE_TOO_LARGE\), rows 0 to .*set kafka.batch.size below"):
        write(tidelog_log, topic, [frame(numbered(0, 1000))])


def test_a_partition_that_is_not_there_is_named(tidelog_log: Log):
    topic = tidelog_log.topic(2)
    with pytest.raises(RowRefused, match=f"partition 2 of topic {topic}, which has 2"):
        write(tidelog_log, topic, [frame([b"v"], partition=pa.array([2], pa.int32()))])


def test_a_header_without_a_name_is_refused(tidelog_log: Log):
    headers = pa.array([[{"key": None, "value": b""}]], HEADERS)
    with pytest.raises(RowRefused, match="a header without a name"):
        write(tidelog_log, tidelog_log.topic(), [frame([b"v"], headers=headers)])


def test_more_rows_than_the_buffer_holds_pass_through_it(tidelog_log: Log, monkeypatch):
    monkeypatch.setattr("tidelog.spark.produce.BUFFER_BYTES", 4096)
    topic = tidelog_log.topic(3)
    partitions = pa.array([0, 1, 2] * 1000, pa.int32())
    batches = [frame(numbered(begin, begin + 3000), partition=partitions) for begin in (0, 3000)]
    write(tidelog_log, topic, batches, options=SMALL)
    assert tidelog_log.values(topic) == {part: numbered(0, 6000)[part::3] for part in range(3)}


def test_writing_goes_on_with_the_next_leader_and_fails_with_its_position_when_there_is_none(mortal: Up):
    log = Log(mortal.bootstrap, replicas=3)
    topic = log.topic()

    def killing(values: list[bytes]) -> Iterator[pa.RecordBatch]:
        yield from pieces(values[:1000], 100)
        mortal.kill_node(log.leader(topic))
        yield from pieces(values[1000:], 100)

    def freezing(values: list[bytes]) -> Iterator[pa.RecordBatch]:
        yield from pieces(values[:1000], 100)
        nodes.enter_context(mortal.frozen())  # a killed one would be started again, and two are a majority
        yield from pieces(values[1000:], 100)

    written = write(log, topic, killing(numbered(0, 3000)), options=SMALL)
    assert log.values(topic) == {0: numbered(0, 3000)}
    short = {"kafka.delivery.timeout.ms": "500", "kafka.request.timeout.ms": "1000"}
    start = LaneStart("identity of " + topic, 0, written)
    failure = rf"nothing could be written for .* s, to {topic}-0 at position \d+: "
    with ExitStack() as nodes, pytest.raises(DeliveryFailed, match=failure):
        write(log, topic, freezing(numbered(3000, 6000)), start, {**SMALL, **short})
