"""Requests of the protocol, ready to be sent: what a client has to make before anything is measured."""

import json
import random
from collections.abc import Mapping, Sequence

from tidelog.server.clock import wall_ms
from tidelog.wire.batch import Buffer, read_header
from tidelog.wire.frames import RequestHeader, decode_response, encode_request
from tidelog.wire.messages import (
    APIS,
    PRIVATE_APIS,
    CreateTopicsRequest,
    CreateTopicsRequestTopic,
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
    DeleteTopicsRequest,
    DeleteTopicsRequestTopic,
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    MetadataRequest,
    MetadataRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
    TidelogAdminRequest,
)
from tidelog.wire.records import Record, build_batch

KIB, MIB = 1 << 10, 1 << 20
RECORD_BYTES = 1000
TIMEOUT_MS = 20_000
FETCH_WAIT_MS = 500
PRODUCE = RequestHeader(0, 9, 7, "bench")  # versions of today's clients before topics had ids
FETCH = RequestHeader(1, 12, 7, "bench")
HIGH_WATERMARK = -1
LATEST = -1

_APIS = {api.request: api for api in (APIS | PRIVATE_APIS).values()}


def header_of(request: object) -> RequestHeader:
    """In the newest version."""
    api = _APIS[type(request)]
    return RequestHeader(api.key, api.max_version, 7, "bench")


def batch_of(batch_bytes: int, record_bytes: int = RECORD_BYTES) -> bytes:
    """As many records with values of one size as fit into a batch of another, and one at least. Their time is now.

    Older ones would have their segments closed and deleted whenever somebody looks at what is past its retention.
    """
    value = random.Random(record_bytes).randbytes(record_bytes)
    count, now_ms = max(1, batch_bytes // record_bytes), wall_ms()
    while len(batch := build_batch([Record(value, timestamp=now_ms)] * count)) > batch_bytes and count > 1:
        count = min(count - 1, count * batch_bytes // len(batch))
    return bytes(batch)


def records_in(batch: bytes) -> int:
    return read_header(batch).record_count


def produce_frame(topic: str, batch: bytes, timeout_ms: int = TIMEOUT_MS) -> bytes:
    partition = ProduceRequestPartition(index=0, records=batch)
    request = ProduceRequest(
        acks=-1, timeout_ms=timeout_ms, topic_data=[ProduceRequestTopic(name=topic, partition_data=[partition])]
    )
    return b"".join(encode_request(PRODUCE, request))


def fetch_frame(topic: str, offset: int, bytes_max: int) -> bytes:
    partition = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=bytes_max)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=bytes_max,
        topics=[FetchRequestTopic(topic=topic, partitions=[partition])],
    )
    return b"".join(encode_request(FETCH, request))


def create_topic(topic: str) -> CreateTopicsRequest:
    return create_topics([topic], 1, 1)


def create_topics(topics: Sequence[str], partitions: int, replication: int) -> CreateTopicsRequest:
    wanted = [
        CreateTopicsRequestTopic(name=topic, num_partitions=partitions, replication_factor=replication)
        for topic in topics
    ]
    return CreateTopicsRequest(topics=wanted, timeout_ms=TIMEOUT_MS)


def delete_topic(topic: str) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicsRequestTopic(name=topic)], timeout_ms=TIMEOUT_MS)


def metadata_of(topics: Sequence[str] | None) -> MetadataRequest:
    """None: of all there are."""
    asked = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
    return MetadataRequest(topics=asked, allow_auto_topic_creation=False)


def latest_offsets(partitions: Mapping[str, Sequence[int]]) -> ListOffsetsRequest:
    """Of some partitions of each topic."""
    topics = [
        ListOffsetsRequestTopic(
            name=topic,
            partitions=[ListOffsetsRequestPartition(partition_index=number, timestamp=LATEST) for number in numbers],
        )
        for topic, numbers in partitions.items()
    ]
    return ListOffsetsRequest(topics=topics, timeout_ms=TIMEOUT_MS)


def admin(method: str, **arguments: object) -> TidelogAdminRequest:
    return TidelogAdminRequest(method=method, content=json.dumps(arguments))


def delete_records(topic: str, before: int = HIGH_WATERMARK) -> DeleteRecordsRequest:
    partition = DeleteRecordsRequestPartition(partition_index=0, offset=before)
    return DeleteRecordsRequest(
        topics=[DeleteRecordsRequestTopic(name=topic, partitions=[partition])], timeout_ms=TIMEOUT_MS
    )


def check_produced(answer: Buffer) -> None:
    """`answer` is a whole frame without its size, as all answers here."""
    response = decode_response(PRODUCE, answer)
    _check_codes([partition.error_code for topic in response.responses for partition in topic.partition_responses])


def check_fetched(answer: Buffer, offset: int) -> None:
    """The records begin at `offset`."""
    response = decode_response(FETCH, answer)
    partitions = [partition for topic in response.responses for partition in topic.partitions]
    _check_codes([response.error_code, *(partition.error_code for partition in partitions)])
    assert read_header(partitions[0].records).base_offset == offset, "the records are not those that were asked for"


def _check_codes(codes: Sequence[int]) -> None:
    assert codes, "the answer has no partition"
    assert not any(codes), f"the server answered with error {max(codes)}"
