"""The answer to Fetch by hand (`wire.fetch`) against the table: the same bytes, however the records are cut."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidelog.wire.fetch import FLEXIBLE_SINCE, TOPIC_ID_SINCE, PartitionAnswer, write_fetch_answer
from tidelog.wire.frames import RequestHeader, encode_response
from tidelog.wire.messages import (
    APIS,
    FetchDivergingEpoch,
    FetchResponse,
    FetchResponsePartition,
    FetchResponseTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
)

VERSIONS = range(APIS[1].max_version + 1)
EXAMPLES = max(10, settings().max_examples // 4)

_INT16 = st.integers(-(2**15), 2**15 - 1)
_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_NAMES = st.sampled_from(["", "t", "größe-λ", "x" * 126, "x" * 127, "x" * 249]) | st.text(max_size=5)
_PIECES = st.lists(st.binary(max_size=5) | st.sampled_from([b"r" * 126, b"s" * 127, b"u" * 17_000]), max_size=4)
_LEADERS = st.tuples(_INT32, _INT32).filter(lambda leader: leader != (-1, -1))  # which is the tag's default, left out
_ANSWERS = st.builds(
    PartitionAnswer,
    partition=_INT32,
    error=_INT16,
    high_watermark=_INT64,
    start_offset=_INT64,
    records=_PIECES,
    preferred_replica=_INT32,
    leader=st.none() | _LEADERS,
    diverging=st.none() | st.tuples(_INT32, _INT64).filter(lambda diverging: diverging != (-1, -1)),
)
_ENDPOINTS = st.lists(st.tuples(_INT32, _NAMES, _INT32, st.none() | _NAMES), max_size=3)


def _table(version: int, topics: Any, error: int, throttle_ms: int, endpoints: Any) -> FetchResponse:
    response = FetchResponse(throttle_time_ms=throttle_ms, error_code=error, session_id=0)
    response.node_endpoints = [NodeEndpoint(node_id=n, host=h, port=p, rack=r) for n, h, p, r in endpoints]
    for name, answers in topics:
        named: dict[str, Any] = {"topic_id": name} if version >= TOPIC_ID_SINCE else {"topic": name}
        partitions = [
            FetchResponsePartition(
                partition_index=answer.partition,
                error_code=answer.error,
                high_watermark=answer.high_watermark,
                last_stable_offset=answer.high_watermark,
                log_start_offset=answer.start_offset,
                diverging_epoch=None if answer.diverging is None else _diverging(answer.diverging),
                current_leader=None if answer.leader is None else _leader(answer.leader),
                aborted_transactions=[],
                preferred_read_replica=answer.preferred_replica,
                records=b"".join(answer.records),
            )
            for answer in answers
        ]
        response.responses.append(FetchResponseTopic(partitions=partitions, **named))
    return response


def _leader(leader: tuple[int, int]) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(leader_id=leader[0], leader_epoch=leader[1])


def _diverging(diverging: tuple[int, int]) -> FetchDivergingEpoch:
    return FetchDivergingEpoch(epoch=diverging[0], end_offset=diverging[1])


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=EXAMPLES)
def test_an_answer_has_the_bytes_of_its_table(version: int, data: st.DataObject) -> None:
    names = st.uuids() if version >= TOPIC_ID_SINCE else _NAMES
    topics = data.draw(st.lists(st.tuples(names, st.lists(_ANSWERS, max_size=3)), max_size=3))
    error, throttle_ms, correlation_id = data.draw(_INT16), data.draw(_INT32), data.draw(_INT32)
    endpoints = data.draw(_ENDPOINTS)
    header = RequestHeader(1, version, correlation_id)
    expected = b"".join(encode_response(header, _table(version, topics, error, throttle_ms, endpoints)))
    same = b"".join(write_fetch_answer(version, correlation_id, topics, error, throttle_ms, endpoints)) == expected
    assert same  # alone: to show how so much differs takes pytest minutes


@pytest.mark.parametrize("version", VERSIONS)
def test_records_leave_as_the_buffers_they_are(version: int) -> None:
    name: Any = "t" if version < TOPIC_ID_SINCE else UUID(int=1)
    first, second = memoryview(bytearray(b"first")), memoryview(bytearray(b"second"))
    answer = PartitionAnswer(0, records=[first, second])
    buffers = write_fetch_answer(version, 1, [(name, [answer])])
    assert any(buffer is first for buffer in buffers)
    assert any(buffer is second for buffer in buffers)


def test_flexible_versions_begin_where_the_table_says() -> None:
    assert APIS[1].flexible_since == FLEXIBLE_SINCE
