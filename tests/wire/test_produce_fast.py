"""Produce by hand (`wire.produce`) against the tables: the same bytes and values, and nothing but ProtocolError."""

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.wire.samples import messages
from tidelog.wire import produce
from tidelog.wire.errors import ProtocolError
from tidelog.wire.frames import RequestHeader, decode_request, encode_request, encode_response, read_header
from tidelog.wire.messages import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from tidelog.wire.produce import TOPIC_ID_SINCE, VERSION_MAX, PartitionAnswer, ProduceReader, read_produce, write_answer

VERSIONS = range(VERSION_MAX + 1)
EXAMPLES = max(10, settings().max_examples // 4)

_INT16 = st.integers(-(2**15), 2**15 - 1)
_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_NAMES = st.sampled_from(["", "t", "größe-λ", "x" * 126, "x" * 127, "x" * 249]) | st.text(max_size=5)
_ANSWERS = st.builds(
    PartitionAnswer,
    partition=_INT32,
    error=_INT16,
    base_offset=_INT64,
    append_time_ms=_INT64,
    start_offset=_INT64,
    message=st.none() | st.sampled_from(["", "why", "ü" * 100, "y" * 200]),
    # (-1, -1) is the tag's default, and left out.
    leader=st.none() | st.tuples(_INT32, _INT32).filter(lambda leader: leader != (-1, -1)),
)


def _frame(request: object, version: int) -> bytes:
    return b"".join(encode_request(RequestHeader(0, version, 5, "c"), request))[4:]


def _read(frame: bytes) -> Any:
    return read_produce(memoryview(bytearray(frame)))


def _plain(request: ProduceRequest, version: int) -> tuple[Any, ...]:
    """What the table says, in the words of the fast path."""
    topics = [
        (
            topic.topic_id if version >= TOPIC_ID_SINCE else topic.name,
            [(part.index, None if part.records is None else bytes(part.records)) for part in topic.partition_data],
        )
        for topic in request.topic_data
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


def _plain_fast(request: Any) -> tuple[Any, ...]:
    topics = [
        (name, [(number, None if records is None else bytes(records)) for number, records in partitions])
        for name, partitions in request.topics
    ]
    return request.transactional_id, request.acks, request.timeout_ms, topics


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_a_request_reads_as_its_table_says(version: int, data: st.DataObject) -> None:
    request = data.draw(messages(ProduceRequest, version))
    frame = _frame(request, version)
    assert _plain_fast(_read(frame)) == _plain(decode_request(frame)[1], version)


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_a_connections_requests_read_the_same_whatever_came_before(version: int, data: st.DataObject) -> None:
    """Its reader remembers how a request began. Tags, odd lengths and requests cut short must not confuse it."""
    partitions = st.builds(
        ProduceRequestPartition, index=st.integers(0, 1), records=st.none() | st.binary(max_size=200)
    )
    topics = st.builds(
        ProduceRequestTopic, name=st.sampled_from(["t", "u"]), partition_data=st.lists(partitions, max_size=2)
    )
    requests = st.builds(
        ProduceRequest, acks=st.sampled_from([-1, 1]), timeout_ms=st.just(9), topic_data=st.lists(topics, max_size=2)
    )
    reader = ProduceReader()
    for request in data.draw(st.lists(requests, min_size=1, max_size=6)):
        whole = bytearray(_frame(request, version))
        for at in data.draw(st.lists(st.integers(8, len(whole) - 1), max_size=1)):
            whole[at] = data.draw(st.sampled_from([0, 1, 2, 0x80]))
        frame = memoryview(whole)[: data.draw(st.sampled_from([len(whole), len(whole), len(whole) - 1]))]
        try:
            expected = _plain_fast(read_produce(frame))
        except ProtocolError:
            with pytest.raises(ProtocolError):
                reader.read(frame)
        else:
            assert _plain_fast(reader.read(frame)) == expected


def test_a_request_that_begins_as_the_one_before_is_not_taken_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ProduceReader()
    topic = ProduceRequestTopic(name="t", partition_data=[ProduceRequestPartition(index=3, records=b"r" * 300)])
    reader.read(memoryview(_frame(ProduceRequest(acks=-1, timeout_ms=9, topic_data=[topic]), 9)))
    topic.partition_data[0].records = b"other"
    frame = _frame(ProduceRequest(acks=-1, timeout_ms=9, topic_data=[topic]), 9)
    expected = _plain_fast(_read(frame))
    monkeypatch.setattr(produce, "read_produce", lambda _: pytest.fail("it was taken apart"))
    assert _plain_fast(reader.read(memoryview(frame))) == expected


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_an_answer_has_the_bytes_of_its_table(version: int, data: st.DataObject) -> None:
    names = st.uuids() if version >= TOPIC_ID_SINCE else _NAMES
    topics = data.draw(st.lists(st.tuples(names, st.lists(_ANSWERS, max_size=3)), max_size=3))
    throttle_ms, correlation_id = data.draw(_INT32), data.draw(_INT32)
    endpoints = data.draw(st.lists(st.tuples(_INT32, _NAMES, _INT32, st.none() | _NAMES), max_size=3))
    response = ProduceResponse(throttle_time_ms=throttle_ms)
    response.node_endpoints = [NodeEndpoint(node_id=n, host=h, port=p, rack=r) for n, h, p, r in endpoints]
    for name, answers in topics:
        named: dict[str, Any] = {"topic_id": name} if version >= TOPIC_ID_SINCE else {"name": name}
        partitions = [
            ProduceResponsePartition(
                index=answer.partition,
                error_code=answer.error,
                base_offset=answer.base_offset,
                log_append_time_ms=answer.append_time_ms,
                log_start_offset=answer.start_offset,
                error_message=answer.message,
                current_leader=None if answer.leader is None else _leader(answer.leader),
            )
            for answer in answers
        ]
        response.responses.append(ProduceResponseTopic(partition_responses=partitions, **named))
    expected = b"".join(encode_response(RequestHeader(0, version, correlation_id), response))
    assert write_answer(version, correlation_id, topics, throttle_ms, endpoints) == expected


def _leader(leader: tuple[int, int]) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data(), seed=st.integers(0, 2**32))
@settings(max_examples=EXAMPLES)
def test_a_damaged_request_is_a_value_or_a_protocol_error(version: int, data: st.DataObject, seed: int) -> None:
    chance = random.Random(seed)
    frame = _frame(data.draw(messages(ProduceRequest, version)), version)
    start = read_header(frame)[1]
    for _ in range(20):
        hostile = bytearray(frame)
        for _ in range(chance.randint(1, 3)):
            position = chance.randrange(4, len(frame))
            hostile[position] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, hostile[position] ^ 1])
        if chance.random() < 0.3:
            del hostile[chance.randrange(start, len(hostile)) :]
        _must_not_surprise(bytes(hostile))


def test_random_bytes_are_a_value_or_a_protocol_error() -> None:
    chance = random.Random(3)
    for version in VERSIONS:
        head = _frame(ProduceRequest(), version)[: read_header(_frame(ProduceRequest(), version))[1]]
        for _ in range(500):
            top = chance.choice([2, 4, 256])
            _must_not_surprise(head + bytes(chance.randrange(top) for _ in range(chance.randrange(80))))


def _must_not_surprise(frame: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        _read(frame)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_cut_short_is_refused_wherever_it_is_cut(version: int) -> None:
    frame = _frame(_small(version), version)
    for length in range(read_header(frame)[1], len(frame)):
        with pytest.raises(ProtocolError):
            _read(frame[:length])


def _small(version: int) -> ProduceRequest:
    part = ProduceRequestPartition(index=1, records=b"records")
    topic = ProduceRequestTopic(name="topic" if version < TOPIC_ID_SINCE else "", partition_data=[part])
    return ProduceRequest(acks=-1, timeout_ms=1, topic_data=[topic])


@pytest.mark.parametrize("version", [-1, VERSION_MAX + 1, 99, 2**15 - 1])
def test_a_version_that_is_not_ours_is_refused(version: int) -> None:
    frame = bytearray(_frame(_small(9), 9))
    frame[2:4] = version.to_bytes(2, "big", signed=True)
    with pytest.raises(ProtocolError):
        _read(bytes(frame))


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b"\xff\xff\x00\x01\x00\x00\x00\x01\xff\xff\xff\xff", id="-1 topics"),
        pytest.param(b"\xff\xff\x00\x01\x00\x00\x00\x01\x80\x00\x00\x00", id="-2^31 topics"),
        pytest.param(
            b"\xff\xff\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x01t\xff\xff\xff\xff",
            id="-1 partitions",
        ),
        pytest.param(b"\xff\xfe\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00", id="text of -2 bytes"),
    ],
)
def test_a_negative_count_is_refused_as_the_table_does(hostile: bytes) -> None:
    head = RequestHeader(0, 3, 1, None)
    frame = b"".join(encode_request(head, ProduceRequest()))[4:]
    frame = frame[: read_header(frame)[1]] + hostile
    with pytest.raises(ProtocolError):
        decode_request(frame)
    with pytest.raises(ProtocolError):
        _read(frame)


def test_no_count_can_make_it_allocate_more_than_the_frame_has_room_for() -> None:
    frame = b"".join(encode_request(RequestHeader(0, 9, 1, None), ProduceRequest()))[4:]
    start = read_header(frame)[1]
    hostile = frame[:start] + b"\x00\x00\x01\x00\x00\x00\x01" + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ProtocolError):
        _read(hostile)
