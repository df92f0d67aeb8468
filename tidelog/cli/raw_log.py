"""One partition as whole batches: read as they lie, written as they are.

What librdkafka hides is what a backup needs: a batch keeps its bytes on the way out, and its place on the way in.
"""

from typing import Any

from tidelog.cli import CommandError
from tidelog.cli.admin import NO_NODE, Admin, PartitionRow, Refused, reason
from tidelog.cli.link import Link, Unreachable
from tidelog.wire.errors import ErrorCode
from tidelog.wire.messages import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)

LATEST, EARLIEST = -1, -2
FETCH_BYTES = 4 << 20
FETCH_WAIT_MS = 1_000
ACKS_ALL = -1
PRODUCE_MS_MAX = 30_000


def leader_of(admin: Admin, topic: str, partition: int) -> PartitionRow:
    """The partition, which has a leader now."""
    for row in admin.partitions(topic):
        if row.partition == partition:
            if row.leader == NO_NODE:
                raise Refused(ErrorCode.LEADER_NOT_AVAILABLE, f"{row.name} has no leader now")
            return row
    raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no stream {topic} with a partition {partition}")


def fetch(admin: Admin, node: int, topic: str, partition: int, offset: int) -> Any:
    """The answer for the partition: `records`, `high_watermark`, `log_start_offset`."""
    wanted = FetchRequestPartition(partition=partition, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        max_wait_ms=FETCH_WAIT_MS,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        topics=[FetchRequestTopic(topic=topic, partitions=[wanted])],
    )
    answer = admin.ask_node(node, request)
    found = answer.responses[0].partitions[0]
    _raise(answer.error_code or found.error_code, f"{topic}:{partition} at {offset}")
    return found


def offset_at(admin: Admin, node: int, topic: str, partition: int, which: int) -> int:
    wanted = ListOffsetsRequestPartition(partition_index=partition, timestamp=which)
    request = ListOffsetsRequest(topics=[ListOffsetsRequestTopic(name=topic, partitions=[wanted])], timeout_ms=5_000)
    found = admin.ask_node(node, request).topics[0].partitions[0]
    _raise(found.error_code, f"{topic}:{partition}")
    return found.offset


def send_batch(link: Link, topic: str, partition: int, batch: bytes | bytearray) -> None:
    link.send(
        ProduceRequest(
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_MS_MAX,
            topic_data=[
                ProduceRequestTopic(
                    name=topic, partition_data=[ProduceRequestPartition(index=partition, records=batch)]
                )
            ],
        )
    )


def receive_offset(link: Link, place: str) -> int:
    """The offset that the oldest batch of those that are on their way was given."""
    found = link.receive(timeout_s=PRODUCE_MS_MAX / 1000 + 5).responses[0].partition_responses[0]
    _raise(found.error_code, place, found.error_message)
    return found.base_offset


def _raise(code: int, place: str, message: str | None = None) -> None:
    if code:
        raise Refused(code, f"{place}: {reason(code, message)}")


def is_for_now(error: CommandError) -> bool:
    """Whether trying again, perhaps at another node, may help."""
    return error.for_now if isinstance(error, Refused) else isinstance(error, Unreachable)
