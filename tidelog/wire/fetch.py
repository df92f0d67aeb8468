"""The answer to Fetch, by hand: record batches leave as they lie, in as many pieces as they have.

The table in `messages.fetch` describes the same bytes, and a test compares the two. This path differs in one thing: a
partition's records may be many buffers (batches in the tail cache, pieces of a segment), and none of them is copied.

Cost: about 3 µs for a partition, whatever its bytes.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidelog.wire.batch import Buffer
from tidelog.wire.leader_hints import NO_TAGS, Endpoint, endpoint_tags, leader_tag
from tidelog.wire.names import encoded_name, uvarint

FLEXIBLE_SINCE = 12
TOPIC_ID_SINCE = 13
ENDPOINTS_SINCE = 16

_INT32 = struct.Struct(">i")
_HEAD = struct.Struct(">ii")
_SESSION = struct.Struct(">hi")
_PARTITION_V0 = struct.Struct(">ihq")
_PARTITION_V4 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_ONE_HEAD = struct.Struct(">iiBihiB")
_ONE_PARTITION = struct.Struct(">BihqqqBi")
_ONE_TAIL = b"\x00\x00\x00"  # no tags of the partition, the topic and the answer
_ONE_BYTES = _ONE_HEAD.size + _ONE_PARTITION.size + len(_ONE_TAIL) - 4  # without the size itself and what varies
_DIVERGING = struct.Struct(">BBiqB")  # tag 0, 13 bytes: epoch, end offset, no tags


@dataclass(slots=True)
class PartitionAnswer:
    partition: int
    error: int = 0
    high_watermark: int = -1
    start_offset: int = -1
    records: Sequence[Buffer] = ()
    preferred_replica: int = -1
    leader: tuple[int, int] | None = None
    """(node, epoch) of who leads, for a client that asked somebody else."""
    diverging: tuple[int, int] | None = None
    """(epoch, where it ends here) for a reader whose log, as its last epoch shows, has parted from this one."""

    @property
    def size(self) -> int:
        return sum(map(len, self.records))


def write_fetch_answer(
    version: int,
    correlation_id: int,
    topics: Sequence[tuple[str | UUID, Sequence[PartitionAnswer]]],
    error: int = 0,
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
) -> list[Buffer]:
    """The whole response frame as buffers. Fetch sessions are not kept: the session id is always 0.

    `endpoints` say where the leaders are that partitions name.
    """
    flexible = version >= FLEXIBLE_SINCE
    if flexible and len(topics) == 1 and len(topics[0][1]) == 1 and not endpoints:
        answer = topics[0][1][0]
        if answer.leader is None and answer.diverging is None:
            return _write_one(correlation_id, topics[0][0], answer, error, throttle_ms)
    out = bytearray(8)
    buffers: list[Buffer] = [out]
    if flexible:
        out.append(0)
    if version >= 1:
        out += _INT32.pack(throttle_ms)
    if version >= 7:
        out += _SESSION.pack(error, 0)
    _put_count(out, len(topics), flexible)
    records_bytes = 0
    for name, partitions in topics:
        out += name.bytes if isinstance(name, UUID) else encoded_name(name, flexible)
        _put_count(out, len(partitions), flexible)
        for partition in partitions:
            size = partition.size
            _put_partition(out, partition, version, size)
            if size:
                records_bytes += size
                buffers.extend(partition.records)
                out = bytearray()
                buffers.append(out)
            if flexible:
                _put_tags(out, partition)
        if flexible:
            out.append(0)
    if flexible:
        out += endpoint_tags(endpoints) if version >= ENDPOINTS_SINCE else NO_TAGS
    own_bytes = sum(map(len, buffers)) if records_bytes else len(out)
    _HEAD.pack_into(buffers[0], 0, own_bytes - 4, correlation_id)  # type: ignore[arg-type]
    return buffers


def _write_one(
    correlation_id: int, name: str | UUID, answer: PartitionAnswer, error: int, throttle_ms: int
) -> list[Buffer]:
    """The most frequent answer: one partition, flexible encoding."""
    named = name.bytes if isinstance(name, UUID) else encoded_name(name, True)
    size, watermark = answer.size, answer.high_watermark
    length = uvarint(size + 1)
    head = b"".join(
        (
            _ONE_HEAD.pack(
                _ONE_BYTES + len(named) + len(length) + size, correlation_id,
                0, throttle_ms, error, 0, 2,  # no tags; throttle, error, no session; one topic
            ),
            named,
            _ONE_PARTITION.pack(
                2, answer.partition, answer.error, watermark, watermark, answer.start_offset,  # one partition
                1, answer.preferred_replica,  # no aborted transactions
            ),
            length,
        )
    )  # fmt: skip
    return [head, *answer.records, _ONE_TAIL]


def _put_partition(out: bytearray, answer: PartitionAnswer, version: int, size: int) -> None:
    watermark = answer.high_watermark
    if version >= 5:
        out += _PARTITION_V5.pack(answer.partition, answer.error, watermark, watermark, answer.start_offset)
    elif version == 4:
        out += _PARTITION_V4.pack(answer.partition, answer.error, watermark, watermark)
    else:
        out += _PARTITION_V0.pack(answer.partition, answer.error, watermark)
    if version >= 4:
        _put_count(out, 0, version >= FLEXIBLE_SINCE)  # no aborted transactions
    if version >= 11:
        out += _INT32.pack(answer.preferred_replica)
    if version >= FLEXIBLE_SINCE:
        out += uvarint(size + 1)
    else:
        out += _INT32.pack(size)


def _put_tags(out: bytearray, answer: PartitionAnswer) -> None:
    out.append((answer.diverging is not None) + (answer.leader is not None))
    if answer.diverging is not None:
        out += _DIVERGING.pack(0, 13, *answer.diverging, 0)
    if answer.leader is not None:
        out += leader_tag(1, answer.leader)


def _put_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        out += uvarint(count + 1)
    else:
        out += _INT32.pack(count)
